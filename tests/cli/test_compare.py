"""Two runs side by side, a baseline, what failed run again, and a folder's own settings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seepage.base import manifest

Cli = Callable[..., Any]
Refused = Callable[..., str]
EIGHT = ("--attack", "linear", "--set", "batch.count=8")
NOISE = ("--defense", "gaussian_noise", "--set", "defense.sigma=10.0")


@pytest.fixture
def noisy(home: Path, cli: Cli) -> Path:
    """The tiny recipe, eight faces, behind noise that hides them."""
    cli("audit", "tiny.toml", *EIGHT, *NOISE, "--out", "noisy", "--jobs", 1, "--quiet")
    return Path("noisy")


@pytest.fixture
def bare(home: Path, cli: Cli) -> Path:
    cli("audit", "tiny.toml", *EIGHT, "--out", "bare", "--jobs", 1, "--quiet")
    return Path("bare")


@pytest.mark.slow
def test_taking_the_noise_away_is_worse(noisy: Path, bare: Path, cli: Cli) -> None:
    found = cli("compare", noisy, bare, code=1)
    assert "recovered 0 of 8 -> 8 of 8" in found.out
    assert "WORSE in 2 of 3" in found.out, "and of one example in closed form nobody can tell"
    back = cli("compare", bare, noisy)
    assert ("NOT WORSE" in back.out, "better:" in back.out) == (True, True)


@pytest.mark.slow
def test_json_counts_what_is_worse(noisy: Path, bare: Path, cli: Cli) -> None:
    found = cli("compare", noisy, bare / "result.json", "--json", "--reuse", code=1)
    assert (found.json["worse"], found.json["lost"]) == (2, 0)
    assert {change["measure"] for change in found.json["changes"]} == {"recovered", "exact"}


def test_a_baseline_closes_the_gate(noisy: Path, bare: Path, cli: Cli) -> None:
    found = cli("audit", "tiny.toml", *EIGHT, "--out", bare, "--baseline", noisy, "--quiet", code=1)
    assert "worse than the baseline: linear on" in found.err
    cli("audit", "tiny.toml", *EIGHT, "--out", bare, "--baseline", bare, "--quiet")


def test_an_evidence_pack_is_a_baseline(bare: Path, cli: Cli) -> None:
    cli("evidence", "pack", bare, "--out", "pack")
    cli("compare", "pack", bare)


def test_what_was_not_run_again_is_no_pass(bare: Path, cli: Cli) -> None:
    record = json.loads((bare / "result.json").read_text())
    record["rows"].append(record["rows"][0] | {"attack": "dlg"})
    Path("old.json").write_text(json.dumps(record))
    found = cli("audit", "tiny.toml", *EIGHT, "--out", bare, "--baseline", "old.json", "--quiet", code=2)
    assert "dlg on" in found.err
    cli("compare", "old.json", bare, code=2)


def test_an_attack_that_the_baseline_did_not_try_is_no_worse_and_no_pass(bare: Path, cli: Cli) -> None:
    """What leaks by it is printed, with exit code 2; where nothing leaks by it, the gate passes."""
    record = json.loads((bare / "result.json").read_text())
    record["rows"].append(record["rows"][0] | {"attack": "dlg"})
    Path("new.json").write_text(json.dumps(record))
    found = cli("compare", bare, "new.json", "--reuse", code=2)
    assert "worse:" not in found.out
    assert "recovered 8 of 8 (not tried in the older run)" in found.out
    assert "baseline" in found.err
    known = cli("compare", bare, "new.json", "--json", "--reuse", code=2).json
    assert (known["worse"], known["leaks_alone"]) == (0, 2)
    assert {change["lacking"] for change in known["changes"]} == {None, "not tried in the older run"}
    record["rows"][0]["attack"] = "idlg"
    Path("old.json").write_text(json.dumps({**record, "rows": record["rows"][:1]}))
    both = cli("compare", "old.json", "new.json", "--reuse", code=2)
    assert "no case and attack in common" in both.err


@pytest.mark.slow
def test_a_gate_says_what_leaks_where_its_baseline_did_not_look(bare: Path, cli: Cli) -> None:
    line = ("audit", "tiny.toml", *EIGHT, "--attack", "cocktail_party", "--out", "both", "--jobs", 1, "--quiet")
    found = cli(*line, "--all", "--baseline", bare, code=2)
    assert "cocktail_party on" in found.err
    assert "worse than the baseline" not in found.err


def test_a_run_that_was_scored_since_is_compared_by_what_both_certify(run: Path, cli: Cli) -> None:
    for name in ("first", "second"):
        cli("attack", run / "observed", "--attack", "linear", "--out", name, "--jobs", 1)
    cli("report", "first", "--truth", run / "private")
    found = cli("compare", "first", "second")
    assert "certified guesses are compared" in found.out


def test_an_edited_pack_is_no_baseline(bare: Path, cli: Cli, refused: Refused) -> None:
    cli("evidence", "pack", bare, "--out", "pack")
    text = Path("pack/result.json").read_text()
    Path("pack/result.json").write_text(text.replace('"mean": 1.0', '"mean": 0.0'))
    assert "is not as it was written" in refused("compare", "pack", bare)


def test_an_edited_run_of_captured_updates_is_refused(run: Path, cli: Cli, refused: Refused) -> None:
    cli("attack", run / "observed", "--attack", "linear", "--out", "blind", "--jobs", 1)
    text = Path("blind/result.json").read_text()
    Path("blind/result.json").write_text(text.replace('"n": 2', '"n": 0'))
    assert "is not what the run wrote" in refused("compare", "blind", "blind")
    assert "is not what the run wrote" in refused("evidence", "pack", "blind", "--print", "junit")


@pytest.mark.slow
def test_an_edited_baseline_is_refused(bare: Path, noisy: Path, refused: Refused) -> None:
    text = (noisy / "result.json").read_text()
    (noisy / "result.json").write_text(text.replace("nothing_recovered", "nothing_recovered "))
    assert "is not what the run wrote" in refused("compare", noisy, bare)


# --- what failed ------------------------------------------------------------------------------------------------


FLAKY = """
import pathlib
from dataclasses import dataclass
from seepage.attacks.linear import LinearLeak

@dataclass(frozen=True, kw_only=True)
class Flaky(LinearLeak):
    def run(self, examined, **given):
        if not pathlib.Path("mended").exists():
            raise ValueError("the disk of the cluster is away")
        return super().run(examined, **given)
"""


def test_what_failed_is_run_again_and_nothing_else(home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "flaky.py").write_text(FLAKY)
    monkeypatch.syspath_prepend(home)
    line = ("audit", "tiny.toml", "--attack=linear", "--attack=flaky:Flaky", "--all", "--out=run", "--jobs=1", "--json")
    first = cli(*line)
    assert [row["status"] for row in first.json["rows"]] == ["ok", "error"]
    kept = {path: path.stat().st_mtime_ns for path in Path("run/attacks").rglob("linear/*")}
    assert cli(*line, "--retry-failed").json["rows"][1]["status"] == "error"
    (home / "mended").touch()
    assert cli(*line).json["finished_earlier"]
    again = cli(*line, "--retry-failed")
    assert [row["status"] for row in again.json["rows"]] == ["ok", "ok"]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert manifest.differences(Path("run")) == []
    assert cli(*line, "--retry-failed").json["finished_earlier"]
