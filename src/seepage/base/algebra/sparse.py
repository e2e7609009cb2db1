"""Directions whose products with a basis are zero in many places: re-weighted least squares by inverse iteration."""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

MAX_PRODUCTS = 2**23
"""Most products of two entries of a column that are made beforehand: half the work of each step for 64 MiB."""


def sparse_directions(
    basis: Float[Tensor, "n d"],
    starts: Float[Tensor, "k n"],
    widths: Iterable[float],
    *,
    power: float = 1.0,
    negative: float = 1.0,
    relative: bool = False,
    ridge: float = 1e-12,
) -> Float[Tensor, "k n"]:
    """For each start a unit row `q` near it whose values `q basis` are zero in as many places as can be.

    Minimizes `sum_j w_j (q v_j)^2` with `w_j = ((q v_j)^2 + width^2)^-power`, width after width: values below the width
    are pulled to zero, others hardly count. The widths fall, so that a start is not caught at once (iteratively
    re-weighted least squares).

    Args:
        basis: The values of the unit rows, one column `v_j` for each place.
        starts: Where to begin, of any length.
        widths: In units of a value, one for each step.
        power: 1 counts what is not zero; 1/2 adds up absolute values.
        negative: Weight of values on the side where a row's values have the smaller sum, relative to the others: over 1
            for values behind a ReLU, which have one side.
        relative: Widths are in units of each row's largest value.
        ridge: Added to the normal equations, in units of their mean diagonal.

    >>> basis = torch.linalg.qr(torch.tensor([[1.0, 0, 0, 2], [1, 3, 0, 0], [0, 0, 1, 1]]).double().T).Q.T
    >>> found = sparse_directions(basis, torch.eye(3).double(), [0.5, 0.05, 0.005, 0.0005])
    >>> ((found @ basis).abs() < 1e-4).sum(1).tolist()
    [2, 2, 2]
    """
    rows, normal_of = F.normalize(starts, dim=1), _gram(basis)
    for width in widths:
        values = rows @ basis  # [k, d]
        scaled = values / values.abs().amax(1, keepdim=True) if relative else values
        weights = (scaled.square() + width**2) ** -power
        if negative != 1:
            weights = weights * torch.where(values * values.sum(1, keepdim=True).sign() < 0, negative, 1.0)
        # sum_j w_j (q v_j)^2 = q (V W V^T) q^T for each row.
        rows = _lowest(normal_of(weights), rows, ridge)
    return rows


def falling(first: float, last: float, steps: int) -> list[float]:
    """So many widths from the first to the last, each smaller by the same factor.

    >>> falling(1.0, 0.01, 3)
    [1.0, 0.1, 0.01]
    """
    return [first * (last / first) ** (step / max(1, steps - 1)) for step in range(steps)]


def _gram(basis: Float[Tensor, "n d"]) -> Callable[[Float[Tensor, "k d"]], Float[Tensor, "k n n"]]:
    """`w -> V diag(w) V^T` for each row of weights."""
    n, d = basis.shape
    upper = torch.triu_indices(n, n)
    if upper.shape[1] * d > MAX_PRODUCTS:
        return lambda weights: torch.stack([(basis * weight) @ basis.T for weight in weights])
    products = basis[upper[0]] * basis[upper[1]]  # [n (n + 1) / 2, d]: V_a V_b of each pair

    def whole(weights: Tensor) -> Tensor:
        found = weights.new_zeros((len(weights), n, n))
        found[:, upper[0], upper[1]] = found[:, upper[1], upper[0]] = weights @ products.T
        return found

    return whole


def _lowest(normal: Float[Tensor, "k n n"], rows: Float[Tensor, "k n"], ridge: float) -> Float[Tensor, "k n"]:
    """Towards the eigenvectors of the smallest eigenvalues, from the rows given: two steps of inverse iteration."""
    mean = normal.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    # By LU and not Cholesky: rounding may leave a nearly singular matrix with a negative eigenvalue.
    factors, pivots, _ = torch.linalg.lu_factor_ex(normal / mean + ridge * torch.eye(rows.shape[1]).to(normal))
    for _ in range(2):
        rows = F.normalize(torch.linalg.lu_solve(factors, pivots, rows[:, :, None])[:, :, 0], dim=1)
    return rows
