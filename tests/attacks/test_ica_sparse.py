"""Planted sparse non-negative rows are found exactly, and their zeros say so."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.attacks.cpa.ica import sparsest, unmix_sparse, zero_share
from seepage.base.algebra.lowrank import low_rank


def planted(n: int, d: int, seed: int, live: float = 0.3) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    dense = torch.rand((n, d), generator=draw, dtype=torch.float64)
    return dense * (torch.rand((n, d), generator=draw) < live)


@given(n=st.integers(2, 10), seed=st.integers(0, 30))
@settings(max_examples=15)
def test_embeddings_come_back_exactly(n: int, seed: int) -> None:
    truth = planted(n, 1200, seed)
    mixed = torch.randn((2 * n, n), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) @ truth
    basis = low_rank(mixed, sources=n).keep(n).right
    rows = unmix_sparse(basis, draw=torch.Generator().manual_seed(0))
    found = torch.nn.functional.normalize(rows @ basis, dim=1)
    cosines = found @ torch.nn.functional.normalize(truth, dim=1).T
    assert sorted(cosines.argmax(1).tolist()) == list(range(n))
    assert cosines.max(1).values.min() > 0.9999
    assert zero_share(rows @ basis).min() > 0.6


def test_a_mixture_has_fewer_zeros_than_a_source() -> None:
    truth = planted(3, 2000, 1)
    mixture = truth.sum(0, keepdim=True)
    assert float(zero_share(mixture)) < float(zero_share(truth).min())


def test_a_start_near_a_source_leads_to_it() -> None:
    truth = planted(5, 1000, 2)
    basis = low_rank(truth).keep(5).right
    exact = truth @ basis.T
    rows = sparsest(basis, exact + 0.2 * exact.norm(dim=1, keepdim=True) * torch.eye(5))
    cosines = torch.nn.functional.cosine_similarity(rows @ basis, truth, dim=1).abs()
    assert cosines.min() > 0.9999
