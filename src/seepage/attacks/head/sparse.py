"""Unmixing of features behind a ReLU: never negative, and zero in many places.

A mixture of several examples' features is zero only where all of them are. So of all directions in the row space of
the gradient those of single examples are the ones that are nowhere negative and in the most places exactly zero.
Nothing else has to be known, no label and no weight.
"""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

STEPS = 30
"""Re-weighted steps of one start."""
BLURS = (0.3, 1e-4)
"""First and last width of what counts as zero, in units of a feature's mean size."""
AVERSION = 5.0
"""How much more a negative feature costs than a positive one of the same size."""


def sparse_rows(inner: Float[Tensor, "n k"], starts: Float[Tensor, "s n"], noise: float) -> Float[Tensor, "s n"]:
    """Directions `r` of length 1, `[s, n]`, whose features `r V` are hardly negative and often zero.

    Minimizes `sum_j w_j (r V)_j^2` over directions of length 1, again and again, with weights that make the sum one
    of absolute values at first and a count of what is not zero at last (iteratively re-weighted least squares); what
    is negative weighs more.

    Args:
        inner: V, orthonormal rows.
        starts: Directions to start from.
        noise: Smallest width of what counts as zero.
    """
    rows = torch.nn.functional.normalize(starts, dim=1)
    first, last = (blur / inner.shape[1] ** 0.5 for blur in BLURS)
    for step in range(STEPS):
        width = max(first * (last / first) ** (step / (STEPS - 1)), noise)
        values = rows @ inner  # [s, k]
        values = values * values.sum(1, keepdim=True).sign()
        power = 0.5 if step <= STEPS // 2 else 1.0
        weights = (values.square() + width**2) ** -power * torch.where(values < 0, AVERSION, 1.0)
        # The direction of least weighted energy is the last eigenvector of V diag(w) V^T, one for each start.
        energy = torch.stack([(inner * weight) @ inner.T for weight in weights])
        rows = torch.linalg.eigh(energy).eigenvectors[:, :, 0]
    return rows * (rows @ inner).sum(1, keepdim=True).sign()


def distinct_rows(
    inner: Float[Tensor, "n k"], rows: Float[Tensor, "s n"], wanted: int, zero: float
) -> Float[Tensor, "m n"]:
    """Of directions found from many starts, those with the most zeros, each once, at most `wanted`."""
    values = rows @ inner
    size = values.abs().mean(1, keepdim=True)
    zeros = (values.abs() < (1e-3 * size).clamp(min=zero)).sum(1)
    chosen: list[Tensor] = []
    for place in zeros.argsort(descending=True):
        row = rows[place]
        if all(float((row - other).norm()) > 1e-3 for other in chosen):
            chosen.append(row)
        if len(chosen) == wanted:
            break
    return torch.stack(chosen)


def unmix(inner: Float[Tensor, "n k"], rounds: int, draw: Generator) -> Float[Tensor, "n n"] | None:
    """All directions of single examples, or None where fewer than n differ."""
    n = len(inner)
    found = inner.new_zeros((0, n))
    for _ in range(rounds):
        starts = torch.randn((4 * n, n), generator=draw, dtype=inner.dtype)
        found = distinct_rows(inner, torch.cat([found, sparse_rows(inner, starts, 0.0)]), n, 0.0)
        if len(found) == n and torch.linalg.cond(found) < 1e8:
            return found
    return None
