"""Minutes: what is cut where searches take too long, by a rule, and the same again from the recorded plan."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seepage import Architecture, Batch, build, record
from seepage.attacks import ATTACKS, Attack
from seepage.audit import budget
from seepage.audit import run as audit
from seepage.audit.budget import Planner, Searching, estimated, fitting, recorded_plan, steps_of, timed, update_seconds
from seepage.audit.case import RunBudget
from seepage.audit.findings import findings
from seepage.audit.recipe.files import BUILT_IN, read_recipe
from seepage.audit.row import Outcome, Result
from seepage.base.registry import Spec
from seepage.cli.options import minutes_of
from seepage.errors import SeepageError
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.types import Transcript

TABLES: dict[str, Any] = {
    "data": {"use": "faces", "size": 8},
    "model": {"use": "fc2", "hidden": 8},
    "batch": {"size": 3},
    "attack": [{"use": "gradient_matching", "steps": 8}, {"use": "inverting_gradients", "steps": 4}],
}
MATCHED, INVERTED = ("attacks/case/gradient_matching/000000", "attacks/case/inverting_gradients/000000")


def slow(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """A machine on which the searches take so long in full."""
    monkeypatch.setattr(budget, "update_seconds", lambda _: float("inf"))
    monkeypatch.setattr(budget, "timed", lambda search: seconds.get(search.name, 0.0))


def run(out: Path, minutes: float | None = 1.0, plan: RunBudget | None = None) -> Result:
    tables = TABLES if minutes is None else {**TABLES, "minutes": minutes}
    return audit.run(tables, out=out, jobs=1, budget=plan).result


def test_where_everything_fits_nothing_changes_and_nothing_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "timed", lambda _: pytest.fail("timed"))
    free, held = run(tmp_path / "free", None), run(tmp_path / "held", 10.0)
    for name in (MATCHED, INVERTED):
        one, two = ((tmp_path / place / name).with_suffix(".safetensors") for place in ("free", "held"))
        assert one.read_bytes() == two.read_bytes()
    assert (held.budget, held.verdict) == (None, free.verdict)
    assert json.loads((tmp_path / "held/plan.json").read_text())["cut"] == []
    assert not (tmp_path / "free/plan.json").exists()


def test_searches_are_cut_in_proportion_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, gradient_matching=80.0, inverting_gradients=40.0)
    found = run(tmp_path / "run")
    rows = {row.attack: row for row in found.rows}
    assert [rows[name].cost.steps for name in rows] == [3, 1]  # a little less than half: a moment has passed
    assert "stopped after 3 of 8 steps, which would take about 1 minute" in rows["gradient_matching"].notes
    assert "Stopped at 1 minute: gradient_matching, inverting_gradients ran with fewer steps" in found.verdict
    assert {cut.attack: (cut.steps, cut.of) for cut in found.budget.cut} == {
        "gradient_matching": (3, 8), "inverting_gradients": (1, 4),
    }  # fmt: skip


def test_below_the_floor_the_dearest_is_left_out_and_is_no_search_that_found_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, gradient_matching=4800.0, inverting_gradients=20.0)
    found = run(tmp_path / "run")
    rows = {row.attack: row for row in found.rows}
    assert rows["gradient_matching"].outcome is Outcome.NOT_TRIED
    assert rows["inverting_gradients"].cost.steps == 4
    assert "about 80 minutes, which --minutes 1 does not have" in str(rows["gradient_matching"].reason)
    words = "Stopped at 1 minute: what was not tried (gradient_matching) would take about 80 minutes; --minutes"
    assert words in found.verdict
    states = {one.by: one.state for one in findings(found)}
    assert states["gradient_matching"] == "untried"


def test_the_same_recipe_keeps_to_the_recorded_plan_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, gradient_matching=80.0, inverting_gradients=40.0)
    run(tmp_path / "run")
    monkeypatch.undo()  # on a machine on which all would fit
    plan = recorded_plan(str(tmp_path / "run/recipe.toml"))
    again = run(tmp_path / "again", plan=plan)
    assert again.budget is not None
    for name in (MATCHED, INVERTED):
        one, two = ((tmp_path / place / name).with_suffix(".safetensors") for place in ("run", "again"))
        assert one.read_bytes() == two.read_bytes()
    # And one that was killed goes on by its plan.
    (tmp_path / "again/result.json").unlink()
    (tmp_path / "again" / MATCHED).with_suffix(".json").unlink()
    assert [row.cost.steps for row in run(tmp_path / "again").rows] == [row.cost.steps for row in again.rows]
    assert run(tmp_path / "other", minutes=2.0, plan=plan).budget is None, "the plan is one for other minutes"


def test_a_search_is_timed_by_its_steps_and_by_what_it_does_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(budget.time, "perf_counter", lambda: now[0])

    class Slow(Attack):
        passes = 1  # type: ignore[assignment]

        def __init__(self, steps: int = 100) -> None:
            self.steps = steps

        def run(self, seen: Any, /, *, seed: int, progress: Any) -> Any:
            now[0] += 5.0
            for step in range(self.steps):
                now[0] += 2.0
                progress.report(step + 1, self.steps, 0.0)

        __call__ = run  # type: ignore[assignment]

    class Fitted(Slow):
        def fitted(self, transcript: Any) -> Attack:
            return Slow(4)

    search = Searching("case", "slow", Slow(), 1, 0, lambda: None, Slow)  # type: ignore[arg-type, return-value]
    assert timed(search) == pytest.approx(5.0 + 100 * 2.0)
    assert now[0] == pytest.approx(5.0 + 3 * 2.0)
    assert timed(replace(search, attack=Fitted())) == pytest.approx(5.0 + 4 * 2.0)


def test_guided_matching_counts_its_steps_by_the_network() -> None:
    """On a smooth network guided matching makes one step of L-BFGS for 26 that were asked for."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Sigmoid(), nn.Linear(4, 3))
    smooth = record(model, Batch(torch.rand(1, 1, 4, 4), torch.tensor([1])))

    def asked(steps: int) -> Attack:
        return ATTACKS.build(Spec("gradient_matching", {"steps": steps}))

    assert [steps_of(asked(80).fitted(seen)) for seen in (smooth, open_seen())] == [3, 80]


def test_what_a_stage_before_took_is_no_longer_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, one=30.0)
    planner = Planner(RunBudget(minutes=1.0), tmp_path, 1, clock=lambda: 45.0, started=0.0)

    class Search(Attack):
        passes, steps = 10, 10  # type: ignore[assignment]

        def run(self, *_: Any, **__: Any) -> Any: ...

    attack = Search()
    planner.plan([Searching("case", "one", attack, 1, 0, lambda: None, lambda _: attack)])  # type: ignore[arg-type, return-value]
    assert [cut.steps for cut in planner.budget.cut] == [5]


def test_what_is_left_is_shared_out() -> None:
    assert fitting({}, 1.0) == {}
    assert fitting({"a": 1.0}, -1.0) == {"a": 0.0}
    assert fitting({"a": 0.0}, 0.0) == {"a": 1.0}
    assert fitting({"a": 8.0, "b": 40.0, "c": 8.0}, 4.0) == {"a": 0.25, "b": 0.0, "c": 0.25}


def test_an_update_is_timed_on_made_up_examples(tmp_path: Path) -> None:
    folder = audit.record_only(TABLES, out=tmp_path / "run")
    assert 0 < update_seconds(open_transcript(folder / "observed")) < 5


def test_stated_steps_are_never_cut() -> None:
    def given(minutes: float | None, *parts: str, all_attacks: bool = False, settings: tuple[str, ...] = ()) -> Any:
        return minutes_of(minutes, 10.0, all_attacks=all_attacks, parts=list(parts), settings=list(settings))

    assert given(None, "dlg:lr=1,restarts=2") == 10.0
    assert given(None, "dlg:lr=1,steps=9") is None
    assert given(None, settings=("attack.steps=9",)) is None
    assert given(None, settings=("training.steps=9",)) == 10.0
    assert given(None, all_attacks=True) is None
    assert given(3.0, all_attacks=True) == 3.0
    with pytest.raises(SeepageError, match="leave one of the two out"):
        given(3.0, "dlg:steps=9")


def test_minutes_are_of_a_whole_run_and_of_recipes_that_say_so() -> None:
    from seepage.audit.recipe.resolve import resolve_cases

    assert read_recipe(BUILT_IN / "default.toml")["minutes"] == 10
    assert not [path for path in BUILT_IN.rglob("*/*.toml") if "minutes" in read_recipe(path)]
    for wrong in (0, -1.0, float("inf")):
        with pytest.raises(SeepageError, match="above 0"):
            resolve_cases({**TABLES, "minutes": wrong})
    with pytest.raises(SeepageError, match="minutes must be a number"):
        resolve_cases({**TABLES, "minutes": "ten"})
    with pytest.raises(SeepageError, match="cannot set minutes"):
        resolve_cases({**TABLES, "case": [{"name": "x", "minutes": 3}]})


def test_what_searches_take_is_told_stage_by_stage_and_long_ones_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Search(Attack):
        passes = 100  # type: ignore[assignment]

        def __init__(self, steps: int, *, fits: bool = True) -> None:
            self.steps, self.fits = steps, fits

        def examine(self, transcript: Any) -> None:
            if not self.fits:
                raise SeepageError("not for this one")

        def run(self, *_: Any, **__: Any) -> Any: ...

    seen = open_seen()

    def of(name: str, attack: Search) -> Searching:
        return Searching("case", name, attack, 1, 0, lambda: seen, lambda _: attack)

    timed_ones: list[str] = []

    def took(search: Searching, steps: int = 3) -> float:
        timed_ones.append(search.name)
        return 20.0

    monkeypatch.setattr(budget, "timed", took)
    monkeypatch.setattr(budget, "update_seconds", lambda _: 0.1)  # so that each takes 100 s at the most
    stages = [
        [of("first", Search(100))],
        [of("second", Search(10)), of("third", Search(10)), of("no", Search(9, fits=False))],
    ]
    total, seconds = estimated(stages, jobs=2)
    assert timed_ones == ["first"], "the others have longer steps, and the same evaluations"
    assert {key: round(took, 6) for key, took in seconds.items()} == {
        "case/first": 20.0, "case/second": 20.0, "case/third": 20.0, "case/no": 0.0,
    }  # fmt: skip
    assert total == pytest.approx(20.0 + (20.0 + 20.0) / 2)
    assert estimated(stages, jobs=2, soon=1000.0) == (0.0, {})


def open_seen() -> Transcript:
    model = build(Architecture("fc2", {"hidden": 4}), (1, 4, 4), 3)
    return record(model, Batch(torch.rand(1, 1, 4, 4), torch.tensor([1])))
