"""SPEAR: a small batch read exactly from a fully connected layer in front of a ReLU, by low rank and zeros."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from seepage.attacks.base import MATCHING, Attack, Inapplicable, Needs, Progress
from seepage.attacks.network import CERTIFYING_MISMATCH, AttackedRound, NetworkCut
from seepage.attacks.network.mixing_layer import MIN_ZEROS, MixingLayer, find_layer
from seepage.attacks.spear.lifted_linearization import determined, lifted, parted
from seepage.attacks.spear.neighbor_units import NeighborUnits
from seepage.attacks.spear.sparse_columns import FoundDirections, Span, reweighted, sampled
from seepage.base.algebra.lowrank import LowRank, low_rank
from seepage.base.nn import generator
from seepage.base.registry import attacks
from seepage.federation.types import Reconstruction, Transcript

INSTEAD = f"cocktail_party or {MATCHING}"
SUBMATRICES_AT_ONCE = 8192
"""Submatrices drawn at a time."""
MIN_AGREEMENT = 0.99
"""Share of an example's units whose sign must agree with the zeros of its column; rounding turns a few at the kink."""
MAX_DRAWN_EXAMPLES = 16
"""Up to this many examples the fast mode first draws 16 times so many submatrices: they miss few columns."""
MIXTURE_PAIRS = 4
"""Pairs of mixtures that the lifted equations are solved with: one does, unless two columns get nearly one ratio."""
AT_ONCE = 64
"""Reweighted searches, or candidates of the lifted equations, that are looked at in one go."""


@attacks.register(
    "spear",
    paper="Dimitrov et al. 2024",
    cost="seconds (linear equations), to minutes (sparse directions of a low-rank matrix)",
)
@dataclass(frozen=True, kw_only=True)
class Spear(Attack):
    """Exact inversion of small batches through the zeros of a ReLU (Dimitrov et al., NeurIPS 2024, sections 3 and 4).

    A layer `Z = X W^T + b` has the gradients `dL/dW = D X` and `dL/db = D 1`, with `D = dL/dZ^T [m, n]`. For n examples
    `dL/dW = L R` has rank n, and one invertible Q gives `D = L Q` and `X = Q^-1 R` (theorem 3.1). Behind a ReLU about
    half of D is zero: n - 1 rows of L at which column i of D is zero have column i of Q as their only null vector
    (theorem 3.2). Directions with few zeros are dropped, the n independent ones with most zeros are Q up to scale, and
    `L Q s = dL/db` gives the scales (theorem 3.3). Inputs need not look like images: tables and noise are recovered.

    The search ends when the batch agrees with itself: the signs of `X W^T + b` must be where D is not zero (the paper's
    lambda), and the model's own backward pass from each example must give its column of D. That is also the
    certificate; it needs no truth.

    Deviations from the paper. `published` draws submatrices as the paper does, at a cost of `2^(n - 1)` draws per
    column. `fast` first solves equations that the paper does not have: where one linear layer follows the ReLU, an
    entry of D is zero or what that layer's weights make of an error at the outputs, so that n examples of C classes
    follow without a search from `n (n - 1) / 2 + n (C - 1)` units (see `lifted_linearization`). With two classes it
    then compares units with one another (see `neighbor_units.NeighborUnits`), which finds rows of a table so alike
    that units are on for few different sets of them. Where units are fewer, or layers more, it draws submatrices for
    up to 16 examples, then goes on by reweighted least squares from random starts.
    Each direction is fitted to all its zeros. In place of the paper's greedy exchange by lambda the best n
    directions are chosen anew whenever one is found: first those that one example could cause, which can be checked
    where the network behind has one hidden ReLU layer and fewer classes than half the units an example reaches, then
    those with most zeros. Units whose rows of the gradient are multiples of one another count once. (With two classes
    all units that are on for the same examples are such, and differences of columns have more zeros than the columns.)
    Only one gradient is read: no local steps.

    Args:
        mode: `fast`, or `published`: drawn submatrices alone.
        layer: Name of the fully connected layer; None: the first one. An inner one gives its own inputs.
        samples: Most submatrices drawn in the published mode.
        starts: Most starts of the fast mode.
        steps: Reweightings of each start. Of 15 to 240, on batches of seeds that nothing else scores, 30 and 60 found
            most per second and 60 more different columns; 120 certified 0.89 and 0.61 of two batches of photographs,
            60 all and 0.56 in half the time (`results/closed/spear-search.jsonl`).
        least: Least share of zeros, among units that any example reaches, at which a direction is a candidate.

    Example:
        >>> from seepage import Architecture, Batch, attack, build, record
        >>> table = Batch(torch.rand(6, 30, generator=generator(0, "table")), torch.arange(6) % 3)
        >>> seen = record(build(Architecture("fc2", {"hidden": 96}), (30,), 3), table)
        >>> found = attack(seen, Spear())
        >>> found.certified.tolist(), bool(torch.cdist(found.inputs, table.inputs).amin(1).max() < 1e-4)
        ([True, True, True, True, True, True], True)
    """

    needs: ClassVar[Needs] = Needs(
        text="a fully connected layer with bias in front of a ReLU, many more neurons than examples (24: 512)",
        linear_in_gradient="the update has not the batch's rank",
        gradient="mixes local steps, whose units are on and off in different places",
        uncoupled="every column a mixture of the batch",
        softmax_gradient="each example is identified by the errors of a cross-entropy, softmax minus label",
        instead=INSTEAD,
    )

    mode: Literal["fast", "published"] = "fast"
    layer: str | None = None
    samples: int = 2**22
    starts: int = 4096
    steps: int = 60
    least: float = 0.2

    def examine(self, transcript: Transcript) -> "_LayerPart":
        return _LayerPart.of(transcript, self.layer)

    def run(self, problem: "_LayerPart", *, seed: int, progress: Progress) -> Reconstruction:
        # One example has no zeros among the units it reaches, and of two each has a third: about as the paper's half.
        least = self.least * {1: 0.0, 2: 0.5}.get(problem.span.n, 1.0)
        found = FoundDirections(problem.span, least, problem.merit)
        best: _Batch | None = None
        tried = 0
        total = self.samples if self.mode == "published" else self.starts
        for candidates, count, sure in self._candidates(problem, found, seed):
            tried += count
            # All n columns of Q are needed at once: X = Q^-1 R has no row that depends on fewer.
            news = found.vouch(candidates) if sure else found.add(candidates)
            if news and len(chosen := found.independent()) == problem.span.n:
                batch = problem.batch(chosen)
                best = batch if best is None or batch.sure >= best.sure else best
            certain = 0 if best is None else best.sure
            progress.report(tried, total, float(problem.span.n - certain))
            if certain == problem.span.n:
                break
        return self._reconstruction(problem, found, best, tried)

    def _candidates(
        self, problem: "_LayerPart", found: FoundDirections, seed: int
    ) -> Iterator[tuple[Tensor, int, bool]]:
        """Directions to look at, how many were tried for them, and whether each is known to be one example's."""
        span, draw = problem.span, generator(seed, "spear")
        if span.noisy and span.n > 1:
            return
        if self.mode == "fast" and problem.solvable:
            mixtures = lifted(problem.whole, problem.behind[0])
            for _ in range(MIXTURE_PAIRS):
                for solved in parted(mixtures, draw).split(AT_ONCE):
                    yield solved, len(solved), False
        if self.mode == "fast" and problem.neighbors is not None:
            alone = problem.neighbors.directions()
            yield alone, len(alone), True
        drawn = self.samples if self.mode == "published" else 16 * SUBMATRICES_AT_ONCE * (span.n <= MAX_DRAWN_EXAMPLES)
        for first in range(0, drawn, SUBMATRICES_AT_ONCE):
            count = min(SUBMATRICES_AT_ONCE, drawn - first)
            yield sampled(span, count, draw), count, False
        for first in range(0, self.starts if self.mode == "fast" else 0, AT_ONCE):
            count = min(AT_ONCE, self.starts - first)
            yield reweighted(span, count, draw, self.steps, found.independent()), count, False

    def _reconstruction(
        self, problem: "_LayerPart", found: FoundDirections, best: "_Batch | None", tried: int
    ) -> Reconstruction:
        like = problem.attacked.observed.params[problem.layer.weight]
        what = "submatrices" if self.mode == "published" else "candidates"
        notes = [f"{len(found.independent())} of {problem.span.n} sparse directions from {tried:,} {what}"]
        notes += problem.notes()
        if problem.span.noisy and problem.span.n > 1:
            notes.append("noise hides the zeros: no entry of the gradient could be distinguished from zero")
        if best is None:
            notes.append("all directions are needed for any example, so none can be returned at this budget")
            width = problem.attacked.knowledge.input_shape if problem.layer.reads_input else (like.shape[1],)
            return Reconstruction(
                like.new_zeros((0, *width)),
                torch.zeros(0, dtype=torch.int64, device=like.device),
                space=problem.space,
                certified=torch.zeros(0, dtype=torch.bool, device=like.device),
                status="exhausted",
                cost={"tries": tried},
                notes=tuple(notes),
            )
        notes.append(f"{best.sure} are certified; lambda {float(best.agreement.mean()):.4f}")
        return Reconstruction(
            problem.to_inputs(best.inputs).to(like).contiguous(),
            best.labels,
            space=problem.space,
            objective=best.mismatch.float(),
            certified=best.certified,
            status="ok" if best.sure == len(best.labels) else "exhausted",
            cost={"tries": tried},
            notes=tuple(notes),
        )


@dataclass(frozen=True, eq=False)
class _Batch:
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
class _LayerPart:
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
    def of(cls, transcript: Transcript, name: str | None) -> "_LayerPart":
        """Read a transcript's first round; `Inapplicable` where its zeros cannot be read."""
        attacked = AttackedRound.of(transcript)
        layer, stated = find_layer(attacked.knowledge, attacked.observed, name), attacked.observed.batch_size
        if layer.bias is None:
            raise Inapplicable(
                f"layer {layer.name!r} has no bias, or it was not sent, and its gradient tells the scale of each "
                "example",
                f"use {INSTEAD}",
            )
        weight, bias = attacked.gradient[layer.weight].double(), attacked.gradient[layer.bias].double()
        if not (weight.abs().max() > 0 and bias.abs().max() > 0):
            raise Inapplicable(
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
            raise Inapplicable(
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

    def batch(self, directions: Tensor) -> _Batch:
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
        return _Batch(inputs, labels, agreement, mismatch)


def _behind_relu(cut: NetworkCut, weight: Tensor, layer: MixingLayer) -> None:
    """Refuse a layer whose outputs the network never ignores: without zeros in D no direction stands out."""
    drawn = torch.randn((4, len(weight)), generator=generator(0, "probe"), dtype=torch.float64).to(weight)
    classes = cut.probabilities(drawn).shape[1]
    errors = torch.randn((4, classes), generator=generator(1, "probe"), dtype=torch.float64).to(weight)
    if float((cut.backward(drawn, errors) == 0).double().mean()) < MIN_ZEROS:
        raise Inapplicable(
            f"no ReLU follows layer {layer.name!r}, so its gradient has no zeros to go by", f"use {INSTEAD}"
        )
