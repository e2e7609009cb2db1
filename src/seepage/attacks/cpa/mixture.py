"""An update of one layer as the polish sees it: mixing columns, sources, and the network behind the layer."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from seepage.attacks.network import EXACT, NetworkCut


@dataclass(frozen=True, eq=False)
class Mixture:
    """What the server knows about one layer's update, in the space of its r kept directions.

    Attributes:
        columns: `[m, r]` left singular vectors times singular values.
        ones: `[r]` solves `columns @ ones = bias gradient`: row i has the right scale when `rows[i] @ ones = 1`.
        outputs: `[r, m]` the layer's weights applied to the right singular vectors.
        bias: `[m]` the layer's bias.
        n: Batch size behind the update; a factor on the whole update (a clipped norm) divides it.
        downstream: The network behind the layer.
        error_sum: `[k]` gradient of the last bias: mean of `p - e_y`; None where there is no such bias.
        labels: `[n]` the labels, where known.
    """

    columns: Tensor
    ones: Tensor
    outputs: Tensor
    bias: Tensor
    n: float
    downstream: NetworkCut
    error_sum: Tensor | None = None
    labels: Tensor | None = None

    def scaled(self, rows: Tensor) -> Tensor:
        """Rows with the scale and sign that the bias gradient gives them."""
        # The bias gradient is A 1 (the sum of A's columns), and A = columns rows^-1: so rows @ ones = 1 for right
        # scales.
        return over_size(rows, rows @ self.ones)

    def rescaled(self, view: "UnmixingState") -> Self:
        """The same with n such that the columns that agree in direction agree in length."""
        # Class counts read with a wrong n are wrong, so labels are read from the directions alone.
        view = replace(self, error_sum=None, labels=None).evaluate(view.rows)
        # Least squares for one factor per column: mixing_i * c = computed_i, over the m units. [r]
        ratio = (view.mixing * view.computed).sum(1) / view.mixing.square().sum(1).clamp(min=1e-300)
        return replace(self, n=self.n * float(ratio.median().clamp(min=1e-6)))

    def evaluate(self, rows: Tensor) -> "UnmixingState":
        """Everything that follows from the rows: columns, forward pass, labels, certificates."""
        # h_i = W x_i + b, with W applied to the right singular vectors once and for all: [r, r] @ [r, m].
        outputs = rows @ self.outputs + self.bias
        probabilities = self.downstream.probabilities(outputs)
        # The columns that the unmixing implies: n A = n columns rows^-1, one per row here. [r, m]
        mixing = (self.columns @ torch.linalg.inv(rows)).T * self.n
        labels = self._labels(mixing, outputs, probabilities)
        # e_i = p_i - e_y, the gradient of the cross-entropy in the logits. [r, k]
        errors = probabilities.clone()
        errors[torch.arange(len(rows)), labels] -= 1
        return UnmixingState(rows, outputs, probabilities, labels, mixing, self.downstream.backward(outputs, errors))

    def _labels(self, mixing: Tensor, outputs: Tensor, probabilities: Tensor) -> Tensor:
        """The labels whose computed columns are nearest to the unmixed ones, each class as often as it occurs."""
        from scipy.optimize import linear_sum_assignment

        r, k = probabilities.shape
        counts = self._counts(probabilities)
        classes = torch.arange(k) if counts is None else counts.nonzero()[:, 0]
        if len(classes) == 0:
            classes, counts = torch.arange(k), None
        # L_i^T is linear, so the column of label c is L^T p - L^T e_c: one backward pass for p and one per class.
        units = nn.functional.one_hot(classes, k).to(mixing)[:, None].expand(-1, r, -1)
        pulled = self.downstream.backward(outputs, units)  # [c, r, m]
        computed = self.downstream.backward(outputs, probabilities) - pulled  # [c, r, m]
        cost = (mixing - computed).norm(dim=2).T  # [r, c]
        if counts is None:
            # Without counts the scale may be unknown too; directions are then the safer guide.
            cost = -nn.functional.cosine_similarity(mixing, computed, dim=2, eps=1e-300).T
        if counts is None or int(counts.sum()) < r:
            return classes.to(cost.device)[cost.argmin(1)]
        # Class c is to be given counts[c] times: as many slots of it, and the cheapest one-to-one assignment of rows.
        slots = torch.repeat_interleave(torch.arange(len(classes)), counts[classes])
        row, slot = linear_sum_assignment(cost[:, slots.to(cost.device)].cpu().numpy())
        labels = torch.empty(r, dtype=torch.int64)
        labels[torch.from_numpy(row)] = classes[slots[torch.from_numpy(slot)]]
        return labels.to(cost.device)

    def _counts(self, probabilities: Tensor) -> Tensor | None:
        if self.labels is not None:
            return torch.bincount(self.labels.cpu(), minlength=probabilities.shape[1])
        if self.error_sum is None:
            return None
        # The last bias's gradient is mean(p - e_y), so the class counts are sum(p) - n times it. [k]
        return (probabilities.sum(0) - self.n * self.error_sum).round().clamp(min=0).long().cpu()


def over_size(rows: Tensor, size: Tensor) -> Tensor:
    """Rows `[r, d]` over their sizes `[r]`; one next to nothing would blow its row up, and is put to a small one."""
    least = 1e-6 * size.abs().median().clamp(min=1e-30)
    return rows / torch.where(size.abs() < least, least, size)[:, None]


@dataclass(frozen=True, eq=False)
class UnmixingState:
    """One unmixing and what follows from it.

    Attributes:
        rows: `[r, r]`.
        outputs: `[r, m]` the layer's outputs on the unmixed images.
        probabilities: `[r, k]`.
        labels: `[r]`.
        mixing: `[r, m]` n times the mixing columns that the unmixing implies.
        computed: `[r, m]` the same as the model computes them from the images.
    """

    rows: Tensor
    outputs: Tensor
    probabilities: Tensor
    labels: Tensor
    mixing: Tensor
    computed: Tensor

    @property
    def certificates(self) -> Tensor:
        """`[r]` relative mismatch of implied and computed columns: 0 for an exact image, needs no truth."""
        size = torch.maximum(self.mixing.norm(dim=1), self.computed.norm(dim=1))
        mismatch: Tensor = (self.mixing - self.computed).norm(dim=1) / size.clamp(min=1e-300)
        return mismatch


@dataclass(frozen=True, eq=False)
class Unmixed:
    """One start's result.

    Attributes:
        right: `[r, e]` the kept right singular vectors.
        rows: `[r, r]` unmixing rows.
        scores: `[r]` certificates (0: exact), or None where nothing certifies.
        labels: `[r]` labels, or None.
    """

    right: Tensor
    rows: Tensor
    scores: Tensor | None = None
    labels: Tensor | None = None

    @property
    def solved(self) -> int:
        return 0 if self.scores is None else int((self.scores < EXACT).sum())
