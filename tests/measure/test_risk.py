"""Risk tiers never stand without the gain over the mean color."""

import pytest

from seepage.errors import SeepageError
from seepage.measure.metrics.risk import risk


@pytest.mark.parametrize(
    ("psnr", "tier"),
    [(150.0, "very high"), (20.0, "very high"), (19.99, "high"), (15.0, "high"), (14.99, "medium"), (10.0, "medium"),
     (9.99, "low"), (0.0, "low")],
)  # fmt: skip
def test_tiers(psnr: float, tier: str) -> None:
    assert risk(psnr, 5.0).tier == tier


@pytest.mark.parametrize(("gain", "meaningful"), [(3.0, True), (2.99, False), (0.0, False), (-4.0, False)])
def test_a_tier_without_a_gain_is_meaningless(gain: float, meaningful: bool) -> None:
    found = risk(16.0, gain)
    assert found.meaningful is meaningful
    assert ("meaningless" in str(found)) is not meaningful
    assert f"{gain:.1f} dB over the mean color" in str(found)


def test_no_tier_for_no_number() -> None:
    for psnr, gain in ((float("nan"), 1.0), (10.0, float("inf"))):
        with pytest.raises(SeepageError, match="no risk tier"):
            risk(psnr, gain)
