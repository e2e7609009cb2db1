"""The chance of a blind guess: what an attacker that never saw the update reconstructs within an error."""

import math

import torch
from torch import Tensor

from seepage.errors import SeepageError

CONFIDENCE = 0.95
"""Confidence of the bound on the chance of a blind guess, over the draw of public examples."""


def blind_chance(public: Tensor, *, psnr_db: float, value_range: tuple[float, float] = (0.0, 1.0)) -> float:
    """Upper limit, at 95 % confidence, of the chance that the best blind guess is within a PSNR of a private example.

    Private and public examples are taken to be drawn alike. Let z be the best guess, r the radius of the ball that the
    PSNR stands for, and kappa the ball's chance. Among m public examples one lies in the ball of z, but for a chance
    (1 - kappa)^m; the ball of radius 2r around that one contains the ball of z. So kappa is at most the largest chance
    of a ball of radius 2r around a public example, each estimated from the m - 1 others: the largest upper limit of
    Clopper and Pearson, with half of the error split among the m balls and the other half for the chance that no
    public example was in the ball of z. It holds for every guess, not only for those that were compared.

    Args:
        public: `[m, *shape]` examples, at least 2.
        psnr_db: What counts as reconstructed.
        value_range: Smallest and largest value of an input.

    Returns:
        A share from 0 to 1. It cannot be below ln(m / 0.025) / m or so: that is as much as m examples can say.

    >>> far = torch.eye(400)
    >>> round(blind_chance(far, psnr_db=40), 3)
    0.024
    """
    count = len(public)
    if count < 2:
        raise SeepageError(f"the chance of a blind guess needs at least 2 public examples, got {count}; give more")
    from scipy.stats import beta

    rows = public.reshape(count, -1).double()
    spread = value_range[1] - value_range[0]
    radius = spread * math.sqrt(rows.shape[1] * 10 ** (-psnr_db / 10))  # ||x - z|| at this PSNR
    near = int((torch.cdist(rows, rows) <= 2 * radius).sum(1).max()) - 1  # without the example itself
    error = (1 - CONFIDENCE) / 2
    # Clopper and Pearson's upper limit for `near` of m - 1, at the level that m balls share.
    ball = 1.0 if near == count - 1 else float(beta.ppf(1 - error / count, near + 1, count - 1 - near))
    missed: float = 1 - error ** (1 / count)
    return min(1.0, max(ball, missed))
