"""Singular values, rank and noise floor against numpy's own decomposition and planted ranks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seepage.base.algebra.lowrank import low_rank, noise_floor


def mixtures(m: int, n: int, d: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn((m, n), generator=draw, dtype=torch.float64) @ torch.randn(
        (n, d), generator=draw, dtype=torch.float64
    )


@pytest.mark.parametrize(("m", "d"), [(12, 40), (40, 12), (7, 7)])
def test_it_is_numpys_decomposition(m: int, d: int) -> None:
    matrix = torch.randn((m, d), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = low_rank(matrix)
    np.testing.assert_allclose(found.values.numpy(), np.linalg.svd(matrix.numpy(), compute_uv=False), rtol=1e-9)
    torch.testing.assert_close(found.columns @ found.right, matrix)
    torch.testing.assert_close(found.right @ found.right.T, torch.eye(len(found.right), dtype=torch.float64))
    torch.testing.assert_close(found.left.T @ found.left, torch.eye(len(found.values), dtype=torch.float64))


def test_small_singular_values_are_not_squared_away() -> None:
    """A Gram matrix alone loses what is below 1e-8 of the largest."""
    left = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))[0]
    right = torch.linalg.qr(torch.randn(30, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))[0]
    values = torch.tensor([1.0, 1e-2, 1e-4, 1e-6, 1e-8, 1e-9], dtype=torch.float64)
    found = low_rank((left * values) @ right.T)
    torch.testing.assert_close(found.values[:5], values[:5], rtol=1e-3, atol=0)


@given(n=st.integers(1, 12), seed=st.integers(0, 50))
def test_the_rank_of_float32_mixtures_is_the_number_of_sources(n: int, seed: int) -> None:
    seen = mixtures(24, n, 60, seed).float()
    assert low_rank(seen).rank == n
    assert low_rank(seen, sources=n).rank == n


def test_a_source_below_the_noise_is_not_counted() -> None:
    draw = torch.Generator().manual_seed(0)
    mixing = torch.randn((24, 5), generator=draw)
    mixing[:, 4] *= 1e-9
    seen = mixing @ torch.randn((5, 200), generator=draw)
    assert low_rank(seen, sources=5).rank == 4


def test_nothing_in_nothing() -> None:
    assert noise_floor(torch.zeros(3)) == (0.0, 0)
    assert noise_floor(torch.zeros(0)) == (0.0, 0)


def test_with_as_many_sources_as_rows_the_floor_is_a_share_of_the_largest() -> None:
    floor, rank = noise_floor(torch.tensor([1.0, 1e-3, 1e-9]), 3)
    assert 0 < floor < 1e-7
    assert rank == 2
