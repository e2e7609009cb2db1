"""Least squares over whole numbers: a lattice's basis is reduced once, then many targets are rounded, one by one.

The vectors `B z`, z whole, form a lattice. The nearest of them to a target is found by rounding coefficients in turn
(successive cancellation); how often that is right depends on the basis, so it is reduced first. The same is done in
satellite navigation (LAMBDA, Teunissen 1995) and in receivers of several antennas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

DELTA = 0.99
"""Lovasz' condition: neighbors are exchanged where that shortens the first by more than this factor of its square."""
STAGE = 5.0
"""Factor by which the longest axes of a basis grow from one reduction to the next."""
VOLUME = 1e-4
"""Relative error of a cell's volume that rounding may leave."""
GROWTH = 1e3
"""Largest growth of coefficients between two fresh factorizations."""


@dataclass(frozen=True, eq=False)
class Reduced:
    """A reduced basis `B U = Q R`.

    Attributes:
        change: `[n, n]` U, whole numbers with determinant 1 or -1.
        orthonormal: `[m, n]` Q.
        triangle: `[n, n]` R, upper triangular with a positive diagonal: how far the basis vectors are apart.
    """

    change: Matrix
    orthonormal: Matrix
    triangle: Matrix

    @property
    def gaps(self) -> Matrix:
        """`[n]` the diagonal of R: rounding is right where no error along any axis is above half of these."""
        return np.diag(self.triangle)

    def nearest(self, targets: Matrix) -> Matrix:
        """`[n, k]` whole coefficients z, for which `B z` is near each target `[m, k]`: Babai's nearest plane."""
        rest = self.orthonormal.T @ targets
        found = np.zeros_like(rest)
        for i in range(len(rest) - 1, -1, -1):
            # The last coefficient alone reaches the last axis; what it adds to the others is taken away.
            found[i] = np.rint(rest[i] / self.triangle[i, i])
            rest[: i + 1] -= self.triangle[: i + 1, i : i + 1] * found[i]
        coefficients: Matrix = self.change @ found
        return coefficients


def reduced(basis: Matrix, *, sweeps: int = 20_000) -> Reduced:
    """LLL (Lenstra, Lenstra and Lovasz 1982), all pairs of neighbors at once (Heckler and Thiele 1998).

    Each sweep reduces every pair of neighbors fully (Lagrange), odd and even pairs in turn. Between sweeps the
    triangle is updated by rotations, and made anew from whole numbers before rounding could matter. Long axes of the
    basis come in at the length of the short ones and grow to their own, so that no whole number leaves float64.

    Args:
        basis: `[m, n]` basis vectors in columns, linearly independent.
        sweeps: Most sweeps.

    Raises:
        ArithmeticError: Where whole numbers became too large to be exact.

    Example:
        >>> basis = np.array([[1.0, 0.0], [1000.0, 1001.0]])
        >>> reduced(basis).triangle.round(2).tolist()
        [[1.41, 0.71], [0.0, 707.81]]
    """
    _, sizes, axes = np.linalg.svd(basis, full_matrices=False)
    change, cap = np.eye(basis.shape[1]), float(sizes[-1])
    while cap < sizes[0]:
        cap = min(cap * STAGE, float(sizes[0]))
        change = _reduced(np.minimum(sizes, cap)[:, None] * axes, change, sweeps)
    orthonormal, triangle = _factored(basis @ change)
    # The volume of a cell stays: else some whole number was not exact, and it is the basis of another lattice.
    if not abs(np.log(np.diag(triangle)).sum() - np.log(sizes).sum()) < VOLUME:
        raise ArithmeticError("the lattice's basis is too long in some directions to be reduced in float64")
    return Reduced(change, orthonormal, triangle)


def _reduced(basis: Matrix, change: Matrix, sweeps: int) -> Matrix:
    """U for a basis, from one that reduces it nearly."""
    done = 0
    while True:
        _, triangle = _factored(basis @ change)
        _size_reduce(triangle, change)
        moved, grown = False, 1.0
        while grown < GROWTH and done < sweeps:
            done += 1
            growth = _sweep(triangle, change)
            if growth == 0:
                break
            moved, grown = True, grown * growth
        if not moved or done >= sweeps:
            return change


def _factored(basis: Matrix) -> tuple[Matrix, Matrix]:
    """Q and R of a basis, the diagonal of R positive."""
    orthonormal, triangle = np.linalg.qr(basis)
    signs = np.where(np.diag(triangle) < 0, -1.0, 1.0)
    return orthonormal * signs, triangle * signs[:, None]


def _size_reduce(triangle: Matrix, change: Matrix, first: int = 0, last: int | None = None) -> None:
    """Take whole multiples of earlier basis vectors from later ones, half by half (Seysen 1993).

    Of a triangle [[A, B], [0, C]] both halves are reduced first; then B becomes B - A round(A^-1 B). With A reduced,
    multiples stay small, where one column after another would let them grow beyond what is exact.
    """
    from scipy.linalg import solve_triangular

    last = len(triangle) if last is None else last
    if last - first < 2:
        return
    middle = (first + last) // 2
    _size_reduce(triangle, change, first, middle)
    _size_reduce(triangle, change, middle, last)
    early, late = slice(first, middle), slice(middle, last)
    times = np.rint(solve_triangular(triangle[early, early], triangle[early, late], check_finite=False))
    triangle[:middle, late] -= triangle[:middle, early] @ times
    change[:, late] -= change[:, early] @ times


def _sweep(triangle: Matrix, change: Matrix) -> float:
    """Reduce all even pairs of neighbors, then all odd ones; the growth of coefficients, 0 where none changed."""
    growth = 0.0
    for parity in (0, 1):
        first = np.arange(parity, len(triangle) - 1, 2)
        turns, exchanged = _lagrange(triangle[first, first], triangle[first, first + 1], triangle[first + 1, first + 1])
        first, turns = first[exchanged], turns[exchanged]
        if not len(first):
            continue
        growth = max(growth, 1.05, float(np.abs(turns).max()))
        for matrix in (triangle, change):
            one, two = matrix[:, first].copy(), matrix[:, first + 1].copy()
            matrix[:, first] = one * turns[:, 0, 0] + two * turns[:, 1, 0]
            matrix[:, first + 1] = one * turns[:, 0, 1] + two * turns[:, 1, 1]
        # A rotation of each pair of rows makes its 2 x 2 block triangular again.
        p, q = triangle[first, first], triangle[first + 1, first]
        length = np.hypot(p, q)
        cosine, sine = (p / length)[:, None], (q / length)[:, None]
        one, two = triangle[first].copy(), triangle[first + 1].copy()
        triangle[first], triangle[first + 1] = cosine * one + sine * two, cosine * two - sine * one
        triangle[first + 1, first] = 0
        triangle[first[triangle[first + 1, first + 1] < 0] + 1] *= -1
    return growth


def _lagrange(a: Matrix, b: Matrix, c: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
    """Reduce the bases `[[a, b], [0, c]]` in two dimensions: `[k, 2, 2]` whole changes, and `[k]` where exchanged."""
    turns = np.tile(np.eye(2), (len(a), 1, 1))
    exchanged = np.zeros(len(a), dtype=bool)
    for _ in range(20):
        # A pair whose coefficients have grown waits until the others' are reduced: whole numbers stay exact.
        times = np.rint(b / a) * (np.abs(turns).max((1, 2)) < GROWTH)
        b = b - times * a
        turns[:, :, 1] -= times[:, None] * turns[:, :, 0]
        swap = (b * b + c * c < DELTA * a * a) & (np.abs(turns).max((1, 2)) < GROWTH)
        if not swap.any():
            break
        exchanged |= swap
        # (a, 0), (b, c) exchanged: the first is (b, c), of length n; the second has a b / n along it, a c / n across.
        length = np.where(swap, np.hypot(b, c), a)
        a, b, c = length, np.where(swap, a * b / length, b), np.where(swap, a * c / length, c)
        turns = np.where(swap[:, None, None], turns[:, :, ::-1], turns)
    return turns, exchanged
