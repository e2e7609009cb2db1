"""Alignment against brute force over all one-to-one matchings, and its properties."""

import sys
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seepage.errors import SeepageError
from seepage.measure.metrics import align, mse, psnr


def examples(n: int, seed: int = 0, shape: tuple[int, ...] = (3, 4, 4)) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


seeds = st.integers(0, 10_000)


def brute_force(costs: np.ndarray) -> float:
    """Least total cost over every one-to-one matching of min(k, n) pairs."""
    k, n = costs.shape
    if k > n:
        costs, k, n = costs.T, n, k
    return min(sum(costs[i, p[i]] for i in range(k)) for p in permutations(range(n), k))


def total(alignment, truth: Tensor) -> float:
    return float(mse(alignment.guesses, truth)[alignment.matched].sum())


def test_a_three_cycle_is_undone_in_the_right_direction() -> None:
    truth = examples(3)
    found = align(truth[[1, 2, 0]], truth)
    assert found.permutation.tolist() == [2, 0, 1]
    assert torch.equal(found.guesses, truth)


@given(st.integers(1, 9).flatmap(lambda n: st.permutations(range(n))), seeds)
@settings(max_examples=60, deadline=None)
def test_any_order_of_the_truth_is_a_perfect_reconstruction(order: list[int], seed: int) -> None:
    truth = examples(len(order), seed)
    found = align(truth[list(order)], truth)
    assert found.permutation.tolist() == [list(order).index(i) for i in range(len(order))]
    assert psnr(found.guesses, truth).tolist() == [150.0] * len(order)
    assert found.matched.all()


@given(st.integers(1, 5), st.integers(1, 5), seeds)
@settings(max_examples=60, deadline=None)
def test_hungarian_has_the_least_total_error_and_is_one_to_one(k: int, n: int, seed: int) -> None:
    truth, guesses = examples(n, seed), 3 * examples(k, seed + 1) - 1
    found = align(guesses, truth)
    clamped = guesses.clamp(0, 1)
    costs = np.array([[float(((g.double() - t.double()) ** 2).mean()) for t in truth] for g in clamped])
    assert total(found, truth) == pytest.approx(brute_force(costs), rel=1e-9)
    places = found.permutation[found.matched].tolist()
    assert len(set(places)) == len(places) == min(k, n)


@given(st.integers(1, 6), st.integers(1, 8), seeds)
@settings(max_examples=40, deadline=None)
def test_the_order_of_the_guesses_does_not_matter(n: int, k: int, seed: int) -> None:
    truth, guesses = examples(n, seed), examples(k, seed + 1)
    shuffled = guesses[torch.randperm(k, generator=generator(seed))]
    for method in ("hungarian", "nearest"):
        assert torch.equal(align(guesses, truth, method=method).guesses, align(shuffled, truth, method=method).guesses)


@pytest.mark.parametrize("k", [0, 2])
def test_examples_without_a_guess_get_mid_grey_and_are_not_matched(k: int) -> None:
    truth = examples(4)
    found = align(truth[1 : 1 + k], truth)
    assert found.matched.tolist() == [False, k > 0, k > 0, False]
    assert (found.guesses[~found.matched] == 0.5).all()
    wide = align(truth[:0], 2 * truth - 1, value_range=(-1.0, 1.0))
    assert (wide.guesses == 0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("method", ["hungarian", "nearest", "identity"])
def test_a_guess_with_a_value_that_is_no_number_matches_nothing(bad: float, method: str) -> None:
    truth = examples(3)
    guesses = truth.clone()
    guesses[1, 0, 0, 0] = bad
    slots = torch.arange(3)
    found = align(guesses, truth, method=method, guess_indices=slots, truth_indices=slots)
    assert not (found.permutation == 1).any()
    assert found.guesses.isfinite().all()
    if method != "nearest":
        assert found.permutation.tolist() == [0, -1, 2]
        assert (found.guesses[1] == 0.5).all()


def test_all_guesses_without_numbers_match_nothing() -> None:
    truth = examples(2)
    for method in ("hungarian", "nearest"):
        found = align(torch.full_like(truth, torch.nan), truth, method=method)
        assert found.permutation.tolist() == [-1, -1]


def test_guesses_are_clamped_before_they_are_compared() -> None:
    truth = torch.tensor([[1.0, 1.0], [0.6, 0.6]])
    # unclamped, the wild guess would be so far from both that it decided nothing
    found = align(torch.tensor([[0.7, 0.7], [1e30, 1e30]]), truth)
    assert found.permutation.tolist() == [1, 0]
    assert found.guesses[0].tolist() == [1.0, 1.0]


def test_nearest_may_use_one_guess_many_times() -> None:
    truth = examples(3)
    found = align(truth[:1], truth, method="nearest")
    assert found.permutation.tolist() == [0, 0, 0]
    assert found.name == "nearest"


def test_identity_goes_by_index_even_where_another_guess_fits_better() -> None:
    truth = examples(3)
    guesses = truth[[1, 0, 2]]
    found = align(
        guesses,
        truth,
        method="identity",
        guess_indices=torch.tensor([40, 41, 99]),
        truth_indices=torch.tensor([41, 40, 7]),
    )
    assert found.permutation.tolist() == [1, 0, -1]
    assert torch.equal(found.guesses[:2], guesses[[1, 0]])
    assert found.name == "identity"


@pytest.mark.parametrize("slots", [None, torch.tensor([1, 1, 2]), torch.tensor([1, 2])])
def test_identity_without_clear_indices_is_refused(slots: Tensor | None) -> None:
    truth = examples(3)
    with pytest.raises(SeepageError, match="indices"):
        align(truth, truth, method="identity", guess_indices=slots, truth_indices=torch.arange(3))


def test_unknown_methods_and_shapes_that_do_not_fit_are_refused() -> None:
    truth = examples(2)
    with pytest.raises(SeepageError, match="did you mean 'hungarian'"):
        align(truth, truth, method="hungaria")
    with pytest.raises(SeepageError, match="cannot be matched"):
        align(truth.flatten(1), truth)


def best_factor(guess: Tensor, truth: Tensor, sign: bool) -> float:
    a, b = guess.double().flatten().numpy(), truth.double().flatten().numpy()
    factor = float(np.linalg.lstsq(a[:, None], b, rcond=None)[0][0])
    return factor if sign else max(0.0, factor)


@given(st.integers(1, 5), st.booleans(), seeds)
@settings(max_examples=40, deadline=None)
def test_scale_is_the_least_squares_factor_of_the_best_matching(n: int, sign: bool, seed: int) -> None:
    truth = examples(n, seed)
    guesses = torch.randn(n, *truth.shape[1:], generator=generator(seed)) + 0.3
    found = align(guesses, truth, ambiguity={"order", "scale", *(["sign"] * sign)})
    assert found.name == ("hungarian+sign+scale" if sign else "hungarian+scale")

    def best(g: Tensor, t: Tensor) -> Tensor:
        ways = [g * best_factor(g, t, sign), *([(1 - g) * best_factor(1 - g, t, False)] * sign)]
        return min(ways, key=lambda way: float((way - t).square().sum()))

    fitted = torch.stack([torch.stack([best(g, t) for t in truth]) for g in guesses])
    costs = ((fitted.double() - truth.double()) ** 2).flatten(2).mean(2).numpy()
    places = found.permutation.tolist()
    assert sum(costs[p, i] for i, p in enumerate(places)) == pytest.approx(brute_force(costs), rel=1e-6)
    wanted = torch.stack([fitted[p, i] for i, p in enumerate(places)]).clamp(0, 1)
    assert torch.allclose(found.guesses.double(), wanted.double(), atol=1e-6)


@given(st.integers(1, 6), seeds)
@settings(max_examples=30, deadline=None)
def test_signed_scaled_permuted_truth_is_perfect_only_where_both_are_allowed(n: int, seed: int) -> None:
    truth = examples(n, seed)
    factors = torch.randn(n, generator=generator(seed)).reshape(-1, 1, 1, 1) * 100
    guesses = (truth * factors)[torch.randperm(n, generator=generator(seed))].double()
    both = align(guesses, truth, ambiguity={"sign", "scale"})
    assert (psnr(both.guesses, truth) > 120).all()
    negative = align(-guesses.abs(), truth, ambiguity={"scale"})
    assert (negative.guesses == 0).all()


def test_sign_alone_flips_but_never_scales() -> None:
    truth = examples(3)
    found = align(-truth[[2, 0, 1]], truth, ambiguity={"sign"})
    assert found.name == "hungarian+sign"
    assert torch.equal(found.guesses, truth)
    half = align(-truth / 2, truth, ambiguity={"sign"})
    assert torch.equal(half.guesses, (truth / 2)[half.permutation])


@given(st.integers(1, 6), seeds)
@settings(max_examples=30, deadline=None)
def test_a_negative_is_turned_only_where_the_sign_is_open(n: int, seed: int) -> None:
    """As of images stretched to the value range, whose negative is `low + high - x` and not `-x`."""
    truth = 2 * examples(n, seed) - 0.5
    order, turn = torch.randperm(n, generator=generator(seed)), torch.rand(n, generator=generator(seed)) < 0.5
    guesses = torch.where(turn.reshape(-1, 1, 1, 1), 1 - truth, truth)[order]
    found = align(guesses, truth, value_range=(-0.5, 1.5), ambiguity={"sign"})
    assert torch.allclose(found.guesses, truth, atol=1e-6)
    closed = align(guesses, truth, value_range=(-0.5, 1.5))
    assert torch.allclose(closed.guesses, truth, atol=1e-6) == (not turn.any())


def test_nothing_is_fitted_where_only_the_order_is_unknown() -> None:
    truth = examples(3)
    found = align(-truth, truth, ambiguity={"order"})
    assert found.name == "hungarian"
    assert (found.guesses == 0).all()


@pytest.mark.parametrize("ambiguity", [{"scale"}, {"sign"}, {"sign", "scale"}])
def test_huge_and_zero_guesses_fit_without_overflow(ambiguity: set) -> None:
    truth = examples(2)
    guesses = torch.stack([torch.zeros_like(truth[0]), truth[1].double() * 1e300])
    found = align(guesses, truth, ambiguity=ambiguity)
    assert found.guesses.isfinite().all()
    if "scale" in ambiguity:
        assert found.permutation.tolist() == [0, 1]
        assert float(psnr(found.guesses, truth)[1]) > 120


def test_features_are_matched_by_cosine_and_never_clamped() -> None:
    truth = torch.randn(4, 9, generator=generator(0))
    guesses = 5 * truth[[3, 1, 0, 2]]
    found = align(guesses, truth, value_range=None)
    assert found.permutation.tolist() == [2, 1, 3, 0]
    assert torch.equal(found.guesses, 5 * truth)
    flipped = align(-guesses, truth, value_range=None, ambiguity={"sign", "scale"})
    assert flipped.name == "hungarian+sign"
    assert torch.equal(flipped.guesses, 5 * truth)
    assert (align(guesses[:1], truth, value_range=None).guesses[:3] == 0).all()


def test_cost_does_not_depend_on_how_columns_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["seepage.measure.metrics.align"]
    truth, guesses = examples(5), examples(6, 1)
    whole = align(guesses, truth)
    monkeypatch.setattr(module, "_COLUMNS", 7)
    assert torch.equal(align(guesses, truth).permutation, whole.permutation)
