"""The range of values, where nobody states one: seen where examples outside of [0, 1] are proven, else assumed."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage import Architecture, Update, build, data, observe
from seepage.attacks.gauss_newton.search import Search
from seepage.audit import values
from seepage.audit.values import NORMALIZATIONS, normalization_of, searched_values, shown_values
from seepage.base.nn import generator
from seepage.federation.models.normalize import statistics_of


def standardized(*, shift: float = 0.0, scale: float = 1.0, n: int = 3, seed: int = 0) -> tuple[torch.Tensor, partial]:
    """A batch of so many rows, and the transcript of its gradient within a range."""
    draw = generator(seed, "ranges")
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) / parameter.shape[-1] ** 0.5)
    inputs = shift + scale * torch.randn(n, 12, generator=draw)
    F.cross_entropy(model(inputs), torch.arange(n)).backward()
    update = Update({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    return inputs, partial(observe, model, update, (12,), batch_size=n)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.0, 8.0), (120.0, 40.0)])
def test_rows_outside_of_the_unit_range_show_the_range(shift: float, scale: float) -> None:
    inputs, within = standardized(shift=shift, scale=scale)
    found = shown_values(lambda ends: within(value_range=ends))
    assert found is not None
    (low, high), examples = found.range, found.examples
    assert low <= inputs.min()
    assert inputs.max() <= high
    assert high - low < 2 * float(inputs.max() - inputs.min()) + abs(shift)
    gaps = (examples[:, None] - inputs).abs().amax(2).amin(1)
    assert float(gaps.max()) < 1e-3 * (high - low)


def test_values_within_the_unit_range_leave_it_as_it_is() -> None:
    _, within = standardized(shift=0.5, scale=0.1)
    assert shown_values(lambda ends: within(value_range=ends)) is None


@pytest.mark.parametrize(("error", "shown"), [(0.01, False), (1.0, True)])
def test_more_examples_that_a_wider_range_proves_are_outside_of_the_unit_range_by_more_than_errors(
    monkeypatch: pytest.MonkeyPatch, error: float, shown: bool
) -> None:
    draw = generator(0, "values")
    examples = torch.rand(3, 40, generator=draw) + error * torch.randn(3, 40, generator=draw)
    proven = {(0.0, 1.0): examples[:2]}
    monkeypatch.setattr(values, "_proven", lambda transcript, attack, limit: proven.get(transcript, examples))

    class Stated(tuple[float, float]):
        """A transcript that is known by its range alone."""

        def __getitem__(self, place: object) -> "Stated":
            return self

        batch_size = 3

    assert (shown_values(Stated) is not None) is shown


def test_without_a_batch_size_nothing_is_shown() -> None:
    _, within = standardized()
    assert shown_values(lambda ends: within(value_range=ends, batch_size=None)) is None


def convolved(mean: float | tuple[float, ...], std: float | tuple[float, ...]) -> tuple[torch.Tensor, partial]:
    """Two photographs as a network reads them, and the transcript of their gradient within a range."""
    found = data.load("photos", size=16, split=1.0)
    at, size = (torch.tensor(part).reshape(-1, 1, 1) for part in (mean, std))
    inputs = (found.images[[3, 90]] / 255 - at) / size
    model = build(Architecture("convnet"), (3, 16, 16), 10)
    F.cross_entropy(model(inputs), torch.tensor([1, 2])).backward()
    update = Update({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    return inputs, partial(observe, model, update, (3, 16, 16), batch_size=2)


@pytest.mark.parametrize("how", ["imagenet", "0.5"])
@pytest.mark.slow
def test_pictures_behind_convolutions_show_how_they_were_normalized(how: str) -> None:
    inputs, within = convolved(*statistics_of(how))
    found = searched_values(lambda ends: within(value_range=ends), 60.0)
    assert found is not None
    assert found.normalize == how
    gaps = (found.examples[:, None] - inputs).abs().flatten(2).amax(2).amin(1)
    assert float(gaps.max()) < 1e-3


@pytest.mark.slow
def test_pictures_in_the_unit_range_leave_it_as_it_is() -> None:
    _, within = convolved(0.0, 1.0)
    assert searched_values(lambda ends: within(value_range=ends), 60.0) is None
    assert searched_values(lambda ends: within(value_range=ends), 0.0) is None


@pytest.mark.slow
def test_no_other_numbers_are_taken_for_normalized_pictures() -> None:
    draw = generator(0, "no pictures")
    for _ in range(200):
        width = float(torch.rand((), generator=draw)) * 4
        assert normalization_of(torch.randn(1, 3, 8, 8, generator=draw) * width) is None
        uneven = torch.rand((2, 3, 8, 8), generator=draw)  # of [0, 1], and of no eight bits
        assert normalization_of((uneven - 0.5) / 0.5) is None
        levels = torch.randint(0, 256, (1, 3, 8, 8), generator=draw) / 255
        mean, std = torch.rand(2, 3, 1, 1, generator=draw)
        assert normalization_of((levels - mean) / (0.1 + std)) is None  # of statistics that nobody states
        few = torch.randint(0, 8, (1, 3, 8, 8), generator=draw) / 255
        assert normalization_of((few - 0.5) / 0.5) is None


@pytest.mark.parametrize("how", NORMALIZATIONS)
def test_each_normalization_is_told_from_all_others(how: str) -> None:
    draw = generator(0, "pictures")
    mean, std = (torch.tensor(part)[:, None, None] for part in statistics_of(how))
    levels = torch.randint(0, 256, (2, len(mean), 16, 16), generator=draw) / 255
    errors = 1e-3 / 255 * torch.randn(levels.shape, generator=draw)
    assert normalization_of((levels + errors - mean) / std) == how


def test_whoever_stops_the_search_stops_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    _, within = convolved(0.5, 0.5)
    real = Search.step

    def stopped(search: Search) -> float:
        if len(search.history) > 1:
            raise KeyboardInterrupt
        return real(search)

    monkeypatch.setattr(Search, "step", stopped)
    with pytest.raises(KeyboardInterrupt):
        searched_values(lambda ends: within(value_range=ends), 60.0)
