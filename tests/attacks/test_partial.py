"""Partial matching against sorting in numpy; the likelihood against SciPy's normal density."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm as normal
from torch import Tensor, nn

from seepage import FedSGD, GaussianNoise, SeepageError, Sparsify
from seepage.attacks.search.distances import L1, L2, Cosine, Distance, PerTensor
from seepage.attacks.search.partial import GaussianLikelihood, TopMagnitude
from seepage.federation.types import Defense, Knowledge, Tensors

SHAPES = {"w": (3, 40), "b": (7,), "one": (1,)}


def gradient(seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Tensors:
    rng = np.random.default_rng(seed)
    return {name: torch.from_numpy(rng.normal(size=shape)) for name, shape in shapes.items()}


def flat(tensors: Tensors) -> NDArray[np.float64]:
    return np.concatenate([tensor.numpy().ravel() for tensor in tensors.values()])


def knowing(defense: Defense | None) -> Knowledge:
    return Knowledge(nn.Identity(), FedSGD(), (1, 4, 4), 4, defense=defense)


@given(st.floats(0.01, 1.0), st.integers(0, 30))
def test_the_largest_share_of_all_entries_is_matched(ratio: float, seed: int) -> None:
    a, b = gradient(seed), gradient(seed + 100)
    x, y = flat(a), flat(b)
    keep = max(1, round(ratio * len(x)))
    places = np.argsort(-np.abs(x))[:keep]
    partial = TopMagnitude(inner=L1("mean") + Cosine(), ratio=ratio)
    u, v = x[places], y[places]
    expected = np.abs(u - v).mean() + 1 - u @ v / (np.linalg.norm(u) * np.linalg.norm(v))
    assert partial(a, b).item() == pytest.approx(expected, rel=1e-9)


@given(st.floats(0.01, 1.0), st.integers(0, 30))
def test_by_tensor_each_tensor_keeps_its_own_share(ratio: float, seed: int) -> None:
    a, b = gradient(seed), gradient(seed + 100)
    expected = 0.0
    for name in SHAPES:
        x, y = a[name].numpy().ravel(), b[name].numpy().ravel()
        places = np.argsort(-np.abs(x))[: max(1, round(ratio * len(x)))]
        expected += np.abs(x[places] - y[places]).sum()
    assert TopMagnitude(inner=L1(), ratio=ratio, by="tensor")(a, b).item() == pytest.approx(expected, rel=1e-9)
    alone = PerTensor(TopMagnitude(inner=L1(), ratio=ratio))
    assert alone(a, b).item() == pytest.approx(expected, rel=1e-9)


def test_a_tensor_with_no_chosen_entry_is_left_out() -> None:
    a = {"small": torch.full((5,), 1e-6), "large": torch.tensor([1.0, 2.0, 3.0])}
    zeros = {name: torch.zeros_like(tensor) for name, tensor in a.items()}
    assert float(TopMagnitude(inner=PerTensor(L1("mean")), ratio=0.25)(a, zeros)) == 2.5


@pytest.mark.parametrize("by", ["global", "tensor"])
def test_a_sampled_threshold_chooses_about_what_the_exact_one_does(by: str) -> None:
    shapes = {"a": (300, 700), "b": (90_000,), "c": (11,)}
    rng = np.random.default_rng(0)
    # Layers of very different scales, as real gradients have.
    scales = {"a": 1.0, "b": 0.1, "c": 10.0}
    grads = {n: torch.from_numpy(scales[n] * rng.standard_t(3, size=shape)) for n, shape in shapes.items()}
    exact = TopMagnitude(inner=L1(), ratio=0.3, by=by)  # type: ignore[arg-type]
    rough = TopMagnitude(inner=L1(), ratio=0.3, by=by, sample=20_000)  # type: ignore[arg-type]
    for (name, places), (_, near) in zip(
        exact.chosen(grads, grads).items(), rough.chosen(grads, grads).items(), strict=True
    ):
        common = len(np.intersect1d(places.numpy(), near.numpy()))
        assert common >= 0.97 * max(len(places), len(near)), name
    all_of_them = TopMagnitude(inner=L1(), ratio=0.3, by=by, sample=10**9)  # type: ignore[arg-type]
    assert all(map(torch.equal, all_of_them.chosen(grads, grads).values(), exact.chosen(grads, grads).values()))


def test_the_slope_is_that_of_the_chosen_entries() -> None:
    """Away from where the choice flips, finite differences see the choice as fixed."""
    target = gradient(1)

    def of(*tensors: Tensor) -> Tensor:
        partial = TopMagnitude(inner=L2() + Cosine(), ratio=0.5)
        return partial(dict(zip(SHAPES, tensors, strict=True)), target)

    leaves = [tensor.requires_grad_() for tensor in gradient(2).values()]
    assert torch.autograd.gradcheck(of, leaves)
    assert torch.autograd.gradgradcheck(of, leaves)


@pytest.mark.parametrize("options", [{"ratio": 0.0}, {"ratio": 1.1}, {"ratio": float("nan")}, {"sample": 0}])
def test_shares_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(SeepageError, match="correct the recipe"):
        TopMagnitude(**({"inner": L1(), "ratio": 0.5} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("sigma", [0.1, 2.0])
def test_the_likelihood_is_the_normal_density_up_to_a_constant(sigma: float) -> None:
    dummies, observed = [gradient(1), gradient(2)], gradient(3)
    found = [GaussianLikelihood(sigma=sigma)(dummy, observed).item() for dummy in dummies]
    logs = [float(normal.logpdf(flat(observed), loc=flat(dummy), scale=sigma).sum()) for dummy in dummies]
    assert found[0] - found[1] == pytest.approx(logs[1] - logs[0], rel=1e-9)


def test_a_known_clip_is_applied_to_the_dummy() -> None:
    dummy, observed = gradient(1), gradient(2)
    length = np.linalg.norm(flat(dummy))
    for clip, scale in ((0.5 * length, 0.5), (2 * length, 1.0)):
        found = GaussianLikelihood(sigma=1.0, clip=clip)(dummy, observed).item()
        assert found == pytest.approx(0.5 * ((scale * flat(dummy) - flat(observed)) ** 2).sum(), rel=1e-9)


def test_the_noise_is_read_from_the_known_defense_unless_named() -> None:
    plain = GaussianLikelihood()
    assert plain.adapt_to(knowing(GaussianNoise(sigma=0.3))) == GaussianLikelihood(sigma=0.3)
    clipped = GaussianLikelihood(sigma=0.6, clip=2.0)
    assert plain.adapt_to(knowing(GaussianNoise(sigma=0.3, clip=2.0))) == clipped
    named = GaussianLikelihood(sigma=5.0)
    assert named.adapt_to(knowing(GaussianNoise(sigma=0.3))) == named
    for other in (None, GaussianNoise(sigma=0.0), Sparsify(keep=0.5)):
        assert plain.adapt_to(knowing(other)) == plain


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: inner + L1(),
        lambda inner: L1() + inner,
        lambda inner: 0.5 * inner,
        PerTensor,
        lambda inner: TopMagnitude(inner=inner, ratio=0.5),
    ],
)
def test_what_is_known_reaches_the_parts_of_a_distance(wrap: object) -> None:
    assert callable(wrap)
    whole: Distance = wrap(GaussianLikelihood())
    assert whole.adapt_to(knowing(GaussianNoise(sigma=0.3))) == wrap(GaussianLikelihood(sigma=0.3))


def test_a_likelihood_without_noise_is_refused() -> None:
    with pytest.raises(SeepageError, match="sigma=0"):
        GaussianLikelihood(sigma=0.0)
