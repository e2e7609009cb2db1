"""`seepage reproduce --hours`: what is not measured yet, the cheapest first, and nothing lost when time is up."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli

from seepage.papers import find_item, plan
from seepage.papers.budget import CORES_PER_GPU, open_parts
from seepage.papers.run import run_job

RECIPE = """
name = "t"
[data]
use = "digits"
size = 8
[model]
use = "fc2"
hidden = 8
[training]
steps = 3
[batch]
size = 8
[[attack]]
use = "inverting_gradients"
steps = 40
[[attack]]
use = "linear"
[[case]]
name = "one"
batch = { size = 1 }
[expect]
paper = "cpa"
item = "Table 7"
title = "Two attacks"
setting = "as nowhere"
columns = ["8", "1"]
needs = { minutes = 2, gpu = true }
[[expect.rows]]
name = "matching"
attack = "inverting_gradients"
cell = ["cell", "one"]
paper = [10.0, 11.0]
[[expect.rows]]
name = "closed form"
attack = "linear"
cell = ["cell", "one"]
[[expect.rows]]
name = "accuracy"
metric = "cell.accuracy"
cell = ["cell", "one"]
[small]
needs = { minutes = 1 }
"""


@pytest.fixture(autouse=True)
def recipes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "recipes" / "cpa").mkdir(parents=True)
    (home / "recipes" / "cpa" / "item.toml").write_text(RECIPE)
    monkeypatch.setattr("seepage.recipe.files.BUILT_IN", home / "recipes")


def records(folder: str) -> dict[tuple[str, int], dict[str, Any]]:
    lines = (Path(folder) / "cpa-table-7.jsonl").read_text().splitlines()
    return {(line["row"], line["column"]): line for line in map(json.loads, lines)}


def values(folder: str) -> dict[tuple[str, int], Any]:
    return {key: (record["value"], record["interval"], record["seeds"]) for key, record in records(folder).items()}


def test_parts_give_the_numbers_of_the_whole(cli: Cli) -> None:
    found = cli("reproduce", "cpa/table-7", "--hours=1", "--results=parts", "--out=a", "--json")
    assert found.code == 0, found.err
    assert found.json["left"] == []
    cli("reproduce", "cpa/table-7", "--jobs=1", "--results=whole", "--out=b", "--quiet")
    assert values("parts") == values("whole")
    assert all(record["made"]["peak_mb"] > 100 for record in found.json["measured"])
    # Measured once, nothing is measured again; and the report of the whole run is there.
    assert list(Path("a").glob("*/result.json"))
    again = cli("reproduce", "cpa/table-7", "--hours=1", "--results=parts", "--out=a")
    assert "measured" not in again.out
    assert "nothing is left to measure" in again.out


def test_the_order_is_by_seed_and_then_by_cost(home: Path) -> None:
    jobs, _ = plan([find_item("cpa/table-7")], "small", {}, [1, 0])
    parts = open_parts(jobs, "small", home / "runs", home / "results")
    order = [(part.job.seed, part.attack, part.cell) for part in parts]
    assert order[:4] == [
        (0, "linear", "one"), (0, "linear", "cell"), (0, "inverting_gradients", "one"),
        (0, "inverting_gradients", "cell"),
    ]  # fmt: skip
    assert [seed for seed, _, _ in order] == [0] * 4 + [1] * 4
    # 40 steps times 8 and 1 examples, and one step times 8 and 1: the recipe's minute is shared in these parts.
    assert parts[3].minutes == pytest.approx(40 * 8 / (41 * 9))
    on_a_core, _ = plan([find_item("cpa/table-7")], "paper", {}, [0])
    assert sum(part.minutes for part in open_parts(on_a_core, "paper", home, home)) == pytest.approx(2 * CORES_PER_GPU)


@pytest.mark.slow
def test_an_end_in_the_middle_loses_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the time is up, the numbers are those of an undisturbed run."""
    cli("reproduce", "cpa/table-7", "--jobs=1", "--results=whole", "--out=b", "--quiet")
    slow_down(monkeypatch, 0.05)
    begun = 0.0
    for _ in range(40):
        found = cli("reproduce", "cpa/table-7", "--hours=0.0005", "--results=parts", "--out=a", "--json")
        assert found.code == 0, found.err
        begun = max([begun, *(part["begun"] for part in found.json["left"])])
        if not found.json["left"]:
            break
    assert begun > 0.1, "no call ended in the middle of a part"
    assert values("parts") == values("whole")


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Every report of an attack takes so long."""
    from seepage.audit.attempt import FolderProgress

    report = FolderProgress.report

    def slow(self: FolderProgress, done: int, total: int, objective: float) -> None:
        time.sleep(seconds)
        report(self, done, total, objective)

    monkeypatch.setattr(FolderProgress, "report", slow)
    monkeypatch.setattr(FolderProgress, "save", _save_each(FolderProgress.save))


def _save_each(save: Any) -> Any:
    def saved(self: Any, checkpoint: Any) -> None:
        self._saved_at.clear()  # at every report, so that a short time is enough to get on
        save(self, checkpoint)

    return saved


@pytest.mark.slow
def test_a_seed_measured_later_joins_the_others(cli: Cli) -> None:
    for seed in (0, 2, 1):
        cli("reproduce", "cpa/table-7", "--hours=1", f"--seed={seed}", "--results=parts", "--quiet")
    cli("reproduce", "cpa/table-7", "--jobs=1", "--seeds=3", "--results=whole", "--out=b", "--quiet")
    assert values("parts") == values("whole")
    joined = records("parts")["matching", 0]
    numbers = list(joined["seeds"].values())
    assert list(joined["seeds"]) == ["0", "1", "2"]
    assert joined["value"] == pytest.approx(sum(numbers) / 3)
    assert joined["interval"] == [min(numbers), max(numbers)]
    assert joined["command"] == "seepage reproduce cpa/table-7 --size small --seeds 3"


def test_a_record_of_another_setting_is_replaced(cli: Cli, home: Path) -> None:
    cli("reproduce", "cpa/table-7", "--hours=1", "--results=parts", "--quiet")
    recipe = home / "recipes" / "cpa" / "item.toml"
    recipe.write_text(RECIPE.replace("steps = 40", "steps = 20"))
    cli("reproduce", "cpa/table-7", "--hours=1", "--seed=1", "--results=parts", "--quiet")
    assert list(records("parts")["matching", 0]["seeds"]) == ["1"], "20 steps are no second seed of 40"
    assert list(records("parts")["closed form", 0]["seeds"]) == ["0", "1"]


def test_what_took_longer_is_expected_to_take_longer(home: Path) -> None:
    jobs, _ = plan([find_item("cpa/table-7")], "small", {}, [0, 1])
    before = open_parts(jobs, "small", home / "runs", home / "results")
    records_of_seed = run_job(jobs[0], "small", out=home / "runs", jobs=1)
    slow = [r.model_copy(update={"facts": {**r.facts, "cpu_seconds": 6e4}}) for r in records_of_seed]
    from seepage.papers.records import keep_records

    keep_records(home / "results", "cpa/table-7", slow)
    after = open_parts(jobs, "small", home / "runs", home / "results")
    assert {part.job.seed for part in after} == {1}
    assert sum(part.minutes for part in after) > 100 * sum(part.minutes for part in before if part.job.seed == 1)


def test_a_part_that_fails_stops_no_other(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from seepage.errors import SeepageError
    from seepage.papers import run

    real = run.run_part

    def failing(job: Any, size: Any, cell: str, attack: str, **more: Any) -> Any:
        if attack == "linear":
            raise SeepageError("the disk is full; free some space")
        return real(job, size, cell, attack, **more)

    monkeypatch.setattr("seepage.papers.budget.run_part", failing)
    found = cli("reproduce", "cpa/table-7", "--hours=1")
    assert found.code == 2
    assert "2 parts failed: cpa/table-7, linear on" in found.err
    assert "the disk is full" in found.err
    assert "nothing is left" not in found.out
    assert {row for row, _ in records("results/reproduce")} == {"matching", "accuracy"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hours=0"], "a number of hours over 0"),
        (["--hours=nan"], "a number of hours over 0"),
        (["--hours=1", "--jobs=2"], "give --cores N in place of --jobs"),
    ],
)
def test_mistakes_are_one_sentence(refused: Any, arguments: list[str], words: str) -> None:
    assert words in refused("reproduce", "cpa/table-7", *arguments)


def test_what_to_measure_must_be_named(refused: Any) -> None:
    assert "name tables and figures, a paper, or all" in refused("reproduce", "--hours=1")


def test_more_memory_than_there_is_is_said(cli: Cli, home: Path) -> None:
    recipe = home / "recipes" / "cpa" / "item.toml"
    recipe.write_text(RECIPE.replace("needs = { minutes = 1 }", "needs = { minutes = 1, gib = 1e6 }"))
    found = cli("reproduce", "cpa/table-7", "--hours=1")
    assert "left out, as this machine has too little memory for it: cpa/table-7" in found.out
