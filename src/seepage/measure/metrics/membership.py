"""How well members are distinguished from others: area under the ROC curve, and rates with exact intervals."""

import numpy as np
from torch import Tensor

from seepage.errors import SeepageError


def area_under_curve(members: Tensor, others: Tensor) -> float:
    """P(a member's statistic exceeds another's) + half of P(they are equal): the area under the ROC curve.

    Args:
        members: `[m]` statistics of members, at least one.
        others: `[o]` statistics of non-members, at least one.

    >>> import torch
    >>> area_under_curve(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    if not len(members) or not len(others):
        raise SeepageError("an area under the curve needs members and others; give candidates of both kinds")
    from scipy.stats import mannwhitneyu

    wins = mannwhitneyu(members.double().cpu().numpy(), others.double().cpu().numpy()).statistic
    return float(wins) / (len(members) * len(others))


def area_interval(members: Tensor, others: Tensor, *, seed: int = 0, resamples: int = 2000) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the area: members and others are drawn anew, each among themselves.

    Where every member exceeds every other (or none does), all resamples agree, and the bootstrap would claim to be
    certain. Then the interval is that of Clopper and Pearson for min(m, o) disjoint pairs of a member and an other,
    each a win with the area's probability: from 0.025^(1 / min(m, o)) to 1.

    Args:
        members: `[m]` statistics of members.
        others: `[o]` statistics of non-members.
        seed: Seeds the resampling.
        resamples: Number of resampled areas.

    >>> import torch
    >>> low, high = area_interval(torch.arange(4.0) + 10, torch.arange(4.0))
    >>> round(low, 4), high
    (0.3976, 1.0)
    """
    own, rest = members.double().cpu().numpy(), others.double().cpu().numpy()
    # wins[i, j] = 1 where member i exceeds other j; a resampled area is the mean over drawn rows and columns
    wins = (own[:, None] > rest).astype(float) + 0.5 * (own[:, None] == rest)
    if wins.min() == wins.max() != 0.5:
        pairs = min(len(own), len(rest))
        tail = 0.025 ** (1 / pairs)
        return (tail, 1.0) if wins.min() == 1 else (0.0, 1 - tail)
    draw = np.random.default_rng(seed)
    areas = []
    for _ in range(resamples):
        rows = np.bincount(draw.integers(len(own), size=len(own)), minlength=len(own)) / len(own)
        columns = np.bincount(draw.integers(len(rest), size=len(rest)), minlength=len(rest)) / len(rest)
        areas.append(rows @ wins @ columns)
    low, high = np.quantile(areas, [0.025, 0.975])
    return float(low), float(high)
