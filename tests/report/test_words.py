"""Numbers in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seepage.report import formatting as say


@given(st.floats(-1e6, 1e6), st.integers(0, 4))
def test_a_number_reads_back(value: float, digits: int) -> None:
    text = say.number(value, digits).replace("\N{MINUS SIGN}", "-")
    assert float(text) == pytest.approx(value, abs=0.51 * 10**-digits)
    assert text != "-0.00"
    assert say.signed(value, digits)[0] in "+\N{MINUS SIGN}"


def test_what_is_no_number_is_a_dash() -> None:
    for value in (None, float("nan"), float("inf")):
        assert {f(value) for f in (say.number, say.signed, say.scientific, say.percent, say.duration)} == {"—"}
        assert say.count_of(value, 8) == "—"
