"""The way from private inputs to what the server reads, as one differentiable function and the noise added to it.

    inputs --> rule of each client --> stages before the noise --> clip --> [as a gradient] --> mean --> + noise
                                       (hide entries)              (whole update)                         |
                                                                                          later stages: left out

What is done to an update without looking at the private examples again cannot tell more than that update does. So
stages behind the noise are left out of a bound; and where rounding or noise of unknown strength comes first, all but
the hiding of entries is left out, and the bound is that of an update without noise.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from seepage.base.nn import generator, state_of, vocabulary_of
from seepage.errors import Inapplicable
from seepage.federation.types import Batch, ClientUpdate, ClientView, Defense, DefenseModel, Tensors, Update

MOST_STEPS = 32
"""Local steps of one client that are differentiated as a whole; the graph grows with each."""

MOST_NUMBERS = 20_000_000
"""Parameters of a model whose update is differentiated; it takes some ten copies of them in double precision."""


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
            information, over all rounds; 0 without noise.
        law: Its distribution.
        left_out: Defenses that can only hide more, and were left out.
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
    law: Literal["gaussian", "laplace"]
    left_out: tuple[str, ...]

    def __call__(self, inputs: Tensor) -> Tensor:
        """`[numbers]` sent, before the noise, from all inputs `[n * d]`."""
        shaped = inputs.reshape(self.batch.inputs.shape)
        parts = zip(self.rules, shaped.split(self.sizes), self.batch.labels.split(self.sizes), self.masks, strict=True)
        means = []
        for rule, x, y, mask in parts:
            update = rule(self.model, self.params, Batch(x, y), buffers=self.buffers or None, create_graph=True)
            tensors = {name: update.tensors[name] * kept for name, kept in mask.items()}
            for clip in self.clips:
                tensors = clip(tensors, tensors)
            read = rule.as_gradient(Update(tensors, update.kind), len(x))
            # Numbers that no client sends are constant, so they carry no information; they may stay in.
            means.append(len(x) / len(shaped) * torch.cat([read[name].flatten() for name in mask]))
        return torch.stack(means).sum(0)

    @property
    def numbers_sent(self) -> int:
        """Entries that at least one client sends."""
        first = self.masks[0]
        return sum(int(torch.stack([mask[name] for mask in self.masks]).any(0).sum()) for name in first)


@dataclass(frozen=True)
class _Stages:
    """The stages of a defense, by what a bound does with them.

    Attributes:
        hiding: What decides on which entries are sent.
        scaling: What scales the update, or clips examples, up to the noise; the last one adds it.
        after: What comes behind the noise.
        left_out: What is neither followed nor can it tell more.
    """

    hiding: tuple[Defense, ...]
    scaling: tuple[Defense, ...] = ()
    after: tuple[Defense, ...] = ()
    left_out: tuple[Defense, ...] = ()

    @classmethod
    def of(cls, stages: Sequence[Defense], deviations: Sequence[float | None]) -> "_Stages":
        """The stages sorted by what the linearized update can follow.

        Args:
            stages: Stages of the defense, in the order in which they are applied.
            deviations: Standard deviation of the noise that each stage adds; None: it states none.

        Raises:
            Inapplicable: Where a stage reads the private examples and does more than hide entries.
        """
        noise_place = next((i for i, deviation in enumerate(deviations) if deviation), None)
        hides = [stage.only_hides or stage.withholds for stage in stages]
        before = range(len(stages) if noise_place is None else noise_place)
        followed = all(hides[i] or deviations[i] is not None for i in before)
        # A clip whose entries are hidden later has another length than one of the entries that are sent.
        followed &= not any(hides[j] for i in before if deviations[i] is not None for j in before if j > i)
        if followed:
            hiding = tuple(stages[i] for i in before if hides[i])
            scaling = tuple(stages[i] for i in before if not hides[i])
            if noise_place is None:
                return cls(hiding, scaling)
            after = tuple(stages[noise_place + 1 :])
            looking = next((stage for stage in after if stage.reads_examples), None)
            if looking is None:
                return cls(hiding, (*scaling, stages[noise_place]), after)
            raise Inapplicable(
                f"{type(looking).__name__} looks at the private examples again behind the noise",
                "leave it out, or put it before the noise",
            )
        rest = tuple(stage for stage, hide in zip(stages, hides, strict=True) if not hide)
        looking = next((stage for stage in rest if stage.reads_examples), None)
        if looking is None:
            return cls(tuple(stages), left_out=rest)
        raise Inapplicable(
            f"what {type(looking).__name__} makes of the private examples is not followed",
            "bound a defense that hides entries, rounds, clips, or adds noise",
        )


def channel_of(
    model: nn.Module,
    batch: Batch,
    client: ClientUpdate,
    defense: Defense | None,
    *,
    params: Tensors | None = None,
    buffers: Tensors | None = None,
    sent: Sequence[str] | None = None,
    seed: int = 0,
    t: int = 0,
    rounds: int = 1,
) -> Channel:
    """The channel of one round, or of several at the same weights.

    Args:
        model: The model.
        batch: The private examples.
        client: The client's rule, or of several whose updates are summed.
        defense: What each client does.
        params: The weights that were sent out; None: the model's own.
        buffers: Its buffers; None: the model's own.
        sent: Names of the tensors that were sent; None: as the defense has it.
        seed: Of the client's order of examples and of the defense, as in `record`.
        t: The first round.
        rounds: How many; all with the client's order of the first.

    Raises:
        Inapplicable: Where no such function can be given.
    """
    _check_differentiable(model, batch)
    if client.read_as != client:
        raise Inapplicable(
            "the client runs code of its own, draws masks of dropout or rounds: its update has no known derivative",
            "bound the rule that attacks read it as, such as fedavg without dropout",
        )
    double, params, buffers = _double(model, params, buffers)
    private = Batch(batch.inputs.double(), batch.labels, batch.indices)
    parts, own = client.parts(private), client.per_client
    stages = () if defense is None else defense.stages()
    deviations = [
        None if (noise := one.added_noise(own, len(parts[0]), t)) is None else noise.deviation for one in stages
    ]
    sorted_stages = _Stages.of(stages, deviations)
    rules = tuple(own.for_round(seed, t * len(parts) + k) for k in range(len(parts)))
    _check_steps(max(len(rule.batches(len(part))) for rule, part in zip(rules, parts, strict=True)))
    masks = []
    for k, (rule, part) in enumerate(zip(rules, parts, strict=True)):
        update = rule(double, params, part, buffers=buffers or None)
        names = {name: tensor for name, tensor in update.tensors.items() if sent is None or name in sent}
        view = ClientView(double, params, part, rule, buffers, t, k, len(parts))
        draw = generator(seed, "defense", t * len(parts) + k)
        masks.append(_mask(Update(names, update.kind), view, sorted_stages, draw))
    if not any(map(len, masks)):
        raise Inapplicable("nothing was sent", "audit an update with entries")
    for stage in sorted_stages.scaling:
        rules = tuple(stage.defended_rule(rule, model, {}) if stage.from_batch else rule for rule in rules)
    sizes = tuple(len(part) for part in parts)
    law, deviation = _noise(sorted_stages.scaling[-1:], own, sizes, range(t, t + rounds))
    return Channel(
        model=double,
        params=params,
        buffers=buffers,
        batch=private,
        rules=rules,
        sizes=sizes,
        masks=tuple(_aligned(masks)),
        clips=tuple(one for stage in sorted_stages.scaling for one in stage.attacker_models(model) if one.scales_whole),
        deviation=deviation,
        law=law,
        left_out=tuple(type(stage).__name__ for stage in sorted_stages.left_out),
    )


def _check_differentiable(model: nn.Module, batch: Batch) -> None:
    if vocabulary_of(model) is not None or not batch.inputs.is_floating_point():
        raise Inapplicable(
            "tokens are whole numbers and have no derivative, so nothing is bounded by one",
            "use the bounds from the noise's epsilon, which need none",
        )
    numbers = sum(parameter.numel() for parameter in model.parameters())
    if numbers > MOST_NUMBERS:
        raise Inapplicable(
            f"the update of a model of {numbers:,} parameters is not differentiated (more than {MOST_NUMBERS:,})",
            "bound a smaller model",
        )


def _check_steps(steps: int) -> None:
    if steps > MOST_STEPS:
        raise Inapplicable(
            f"a client of {steps} local steps is not differentiated as a whole (more than {MOST_STEPS})",
            "take fewer local steps",
        )


def _double(model: nn.Module, params: Tensors | None, buffers: Tensors | None) -> tuple[nn.Module, Tensors, Tensors]:
    """A copy of the model, and the state to be used, in double precision: a decision on rank needs its digits."""
    double = copy.deepcopy(model).double()
    own_params, own_buffers = state_of(double)
    if params is not None:
        own_params = {name: tensor.detach().double() for name, tensor in params.items()}
    if buffers:
        own_buffers = {n: b.double() if b.is_floating_point() else b for n, b in buffers.items()}
    return double, own_params, own_buffers


def _mask(update: Update, view: ClientView, stages: _Stages, draw: Generator) -> Tensors:
    """1 for each entry that is sent, 0 for others; without tensors that are withheld."""
    masks = {name: torch.ones((), dtype=t.dtype).expand(t.shape).to(t.device) for name, t in update.tensors.items()}
    for stage in stages.hiding:
        update = stage(update, view, generator=draw)
        masks = {name: masks[name] for name in update.tensors}
        if stage.only_hides:
            masks = {name: mask * (update.tensors[name] != 0) for name, mask in masks.items()}
    for stage in stages.after:
        if stage.withholds:
            update = stage(update, view, generator=draw)
    return {name: masks[name] for name in update.tensors}


def _aligned(masks: list[Tensors]) -> list[Tensors]:
    """The masks of several clients, with the same tensors in the same order."""
    like = {name: tensor for mask in masks for name, tensor in mask.items()}
    return [{name: mask.get(name, torch.zeros_like(tensor)) for name, tensor in like.items()} for mask in masks]


def _noise(
    stages: Sequence[Defense], rule: ClientUpdate, sizes: Sequence[int], rounds: Sequence[int]
) -> tuple[Literal["gaussian", "laplace"], float]:
    """The law of the noise, and the deviation of a Gaussian that tells as much as all rounds together."""
    law: Literal["gaussian", "laplace"] = "gaussian"
    information = 0.0
    for t in rounds:
        # Independent noises of the clients' mean add up in squares, the information of rounds in inverse squares.
        found = [stage.added_noise(rule, size, t) for stage in stages for size in sizes]
        shares = [size / sum(sizes) for size in sizes]
        deviation = math.hypot(
            *(share * noise.deviation for share, noise in zip(shares, found, strict=False) if noise is not None), 0.0
        )
        if deviation == 0:
            return "gaussian", 0.0
        law = next(noise.law for noise in found if noise is not None)
        # Laplace noise of scale b = deviation / sqrt(2) has the Fisher information 1 / b^2.
        information += (2 if law == "laplace" else 1) / deviation**2
    return law, information**-0.5
