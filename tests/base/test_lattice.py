"""Least squares over whole numbers, against every whole number there is."""

import itertools

import numpy as np
import pytest

from seepage.base.lattice import reduced


@pytest.mark.parametrize("seed", range(5))
def test_the_nearest_lattice_vector_is_that_of_all_small_ones(seed: int) -> None:
    """Three numbers, two accurate equations and a vague guess: only one whole solution is near, far from rounding."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(-9, 10, (3, 4)).astype(float)
    basis = np.vstack([draw.normal(size=(2, 3)) / 1e-3, np.eye(3) / 10])
    targets = basis @ truth + 0.1 * draw.normal(size=(5, 4))
    every = np.array(list(itertools.product(range(-15, 16), repeat=3)), dtype=float).T
    distances = np.linalg.norm((basis @ every)[:, :, None] - targets[:, None], axis=0)
    best = every[:, distances.argmin(0)]
    np.testing.assert_array_equal(reduced(basis).nearest(targets), best)


@pytest.mark.parametrize(("size", "accurate"), [(4, 1), (30, 12), (60, 20)])
def test_a_reduced_basis_spans_the_same_lattice_and_is_reduced(size: int, accurate: int) -> None:
    draw = np.random.default_rng(size)
    basis = np.vstack([1e4 * draw.normal(size=(accurate, size)), np.eye(size)])
    found = reduced(basis)
    change = np.rint(found.change)
    np.testing.assert_array_equal(found.change, change)
    assert abs(np.linalg.slogdet(change)[1]) < 1e-6, "whole numbers with determinant 1 or -1"
    np.testing.assert_allclose(found.orthonormal @ found.triangle, basis @ change, atol=1e-6 * np.abs(basis).max())
    beside = np.diag(found.triangle, 1)
    assert (np.abs(beside) <= 0.5 * found.gaps[:-1] * (1 + 1e-6)).all(), "size reduced"
    after = found.gaps[1:] ** 2 + beside**2
    assert (after >= 0.98 * found.gaps[:-1] ** 2).all(), "Lovasz"


def test_rounding_in_a_reduced_basis_finds_what_plain_rounding_does_not() -> None:
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 256, (20, 50)).astype(float)
    basis = np.vstack([draw.normal(size=(16, 20)) / 1e-3, np.eye(20) / 30])  # 16 equations for 20 numbers
    targets = np.vstack(
        [basis[:16] @ truth + draw.normal(size=(16, 50)), (truth + 20 * draw.normal(size=(20, 50))) / 30]
    )
    plain = np.rint(np.linalg.lstsq(basis, targets, rcond=None)[0])
    assert (plain != truth).any(0).all()
    np.testing.assert_array_equal(reduced(basis).nearest(targets), truth)
