"""The summary of a verdict from the command line: reconstruction, membership inference, bounds, empirical epsilon."""

import json
import math
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from seepage.audit import run as audit
from seepage.report import write_report

NOISY = """
name = "noisy"
[data]
use = "digits"
size = 8
split = 0.3
[model]
use = "fc2"
hidden = 16
[batch]
size = 2
count = 2
[[defense]]
use = "gaussian_noise"
clip = 1.0
sigma = 1.0
[bounds]
[epsilon]
calls = 4000
stated = 0.2
[[attack]]
use = "linear"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with all that was asked for."""
    home = tmp_path_factory.mktemp("summary")
    folder = audit.run(tomllib.loads(NOISY), out=home / "run", jobs=1).folder
    write_report(folder)
    return folder


def test_all_parts_stand_in_json_terminal_and_page(run: Path, cli: Cli) -> None:
    found = json.loads((run / "result.json").read_text())
    summary = {part["name"]: part for part in found["summary"]}
    assert list(summary) == ["reconstruction", "membership_inference", "upper_bound", "empirical_epsilon"]
    assert [part["tried"] for part in summary.values()] == [True, False, True, True]
    assert "ask with --membership" in summary["membership_inference"]["words"]
    assert summary["reconstruction"]["low"] == 0 < summary["reconstruction"]["high"] < 1
    assert summary["upper_bound"]["low"] <= summary["upper_bound"]["value"] <= summary["upper_bound"]["high"]
    shown = " ".join(cli("report", str(run), code=2).out.split())
    page = (run / "report.html").read_text(encoding="utf-8")
    for part in summary.values():
        if part["tried"]:
            assert " ".join(part["words"].split()).replace("freshly initialized", "fresh") in shown
    assert "not tried: membership (--membership)" in shown
    for title in ("Upper bounds for every attacker", "Empirical epsilon of the defense", "Upper bound"):
        assert title in page


def test_a_bound_of_membership_is_that_of_the_noise(run: Path) -> None:
    rows = json.loads((run / "result.json").read_text())["bounds"]
    named = next(row for row in rows if row["measure"] == "tpr")
    # Two batches that differ by an example lie 2 clips apart: mu = 2 / 1. TPR <= Phi(Phi^-1(0.01) + mu).
    assert named["value"] == pytest.approx(0.5 * math.erfc((2.3263479 - 2) / math.sqrt(2)), abs=1e-4)
    assert named["batches"] == 2


def test_a_stated_epsilon_that_is_too_small_is_contradicted_and_gated(run: Path, cli: Cli) -> None:
    (row,) = json.loads((run / "result.json").read_text())["epsilons"]
    assert row["measured"] > row["stated"] == 0.2
    assert row["measured"] < row["computed"] < row["fitted_high"]
    assert row["contradicted"] == ["the stated epsilon of 0.2 is contradicted"]
    cli("report", str(run), "--fail-if", "contradicted>0", code=1)
    cli("report", str(run), "--fail-if", "empirical_epsilon>4.5", code=2)
    cli("report", str(run), "--fail-if", "empirical_epsilon>4.5", "--allow-inconclusive")
    cli("report", str(run), "--fail-if", "bound_members_identified>0.9", "--allow-inconclusive")
    cli("report", str(run), "--fail-if", "bound_members_identified>0.1", code=1)


def test_a_side_that_was_not_tried_cannot_pass_a_gate(cli: Cli) -> None:
    for score, remedy in (
        ("bound_members_identified", "--bounds"),
        ("empirical_epsilon", "--prove"),
        ("members_identified", "--membership"),
    ):
        found = cli("audit", "tiny.toml", "--out", "run", "--attack", "linear", "--fail-if", f"{score}>0", code=2)
        assert remedy in found.err
    assert not Path("run").exists()  # it is said before anything is computed


def test_a_finished_run_without_a_side_cannot_pass_a_gate(run: Path, cli: Cli) -> None:
    found = cli("report", str(run), "--fail-if", "members_identified>0.5", code=2)
    assert "--membership" in found.err


def test_bounds_and_measurements_are_kept_when_a_run_goes_on(run: Path, cli: Cli) -> None:
    kept = [run / "private" / "bounds.json", run / "epsilon" / "case.json"]
    before, times = (run / "result.json").read_text(), [path.stat().st_mtime_ns for path in kept]
    for name in ("result.json", "report.html"):  # as a run that was interrupted has none yet
        (run / name).unlink()
    cli("audit", str(run / "recipe.toml"), "--out", str(run), "--quiet", "--allow-inconclusive")
    assert [path.stat().st_mtime_ns for path in kept] == times
    assert json.loads((run / "result.json").read_text())["summary"] == json.loads(before)["summary"]
    assert "since it was resumed" not in (run / "report.html").read_text(encoding="utf-8")


def test_mistakes_in_the_tables_are_one_sentence(cli: Cli) -> None:
    for setting, words in (
        ("bounds.where=some", "'defended', 'all'"),
        ("bounds.level=0", "level must be a number > 0 and < 1"),
        ("bounds.candidates=0", "candidates must be a whole number >= 1"),
        ("epsilon.calls=10", "calls must be a whole number >= 1000"),
        ("epsilon.delta=1", "delta must be a number > 0 and < 1"),
        ("epsilon.stated=-1", "stated must be a number >= 0"),
    ):
        found = cli("audit", "tiny.toml", "--dry-run", "--set", setting, code=2)
        assert words in found.err, setting


def test_a_side_that_was_asked_for_and_is_not_to_be_had_says_why(cli: Cli) -> None:
    found = cli(
        "audit", "tiny.toml", "--out", "run", "--attack", "linear", "--membership", "--prove", "--jobs", 1, "--json"
    )
    summary = {part["name"]: part for part in found.json["summary"]}
    for name, why in (("membership_inference", "a membership test"), ("empirical_epsilon", "no client uses a defense")):
        assert summary[name]["words"].startswith("asked for")
        assert why in summary[name]["words"]


def test_a_contradicted_claim_comes_first(run: Path) -> None:
    found = json.loads((run / "result.json").read_text())
    assert found["verdict"].startswith("CONTRADICTED. On fc2")
    words = next(part["words"] for part in found["summary"] if part["name"] == "empirical_epsilon")
    assert "0.2 is contradicted" in words
    assert "4.38 not contradicted" in words
    assert "epsilon contradicted" in (run / "report.html").read_text(encoding="utf-8")


def test_all_numbers_of_a_batch_are_no_limit(cli: Cli) -> None:
    found = cli("audit", "tiny.toml", "--out", "run", "--attack", "linear", "--bounds", "--jobs", 1, "--json")
    assert found.json["summary"][2]["words"].startswith("no bound")
