"""One layer's part of an update, as SPEAR reads it: its rank, its zeros, and the examples that directions give."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.base import MATCHING, refuse
from seepage.attacks.network import CERTIFYING_MISMATCH, AttackedRound, NetworkCut
from seepage.attacks.network.mixing_layer import MIN_ZEROS, MixingLayer, find_layer
from seepage.attacks.spear.lifted_linearization import determined
from seepage.attacks.spear.neighbor_units import NeighborUnits
from seepage.attacks.spear.sparse_columns import Span
from seepage.base.algebra.lowrank import LowRank, low_rank
from seepage.base.nn import generator
from seepage.federation.types import Transcript

INSTEAD = f"cocktail_party or {MATCHING}"
MIN_AGREEMENT = 0.99
"""Share of an example's units whose sign must agree with the zeros of its column; rounding turns a few at the kink."""


@dataclass(frozen=True, eq=False)
class FoundBatch:
    """Examples that one choice of Q gives.

    Attributes:
        inputs: `[n, d]` of the layer.
        labels: `[n]`.
        agreement: `[n]` share of units whose sign agrees with the zeros (the paper's lambda, per example).
        mismatch: `[n]` relative distance of the example's column of D and what the model makes of the example.
    """

    inputs: Tensor
    labels: Tensor
    agreement: Tensor
    mismatch: Tensor

    @property
    def certified(self) -> Tensor:
        return (self.mismatch <= CERTIFYING_MISMATCH) & (self.agreement >= MIN_AGREEMENT)

    @property
    def sure(self) -> int:
        return int(self.certified.sum())


@dataclass(frozen=True, eq=False)
class LayerPart:
    """One layer's part of an update, in float64.

    Attributes:
        bias: `[m]` gradient of the layer's bias.
        parts: The singular value decomposition of the weight gradient, cut to its rank.
        live: `[m]` bool: units that any example reaches.
        whole: Columns of L at these units.
        span: The same at units of which none repeats another.
        batch_size: Examples behind the update, or the rank where that is unknown.
        cut: The network behind the layer.
    """

    layer: MixingLayer
    attacked: AttackedRound
    bias: Tensor
    parts: LowRank
    live: Tensor
    whole: Span
    span: Span
    batch_size: int
    cut: NetworkCut

    @classmethod
    def of(cls, transcript: Transcript, name: str | None) -> "LayerPart":
        """Read a transcript's first round; `Inapplicable` where its zeros cannot be read."""
        attacked = AttackedRound.of(transcript)
        layer, stated = find_layer(attacked.knowledge, attacked.observed, name), attacked.observed.batch_size
        if layer.bias is None:
            raise refuse("no_bias")(
                f"layer {layer.name!r} has no bias, or it was not sent, and its gradient tells the scale of each "
                "example",
                f"use {INSTEAD}",
            )
        weight, bias = attacked.gradient[layer.weight].double(), attacked.gradient[layer.bias].double()
        if not (weight.abs().max() > 0 and bias.abs().max() > 0):
            raise refuse("zero_gradient")(
                f"the gradient of {layer.weight} or its bias is zero everywhere (no unit is active, or the loss is "
                "zero)",
                "there is nothing to decompose; use another round",
            )
        parts = low_rank(weight, sources=stated)
        parts = parts.keep(max(1, parts.rank))
        # Units that no example reaches have zero rows, which say nothing of Q. [m]
        size = weight.norm(dim=1)
        live = size > 1e-6 * size.max()
        n = len(parts.values)
        if n >= int(live.sum()) or (stated or 0) >= int(live.sum()) or n >= weight.shape[1]:
            raise refuse("too_many_examples")(
                f"the gradient of {layer.weight} has rank {n} over {int(live.sum())} units in use, and more units and "
                f"inputs than examples are needed to tell one combination of examples from another",
                f"attack a smaller batch or a wider layer, or use {INSTEAD}",
            )
        cut = NetworkCut.at(attacked, layer.name)
        _behind_relu(cut, weight, layer)
        # L [p, n] at live units: D = L Q, so a column of D is L q and its zeros are equations for q.
        columns = parts.left[live]
        # Columns of mean square 1, so that one threshold for zeros fits all of them. [p, n]
        scale = len(columns) ** 0.5 / columns.norm(dim=0)
        whole = Span(columns * scale, scale * parts.noise / parts.values / len(columns) ** 0.5)
        span = whole.distinct()
        return cls(layer, attacked, bias, parts, live, whole, span, stated or n, cut)

    @cached_property
    def behind(self) -> tuple[Tensor, Tensor]:
        """`[p, c]` a basis of what the network hands back to each live unit that is on, over all errors it can make.

        Beside it `[c, classes]`, which turns an error into the basis's coefficients. Exact where one linear layer
        follows the ReLU. Errors of a cross-entropy add up to zero, so c < classes.
        """
        classes, live = self.attacked.knowledge.num_classes, self.live.nonzero()[:, 0]
        outputs = torch.ones(1, len(self.live)).to(self.bias)
        rows = self.cut.rows_of_errors(outputs, classes)[:, live].T  # [p, classes]
        left, values, right = torch.linalg.svd(rows, full_matrices=False)
        # rows = U S V^T: U S [p, c] spans all slopes that can reach the units, and V^T [c, classes] turns an error into
        # its coefficients.
        basis: Tensor = left * values
        there = values > 1e-9 * values[0]
        return basis[:, there], right[there]

    @property
    def solvable(self) -> bool:
        """Whether the lifted equations have no more unknowns than there are units that say something."""
        return determined(self.span.n, self.behind[0].shape[1], len(self.span.rows))

    @cached_property
    def neighbors(self) -> NeighborUnits | None:
        """Pairs of units to compare, where all errors are multiples of one and one linear layer hands them back."""
        basis, turned = self.behind
        if basis.shape[1] != 1 or self.span.n == 1:
            return None
        outputs = torch.randn((1, len(self.live)), generator=generator(2, "probe"), dtype=torch.float64).to(basis)
        linear = basis[:, 0] * (outputs[0, self.live] > 0)
        if not torch.allclose(
            self.cut.backward(outputs, turned)[0, self.live], linear, atol=1e-9 * float(basis.abs().max())
        ):
            return None
        # Unit j's gradient in coordinates of the row space, with its bias gradient as the last entry. [p, n + 1]
        rows = torch.cat([self.parts.left * self.parts.values, self.bias[:, None]], 1)[self.live]
        weight, bias = self.weights
        # The layer's outputs for the basis of the row space: row i of R maps to V_i^T W^T. [n, m]
        outputs = self.parts.right @ weight.T
        return NeighborUnits(self.whole, rows / basis, outputs, bias, self._errors, self._own)

    def _errors(self, outputs: Tensor) -> Tensor:
        """`[classes, k]` the one error of `[k, m]` outputs of the layer, label by label."""
        # The error of the mean cross-entropy is (p - e_y) / n; its coefficient in the one basis error. [classes, k]
        chances = self.cut.probabilities(outputs)
        wanted = torch.eye(chances.shape[1]).to(chances)
        return (chances - wanted[:, None]) @ self.behind[1][0] / self.batch_size

    def _own(self, outputs: Tensor, error: Tensor) -> Tensor:
        """`[k, p]` columns at live units that the model sends of `[k, m]` outputs with errors `[k]`."""
        return self.cut.backward(outputs, error[:, None] * self.behind[1])[:, self.live]

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        """The layer's weight and bias in float64."""
        weight, bias = (
            self.attacked.observed.params[name or ""].double() for name in (self.layer.weight, self.layer.bias)
        )
        return weight, bias

    @property
    def space(self) -> Literal["input", "feature"]:
        return "feature" if self.layer.reads_input is None else "input"

    def to_inputs(self, rows: Tensor) -> Tensor:
        if self.layer.reads_input is None:
            return rows
        return self.layer.reads_input.to_inputs(rows, self.attacked.knowledge.input_shape)

    def notes(self) -> list[str]:
        """What the rank says of the batch."""
        rank, stated = len(self.parts.values), self.attacked.observed.batch_size
        if stated is None:
            return [f"the batch size is unknown; the rank of the gradient says {rank}"]
        return [f"{stated - rank} of {stated} examples are not seen in the gradient's rank"] if rank < stated else []

    def merit(self, direction: Tensor) -> float:
        """1 where the column that a unit direction `[n]` gives may be one example's own, as far as that can be said.

        One example's column is, at the units it reaches, a sum of the rows of the network behind them. A sum of two
        columns has both examples' errors, each at its own units, and is none.
        """
        # Units at which this column is not zero: those that the example would have to switch on.
        on = ~self.whole.zeros(direction[None])[0]  # [p]
        live = self.live.nonzero()[:, 0]
        outputs = -torch.ones(1, len(self.live)).to(self.bias)
        outputs[0, live[on]] = 1.0
        classes = self.attacked.knowledge.num_classes
        if 2 * classes > int(on.sum()):
            return 0.0
        rows = self.cut.rows_of_errors(outputs, classes)[:, live[on]]  # [classes, .]
        # One example's column at the units it reaches is rows^T c for some error c; the misfit of the best c tells.
        column = (self.whole.rows @ direction)[on, None]
        misfit = column - rows.T @ torch.linalg.lstsq(rows.T, column, driver="gelsd").solution
        return float(misfit.norm() < CERTIFYING_MISMATCH * column.norm())

    def batch(self, directions: Tensor) -> FoundBatch:
        """What `[n, n]` directions make of the update: scales from the bias, inputs, labels, and how they agree."""
        # Back from the scaled columns that were searched in to L's own: Q up to one scale per column. [n, n]
        q = (directions * (len(self.whole.rows) ** 0.5 / self.whole.rows.norm(dim=0))).T  # [n, n]
        # X = Q^-1 R (theorem 3.1), with R = S V^T. [n, d]
        unmixed = torch.linalg.lstsq(q, self.parts.values[:, None] * self.parts.right).solution  # [n, d]
        columns = self.parts.left @ q  # [m, n]
        # dL/db = D 1 = L Q s: least squares for the n scales (theorem 3.3).
        scale = torch.linalg.lstsq(columns, self.bias[:, None]).solution[:, 0]
        # A scale of zero means an example with no loss, of which the update holds nothing; infinity zeroes its row.
        scale = torch.where(scale.abs() < 1e-12 * scale.abs().max(), torch.inf, scale)
        inputs, columns = unmixed / scale[:, None], columns * scale.nan_to_num(posinf=0.0)
        weight, bias = self.weights
        outputs = inputs @ weight.T + bias  # [n, m]
        zero = self.whole.zeros(directions)  # [n, p]
        # Lambda: a unit is on (its output positive) exactly where its entry of D is not zero.
        agreement = ((outputs[:, self.live] > 0) != zero).double().mean(1)
        labels, mismatch = self.cut.nearest_labels(outputs, self.batch_size * columns.T)
        return FoundBatch(inputs, labels, agreement, mismatch)


def _behind_relu(cut: NetworkCut, weight: Tensor, layer: MixingLayer) -> None:
    """Refuse a layer whose outputs the network never ignores: without zeros in D no direction stands out."""
    drawn = torch.randn((4, len(weight)), generator=generator(0, "probe"), dtype=torch.float64).to(weight)
    classes = cut.probabilities(drawn).shape[1]
    errors = torch.randn((4, classes), generator=generator(1, "probe"), dtype=torch.float64).to(weight)
    if float((cut.backward(drawn, errors) == 0).double().mean()) < MIN_ZEROS:
        raise refuse("no_relu")(
            f"no ReLU follows layer {layer.name!r}, so its gradient has no zeros to go by", f"use {INSTEAD}"
        )
