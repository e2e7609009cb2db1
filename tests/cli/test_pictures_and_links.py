"""Reports without pictures; run folders with links that lead elsewhere."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.cli.conftest import Cli

Refused = Callable[..., str]


def without(folder: Path) -> str:
    """The page of a run that shows no picture anywhere."""
    page = (folder / "report.html").read_text()
    assert "data:image" not in page
    assert not (folder / "grid.png").exists()
    return page


def test_an_audit_without_pictures_writes_none(cli: Cli, home: Path) -> None:
    found = cli("audit", "tiny.toml", "--no-pictures", "--jobs", 1, "--out", "run")
    assert "grid.png" not in found.out
    assert "LEAKS" in without(home / "run")


@pytest.mark.slow
def test_a_report_is_written_anew_without_pictures_and_with(cli: Cli, run: Path) -> None:
    """The run remembers; an audit that is finished is shown without, too."""
    again = ("audit", "tiny.toml", "--out", run, "--quiet")
    for command, shown in (
        (("report", run), True), (("report", run, "--no-pictures"), False), (("report", run), False),
        (("report", run, "--pictures"), True), (("report", run), True), ((*again, "--no-pictures"), False),
    ):  # fmt: skip
        cli(*command)
        assert (run / "grid.png").exists() == shown
        assert ("data:image" in (run / "report.html").read_text()) == shown
    assert (run / "private").exists()


def test_scoring_later_shows_no_pictures_either(cli: Cli, run: Path, home: Path) -> None:
    cli("attack", run / "observed", "--attack=linear", "--no-pictures", "--jobs=1", "--out=blind")
    without(home / "blind")
    cli("report", "blind", "--truth", run / "private")
    without(home / "blind")
    cli("report", "blind", "--pictures")
    assert "data:image" in (home / "blind" / "report.html").read_text()


def test_an_audit_keeps_what_each_update_gives_away(run: Path) -> None:
    found = json.loads((run / "exposure.json").read_text())
    (case,) = found["cases"]
    assert (found["schema"], case["case"], case["examples"], case["batch_size"]) == (1, "case", 1, 1)
    result = json.loads((run / "result.json").read_text())
    assert result["cases"][0]["exposure"].startswith("reveals 1 of 1 example exactly")


def test_epsilon_is_printed_and_kept(cli: Cli, home: Path) -> None:
    pytest.importorskip("dp_accounting")
    options = ("--defense=dp_sgd", "--set=defense.sigma=2", "--set=defense.clip=1", "--attack=linear", "--jobs=1")
    found = cli("audit", "tiny.toml", *options, "--out=run")
    (line,) = [line for line in found.out.splitlines() if line.startswith("claimed ")]
    promise = json.loads((home / "run" / "result.json").read_text())["cases"][0]["promise"]
    assert f"epsilon = {promise['epsilon']:.3g}" in line
    assert line.removeprefix("claimed").strip() in (home / "run" / "report.html").read_text().replace("&#39;", "'")


@pytest.mark.parametrize("name", ["attacks", "reconstructions", "private", "progress.jsonl", "report.html"])
def test_nothing_is_written_through_a_link(home: Path, run: Path, refused: Refused, name: str) -> None:
    """Somebody else's run folder, whose parts lead into the home of whoever opens it."""
    elsewhere = home / "elsewhere"
    if (run / name).exists():
        (run / name).rename(elsewhere)
    else:
        elsewhere.write_text("mine")
    (run / name).symlink_to(elsewhere.resolve())
    audit = ("audit", "tiny.toml", "--out", run, "--jobs", 1)
    for command in (("report", run), audit, ("report", run, "--truth", "private")):
        assert "leads out of it" in refused(*command), command


def test_a_captured_run_is_not_gone_on_with_through_a_link(home: Path, refused: Refused) -> None:
    (home / "theirs").mkdir()
    (home / "elsewhere").mkdir()
    (home / "theirs" / "observed").symlink_to(home / "elsewhere")
    save_file({"w": torch.ones(1)}, home / "a.safetensors")
    files = ("a.safetensors", "a.safetensors", "--lr=1", "--attack=linear")
    assert "leads out of it" in refused("attack", *files, "--out", "theirs")
