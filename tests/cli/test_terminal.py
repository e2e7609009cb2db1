"""What a person sees while a run goes on, and after it."""

import io
import sys
from typing import Any

import pytest

from seepage import terminal
from seepage.terminal import print_result, progress_bar


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as show:
        show(0.25, 1, "dlg on cell")
        show(0.5, 1, "")
    assert "dlg on cell" in screen.getvalue()
    assert "\x1b[" in screen.getvalue()


def test_a_log_gets_a_plain_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 11.0, 12.0, 22.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with progress_bar() as show:
        for done in range(4):
            show(done, 4, "dlg on cell")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "1.0 of 4 dlg on cell\n3.0 of 4 dlg on cell\n")


def test_a_quiet_run_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(off=True) as show:
        show(1, 2, "x")
    assert capsys.readouterr() == ("", "")


ROW: dict[str, Any] = {
    "cell": "a", "attack": "inverting_gradients", "status": "ok", "reason": None, "told_extra": [], "examples": 16,
    "recovered": 0.125, "psnr": 17.25, "psnr_low": 15.5, "psnr_high": 19.5, "ssim": 0.5, "gain_db": 1.25,
    "seconds": 12.5, "outcome": "partly recovered",
}  # fmt: skip
NULLS = dict.fromkeys(("recovered", "psnr", "psnr_low", "psnr_high", "ssim", "gain_db", "seconds"))


def printed(capsys: pytest.CaptureFixture[str], *rows: dict[str, Any], **options: Any) -> list[str]:
    result = {
        "verdict": "LEAKS. [bold]no markup[/bold]", "verdict_level": "exact", "rows": list(rows),
        "cells": [{"name": "a", "title": "fc2, [red]batch[/red] 8", "baselines": None}],
        "thresholds": {"recovered_ssim": 0.6, "recovered_gain_db": 3.0, "exact_db": 40.0},
    }  # fmt: skip
    print_result(terminal.Path("run"), result, **{"quiet": False, **options})
    return capsys.readouterr().out.splitlines()


def test_a_row_has_its_numbers_in_words_and_digits(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, ROW)
    (found,) = [line for line in lines if line.startswith("inverting")]
    assert found.split() == [
        "inverting_gradients",
        "17.2",
        "[16,",
        "20]",
        "0.50",
        "+1.2",
        "2/16",
        "12.5",
        "partly",
        "recovered",
    ]
    assert "fc2, [red]batch[/red] 8" in lines, "words of strangers are printed, not obeyed"
    assert "LEAKS. [bold]no markup[/bold]" in lines


def test_what_does_not_apply_is_a_dash_and_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        **ROW,
        **NULLS,
        "attack": "linear",
        "status": "inapplicable",
        "reason": "no bias; use dlg",
        "outcome": "does not apply",
    }
    lines = printed(capsys, row)
    (found,) = [line for line in lines if line.startswith("linear")]
    assert found.split() == ["linear", "-", "-", "-", "-", "-", "does", "not", "apply"]
    assert "  linear: no bias; use dlg" in lines


def test_what_an_attacker_was_told_is_a_column_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert not [line for line in printed(capsys, ROW) if "told" in line.split()[:2]]
    lines = printed(capsys, ROW, {**ROW, "attack": "dlg", "told_extra": ["labels"]})
    assert [line.split()[:2] for line in lines if line.startswith(("attack", "dlg", "inverting"))] == [
        ["attack", "told"], ["inverting_gradients", "-"], ["dlg", "labels"]
    ]  # fmt: skip


def test_quiet_is_the_verdict_and_an_old_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, ROW, quiet=True) == ["LEAKS. [bold]no markup[/bold]"]
    assert any("finished earlier" in line for line in printed(capsys, ROW, note_old=True))
