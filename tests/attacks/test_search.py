"""A search travels to disk and back without losing a bit."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seepage.attacks.search.optimizers import LBFGS, Adam, OptimizerSettings, Schedule
from seepage.attacks.search.parameters import SearchSpace
from seepage.attacks.search.search import Restart
from seepage.audit.attempt import FolderProgress
from seepage.base.checkpoint import pack, unpack
from seepage.federation.types import Tensors

PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=5)
NUMBERS = st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=3).map(torch.tensor)
NESTED = st.recursive(
    PLAIN | NUMBERS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.integers(0, 9) | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and bool(a == b)


@given(NESTED)
def test_any_nested_state_comes_back_through_json(state: Any) -> None:
    tensors: Tensors = {}
    text = json.dumps(pack(state, "state", tensors), allow_nan=False)
    assert same(unpack(json.loads(text), tensors), state)


def bowl(search: Restart) -> float:
    """A stretched bowl: one evaluation, with gradients left where the optimiser looks for them."""
    value = 0.0
    for unknown in search.unknowns:
        weights = torch.linspace(1, 30, unknown.numel()).reshape(unknown.shape)
        value += float((weights * (unknown.detach() - 2) ** 4).sum())
        unknown.grad = 4 * weights * (unknown.detach() - 2) ** 3
    search.update_best(value, search.decode()[1].detach(), torch.zeros(2, dtype=torch.int64))
    if search.logits is not None:
        search.logits.grad = search.logits.detach() * 0.1
        value += float(0.05 * (search.logits.detach() ** 2).sum())
    return value


def advance(search: Restart, steps: int) -> None:
    for _ in range(steps):
        search.optimizer.step(lambda: bowl(search))
        search.schedule.step()
        search.history.append((len(search.history), float(search.lowest)))


def fresh(settings: OptimizerSettings, schedule: Schedule) -> Restart:
    draw = torch.Generator().manual_seed(0)
    unknowns, logits = (
        [torch.randn(shape, generator=draw) for shape in ((2, 3), (3,))],
        torch.randn((2, 4), generator=draw),
    )
    space = SearchSpace(unknowns, lambda parts: parts[0] + parts[1], lambda parts: [part.clamp(0, 1) for part in parts])
    return Restart(space, logits, settings, schedule, 12)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["constant", "step", "cosine", "warmup_cosine", "cosine_restarts"])
@pytest.mark.parametrize(
    "settings",
    [Adam(lr=0.1), Adam(lr=0.1, weight_decay=0.1), LBFGS(lr=0.01, inner=4, history=3), LBFGS(line_search=True)],
    ids=["adam", "adamw", "lbfgs", "wolfe"],
)
def test_a_search_goes_on_with_the_same_bits_from_any_step(
    tmp_path: Path, settings: OptimizerSettings, schedule: Schedule
) -> None:
    whole = fresh(settings, schedule)
    advance(whole, 12)
    for stop in (1, 4, 5, 11):
        first = fresh(settings, schedule)
        advance(first, stop)
        kept = FolderProgress(tmp_path / "log", tmp_path / "checkpoint", {})
        saved = first.checkpoint(stop)
        advance(first, min(2, 12 - stop))  # going on must not change what was saved
        kept.save(saved)
        loaded = kept.load()
        assert loaded is not None
        second = fresh(settings, schedule)
        assert second.resume(loaded) == stop
        advance(second, 12 - stop)
        assert all(map(torch.equal, second.unknowns, whole.unknowns))
        assert second.logits is not None
        assert whole.logits is not None
        assert torch.equal(second.logits, whole.logits)
        assert second.history == whole.history
        assert second.lowest == whole.lowest
        assert torch.equal(second.best["inputs"], whole.best["inputs"])


def test_the_best_point_is_kept_by_its_objective_and_copied() -> None:
    search = fresh(Adam(lr=0.1), "constant")
    point = torch.ones(2, 3)
    for objective in (3.0, 1.0, 2.0):
        point.fill_(objective)
        search.update_best(objective, point, torch.zeros(2))
    point.fill_(9)
    assert search.lowest == 1.0
    assert bool((search.best["inputs"] == 1).all())
