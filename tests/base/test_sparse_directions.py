"""Sparse directions in a span: planted rows come back, whatever the basis and however the products are made."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seepage.base.algebra import sparse
from seepage.base.algebra.sparse import sparse_directions

WIDTHS = [0.3 * 0.6**step for step in range(20)]


def planted(n: int, d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows behind a ReLU, `[n, d]`, and a random orthonormal basis of their span."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=draw, dtype=torch.float64).relu()
    mixed = torch.randn(n, n, generator=draw, dtype=torch.float64) @ rows
    return torch.nn.functional.normalize(rows, dim=1), torch.linalg.qr(mixed.T).Q.T * d**0.5


def found_of(rows: Tensor, values: Tensor) -> int:
    """How many of the rows are among the values, up to sign and scale."""
    alike = (torch.nn.functional.normalize(values, dim=1) @ rows.T).abs()
    return int((alike.amax(0) > 1 - 1e-9).sum())


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_a_start_near_a_planted_row_ends_at_it(seed: int) -> None:
    rows, basis = planted(12, 600, seed)
    exact = rows @ torch.linalg.pinv(basis)
    draw = torch.Generator().manual_seed(seed)
    starts = torch.nn.functional.normalize(exact, dim=1)
    starts = starts + 0.05 * torch.randn(starts.shape, generator=draw, dtype=torch.float64)
    for options in ({}, {"power": 0.5}, {"negative": 100.0}, {"relative": True}):
        values = sparse_directions(basis, starts, WIDTHS, **options) @ basis  # type: ignore[arg-type]
        # Absolute values (power 1/2) blur what a count of zeros tells apart, and come near it alone.
        assert found_of(rows, values) == 12 or (options == {"power": 0.5} and found_of(rows, values) >= 10), options


def test_random_starts_end_at_planted_rows_and_nothing_sparse_is_made_up() -> None:
    rows, basis = planted(8, 400, 3)
    starts = torch.randn(64, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = sparse_directions(basis, starts, [0.84**step for step in range(40)])
    assert torch.allclose(found.norm(dim=1), torch.ones(64).double())
    zero = ((found @ basis).abs() < 1e-6).double().mean(1)
    alike = (torch.nn.functional.normalize(found @ basis, dim=1) @ rows.T).abs().amax(1)
    assert found_of(rows, found @ basis) == 8
    assert bool((alike[zero > 0.2] > 1 - 1e-9).all()), "what has many zeros is a planted row"


def test_both_ways_to_the_normal_equations_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    _, basis = planted(6, 100, 1)
    starts = torch.eye(6).double()
    whole = sparse_directions(basis, starts, WIDTHS[:6])
    monkeypatch.setattr(sparse, "MAX_PRODUCTS", 0)
    assert torch.allclose(sparse_directions(basis, starts, WIDTHS[:6]), whole, atol=1e-9)
