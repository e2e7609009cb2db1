"""Separate samples that share all their rounds: only the sum of their `v h^T` is known, but h is sparse and >= 0."""

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.base.algebra.sparse import falling, sparse_directions
from seepage.base.rounding import FLOAT32_NETWORK

ON_RAY = 1e-3
"""Distance of unit vectors up to which a feature lies on a ray, or on the wrong side of a plane by rounding alone; a
feature of a smaller share of the largest has no direction but rounding."""
SAME_RAY = 1e-2
"""Distance of unit directions up to which they are one."""
MIN_ZERO_SHARE = 0.02
"""Share of zeros that a sample must have: fewer may be zero by chance, and certify nothing."""


def split(left: Tensor, right: Tensor, total: Tensor, *, tolerance: float = 1e-3) -> tuple[Tensor, Tensor, bool]:
    """Split `sum v_n h_n^T = left @ right` into its m samples.

    The h of m samples span the rows of `right`, and each of them has zeros that the others do not have, so they are
    the sparsest non-negative vectors of that span. What is left open is one scale each, which `sum v_n` fixes.

    Args:
        left: `[d2, m]`.
        right: `[m, d1]`.
        total: `[m]`, with `sum v_n = left @ total`.
        tolerance: How negative an entry may be, relative to the largest.

    Returns:
        V `[m, d2]`, H `[m, d1]`, and whether the certificate holds: every h is non-negative with many exact zeros, and
        every scale is positive.

    >>> h = torch.zeros(2, 16, dtype=torch.float64)
    >>> h[0, :10], h[1, 8:] = torch.arange(10) + 1, torch.arange(8) + 1
    >>> v = torch.tensor([[1.0, 2, 0], [0, 1, 1]], dtype=torch.float64)
    >>> mix = torch.tensor([[2.0, 1], [1, 1]], dtype=torch.float64)
    >>> own_v, own_h, certain = split(v.T @ mix.inverse(), mix @ h, mix @ torch.ones(2, dtype=torch.float64))
    >>> order = own_h[:, 0].argsort(descending=True)
    >>> torch.allclose(own_h[order], h), torch.allclose(own_v[order], v), certain
    (True, True, True)
    """
    m = len(right)
    if m == 1:
        return (left * total).T, right / total, bool(total.abs() > 0)
    # An orthonormal basis of the span: distances in its coordinates are distances of features.
    _, _, rows = torch.linalg.svd(right, full_matrices=False)  # rows [m, d1] orthonormal
    directions = _vertices(rows)  # [m, m]: directions @ rows are the h, unscaled
    if directions is None:
        return left.T, right, False
    unscaled = directions @ rows
    # left @ right = sum_n v_n h_n^T holds for V^T = left own^-1 and H = own right; the scales s_n are left open.
    own = unscaled @ torch.linalg.pinv(right)  # [m, m]: own @ right = unscaled
    # left @ right = (left @ own^-1) @ unscaled, and the columns of the first factor are the v, up to the same scales.
    # sum_n v_n = left @ total = V^T (own total), so own @ total must be one everywhere: that fixes the scales. [m]
    scales = 1 / (own @ total)
    h = scales[:, None] * unscaled
    v = (left @ torch.linalg.inv(own) / scales).T
    low, high = h.min(dim=1).values, h.max(dim=1).values
    zeros = (h.abs() < tolerance * high[:, None]).double().mean(dim=1)
    fine = (scales > 0) & (low > -tolerance * high) & (zeros > MIN_ZERO_SHARE)
    return v, h, bool(fine.all()) and bool(torch.isfinite(h).all())


def _vertices(rows: Tensor) -> Tensor | None:
    """`[m, m]` directions whose products with `rows` are non-negative and sparse; None where there are none.

    Each feature is a point in m dimensions, inside the cone of m rays: ray n is made of the features that only sample
    n has. Scaled to one side of a plane the points fill a simplex, whose corners successive projection finds
    (Gillis and Vavasis 2014). Then each direction is fitted to all the features that its sample lacks.
    """
    # [d1] length of each feature's point; features that hardly any sample has are rounding.
    size = rows.norm(dim=0)
    raw = (rows[:, size > ON_RAY * size.max()]).T  # [k, m]
    # Only the ray counts: a feature twice as strong lies on the same one. [k, m]
    points = raw / raw.norm(dim=1, keepdim=True)
    inside = _inside(points)
    if inside is None:
        return None
    # Scaled to the plane <x, inside> = 1, mixtures of samples are convex combinations of the corners.
    corners = _corners(points / (points @ inside)[:, None])
    if corners is None:
        return None
    # Ray n holds the features of sample n alone, so h_n is orthogonal to all other rays: the inverse matrix. [m, m]
    rays = torch.stack([_mean_direction(points, corner) for corner in corners], dim=1)  # [m, m]
    if float(torch.linalg.svdvals(rays)[-1]) < 1e-6:
        return None
    directions = torch.linalg.inv(rays)
    chosen = _choose(points, [fit for direction in directions for fit in _fits(points, direction)], rows.shape[0])
    return None if chosen is None else torch.stack([_settled(raw, points, direction) for direction in chosen])


def _inside(points: Tensor) -> Tensor | None:
    """A direction w with `points @ w > 0`: the mean, or that of the largest margin; None if there is none."""
    from scipy.optimize import linprog

    middle = points.mean(dim=0)
    if bool((points @ middle > 1e-2 * middle.norm()).all()):
        return middle
    k, m = points.shape
    # A linear program in (w, s): maximize s with points @ w >= s and |w_i| <= 1. The points lie in an open half-space
    # just where its value is positive.
    bounds = [(-1.0, 1.0)] * m + [(None, None)]
    result = linprog(
        [0.0] * m + [-1.0],
        A_ub=torch.cat([-points, points.new_ones(k, 1)], dim=1).numpy(),
        b_ub=[0.0] * k,
        bounds=bounds,
    )
    if result.x is None or not result.x[-1] > 1e-6:
        return None
    return torch.from_numpy(result.x[:-1]).to(points)


def _corners(points: Tensor) -> Tensor | None:
    """`[m, m]` the corners of the simplex that `[k, m]` points fill, by successive projection."""
    left = points.clone()
    chosen = []
    for _ in range(points.shape[1]):
        # Norms are convex, so over a simplex they are largest at a corner.
        sizes = left.norm(dim=1)
        best = int(sizes.argmax())
        if not sizes[best] > 1e-9:
            return None
        chosen.append(best)
        # The farthest point is a corner; what is left, orthogonal to it, has the others' corners farthest out.
        axis = left[best] / sizes[best]
        left = left - (left @ axis)[:, None] * axis
    return points[chosen]


def _mean_direction(points: Tensor, corner: Tensor) -> Tensor:
    """The principal direction of the points that lie on the corner's ray."""
    axis: Tensor = corner / corner.norm()
    near = points[(points - axis).norm(dim=1) < ON_RAY]
    if len(near) < 2:
        return axis
    # First eigenvector of sum x x^T [m, m]: the line through 0 nearest to all of them.
    principal: Tensor = torch.linalg.eigh(near.T @ near).eigenvectors[:, -1]
    return _signed(principal, axis)


def _fits(points: Tensor, direction: Tensor) -> list[Tensor]:
    """The direction, and it made orthogonal to as many features as can be: those that its sample lacks.

    Least squares with weights that single out what is nearly orthogonal already; the widths narrow from pass to pass.
    A wide start mends a poor direction, but may wander to another sample's.
    """
    direction = direction / direction.norm()
    found = [direction]
    for first in (1e-2, 10**-0.5):
        (fitted,) = sparse_directions(points.T, direction[None], falling(first, 1e-5, 12))
        found.append(_signed(fitted, direction))
    return found


def _choose(points: Tensor, found: Sequence[Tensor], m: int) -> Tensor | None:
    """The m different directions that are orthogonal to most features and have none on their wrong side."""
    together = torch.stack(list(found))
    reach = points @ together.T  # [k, c]
    lacking = (reach.abs() < FLOAT32_NETWORK).sum(dim=0)
    lacking[reach.min(dim=0).values < -ON_RAY] = -1
    # Any m - 1 features can be made zero; only a sample's own zeros are more.
    lacking[lacking < m + 3] = -1
    kept: list[Tensor] = []
    for i in lacking.argsort(descending=True, stable=True).tolist():
        if lacking[i] < 0:
            break
        if all(float((together[i] - other).norm()) > SAME_RAY for other in kept):
            kept.append(together[i])
        if len(kept) == m:
            chosen = torch.stack(kept)
            return chosen if float(torch.linalg.svdvals(chosen)[-1]) > 1e-4 else None
    return None


def _settled(raw: Tensor, points: Tensor, direction: Tensor) -> Tensor:
    """The direction fitted once more to the features it is orthogonal to, large ones (less rounding) counting more."""
    lacking = raw[(points @ direction).abs() < FLOAT32_NETWORK]
    if len(lacking) < raw.shape[1]:
        return direction
    return _signed(torch.linalg.svd(lacking, full_matrices=True)[2][-1], direction)


def _signed(axis: Tensor, like: Tensor) -> Tensor:
    return axis * torch.sign(axis @ like)
