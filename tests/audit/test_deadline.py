"""Minutes: what they stop, what is kept of it, how it goes on, and the same again without a clock."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refusal
from torch import nn

from seepage import Architecture, Batch, build, record
from seepage.attacks import ATTACKS
from seepage.audit import attack as attacking
from seepage.audit import folder
from seepage.audit import run as audit
from seepage.audit.attack import NO_GUESS, RunClock, Task
from seepage.audit.attempt import open_attempt, stopped_after
from seepage.audit.gate import met, parse_condition
from seepage.audit.row import Outcome, Result
from seepage.base.clock import Limit, limited
from seepage.base.registry import Spec
from seepage.cli.options import AttackerOptions
from seepage.errors import SeepageError

TABLES: dict[str, Any] = {
    "data": {"use": "faces", "size": 8},
    "model": {"use": "fc2", "hidden": 8},
    "batch": {"size": 3},
    "attack": [{"use": "gradient_matching", "steps": 60}, {"use": "inverting_gradients", "steps": 40}],
}
MATCHED, INVERTED = "attacks/case/gradient_matching/000000", "attacks/case/inverting_gradients/000000"


def test_steps_that_are_stated_have_no_limit_by_default() -> None:
    def given(minutes: float | None, *parts: str, all_attacks: bool = False, settings: tuple[str, ...] = ()) -> Any:
        return AttackerOptions(attack=list(parts), all_attacks=all_attacks, minutes=minutes).time(10.0, [*settings])

    assert given(None, "dlg:lr=1,restarts=2") == 10.0
    assert given(None, "dlg:lr=1,steps=9") is None
    assert given(None, settings=("attack.steps=9",)) is None
    assert given(None, settings=("training.steps=9",)) == 10.0
    assert given(None, all_attacks=True) is None
    assert given(3.0, "dlg:steps=9", all_attacks=True) == 3.0


def run(out: Path, minutes: float | None = 10.0, repeats: Path | None = None) -> Result:
    return audit.run(TABLES, out=out, jobs=1, minutes=minutes, repeats=repeats).result


@pytest.fixture
def stopped_at(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Where the clock stops the next attacks, one after the other, in steps; None: it does not."""
    steps: list[int | None] = []

    @contextmanager
    def by_steps(seconds: float = math.inf, again: int | None = None) -> Iterator[Limit]:
        wanted = steps.pop(0) if steps else again
        with limited(math.inf, wanted) as limit:
            yield limit

    monkeypatch.setattr(attacking, "limited", by_steps)
    # One turn for each: what is stopped is not taken up again by the same command.
    monkeypatch.setattr(attacking, "LEAST_SECONDS", math.inf)
    return steps


def bits(folder: Path, name: str) -> bytes:
    return (folder / name).with_suffix(".safetensors").read_bytes()


def test_a_search_that_is_stopped_has_its_best_guess_and_says_so(tmp_path: Path, stopped_at: list[int | None]) -> None:
    stopped_at += [7, None]
    found = run(tmp_path / "run")
    rows = {row.attack: row for row in found.rows}
    assert rows["gradient_matching"].status == "interrupted"
    assert rows["inverting_gradients"].status != "interrupted"
    assert rows["gradient_matching"].cost.steps == 7
    assert rows["gradient_matching"].mean("psnr") is not None
    assert stopped_after(tmp_path / "run" / MATCHED) == 7
    assert "gradient_matching was still improving" in found.verdict
    (flag,) = [
        one for one in json.loads((tmp_path / "run/flags.json").read_text())["flags"] if one["name"] == "stopped"
    ]
    assert "after 7 steps" in str(flag)


@pytest.mark.slow
def test_the_same_command_goes_on_to_the_bits_of_a_run_without_a_limit(
    tmp_path: Path, stopped_at: list[int | None]
) -> None:
    whole = run(tmp_path / "whole", None)
    stopped_at += [7, 3]
    first = run(tmp_path / "run")
    assert {row.status for row in first.rows} == {"interrupted"}
    assert list((tmp_path / "run/attacks").rglob("*-checkpoint.json")), "where it goes on from"
    second = run(tmp_path / "run")
    for name in (MATCHED, INVERTED):
        assert bits(tmp_path / "run", name) == bits(tmp_path / "whole", name)
    assert [row.cost.steps for row in second.rows] == [60, 40]
    assert second.verdict == whole.verdict
    assert not list((tmp_path / "run/attacks").rglob("*-checkpoint.json"))
    before = (tmp_path / "run/result.json").stat().st_mtime_ns
    run(tmp_path / "run")
    assert (tmp_path / "run/result.json").stat().st_mtime_ns == before, "a run that is done is not touched"


def test_what_earlier_parts_of_a_run_took_is_added(
    tmp_path: Path, stopped_at: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempted, found = attacking.tried, folder.environment

    def timed(call: Any) -> Any:
        return *attempted(call)[:4], (5.0, 2.0)

    monkeypatch.setattr(attacking, "tried", timed)
    monkeypatch.setattr("seepage.audit.folder.environment", lambda *given: {**found(*given), "seconds": 20.0})
    stopped_at += [7, 3]
    run(tmp_path / "run")
    stopped_at += [None, 10]
    rows = run(tmp_path / "run").rows
    assert [(row.cost.seconds, row.cost.cpu_seconds) for row in rows] == [(10.0, 4.0), (10.0, 4.0)]
    env = json.loads((tmp_path / "run/env.json").read_text())
    assert (env["seconds"], env.get("resumed")) == (40.0, None)


def test_without_minutes_a_stopped_run_is_shown_as_it_is(tmp_path: Path, stopped_at: list[int | None]) -> None:
    stopped_at += [7, 3]
    first = run(tmp_path / "run")
    assert run(tmp_path / "run", None).verdict == first.verdict


@pytest.mark.slow
def test_a_run_repeats_what_a_clock_stopped_with_the_same_bits(tmp_path: Path, stopped_at: list[int | None]) -> None:
    stopped_at += [7, NO_GUESS]
    first = run(tmp_path / "run")
    stopped_at += [7, 3]
    run(tmp_path / "other")
    again = run(tmp_path / "again", repeats=tmp_path / "other")
    for name in (MATCHED, INVERTED):
        assert bits(tmp_path / "again", name) == bits(tmp_path / "other", name)
    assert [row.cost.steps for row in again.rows] == [7, 3]
    assert run(tmp_path / "again").verdict == again.verdict, "it is done: it has the steps that it was to repeat"
    # What had no guess has none again.
    third = run(tmp_path / "third", repeats=tmp_path / "run")
    assert [row.status for row in third.rows] == [row.status for row in first.rows]


def test_what_has_no_guess_yet_is_not_tried_and_no_gate_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tmp_path / "run", minutes=1e-6)
    assert {row.outcome for row in found.rows} == {Outcome.NOT_TRIED}
    assert stopped_after(tmp_path / "run" / MATCHED) == NO_GUESS
    assert open_attempt(tmp_path / "run" / MATCHED).reconstruction is None
    with pytest.raises(SeepageError, match="--minutes"):
        met(found, parse_condition("psnr>20"))


def test_searches_share_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(attacking.time, "monotonic", lambda: now[0])

    def task(use: str) -> Task:
        made = object.__new__(Task)
        object.__setattr__(made, "part", Spec(use))
        return made

    clock, search, form = RunClock(100.0, jobs=2, waiting=4), task("gradient_matching"), task("linear")
    assert clock.share(form) == 100, "a closed form takes what it takes"
    assert (clock.share(search), clock.share(search)) == (50, 50), "two at a time, four in all"
    now[0] = 10.0
    clock.end(search)
    assert clock.share(search) == 90 * 2 / 3, "what one has left over is for the others"
    now[0] = 50.0
    clock.end(search)
    assert clock.share(search) == 50 * 2 / 2
    assert RunClock(math.inf, jobs=2, waiting=4).share(search) == math.inf


def test_what_was_stopped_is_taken_up_again_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    carry_out = Task.run

    def counted(self: Task, threads: int) -> None:
        turns.append(self.name)
        carry_out(self, threads)

    stops = [3, 2, None, None]

    @contextmanager
    def by_steps(seconds: float = math.inf, again: int | None = None) -> Iterator[Limit]:
        assert again is None
        with limited(math.inf, stops.pop(0)) as limit:
            yield limit

    monkeypatch.setattr(Task, "run", counted)
    monkeypatch.setattr(attacking, "limited", by_steps)
    found = run(tmp_path / "run")
    assert turns == ["gradient_matching", "inverting_gradients"] * 2
    assert [row.cost.steps for row in found.rows] == [60, 40]


@pytest.mark.slow
def test_minutes_end_in_time_and_the_folder_says_how_many_steps(tmp_path: Path) -> None:
    tables = {**TABLES, "attack": [{"use": "inverting_gradients", "steps": 1_000_000}]}
    began = time.monotonic()
    found = audit.run(tables, out=tmp_path / "run", jobs=1, minutes=0.06).result
    assert time.monotonic() - began < 60, "seconds, and what a slow machine takes for the rest"
    (row,) = found.rows
    assert row.status == "interrupted"
    assert row.cost.steps
    assert row.mean("psnr") is not None
    again = audit.run(tables, out=tmp_path / "again", jobs=1, repeats=tmp_path / "run").result
    assert again.rows[0].cost.steps == row.cost.steps
    assert bits(tmp_path / "again", INVERTED) == bits(tmp_path / "run", INVERTED)


def test_progress_names_step_objective_and_the_time_left(tmp_path: Path) -> None:
    seen: list[Any] = []
    audit.run(TABLES, out=tmp_path / "run", jobs=1, minutes=10.0, show=lambda done, total, doing: seen.append(doing))
    told = [doing for doing in seen if "step" in doing.what]
    assert any("of at most" in doing.what and "objective" in doing.what for doing in told)
    assert all(doing.left is not None and doing.left < 600 for doing in told)


def head_alone() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 4))
    nn.init.zeros_(model[3].weight)
    return model


def test_where_the_head_alone_has_a_gradient_no_search_begins() -> None:
    model, draw = head_alone(), torch.Generator().manual_seed(0)
    batch = Batch(torch.rand(1, 1, 3, 4, generator=draw), torch.tensor([2]))
    seen = record(model, batch)
    for use in ("gradient_matching", "idlg", "fedleak"):
        with refusal("zero_gradient", 3):
            ATTACKS.build(Spec(use)).check(seen)
    nn.init.normal_(model[3].weight, generator=draw)
    ATTACKS.build(Spec("gradient_matching")).check(record(model, batch))


def test_a_search_by_lbfgs_rests_where_nothing_moves() -> None:
    """At the kinks of a ReLU network L-BFGS soon stands still; three hundred steps of it would change nothing."""
    model = build(Architecture("convnet"), (1, 8, 8), 10, seed=0)
    draw = torch.Generator().manual_seed(0)
    seen = record(model, Batch(torch.rand(1, 1, 8, 8, generator=draw), torch.tensor([2])))
    found = ATTACKS.build(Spec("idlg"))(seen, seed=0)
    assert found.status in ("ok", "diverged")
    assert found.cost["steps"] < 300
