"""Adam on the rows of a table, of which a batch moves its own: what CAFE's loops and their rivals step with."""

import torch
from torch import Tensor

from seepage.base.checkpoint import Resumable


class RowAdam(Resumable):
    """Adam with moments per row of a table; only the rows of the current batch move.

    Args:
        table: `[N, ...]`, changed in place.
        lr: Learning rate.
        eps: Added to the root of the second moment; 1e-7 is Keras's, as in the released code.
    """

    kept = ("table", "first", "second", "counts")

    def __init__(self, table: Tensor, lr: float, *, eps: float = 1e-7) -> None:
        self.table = table
        self.lr = lr
        self.eps = eps
        self.first = torch.zeros_like(table)
        self.second = torch.zeros_like(table)
        self.counts = torch.zeros(len(table), dtype=torch.int64, device=table.device)

    def step(self, rows: Tensor, gradient: Tensor) -> None:
        """Move the rows against `gradient`, `[k, ...]`."""
        # Adam of its own, since only the visited rows move, each with its own count.
        self.counts[rows] += 1
        shape = (-1, *[1] * (gradient.ndim - 1))
        count = self.counts[rows].to(self.table.dtype)
        first = self.first[rows] = 0.9 * self.first[rows] + 0.1 * gradient
        second = self.second[rows] = 0.999 * self.second[rows] + 0.001 * gradient.pow(2)
        one, two = (1 - 0.9**count).reshape(shape), (1 - 0.999**count).reshape(shape)
        self.table[rows] -= self.lr * (first / one) / ((second / two).sqrt() + self.eps)
