"""What got worse between two runs, and how often that is said of two runs of the same thing."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.rows import result_of

from seepage.audit.row import Case, MembershipRow, Outcome, Result, Row, Thresholds
from seepage.base.schema import Share, Summary
from seepage.errors import SeepageError
from seepage.report.evidence.comparison import Count, compare, difference


def result(*shares: tuple[int, int], level: str = "exact", exact_db: float = 40.0) -> Result:
    """A run with one case per share; one attack recovers `hits` of `of`, none exactly."""
    rows = [
        Row(
            case=f"c{i}",
            attack="linear",
            outcome=Outcome.RECOVERED,
            examples=of,
            scores={"psnr": Summary(mean=20.0), "recovered": Summary(mean=hits / of), "exact": Summary(mean=0.0)},
        )
        for i, (hits, of) in enumerate(shares)
    ]
    cases = [Case(name=f"c{i}", title=f"case {i}") for i in range(len(shares))]
    return result_of(rows, cases, verdict_level=level, thresholds=Thresholds(exact_db=exact_db))


def test_what_rose_beyond_chance_is_worse_and_what_did_not_is_more() -> None:
    found = compare(result((0, 8), (1, 8), (8, 8)), result((8, 8), (2, 8), (0, 8)))
    kinds = {change.title: change.kind for change in found.changes if change.measure == "recovered"}
    assert kinds == {"case 0": "worse", "case 1": "more", "case 2": "better"}
    assert [change.title for change in found.worse] == ["case 0"]
    assert "0 of 8 -> 8 of 8" in found.worse[0].words


def test_the_more_is_compared_the_more_it_takes_to_be_worse() -> None:
    """4 of 8 after 0 of 8 is worse than 5 % of chance alone, and not one of ten such pairs."""
    assert len(compare(result((0, 8)), result((4, 8))).worse) == 1
    assert not compare(result(*[(0, 8)] * 10), result((4, 8), *[(0, 8)] * 9)).worse


def test_the_same_run_is_not_worse_than_itself() -> None:
    one = result((3, 8), (0, 2), (2, 2))
    assert {change.kind for change in compare(one, one).changes} == {"same"}


def test_what_has_no_result_any_more_is_lost_and_a_case_that_is_new_stands_alone() -> None:
    old, new = result((0, 8), (0, 8)), result((0, 8), (0, 8), (4, 8), (0, 8))
    gone = new.model_copy(update={"rows": [row for row in new.rows if row.case != "c1"]})
    found = compare(old, gone)
    assert {change.title for change in found.lost} == {"case 1"}
    assert not found.worse
    assert [(change.title, change.kind) for change in found.leaks_alone] == [("case 2", "not compared")]
    assert "recovered 4 of 8" in found.leaks_alone[0].words
    assert {change.title for change in found.of("not compared")} == {"case 2", "case 3"}


def with_attack(run: Result, hits: int, **more: object) -> Result:
    """A run in which another attack was tried on its first case, too."""
    row = run.rows[0].model_copy(
        update={"attack": "dlg", "scores": {**run.rows[0].scores, "recovered": Summary(mean=hits / 8)}, **more}
    )
    return run.model_copy(update={"rows": [*run.rows, row]})


def test_an_attack_that_the_older_run_did_not_try_is_not_compared() -> None:
    """It is named, and neither worse nor fine: nobody knows what it would have found before."""
    found = compare(result((4, 8)), with_attack(result((4, 8)), 8))
    assert not found.worse
    (change,) = found.leaks_alone
    assert "dlg on case 0: recovered 8 of 8" in change.words
    assert found.end[1].startswith("CANNOT TELL: 1 count")
    nothing = compare(result((4, 8)), with_attack(result((4, 8)), 0))
    assert not nothing.leaks_alone
    assert {change.rule for change in nothing.of("not compared")} == {"dlg"}
    assert nothing.end[1].startswith("NOT WORSE: none of 2 compared")
    assert "2 counts of the newer run, each 0" in nothing.end[1]


def test_an_attack_that_the_newer_run_did_not_try_is_named() -> None:
    found = compare(with_attack(result((4, 8)), 8), result((4, 8)))
    (lost,) = (change.words for change in found.lost if change.measure == "recovered")
    assert "dlg on case 0: recovered 8 of 8" in lost
    assert not found.of("better", "less")
    silent = {"status": "error", "outcome": Outcome.FAILED, "scores": {}}
    found = compare(with_attack(result((4, 8)), 8, **silent), result((4, 8)))
    assert not found.lost
    assert ["dlg on case 0" in remark for remark in found.remarks] == [True]


@pytest.mark.parametrize(
    ("status", "outcome", "kind", "said"),
    [
        ("inapplicable", Outcome.INAPPLICABLE, "new leak", "did not apply in the older run"),
        ("inapplicable", Outcome.ZERO_UPDATE, "new leak", "the update of the older run was zero everywhere"),
        ("inapplicable", Outcome.NOT_RECORDED, "not compared", "could not be recorded in the older run"),
        ("error", Outcome.FAILED, "not compared", "failed in the older run"),
    ],
)
def test_why_there_was_no_result_before_decides_whether_a_leak_is_new(
    status: str, outcome: Outcome, kind: str, said: str
) -> None:
    before = with_attack(result((4, 8)), 0, status=status, outcome=outcome, scores={})
    found = compare(before, with_attack(result((4, 8)), 8))
    (change,) = (change for change in found.changes if (change.rule, change.measure) == ("dlg", "recovered"))
    assert (change.kind, change.lacking) == (kind, said)
    assert bool(found.worse) == (kind == "new leak")


def changed(run: Result, *, options: str = "", known: list[str] | None = None, **case: object) -> Result:
    """A run whose first case and all attacks are set or told otherwise."""
    rows = [row.model_copy(update={"options": options, "known": known or []}) for row in run.rows]
    return run.model_copy(update={"rows": rows, "cases": [run.cases[0].model_copy(update=case), *run.cases[1:]]})


CAPTURED = {"client": "FedSGD(mode='train')", "rate": 0.1, "batch_size": 3, "input_shape": [1, 8, 8], "data": None}


SOME_FILES, OTHER_FILES = ({"files": {"returned weights": digest * 32}} for digest in ("ab", "cd"))
BOTH = {"inferred": dict.fromkeys(("learning rate", "batch size", "local steps", "input shape"), "")}
LOCAL, SLOWER = ({"client": f"FedAvg(lr={lr}, steps=2)", "rate": None} for lr in (0.1, 0.05))


def of_captured(then: dict[str, Any], now: dict[str, Any]) -> tuple[list[str], str]:
    """Names of what the attackers were told otherwise of a captured update, of which the newer run found less."""
    runs = [changed(result((hits, 8)), **{**CAPTURED, **one}) for hits, one in ((4, then), (0, now))]
    found = compare(*runs)
    names = [words.partition(" of case")[0].partition(" of linear")[0] for words in found.caveats]
    return names, found.end[1].partition(":")[0]


TOLD_OTHERWISE: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {"rate": 0.3}, ["learning rate"]),
    ({}, {"client": "FedSGD(loss='bce', mode='train')"}, ["client"]),
    (LOCAL, SLOWER, ["client"]),
    ({}, {"batch_size": 4}, ["batch size"]),
    ({}, {"input_shape": [1, 4, 16]}, ["shape of an example"]),
    ({}, {"classes": [0, 1]}, ["classes"]),
    ({"decayed": 0.0}, {"decayed": 0.001}, ["weight decay"]),
    ({"decayed": 0.001}, {"decayed": 0.0}, ["weight decay"]),
    ({"known": ["labels"]}, {"known": []}, ["knowledge"]),
    ({"options": "Dlg(steps=300)"}, {"options": "Dlg(steps=5)"}, ["options"]),
]  # fmt: skip


@pytest.mark.parametrize(("then", "now", "names"), TOLD_OTHERWISE)
def test_what_was_told_otherwise_of_a_captured_update_leaves_no_pass(
    then: dict[str, Any], now: dict[str, Any], names: list[str]
) -> None:
    assert of_captured(then, now) == (names, "CANNOT TELL")
    assert of_captured({**then, **SOME_FILES}, {**now, **SOME_FILES})[0] == names
    assert of_captured(then, then) == ([], "NOT WORSE")


@pytest.mark.parametrize(
    "now",
    [{"rate": 0.3}, {"batch_size": 4}, {"input_shape": [1, 4, 16]}, {"known": ["labels"]}, {"model": "fc2"}, SLOWER],
)
def test_what_both_runs_inferred_of_other_files_is_no_doubt_and_of_the_same_files_one_was_wrong(
    now: dict[str, Any],
) -> None:
    then = LOCAL if now is SLOWER else {}
    assert of_captured({**then, **BOTH, **SOME_FILES}, {**now, **BOTH, **OTHER_FILES}) == ([], "NOT WORSE")
    assert of_captured({**then, **BOTH, **SOME_FILES}, {**now, **BOTH, **SOME_FILES})[1] == "CANNOT TELL"


def test_weight_decay_is_a_doubt_where_either_was_told_of_it() -> None:
    inferred = {"decayed": 0.001, "inferred": {"weight decay": "0.001 of each weight"}}
    assert of_captured({"decayed": 0.0}, inferred) == ([], "NOT WORSE")
    names, said = of_captured({**inferred, **SOME_FILES}, {"decayed": 0.0, **SOME_FILES})
    assert (names[0], said) == ("weight decay", "CANNOT TELL"), "of the same files also what nobody told"


def test_less_of_the_same_files_by_a_fact_that_one_run_alone_inferred_is_no_pass() -> None:
    once = {"inferred": {"batch size": ""}}
    assert of_captured({**once, **SOME_FILES}, SOME_FILES) == (["what was inferred"], "CANNOT TELL")
    assert of_captured({**once, **SOME_FILES}, OTHER_FILES) == ([], "NOT WORSE")


@pytest.mark.parametrize(
    ("then", "now", "doubts"),
    [
        ({"defense": "noise(1)"}, {"defense": None}, 0),
        ({"batch_size": 3}, {"batch_size": 4}, 0),
        ({"client": "FedSGD()"}, {"client": "FedAvg(lr=0.1)"}, 0),
        ({"options": "Dlg(steps=300)"}, {"options": "Dlg(steps=5)"}, 1),
        ({"known": ["labels"]}, {"known": []}, 1),
        ({"known": []}, {"known": ["labels"]}, 0),
    ],
)
def test_what_an_audit_compares_is_no_doubt_but_what_its_attacker_is_given_is(
    then: dict[str, object], now: dict[str, object], doubts: int
) -> None:
    found = compare(*(changed(result((4, 8)), data="digits", **one) for one in (then, now)))
    assert len(found.caveats) == doubts


def test_a_strangers_settings_are_shown_in_part() -> None:
    odd = changed(result((4, 8)), options="Dlg(" * 2000, client="f(x=" * 99999, rate="\x1b")
    found = compare(changed(result((4, 8)), options="Dlg(steps=300)", **CAPTURED), odd).caveats
    assert len(found) > 2
    assert max(map(len, found)) < 200


def test_membership_is_compared_as_examples_are() -> None:
    def named(hits: int) -> Result:
        share = Share(hits=hits, of=16, low=0.0, high=1.0)
        row = MembershipRow(case="c0", test="matched_filter", members_identified=share, others_identified=share)
        return result((0, 8)).model_copy(update={"membership": [row]})

    assert [change.measure for change in compare(named(0), named(14)).worse] == ["identified"]
    assert not compare(named(7), named(8)).worse


def test_certified_guesses_without_a_truth_have_no_share_and_count_as_they_are() -> None:
    def certified(n: int) -> Result:
        row = Row(case="c0", attack="linear", outcome=Outcome.NOT_SCORED, certified={"n": n})
        return result((0, 8)).model_copy(update={"rows": [row]})

    assert [str(change.new) for change in compare(certified(1), certified(2)).worse] == ["2"]
    assert not compare(certified(2), certified(2)).worse


def test_runs_that_count_differently_or_have_nothing_in_common_are_not_compared() -> None:
    with pytest.raises(SeepageError, match="different thresholds"):
        compare(result((0, 8)), result((0, 8), exact_db=50.0))
    other = result((0, 8)).model_copy(update={"rows": []})
    with pytest.raises(SeepageError, match="no case and attack in common"):
        compare(result((0, 8)), other)


def test_another_setting_under_the_same_name_is_said() -> None:
    new = result((0, 8)).model_copy(update={"cases": [Case(name="c0", title="batch 64")]})
    assert "another setting under the same name" in compare(result((0, 8)), new).remarks[0]


def test_the_interval_is_newcombes() -> None:
    # Newcombe 1998, Statistics in Medicine 17, table II: 56/70 and 48/80, method 10: 0.0524 to 0.3339.
    low, high = difference(Count(hits=48, of=80), Count(hits=56, of=70), 0.025)
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_the_interval_holds_the_difference_and_turns_with_it(n: int, m: int, data: st.DataObject) -> None:
    old = Count(hits=data.draw(st.integers(0, n)), of=n)
    new = Count(hits=data.draw(st.integers(0, m)), of=m)
    low, high = difference(old, new, 0.025)
    assert -1 - 1e-9 <= low <= new.hits / m - old.hits / n <= high <= 1 + 1e-9
    back = difference(new, old, 0.025)
    assert math.isclose(back[0], -high, abs_tol=1e-9)
    assert math.isclose(back[1], -low, abs_tol=1e-9)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9])
def test_two_runs_of_the_same_thing_are_seldom_called_worse(share: float) -> None:
    """2,000 pairs of runs with the same chances in 10 cases of 2 to 64 examples: 5 % may be called worse, one-sided.

    Wilson's intervals are approximate; with level / m far in the tails 7 % are allowed for, and 5 % nearly kept.
    """
    generator = torch.Generator().manual_seed(int(100 * share))
    sizes = torch.tensor([2.0, 4, 8, 8, 16, 16, 32, 32, 64, 64])
    chances = torch.full_like(sizes, share)
    draws = torch.stack([torch.binomial(sizes, chances, generator=generator) for _ in range(4000)]).long()
    wrong = sum(_any_worse(draws[i].tolist(), draws[i + 2000].tolist(), sizes.long().tolist()) for i in range(2000))
    assert wrong / 2000 < 0.07


def _any_worse(old: list[int], new: list[int], sizes: list[int]) -> bool:
    pairs = zip(old, new, sizes, strict=True)
    return any(_low(a, b, n) > 0 for a, b, n in pairs if b > a)


def _low(a: int, b: int, n: int) -> float:
    key = a, b, n
    if key not in _LOWS:
        _LOWS[key] = difference(Count(hits=a, of=n), Count(hits=b, of=n), 0.05 / 10)[0]
    return _LOWS[key]


_LOWS: dict[tuple[int, int, int], float] = {}
