"""The main job through the command line: audit, its files, its repetition, a defense, a killed run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Cli = Callable[..., Any]

SMALL = [
    "--data=digits", "--model=fc2", "--set=data.size=12", "--set=model.hidden=64", "--set=batch.size=2",
    "--set=batch.count=1", "--set=training.steps=2", "--attack=linear", "--attack=inverting_gradients",
    "--set=attack.steps=6", "--jobs=1",
]  # fmt: skip
ROW_KEYS = {
    "attack", "status", "known", "examples", "scores", "baselines", "certified", "alignment", "cost", "outcome",
}  # fmt: skip


def test_json_is_one_object_with_the_promised_keys(cli: Cli) -> None:
    found = cli("audit", *SMALL, "--json", "--out=run")
    result = found.json
    assert (result["schema"], result["run"]) == (1, "run")
    assert {row["attack"] for row in result["rows"]} == {"linear", "inverting_gradients"}
    assert all(set(row) >= ROW_KEYS for row in result["rows"])
    for name in ("recipe.toml", "env.json", "scores.jsonl", "flags.json", "report.html", "grid.png"):
        assert (Path("run") / name).stat().st_size
    scores = [json.loads(line) for line in Path("run/scores.jsonl").read_text().splitlines()]
    assert {score["schema"] for score in scores} == {1}
    assert {score["example"] for score in scores} == {0, 1}


def test_a_finished_run_is_not_rewritten_and_shown_as_it_was(cli: Cli) -> None:
    first = cli("audit", *SMALL, "--json", "--out=run").json
    before = times("run")
    again = cli("audit", *SMALL, "--json", "--out=run").json
    assert {**again, "finished_earlier": None} == {**first, "finished_earlier": None}
    shown = cli("audit", *SMALL, "--out=run", "--quiet")
    assert shown.out == first["verdict"] + "\n"
    assert times("run") == before


def times(folder: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*") if path.is_file()}


def test_the_recipe_file_repeats_the_run(cli: Cli) -> None:
    first = cli("audit", *SMALL, "--json", "--out=run").json
    again = cli("audit", "run/recipe.toml", "--json", "--out=again", "--jobs=1").json
    assert without_times(again) == without_times(first)


def without_times(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "cost"} for row in result["rows"]]


def test_a_recipe_is_validated_and_a_lost_report_written_again(cli: Cli, run: Path) -> None:
    found = cli("audit", "default", "--dry-run")
    assert found.out.startswith("ok: ")
    cli("report", run)
    assert (run / "report.html").stat().st_size


def test_list_names_everything(cli: Cli) -> None:
    found = cli("list", "--json").json
    assert set(found) == {
        "attacks",
        "defenses",
        "clients",
        "models",
        "data",
        "membership tests",
        "metrics",
        "partitions",
        "recipes",
    }
    assert all({"name", "needs", "paper", "cost"} <= set(entry) for entry in found["attacks"])
    about = {entry["name"]: entry["about"] for entry in found["recipes"]}
    assert "seepage audit" in about["default"]
    assert all(about.values())
    assert "inverting_gradients" in cli("list").out


LINEAR = ("--attack=linear", "--json", "--jobs=1")


def test_a_defense_by_name_is_that_of_a_recipe(cli: Cli) -> None:
    chosen = ("--defense=sparsify", "--defense=gaussian_noise", "--set=defense.sigma=1.0", "--set=defense.keep=0.5")
    named = cli("audit", "tiny.toml", *chosen, *LINEAR, "--no-undefended", "--out=named", code=2).json
    bare = cli("audit", "tiny.toml", *LINEAR, "--out=bare").json
    assert named["rows"][0]["scores"]["psnr"]["mean"] < 20 < bare["rows"][0]["scores"]["psnr"]["mean"]
    assert named["cases"][0]["defense"].startswith("Compose(parts=(Sparsify(keep=0.5), GaussianNoise(sigma=1.0")
    written = Path("tiny.toml").read_text() + '[[defense]]\nuse = "sparsify"\nkeep = 0.5\n'
    Path("defended.toml").write_text(written + '[[defense]]\nuse = "gaussian_noise"\nsigma = 1.0\n')
    listed = cli("audit", "defended.toml", *LINEAR, "--out=listed", code=2).json
    assert without_times(listed) == without_times(named)
    # One that the recipe lists keeps its options there.
    alone = cli("audit", "defended.toml", "--defense=sparsify", *LINEAR, "--out=alone").json
    assert alone["cases"][0]["defense"] == "Sparsify(keep=0.5)"


def test_recording_takes_a_defense_too(cli: Cli) -> None:
    cli("record", "tiny.toml", "--defense=gaussian_noise", "--set=defense.sigma=1.0", "--out=rec")
    assert "GaussianNoise(sigma=1.0" in Path("rec/private/case.json").read_text()


def test_defenses_are_compared_in_one_run(cli: Cli) -> None:
    """The README's recipe."""
    grid = 'grid={defense=[[], [{use="gaussian_noise", sigma=1.0}]]}'
    result = cli("audit", "tiny.toml", *LINEAR, "--set", grid).json
    assert [row["outcome"] for row in result["rows"]] == ["exact", "nothing_recovered"]
    assert [case["defense"] is None for case in result["cases"]] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--defense", "sparsfy"], "did you mean 'sparsify'"),
        (["--defense", "gaussian_noise"], "'sigma'"),
        (["--defense", "sparsify", "--set", "defense.keep=2"], "(0, 1]"),
    ],
)
def test_a_defense_that_cannot_be_made_is_refused(
    arguments: list[str], words: str, refused: Callable[..., str]
) -> None:
    assert words in refused("audit", "tiny.toml", *arguments)


@pytest.mark.full
def test_a_killed_run_goes_on_to_the_same_numbers(cli: Cli, home: Path) -> None:
    arguments = [*SMALL[:-1], "--jobs=2", "--set=attack.steps=400", "--all", "--json"]
    program = [sys.executable, "-m", "seepage.cli", "audit", *arguments, "--out=killed"]
    # As many threads as this process has: sums over two of them round differently, in the training already.
    alike = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    child = subprocess.Popen(program, cwd=home, stdout=subprocess.DEVNULL, start_new_session=True, env=alike)
    wait_for(lambda: any((home / "killed").glob("attacks/*/*/*-checkpoint.json")), child)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert not (home / "killed/result.json").exists()
    resumed = cli("audit", *arguments, "--out=killed").json
    whole = cli("audit", *arguments, "--out=whole").json
    assert without_times(resumed) == without_times(whole)
    assert not list((home / "killed").rglob("*-checkpoint*"))


def workers_of(process: int) -> list[int]:
    """The worker processes that another process has started; not the tracker of their semaphores."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process and b"spawn_main" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for the workers in /proc")
def test_whoever_of_a_run_is_killed_it_goes_on_to_the_same_numbers(cli: Cli, home: Path) -> None:
    arguments = [*SMALL[:-1], "--jobs=2", "--set=attack.steps=80", "--set=batch.count=3", "--all", "--json"]
    program = [sys.executable, "-m", "seepage.cli", "audit", *arguments, "--out=killed"]
    alike = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}

    def started() -> "subprocess.Popen[bytes]":
        child = subprocess.Popen(program, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=alike)
        wait_for(lambda: bool(workers_of(child.pid)), child)
        return child

    child = started()
    # Two processes are kept apart: the second one says so and touches nothing.
    second = cli("audit", *arguments, "--out=killed", code=2)
    assert not second.out
    assert "another process is writing to killed" in second.err
    for worker in workers_of(child.pid):
        os.kill(worker, signal.SIGKILL)
    _, said = child.communicate(timeout=120)
    # The worker may just have been done.
    assert child.returncode == 0 or (child.returncode == 2 and b"a worker died" in said and b"Traceback" not in said)
    if child.returncode == 2:
        child = started()
        time.sleep(2)  # until they are at work
        os.kill(child.pid, signal.SIGKILL)  # alone: its workers live on for a moment
        child.communicate()
    resumed = cli("audit", *arguments, "--out=killed").json
    whole = cli("audit", *arguments, "--out=whole").json
    assert without_times(resumed) == without_times(whole)
    left = {str(path.relative_to("killed")) for path in Path("killed").rglob("*")}
    assert left == {str(path.relative_to("whole")) for path in Path("whole").rglob("*")}


def test_a_run_killed_in_its_first_write_can_be_started_again(cli: Cli, home: Path) -> None:
    (home / "run").mkdir()
    (home / "run" / ".writing-0123456789abcdef").write_text("half of a recipe")
    cli("audit", *SMALL, "--json", "--out=run")
    assert not list((home / "run").rglob(".*"))
    # Of a finished run only what is too old for a page that is being written.
    for name, age in (("old", 7200), ("new", 0)):
        (home / "run" / f".writing-{name}").write_text("half of a page")
        os.utime(home / "run" / f".writing-{name}", (time.time() - age,) * 2)
    assert cli("audit", *SMALL, "--json", "--out=run").json["finished_earlier"] is True
    assert [path.name for path in (home / "run").rglob(".*")] == [".writing-new"]


def wait_for(condition: Callable[[], bool], child: "subprocess.Popen[bytes]") -> None:
    """Wait until something is there, as long as the child runs and for at most two minutes."""
    ends = time.monotonic() + 120
    while not condition():
        assert child.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < ends
        time.sleep(0.02)
