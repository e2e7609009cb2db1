"""What every defense keeps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from seepage.base.nn import generator, state_of
from seepage.errors import Inapplicable, SeepageError
from seepage.federation.clients import FedSGD
from seepage.federation.models import build
from seepage.federation.types import Architecture, Batch, ClientView, Defense, Update
from seepage.testing.watch import OtherDevice, globals_kept, real_gpu, same, snapshot

Promise = Callable[[Update, Update], None]
"""Takes the update before and after the defense; raises `AssertionError` where the defense broke its own promise."""


@dataclass(frozen=True, kw_only=True)
class DefenseCase:
    """A defense and what it promises.

    Attributes:
        defense: The defense.
        promise: Checks what the defense says of itself; None: it says nothing.
        random: Whether it draws from its generator.
        neutral: Whether its parameters are those that do nothing.
        deltas: Whether it takes differences of weights; else it has to refuse them with `Inapplicable`.
        refuses: Values of its parameters that make no sense, each refused in one sentence.
        model: The client's network; its parameters give the update's names and shapes.
        other_device: Opens another device for the check that a defense stays on its update's device.
        seed: Draws the update.
    """

    defense: Defense
    promise: Promise | None = None
    random: bool = False
    neutral: bool = False
    deltas: bool = True
    refuses: tuple[Mapping[str, Any], ...] = ()
    model: Architecture = Architecture("fc2", {"hidden": 16})  # noqa: RUF009 - frozen and without state
    other_device: OtherDevice = real_gpu
    seed: int = 0

    def client(self) -> ClientView:
        """A client with two examples."""
        model = build(self.model, (1, 8, 8), 4, seed=self.seed)
        params, buffers = state_of(model)
        inputs = torch.rand((2, 1, 8, 8), generator=generator(self.seed, "inputs"))
        return ClientView(model, params, Batch(inputs, torch.tensor([0, 3])), FedSGD(), buffers)

    def apply(self, update: Update, draw: int = 0) -> Update:
        """The defended update, from the generator numbered `draw`."""
        return self.defense(update, self.client(), generator=generator(self.seed, "defense", draw))


def random_update(client: ClientView, seed: int = 0) -> Update:
    """Standard normal entries, named and shaped like the client's parameters."""
    draw = generator(seed, "update")
    return Update({name: torch.randn(p.shape, generator=draw) for name, p in client.params.items()})


def check_defense(defense: Defense, *, promise: Promise | None = None, random: bool = False) -> None:
    """Run every check of `DEFENSE_CHECKS`; the arguments are those of `DefenseCase`.

    Raises:
        AssertionError: With the first promise the defense breaks.

    >>> from seepage import Sparsify
    >>> check_defense(Sparsify(keep=0.5))
    """
    case = DefenseCase(defense=defense, promise=promise, random=random)
    for check in DEFENSE_CHECKS.values():
        check(case)


def changes_the_update(case: DefenseCase) -> None:
    """A defense that does nothing defends nothing; only neutral parameters leave the update as it is."""
    update = random_update(case.client(), case.seed)
    if case.neutral:
        assert same(case.apply(update).tensors, update.tensors), "neutral parameters changed the update"
        return
    given = {name: tensor.clone() for name, tensor in update.tensors.items()}
    found = case.apply(update)
    assert same(update.tensors, given), "the defense changed the update that it was given in place; return a new one"
    assert not same(found.tensors, given), "the defense left a random update as it was"


def keeps_its_form(case: DefenseCase) -> None:
    """Names, shapes, dtypes and kind stay, so that the server can still average the updates."""
    single = random_update(case.client(), case.seed)
    double = Update({name: tensor.double() for name, tensor in single.tensors.items()}, kind="delta")
    for update in (single, double, replace(double, kind="gradient")):
        if update.kind == "delta" and not case.deltas:
            _refuses(partial(case.apply, update), Inapplicable, "a difference of weights")
            continue
        after = case.apply(update)
        assert after.kind == update.kind, f"the defense turned a {update.kind} into a {after.kind}"
        names = list(update.tensors), list(after.tensors)
        kept = [name for name in names[0] if name in names[1]] if case.defense.withholds else names[0]
        assert kept == names[1], f"the defense changed the names from {names[0]} to {names[1]}"
        for name, tensor in ((name, update.tensors[name]) for name in kept):
            form = [(t.shape, t.dtype, t.device) for t in (tensor, after.tensors[name])]
            assert form[0] == form[1], f"the defense turned {name} from {form[0]} into {form[1]}"
            assert after.tensors[name].isfinite().all(), f"the defense made {name} NaN or infinite"


def all_randomness_comes_from_its_generator(case: DefenseCase) -> None:
    """The same generator seed gives the same bits; another gives others where the defense is random."""
    update = random_update(case.client(), case.seed)
    first, again, other = (case.apply(update, draw).tensors for draw in (0, 0, 1))
    assert same(first, again), "the same generator seed gave other bits"
    if case.random:
        assert not same(first, other), "two generator seeds gave the same bits, so the defense drew nothing"
    else:
        assert same(first, other), "two generator seeds gave different bits; say random=True if that is meant"


def works_on_another_device(case: DefenseCase) -> None:
    """An update on a GPU, where there is one, is defended there, and is the CPU's with its generator."""
    update, client = random_update(case.client(), case.seed), case.client()
    near = case.apply(update)
    with case.other_device() as device:
        if device is None:
            return
        client = replace(
            client,
            model=client.model.to(device),
            params={name: tensor.to(device) for name, tensor in client.params.items()},
            batch=client.batch.to(device),
            buffers={name: tensor.to(device) for name, tensor in client.buffers.items()},
        )
        far = replace(update, tensors={name: tensor.to(device) for name, tensor in update.tensors.items()})
        after = case.defense(far, client, generator=generator(case.seed, "defense", 0))
        for name, tensor in after.tensors.items():
            assert tensor.device == device, f"{name} came back on {tensor.device}, and the update lies on {device}"
            close = torch.allclose(tensor.cpu(), near.tensors[name], rtol=1e-4, atol=1e-6)
            assert close, f"{name} is another than on the CPU"


def leaves_everything_else(case: DefenseCase) -> None:
    """The update it is given, the client's model, parameters and batch, and the global state stay as they were."""
    client, update = case.client(), random_update(case.client(), case.seed)
    old = replace(update, tensors={name: tensor.clone() for name, tensor in update.tensors.items()})
    model, params = snapshot(client.model), {name: p.clone() for name, p in client.params.items()}
    inputs = client.batch.inputs.clone()
    with globals_kept("the defense"):
        case.defense(update, client, generator=generator(case.seed, "defense"))
    assert same(update.tensors, old.tensors), "the defense changed the update it was given in place"
    assert same(snapshot(client.model), model), "the defense changed the client's model"
    assert same(client.params, params), "the defense changed the client's parameters"
    assert same(client.batch.inputs, inputs), "the defense changed the private batch"


def keeps_its_promise(case: DefenseCase) -> None:
    """What the defense says of itself holds for small, ordinary and large updates."""
    if case.promise is None:
        return
    update = random_update(case.client(), case.seed)
    for scale in (1e-3, 1.0, 1e3):
        scaled = replace(update, tensors={name: scale * tensor for name, tensor in update.tensors.items()})
        case.promise(scaled, case.apply(scaled))


def refuses_nonsense(case: DefenseCase) -> None:
    """Parameters that make no sense raise `SeepageError` with one sentence, whichever the others are."""
    for options in case.refuses:
        _refuses(partial(replace, case.defense, **options), SeepageError, f"{options}")  # type: ignore[type-var]


def _refuses(call: Callable[[], object], error: type[SeepageError], what: str) -> None:
    try:
        call()
    except error as refusal:
        words = str(refusal)
        sound = ";" in words and "\n" not in words and ". " not in words
        assert sound, f"not one sentence with a remedy: {words!r}"
        return
    raise AssertionError(f"the defense took {what}")


DEFENSE_CHECKS: dict[str, Callable[[DefenseCase], None]] = {
    check.__name__: check
    for check in (
        changes_the_update,
        keeps_its_form,
        all_randomness_comes_from_its_generator,
        works_on_another_device,
        leaves_everything_else,
        keeps_its_promise,
        refuses_nonsense,
    )
}
"""Every check of a defense, by name."""
