"""Rows, verdict and gate, over rows made by hand."""

import math
import re
from statistics import median_low
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.rows import parts_of, result_of, row_of, violations

from seepage import LinearLeak
from seepage.audit.attempt import Attempt
from seepage.audit.findings import UNTRUSTED, findings
from seepage.audit.gate import Condition, met, parse_condition
from seepage.audit.recipe.case import Recipe
from seepage.audit.row import SCORE_NAMES, Case, Outcome, Result, Row
from seepage.audit.score import skipped_row, worst_status
from seepage.audit.verdict import reasons, verdict
from seepage.audit.verdict_summary import reconstructed
from seepage.base.schema import Finding, Summary, parse
from seepage.errors import SeepageError
from seepage.measure.metrics import Scores
from seepage.report.formatting import NONE
from seepage.report.table import RowTexts

TITLES = {"a": "case A", "b": "case B"}

BASE: dict[str, Any] = {
    "case": "a", "attack": "dlg", "status": "ok", "reason": None, "side_information": [], "examples": 8, "seconds": 1.0,
    **dict.fromkeys(SCORE_NAMES), "recovered": 0.0, "exact": 0.0, "psnr": 9.0, "ssim": 0.1, "gain_db": -3.0,
    "outcome": "",
}  # fmt: skip


def row(**changes: Any) -> Row:
    """A row of an attack that recovered nothing, with changes by the names of its numbers."""
    return row_of(**{**BASE, **changes})


def cases_of(titles: dict[str, str], defenses: dict[str, str | None] | None = None) -> list[Case]:
    """Cases with these titles, whose parts are between commas that stand in no brackets."""
    known = defenses or {}
    return [
        Case(name=name, title=title, title_parts=re.split(r", (?![^(]*\))", title), defense=known.get(name))
        for name, title in titles.items()
    ]


NO_SCORE: dict[str, Any] = dict.fromkeys(SCORE_NAMES)


PHRASES: list[tuple[dict[str, Any], str]] = [
    ({"status": "inapplicable", **NO_SCORE}, "does not apply"),
    ({"status": "inapplicable", "zero_update": True, **NO_SCORE}, "zero update"),
    ({"status": "error", **NO_SCORE}, "failed"),
    (NO_SCORE, "not scored"),
    ({"exact": 1.0, "recovered": 1.0, "gain_db": 90.0}, "exact"),
    ({"exact": 0.25, "recovered": 1.0}, "2/8 exact"),
    ({"exact": 1.0, "recovered": 0.5}, "8/8 exact"),
    ({"recovered": 1.0}, "recovered"),
    ({"recovered": 0.125}, "partly recovered"),
    ({"gain_db": 0.5}, "partial"),
    ({"gain_db": 0.0}, "nothing recovered"),
    ({"gain_db": -0.5, "psnr": 35.0}, "nothing recovered"),
    ({"gain_db": None}, "nothing recovered"),
    ({"status": "exhausted", "recovered": 1.0}, "recovered"),
]


def test_a_row_in_two_words() -> None:
    assert [(changes, row(**changes).phrase) for changes, _ in PHRASES] == PHRASES


LEVELS = [
    ("exact", [row(exact=0.5, recovered=0.5, gain_db=30.0), row(case="b")]),
    ("recognizable", [row(recovered=0.25, gain_db=5.0), row(case="b", gain_db=1.0)]),
    ("partial", [row(gain_db=1.0), row(case="b")]),
    ("nothing", [row(), row(case="b")]),
    ("unscored", [row(**NO_SCORE), row(case="b", **NO_SCORE)]),
    ("certified", [row(**NO_SCORE, returned=3, certified_guesses=2), row(case="b", **NO_SCORE)]),
    ("unscored", [row(**{**NO_SCORE, "outcome": "features only"}), row(case="b", status="inapplicable", **NO_SCORE)]),
    ("unscored", [row(status="inapplicable", **NO_SCORE), row(case="b", status="error", **NO_SCORE)]),
]


def test_the_level_of_a_run() -> None:
    for number, (level, rows) in enumerate(LEVELS):
        found, text = verdict(rows, cases_of(TITLES))
        assert found == level, number
        assert text == " ".join(text.split())
        assert ("LEAKS" in text) == (level in ("exact", "recognizable", "certified")), number
        assert re.match(r"[A-Z ,]+\. ", text), "it begins with the verdict in capitals"


UNTOLD = "he attackers did not know of the defense"


@pytest.mark.parametrize(
    ("rows", "defenses", "untold", "doubt"),
    [
        ([row()], {"a": "noise"}, True, "--no-undefended"),
        ([row(gain_db=1.0)], {"a": "noise"}, True, "--no-undefended"),
        ([row(recovered=0.5)], {"a": "noise"}, True, ""),
        ([row(**NO_SCORE)], {"a": "noise"}, True, ""),
        ([row(side_information=["labels"])], {"a": "noise"}, True, "--no-undefended"),
        ([row(side_information=["defense"])], {"a": "noise"}, False, "--no-undefended"),
        ([row()], {"a": None}, False, ""),
        ([row()], {}, False, ""),
        ([row(), row(case="b")], {"a": "noise", "b": "more"}, True, "--no-undefended"),
        ([row(), row(case="b")], {"b": "noise"}, True, "attack.steps"),
        ([row(recovered=1.0), row(case="b")], {"a": None, "b": "noise"}, True, ""),
        ([row(recovered=1.0), row(case="b", attack="linear")], {"a": None, "b": "noise"}, True, "attack.steps"),
        ([row(recovered=1.0), row(case="b")], {"a": "weak noise", "b": "noise"}, True, ""),
        ([row(status="error", **NO_SCORE)], {"a": "noise"}, False, ""),
    ],
)
def test_nothing_behind_a_defense_is_inconclusive_unless_the_attacks_are_shown_to_work(
    rows: list[Row], defenses: dict[str, str | None], untold: bool, doubt: str
) -> None:
    """With what would show it; the case is named where only some have a defense. That no attacker knew is said too."""
    titles = TITLES if len(rows) > 1 else {"a": "case A"}
    level, text = verdict(rows, cases_of(titles, defenses))
    plain, without = verdict(rows, cases_of(titles))
    assert (UNTOLD in without, UNTOLD in text) == (False, untold)
    assert [option for option in ("--no-undefended", "attack.steps") if option in text] == ([doubt] if doubt else [])
    leaks = plain in ("exact", "recognizable")
    assert level == ("inconclusive" if doubt and not leaks else plain)
    assert ("INCONCLUSIVE" in text) == bool(doubt)
    some = untold and len(rows) > 1 and not defenses.get("a")
    assert (f"(case B) t{UNTOLD}" in text) == some


@pytest.mark.parametrize(("likeness", "said"), [(0.31, True), (0.1, False)])
def test_guesses_that_nearly_count_as_recovered_are_to_be_looked_at(likeness: float, said: bool) -> None:
    near = row(attack="near")
    near.scores["likeness"] = Summary(mean=likeness, median=likeness)
    level, text = verdict([row(), near], cases_of(TITLES))
    assert level == "nothing"
    assert ("Look at the pictures of near all the same: half of them have a likeness of 0.31 or more." in text) == said


def test_a_case_run_beside_a_defense_shows_that_the_attacks_work_and_is_no_finding() -> None:
    """It is in no count of cases, and neither reddens the gate nor makes the verdict; without it nobody could tell."""
    defended = Case(name="a", title="net, noise", defense="noise", undefended="b")
    control = Case(name="b", title="net, no defense", control=True)
    leak = row(case="b", exact=1.0, recovered=1.0, gain_db=60.0)
    rows, cases = [row(), leak], [defended, control]
    level, text = verdict(rows, cases)
    assert (level, text.partition(".")[0]) == ("nothing", "NOTHING RECOGNIZABLE")
    assert "In 1 audited case" in text
    assert text.endswith("Without the defense: 8 of 8 examples exactly [63 %, 100 %], by dlg on net, no defense.")
    level, text = verdict([row(), row(case="b")], cases)
    assert level == "inconclusive"
    assert "recover nothing without the defense either" in text
    result = result_of(rows, cases, verdict=text, verdict_level=level, summary=parts_of(rows, cases))
    assert met(result, Condition("recovered", ">", 0.0)) == []
    assert result.summary[0].value == 0.0
    unsure = [case.model_copy(update={"inconclusive": "why"} if not case.control else {}) for case in cases]
    assert parts_of(rows, unsure)[0].words.startswith("inconclusive: 0 of 8 examples")
    assert met(result.model_copy(update={"rows": [leak.model_copy(update={"case": "a"})]}), Condition("exact", ">", 0))


def test_what_is_given_away_in_closed_form_is_a_leak_whatever_attacks_were_run() -> None:
    given = [Case(name="a", title="net", exposed_examples=3, exposed_of=4)]
    result = result_of([row()], given, verdict_level="nothing")
    level, text = verdict(result.rows, given)
    assert (level, text.partition(".")[0]) == ("certified", "LEAKS, BY ITS OWN PROOF")
    assert "3 of 4 examples exactly [19 %, 99 %], as the network was given them, in closed form, on net" in text
    side = parts_of(result.rows, given)[0]
    assert side.words.startswith("3 of 4 examples exactly [19 %, 99 %]")
    unknown = given[0].model_copy(update={"exposed_of": None, "inferred": {}})
    assert parts_of([row(examples=None, scores={})], [unknown])[0].words.startswith(
        "3 of 3 or more examples exactly, as"
    )
    assert parts_of([row()], [unknown])[0].words.startswith("3 of 8 examples exactly [")
    assert (side.value, side.tried) == (0.75, True)
    for score in ("recovered", "exact", "certified"):
        assert [(one.name, one.value) for one in met(result, Condition(score, ">", 0.5))] == [("closed form", 0.75)]
    assert [(one.by, one.state, one.severity) for one in findings(result)] == [
        ("dlg", "quiet", "note"), ("closed_form", "leaks", "error")
    ]  # fmt: skip
    defended = Case(name="b", title="other", defense="noise")
    both = verdict([row(), row(case="b")], [*given, defended])[1]
    assert "INCONCLUSIVE: In 1 audited case (other) these attacks" in both
    exact = row(exact=1.0, recovered=1.0, gain_db=60.0)
    assert verdict([exact], given)[0] == "exact"
    assert "closed form" not in verdict([exact], given)[1], "the attack says the same"
    assert parts_of([exact], given)[0].value == 1.0


@pytest.mark.parametrize("name", [*UNTRUSTED, "objective-limits"])
def test_a_count_of_nothing_beside_a_warning_that_it_cannot_be_trusted_is_inconclusive(name: str) -> None:
    """Not beside any: where a better fit than the truth was found, the attack did what it can."""
    cases = cases_of({"a": "case A"})
    flag = Finding(case="a", attack="dlg", name=name, severity="warning", message="So it is.")
    level, text = verdict([row()], cases, [flag])
    assert (level == "inconclusive") == (name in UNTRUSTED)
    assert text.startswith("INCONCLUSIVE. ") == (name in UNTRUSTED)
    assert verdict([row(recovered=1.0)], cases, [flag])[0] == "recognizable"
    assert verdict([row()], cases, [flag.model_copy(update={"severity": "note"})])[0] == "nothing"
    untried = row(attack="dlg", status="not_tried", **NO_SCORE)
    assert verdict([row(), untried], cases)[0] == "inconclusive", "it was left out for want of time"


def test_a_reason_is_given_once_however_many_attacks_and_cases_have_it() -> None:
    def without(attack: str, outcome: str, reason: str, case: str) -> Row:
        return Row(case=case, attack=attack, outcome=outcome, reason=reason)

    entries = [without(attack, "not_recorded", "too few examples", "c") for attack in "abcd"]
    entries += [without("dlg", "failed", "no memory", case) for case in ("a", "b")]
    entries += [without(attack, "does_not_apply", "no bias", "b") for attack in ("linear", "cafe")]
    assert reasons(entries, {"a": "A", "b": "B", "c": "C"}) == [
        ("4 attacks", "not recorded (C): too few examples"),
        ("dlg", "failed (2 of 3 cases): no memory"),
        ("linear, cafe", "does not apply (B): no bias"),
    ]
    assert reasons([without("dlg", "failed", "no memory", "a")], {"a": "A"}) == [("dlg", "failed: no memory")]


@given(st.lists(st.floats(0, 150), min_size=1, max_size=9))
def test_the_median_is_what_half_of_the_examples_reach(values: list[float]) -> None:
    found = scores_of(values).psnr_median
    assert found == median_low(values)
    assert sum(value >= found for value in values) >= len(values) / 2
    assert scores_of([*values, math.nan]).psnr_median == found


def scores_of(values: list[float]) -> Scores:
    count = len(values)
    return Scores(
        alignment="identity", metrics=("psnr",), values={"psnr": torch.tensor(values, dtype=torch.float64)},
        baseline_values={}, matched=torch.ones(count, dtype=torch.bool), recovered_each=None, exact_each=None,
        batches=torch.zeros(count, dtype=torch.int64), label_shares=torch.full((1,), math.nan),
    )  # fmt: skip


def test_what_cannot_be_scored_is_called_what_it_is() -> None:
    cases = [case.model_copy(update={"kind": "records"}) for case in cases_of({"a": "case A"})]
    features = Row(case="a", attack="x", outcome="features_only", space="feature", returned=2)
    guesses = Row(case="a", attack="x", outcome="not_scored", returned=2)
    assert "images" not in verdict([features], cases)[1]
    assert "goes on from there to images" in verdict([features], cases_of({"a": "case A"}))[1]
    assert "Look at the records." in verdict([guesses], cases)[1]


CONDITIONS: list[tuple[str, tuple[str, str, float] | None]] = [
        ("psnr>20", Condition("psnr", ">", 20.0)), (" ssim >= .5", None), ("ssim>=0.5", ("ssim", ">=", 0.5)),
        ("gain_db < -1e1", ("gain_db", "<", -10.0)), ("recovered<=1", ("recovered", "<=", 1.0)), ("psnr>nan", None),
        ("psnr>1e", None), ("psnr => 3", None), ("psnr>20;ssim>1", None), ("psnr>inf", None),
        ("psnr>1e400", None),
]  # fmt: skip


def test_conditions() -> None:
    for text, condition in CONDITIONS:
        if condition is not None:
            assert parse_condition(text) == condition
            continue
        with pytest.raises(SeepageError, match="SCORE>NUMBER"):
            parse_condition(text)


def test_a_condition_on_what_is_no_score_is_refused() -> None:
    with pytest.raises(SeepageError, match="did you mean 'psnr'"):
        parse_condition("pnsr>2")
    with pytest.raises(SeepageError, match="unknown score"):
        parse_condition("seconds>2")


@pytest.mark.parametrize(("sign", "wanted"), [(">", [3]), (">=", [2, 3]), ("<", [1]), ("<=", [1, 2])])
def test_rows_that_meet_a_condition(sign: str, wanted: list[int]) -> None:
    rows = [row(psnr=float(n)) for n in (1, 2, 3)] + [row(**NO_SCORE)]
    assert [found.value for found in violations(rows, Condition("psnr", sign, 2.0))] == wanted


def test_a_score_that_no_row_of_a_case_has_cannot_be_judged() -> None:
    for rows in ([], [row(**NO_SCORE)], [row()], [row(lpips=0.1), row(case="b")]):
        with pytest.raises(SeepageError, match="'lpips'"):
            violations(rows, Condition("lpips", ">", 0.5))
    with pytest.raises(SeepageError, match="'psnr' in b"):
        violations([row(psnr=9.0), row(case="b", status="error", **NO_SCORE)], Condition("psnr", ">", 20.0))


def test_a_gate_says_what_lets_it_be_judged() -> None:
    silent = row(status="inapplicable", **NO_SCORE)
    with pytest.raises(SeepageError, match="add attacks that apply"):
        violations([silent], Condition("recovered", ">", 0.0))
    with pytest.raises(SeepageError, match="no attack that ran can certify its guesses"):
        violations([silent, row(returned=3, **NO_SCORE)], Condition("certified", ">", 0.0))


def test_a_case_whose_members_were_not_tested_does_not_pass_the_gate() -> None:
    rate = {"hits": 0, "of": 8, "low": 0.0, "high": 0.37}
    tested = {"case": "a", "test": "matched_filter", "auc": 0.5, "members_identified": rate, "others_identified": rate}
    failed = {"case": "b", "test": "matched_filter", "status": "error", "reason": "no memory"}
    cases: list[dict[str, Any]] = [{"name": "a"}, {"name": "b"}]
    base = {"verdict": "", "verdict_level": "nothing", "rows": [], "thresholds": {}}
    condition = Condition("members_identified", ">", 0.0)
    whole = Result.model_validate({**base, "membership": [tested], "cases": cases})
    assert met(whole, condition) == []  # nobody asked for the other case
    skipped = [cases[0], {**cases[1], "membership_skipped": "too few examples"}]
    for part in ({"membership": [tested, failed], "cases": cases}, {"membership": [tested], "cases": skipped}):
        with pytest.raises(SeepageError, match=r"'members_identified' in b.*--membership"):
            met(Result.model_validate({**base, **part}), condition)


def test_a_case_that_sent_nothing_is_no_reason_to_fail() -> None:
    nothing = row(case="b", status="inapplicable", zero_update=True, **NO_SCORE)
    assert violations([row(psnr=9.0), nothing], Condition("psnr", ">", 20.0)) == []


NOT_RECORDED = skipped_row(Recipe(), "b", "dlg", LinearLeak(), (), "too few examples")


def test_a_case_that_could_not_be_recorded_is_not_passed_over() -> None:
    with pytest.raises(SeepageError) as error:
        violations(
            [row(psnr=9.0), NOT_RECORDED, NOT_RECORDED.model_copy(update={"attack": "linear"})],
            Condition("psnr", ">", 20.0),
        )
    assert "--fail-if cannot be judged: b " in str(error.value)
    assert str(error.value).count("too few examples") == 1
    others = [NOT_RECORDED.model_copy(update={"case": case}) for case in "bcde"]
    with pytest.raises(SeepageError, match="b, c, d and others"):
        violations([row(psnr=9.0), *others], Condition("psnr", ">", 20.0))


@pytest.mark.parametrize("other", [NOT_RECORDED, row(case="b", status="error", **NO_SCORE)])
def test_a_gate_that_a_case_closed_is_closed_whatever_became_of_another(other: Row) -> None:
    assert [found.value for found in violations([other, row(psnr=90.0)], Condition("psnr", ">", 20.0))] == [90.0]


def test_the_worst_status_is_shown() -> None:
    def of(*statuses: Any) -> str:
        return worst_status([Attempt(status, "x") for status in statuses])

    assert of("ok", "exhausted", "ok") == "exhausted"
    assert of("ok", "inapplicable", "diverged") == "inapplicable"
    assert of("inapplicable", "error") == "error"
    assert of("ok") == "ok"


def test_a_result_file_needs_what_readers_rely_on() -> None:
    good: dict[str, Any] = {
        "verdict": "", "verdict_level": "nothing", "thresholds": {}, "rows": [row().model_dump(mode="json")],
        "cases": [{"name": "a", "title": "A", "baselines": None}],
    }  # fmt: skip
    assert parse(Result, good, "x").thresholds.exact_db == 40.0
    for key in good:
        with pytest.raises(SeepageError, match=f"x .*'{key}'"):
            parse(Result, {k: v for k, v in good.items() if k != key}, "x")
    for key in ("case", "attack", "outcome"):
        rows = [{k: v for k, v in row().model_dump(mode="json").items() if k != key}]
        with pytest.raises(SeepageError, match=f"'{key}'"):
            parse(Result, {**good, "rows": rows}, "x")


CERTIFIED_FEATURES: dict[str, Any] = {
    **NO_SCORE, "attack": "cocktail_party", "outcome": "features only", "space": "feature", "returned": 1,
    "certified_guesses": 1,
}  # fmt: skip


@pytest.mark.parametrize("beside", [[], [row(attack="cpa_fia", **NO_SCORE, returned=1)]], ids=["alone", "with-guess"])
def test_certified_features_are_no_certified_examples_anywhere(beside: list[Row]) -> None:
    features = row(**CERTIFIED_FEATURES)
    rows = [features, *beside]
    level, text = verdict(rows, cases_of(TITLES))
    assert level == "unscored"
    assert "LEAKS" not in text
    assert "1 inner feature certified, which is no example" in text
    found = reconstructed(rows, TITLES)
    assert found.words.startswith("1 inner feature certified, which is no example, by cocktail_party on ")
    assert violations(rows, parse_condition("certified>0")) == []
    result = result_of([features], cases_of(TITLES), verdict=text, verdict_level=level)
    finding = findings(result)[0]
    assert (finding.state, finding.severity) == ("open", "warning"), "nobody knows what can be reconstructed here"
    assert "inner feature" in finding.words
    assert "guess" not in finding.words
    texts = RowTexts(features)
    assert (texts.recovered, texts.outcome) == (NONE, "features only, 1 of them certified")


def test_certified_examples_beside_certified_features_leak_and_are_the_ones_named() -> None:
    rows = [
        row(**CERTIFIED_FEATURES | {"certified_guesses": 5}),
        row(attack="linear", **NO_SCORE, returned=1, certified_guesses=1),
    ]
    assert verdict(rows, cases_of(TITLES))[0] == "certified"
    assert reconstructed(rows, TITLES).words.startswith("1 guess certified, by linear on ")
    assert [one.name for one in violations(rows, parse_condition("certified>0"))] == ["linear"]


def test_an_attack_that_was_not_tried_for_want_of_time_opens_no_gate() -> None:
    tried = Row(case="a", attack="linear", outcome=Outcome.NOTHING_RECOVERED, scores={"psnr": Summary(mean=9.0)})
    left_out = Row(case="a", attack="dlg", status="not_tried", outcome=Outcome.NOT_TRIED)
    assert violations([tried], parse_condition("psnr>20")) == []
    with pytest.raises(SeepageError, match="--minutes"):
        violations([tried, left_out], parse_condition("psnr>20"))
    assert violations([tried, left_out], parse_condition("psnr>5"))
