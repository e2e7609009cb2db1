"""From saved answers to an attack success rate, against closed forms."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from seepage.errors import SeepageError
from seepage.papers.judging import lines, read_answers, tally, write_judged
from seepage.papers.judging.answers import Answers
from seepage.papers.judging.tally import asr_interval, cohen_kappa
from seepage.report.human_study import JudgedStudy, open_judged

PAGE = "0123456789ab"
WORDS = ("same", "not", "unsure")
GUESSES = 6
RIGHT = {"same": "same", "other": "not", "flat": "not"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the key of one page: six guesses of `dlg`, and fifteen controls, five of each kind."""
    pairs = {f"g{i}": _subject("guess", i) for i in range(GUESSES)}
    pairs |= {f"{kind}{i}": _subject(kind, i) for kind in RIGHT for i in range(5)}
    groups = [{"case": "c", "attack": "dlg", "returned": 6, "examples": 8}]
    _write(tmp_path / "private" / f"judge-{PAGE}.json", {"schema": 1, "pairs": pairs, "groups": groups})
    return tmp_path


def _subject(kind: str, i: int) -> dict[str, Any]:
    return {"kind": kind, "case": "c", "attack": "dlg" if kind == "guess" else "", "round": 0, "example": i}


def _write(path: Path, record: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record))
    return path


def said(judge: str, guesses: str, *, missed: int = 0, controls: int = 15) -> Answers:
    """Answers of a judge: one letter per guess (s, n, u, or - for none), and so many wrong controls."""
    letters: dict[str, Any] = {"s": "same", "n": "not", "u": "unsure"}
    words = {f"g{i}": letters[letter] for i, letter in enumerate(guesses) if letter != "-"}
    names = [(kind, i) for i in range(5) for kind in RIGHT][:controls]
    wrong: dict[str, Any] = {"same": "unsure", "other": "same", "flat": "same"}
    right: dict[str, Any] = RIGHT
    words |= {f"{kind}{i}": (wrong if n < missed else right)[kind] for n, (kind, i) in enumerate(names)}
    return Answers(judge, PAGE, words)


def clopper_pearson(yes: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson 1934: where the tails of the binomial law hold 2.5 %, by quantiles of the beta law."""
    low = float(beta.ppf(0.025, yes, n - yes + 1)) if yes else 0.0
    return low, float(beta.ppf(0.975, yes + 1, n - yes)) if yes < n else 1.0


def test_one_judge(run: Path) -> None:
    (row,) = tally(run, [said("AB", "ssnnun")]).rows
    assert (row.pairs, row.judges, row.interval) == (6, 1, "clopper-pearson")
    assert row.asr == pytest.approx(2 / 6)
    assert row.cannot_tell == pytest.approx(1 / 6)
    assert row.asr_of_examples == pytest.approx(2 / 8)
    assert (row.asr_low, row.asr_high) == pytest.approx(clopper_pearson(2, 6), abs=1e-8)


@given(yes=st.integers(0, 30), no=st.integers(0, 30))
def test_the_interval_is_that_of_clopper_and_pearson(yes: int, no: int) -> None:
    if yes + no:
        low, high, how = asr_interval([1.0] * yes + [0.0] * no)
        assert how == "clopper-pearson"
        assert (low, high) == pytest.approx(clopper_pearson(yes, yes + no), abs=1e-8)


def test_several_judges_count_by_guess(run: Path) -> None:
    # Not the share of all answers, which is 6 of 9: each guess counts once, however many judged it.
    judged = tally(run, [said("AB", "ssssnn"), said("CD", "ss---n")])
    (row,) = judged.rows
    assert (row.pairs, row.judges) == (6, 2)
    assert row.asr == pytest.approx(4 / 6)
    assert row.interval == "clopper-pearson", "on every guess its judges agree"
    (split,) = tally(run, [said("AB", "ssssnn"), said("CD", "nsssnn")]).rows
    assert split.asr == pytest.approx((0.5 + 3) / 6)
    assert split.interval == "bootstrap over pairs"
    assert 0 <= split.asr_low < split.asr < split.asr_high <= 1


def test_a_bootstrap_that_would_be_certain_is_none() -> None:
    assert asr_interval([0.5, 0.5, 0.5]) == (None, None, "none")
    assert asr_interval([1 / 3]) == (None, None, "none")


@pytest.mark.parametrize(("missed", "counts"), [(0, True), (3, True), (4, False), (15, False)])
def test_a_judge_may_miss_a_fifth_of_the_controls(run: Path, missed: int, counts: bool) -> None:
    judged = tally(run, [said("good", "ssssss"), said("doubtful", "nnnnnn", missed=missed)])
    assert judged.judges[1].missed == missed
    assert (judged.judges[1].left_out is None) is counts
    assert judged.rows[0].asr == (0.5 if counts else 1.0)
    if not counts:
        (line,) = [line for line in lines(judged, {}) if "doubtful" in line]
        assert f"missed {missed} of 15" in line


def test_who_cannot_be_checked_does_not_count(run: Path) -> None:
    with pytest.raises(SeepageError, match="AB answered 2"):
        tally(run, [said("AB", "ssssss", controls=2)])
    assert tally(run, [said("AB", "ssssss", controls=3)]).rows[0].asr == 1


def test_a_square_is_a_floor(run: Path) -> None:
    judged = tally(run, [said("AB", "ssssss", missed=3)])  # one of each kind
    assert judged.flat_same == pytest.approx(1 / 5)
    assert "20%" in lines(judged, {})[-1]


def slow_kappa(both: list[tuple[str, str]]) -> float | None:
    n = len(both)
    alike = sum(a == b for a, b in both) / n
    chance = sum(sum(a == w for a, _ in both) * sum(b == w for _, b in both) for w in WORDS) / n**2
    return None if chance == 1 else (alike - chance) / (1 - chance)


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS)), min_size=1, max_size=12))
def test_kappa(both: list[tuple[Any, Any]]) -> None:
    expected = slow_kappa(both)
    found = cohen_kappa(both)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-9))


def test_agreement_is_the_mean_over_pairs_of_judges(run: Path) -> None:
    texts = {"A": "ssnnun", "B": "ssnnnn", "C": "nsnnss"}
    judged = tally(run, [said(name, text) for name, text in texts.items()])
    pairs = [("A", "B"), ("A", "C"), ("B", "C")]
    letters = {"s": "same", "n": "not", "u": "unsure"}
    answers = [[(letters[a], letters[b]) for a, b in zip(texts[x], texts[y], strict=True)] for x, y in pairs]
    kappas = [slow_kappa(both) for both in answers]
    assert judged.kappa == pytest.approx(sum(kappa for kappa in kappas if kappa is not None) / 3)
    assert judged.agreement == pytest.approx((5 / 6 + 3 / 6 + 3 / 6) / 3)
    alone = tally(run, [said("A", "ssnnun")])
    assert (alone.kappa, alone.agreement) == (None, None)
    nothing_shared = tally(run, [said("A", "sss---"), said("B", "---nnn")])
    assert (nothing_shared.kappa, nothing_shared.agreement) == (None, None)
    assert any("not defined" in line for line in lines(nothing_shared, {}))


def test_what_is_written_is_read_back(run: Path) -> None:
    judged = tally(run, [said("AB", "ssnnun"), said("CD", "ssnnun", missed=9)])
    write_judged(run, judged)
    assert open_judged(run) == judged
    assert isinstance(judged, JudgedStudy)
    assert open_judged(run / "elsewhere") is None


GOOD: Mapping[str, Any] = {"schema": 1, "page": PAGE, "judge": "AB", "answers": {"g0": "same"}}
BAD: dict[str, Any] = {
    "no table": [],
    "no schema": {**GOOD, "schema": 2},
    "no judge": {**GOOD, "judge": " "},
    "long name": {**GOOD, "judge": "A" * 41},
    "name that moves the cursor": {**GOOD, "judge": "A\x1b[2J"},
    "name on two lines": {**GOOD, "judge": "A\nB"},
    "name is a number": {**GOOD, "judge": 1},
    "page leads out": {**GOOD, "page": "../../../x"},
    "page with a line end": {**GOOD, "page": PAGE + "\n"},
    "page is a list": {**GOOD, "page": [PAGE]},
    "no answers": {**GOOD, "answers": {}},
    "answers in a list": {**GOOD, "answers": ["same"]},
    "another word": {**GOOD, "answers": {"g0": "yes"}},
    "a list for a word": {**GOOD, "answers": {"g0": ["same"]}},
}


@pytest.mark.parametrize("name", BAD)
def test_files_of_strangers_are_checked(tmp_path: Path, name: str) -> None:
    assert read_answers([_write(tmp_path / "good.json", GOOD)])[0].answers == {"g0": "same"}
    with pytest.raises(SeepageError) as refusal:
        read_answers([_write(tmp_path / "bad.json", BAD[name])])
    assert str(refusal.value).isprintable(), "nothing of the file may reach a terminal raw"


def test_no_json_too_large_and_twice(tmp_path: Path) -> None:
    broken, large = tmp_path / "broken.json", tmp_path / "large.json"
    broken.write_text('{"schema": 1')
    large.write_bytes(b" " * (2**20 + 1))
    for path in (broken, large, tmp_path / "missing.json", tmp_path):
        with pytest.raises(SeepageError):
            read_answers([path])
    good = _write(tmp_path / "good.json", GOOD)
    with pytest.raises(SeepageError, match="'AB'"):
        read_answers([good, good])


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (Answers("AB", "f" * 12, {"g0": "same"}), "has no key"),
        (Answers("AB", PAGE, {"g99": "same"}), "'g99'"),
    ],
)
def test_answers_to_another_page(run: Path, answers: Answers, words: str) -> None:
    with pytest.raises(SeepageError, match=words):
        tally(run, [answers])


@pytest.mark.parametrize(
    "change",
    [
        {"pairs": []},
        {"pairs": {"g0": {"kind": "guess"}}},
        {"pairs": {"g0": _subject("odd", 0)}},
        {"groups": None},
        {"groups": [{"case": "c", "attack": "dlg", "returned": 0, "examples": 0}]},
        {"schema": 9},
    ],
)
def test_damaged_keys(run: Path, change: dict[str, Any]) -> None:
    path = run / "private" / f"judge-{PAGE}.json"
    _write(path, {**json.loads(path.read_text()), **change})
    with pytest.raises(SeepageError):
        tally(run, [Answers("AB", PAGE, {"g0": "same"})])
