"""Unmixing of features behind a ReLU: never negative, and exactly zero in many places.

A mixture of several examples' features is zero only where all of them are. So of all directions in the row space of
the gradient those of single examples are the ones that are nowhere negative and in the most places exactly zero. They
are found without a label; the network's softmax then vouches for each of them by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from seepage.base.algebra.sparse import falling, sparse_directions
from seepage.base.rounding import DEVIATIONS, FLOAT32_NETWORK, FLOAT32_ZERO

STEPS = 24
"""Re-weighted steps of one start."""
BLURS = (0.3, 1e-3)
"""First and last width of what counts as zero while rows are searched for, in units of a feature's mean size.

The last is also the most that counts as zero before the errors are known to be larger.
"""
SETTLING = 6
"""Re-weighted steps in float64 after that, each with a fifth of the width of the one before."""
NEGATIVE_WEIGHT = 100.0
"""Features behind a ReLU are not negative: a negative entry counts this many times."""
COLUMNS = 4096
"""Most features that the search looks at; more are drawn from at random."""
ROUNDS = 40
"""Most rounds of starts; each looks only for what the rounds before did not find."""
FRUITLESS = 4
"""Rounds in a row without a new row after which the search ends."""
MIN_STARTS = 32
"""Fewest starts of a round."""
ALIKE = 2e-2
"""Distance of two directions of length 1 below which one of them is dropped before they are settled."""
SAME_DIRECTION = 3e-3
"""Distance of two directions of length 1 below which they are one."""
SHARPENINGS = (64.0, 16.0, 4.0, 1.0, 1.0, 1.0)
"""How much wider what counts as zero is, each time that the zeros of a row are read and the row is solved from them.

A narrow width alone can come to rest at a row that is tilted: at those of its zeros that happen to stay within.
"""


Dual = Callable[[Float[Tensor, " n"]], Float[Tensor, " n"] | None]
"""The column of Q^-1 that belongs to one row of Q, where something else than zeros gives it."""


def unmix(
    inner: Float[Tensor, "n k"],
    deviation: float,
    first: Float[Tensor, "s n"] | None,
    draw: Generator,
    dual: Dual = lambda row: None,
) -> tuple[Float[Tensor, "n n"], int] | None:
    """Q up to the scale of its rows, and how many of its rows, the first ones, are found; None where none is.

    The other rows are any that have no share in those found: what is left of examples with hardly a gradient.

    Args:
        inner: Mixtures of the features, of independent rows: `Q inner` are the features.
        deviation: Standard deviation of the errors in it.
        first: Rows to start from; random ones come after them.
        draw: Of random rows and columns.
        dual: Tells columns of Q^-1, so that each next search is for what is not found yet.
    """
    n = len(inner)
    if n == 1:  # nothing is mixed
        return torch.ones((1, 1), dtype=inner.dtype) * inner.sum().sign(), 1
    seen = _SeenUnits.of(inner, deviation, draw)
    found, space = seen.inner.new_zeros((0, n)), torch.eye(n, dtype=seen.inner.dtype)
    fruitless = 0
    for number in range(ROUNDS):
        left, before = len(space), len(found)
        if number == 0 and first is not None:
            starts = first @ seen.turn
        else:
            starts = torch.randn((max(2 * left, MIN_STARTS), left), generator=draw, dtype=space.dtype) @ space
        # Only combinations of what is not found yet: rows of `space` have no share in the rows found.
        small = search(space @ seen.inner, starts @ space.T)
        rows = settle(seen.inner, each_once(small) @ space)
        found = torch.cat([found, seen.new(rows, found)])[:n]
        fruitless = 0 if len(found) > before else fruitless + 1
        if len(found) == n or fruitless == FRUITLESS:
            break
        space = seen.without(found, dual)
    if not len(found):
        return None
    if len(found) == n - 1 and len(space) == 1:
        found = torch.cat([found, space])  # the only direction without a share in the others
    sharp = sharpen(inner, deviation, seen.unturned(found))
    if len(found) == n:
        return sharp, n
    # Where the softmax does not show the label of each row found, the rest cannot be separated from them.
    return None if len(space) != n - len(found) else (torch.cat([sharp, seen.unturned(space)]), len(found))


@dataclass(frozen=True)
class _SeenUnits:
    """The units that the search looks at, in orthonormal coordinates: `B' = T V` with `V V^T = 1`.

    B' is B without units that are silent for the whole batch, each unit divided by its size, so that a few strong ones
    do not outweigh the zeros of the others. A row q of Q has the direction `r = q T`, and `r V` are its features.

    Attributes:
        whole: `[n, k]` B.
        deviation: Standard deviation of the errors in B.
        inner: `[n, k']` V.
        alive: Number of units that are not silent.
        turn: `[n, n]` T.
    """

    whole: Tensor
    deviation: float
    inner: Tensor
    alive: int
    turn: Tensor

    @classmethod
    def of(cls, whole: Float[Tensor, "n k"], deviation: float, draw: Generator) -> Self:
        size = torch.linalg.qr(whole.T).Q.norm(dim=1)  # [k] of each unit, whatever the basis
        alive = (size > FLOAT32_NETWORK * size.max()).nonzero()[:, 0]
        picked = alive[torch.randperm(len(alive), generator=draw)[:COLUMNS]]
        q, r = torch.linalg.qr((whole[:, picked] / size[picked]).T)
        return cls(whole, deviation, q.T, len(alive), r.T)

    def unturned(self, rows: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        """Rows of Q of directions."""
        unturned: Tensor = torch.linalg.solve(self.turn, rows, left=False)
        return unturned

    def new(self, rows: Float[Tensor, "s n"], found: Float[Tensor, "m n"]) -> Float[Tensor, "l n"]:
        """Rows with far more zeros than a corner of the cone has by its making, each once, the most zeros first."""
        unmixed = self.unturned(rows)
        values = unmixed @ self.whole  # [s, k]
        size = values.square().mean(1).sqrt()
        # A feature is as noisy as its row of Q is long.
        width = torch.maximum(2 * DEVIATIONS * self.deviation * unmixed.norm(dim=1), FLOAT32_ZERO * size)
        zeros = (values.abs() < width[:, None]).sum(1) - (self.whole.shape[1] - self.alive)
        # Any n - 1 features can be made zero, and others are within the width of zero by chance.
        chance = 4 * width / size * values.shape[1]
        negative = values.clamp(max=0).norm(dim=1) < torch.maximum(0.01 * size, width) * values.shape[1] ** 0.5
        enough = (zeros > 2 * len(self.turn) + chance) & negative
        chosen: list[Tensor] = []
        for place in zeros.argsort(descending=True).tolist():
            known = [*found, *chosen]
            if enough[place] and all(float((rows[place] - other).norm()) > SAME_DIRECTION for other in known):
                chosen.append(rows[place])
        return torch.stack(chosen) if chosen else rows[:0]

    def without(self, found: Float[Tensor, "m n"], dual: Dual) -> Float[Tensor, "l n"]:
        """An orthonormal basis of the directions that have no share in the rows found."""
        # A^T = D U Q^-1 gives columns of Q^-1; with R = Q T those of R^-1 are T^-1 times as much.
        columns = [dual(row) for row in self.unturned(found)]
        duals = [torch.linalg.solve(self.turn, column) for column in columns if column is not None]
        if not duals or len(duals) == len(self.turn):
            return torch.eye(len(self.turn), dtype=self.turn.dtype)
        # What is orthogonal to the columns of R^-1 of the rows found has no share in those rows.
        basis: Tensor = torch.linalg.svd(F.normalize(torch.stack(duals), dim=1)).Vh
        return basis[len(duals) :]


def search(inner: Float[Tensor, "n k"], starts: Float[Tensor, "s n"]) -> Float[Tensor, "s n"]:
    """Directions of length 1 whose features are hardly negative and often zero, one for each start, in float32."""
    k = inner.shape[1]
    first, last = (blur / k**0.5 for blur in BLURS)
    widths = falling(first, last, STEPS)
    # Absolute values first, which many starts find their way by, then a count of what is not zero.
    rows, basis = starts.float(), inner.float()
    for power, own in ((0.5, widths[: STEPS // 2]), (1.0, widths[STEPS // 2 :])):
        rows = sparse_directions(basis, rows, own, power=power, negative=NEGATIVE_WEIGHT, ridge=3e-5)
    return _with_positive_sign(rows.double(), inner.double())


def each_once(rows: Float[Tensor, "s n"]) -> Float[Tensor, "m n"]:
    """Directions of length 1 without those that are nearly another's."""
    near = torch.cdist(rows, rows) < ALIKE
    # A row is kept where no earlier one is near it.
    return rows[~near.tril(-1).any(1)]


def settle(inner: Float[Tensor, "n k"], rows: Float[Tensor, "s n"]) -> Float[Tensor, "s n"]:
    """The same in float64, from a narrow width on, so that equal rows become equal numbers."""
    widths = [1e-2 * 0.2**step / inner.shape[1] ** 0.5 for step in range(SETTLING)]
    return _with_positive_sign(sparse_directions(inner, rows, widths, negative=NEGATIVE_WEIGHT, ridge=1e-13), inner)


def _with_positive_sign(rows: Float[Tensor, "s n"], inner: Float[Tensor, "n k"]) -> Float[Tensor, "s n"]:
    return rows * (rows @ inner).sum(1, keepdim=True).sign()


def sharpen(basis: Float[Tensor, "n k"], deviation: float, rows: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """Rows of Q solved from their own zeros, as exactly as the gradient's errors allow.

    Row i is the direction in which the features that are zero vanish: `q B_Z = 0`, thousands of equations for n - 1
    unknowns. All entries of B have errors of one size, so the solution of total least squares is the last left
    singular vector of `B_Z`. What the softmax is blind to (examples of one label on a fresh network have nearly the
    same slopes) is no harder here.
    """
    sharp = []
    for row in rows:
        for wider in SHARPENINGS:
            values = row @ basis
            noise, size = deviation * float(row.norm()), float(values.square().mean().sqrt())
            width = max(min(wider * DEVIATIONS * noise, BLURS[-1] * size), DEVIATIONS * noise, 1e-6 * size)
            zero = basis[:, values.abs() < width]
            if zero.shape[1] < 2 * len(row):
                break
            # The triangular factor of B_Z^T has the same right singular vectors, at a size of n x n.
            triangle = torch.linalg.qr(zero.T, mode="r").R
            last = torch.linalg.svd(triangle).Vh[-1]  # [n] the q of the least |q B_Z|
            row = last * (last @ basis).sum().sign() * row.norm()
        sharp.append(row)
    return torch.stack(sharp)
