"""The contract of defenses finds faults, and `Compose` keeps the order."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Generator, Tensor

from seepage import Compose, Defense, GaussianNoise, Sparsify, Update
from seepage.base.nn import generator
from seepage.federation.types import ClientView
from seepage.testing import DEFENSE_CHECKS, DefenseCase, check_defense, random_update


def flat(update: Update) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in update.tensors.values()]).double()


def test_compose_goes_from_left_to_right_with_one_generator() -> None:
    sparse, noise = Sparsify(keep=0.1), GaussianNoise(sigma=0.1)
    client = DefenseCase(defense=sparse).client()
    update = random_update(client)

    def by_hand(*parts: Defense) -> Tensor:
        draw, sent = generator(0, "hand"), update
        for part in parts:
            sent = part(sent, client, generator=draw)
        return flat(sent)

    for parts in ((sparse, noise), (noise, sparse), (noise, noise)):
        composed = flat(Compose(parts)(update, client, generator=generator(0, "hand")))
        assert torch.equal(composed, by_hand(*parts))
    first = flat(Compose((sparse, noise))(update, client, generator=generator(0, "hand")))
    last = flat(Compose((noise, sparse))(update, client, generator=generator(0, "hand")))
    assert (first == 0).float().mean() < 0.01
    assert (last == 0).float().mean() > 0.85


@dataclass(frozen=True)
class Faulty(Defense):
    """A defense with one fault, to see that the contract finds it."""

    fault: str

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        names = list(update.tensors)
        first = update.tensors[names[0]]
        match self.fault:
            case "idle":
                return update
            case "in place":
                first.mul_(2)
                return update
            case "global":
                return replace(update, tensors={n: t + torch.randn(t.shape) for n, t in update.tensors.items()})
            case "single":
                return replace(update, tensors={n: 2 * t.float() for n, t in update.tensors.items()})
            case "drops":
                return replace(update, tensors={n: 2 * update.tensors[n] for n in names[1:]})
            case "kind":
                return Update({n: 2 * t for n, t in update.tensors.items()}, kind="gradient")
            case "model":
                client.model.eval()
        return replace(update, tensors={n: 2 * t for n, t in update.tensors.items()})


FAULTS = {
    "idle": "as it was",
    "in place": "in place",
    "global": "other bits",
    "single": "turned",
    "drops": "names",
    "kind": "into a gradient",
    "model": "client's model",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_contract_finds_a_fault(fault: str) -> None:
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        check_defense(Faulty(fault))


@dataclass(frozen=True)
class Careless(Defense):
    """Takes any share, does nothing at all, and never refuses."""

    share: float = 1.0

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        return replace(update, tensors={n: self.share * t for n, t in update.tensors.items()})


def test_the_contract_finds_a_defense_that_refuses_nothing() -> None:
    with pytest.raises(AssertionError, match=r"took \{'share': -1.0\}"):
        DEFENSE_CHECKS["refuses_nonsense"](DefenseCase(defense=Careless(), refuses=({"share": -1.0},)))
    with pytest.raises(AssertionError, match="took a difference of weights"):
        DEFENSE_CHECKS["keeps_its_form"](DefenseCase(defense=Careless(0.5), deltas=False))
    with pytest.raises(AssertionError, match="neutral parameters changed"):
        DEFENSE_CHECKS["changes_the_update"](DefenseCase(defense=Careless(0.5), neutral=True))


def test_the_contract_passes_a_sound_defense_and_finds_a_broken_promise() -> None:
    check_defense(Faulty("none"), promise=lambda before, after: None)

    def halves(before: Update, after: Update) -> None:
        assert flat(after).norm() < flat(before).norm(), "it does not shrink"

    with pytest.raises(AssertionError, match="does not shrink"):
        check_defense(Faulty("none"), promise=halves)
