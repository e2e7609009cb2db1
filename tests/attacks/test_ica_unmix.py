"""Unmixing with a known mixing matrix: planted sources, packaged photographs, and scikit-learn beside it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from seepage.attacks.cpa.ica import (
    balanced,
    difference_fields,
    fast_ica,
    maximum_likelihood,
    opponent,
    unmix,
    unmix_rest,
    whitener,
)
from seepage.attacks.cpa.ica.unmix import SparseScore, capped, pair_step, random_rotation, score_gradient
from seepage.federation.data import load


def matched(guesses: Tensor, truth: Tensor) -> Tensor:
    """Best one-to-one absolute cosines."""
    unit = torch.nn.functional.normalize
    cosines = (unit(guesses.double(), dim=1) @ unit(truth.double(), dim=1).T).abs()
    rows, columns = linear_sum_assignment(-cosines.numpy())
    return cosines[rows, columns]


def laplace(n: int, p: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).laplace(size=(n, p)))


def mixing(n: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, n)))


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(n: int) -> Tensor:
    data = load("photos")
    return data.batch(torch.randperm(len(data), generator=draw(5))[:n]).inputs.flatten(1).double() - 0.5


@given(n=st.integers(2, 8), seed=st.integers(0, 20))
@settings(max_examples=15)
def test_planted_sparse_sources_come_back(n: int, seed: int) -> None:
    sources = laplace(n, 6000, seed)
    mixed = mixing(n, seed) @ sources
    rows = unmix(mixed[:, None], draw=draw(seed))
    assert matched(rows @ mixed, sources).min() > 0.99


def test_a_pair_step_solves_each_pair_by_itself_and_is_bounded() -> None:
    gradient, moments = torch.randn(4, 4, generator=draw()), 1.5 + torch.rand(4, 4, generator=draw(1))
    step = pair_step(gradient, moments)
    for i in range(4):
        for j in range(i):
            block = torch.tensor([[float(moments[i, j]), 1.0], [1.0, float(moments[j, i])]])
            solved = torch.linalg.solve(block, -torch.stack([gradient[i, j], gradient[j, i]]))
            assert torch.allclose(torch.stack([step[i, j], step[j, i]]), solved, atol=1e-5)
    # Two sources whose rotation the likelihood does not show: a determinant of 0.
    assert pair_step(gradient, torch.ones(4, 4)).abs().max() <= 20 * gradient.abs().max()
    assert torch.linalg.matrix_norm(capped(9 * step) * 9 * step, 2) <= 0.5 + 1e-6
    assert float(capped(1e-3 * step, 0.7)) == pytest.approx(0.7)


def test_a_field_of_nothing_ends_the_search_where_it_began() -> None:
    fields = torch.stack([laplace(2, 64, 0), torch.zeros(2, 64)])
    rows = maximum_likelihood(fields.double(), torch.eye(2, dtype=torch.float64), score=SparseScore())
    assert torch.equal(rows, torch.eye(2, dtype=torch.float64))


def test_fast_ica_finds_what_scikit_learn_finds() -> None:
    from sklearn.decomposition import FastICA

    sources = laplace(5, 4000, 3)
    white = whitener(sources) @ (mixing(5, 3) @ sources)
    white = whitener(white) @ white
    ours = fast_ica(white, random_rotation(5, draw(), white), tolerance=1e-9, steps=500)
    theirs = FastICA(whiten=False, fun="logcosh", tol=1e-9, max_iter=500, random_state=0).fit(white.T.numpy())
    # Theirs removes a mean that the sources nearly lack.
    assert matched(ours, torch.from_numpy(theirs.components_)).min() > 0.999


def test_likelihood_beats_the_orthogonal_start_when_samples_are_few() -> None:
    truth = photographs(24)
    mixed = mixing(24, 1) @ truth
    fields = difference_fields(mixed, (3, 32, 32))
    flat = fields.flatten(1)
    whitening = whitener(flat)
    rotation = fast_ica(whitening @ flat, random_rotation(24, draw(), flat))
    start = rotation @ whitening
    better = maximum_likelihood(fields, start, score=SparseScore())
    assert matched(better @ mixed, truth).mean() > matched(start @ mixed, truth).mean()


def test_differences_unmix_photographs_and_pixels_do_not() -> None:
    truth = photographs(16)
    mixed = mixing(16, 2) @ truth
    by_differences = unmix(difference_fields(mixed, (3, 32, 32)), draw=draw())
    by_pixels = unmix((mixed - mixed.mean(1, keepdim=True))[:, None], draw=draw())
    assert matched(by_differences @ mixed, truth).mean() > 0.98
    assert matched(by_pixels @ mixed, truth).mean() < 0.9


def test_unmixing_does_not_depend_on_the_mixing() -> None:
    """Equivariance: another mixing of the same sources gives the same sources."""
    sources = laplace(4, 3000, 7)
    first, second = mixing(4, 1) @ sources, mixing(4, 2) @ sources
    a = unmix(first[:, None], draw=draw(), steps=1000) @ first
    b = unmix(second[:, None], draw=draw(), steps=1000) @ second
    assert matched(a, b).min() > 0.99999


def test_slope_is_the_likelihoods_derivative() -> None:
    """Against finite differences of the mean negative log likelihood of a multivariate t."""
    score = SparseScore()
    signals = torch.randn((3, 2, 500), dtype=torch.float64, generator=draw(4))
    signals = signals / signals.square().mean((1, 2)).sqrt()[:, None, None]
    root = torch.randn((3, 2, 2), dtype=torch.float64, generator=draw(6))
    precisions = root @ root.mT + 0.1 * torch.eye(2)
    turned = precisions @ signals
    diagonal = (score.weights(signals, precisions) * turned * signals).mean((1, 2))

    def cost(changed: Tensor) -> Tensor:
        # -log p = (f / 2) log(y^T P y / f + width) per place has the slope w P y; divided by the row's own moment.
        distance = torch.einsum("nfp,nfg,ngp->np", changed, precisions, changed) / 2
        per_row = (distance + score.width).log().mean(1) / 2
        return (per_row / diagonal).sum()

    change = torch.zeros((3, 3), dtype=torch.float64)
    change[0, 2] = 1e-6
    moved = torch.einsum("ij,jfp->ifp", torch.eye(3, dtype=torch.float64) + change, signals)
    expected = float(score_gradient(signals, score, precisions)[0][0, 2])
    assert float((cost(moved) - cost(signals)) / 1e-6) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_each_sources_own_covariance_is_found() -> None:
    """Heavy-tailed fields of a known shape; its size is free."""
    truth = torch.tensor([[[1.0, 0.0], [0.0, 0.2]], [[0.5, 0.4], [0.4, 0.5]]], dtype=torch.float64)
    normal = torch.randn((2, 2, 20_000), dtype=torch.float64, generator=draw(1))
    tails = torch.rand((2, 1, 20_000), dtype=torch.float64, generator=draw(2)).clamp(min=0.01).rsqrt()
    signals = torch.linalg.cholesky(truth) @ normal * tails
    found = torch.linalg.inv(SparseScore(shrink=0.0).precisions(signals))
    found = 2 * found / found.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    torch.testing.assert_close(
        found, 2 * truth / truth.diagonal(dim1=1, dim2=2).sum(1)[:, None, None], atol=0.05, rtol=0
    )


def test_balanced_fields_are_uncorrelated_and_commute_with_mixing() -> None:
    fields, weights = difference_fields(photographs(6), (3, 32, 32)), torch.linalg.qr(mixing(6, 3))[0]
    flat = balanced(fields).transpose(0, 1).flatten(1)
    torch.testing.assert_close(flat @ flat.T / flat.shape[1], torch.eye(9, dtype=torch.float64))
    mixed = torch.einsum("ij,jfp->ifp", weights, balanced(fields))
    # Rotated rows have the same covariance of fields over all rows, so the change of basis is the same up to sign.
    torch.testing.assert_close(balanced(torch.einsum("ij,jfp->ifp", weights, fields)).abs(), mixed.abs())


def test_balancing_leaves_what_is_next_to_nothing_small() -> None:
    grey = photographs(3).reshape(3, 3, -1).mean(1, keepdim=True).expand(-1, 3, -1).reshape(3, -1)
    fields = balanced(difference_fields(grey, (3, 32, 32)))
    assert fields.isfinite().all()
    assert float(fields.square().mean((0, 2)).sort().values[:6].max()) < 1e-20


def test_what_is_left_is_unmixed_afresh_without_the_solved() -> None:
    truth = laplace(6, 4000, 9)
    mixed = mixing(6, 4) @ truth
    exact = torch.linalg.inv(mixing(6, 4))
    spoiled = exact.clone()
    spoiled[3:] = mixing(3, 8) @ exact[3:]
    solved = torch.tensor([True] * 3 + [False] * 3)
    rows = unmix_rest(mixed[:, None], spoiled, solved, draw=draw())
    torch.testing.assert_close(rows[:3], exact[:3])
    assert matched(rows[3:] @ mixed, truth[3:]).min() > 0.99


def test_fields_commute_with_mixing() -> None:
    images, weights = torch.rand((4, 3 * 6 * 5), dtype=torch.float64), mixing(4, 0)
    mixed = torch.einsum("ij,jfp->ifp", weights, difference_fields(images, (3, 6, 5)))
    torch.testing.assert_close(difference_fields(weights @ images, (3, 6, 5)), mixed)


def test_a_flat_image_has_no_differences_and_grey_has_no_color() -> None:
    assert float(difference_fields(torch.full((1, 75), 0.3), (3, 5, 5)).abs().max()) == 0
    grey = torch.rand(2, 1, 4, 4).expand(-1, 3, -1, -1)
    assert float(opponent(grey)[:, 1:].abs().max()) < 1e-6


@pytest.mark.parametrize(("shape", "fields"), [((1, 6, 6), 3), ((3, 6, 6), 9), ((10,), 1), ((3, 1, 8), 1)])
def test_every_shape_has_fields(shape: tuple[int, ...], fields: int) -> None:
    rows = torch.rand(2, int(np.prod(shape)))
    assert difference_fields(rows, shape).shape[:2] == (2, fields)


def test_whitened_rows_are_white() -> None:
    signals = mixing(5, 3) @ torch.randn((5, 300), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    white = whitener(signals) @ signals
    torch.testing.assert_close(white @ white.T / 300, torch.eye(5, dtype=torch.float64))
