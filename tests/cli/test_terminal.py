"""What a person sees while a run goes on, and after it."""

import io
import re
import sys
from typing import Any

import pytest
from tests.helpers.rows import nested

from seepage.audit.recipe.files import find_recipe, read_recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import named_case
from seepage.audit.row import Result
from seepage.audit.verdict import with_verdict
from seepage.base.progress import Doing, Phase
from seepage.cli import terminal
from seepage.cli.terminal import print_result, progress_bar
from seepage.errors import say


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    now = iter(range(1000))
    monkeypatch.setattr("rich.console.monotonic", lambda: float(next(now)))
    with progress_bar() as show:
        for share in range(1, 8):
            show(share / 10, 1, Doing("dlg on case"))
        show(0.75, 1, Doing())
    assert re.search(r"0:00:\d+", screen.getvalue()), "what it took"
    assert "attacking: dlg on case" in screen.getvalue()
    assert "\x1b[" in screen.getvalue()


def logged(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *shown: tuple[float, float, Doing],
    seconds: int = 11,
) -> list[str]:
    """The lines of a log, with eleven seconds between any two things that are shown."""
    clock = iter(range(0, 1000 * seconds, seconds))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with progress_bar() as show:
        for done, total, doing in shown:
            show(done, total, doing)
    out, err = capsys.readouterr()
    assert out == ""
    return list(err.splitlines())


def test_a_log_says_what_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = (
        (0, 8, Doing("fc2_size-1", Phase.RECORDING)), (0, 72, Doing()), (8.5, 72, Doing("dlg on fc2_size-1")),
        (9.6, 72, Doing()), (1, 8, Doing("fc2_size-8", Phase.SCORING)), (0.99, 1, Doing("the report", Phase.WRITING)),
    )  # fmt: skip
    assert logged(monkeypatch, capsys, *shown) == [
        "recording: 0 of 8, fc2_size-1",
        "attacking: 0 of 72",
        "attacking: 8 of 72, dlg on fc2_size-1",
        "attacking: 9 of 72, dlg on fc2_size-1",
        "scoring: 1 of 8, fc2_size-8",
        "writing: the report",
    ]


def test_few_long_attacks_are_told_by_their_share_and_nothing_is_said_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logged(monkeypatch, capsys, (0.5, 1, Doing("scoring on case"))) == ["attacking: 50%, scoring on case"]
    for total in (1, 2):
        shown = ((share * total, total, Doing("dlg on case")) for share in (0.01, 0.011, 0.012, 0.5))
        lines = logged(monkeypatch, capsys, *shown, (0.9 * total, total, Doing()))
        assert lines == [f"attacking: {percent}%, dlg on case" for percent in (1, 50, 90)]


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 1.0, 11.0, 12.0, 22.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with progress_bar() as show:
        for done in range(4):
            show(done, 4, Doing("dlg on case"))
    assert capsys.readouterr().err.splitlines() == ["attacking: 25%, dlg on case", "attacking: 75%, dlg on case"]


def test_a_quiet_run_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(off=True) as show:
        show(1, 2, Doing("x"))
    assert capsys.readouterr() == ("", "")


ROW: dict[str, Any] = {
    "case": "a", "attack": "inverting_gradients", "status": "ok", "reason": None, "side_information": [],
    "examples": 16,
    "recovered": 0.125, "psnr": 17.25, "psnr_median": 16.75, "psnr_low": 15.5, "psnr_high": 19.5, "ssim": 0.5,
    "seconds": 12.5, "outcome": "partly recovered",
}  # fmt: skip
NULLS = dict.fromkeys(("recovered", "psnr", "psnr_median", "psnr_low", "psnr_high", "ssim", "seconds"))


def printed(capsys: pytest.CaptureFixture[str], *rows: dict[str, Any], warnings: Any = (), **options: Any) -> list[str]:
    base = {name: {"psnr": psnr} for name, psnr in (("mean_color", 13.83), ("grey", None), ("random", 8.7))}
    other = [{"name": "b", "title": "fc2, batch 16", "baselines": None}] * any(row["case"] == "b" for row in rows)
    result = {
        "verdict": "LEAKS. [bold]no markup[/bold]", "verdict_level": "exact", "rows": [nested(**row) for row in rows],
        "cases": [{"name": "a", "title": "fc2, [red]batch[/red] 8", "baselines": base}, *other],
        "thresholds": {"recovered_gain_db": 3.0, "exact_db": 40.0},
        "warnings": list(warnings),
    }  # fmt: skip
    print_result(terminal.Path("run"), Result.model_validate(result), **{"quiet": False, **options})
    return capsys.readouterr().out.splitlines()


def test_a_case_is_a_line_with_its_best_attack(capsys: pytest.CaptureFixture[str]) -> None:
    better = {**ROW, "attack": "gauss_newton", "recovered": 0.5, "exact": 0.25, "seconds": 3.25}
    lines = printed(capsys, ROW, better, {**ROW, "case": "b"})
    first = next(place for place, line in enumerate(lines) if line.startswith("case "))
    assert [" ".join(line.split()) for line in lines[first : first + 3]] == [
        "case best attack recovered exact seconds",
        "fc2, [red]batch[/red] 8 gauss_newton 8 of 16 [25 %, 75 %] 4 3.2",
        "fc2, batch 16 inverting_gradients 2 of 16 [2 %, 38 %] - 12.5",
    ]
    assert not [line for line in lines if line.startswith("attack ")], "tables by attack are details"


def test_the_default_audit_fits_on_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    cases = resolve_cases(read_recipe(find_recipe(None)))
    rows = [
        nested(**{**ROW, "case": case.case, "attack": name, "recovered": 1.0})
        for case in cases
        for name in ("gradient_matching", "cocktail_party", "linear")
    ]
    titled = [named_case(case).record() for case in cases]
    told = {"hits": 9, "of": 16, "low": 0.3, "high": 0.8}
    member = {"case": cases[-1].case, "test": "matched_filter", "members": 16, "others": 16, "auc": 0.93,
              "auc_low": 0.83, "auc_high": 0.99, "level": 0.01, "members_identified": told, "others_identified": told,
              "seconds": 1.0}  # fmt: skip
    flags = [
        {"case": case.case, "name": f"kind-{case.case}", "severity": "warning", "message": "x" * 90} for case in cases
    ]
    bare = Result.model_validate(
        {"verdict": "", "verdict_level": "", "rows": rows, "cases": titled, "membership": [member], "thresholds": {},
         "warnings": flags[:2]}
    )  # fmt: skip
    print_result(terminal.Path("run"), with_verdict(bare), quiet=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(cases) == 13
    assert sum(-(-len(line) // 100) or 1 for line in lines) <= 40


def test_a_row_has_its_numbers_in_words_and_digits(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, ROW, details=True)
    found = [line for line in lines if line.startswith("inverting")]
    assert [" ".join(line.split()) for line in found] == [
        "inverting_gradients 2/16 16.8 17 [16, 20] 0.50 12.5 partly recovered"
    ]
    assert "fc2, [red]batch[/red] 8" in lines, "words of strangers are printed, not obeyed"
    assert any("13.8" in line and "8.7 dB" in line for line in lines), "what is had without the update"
    assert "LEAKS. [bold]no markup[/bold]" in lines


def test_what_does_not_apply_is_a_dash_and_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    why = {"status": "inapplicable", "reason": "no bias; use dlg", "outcome": "does not apply"}
    row = {**ROW, **NULLS, "attack": "linear", **why}
    lines = printed(capsys, ROW, row, {**row, "attack": "rgap"})
    assert not any(name in line for line in lines for name in ("linear", "rgap", "no bias"))
    lines = printed(capsys, ROW, row, details=True)
    (found,) = [line for line in lines if line.startswith("linear ")]
    assert found.split() == ["linear", "-", "-", "-", "-", "-", "does", "not", "apply"]
    assert "linear, does not apply: no bias; use dlg" in printed(capsys, row), "why a case has no result is no detail"
    (alone,) = [line for line in printed(capsys, row, details=True) if line.startswith("linear ")]
    assert alone.split() == ["linear", "-", "does", "not", "apply"]  # without columns of scores that nothing has
    assert "linear, does not apply: no bias; use dlg" in lines
    lines = printed(
        capsys, row, {**row, "case": "b"}, {**ROW, "attack": "dlg", "reason": "on 1 of 2 batches: x"}, details=True
    )
    assert sum("no bias" in line for line in lines) == 1, "what is true of both cases is said once"
    assert "linear, does not apply (2 of 2 cases): no bias; use dlg" in lines
    assert "dlg, no result (fc2, [red]batch[/red] 8): on 1 of 2 batches: x" in lines


def test_verdict_warnings_and_table_come_in_this_order(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        {"case": "a", "attack": name, "name": kind, "severity": severity, "message": f"{name} {kind}."}
        for name, kind, severity in (
            ("dlg", "failed", "warning"),
            ("sapag", "failed", "warning"),
            ("x", "known", "note"),
        )
    ]
    lines = printed(capsys, ROW, warnings=flags)
    heads = ("LEAKS. [bold]no markup[/bold]", "case ", "warning: dlg failed. 1 more warning of this kind: flags.json.")
    places = [next(i for i, line in enumerate(lines) if line.startswith(head)) for head in (*heads, "report: ")]
    assert places == sorted(places)
    assert not any("known" in line for line in lines), "a note is no warning"


def test_a_run_of_an_earlier_version_has_no_median(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, {key: value for key, value in ROW.items() if key != "psnr_median"}, details=True)
    assert [line.split()[2:4] for line in lines if line.startswith("inverting")] == [["-", "17"]]


def test_no_word_of_a_stranger_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\u202e\x9b1m\r\nLEAKS"
    row = {**ROW, "attack": evil, "reason": evil, "side_information": [evil], "alignment": f"a+{evil}"}
    case = {"name": "a", "title": evil, "baselines": None, "inferred": {evil: evil}, "promise": {"caveats": [evil]}}
    result = {
        "verdict": evil, "verdict_level": "exact", "rows": [nested(**row)], "cases": [{**case, "exposure": evil}],
        "thresholds": {"exact_db": 40, "recovered_gain_db": 3},
    }  # fmt: skip
    for quiet in (False, True):
        print_result(terminal.Path("run"), Result.model_validate(result), quiet=quiet)
        out = capsys.readouterr().out
        assert not [c for c in out if not c.isprintable() and c != "\n"]
        assert not any(line.startswith("LEAKS") for line in out.splitlines())


def test_a_promise_stands_beside_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    promise = {"epsilon": 8.123, "delta": 1e-5, "unit": "example", "rounds": 1, "caveats": []}
    result = {
        "verdict": "LEAKS.", "verdict_level": "exact", "rows": [nested(**ROW)],
        "thresholds": {"recovered_gain_db": 3.0, "exact_db": 40.0},
        "cases": [{"name": "a", "title": "fc2", "baselines": None, "promise": promise}],
        "summary": [{"name": "empirical_epsilon", "tried": False, "words": "not tried: ask with --prove"}],
    }  # fmt: skip
    print_result(terminal.Path("run"), Result.model_validate(result), quiet=False)
    lines = capsys.readouterr().out.splitlines()
    (claimed,) = [line for line in lines if line.startswith("claimed")]
    assert lines.index("LEAKS.") < lines.index(claimed) < next(i for i, line in enumerate(lines) if line[:5] == "case ")
    assert all(fact in claimed for fact in ("8.12", "1e-05", "example", "1 round"))


def test_a_single_case_has_no_name_to_tell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = (
        (0, 1, Doing("", Phase.RECORDING)), (0.5, 1, Doing("dlg")), (0, 1, Doing("", Phase.SCORING)),
        (0.99, 1, Doing("the report", Phase.WRITING)),
    )  # fmt: skip
    assert logged(monkeypatch, capsys, *shown) == ["recording", "attacking: 50%, dlg", "scoring", "writing: the report"]


def test_words_are_explained_where_they_occur(capsys: pytest.CaptureFixture[str]) -> None:
    explained = "features only: what an inner layer reads"
    assert explained not in " ".join(printed(capsys, ROW, details=True))
    said = " ".join(printed(capsys, {**ROW, **NULLS, "outcome": "features only"}, details=True))
    assert explained in " ".join(said.split())


def test_what_an_attacker_was_told_is_a_column_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert not [line for line in printed(capsys, ROW, details=True) if {"knows", "knew"} & set(line.split())]
    lines = printed(capsys, ROW, {**ROW, "attack": "dlg", "side_information": ["labels"], "recovered": 1.0})
    assert any(line.split()[:4] == ["case", "best", "attack", "knew"] for line in lines)
    lines = printed(capsys, ROW, {**ROW, "attack": "dlg", "side_information": ["labels"]}, details=True)
    assert [line.split()[:2] for line in lines if line.startswith(("attack", "dlg", "inverting"))] == [
        ["attack", "knows"], ["inverting_gradients", "-"], ["dlg", "labels"]
    ]  # fmt: skip


def test_quiet_is_the_verdict_and_an_old_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, ROW, quiet=True) == ["LEAKS. [bold]no markup[/bold]"]
    assert any("finished earlier" in line for line in printed(capsys, ROW, note_old=True))


def test_no_line_of_a_terminal_ends_within_an_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "error: nothing could be scored; mend that, or end with 0 all the same with --allow-inconclusive"
    say(words)
    assert capsys.readouterr().err == f"{words}\n", "a file has whole lines"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "85")
    say(words)
    assert capsys.readouterr().err.endswith("same with\n--allow-inconclusive\n")
