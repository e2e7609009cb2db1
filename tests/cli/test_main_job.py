"""The main job through the command line: audit, attack without the truth, score, gate, resume."""

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

from seepage import cli

SMALL = [
    "--data=digits", "--model=fc2", "--set=data.size=12", "--set=model.hidden=64", "--set=batch.size=2",
    "--set=batch.count=1", "--set=training.steps=2", "--attack=linear", "--attack=inverting_gradients",
    "--set=attack.steps=6", "--jobs=1",
]  # fmt: skip
ROW_KEYS = {
    "attack", "status", "told", "examples", "recovered", "psnr", "psnr_low", "psnr_high", "ssim", "gain_db",
    "alignment", "seconds", "exact",
}  # fmt: skip

Seepage = Callable[..., tuple[int, str, str]]


@pytest.fixture
def seepage(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Seepage:
    """Run the command line in this process, in an empty folder: `(exit code, stdout, stderr)`."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["seepage", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def no_constants(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


def parse(text: str) -> dict[str, Any]:
    """One JSON object and nothing else."""
    found = json.loads(text, parse_constant=no_constants)
    assert isinstance(found, dict)
    return found


def test_json_is_one_object_with_the_promised_keys(seepage: Seepage) -> None:
    code, out, _ = seepage("audit", *SMALL, "--json", "--out=run")
    result = parse(out)
    assert code == 0
    assert result["schema"] == 1
    assert result["run"] == "run"
    assert {row["attack"] for row in result["rows"]} == {"linear", "inverting_gradients"}
    assert all(set(row) >= ROW_KEYS for row in result["rows"])
    for name in ("recipe.toml", "env.json", "scores.jsonl", "flags.json", "report.html", "grid.png"):
        assert (Path("run") / name).stat().st_size
    scores = [json.loads(line) for line in Path("run/scores.jsonl").read_text().splitlines()]
    assert {score["schema"] for score in scores} == {1}
    assert {score["example"] for score in scores} == {0, 1}


def test_the_table_shows_baselines_and_the_quiet_one_only_the_verdict(seepage: Seepage) -> None:
    _, out, _ = seepage("audit", *SMALL, "--out=run")
    assert "mean color" in out
    assert "linear" in out
    assert "report.html" in out
    code, out, _ = seepage("audit", *SMALL, "--out=run", "--quiet")
    assert code == 0
    assert len(out.strip().splitlines()) == 1


def test_a_finished_run_is_not_rewritten(seepage: Seepage) -> None:
    first = parse(seepage("audit", *SMALL, "--json", "--out=run")[1])
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*") if path.is_file()}
    again = parse(seepage("audit", *SMALL, "--json", "--out=run")[1])
    assert {**again, "finished_earlier": None} == {**first, "finished_earlier": None}
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*") if path.is_file()} == before


def test_the_recipe_file_repeats_the_run(seepage: Seepage) -> None:
    first = parse(seepage("audit", *SMALL, "--json", "--out=run")[1])
    again = parse(seepage("audit", "run/recipe.toml", "--json", "--out=again", "--jobs=1")[1])
    assert without_times(again) == without_times(first)


def without_times(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in ("seconds", "cpu_seconds")} for row in result["rows"]]


@pytest.mark.parametrize(("condition", "code"), [("psnr>5", 1), ("psnr>1000", 0), ("recovered >= 0", 1)])
def test_the_gate(seepage: Seepage, condition: str, code: int) -> None:
    seepage("audit", *SMALL, "--quiet", "--out=run")
    assert seepage("audit", *SMALL, "--quiet", "--out=run", "--fail-if", condition)[0] == code


def test_attack_without_truth_then_score_gives_the_audits_numbers(seepage: Seepage) -> None:
    audit = parse(seepage("audit", *SMALL, "--json", "--out=run")[1])
    code, out, _ = seepage("attack", "run/observed", "--use=linear", "--json", "--out=blind", "--jobs=1")
    blind = parse(out)
    assert code == 0
    assert blind["verdict_level"] == "unscored"
    assert blind["rows"][0]["psnr"] is None
    assert (Path("blind") / "report.html").exists()
    scored = parse(seepage("score", "blind", "--truth=run/private", "--json")[1])
    wanted = next(row for row in audit["rows"] if row["attack"] == "linear")
    assert scored["rows"][0]["psnr"] == wanted["psnr"]


def test_record_validate_and_report(seepage: Seepage) -> None:
    assert seepage("record", *[a for a in SMALL if not a.startswith(("--attack", "--jobs"))], "--out=rec")[0] == 0
    code, out, _ = seepage("validate", "rec/observed")
    assert (code, out.startswith("ok: ")) == (0, True)
    assert not Path("rec/result.json").exists()
    assert seepage("validate", "default")[0] == 0
    seepage("audit", *SMALL, "--quiet", "--out=run")
    Path("run/report.html").unlink()
    assert seepage("report", "run")[0] == 0
    assert Path("run/report.html").exists()


def test_list_names_everything(seepage: Seepage) -> None:
    found = parse(seepage("list", "--json")[1])
    assert set(found) == {"attacks", "defenses", "clients", "models", "data", "metrics", "recipes"}
    assert all({"name", "needs", "paper", "cost"} <= set(entry) for entry in found["attacks"])
    assert {"name": "default"} in found["recipes"]
    assert "inverting_gradients" in seepage("list")[1]


def test_a_defense_reaches_the_update(seepage: Seepage) -> None:
    Path("noisy.toml").write_text(
        'attack = [{use = "linear"}]\ndefense = [{use = "gaussian_noise", sigma = 1.0}]\n'
        'data = {use = "digits"}\nbatch = {size = 1, count = 2}\n'
    )
    rows = parse(seepage("audit", "noisy.toml", "--json", "--out=noisy", "--jobs=1")[1])["rows"]
    assert rows[0]["psnr"] < 20
    assert "GaussianNoise(sigma=1.0" in json.dumps(json.loads(Path("noisy/result.json").read_text())["cells"])


MISTAKES = [
    (["audit", "--model", "fc3"], "did you mean 'fc2'"),
    (["audit", "--data", "albun"], "album"),
    (["audit", "--attack", "dgl"], "did you mean 'dlg'"),
    (["audit", "--set", "batch.size"], "KEY=VALUE"),
    (["audit", "--set", "attack.nothing=1"], "no attack of this recipe takes"),
    (["audit", "--set", "batch.size=0"], "at least 1"),
    (["audit", "--fail-if", "psnr=20"], "psnr>20"),
    (["audit", "--fail-if", "psrn>20"], "did you mean 'psnr'"),
    (["audit", "--device", "tpu"], "--device cpu"),
    (["audit", "no.toml"], "no.toml"),
    (["audit", "defalt"], "did you mean 'default'"),
    (["audit", "--data", "nowhere/"], "nowhere"),
    (["audit", "--model", "nomodule:factory"], "cannot import"),
    (["audit", "--told", "names"], "labels"),
    (["attack", "nowhere", "--use", "linear"], "is no folder"),
    (["score", "nowhere"], "nowhere"),
    (["report", "nowhere"], "nowhere"),
    (["validate", "nowhere"], "nowhere"),
]


@pytest.mark.parametrize(("arguments", "word"), MISTAKES, ids=lambda value: "-".join(value)[:40])
def test_a_mistake_is_one_message_and_exit_code_2(seepage: Seepage, arguments: list[str], word: str) -> None:
    code, out, err = seepage(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert word in err
    assert "Traceback" not in err
    assert list(Path().iterdir()) == []  # nothing half-written


def test_all_mistakes_of_a_recipe_are_told_at_once(seepage: Seepage) -> None:
    Path("bad.toml").write_text(
        'sede = 1\n[data]\nuse = "albun"\n[batch]\nsize = "two"\n[[attack]]\nuse = "dlg"\nstep = 3\n'
        '[[defense]]\nuse = "sparsify"\nkeep = 2\n[grid]\n"nothing.at" = [1]\n'
    )
    code, _, err = seepage("audit", "bad.toml")
    assert code == 2
    for word in ("'sede'", "batch", "size", "'step'", "keep", "nothing.at"):
        assert word in err
    assert not Path("runs").exists()


def test_a_folder_with_something_else_is_left_alone(seepage: Seepage) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("mine")
    code, _, err = seepage("audit", *SMALL, "--out=mine")
    assert code == 2
    assert "--out" in err
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_run_goes_on_to_the_same_numbers(seepage: Seepage, tmp_path: Path, jobs: str) -> None:
    arguments = [*SMALL[:-1], f"--jobs={jobs}", "--set=attack.steps=400", "--json"]
    program = [sys.executable, "-m", "seepage.cli", "audit", *arguments, "--out=killed"]
    child = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True)
    wait_for(lambda: any((tmp_path / "killed").glob("attacks/*/*/*-checkpoint.json")), child)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "killed/result.json").exists()
    resumed = parse(seepage("audit", *arguments, "--out=killed")[1])
    whole = parse(seepage("audit", *arguments, "--out=whole")[1])
    assert without_times(resumed) == without_times(whole)
    assert not list((tmp_path / "killed").rglob("*-checkpoint*"))


def wait_for(condition: Callable[[], bool], child: "subprocess.Popen[bytes]") -> None:
    """Wait until something is there, as long as the child runs and for at most two minutes."""
    ends = time.monotonic() + 120
    while not condition():
        assert child.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < ends
        time.sleep(0.02)
