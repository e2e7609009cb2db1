"""Sources with many exact zeros: the sparsest rows in the span of the mixtures, by reweighted least squares."""

import torch
from torch import Generator, Tensor

from seepage.attacks.cpa.ica.unmix import fast_ica, random_rotation, whitener
from seepage.base.algebra.sparse import falling, sparse_directions
from seepage.base.rounding import FLOAT32_NETWORK

SAME_SOURCE = 0.999
"""Cosine of two unit rows from which on both are one source."""


def sparsest(basis: Tensor, starts: Tensor) -> Tensor:
    """For each start, a unit row `q` whose signal `q basis` is as sparse as possible.

    A ReLU's exact zeros make the planted row the sparsest in the span.

    Args:
        basis: `[n, d]` orthonormal rows.
        starts: `[k, n]` rows near the sources.

    Returns:
        `[k, n]` unit rows.
    """
    n, d = basis.shape
    # Zeros show in a sample of the columns as well: evenly spread ones keep the cost at n^2 times their number.
    chosen = torch.linspace(0, d - 1, min(d, max(1500, 10 * n))).long()
    seen = basis[:, chosen.to(basis.device)]  # [n, columns]
    # Entries below a width of the largest are pulled to zero, others let be; it falls from 0.05 to 1e-4.
    return sparse_directions(seen, starts, falling(0.05, 1e-4, 15), relative=True, ridge=1e-10)


def zero_share(signals: Tensor) -> Tensor:
    """`[k]` share of entries that are zero beside the row's largest: a certificate for sparse sources.

    >>> zero_share(torch.tensor([[1.0, 0.0, 1e-7, 0.5]]))
    tensor([0.5000])
    """
    size = signals.abs().amax(1, keepdim=True).clamp(min=1e-300)
    return (signals.abs() <= FLOAT32_NETWORK * size).float().mean(1)


def unmix_sparse(basis: Tensor, *, draw: Generator) -> Tensor:
    """Centered FastICA, then the sparsest row near each of its sources.

    Rows that end with clearly fewer zeros than the others, or at a source already found, start again at random and
    are replaced by sparser rows that are new.

    Args:
        basis: `[n, d]` orthonormal rows that span the sources.
        draw: Source of the random starts.

    Returns:
        `[n, n]` rows, signed so that the larger part of each source is positive. A source found twice stays twice.
    """
    # FastICA wants no mean; exact zeros are lost without it, so the sparse search below keeps it.
    centered = basis - basis.mean(1, keepdim=True)
    whitening = whitener(centered)
    white = (whitening @ centered).float()
    rotation = fast_ica(white, random_rotation(len(basis), draw, white)).to(basis)
    rows = sparsest(basis, rotation @ whitening)
    for i in _doubtful(rows, basis):
        rows[i] = _again(rows, i, basis, draw)
    signals = rows @ basis
    return rows * torch.where(signals.relu().norm(dim=1) < (-signals).relu().norm(dim=1), -1.0, 1.0)[:, None]


def _doubtful(rows: Tensor, basis: Tensor) -> list[int]:
    """Rows with clearly fewer zeros than is usual here, and all but the first of rows that are the same."""
    zeros = zero_share(rows @ basis)
    alike = (rows @ rows.T).abs().tril(-1) > SAME_SOURCE
    few = zeros < 0.9 * zeros.median()
    return (few | alike.any(1)).nonzero()[:, 0].tolist()


def _again(rows: Tensor, i: int, basis: Tensor, draw: Generator) -> Tensor:
    """The row with the most zeros among the present one and new ones that no other row has found."""
    others = torch.cat([rows[:i], rows[i + 1 :]])
    starts = torch.randn((8, len(rows)), generator=draw, dtype=torch.float64).to(basis)
    # Away from what is found: the orthogonal complement of the other rows, with some of everything.
    # The direction that no other row has: the source that is not found yet must have a part along it.
    missing = torch.linalg.svd(others)[2][-1]
    starts = missing + 0.5 * starts / len(rows) ** 0.5
    found = sparsest(basis, starts)
    fresh = found[((found @ others.T).abs() < SAME_SOURCE).all(1)]
    taken = bool(((rows[i] @ others.T).abs() > SAME_SOURCE).any())
    candidates = fresh if taken and len(fresh) else torch.cat([rows[i : i + 1], fresh])
    return candidates[zero_share(candidates @ basis).argmax()]
