"""The outlook's thresholds are those that the rule gives of the kept rows, and the rows held out were not in it."""

import pytest
from scripts import script

from seepage.attacks.exposure.landscape import EXPECTED_FROM, OPEN_FROM


@pytest.mark.docs
def test_thresholds_follow_from_the_rows_that_they_were_fitted_to() -> None:
    pages = script("pages_landscape")
    rows = pages.rows_of(pages.STUDY)
    fitted_to = [row for row in rows if row["calibration"]]
    assert len({(row["net"], row["activation"], row["mode"], row["epochs"]) for row in fitted_to}) == 20
    assert pages.fitted(rows) == (EXPECTED_FROM, OPEN_FROM)
    held_out = [row for row in rows if not row["calibration"]]
    assert {row["data"] for row in held_out} == {"photos", "cifar10"}
    failed = [row["cosine"]["0.03"] for row in fitted_to if not pages.succeeded(row)]
    good = [row["cosine"]["0.03"] for row in fitted_to if pages.succeeded(row)]
    # Counted by hand of the two sorted lists: at most one in twenty on the wrong side of each threshold.
    assert sum(cosine >= EXPECTED_FROM for cosine in failed) <= 0.05 * len(failed)
    assert sum(cosine < OPEN_FROM for cosine in good) <= 0.05 * len(good)
