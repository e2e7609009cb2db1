"""No attack whose rows are kept exceeds its bound by more than the interval."""

import pytest
from each import check_each

from seepage.measure.bounds import gaussian_tpr
from seepage.papers.records import RESULTS, Record, read_file

pytestmark = pytest.mark.docs


def rows(study: str) -> list[Record]:
    return read_file(RESULTS / "bounds" / f"{study}.jsonl")


def test_every_kept_row_keeps_its_bound() -> None:
    """Both studies: the members named, and the attacks that attain their bound."""
    checks = {"membership": no_test_names_more, "attained": stays_below_and_reaches}
    check_each(
        ((f"{study}: {row.row}", (study, row)) for study in checks for row in rows(study)),
        lambda case: checks[case[0]](case[1]),
    )


def no_test_names_more(row: Record) -> None:
    low, _high = row.facts["identified_interval"]
    assert low <= gaussian_tpr(row.facts["false_interval"][1], 2 / row.facts["sigma"])
    assert row.facts["auc_interval"][0] <= row.facts["auc_bound"]


def stays_below_and_reaches(row: Record) -> None:
    assert row.interval is not None
    low, high = row.interval
    assert low <= row.facts["bound"]
    if "this_pair" in row.facts:  # the threshold is estimated from 1,000 draws, which moves the rate by about 0.03
        assert low - 0.06 <= row.facts["this_pair"] <= high + 0.06
        assert row.facts["this_pair"] <= row.facts["bound"]
