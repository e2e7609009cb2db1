"""A deadline: where it stops what, in which state, and how the same is had again without a clock."""

import math
import signal
import time

import pytest
import torch

from seepage.base.checkpoint import Resumable, run_steps
from seepage.base.clock import OutOfTime, between_steps, check_minutes, current_limit, deadline, limited, look
from seepage.errors import SeepageError


class Walk(Resumable):
    """A search of long steps, each of two halves; in the middle it looks at the clock."""

    kept = ("place", "half", "trace")

    def __init__(self, pause: float) -> None:
        self.place, self.half, self.pause = torch.zeros(1), 0, pause
        self.trace: list[float] = []

    def step(self, _: int) -> float:
        self.place += 1
        time.sleep(self.pause)
        look()
        self.half += 1
        self.trace.append(float(self.place))
        return float(self.place)


def test_a_long_step_that_is_left_in_the_middle_leaves_no_trace() -> None:
    walk = Walk(pause=0.3)
    with limited(seconds=0.75) as limit:
        made = run_steps(walk, 0, 10, walk.step)
    assert made == (2, True)
    assert (float(walk.place), walk.half, walk.trace) == (2.0, 2, [1.0, 2.0]), "the third step was undone"
    assert (limit.over, limit.steps) == (True, 2)


def test_short_steps_are_stopped_in_between() -> None:
    walk = Walk(pause=0.01)
    with limited(seconds=0.2) as limit:
        step, stopped = run_steps(walk, 0, 10_000, walk.step)
    assert stopped
    assert 2 <= step < 100
    assert walk.half == len(walk.trace) == step == limit.steps


def test_the_same_steps_are_made_again_without_a_clock() -> None:
    first, again = Walk(pause=0.02), Walk(pause=0.0)
    with limited(seconds=0.3) as limit:
        step, _ = run_steps(first, 0, 1_000, first.step)
    with limited(seconds=0.0, steps=limit.steps):
        assert run_steps(again, 0, 1_000, again.step) == (step, True)
    assert again.trace == first.trace


def test_steps_of_a_search_inside_of_a_step_count_too() -> None:
    outer, inner = Walk(pause=0.0), Walk(pause=0.0)

    def advance(step: int) -> float:
        if run_steps(inner, 0, 3, inner.step)[1]:
            raise KeyboardInterrupt  # as an attack does whose first guess is made by another
        return outer.step(step)

    with limited(steps=6) as limit:  # of the outer one, and three inside: 4 a turn
        made = run_steps(outer, 0, 5, advance)
    assert made == (1, True)
    assert outer.trace == [1.0]
    assert limit.steps == 6


def test_an_answer_is_made_in_peace() -> None:
    walk = Walk(pause=0.0)
    with limited(seconds=0.1):
        run_steps(walk, 0, 2, walk.step)
        time.sleep(0.15)
        look()  # after the search's end the result is put together
        assert run_steps(walk, 0, 2, walk.step) == (0, True)  # another search does not begin


def test_work_that_looks_at_no_clock_is_stopped_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seepage.base.clock.GRACE", 0.05)
    began = time.monotonic()
    with pytest.raises(OutOfTime), limited(seconds=0.1):  # noqa: PT012
        while True:
            time.sleep(0.01)
    assert time.monotonic() - began < 5
    assert current_limit().until == math.inf


def test_somebody_elses_alarm_goes_on() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    waited, _ = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with limited(seconds=50):
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 40
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.3
        time.sleep(0.4)
        assert heard == [1]
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, waited)


def test_a_command_keeps_time_for_its_pages() -> None:
    assert deadline(None) == math.inf
    assert deadline(2.0, began=100.0) == pytest.approx(100 + 120 - 6)
    assert deadline(100.0, began=0.0) == pytest.approx(6000 - 20)
    with pytest.raises(SeepageError, match="--minutes"):
        check_minutes(0.0)


@pytest.mark.parametrize("seconds", [math.inf, 100.0])
def test_without_an_end_nothing_is_stopped(seconds: float) -> None:
    with limited(seconds=seconds) as limit:
        between_steps()
        look()
    assert (limit.over, limit.steps) == (False, 1)
