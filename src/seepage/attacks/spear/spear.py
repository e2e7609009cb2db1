"""SPEAR: a small batch read exactly from a fully connected layer in front of a ReLU, by low rank and zeros."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Needs, Progress
from seepage.attacks.spear.layer_part import INSTEAD, FoundBatch, LayerPart
from seepage.attacks.spear.lifted_linearization import lifted, parted
from seepage.attacks.spear.sparse_columns import FoundDirections, reweighted, sampled
from seepage.base.clock import between_steps
from seepage.base.nn import generator
from seepage.base.registry import attacks
from seepage.federation.types import Reconstruction, Transcript

SUBMATRICES_AT_ONCE = 8192
"""Submatrices drawn at a time."""
MAX_DRAWN_EXAMPLES = 16
"""Up to this many examples the fast mode first draws 16 times so many submatrices: they miss few columns."""
MIXTURE_PAIRS = 4
"""Pairs of mixtures that the lifted equations are solved with: one does, unless two columns get nearly one ratio."""
LEAST_ZEROS = 0.2
"""Least share of zeros, among units that any example reaches, at which a direction is a candidate."""
AT_ONCE = 64
"""Reweighted searches, or candidates of the lifted equations, that are looked at in one go."""


@attacks.register(
    "spear",
    paper="Dimitrov et al. 2024",
    cost="seconds (linear equations), to minutes (sparse directions of a low-rank matrix)",
    slow_check=True,
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

    def examine(self, transcript: Transcript) -> "LayerPart":
        return LayerPart.of(transcript, self.layer)

    def run(self, problem: "LayerPart", *, seed: int, progress: Progress) -> Reconstruction:
        # One example has no zeros among the units it reaches, and of two each has a third: about as the paper's half.
        least = LEAST_ZEROS * {1: 0.0, 2: 0.5}.get(problem.span.n, 1.0)
        found = FoundDirections(problem.span, least, problem.merit)
        best: FoundBatch | None = None
        tried = 0
        total = self.samples if self.mode == "published" else self.starts
        try:
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
                between_steps()
        except KeyboardInterrupt:
            return replace(self._reconstruction(problem, found, best, tried), status="interrupted")
        return self._reconstruction(problem, found, best, tried)

    def _candidates(
        self, problem: "LayerPart", found: FoundDirections, seed: int
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
        self, problem: "LayerPart", found: FoundDirections, best: "FoundBatch | None", tried: int
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
