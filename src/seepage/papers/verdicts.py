"""Compare a measured row with the paper's and give a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Word = Literal[
    "reproduced",
    "better than the paper",
    "beyond the paper's, but smaller",
    "reproduced in trend",
    "nothing came back",
    "not reproduced",
    "alike by SSIM",
    "not alike by SSIM",
    "constants, not run",
    "other constants, not run",
    "no number",
    "not run",
]

TREND = 0.7
"""Rank correlation (Spearman) between the paper's numbers and ours from which the trend counts as reproduced."""

HALF = 0.5
"""Of two numbers: how much of the paper's change from one to the other ours must show."""

DECIBELS, SHARE = 1.0, 0.1
"""How far a number may lie from the paper's and still count as the same: in dB for PSNR, else relative."""


@dataclass(frozen=True)
class Compared:
    """One measured number and the paper's number that it is compared with.

    Attributes:
        ours: The number; None where nothing could be measured.
        back: Whether anything of the private examples came back; True where that cannot be told.
    """

    ours: float | None
    back: bool = True


def verdict(
    paper: Sequence[float | None], ours: Sequence[Compared], metric: str, better: str = "more", *, small: bool = False
) -> Word:
    """Compare a row with the paper's, over the columns that have both numbers.

    Reproduced: every number lies within 1 dB (10 % where it is no PSNR) of the paper's. An interval that holds the
    paper's number does not count: the fewer the examples, the more it would hold.
    Better: none is worse than that, one at least is better, and something came back in every column. In trend: three
    columns or more, of like order; of two, at least half of the paper's change from one to the other; and something
    came back in one column at least. Where nothing did in any, neither is said.

    >>> verdict([20.0, 18.0], [Compared(20.4), Compared(17.2)], "psnr")
    'reproduced'
    >>> verdict([20.0, 18.0], [Compared(120.0), Compared(17.2)], "psnr")
    'better than the paper'
    >>> verdict([20.0, 18.0], [Compared(120.0), Compared(117.2)], "psnr", small=True)
    'reproduced in trend'
    >>> verdict([20.0, 18.0, 15.0], [Compared(12.0), Compared(11.0), Compared(10.0)], "psnr")
    'reproduced in trend'
    >>> verdict([28.7, 7.7], [Compared(47.8), Compared(4.7)], "psnr")
    'reproduced in trend'
    >>> verdict([20.0, 19.5], [Compared(12.0), Compared(10.0)], "psnr")  # the paper's own change is within 1 dB
    'not reproduced'
    >>> verdict([7.0, 8.0], [Compared(10.6, back=False), Compared(10.0, back=False)], "psnr", small=True)
    'nothing came back'
    """
    pairs = [(a, b) for a, b in zip(paper, ours, strict=True) if a is not None and b.ours is not None]
    if not pairs:
        return "not run" if all(b.ours is None for b in ours) else "no number"
    sign = 1.0 if better == "more" else -1.0
    gaps = [sign * _gap(a, b, metric) for a, b in pairs]
    if all(gap == 0 for gap in gaps):
        return "reproduced"
    ahead, alike = all(gap >= 0 for gap in gaps), _alike(pairs)
    trend = alike and (ahead or len(pairs) > 2 or abs(pairs[1][0] - pairs[0][0]) > _slack(pairs[0][0], metric))
    if not (ahead or trend):
        return "not reproduced"
    if not any(b.back for _, b in pairs):
        return "nothing came back"
    whole = ahead and all(b.back for _, b in pairs)
    if whole and not small:
        return "better than the paper"
    if trend:
        return "reproduced in trend"
    # A smaller problem is easier, so a better number on it is no improvement.
    return "beyond the paper's, but smaller" if whole else "not reproduced"


def by_ssim(paper: Sequence[float | None], ssim: Sequence[Compared]) -> Word:
    """Whether our SSIM rises where the paper's LPIPS falls: all that can be said where LPIPS has no weights.

    >>> better, same = [Compared(0.9), Compared(0.8), Compared(0.3)], [Compared(0.9)] * 3
    >>> by_ssim([0.2, 0.4, 0.6], better), by_ssim([0.2, 0.4, 0.6], same), by_ssim([0.2, 0.6], same[:2])
    ('alike by SSIM', 'not alike by SSIM', 'no number')
    """
    pairs = [(-a, b) for a, b in zip(paper, ssim, strict=True) if a is not None and b.ours is not None]
    if len(pairs) < 3:
        return "no number"
    if not _alike(pairs):
        return "not alike by SSIM"
    return "alike by SSIM" if any(b.back for _, b in pairs) else "nothing came back"


def by_constants(paper: Sequence[float | None], ours: Sequence[float | None]) -> Word:
    """Whether constants that were read from the code are the paper's.

    >>> by_constants([0.005, None], [0.005, 3.0]), by_constants([0.005], [0.0051])
    ('constants, not run', 'other constants, not run')
    """
    same = all(a == b for a, b in zip(paper, ours, strict=True) if a is not None)
    return "constants, not run" if same else "other constants, not run"


def _gap(paper: float, found: Compared, metric: str) -> float:
    """Distance of our number from the paper's beyond the tolerance; 0 within it."""
    assert found.ours is not None
    gap = found.ours - paper
    return 0.0 if abs(gap) <= _slack(paper, metric) else gap


def _slack(paper: float, metric: str) -> float:
    return DECIBELS if metric.startswith("psnr") else SHARE * abs(paper)


def _alike(pairs: Sequence[tuple[float, Compared]]) -> bool:
    from scipy.stats import spearmanr

    paper, ours = [a for a, _ in pairs], [b.ours or 0.0 for _, b in pairs]
    if len(pairs) == 2:
        change = (ours[1] - ours[0]) / (paper[1] - paper[0]) if paper[1] != paper[0] else 0.0
        return change >= HALF
    if len(pairs) < 3 or len(set(paper)) < 2 or len(set(ours)) < 2:
        return False
    return float(spearmanr(paper, ours).statistic) >= TREND
