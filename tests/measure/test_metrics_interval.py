"""The bootstrap interval against exact enumeration, the normal approximation and its own promises."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.errors import SeepageError
from seepage.measure.metrics import bootstrap_interval


def test_it_is_the_quantiles_of_all_ways_to_draw_the_batches() -> None:
    values = torch.tensor([1.0, 2.0, 7.0, 4.0, 4.0, 9.0, 0.5])
    groups = torch.tensor([0, 0, 1, 2, 2, 3, 4])
    batches = [values[groups == g].numpy() for g in range(5)]
    means = [np.concatenate([batches[i] for i in draw]).mean() for draw in product(range(5), repeat=5)]
    low, high = np.quantile(means, [0.1, 0.9])
    found = bootstrap_interval(values, groups, level=0.8, resamples=20_000)
    assert found == pytest.approx((low, high), abs=0.1)


def test_within_one_batch_it_is_close_to_the_normal_interval() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 20
    half = 1.96 * float(values.std()) / 20
    found = bootstrap_interval(values, torch.zeros(400, dtype=torch.int64))
    assert found == pytest.approx((float(values.mean()) - half, float(values.mean()) + half), abs=0.1 * half)


def test_examples_that_fail_together_widen_it() -> None:
    values = torch.tensor([10.0] * 8 + [20.0] * 8 + [30.0] * 8)
    together = bootstrap_interval(values, torch.arange(24) // 8)
    apart = bootstrap_interval(values, torch.zeros(24, dtype=torch.int64))
    assert together[1] - together[0] > 2 * (apart[1] - apart[0])


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_it_is_deterministic_and_lies_inside_the_values(numbers: list[float], size: int) -> None:
    values, groups = torch.tensor(numbers, dtype=torch.float64), torch.arange(len(numbers)) // size
    found = bootstrap_interval(values, groups, resamples=200)
    assert found == bootstrap_interval(values, groups, resamples=200)
    assert min(numbers) - 1e-9 <= found[0] <= found[1] <= max(numbers) + 1e-9


@pytest.mark.parametrize("values", [[], [3.0]])
def test_fewer_than_two_units_have_no_interval(values: list[float]) -> None:
    assert bootstrap_interval(torch.tensor(values), torch.zeros(len(values), dtype=torch.int64)) is None


@pytest.mark.parametrize(
    ("values", "groups", "level", "message"),
    [
        ([1.0, 2.0], [0], 0.95, "two vectors of one length"),
        ([1.0, 2.0], [0, 1], 1.0, "between 0 and 1"),
        ([1.0, float("nan")], [0, 1], 0.95, "NaN"),
    ],
)
def test_mistakes_are_named(values: list[float], groups: list[int], level: float, message: str) -> None:
    with pytest.raises(SeepageError, match=message):
        bootstrap_interval(torch.tensor(values), torch.tensor(groups), level=level)
