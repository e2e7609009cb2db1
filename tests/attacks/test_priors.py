"""Total variation against torchmetrics and numpy; the smaller parts of the engine."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal
from torch import nn

from seepage import FedSGD
from seepage.attacks.search.optimizers import LBFGS, Adam, Schedule, make_schedule
from seepage.attacks.search.parameters import Pixels, Start
from seepage.attacks.search.priors import TotalVariation
from seepage.base.nn import generator
from seepage.federation.types import Knowledge


def knowing(*shape: int, value_range: tuple[float, float] = (0.0, 1.0)) -> Knowledge:
    return Knowledge(nn.Identity(), FedSGD(), shape, 4, value_range)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(2, 6), st.integers(2, 6))
def test_total_variation_is_the_mean_of_neighbours_differences(r: int, n: int, c: int, h: int, w: int) -> None:
    x = torch.rand((r, n, c, h, w), dtype=torch.float64, generator=torch.Generator().manual_seed(h * w))
    a = x.numpy()
    expected = np.abs(np.diff(a, axis=3)).mean((1, 2, 3, 4)) + np.abs(np.diff(a, axis=4)).mean((1, 2, 3, 4))
    assert np.allclose(TotalVariation(0.3)(x).numpy(), 0.3 * expected, rtol=1e-12)


def test_total_variation_on_squares_is_torchmetrics_one_per_neighbour_pair() -> None:
    from torchmetrics.functional.image import total_variation  # seconds, for the one worker that runs this

    x = torch.rand((2, 5, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    pairs = 5 * 3 * 8 * 7
    expected = torch.stack([total_variation(images, reduction="sum") / pairs for images in x])
    assert torch.allclose(TotalVariation(1.0)(x), expected, rtol=1e-5)


def test_total_variation_of_a_flat_image_is_zero_and_its_slope_is_checked() -> None:
    assert not TotalVariation(1.0)(torch.full((1, 2, 3, 4, 4), 0.7)).any()
    x = torch.rand((2, 1, 1, 3, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradcheck(TotalVariation(0.5), x.requires_grad_())


@pytest.mark.parametrize("shape", [(1, 1, 8), (1, 8, 1)])
def test_total_variation_is_refused_without_neighbours(shape: tuple[int, ...]) -> None:
    with refusal("no_neighbors", 0):
        TotalVariation(1e-4).check(knowing(*shape))
    TotalVariation(1e-4).check(knowing(1, 2, 2))
    TotalVariation(1e-4).check(knowing(5))
    assert not TotalVariation(1.0)(torch.rand(3, 2, 5)).any()


@pytest.mark.parametrize("start", get_args(Start))
def test_candidates_start_in_the_units_they_are_said_to(start: Start) -> None:
    pixels = Pixels(start_from=start, mean=0.5, std=0.25)
    knowledge = knowing(3, 20, 20, value_range=(-1.0, 3.0))
    like = torch.ones(1, dtype=torch.float64)
    space = pixels.start(4, knowledge, like, generator(0, "start"))
    inputs = space.decode(space.unknowns)
    assert inputs.shape == (4, 3, 20, 20)
    assert inputs.dtype == like.dtype
    again = pixels.start(4, knowledge, like, generator(0, "start"))
    assert all(map(torch.equal, space.unknowns, again.unknowns))
    uniform = (1.0, 4 / 12**0.5)
    mean, deviation = {
        "normal": (0.5, 0.25),
        "uniform": uniform,
        "wide": (1.0, 8 / 12**0.5),
        "grey": (1.0, 0.0),
    }[start]
    assert float(inputs.mean()) == pytest.approx(mean, abs=0.05)
    assert float(inputs.std()) == pytest.approx(deviation, abs=0.05)


@given(st.floats(-2, 2), st.floats(0.05, 4), st.floats(-3, 0), st.floats(0.5, 3))
def test_projection_puts_inputs_into_the_value_range_and_moves_nothing_else(
    mean: float, std: float, low: float, high: float
) -> None:
    pixels, knowledge = Pixels(mean=mean, std=std), knowing(8, value_range=(low, high))
    unknowns = 3 * torch.randn((4, 8), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    space = pixels.start(4, knowledge, unknowns, generator(0, "start"))
    before, after = space.decode([unknowns]), space.decode(space.project([unknowns]))
    assert torch.allclose(after, before.clamp(low, high))


def rates(schedule: Schedule, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make_schedule(optimizer, schedule, steps)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_the_step_schedule_divides_by_ten_at_3_5_and_7_eighths() -> None:
    found = rates("step", 24_000)
    falls = [i for i in range(1, 24_000) if found[i] < found[i - 1]]
    assert falls == [pytest.approx(24_000 * share, rel=2e-3) for share in (3 / 8, 5 / 8, 7 / 8)]
    assert [found[0], *(found[i] for i in falls)] == [pytest.approx(10.0**-k) for k in range(4)]


def test_the_cosine_schedule_is_half_a_cosine_and_constant_is_constant() -> None:
    expected = [(1 + math.cos(math.pi * i / 50)) / 2 for i in range(50)]
    assert rates("cosine", 50) == [pytest.approx(value) for value in expected]
    assert set(rates("constant", 50)) == {1.0}


def test_warm_up_rises_then_follows_the_cosine_and_restarts_return_to_the_full_rate() -> None:
    plain, warm = rates("cosine", 1000), rates("warmup_cosine", 1000)
    assert warm[:50] == [pytest.approx(plain[i] * (i + 1) / 50) for i in range(50)]
    assert warm[50:] == [pytest.approx(value, abs=1e-9) for value in plain[50:]]
    found = rates("cosine_restarts", 1000)
    assert [i for i in range(1000) if found[i] == 1.0] == list(range(0, 1000, 100))
    assert found[:100] == [pytest.approx(value) for value in rates("cosine", 100)]


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_schedules_of_few_steps_still_work(schedule: Schedule) -> None:
    for steps in (1, 2, 3):
        assert len(rates(schedule, steps)) == steps


def test_settings_make_pytorchs_own_optimizers() -> None:
    unknowns = [torch.zeros(2, requires_grad=True)]
    adam = Adam(lr=0.3, betas=(0.5, 0.6), weight_decay=0.1).make(unknowns)
    assert isinstance(adam, torch.optim.AdamW)
    assert {k: adam.defaults[k] for k in ("lr", "betas", "weight_decay")} == {
        "lr": 0.3,
        "betas": (0.5, 0.6),
        "weight_decay": 0.1,
    }
    lbfgs = LBFGS(lr=0.5, inner=7, history=9, line_search=True).make(unknowns)
    assert isinstance(lbfgs, torch.optim.LBFGS)
    wanted = {"lr": 0.5, "max_iter": 7, "history_size": 9, "line_search_fn": "strong_wolfe", "tolerance_grad": 0.0}
    assert {k: lbfgs.defaults[k] for k in wanted} == wanted


def test_without_decay_the_decoupled_optimizer_is_plain_adam() -> None:
    """IG and others name Adam; AdamW with no decay must take the same steps."""
    paths = []
    for make in (Adam(lr=0.1).make, lambda unknowns: torch.optim.Adam(unknowns, lr=0.1)):
        x = torch.tensor([1.0, -2.0], requires_grad=True)
        optimizer = make([x])
        for _ in range(20):
            optimizer.zero_grad()
            (x - 3).pow(4).sum().backward()
            optimizer.step()
        paths.append(x.detach().clone())
    assert torch.allclose(paths[0], paths[1])
