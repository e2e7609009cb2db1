"""What the gradient of the last linear layer says of a batch, written with as few unknowns as it leaves open."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from seepage.base.rounding import DEVIATIONS

ROUNDING = 0.2
"""Standard deviation of a rounded number's error, in units of its type's epsilon, over numbers of all sizes."""

UNEXPLAINED = 1e-2
"""Share that a solution may leave unexplained: of a gradient, of an example's slopes, or, as negative values, of what
should be the output of a ReLU."""

MIN_GAP = 10.0
"""Ratio of neighboring singular values from which on the first of them ends the gradient's rank."""

MIN_SLOPE = 1e-3
"""Length of softmax minus label below which an example's misfit is measured against this length."""


@dataclass(frozen=True)
class HeadEquations:
    """The gradient of `n` examples in the last layer, `[g_b G] = A^T [1 F]`, and the unmixing `Q` that it leaves open.

    A `[n, C]` holds each example's slope of the mean loss in the logits, `(softmax(F W^T + b) - Y) / n`, and F `[n, k]`
    the features. The gradient has rank n, so that with its singular value decomposition `D^-1 [g_b G] = U B` both
    factors are known up to one invertible `n x n` matrix: `[1 F] = Q B` and `A^T = D U Q^-1`.

    D divides each class's row by its size, so that the rounding errors of all rows, and with U orthonormal those of
    all rows of B, have one standard deviation: an example's features are as noisy as its row of Q is long.

    Attributes:
        weight: `[C, k]` W.
        bias: `[C]` b; zeros where the layer has none.
        scale: `[C]` the diagonal of D.
        left: `[C, n]` U, orthonormal columns.
        basis: `[n, 1 + k]` B, orthogonal rows of falling length; the first column belongs to the bias gradient.
        deviation: Standard deviation of the errors in `basis`.
        epsilon: Rounding unit of the numbers that the network computes in.
        examples: Number of examples behind the gradient; more than n where some left no trace.
        biased: Whether the layer has a bias, whose gradient gives the scale of each row of Q.
        rank_beyond_batch: The rank of the gradient; only where the update cannot be one step on `examples` examples.
    """

    weight: Float[Tensor, "C k"]
    bias: Float[Tensor, " C"]
    scale: Float[Tensor, " C"]
    left: Float[Tensor, "C n"]
    basis: Float[Tensor, "n columns"]
    deviation: float
    epsilon: float
    examples: int
    biased: bool
    rank_beyond_batch: int | None = None

    @classmethod
    def of(
        cls,
        weight: Float[Tensor, "C k"],
        bias: Float[Tensor, " C"] | None,
        gradient: Float[Tensor, "C k"],
        bias_gradient: Float[Tensor, " C"] | None,
        examples: int,
    ) -> Self:
        """The equations of a gradient that is not zero; float64 from here on."""
        zeros = gradient.new_zeros(len(weight))
        both = torch.cat([(zeros if bias_gradient is None else bias_gradient)[:, None], gradient], 1)
        scale, left, basis, deviation, singular = factored(both, examples)
        return cls(
            weight.double(),
            zeros.double() if bias is None else bias.double(),
            scale,
            left,
            basis,
            deviation,
            torch.finfo(weight.dtype).eps,
            examples,
            bias is not None,
            _surplus(singular, examples),
        )

    def over(self, share: float) -> Self:
        """The same of an update that is `share` times the gradient: `s [g_b G] = (s D) U B`, so D alone is divided."""
        return replace(self, scale=self.scale / share)

    def share(self, unmixing: Float[Tensor, "n n"], count: int) -> float | None:
        """What the gradient was multiplied by, clipping or another rate than stated; None where no slope shows it.

        With a bias the features of an unmixing, and so P, do not depend on it: the ratio of the weight's to the bias's
        gradient does not. The slopes do: `n A_i = s (P_i - Y_i)`, of which the label's entry alone is negative.

        Args:
            unmixing: Rows at the scale that the bias gives.
            count: Its first rows are those of single examples.
        """
        # min over s of |n A - s (P - Y)|^2 is <n A, P - Y> / |P - Y|^2, for each example; their median counts.
        slopes = self.examples * self.slopes(unmixing)[:count]
        wanted = self.probabilities(unmixing)[:count] - F.one_hot(slopes.argmin(1), len(self.weight))
        size = wanted.square().sum(1)
        shares = ((slopes * wanted).sum(1) / size)[size > MIN_SLOPE**2]
        found = float(shares.median()) if len(shares) else 0.0
        return found if 0 < found < float("inf") else None

    @property
    def rank(self) -> int:
        """Number of examples that left a trace."""
        return len(self.basis)

    @property
    def ones(self) -> Float[Tensor, " n"]:
        """The column of `basis` that every row of Q turns into 1."""
        return self.basis[:, 0]

    @property
    def bias_gradient(self) -> Float[Tensor, " C"]:
        """g_b without its errors outside the column space; zeros where the layer has no bias."""
        gradient: Tensor = self.scale * (self.left @ self.ones)
        return gradient

    @property
    def inner(self) -> Float[Tensor, "n k"]:
        """The columns of `basis` that Q turns into the features."""
        return self.basis[:, 1:]

    @cached_property
    def logits_basis(self) -> Float[Tensor, "n C"]:
        """What Q turns into the logits, but for the bias."""
        return self.inner @ self.weight.T

    def slopes(self, unmixing: Float[Tensor, "n n"]) -> Float[Tensor, "n C"]:
        """A of an unmixing, `A^T = D U Q^-1`; not finite where it is singular."""
        slopes: Tensor = torch.linalg.solve_ex(unmixing.T, (self.scale[:, None] * self.left).T).result
        return slopes

    def unmixing(self, slopes: Float[Tensor, "n C"]) -> Float[Tensor, "n n"]:
        """The unmixing whose A is nearest to the given one: `Q^-1 = U^T D^-1 A^T` in the least-squares sense."""
        unmixing: Tensor = torch.linalg.pinv(self.left.T @ (slopes / self.scale).T)
        return unmixing

    def scaled(self, unmixing: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        """Rows divided by what the bias gradient says should be 1; as they are in a layer without bias."""
        if not self.biased:
            return unmixing
        ones = unmixing @ self.ones
        return unmixing / torch.where(ones.abs() < 1e-300, torch.ones_like(ones), ones)[:, None]

    def column_if_consistent(self, row: Float[Tensor, " n"]) -> Float[Tensor, " n"] | None:
        """The column of `Q^-1` for one row of Q, if its class probabilities fit some label; else None.

        The slopes of an example follow from its features and its label, and must lie in the column space of the
        gradient, which `C - 1 - n` equations say. A wrong row, or a wrong label, does not fulfill them.
        """
        if not self.biased or self.rank >= len(self.weight) - 1:
            return None  # no equation to spare: every label fits
        chances = self.probabilities(self.scaled(row[None]))[0]
        slopes = (chances - torch.eye(len(chances), dtype=chances.dtype)) / self.scale  # [C labels, C]
        inside = slopes @ self.left  # [C labels, n]: U^T D^-1 A
        # What U U^T does not give back lies outside the column space: for the right label nothing but errors.
        left_over = (slopes - inside @ self.left.T).norm(dim=1) / slopes.norm(dim=1)
        label = int(left_over.argmin())
        return inside[label] / self.examples if left_over[label] < UNEXPLAINED else None

    def probabilities(self, unmixing: Float[Tensor, "m n"]) -> Float[Tensor, "m C"]:
        """Class probabilities of the features of an unmixing."""
        return (unmixing @ self.logits_basis + self.bias).softmax(1)

    def contradiction(
        self, unmixing: Float[Tensor, "n n"], labels: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, "n C"], Float[Tensor, "n C"]]:
        """`n A - (P - Y)`, what the gradient says against the features' own probabilities; and `P - Y` itself."""
        wanted = self.probabilities(unmixing) - F.one_hot(labels, len(self.weight))
        return self.examples * self.slopes(unmixing) - wanted, wanted

    def misfit(self, unmixing: Float[Tensor, "n n"], labels: Int[Tensor, " n"]) -> float:
        """How far the features' own probabilities are from those that the gradient asks for, as a share."""
        off, wanted = self.contradiction(unmixing, labels)
        return float(off.norm() / wanted.norm())

    def size(self, unmixing: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
        """Root mean square of each example's features."""
        size: Tensor = (unmixing @ self.inner).square().mean(1).sqrt()
        return size

    def noise(self, unmixing: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
        """Standard deviation of the error of a feature of each example."""
        noise: Tensor = self.deviation * unmixing.square().sum(1).sqrt()
        return noise


def factored(
    gradient: Float[Tensor, "C k"], examples: int
) -> tuple[Float[Tensor, " C"], Float[Tensor, "C n"], Float[Tensor, "n k"], float, Float[Tensor, " r"]]:
    """A gradient of at most so many examples as `D U B`, in float64: D, U, B, the errors in B, all singular values.

    D is each row's size, U has orthonormal columns, B orthogonal rows (see `HeadEquations`). The errors' size comes
    from the singular values behind the n-th, which are zero but for errors.
    """
    both = gradient.double()
    scale = both.square().mean(1).sqrt()  # [C] root mean square of each row
    scale = scale.clamp(min=1e-12 * float(scale.max()))  # a class whose row is zero would divide by zero
    left, singular, right = torch.linalg.svd(both / scale[:, None], full_matrices=False)
    # What is behind the n-th value has (C - n) (k - n) independent errors; the sum of squares is their energy. A head
    # has at least one with fewer examples than classes: the rows of its gradient sum to zero.
    spare = max((len(both) - examples) * (both.shape[1] - examples), 1)
    energy = float(singular[examples:].square().sum())
    deviation = max((energy / spare) ** 0.5, ROUNDING * torch.finfo(gradient.dtype).eps)
    # A direction at the level of the errors tells nothing: an example without a gradient left no trace.
    # Errors of deviation s in a [C, 1 + k] matrix have singular values near s sqrt(1 + k), for C far below k.
    level = DEVIATIONS * deviation * both.shape[1] ** 0.5
    kept = max(int((singular[:examples] > level).sum()), 1)
    return scale, left[:, :kept], singular[:kept, None] * right[:kept], deviation, singular


def _surplus(singular: Float[Tensor, " r"], examples: int) -> int | None:
    """The rank of a gradient with these singular values, where they end at a wide gap behind `examples` of them.

    >>> _surplus(torch.tensor([3.0, 2.0, 1.0, 1e-7]), 2), _surplus(torch.tensor([3.0, 2.0, 1e-7, 1e-8]), 2)
    (3, None)
    """
    if float(singular[examples:].norm()) <= UNEXPLAINED * float(singular.norm()):
        return None
    gaps = singular[:-1] / singular[1:].clamp(min=1e-300)
    rank = int(gaps.argmax()) + 1
    return rank if rank > examples and float(gaps.max()) >= MIN_GAP else None  # noise has no gap
