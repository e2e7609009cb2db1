"""Run folders: what is equal, what is kept, what is never overwritten, and what the numbers are called."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seepage.base import manifest

Cli = Callable[..., Any]
Refused = Callable[..., str]


def rows_of(result: Any) -> list[dict[str, Any]]:
    """Rows without what differs from one run to the next."""
    return [{k: v for k, v in row.items() if k != "cost"} for row in result["rows"]]


@pytest.mark.slow
def test_one_job_and_two_give_equal_rows(cli: Cli, run: Path) -> None:
    found = cli("audit", "tiny.toml", "--jobs", 2, "--json", "--out", "two")
    assert rows_of(found.json) == rows_of(json.loads((run / "result.json").read_text()))


def test_the_same_recipe_has_the_same_folder_and_another_has_another(cli: Cli) -> None:
    first = cli("audit", "tiny.toml", "--attack", "linear", "--jobs", 1, "--json").json
    assert first["finished_earlier"] is False
    again = cli("audit", "tiny.toml", "--attack", "linear", "--jobs", 1, "--json").json
    assert again["finished_earlier"] is True
    assert again["run"] == first["run"]
    other = cli("audit", "tiny.toml", "--attack", "linear", "--jobs", 1, "--seed", 1, "--json").json
    assert other["run"] != first["run"]
    assert Path(other["run"]).parent == Path("runs")


def test_a_name_cannot_leave_the_folder_of_runs(cli: Cli, home: Path) -> None:
    arguments = ("--attack", "linear", "--jobs", 1, "--json", "--set", "name=../../up")
    place = Path(cli("audit", "tiny.toml", *arguments).json["run"])
    assert place.parent == Path("runs")
    assert sorted(path.name for path in home.iterdir()) == ["runs", "tiny.toml"]


def test_a_folder_of_something_else_is_never_touched(cli: Cli, run: Path, refused: Refused) -> None:
    assert "another folder" in refused("audit", "tiny.toml", "--seed", 5, "--out", run)
    assert "another folder" in refused("attack", run / "observed", "--attack", "linear", "--out", run)
    cli("attack", run / "observed", "--attack", "linear", "--out", "blind", "--jobs", 1)
    assert "another folder" in refused("audit", "tiny.toml", "--out", "blind")
    assert "another folder" in refused("attack", run / "observed", "--attack", "idlg", "--out", "blind")
    (run / "result.json").unlink()
    assert "unfinished" in refused("audit", "tiny.toml", "--seed", 5, "--out", run)


def test_an_attack_on_other_content_is_another_run(cli: Cli) -> None:
    cli("record", "tiny.toml", "--out", "rec")
    first = cli("attack", "rec/observed", "--attack", "linear", "--jobs", 1, "--json").json
    cli("attack", "rec", "--attack", "linear", "--jobs", 1, "--json")
    shutil.rmtree("rec")
    cli("record", "tiny.toml", "--seed", 1, "--out", "rec")
    second = cli("attack", "rec/observed", "--attack", "linear", "--jobs", 1, "--json").json
    assert second["finished_earlier"] is False
    assert second["run"] != first["run"]


def test_a_recorded_folder_can_be_audited_on(cli: Cli, run: Path) -> None:
    found = cli("record", "tiny.toml", "--out", "rec", "--json")
    assert found.json == {"schema": 1, "run": "rec"}
    before = Path("rec/observed/model.safetensors").stat().st_mtime_ns
    result = cli("audit", "tiny.toml", "--out", "rec", "--jobs", 1, "--json").json
    assert Path("rec/observed/model.safetensors").stat().st_mtime_ns == before
    assert rows_of(result) == rows_of(json.loads((run / "result.json").read_text()))


def test_without_truth_every_score_is_null_and_with_it_the_audits_own(cli: Cli, run: Path) -> None:
    arguments = (
        "--attack",
        "linear",
        "--attack",
        "inverting_gradients",
        "--set",
        "attack.steps=5",
        "--jobs",
        1,
        "--json",
    )
    blind = cli("attack", run / "observed", *arguments, "--out", "blind").json
    assert all((row["scores"], row["baselines"], row["alignment"]) == ({}, {}, None) for row in blind["rows"])
    assert blind["verdict"].startswith("LEAKS, BY ITS OWN PROOF")
    assert blind["verdict_level"] == "certified"
    scored = cli("report", "blind", "--truth", run / "private", "--json").json
    assert rows_of(scored) == rows_of(json.loads((run / "result.json").read_text()))
    assert scored["verdict"] == json.loads((run / "result.json").read_text())["verdict"]
    assert "Not scored" not in Path("blind/report.html").read_text()
    assert rows_of(cli("report", "blind", "--json").json) == rows_of(scored)


def test_thresholds_can_be_changed_when_scoring(cli: Cli, run: Path, refused: Refused) -> None:
    cli("attack", run / "observed", "--attack", "linear", "--out", "blind", "--jobs", 1)
    truth = ("--truth", run / "private")
    strict = cli("report", "blind", *truth, "--set", "score.exact_db=149", "--json").json
    assert strict["thresholds"]["exact_db"] == 149
    assert (strict["rows"][0]["scores"]["exact"]["mean"], strict["rows"][0]["scores"]["recovered"]["mean"]) == (
        1,
        1,
    )  # 150 dB
    for beyond in (
        "exact_db=1000",
        "exact_db=-1",
        "recovered_likeness=7",
        "recovered_likeness=-1",
        "recovered_gain_db=-3",
    ):
        assert beyond.partition("=")[0] in refused("report", "blind", *truth, "--set", f"score.{beyond}")
    assert "did you mean 'exact_db'" in refused("report", "blind", *truth, "--set", "score.exact=4")
    assert "score.KEY" in refused("report", "blind", *truth, "--set", "attack.steps=4")
    assert "--truth" in refused("report", "blind", "--set", "score.exact_db=4")
    assert "never rewritten" in refused("report", run, *truth)


def test_the_gate_is_exit_code_1_and_names_the_rows(cli: Cli, run: Path) -> None:
    found = cli("audit", "tiny.toml", "--out", run, "--quiet", "--fail-if", "psnr > 20", code=1)
    assert all(fact in found.err for fact in ("psnr > 20", "linear on fc2(hidden=16)", "psnr 150"))
    assert found.err.count("\n") == 1
    cli("report", run, "--fail-if", "psnr>20", "--quiet", code=1)
    cli("report", run, "--fail-if", "psnr>=151", "--quiet")
    cli("report", run, "--fail-if", "ssim<-1", "--json")


def test_a_gate_that_cannot_see_lets_nothing_pass(cli: Cli, run: Path) -> None:
    cli("attack", run / "observed", "--attack", "linear", "--out", "blind", "--jobs", 1)
    found = cli("report", "blind", "--fail-if", "psnr>20", "--quiet", code=2)
    assert "cannot be judged" in found.err


@pytest.mark.parametrize(("condition", "code"), [("psnr>151", 2), ("psnr>20", 1)])
def test_a_case_that_cannot_be_recorded_does_not_pass_the_gate(condition: str, code: int, cli: Cli, home: Path) -> None:
    case = '\n[[case]]\nname = "many"\nbatch = { size = 100000 }\n'
    (home / "tiny.toml").write_text((home / "tiny.toml").read_text() + case)
    arguments = ("--attack", "linear", "--jobs", 1, "--quiet", "--fail-if", condition)
    found = cli("audit", "tiny.toml", *arguments, "--out", "run", code=code)
    assert found.err.count("\n") == 1
    assert ("many could not be recorded" in found.err) == (code == 2)
    assert "no update could be made" in found.out


def test_an_update_that_is_zero_everywhere_passes_the_gate(cli: Cli) -> None:
    arguments = ("--defense", "selective_encryption", "--set", "defense.share=1.0", "--attack", "linear", "--jobs", 1)
    found = cli("audit", "tiny.toml", *arguments, "--fail-if", "recovered>0", "--json")
    assert [row["outcome"] for row in found.json["rows"]] == ["zero_update", "exact"], "with the defense, without it"
    assert not found.err


GRID = ("--set", 'grid={"model.hidden"=[8,16]}', "--attack", "linear", "--jobs", 1, "--json")


@pytest.mark.slow
def test_a_grid_has_a_folder_per_case_also_when_attacked_blind(cli: Cli) -> None:
    audit = cli("audit", "tiny.toml", *GRID, "--out", "grid").json
    assert [case["name"] for case in audit["cases"]] == ["hidden-8", "hidden-16"]
    wanted = {row["case"]: row["scores"]["psnr"]["mean"] for row in audit["rows"]}
    cli("attack", "grid/observed", "--attack", "linear", "--jobs", 1, "--out", "all")
    scored = cli("report", "all", "--truth", "grid/private", "--json").json
    assert {row["case"]: row["scores"]["psnr"]["mean"] for row in scored["rows"]} == wanted
    cli("attack", "grid/observed/hidden-8", "--attack", "linear", "--jobs", 1, "--out", "one")
    for truth in ("grid/private", "grid/private/hidden-8"):
        one = cli("report", "one", "--truth", truth, "--json").json
        assert {row["case"]: row["scores"]["psnr"]["mean"] for row in one["rows"]} == {"hidden-8": wanted["hidden-8"]}
        assert one["verdict"].startswith("LEAKS")
    Path("grid/observed/hidden-8").rename("sent")
    cli("attack", "sent", "--attack", "linear", "--jobs", 1, "--out", "renamed")
    renamed = cli("report", "renamed", "--truth", "grid/private/hidden-8", "--json").json
    assert [row["case"] for row in renamed["rows"]] == [case["name"] for case in renamed["cases"]] == ["sent"]
    assert renamed["verdict"] == one["verdict"]
    Path("sent").rename("grid/observed/hidden-8")
    assert cli("check", "grid", "--quiet").out.count("\n") == 2


def test_combinations_that_would_share_a_name_do_not_share_a_folder(cli: Cli) -> None:
    grid = 'grid={"data.size"=[8], "batch"=[{count=1}, {count=2}]}'
    result = cli("audit", "tiny.toml", "--set", grid, "--attack", "linear", "--jobs", 1, "--json").json
    assert [row["examples"] for row in result["rows"]] == [1, 2]
    assert len({row["case"] for row in result["rows"]}) == 2


def test_an_unknown_batch_size_is_inferred_or_given(cli: Cli, observed: Path, refused: Refused) -> None:
    path = observed / "knowledge.json"
    path.write_text(path.read_text().replace('"batch_size": 1', '"batch_size": null'))
    arguments = (
        "attack",
        observed,
        "--attack",
        "inverting_gradients",
        "--set",
        "attack.steps=2",
        "--jobs",
        1,
        "--json",
    )
    found = cli(*arguments).json
    row = found["rows"][0]
    assert row["returned"] == 2
    assert "batch size" not in row["known"]
    assert found["cases"][0]["inferred"]["batch size"].startswith("1 or more, from the rank of")
    assert cli(*arguments).json["finished_earlier"]
    found = cli(*arguments, "--batch-size", 1).json
    assert "batch size" not in found["cases"][0]["inferred"]
    row = found["rows"][0]
    assert row["examples"] == 2
    assert row["returned"] == 2
    assert "batch size" in row["known"]
    path.write_text(path.read_text().replace('"batch_size": null', '"batch_size": 1'))
    assert "leave out --batch-size" in refused(*arguments, "--batch-size", 3)


def test_settings_that_attack_cannot_take_are_refused(observed: Path, refused: Refused) -> None:
    for setting in ("batch.size=3", "score.exact_db=3", "model.hidden=3"):
        assert "--set attack.OPTION" in refused("attack", observed, "--attack", "linear", "--set", setting)
    assert "did you mean 'linear'" in refused("attack", observed, "--attack", "liner")
    assert "takes the option" in refused("attack", observed, "--attack", "linear", "--set", "attack.steps=3")


WRONG_TRUTH = {
    "another count": (("batch.count=3",), "3 batches"),
    "another size": (("data.size=9",), "(1, 1, 9, 9)"),
    "another batch": (("batch.size=2",), "(2, 1, 8, 8)"),
    "other classes": (("data.use=digits",), "classes"),
}


@pytest.mark.parametrize("what", WRONG_TRUTH)
def test_a_truth_of_something_else_is_refused(what: str, cli: Cli, run: Path, refused: Refused) -> None:
    settings, words = WRONG_TRUTH[what]
    cli("attack", run / "observed", "--attack", "linear", "--out", "blind", "--jobs", 1)
    cli("record", "tiny.toml", *(f"--set={setting}" for setting in settings), "--out", "other")
    message = refused("report", "blind", "--truth", "other/private")
    assert words in message
    assert "belongs to this recording" in message


def test_a_truth_that_is_not_there_or_a_recording_that_changed_is_refused(
    cli: Cli, run: Path, refused: Refused
) -> None:
    cli("attack", run / "observed", "--attack", "linear", "--out", "blind", "--jobs", 1)
    assert "truth.safetensors does not exist" in refused("report", "blind", "--truth", "nowhere")
    (run / "observed" / "knowledge.json").write_text((run / "observed" / "knowledge.json").read_text() + "\n")
    assert "has changed" in refused("report", "blind", "--truth", run / "private")


DAMAGE = {
    "no JSON": lambda result: "{",
    "another schema": lambda result: json.dumps({**result, "schema": 7}),
    "no rows": lambda result: json.dumps({k: v for k, v in result.items() if k != "rows"}),
    "a row without a name": lambda result: json.dumps({**result, "rows": [{"attack": "dlg"}]}),
    "a score in words": lambda result: json.dumps({**result, "rows": [{**result["rows"][0], "examples": "high"}]}),
    "NaN": lambda result: json.dumps({**result, "rows": [{**result["rows"][0], "misfit": float("nan")}]}),
    "cases that are none": lambda result: json.dumps({**result, "cases": {}}),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_result_is_refused(what: str, run: Path, refused: Refused) -> None:
    path = run / "result.json"
    path.write_text(DAMAGE[what](json.loads(path.read_text())))
    assert "result.json" in refused("report", run, "--json")
    assert "result.json" in refused("audit", "tiny.toml", "--out", run)


def test_a_damaged_request_is_refused(cli: Cli, run: Path, refused: Refused) -> None:
    cli("attack", run / "observed", "--attack", "linear", "--out", "blind", "--jobs", 1)
    asked = json.loads(Path("blind/attack.json").read_text())
    for change in ({"schema": 2}, {"attacks": 3}, {"attacks": [3]}, {"observed": 3}, {"seed": "x"}, {"seed": 2**64}):
        Path("blind/attack.json").write_text(json.dumps({**asked, **change}))
        manifest.renew(Path("blind"), ["attack.json"])  # which would say that the file was changed
        assert "attack.json" in refused("report", "blind", "--truth", run / "private")
    assert "2**63" in refused("attack", run / "observed", "--attack", "linear", "--seed", 2**64, "--jobs", 1)


def test_a_report_is_written_again_bit_by_bit(cli: Cli, audited: Path, home: Path) -> None:
    shutil.copytree(audited, home / "run")
    assert "report: run/report.html\n" in cli("report", "run").out
    first = {name: Path("run", name).read_bytes() for name in ("report.html", "grid.png")}
    cli("report", "run")
    assert {name: Path("run", name).read_bytes() for name in first} == first


def test_the_table_fits_80_columns(cli: Cli, audited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("report", audited).out.splitlines()
    assert max(len(line) for line in lines if "report.html" not in line and "grid.png" not in line) <= 80
    lines = cli("report", audited, "--details").out.splitlines()
    assert max(len(line) for line in lines if "report.html" not in line and "grid.png" not in line) <= 80
    header = next(line for line in lines if line.startswith("attack "))
    assert header.split() == ["attack", "found", "median", "mean,", "dB", "SSIM", "seconds", "outcome"]
    assert any(line.split()[0] == "inverting_gradients" and line.endswith("not needed") for line in lines if line)


def test_asking_for_perceptual_scores_never_fails(cli: Cli) -> None:
    arguments = ("--set", "score.lpips=true", "--attack", "linear", "--jobs", 1, "--json", "--out", "run")
    row = cli("audit", "tiny.toml", *arguments).json["rows"][0]
    assert ("lpips" in row["scores"], row["scores"]["exact"]["mean"]) == (False, 1.0)
    flags = json.loads(Path("run/flags.json").read_text())["flags"]
    assert [flag["severity"] for flag in flags if flag["name"] == "lpips-missing"] == ["note"]


def test_a_folder_of_that_name_does_not_stand_in_for_the_default_recipe(cli: Cli, home: Path) -> None:
    """As `seepage audit --out default` leaves one; typed, the name is still that of the folder."""
    (home / "default").mkdir()
    asked = ("--data", "digits", "--model", "fc2", "--attack", "linear", "--batch-size", 1, "--set", "training.steps=0")
    cli("audit", *asked, "--set", "data.size=8", "--jobs", 1, "--quiet", "--out", "run")
    cli("audit", "default", code=2)


def test_without_a_choice_the_default_attacks_are_run(cli: Cli, observed: Path) -> None:
    rows = cli("attack", observed, "--set", "attack.steps=1", "--jobs", 1, "--json").json["rows"]
    assert {"linear", "gauss_newton", "gradient_matching"} <= {row["attack"] for row in rows}


def test_the_program_helps(cli: Cli) -> None:
    assert cli("--version").out.startswith("seepage ")
    for arguments in (("-h",), ("audit", "--help"), ("attack", "-h")):
        found = cli(*arguments)
        assert "Usage" in found.out
    assert set(cli("list", "attacks", "--json").json) == {"attacks"}
    assert any(line.startswith("  keep") and "hare" in line for line in cli("list", "defenses").out.splitlines())


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_a_run_is_its_owner_s_alone_whatever_out_was_before(cli: Cli, home: Path) -> None:
    out = home / "shared"
    out.mkdir(mode=0o755)
    out.chmod(0o755)
    cli("audit", "tiny.toml", "--out", out, "--jobs", 1, "--quiet")
    assert [oct(path.stat().st_mode & 0o777) for path in (out, out / "private")] == ["0o700", "0o700"]
