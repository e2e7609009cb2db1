"""Units that differ by one example: with two classes the difference of their gradients is that example alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.network import CERTIFYING_MISMATCH
from seepage.attacks.spear.sparse_columns import Span, unlike
from seepage.base.algebra.rows import first_of_each
from seepage.base.rounding import FLOAT32_NETWORK

MAX_COMPARED_UNITS = 512
"""Units that differ at all which are compared, each with each."""

MAX_COLUMN_ENTRIES = 2**21
"""Entries of columns made in one go."""


@dataclass(frozen=True, eq=False)
class NeighborUnits:
    """Examples read from pairs of units, in a layer behind which every example has one error and not one per class.

    With two classes the errors at the outputs add up to zero, so that unit j's gradient over what the network behind
    hands back to it is `sum_i on_ij e_i (x_i, 1)`. Two units that differ in example i alone differ by `e_i (x_i, 1)`;
    a unit that no other example reaches, as `linear` needs, is such a pair with a unit that none does. Which
    differences are one example's the model tells: its own error at `x_i` must be `e_i`, and its own column must lie in
    the span of the columns. What was found is taken away, which leaves more pairs that differ in one.

    Attributes:
        span: Columns that span the examples' own, at `[p]` live units.
        sums: `[p, n + 1]` the sums above; x in coordinates of the gradient's row space, in which
        outputs: `[n, m]` is what the layer makes of each coordinate, and
        bias: `[m]` what it adds.
        errors: From `[k, m]` outputs of the layer to the errors `[labels, k]` that the model makes of them.
        own: From outputs and errors `[k]` to the columns `[k, p]` that the model sends of them.
    """

    span: Span
    sums: Tensor
    outputs: Tensor
    bias: Tensor
    errors: Callable[[Tensor], Tensor]
    own: Callable[[Tensor, Tensor], Tensor]

    def directions(self) -> Tensor:
        """`[k, n]` unit directions of the span, each one example's column; `k <= n`."""
        known, sums = self.span.rows.new_zeros((0, self.span.n)), self.sums
        while len(known) < self.span.n:
            before = len(known)
            for step, column, direction in self._steps(sums):
                if len(unlike(direction[None], known)):
                    known = torch.cat([known, direction[None]])
                    sums = sums - (column != 0)[:, None] * step
            if len(known) == before:
                break
        return known

    def _steps(self, sums: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Differences `[n + 1]` of two sums that are one example's, with its column `[p]` and unit direction `[n]`."""
        # With a row of zeros a unit that one example alone reaches is a pair too.
        rows = torch.cat([sums.new_zeros((1, sums.shape[1])), sums])
        # Units whose sums are the same are on for the same examples.
        near = torch.cdist(rows, rows) < FLOAT32_NETWORK * rows.norm(dim=1).max()
        rows = rows[first_of_each(near)][:MAX_COMPARED_UNITS]
        pairs = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
        for first, second in zip(
            *(index.split(max(1, MAX_COLUMN_ENTRIES // len(sums))) for index in pairs), strict=True
        ):
            steps, columns = self._single(rows[first] - rows[second])
            # An example's own column must be a combination of the span's: least squares, and what is left decides.
            # [k, n]
            solved = torch.linalg.lstsq(self.span.rows, columns.T).solution.T  # [k, n]
            misfit = (solved @ self.span.rows.T - columns).norm(dim=1)
            good = misfit < CERTIFYING_MISMATCH * columns.norm(dim=1)
            yield from zip(steps[good], columns[good], F.normalize(solved[good], dim=1), strict=True)

    def _single(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Those of `[k, n + 1]` differences at which some label's error is the one that the difference says."""
        steps = steps[steps[:, -1].abs() > 1e-12 * steps[:, -1].abs().max()]
        # A difference is e (x, 1): x is its head over its last entry, and the layer makes W x + b of it. [k, m]
        outputs = steps[:, :-1] @ self.outputs / steps[:, -1:] + self.bias
        error, said = self.errors(outputs), steps[:, -1]
        label, place = ((error.abs() - said.abs()).abs() < CERTIFYING_MISMATCH * said.abs()).nonzero(as_tuple=True)
        error = error[label, place]
        turned = (error * said[place]).sign()
        return steps[place] * turned[:, None], self.own(outputs[place], error)
