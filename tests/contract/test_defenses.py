"""The contract of every registered defense, with what each says of itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from seepage import DEFENSES, Compose, Defense, FakeGradients, GaussianNoise, Sparsify, Update
from seepage.contracts import DEFENSE_CHECKS, DefenseCase, check_defense, random_update
from seepage.contracts.defense import Promise
from seepage.functional import generator
from seepage.types import ClientView

ALPHA = 1e-6
"""Chance that a sound defense fails a statistical check, were its draws not fixed."""


def flat(update: Update) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in update.tensors.values()]).double()


def chi_square(noise: Tensor, deviation: float) -> None:
    """Two-sided tests of the noise's variance, and of its mean."""
    n = len(noise)
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], n)
    statistic = float((noise / deviation).pow(2).sum())
    assert low < statistic < high, f"noise of deviation {float(noise.std())}, promised {deviation}"
    assert abs(float(noise.mean())) * n**0.5 / deviation < stats.norm.ppf(1 - ALPHA / 2)


def noise_of(sigma: float, clip: float | None = None) -> Promise:
    def promise(before: Update, after: Update) -> None:
        sent, length = flat(before), float(flat(before).norm())
        if clip is not None:
            sent = sent * min(1.0, clip / length)
        chi_square(flat(after) - sent, sigma if clip is None else sigma * clip)

    return promise


def clips_to(clip: float) -> Promise:
    """No noise: the norm is within the bound, the direction is kept, and short updates are untouched."""

    def promise(before: Update, after: Update) -> None:
        old, new = flat(before), flat(after)
        assert float(new.norm()) <= clip * (1 + 1e-5)
        assert torch.allclose(new / new.norm(), old / old.norm(), atol=1e-6)
        if float(old.norm()) <= clip:
            assert torch.equal(old, new)

    return promise


def keeps_largest(share: float) -> Promise:
    """Per tensor: the exact count, entries equal to the update's, and none left out that is larger."""

    def promise(before: Update, after: Update) -> None:
        for name, old in before.tensors.items():
            new, count = after.tensors[name].flatten(), max(1, round(share * old.numel()))
            kept = new != 0
            assert int(kept.sum()) == count, name
            assert torch.equal(new[kept], old.flatten()[kept]), name
            if count < old.numel():
                assert new[kept].abs().min() >= old.flatten()[~kept].abs().max(), name

    return promise


def forges(before: Update, after: Update) -> None:
    """The larger entries are only clipped, the smaller ones replaced by negative numbers; the middle may be either."""
    for name, old in before.tensors.items():
        if old.numel() < 50:
            continue
        true, sent = old.flatten(), after.tensors[name].flatten()
        order = true.abs().argsort(descending=True)
        share = int(0.4 * len(order))
        large, small = order[:share], order[-share:]
        assert bool((sent[large] * true[large] >= 0).all()), name
        assert bool((sent[large].abs() <= true[large].abs()).all()), name
        assert bool((sent[small] < 0).all()), name


CASES: dict[str, list[DefenseCase]] = {
    "fake_gradients": [
        DefenseCase(defense=FakeGradients(candidates=20), promise=forges, random=True),
        DefenseCase(defense=FakeGradients(candidates=20, order="magnitude", sigma2=0.01), random=True),
    ],
    "gaussian_noise": [
        DefenseCase(defense=GaussianNoise(sigma=0.5), promise=noise_of(0.5), random=True),
        DefenseCase(defense=GaussianNoise(sigma=2.0, clip=3.0), promise=noise_of(2.0, 3.0), random=True),
        DefenseCase(defense=GaussianNoise(sigma=0.0, clip=3.0), promise=clips_to(3.0)),
    ],
    "sparsify": [DefenseCase(defense=Sparsify(keep=share), promise=keeps_largest(share)) for share in (1e-9, 0.1, 0.5)],
}
"""At least one case for each name in `DEFENSES`."""

ALL = [pytest.param(case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases)]


def test_every_defense_has_a_case() -> None:
    assert set(CASES) == set(DEFENSES)


@pytest.mark.parametrize("check", DEFENSE_CHECKS.values(), ids=DEFENSE_CHECKS)
@pytest.mark.parametrize("case", ALL)
def test_it_keeps(case: DefenseCase, check: Callable[[DefenseCase], None]) -> None:
    check(case)


def test_compose_keeps_the_contract() -> None:
    check_defense(Compose((Sparsify(keep=0.5), GaussianNoise(sigma=0.1))), random=True)


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


def test_two_noises_are_independent() -> None:
    """One generator goes through both, so their variances add; the same noise twice would double the deviation."""
    client = DefenseCase(defense=GaussianNoise(sigma=1.0)).client()
    update = random_update(client)
    twice = Compose((GaussianNoise(sigma=1.0), GaussianNoise(sigma=1.0)))
    after = twice(update, client, generator=generator(0, "defense"))
    chi_square(flat(after) - flat(update), 2**0.5)


def test_noise_on_an_update_of_zeros_stays_finite() -> None:
    client = DefenseCase(defense=Sparsify(keep=0.5)).client()
    zeros = Update({name: torch.zeros_like(p) for name, p in client.params.items()})
    after = GaussianNoise(sigma=1.0, clip=2.0)(zeros, client, generator=generator(0, "defense"))
    chi_square(flat(after), 2.0)
    pruned = Sparsify(keep=0.5)(zeros, client, generator=generator(0, "defense"))
    assert not flat(pruned).any()


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
    "in place": "as it was|in place",
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


def test_the_contract_passes_a_sound_defense_and_finds_a_broken_promise() -> None:
    check_defense(Faulty("none"), promise=lambda before, after: None)

    def halves(before: Update, after: Update) -> None:
        assert flat(after).norm() < flat(before).norm(), "it does not shrink"

    with pytest.raises(AssertionError, match="does not shrink"):
        check_defense(Faulty("none"), promise=halves)
