"""Distances against numpy in float64, and their slopes against finite differences."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from seepage.attacks.search.distances import L1, L2, Cosine, Distance, GaussianKernel, PerTensor
from seepage.attacks.search.partial import GaussianLikelihood, TopMagnitude
from seepage.federation.types import Tensors

Array = NDArray[np.float64]
SHAPES = {"w": (3, 4), "b": (5,), "one": (1,)}


def gradient(seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    return {name: torch.from_numpy(rng.normal(size=shape)) for name, shape in SHAPES.items()}


def long(tensors: Tensors) -> Array:
    return np.concatenate([tensors[name].numpy().ravel() for name in SHAPES])


def l2(a: Tensors, b: Tensors) -> float:
    return float(((long(a) - long(b)) ** 2).sum())


def l1(a: Tensors, b: Tensors) -> float:
    return float(np.abs(long(a) - long(b)).sum())


def cosine(a: Tensors, b: Tensors) -> float:
    x, y = long(a), long(b)
    return float(1 - x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def cosine_of(a: Tensor, b: Tensor) -> float:
    x, y = a.numpy().ravel(), b.numpy().ravel()
    return float(1 - x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def kernel(a: Tensors, b: Tensors) -> float:
    total = 0.0
    for name in SHAPES:
        x, y = a[name].numpy().ravel(), b[name].numpy().ravel()
        width = len(y) * y.var() if len(y) > 1 else y[0] ** 2
        total += 1 - np.exp(-((x - y) ** 2).sum() / width)
    return total


FORMULAS: dict[str, tuple[Distance, Callable[[Tensors, Tensors], float]]] = {
    "L2": (L2(), l2),
    "L1": (L1(), l1),
    "L2 root": (L2(root=True), lambda a, b: float(np.sqrt(l2(a, b)))),
    "L1 mean": (L1("mean"), lambda a, b: float(np.abs(long(a) - long(b)).mean())),
    "L1 mean per tensor": (
        PerTensor(L1("mean")),
        lambda a, b: float(sum(np.abs(a[name].numpy() - b[name].numpy()).mean() for name in SHAPES)),
    ),
    "cosine per tensor": (PerTensor(Cosine()), lambda a, b: sum(cosine_of(a[name], b[name]) for name in SHAPES)),
    "Cosine": (Cosine(), cosine),
    "GaussianKernel": (GaussianKernel(), kernel),
    "sum": (L2() + 0.1 * Cosine(), lambda a, b: l2(a, b) + 0.1 * cosine(a, b)),
    "nested": (2.0 * (L1() + L2()) + L1(), lambda a, b: 3 * l1(a, b) + 2 * l2(a, b)),
}
ALL = [pytest.param(*pair, id=name) for name, pair in FORMULAS.items()]


@pytest.mark.parametrize(("distance", "formula"), ALL)
def test_it_is_the_formula(distance: Distance, formula: Callable[[Tensors, Tensors], float]) -> None:
    for seed in range(5):
        a, b = gradient(seed), gradient(seed + 100)
        assert distance(a, b).item() == pytest.approx(formula(a, b), rel=1e-12)
        near = {name: tensor + 1e-3 * a[name] for name, tensor in b.items()}
        assert distance(near, b).item() == pytest.approx(formula(near, b), rel=1e-9)


@pytest.mark.parametrize(("distance", "formula"), ALL)
def test_it_is_zero_where_the_two_agree(distance: Distance, formula: object) -> None:
    a = gradient(0)
    assert distance(a, a).item() == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize(("distance", "formula"), ALL)
def test_its_slope_is_that_of_finite_differences(distance: Distance, formula: object) -> None:
    target = gradient(1)

    def of(*tensors: Tensor) -> Tensor:
        return distance(dict(zip(SHAPES, tensors, strict=True)), target)

    leaves = [tensor.requires_grad_() for tensor in gradient(2).values()]
    assert torch.autograd.gradcheck(of, leaves)
    assert torch.autograd.gradgradcheck(of, leaves)


@pytest.mark.parametrize(("distance", "formula"), ALL)
def test_the_order_of_the_dummys_tensors_does_not_matter(distance: Distance, formula: object) -> None:
    a, b = gradient(3), gradient(4)
    assert distance(dict(reversed(a.items())), b).item() == pytest.approx(distance(a, b).item(), rel=1e-12)


@given(st.floats(1e-3, 1e3), st.integers(0, 50))
def test_cosine_does_not_see_length_and_is_between_0_and_2(length: float, seed: int) -> None:
    a, b = gradient(seed), gradient(seed + 1)
    value = Cosine()(a, b).item()
    assert 0 <= value <= 2
    assert Cosine()({name: length * tensor for name, tensor in a.items()}, b).item() == pytest.approx(value)
    assert Cosine()({name: -tensor for name, tensor in a.items()}, a).item() == pytest.approx(2)


@given(st.floats(1e-6, 1e6), st.integers(0, 50))
def test_the_kernel_does_not_see_the_scale_of_a_layer(scale: float, seed: int) -> None:
    """Its width follows the observed entries, so no tensor saturates because it is large or small."""
    a, b = gradient(seed), gradient(seed + 1)
    value = GaussianKernel()(a, b).item()
    scaled = ({name: scale * tensor for name, tensor in g.items()} for g in (a, b))
    assert GaussianKernel()(*scaled).item() == pytest.approx(value, rel=1e-6)
    assert 0 < value <= len(SHAPES)


@pytest.mark.parametrize(
    "distance",
    [
        Cosine(),
        GaussianKernel(),
        PerTensor(Cosine()),
        PerTensor(L2(root=True)),
        PerTensor(TopMagnitude(inner=L1("mean") + Cosine(), ratio=0.5)),
        PerTensor(GaussianLikelihood(sigma=1.0, clip=0.1)),
    ],
    ids=repr,
)
def test_tensors_of_zeros_give_finite_values_and_slopes(distance: Distance) -> None:
    """Dead neurons send zeros."""
    for dtype in (torch.float32, torch.float64):
        target = {"dead": torch.zeros(4, dtype=dtype), "w": torch.ones(4, dtype=dtype).cumsum(0)}
        for filled in (0.0, 1e-3, 1.0):
            dummy = {name: torch.full((4,), filled, dtype=dtype, requires_grad=True) for name in target}
            dummy["w"] = torch.ones(4, dtype=dtype, requires_grad=True)
            value = distance(dummy, target)
            slopes = torch.autograd.grad(value, list(dummy.values()))
            assert value.isfinite()
            assert all(slope.isfinite().all() for slope in slopes)


def test_distances_compare_and_print_as_what_they_are() -> None:
    assert L2() + 0.1 * Cosine() == L2() + 0.1 * Cosine()
    assert repr(0.5 * L1()) == "Scaled(weight=0.5, inner=L1(reduce='sum'))"
