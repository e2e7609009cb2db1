"""The range of values, where nobody states one: seen where rows prove examples outside of [0, 1], else as assumed."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage import Update, observe
from seepage.attacks.linear import shown_range
from seepage.base.nn import generator


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
    found = shown_range(lambda ends: within(value_range=ends))
    assert found is not None
    (low, high), examples = found
    assert low <= inputs.min()
    assert inputs.max() <= high
    assert high - low < 2 * float(inputs.max() - inputs.min()) + abs(shift)
    gaps = (examples[:, None] - inputs).abs().amax(2).amin(1)
    assert float(gaps.max()) < 1e-3 * (high - low)


def test_values_within_the_unit_range_leave_it_as_it_is() -> None:
    _, within = standardized(shift=0.5, scale=0.1)
    assert shown_range(lambda ends: within(value_range=ends)) is None


def test_without_a_batch_size_nothing_is_shown() -> None:
    _, within = standardized()
    assert shown_range(lambda ends: within(value_range=ends, batch_size=None)) is None
