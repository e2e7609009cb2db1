"""How sure a mean is: a bootstrap interval that respects which examples shared a batch."""

import numpy as np
from torch import Tensor

from seepage.errors import SeepageError


def bootstrap_interval(
    values: Tensor, groups: Tensor, *, level: float = 0.95, seed: int = 0, resamples: int = 2000
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean of `values` (Efron 1979).

    Examples of one batch share one update and fail together, so they are not independent: with two batches
    or more whole batches are drawn with replacement, and only within a single batch single examples are.
    The interval then covers the choice of examples or batches, not other models or seeds.

    Args:
        values: `[n]` finite numbers.
        groups: `[n]` int64 batch number of each value.
        level: Share of resampled means inside the interval, between 0 and 1.
        seed: Seed of the resampling; the same seed gives the same interval.
        resamples: Number of resampled means.

    Returns:
        `(low, high)`, in the unit of `values`; None where there are fewer than two batches or examples.

    Raises:
        SeepageError: Where lengths differ, `level` is not between 0 and 1, or a value is not finite.

    >>> import torch
    >>> bootstrap_interval(torch.tensor([1.0, 1.0, 3.0, 3.0]), torch.tensor([0, 0, 1, 1]))
    (1.0, 3.0)
    >>> bootstrap_interval(torch.tensor([1.0]), torch.tensor([0])) is None
    True
    """
    numbers, batch = values.detach().cpu().double().numpy(), groups.detach().cpu().numpy()
    _check(numbers, batch, level)
    _, where = np.unique(batch, return_inverse=True)
    if len(where) and where.max() == 0:
        where = np.arange(len(numbers))
    counts = np.bincount(where).astype(np.float64)
    if len(counts) < 2:
        return None
    from scipy.stats import bootstrap

    found = bootstrap(
        (np.bincount(where, weights=numbers), counts),
        lambda total, count, axis: total.sum(axis) / count.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=resamples,
        # scipy would hold resamples x units numbers at once
        batch=max(1, 2**21 // len(counts)),
        confidence_level=level,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def _check(numbers: "np.ndarray", batch: "np.ndarray", level: float) -> None:
    if numbers.ndim != 1 or numbers.shape != batch.shape:
        raise SeepageError(
            f"an interval needs one batch number per value, got {numbers.shape} values and "
            f"{batch.shape} batch numbers; pass two vectors of one length"
        )
    if not 0 < level < 1:
        raise SeepageError(f"level must lie between 0 and 1, got {level}; use for example 0.95")
    if not np.isfinite(numbers).all():
        raise SeepageError(
            "an interval of NaN or infinite values means nothing; leave out the examples without a number"
        )
