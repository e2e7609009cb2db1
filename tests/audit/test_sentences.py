"""All that a verdict can say."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.rows import result_of, row_of
from tests.helpers.sentences import assert_as_read

from seepage.audit.result_rows import tells_members
from seepage.audit.row import Case, EpsilonRow, MembershipRow, Result, Row
from seepage.audit.verdict import answers, headline, with_verdict
from seepage.base.schema import Share, Summary
from seepage.measure.privacy.measured.measure import MeasuredEpsilon

FILE = Path(__file__).with_name("sentences.txt")
ROOT = Path(__file__).parents[2]
HEAD = re.compile(r"(?:^|(?<=\. ))([A-Z][A-Z ,]{4,})[.:] ")


def row(case: str = "a", attack: str = "dlg", **more: Any) -> Row:
    """A scored row that recovered nothing, with changes."""
    found = {"examples": 8, "recovered": 0.0, "exact": 0.0, "psnr": 9.0, "ssim": 0.1, "gain_db": -3.0} | more
    return row_of(case=case, attack=attack, **found)


def bare(case: str = "a", attack: str = "dlg", **more: Any) -> Row:
    """A row without a score."""
    return row_of(**{"case": case, "attack": attack, **more})


def failed(case: str, status: str = "error") -> Row:
    return bare(case, status=status, reason="why")


def of(*rows: Row, **more: Any) -> Result:
    """A result with the cases a and b, the parts of whose titles are these."""
    beside = more.pop("cases", [{"name": name} for name in dict.fromkeys(row.case for row in rows)])
    cases = [Case.model_validate({"title": f"net {one['name'].upper()}", "kind": "pictures", **one}) for one in beside]
    return result_of(rows, cases, **more)


NEAR = row(attack="near")
NEAR.scores["likeness"] = Summary(mean=0.31, median=0.31)
SHARE = {"mean": 0.99, "low": 0.95, "high": 0.998, "n": 200}
TOKENS = Row(
    case="a", attack="token_set", outcome="tokens_identified", space="token", returned=198, examples=4,
    certified={"n": 190, "wrong": 0}, scores={"token_recall": SHARE, "token_precision": {**SHARE, "mean": 1.0}},
)  # fmt: skip
RATES = [Share.count(hits, 8) for hits in (7, 0)]
TEST = MembershipRow(
    case="a", test="matched_filter", members=8, others=8, auc=0.98, auc_low=0.9, level=0.01,
    members_identified=RATES[0], others_identified=RATES[1],
)  # fmt: skip
CHANCE = TEST.model_copy(update={"auc": 0.52, "auc_low": 0.4, "auc_high": 0.64, "members_identified": RATES[1]})
TRAINED = {"holdings": "", "accuracies": [[20, 0.5]]}
NOISE = {"name": "a", "defense": "noise"}
CALLS = MeasuredEpsilon(
    delta=1e-5, rounds=1, unit="example", low=2.0, ceiling=8.4, canary="x", statistic="y", hits=(9, 9),
    false_hits=(0, 9), rounds_per_trial=1, fit=None, deterministic=False, calls=40000, seconds=1.0, tried=(),
)  # fmt: skip
EPSILON = EpsilonRow(
    case="a", measured=2.0, ceiling=8.4, calls=40000, delta=1e-5, rounds=1, unit="example", words=CALLS.line
)
FEATURES = {"space": "feature", "returned": 1, "outcome": "features only"}
SAID: dict[str, Result] = {
    "exact": of(row(exact=0.5, recovered=0.5, side_information=["labels"], alignment="hungarian+sign"), row("b")),
    "recognizable, and a case without a result": of(row(recovered=0.25), failed("b")),
    "partial": of(row(gain_db=1.0)),
    "nothing, and a case to which no attack applies": of(row(), failed("b", "inapplicable")),
    "nothing, but nearly": of(row(), NEAR),
    "nothing, in five cases": of(*(row(name) for name in "abcde")),
    "nothing behind a defense, unshown": of(row(), cases=[NOISE]),
    "nothing behind a defense, shown": of(
        row(), row("b", exact=1.0, recovered=1.0), cases=[{**NOISE, "undefended": "b"}, {"name": "b", "control": True}]
    ),
    "not scored, another update": of(bare(returned=3, misfit=0.2, space="input"), bare(attack="idlg", returned=3)),
    "not scored, the update that was sent": of(bare(returned=1, misfit=1e-6, space="input")),
    "certified": of(bare(returned=3, certified_guesses=2, space="input")),
    "certified in closed form": of(row(), cases=[{"name": "a", "exposed_examples": 3, "exposed_of": 4}]),
    "features": of(bare(**FEATURES, certified_guesses=1)),
    "mixture": of(bare(**{**FEATURES, "outcome": "mixture only"})),
    "tokens": of(TOKENS),
    "no attack applies": of(failed("a", "inapplicable")),
    "those that apply failed": of(failed("a")),
    "their time was over": of(failed("a", "inapplicable"), bare(attack="idlg", status="not_tried")),
    "not recorded": of(bare(status="inapplicable", outcome="not recorded")),
    "a zero update": of(bare(status="inapplicable", zero_update=True)),
    "stopped at the deadline": of(row(status="interrupted"), bare(attack="idlg", status="not_tried")),
    "members": of(row(), membership=[TEST]),
    "no members": of(row(), membership=[CHANCE]),
    "membership not tested": of(row(), cases=[{"name": "a", "membership_skipped": "too few examples"}]),
    "a false certificate": of(row(exact=0.5, certified_guesses=3, false_certificates=1), cases=[{"name": "a"}]),
    "a claim that is contradicted": of(row(), epsilons=[
        EPSILON.model_copy(update={"contradicted": ["the stated epsilon of 1 is contradicted"], "stated": 1.0})
    ]),
    "a claim that is not, at what price": of(
        row(), row("b", exact=1.0, recovered=1.0), membership=[CHANCE],
        epsilons=[EPSILON.model_copy(update={"computed": 1.0, "words": replace(CALLS, low=0.0).line})],
        cases=[
            {**NOISE, "undefended": "b", "federation": TRAINED, "accuracy": 0.61, "accuracy_examples": 500,
             "promise": {"epsilon": 1.0, "delta": 1e-5, "unit": "example", "rounds": 1},
             "trained_promise": {"epsilon": 5.0, "delta": 1e-5, "unit": "example", "rounds": 20}},
            {"name": "b", "control": True, "federation": TRAINED, "accuracy": 0.93, "accuracy_examples": 500},
        ],
    ),
    **{
        f"a test of members that {what} without the defense": of(
            row(), row("b"), membership=[CHANCE, test.model_copy(update={"case": "b"})],
            cases=[{**NOISE, "undefended": "b"}, {"name": "b", "control": True}],
        )
        for what, test in (("works", TEST), ("does not work", CHANCE))
    },
}  # fmt: skip


def test_all_that_a_verdict_says_is_as_it_was_read() -> None:
    """Each name with its level, its verdict, what stays of it beside the answers, and these."""
    lines = []
    for name, result in SAID.items():
        found = with_verdict(result)
        shorter = [f"  -> {headline(found)}"] if headline(found) != found.verdict else []
        parts = [f"  {question}: {words}" for question, words in answers(found)]
        lines += [f"{name} ({found.verdict_level})", f"  {found.verdict}", *shorter, *parts, ""]
    assert_as_read(lines, FILE)


def test_the_page_says_what_to_sign_for_each_word_that_a_verdict_begins_with() -> None:
    page = (ROOT / "docs/concepts/four-questions.md").read_text(encoding="utf-8").partition("## What to sign")[2]
    heads = {head for found in SAID.values() for head in HEAD.findall(with_verdict(found).verdict)}
    assert len(heads) > 10
    assert [head for head in heads if head not in page] == []


def told(case: str, hits: int, false: int, of: int) -> MembershipRow:
    """A test of few candidates whose area tells nothing."""
    rates = {"members_identified": Share.count(hits, of), "others_identified": Share.count(false, of)}
    return TEST.model_copy(update={"case": case, "members": of, "others": of, "auc": 0.9, "auc_low": 0.2, **rates})


def test_few_members_of_many_cases_are_members_and_few_of_one_are_open() -> None:
    rows = [told("a", 2, 0, 2), told("b", 4, 0, 4), told("c", 3, 0, 4)]
    names = [{"name": name} for name in "abc"]
    assert not any(row.tells for row in rows[:1])
    assert tells_members(rows)
    assert "MEMBERS IDENTIFIED" in with_verdict(of(row(), row("b"), row("c"), membership=rows, cases=names)).verdict
    alone = with_verdict(of(row(), membership=rows[:1]))
    assert "MEMBERSHIP OPEN" in alone.verdict
    assert "NO MEMBERS" not in alone.verdict
    other = rows[0].model_copy(update={"test": "another"})
    assert not tells_members([rows[0], other]), "two tests of the same candidates are no more evidence"


def test_an_area_above_chance_identifies_nobody_and_a_wide_interval_leaves_membership_open() -> None:
    whole = told("a", 0, 1, 80).model_copy(update={"auc": 0.6, "auc_low": 0.52, "auc_high": 0.69})
    found = with_verdict(of(row(), membership=[whole])).verdict
    assert "MEMBERSHIP LEAKS" in found
    assert "MEMBERS IDENTIFIED" not in found
    assert "0.52" in found
    few = told("a", 0, 0, 4).model_copy(update={"auc": 0.75, "auc_low": 0.0, "auc_high": 1.0})
    found = with_verdict(of(row(), membership=[few])).verdict
    assert "MEMBERSHIP OPEN" in found
    assert "NO MEMBERS" not in found


@pytest.mark.slow
def test_where_nothing_tells_members_are_rarely_told() -> None:
    """Members and others draw p-values alike, from one calibration in each case: Fisher's strata are exact there."""
    generator, found, runs = np.random.default_rng(0), 0, 250
    for _ in range(runs):
        rows = []
        for name in "abc":
            limit = np.sort(generator.random(200))[-2]  # calibrated by 200 public examples at one in a hundred
            members, others = (int((generator.random(16) > limit - 0.05).sum()) for _ in range(2))
            rows.append(told(name, members, others, 16))
        found += tells_members(rows)
    # Up to 0.005 for all cases together and for each of three alone; binomial, three standard deviations above.
    assert found / runs <= 0.02 + 3 * (0.02 * 0.98 / runs) ** 0.5
