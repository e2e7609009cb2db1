"""The way from private inputs to what the server reads, as one differentiable function and the noise added to it.

    inputs --> rule of each client --> stages before the noise --> clip --> [as a gradient] --> mean --> + noise
                                       (hide entries)              (whole update)                         |
                                                                                          later stages: left out

What is done to a noisy update without looking at the private examples again cannot tell more than the noisy update
does, so stages behind the noise may be left out of a bound.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.nn import generator, state_of, vocabulary_of
from seepage.errors import Inapplicable
from seepage.types import Batch, ClientUpdate, ClientView, Defense, DefenseModel, Tensors, Update

MOST_STEPS = 32
"""Local steps of one client that are differentiated as a whole; the graph grows with each."""


@dataclass(frozen=True)
class Channel:
    """What is sent of one batch, as a function of its inputs.

    Attributes:
        model: A copy of the model in double precision.
        params: Its parameters.
        buffers: Its buffers.
        batch: The private examples, in double precision.
        rules: The rule of each client, with its own order of examples.
        sizes: Examples of each client.
        masks: For each client the entries of each tensor that are sent, 0 or 1; tensors that are missing are not.
        clips: What scales each client's update as a whole before the noise.
        deviation: Noise of each number sent, read as a gradient: the deviation of a Gaussian with the same Fisher
            information; 0 without noise.
        law: Its distribution.
    """

    model: nn.Module
    params: Tensors
    buffers: Tensors
    batch: Batch
    rules: tuple[ClientUpdate, ...]
    sizes: tuple[int, ...]
    masks: tuple[Tensors, ...]
    clips: tuple[DefenseModel, ...]
    deviation: float
    law: str

    def __call__(self, inputs: Tensor) -> Tensor:
        """`[numbers]` sent, before the noise, from all inputs `[n * d]`."""
        shaped = inputs.reshape(self.batch.inputs.shape)
        parts = zip(self.rules, shaped.split(self.sizes), self.batch.labels.split(self.sizes), self.masks, strict=True)
        total: Tensor | int = 0
        for rule, x, y, mask in parts:
            update = rule(self.model, self.params, Batch(x, y), buffers=self.buffers or None, create_graph=True)
            tensors = {name: update.tensors[name] * kept for name, kept in mask.items()}
            for clip in self.clips:
                tensors = clip(tensors, tensors)
            read = rule.as_gradient(Update(tensors, update.kind), len(x))
            # Numbers that no client sends are constant, so they carry no information; they may stay in.
            total = total + len(x) / len(shaped) * torch.cat([read[name].flatten() for name in mask])
        assert isinstance(total, Tensor)
        return total

    @property
    def numbers_sent(self) -> int:
        """Entries that at least one client sends."""
        sent = {name: sum((mask[name] for mask in self.masks), torch.zeros(())) for name in self.masks[0]}
        return sum(int((tensor != 0).sum()) for tensor in sent.values())


def channel_of(
    model: nn.Module,
    batch: Batch,
    client: ClientUpdate,
    defense: Defense | None,
    *,
    params: Tensors | None = None,
    buffers: Tensors | None = None,
    seed: int = 0,
    t: int = 0,
    sent: Sequence[str] | None = None,
) -> Channel:
    """The channel of one round.

    Args:
        model: The model.
        batch: The private examples.
        client: The client's rule, or of several whose updates are summed.
        defense: What each client does.
        params: The weights that were sent out; None: the model's own.
        buffers: Its buffers; None: the model's own.
        seed: Of the client's order of examples and of the defense, as in `record`.
        t: The round.
        sent: Names of the tensors that were sent; None: as the defense has it.

    Raises:
        Inapplicable: Where no such function can be given.
    """
    if vocabulary_of(model) is not None or not batch.inputs.is_floating_point():
        raise Inapplicable(
            "tokens are whole numbers and have no derivative, so nothing is bounded by one",
            "use the bounds from the noise's epsilon, which need none",
        )
    double, params, buffers = _double(model, params, buffers)
    private = Batch(batch.inputs.double(), batch.labels, batch.indices)
    parts = client.parts(private)
    before, noisy, after = _at_noise(() if defense is None else defense.stages(), client, len(parts[0]), t)
    looking = next((stage for stage in after if stage.reads_examples), None)
    if looking is not None:
        raise Inapplicable(
            f"{type(looking).__name__} looks at the private examples again behind the noise",
            "leave it out, or put it before the noise",
        )
    rules = tuple(client.per_client.for_round(seed, t * len(parts) + k) for k in range(len(parts)))
    if noisy is not None and noisy.from_batch:
        rules = tuple(noisy.defended_rule(rule, model, {}) for rule in rules)
    steps = max(len(rule.batches(len(part))) for rule, part in zip(rules, parts, strict=True))
    if steps > MOST_STEPS:
        raise Inapplicable(
            f"a client of {steps} local steps is not differentiated as a whole (more than {MOST_STEPS})",
            "take fewer local steps",
        )
    masks, deviations = [], []
    for k, (rule, part) in enumerate(zip(rules, parts, strict=True)):
        update = rule(double, params, part, buffers=buffers or None)
        view = ClientView(double, params, part, rule, buffers, t, k, len(parts))
        names = {name: tensor for name, tensor in update.tensors.items() if sent is None or name in sent}
        masks.append(_mask(Update(names, update.kind), view, before, noisy, after, seed, t * len(parts) + k))
        deviations.append(_deviation(noisy, client.per_client, len(part), t) * len(part) / len(batch))
    masks = _aligned(masks)
    if not masks[0]:
        raise Inapplicable("nothing was sent", "audit an update with entries")
    clips = () if noisy is None else tuple(one for one in noisy.attacker_models(model) if one.scales_whole)
    # Independent noises add up in squares; of Laplace noise b = deviation / sqrt(2) is what Fisher information counts.
    law = "gaussian"
    if noisy is not None:
        stated = noisy.added_noise(client.per_client, len(parts[0]), t)
        law = "gaussian" if stated is None else stated.law
    return Channel(
        model=double,
        params=params,
        buffers=buffers,
        batch=private,
        rules=rules,
        sizes=tuple(len(part) for part in parts),
        masks=tuple(masks),
        clips=clips,
        deviation=math.hypot(*deviations) / (math.sqrt(2) if law == "laplace" else 1.0),
        law=law,
    )


def _double(model: nn.Module, params: Tensors | None, buffers: Tensors | None) -> tuple[nn.Module, Tensors, Tensors]:
    """A copy of the model, and the state to be used, in double precision: a rank is told by many digits."""
    double = copy.deepcopy(model).double()
    own_params, own_buffers = state_of(double)
    if params is not None:
        own_params = {name: tensor.detach().double() for name, tensor in params.items()}
    if buffers:
        own_buffers = {n: b.double() if b.is_floating_point() else b for n, b in buffers.items()}
    return double, own_params, own_buffers


def _at_noise(
    stages: Sequence[Defense], client: ClientUpdate, examples: int, t: int
) -> tuple[tuple[Defense, ...], Defense | None, tuple[Defense, ...]]:
    """The stages before the first one that states its noise, that one, and those behind it.

    Raises:
        Inapplicable: Where a stage that is no noise, and does more than hide entries, has no derivative.
    """
    place = None
    for number, stage in enumerate(stages):
        noise = stage.added_noise(client.per_client, examples, t)
        if noise is not None and noise.deviation > 0:
            place = number
            break
    before = stages if place is None else stages[:place]
    for stage in before:
        if not (stage.only_hides or stage.withholds or _silent(stage, client, examples, t)):
            raise Inapplicable(
                f"what {type(stage).__name__} sends has no derivative by the inputs, or noise of a strength that it "
                "does not state",
                "bound a defense that hides entries, clips, or adds noise of a stated strength",
            )
    if place is None:
        return tuple(stages), None, ()
    return tuple(before), stages[place], tuple(stages[place + 1 :])


def _silent(stage: Defense, client: ClientUpdate, examples: int, t: int) -> bool:
    """Whether it is a noise of strength 0: then it clips at most, which is left out."""
    noise = stage.added_noise(client.per_client, examples, t)
    return noise is not None and noise.deviation == 0


def _mask(
    update: Update,
    view: ClientView,
    before: Sequence[Defense],
    noisy: Defense | None,
    after: Sequence[Defense],
    seed: int,
    draw: int,
) -> Tensors:
    """1 for each entry that is sent, 0 for others; without tensors that are withheld."""
    hiding = [stage for stage in before if stage.only_hides or stage.withholds]
    shown = update
    for stage in hiding:
        shown = stage(shown, view, generator=generator(seed, "defense", draw))
    names = shown.tensors
    for stage in after:
        if stage.withholds:
            names = stage(Update(names, update.kind), view, generator=generator(seed, "defense", draw)).tensors
    only_hide = any(stage.only_hides for stage in hiding)
    return {
        name: (shown.tensors[name] != 0).to(tensor) if only_hide else torch.ones_like(tensor)
        for name, tensor in names.items()
    }


def _aligned(masks: list[Tensors]) -> list[Tensors]:
    """The masks of several clients, with the same tensors in the same order."""
    names = list(dict.fromkeys(name for mask in masks for name in mask))
    like = {name: mask[name] for mask in masks for name in mask}
    return [{name: mask.get(name, torch.zeros_like(like[name])) for name in names} for mask in masks]


def _deviation(noisy: Defense | None, rule: ClientUpdate, examples: int, t: int) -> float:
    noise = None if noisy is None else noisy.added_noise(rule, examples, t)
    return 0.0 if noise is None else noise.deviation
