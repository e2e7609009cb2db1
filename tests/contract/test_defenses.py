"""The contract of every registered defense, with what each says of itself."""

import copy
from dataclasses import replace

import pytest
import torch
from fake_device import pretended
from scipy import stats
from torch import Tensor

from seepage import DEFENSES, Compose, FakeGradients, GaussianNoise, Sparsify, Update
from seepage.base.nn import generator
from seepage.errors import SeepageError
from seepage.federation.defenses import (
    DPSGD,
    AdaptiveDP,
    DecayingNoise,
    JacobianDamping,
    LaplaceNoise,
    Outpost,
    PartialAccess,
    Quantize,
    SelectiveEncryption,
    Soteria,
    UnitNormNoise,
    Withhold,
    ZeroSumNoise,
)
from seepage.federation.types import ClientView
from seepage.testing import DEFENSE_CHECKS, DefenseCase, check_defense, random_update
from seepage.testing.defense import Promise
from seepage.testing.watch import same

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


def on_unit_norm(sigma: float) -> Promise:
    def promise(before: Update, after: Update) -> None:
        old = flat(before)
        chi_square(flat(after) - old / old.norm(), sigma)

    return promise


def laplace_of(scale: float, clip: float | None = None) -> Promise:
    """Twice the magnitudes over b are chi-square with two degrees of freedom each; the median is zero."""

    def promise(before: Update, after: Update) -> None:
        sent = flat(before)
        b = scale if clip is None else scale * clip
        noise = flat(after) - (sent if clip is None else sent * min(1.0, clip / float(sent.abs().sum())))
        low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], 2 * len(noise))
        assert low < float((2 * noise.abs() / b).sum()) < high, f"noise of scale {float(noise.abs().mean())}"
        assert stats.binomtest(int((noise > 0).sum()), len(noise)).pvalue > ALPHA
        # A Gaussian of that mean magnitude would have kurtosis 3, a Laplace variable has 6.
        assert stats.kurtosis(noise.numpy(), fisher=False) > 4.5

    return promise


def slow_sum(client: ClientView, clip: float) -> Tensor:
    """The clipped gradients of single examples, added up one by one with `backward`."""
    total = torch.zeros(sum(p.numel() for p in client.params.values()), dtype=torch.float64)
    model = copy.deepcopy(client.model)
    for x, y in zip(client.batch.inputs, client.batch.labels, strict=True):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x[None]), y[None]).backward()
        row = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()
        total += row * min(1.0, clip / float(row.norm()))
    return total


def dp_sgd_of(sigma: float, clip: float) -> Promise:
    def promise(before: Update, after: Update) -> None:
        client = DefenseCase(defense=Sparsify(keep=0.5)).client()
        rest = 2 * flat(after) - slow_sum(client, clip)
        if sigma == 0:
            assert float(rest.abs().max()) < 1e-6
        else:
            chi_square(rest, sigma * clip)

    return promise


def levels_of(bits: int) -> Promise:
    """Few levels, evenly spaced, with zero among them; each entry within half a step."""

    def promise(before: Update, after: Update) -> None:
        for name, tensor in before.tensors.items():
            old, new = tensor.flatten().double(), after.tensors[name].flatten().double()
            step = float(old.abs().max()) / (2 ** (bits - 1) - 1)
            places = new / step
            assert len(new.unique()) <= 2**bits - 1, name
            slack = 1e-3 + 2 ** (bits - 24)  # what single precision leaves of the finest levels
            assert float((places - places.round()).abs().max()) < slack, name
            error = float((new - old).abs().max()) / step
            assert error < 0.5 + slack, f"{name}: off by {error} steps"

    return promise


def signs(before: Update, after: Update) -> None:
    for name, old in before.tensors.items():
        new = after.tensors[name]
        assert torch.allclose(new.abs(), old.abs().mean().expand_as(new)), name
        assert torch.equal(new.sign(), old.sign()), name


def withholds(ending: str) -> Promise:
    """Tensors of these names are not there, and all others are as they were."""

    def promise(before: Update, after: Update) -> None:
        assert set(after.tensors) == {name for name in before.tensors if not name.endswith(ending)}
        assert all(torch.equal(tensor, before.tensors[name]) for name, tensor in after.tensors.items())

    return promise


def shows(share: float, *, highest: bool) -> Promise:
    """The exact count is shown as it was, and nothing hidden should have been shown instead."""

    def promise(before: Update, after: Update) -> None:
        old, new = flat(before), flat(after)
        shown, count = new != 0, round(share * len(old))
        assert int(shown.sum()) == count
        assert torch.equal(new[shown], old[shown])
        if 0 < count < len(old):
            inner, outer = old[shown].abs(), old[~shown].abs()
            assert (inner.min() >= outer.max()) if highest else (inner.max() <= outer.min())

    return promise


def hides_columns(count: int) -> Promise:
    def promise(before: Update, after: Update) -> None:
        for name, old in before.tensors.items():
            new = after.tensors[name]
            if name != INNER:
                assert torch.equal(new, old), name
                continue
            hidden = (new == 0).all(0)
            assert int(hidden.sum()) == count
            assert torch.equal(new[:, ~hidden], old[:, ~hidden])

    return promise


INNER = [name for name in DefenseCase(defense=Sparsify(keep=0.5)).client().params if name.endswith("weight")][1]
"""The weight of the second layer of the contract's network, which has 16 inputs."""


def outposts(prune: float, phi: float, noise: float) -> Promise:
    """Noise on the largest entries only, of each tensor's own deviation; elsewhere pruned or as it was."""

    def promise(before: Update, after: Update) -> None:
        weights = DefenseCase(defense=Sparsify(keep=0.5)).client().params
        bound = flat(before).abs().sort().values[-round(phi * len(flat(before)))]
        for name, tensor in before.tensors.items():
            old, new = tensor.flatten().double(), after.tensors[name].flatten().double()
            ranks = old.abs().argsort().argsort()
            kept = torch.where(ranks < round(prune * len(old)), 0, old)
            large = old.abs() >= bound
            assert torch.equal(new[~large], kept[~large]), name
            if int(large.sum()) > 50:
                spread = noise * min(1.0, float(weights[name].double().var(correction=0)))
                # Single precision swallows small noise on entries of a thousand.
                if spread > 1e-4 * float(old.abs().max()):
                    chi_square(new[large] - kept[large], spread)

    return promise


def leaks_less(before: Update, after: Update) -> None:
    """Shorter, not turned round, and in other proportions: not merely scaled down."""
    old, new = flat(before), flat(after)
    assert float(new.norm()) < float(old.norm())
    cosine = float(torch.dot(old, new) / old.norm() / new.norm())
    assert 0 < cosine < 1 - 1e-4


def in_proportion(share: float) -> Promise:
    def promise(before: Update, after: Update) -> None:
        exact = flat(before)
        chi_square((flat(after) - exact) / exact.abs(), share)

    return promise


NEGATIVE = ({"sigma": -0.1}, {"sigma": float("nan")}, {"sigma": float("inf")})
CLIPS = ({"clip": 0.0}, {"clip": -2.0}, {"clip": float("inf")})
SHARES = ({"share": -0.1}, {"share": 1.1}, {"share": float("nan")})

CASES: dict[str, list[DefenseCase]] = {
    "adaptive_dp": [
        DefenseCase(
            defense=AdaptiveDP(sigma=2.0, clip=3.0),
            promise=noise_of(2.0, 3.0),
            random=True,
            refuses=(
                *NEGATIVE,
                *CLIPS,
                {"decay": 0.0},
                {"patience": 0},
                {"floor": 3.0},
                {"factor": 0.0},
                {"least": 0.0},
            ),
        ),
        DefenseCase(defense=AdaptiveDP(sigma=0.0, clip=1e9), neutral=True),
    ],
    "decaying_noise": [
        DefenseCase(
            defense=DecayingNoise(sigma=2.0, clip=3.0),
            promise=noise_of(2.0, 3.0),
            random=True,
            refuses=(*NEGATIVE, *CLIPS, {"decay": 0.0}, {"decay": 1.1}, {"every": 0}, {"floor": 3.0}, {"floor": -1.0}),
        ),
        DefenseCase(defense=DecayingNoise(sigma=0.0), neutral=True),
    ],
    "dp_sgd": [
        DefenseCase(
            defense=DPSGD(sigma=0.5, clip=0.1),
            promise=dp_sgd_of(0.5, 0.1),
            random=True,
            deltas=False,
            refuses=(*NEGATIVE, *CLIPS),
        ),
        DefenseCase(defense=DPSGD(sigma=0.0, clip=0.1), promise=dp_sgd_of(0.0, 0.1), deltas=False),
        DefenseCase(defense=DPSGD(sigma=0.0, clip=1e6), promise=dp_sgd_of(0.0, 1e6), deltas=False),
    ],
    "jacobian_damping": [
        DefenseCase(
            defense=JacobianDamping(beta=10.0),
            promise=leaks_less,
            refuses=({"beta": -1.0}, {"beta": float("nan")}, {"steps": 0}, {"tolerance": 0.0}, {"tolerance": 1.0}),
        ),
        DefenseCase(defense=JacobianDamping(beta=0.0), neutral=True),
    ],
    "laplace_noise": [
        DefenseCase(
            defense=LaplaceNoise(scale=0.5),
            promise=laplace_of(0.5),
            random=True,
            refuses=({"scale": -0.1}, {"scale": float("nan")}, *CLIPS),
        ),
        DefenseCase(defense=LaplaceNoise(scale=0.5, clip=3.0), promise=laplace_of(0.5, 3.0), random=True),
        DefenseCase(defense=LaplaceNoise(scale=0.0), neutral=True),
    ],
    "outpost": [
        DefenseCase(
            defense=Outpost(),
            promise=outposts(0.8, 0.4, 0.8),
            random=True,
            refuses=({"prune": 1.1}, {"phi": -0.1}, {"noise": -1.0}, {"beta": -1.0}, {"prune": float("nan")}),
        ),
        DefenseCase(defense=Outpost(prune=0.0, noise=0.0), neutral=True),
    ],
    "partial_access": [
        DefenseCase(defense=PartialAccess(share=0.2), promise=shows(0.2, highest=True), refuses=SHARES),
        DefenseCase(
            defense=PartialAccess(share=0.2, which="lowest"),
            promise=shows(0.2, highest=False),
            refuses=({"which": "best"},),
        ),
        DefenseCase(defense=PartialAccess(share=0.0), promise=shows(0.0, highest=True)),
        DefenseCase(defense=PartialAccess(share=1.0), neutral=True),
    ],
    "quantize": [
        DefenseCase(defense=Quantize(bits=4), promise=levels_of(4), refuses=({"bits": 0}, {"bits": 33}, {"bits": -8})),
        DefenseCase(defense=Quantize(bits=16), promise=levels_of(16)),
        DefenseCase(defense=Quantize(bits=1), promise=signs),
        DefenseCase(defense=Quantize(bits=32), neutral=True),
    ],
    "selective_encryption": [
        DefenseCase(
            defense=SelectiveEncryption(share=0.8),
            promise=shows(0.2, highest=False),
            refuses=SHARES,
        ),
        DefenseCase(defense=SelectiveEncryption(share=0.0), neutral=True),
    ],
    "soteria": [
        DefenseCase(
            defense=Soteria(ratio=0.5),
            promise=hides_columns(8),
            refuses=({"ratio": -0.1}, {"ratio": 1.1}, {"ratio": float("nan")}),
        ),
        DefenseCase(defense=Soteria(ratio=1.0, layer=INNER.removesuffix(".weight")), promise=hides_columns(16)),
        DefenseCase(defense=Soteria(ratio=0.0), neutral=True),
    ],
    "unit_norm_noise": [
        DefenseCase(defense=UnitNormNoise(sigma=0.01), promise=on_unit_norm(0.01), random=True, refuses=NEGATIVE),
    ],
    "withhold": [
        DefenseCase(
            defense=Withhold(tensors=["*.bias"]),
            promise=withholds(".bias"),
            refuses=({"tensors": []},),
        ),
    ],
    "zero_sum_noise": [
        DefenseCase(defense=ZeroSumNoise(sigma=0.5), promise=noise_of(0.5 * 2**0.5), refuses=NEGATIVE),
        DefenseCase(defense=ZeroSumNoise(sigma=0.0), neutral=True),
        DefenseCase(defense=ZeroSumNoise(sigma=0.5, proportional=True), promise=in_proportion(0.5 * 2**0.5)),
    ],
    "fake_gradients": [
        DefenseCase(defense=FakeGradients(candidates=20), promise=forges, random=True),
        DefenseCase(defense=FakeGradients(candidates=20, order="magnitude", sigma2=0.01), random=True),
    ],
    "gaussian_noise": [
        DefenseCase(defense=GaussianNoise(sigma=0.5), promise=noise_of(0.5), random=True, refuses=(*NEGATIVE, *CLIPS)),
        DefenseCase(defense=GaussianNoise(sigma=0.0), neutral=True),
        DefenseCase(defense=GaussianNoise(sigma=2.0, clip=3.0), promise=noise_of(2.0, 3.0), random=True),
        DefenseCase(defense=GaussianNoise(sigma=0.0, clip=3.0), promise=clips_to(3.0)),
    ],
    "sparsify": [
        *(DefenseCase(defense=Sparsify(keep=share), promise=keeps_largest(share)) for share in (1e-9, 0.1, 0.5)),
        DefenseCase(defense=Sparsify(keep=1.0), neutral=True, refuses=({"keep": 0.0}, {"keep": 1.1})),
    ],
}
"""At least one case for each name in `DEFENSES`."""


def cases_of(use: str) -> list[DefenseCase]:
    """The cases above; of a defense without one, what holds for every defense, at its defaults."""
    if use in CASES:
        return [replace(case, other_device=pretended) for case in CASES[use]]
    plain = DefenseCase(defense=DEFENSES[use](), other_device=pretended)
    update = random_update(plain.client())
    return [replace(plain, random=not same(plain.apply(update, 0).tensors, plain.apply(update, 1).tensors))]


ALL = [pytest.param(case, id=f"{use}-{i}") for use in DEFENSES for i, case in enumerate(cases_of(use))]


def test_every_case_is_of_a_defense_that_is_registered() -> None:
    assert set(CASES) <= set(DEFENSES)


@pytest.mark.parametrize("case", ALL)
def test_it_keeps(case: DefenseCase, subtests: pytest.Subtests) -> None:
    for name, check in DEFENSE_CHECKS.items():
        with subtests.test(name):
            check(case)


def test_compose_keeps_the_contract() -> None:
    check_defense(Compose((Sparsify(keep=0.5), GaussianNoise(sigma=0.1))), random=True)


def test_compose_of_dp_sgd_and_soteria_keeps_the_contract() -> None:
    """FedLeak's Figure 5; the other way round DP-SGD would throw Soteria's work away."""
    both = DefenseCase(defense=Compose((DPSGD(sigma=0.1), Soteria(ratio=0.5))), random=True, deltas=False)
    for check in DEFENSE_CHECKS.values():
        check(both)
    after = both.apply(random_update(both.client()))
    assert int((after.tensors[INNER] == 0).all(0).sum()) == 8
    with pytest.raises(SeepageError, match=r"DPSGD makes the update anew.*put it first"):
        Compose((Soteria(ratio=0.5), DPSGD(sigma=0.1)))


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
