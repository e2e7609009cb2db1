"""The fast mode of the Cocktail Party Attack: unmixing by FastICA and maximum likelihood, then a polish to exact."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.base import Progress
from seepage.attacks.cpa.ica import (
    balanced,
    difference_fields,
    unmix,
    unmix_rest,
    unmix_sparse,
    zero_share,
)
from seepage.attacks.cpa.ica.unmix import random_rotation
from seepage.attacks.cpa.mixture import Mixture, Unmixed, UnmixingState, over_size
from seepage.attacks.cpa.refinement import anneal, refine, sensitivity, stages_for
from seepage.attacks.network import CERTIFYING_MISMATCH, EXACT, AttackedRound, NetworkCut, in_range
from seepage.attacks.network.evidence import multiple_words
from seepage.attacks.network.mixing_layer import MixingLayer, blurred, stretch
from seepage.attacks.reading.rows import LowRankFit, MeasuredRows, weighted_low_rank
from seepage.base.algebra.lowrank import CLEAR, LowRank, low_rank
from seepage.base.clock import between_steps
from seepage.base.nn import generator, last_linear
from seepage.federation.types import Ambiguity, Reconstruction

DROPS = (30.0, 300.0, 3000.0)
"""Directions with singular values below this many times the noise floor are left out, start by start; later starts are
tried while fewer than `ENOUGH` are certified. Where nothing can be certified one start keeps all clear of the noise."""
ENOUGH = 0.9
"""Share of certified guesses that ends the starts."""
RANDOM_STARTS = 12
"""Of the polish, where the images' own structure did not help and examples are few."""
MOST_WEIGHED = 64
"""Sources from which on entries are not weighed by their errors, which would take minutes."""
Mixed = tuple[AttackedRound, MixingLayer]
MIN_CERTIFYING_UNITS = 32
"""Below this many units an agreement of masks and errors says too little about an image to certify it."""
MAX_RANDOM_START_SOURCES = 16
"""Up to this many sources a random start has a fair chance to lead to the solution."""
SLOW_REFINEMENT_FROM = 128
"""Sources from which on a refinement takes minutes, and is made only once."""


class FastRun:
    """One call of the fast mode.

    Args:
        mixed: The round, and the layer whose update mixes the batch.
        polish: As that of `CocktailParty`.
        seed: Of all draws.
        progress: Told of each start's stages.
    """

    def __init__(self, mixed: Mixed, *, polish: bool, seed: int, progress: Progress) -> None:
        self.polish, self.seed, self.progress = polish, seed, progress
        attacked, self.layer = mixed
        self.knowledge, self.observed, self.gradient = attacked.knowledge, attacked.observed, attacked.gradient
        self.spectrum = low_rank(self.gradient[self.layer.weight], sources=self.observed.batch_size)
        fit = self._by_errors()
        if fit is not None:
            whole = (fit.parts @ fit.basis).to(self.gradient[self.layer.weight])
            self.gradient = {**self.gradient, self.layer.weight: whole[:, :-1], self.layer.bias or "": whole[:, -1]}
            exact = low_rank(self.gradient[self.layer.weight], sources=self.observed.batch_size)
            self.spectrum = replace(exact, noise=max(exact.noise, fit.noise))
        self.bias = None if self.layer.bias is None else self.gradient[self.layer.bias].double()
        self.n = self.observed.batch_size or self.spectrum.rank
        self.noisy = int((self.spectrum.values > min(DROPS) * self.spectrum.noise).sum()) < self.n / 2
        self.notes: list[str] = []
        self.found: Unmixed | None = None  # the best so far
        self.raw: Unmixed | None = None  # the first unmixing, before it is refined

    def _by_errors(self) -> LowRankFit | None:
        """The layer's gradient by the errors that a bent step leaves in each entry; None: all are known as well."""
        step, n, layer = self.observed.update.step, self.observed.batch_size, self.layer
        shape = self.gradient[layer.weight].shape
        if step is None or not step.bent or layer.bias is None or n is None or not n < min(*shape, MOST_WEIGHED):
            return None
        measured = self.observed.measured(self.knowledge.client, [layer.weight, layer.bias])
        return weighted_low_rank(MeasuredRows.of_layer(measured, layer.weight, layer.bias), n)

    def reconstruction(self) -> Reconstruction:
        if self.layer.reads_input is None:
            return self._features()
        try:
            self._unmix()
        except KeyboardInterrupt:
            best = self.found or self.raw
            if best is None:
                raise
            return replace(self._finish(best), status="interrupted")
        assert self.found is not None
        return self._finish(self.found)

    def _unmix(self) -> None:
        drops = DROPS if self._exact else (1.0 if self.noisy else CLEAR,)
        tried: set[int] = set()
        for start, drop in enumerate(drops):
            kept = self._kept(drop)
            if len(kept.values) in tried:
                continue
            tried.add(len(kept.values))
            self._keep(self._start(kept, start))
            if not self._exact or self._slow or self._solved >= ENOUGH * self.n:
                break
        assert self.found is not None
        if self._exact and len(self.found.rows) <= MAX_RANDOM_START_SOURCES and self._solved < ENOUGH * self.n:
            self._keep(self._blind(self._kept(drops[0])))

    @property
    def _solved(self) -> int:
        return 0 if self.found is None else self.found.solved

    def _keep(self, found: Unmixed) -> None:
        """Keep it where it is the best so far; of equals the earlier one. The time may be over here, or go on."""
        self.found = found if self.found is None or self._value(found) > self._value(self.found) else self.found
        between_steps()

    def _blind(self, kept: LowRank) -> Unmixed:
        """Polish from random starts without an image prior: for few inputs of any kind the model's zeros suffice."""
        mixture, best = self._mixture(kept), None
        for start in range(RANDOM_STARTS):
            rows = random_rotation(len(kept.values), generator(self.seed, "blind", start), kept.right)
            # No image prior (trust 0): agreement of the columns alone, annealed from half a column's size to rounding.
            view = refine(mixture, rows, stages=anneal(0.5, 1e-4, 25, 0.0))
            best = view if best is None or self._certified(view) > self._certified(best) else best
            if self._certified(best) >= ENOUGH * len(rows):
                break
        assert best is not None
        return Unmixed(kept.right, best.rows, self._scores(mixture, best), best.labels)

    def _value(self, found: Unmixed) -> tuple[int, float]:
        """Starts are compared by certified guesses, then by what is left of the mismatch."""
        if found.scores is None:
            return 0, 0.0
        return found.solved, -float(found.scores.clamp(max=1).sum()) - self.n + len(found.rows)

    def _kept(self, drop: float) -> LowRank:
        """The directions that stand `drop` times above the noise; at least one."""
        count = int((self.spectrum.values > drop * self.spectrum.noise).sum())
        # Under noise a source may be below the floor and still be seen by its structure, so all are kept.
        return self.spectrum.keep(max(1, self.n if self.noisy else min(count, self.spectrum.rank)))

    @property
    def _refines(self) -> bool:
        """Whether the model can compute the mixing columns of this update."""
        client = self.knowledge.client
        known = self.knowledge.softmax_labels and not client.batch_coupled(self.knowledge.model)
        return self.polish and self.bias is not None and known and not self.noisy

    @property
    def _exact(self) -> bool:
        """Whether those columns are exact, so that agreement certifies: one gradient at weights the server knows."""
        return self._refines and self.observed.update.kind == "gradient"

    @property
    def _slow(self) -> bool:
        """Whether one polish takes minutes, with next to no unit left over: then there is no second one."""
        return self.n > SLOW_REFINEMENT_FROM and self.n > 0.9 * len(self.spectrum.left)

    def _fields(self, right: Tensor) -> Tensor:
        assert self.layer.reads_input is not None
        # Back to the model's input units: a per-pixel scale of the normalization is no part of an image.
        # right [r, d]: differences of pixels commute with the unmixing, so they are taken of the singular vectors.
        rows = right / self.layer.reads_input.scale.to(right)
        if self.noisy:
            rows = blurred(rows, self.knowledge.input_shape)
        return balanced(difference_fields(rows, self.knowledge.input_shape)).float()

    def _start(self, kept: LowRank, start: int) -> Unmixed:
        fields = self._fields(kept.right)
        rows = unmix(fields, draw=generator(self.seed, "unmix", start)).double()
        if not self._refines:
            return Unmixed(kept.right, rows)
        if self.raw is None:
            self.raw = Unmixed(kept.right, rows)
            between_steps()
        mixture = self._mixture(kept)
        # A clipped update is a multiple of the batch's gradient; the columns' lengths against the model's own say
        # which.
        first = mixture.rescaled(mixture.evaluate(mixture.scaled(rows)))
        if not 0.5 < first.n / mixture.n < 2:
            mixture = first
        view = self._refined(mixture, rows, fields)
        for _ in range(2):
            fitted = mixture.rescaled(view)
            settled = self._certified(view) > len(rows) / 2 or abs(fitted.n / mixture.n - 1) < CERTIFYING_MISMATCH
            if not self._exact or self._slow or settled:
                break
            mixture, view = fitted, self._refined(fitted, view.rows, fields)
        if abs(mixture.n / self.n - 1) > CERTIFYING_MISMATCH and self._certified(view):
            self.notes.append(multiple_words(self.n / mixture.n))
        return Unmixed(kept.right, view.rows, self._scores(mixture, view), view.labels)

    def _scores(self, mixture: Mixture, view: UnmixingState) -> Tensor | None:
        """Certificates, put to 1 where they could not tell an image from one that is 40 dB off; None: not exact."""
        if not self._exact:
            return None
        scores = view.certificates
        if self.layer.reads_input is None:
            # An embedding has no range; one that is off by a hundredth of its size is not exact.
            step, others = EXACT * float(view.rows.norm(dim=1).median()), 16
        else:
            low, high = self.knowledge.value_range
            scale = self.layer.reads_input.scale
            step, others = EXACT * (high - low) * float(scale.abs().mean()) * len(scale) ** 0.5, len(scores)
        # Where a move of 40 dB would change the column by less than three times the mismatch, the mismatch proves
        # nothing.
        blind = scores > sensitivity(mixture, view, step, scores < EXACT, others) / 3
        return torch.where(blind, scores.clamp(min=1.0), scores)

    def _refined(self, mixture: Mixture, rows: Tensor, fields: Tensor) -> UnmixingState:
        load = len(rows) / len(mixture.columns)
        stages = stages_for(load)
        view = refine(mixture, rows, fields=fields, stages=stages, report=self._report(len(stages)))
        solved = view.certificates < EXACT
        if not self._exact or solved.all() or solved.double().mean() < 0.5 or int((~solved).sum()) < 2:
            return view
        # Deflation: sources that are exact leave the mixtures, and what is left is unmixed afresh.
        rows = unmix_rest(fields, view.rows, solved, draw=generator(self.seed, "rest", 0))
        new = refine(mixture, rows, fields=fields, stages=anneal(0.1, 1e-4, 20, 0.03))
        return new if self._certified(new) > self._certified(view) else view

    def _certified(self, view: UnmixingState) -> int:
        return int((view.certificates < EXACT).sum())

    def _report(self, total: int) -> Callable[[int, UnmixingState], None]:
        return lambda step, view: self.progress.report(step, total, float(view.certificates.median()))

    def _mixture(self, kept: LowRank) -> Mixture:
        """The polish's view of this update, at the weights that the client started from, or half-way for a delta."""
        assert self.bias is not None
        assert self.layer.bias is not None
        params = self.observed.params
        if self.observed.update.kind == "delta":
            moved = self.observed.update.tensors
            params = {name: p + 0.5 * moved[name] if name in moved else p for name, p in params.items()}
        # gradient = columns @ right, columns [m, r]; the bias gradient lies in their span and fixes each source's
        # scale.
        columns = kept.columns
        last = last_linear(self.knowledge.model, self.knowledge.num_outputs)
        ends = None if last is None or last[1] not in self.gradient else last[1]
        error_sum = None if ends is None else self.gradient[ends].double()
        return Mixture(
            columns=columns,
            ones=torch.linalg.lstsq(columns, self.bias[:, None]).solution[:, 0],
            # W applied to each right singular vector: outputs of any unmixing are rows @ outputs + b. [r, m]
            outputs=kept.right @ params[self.layer.weight].double().T,
            bias=params[self.layer.bias].double(),
            n=self.n,
            downstream=NetworkCut(
                self.knowledge.model, self.layer.name, params, self.observed.buffers, self.knowledge.input_shape
            ),
            error_sum=error_sum,
            labels=self.observed.labels,
        )

    def _finish(self, found: Unmixed) -> Reconstruction:
        rows, unknown = self._scaled(found)
        assert self.layer.reads_input is not None
        low, high = self.knowledge.value_range
        inputs = self.layer.reads_input.to_inputs(rows @ found.right, self.knowledge.input_shape)
        if unknown:
            inputs = stretch(rows @ found.right, self.knowledge)
        scores = found.scores
        if scores is not None:
            # The largest error of an image is above its mean, so a certified one may lie further out than EXACT.
            inside = in_range(inputs, (low, high), 2 * EXACT)
            scores = torch.where(inside & self._certifiable, scores, scores.clamp(min=1.0))
        order = torch.arange(len(rows)) if scores is None else scores.argsort(stable=True)
        certified = None if scores is None else scores[order] < EXACT
        return Reconstruction(
            inputs=inputs[order].clamp(low, high).to(self.gradient[self.layer.weight]),
            labels=None if found.labels is None else found.labels[order],
            objective=None if scores is None else scores[order].float(),
            certified=certified,
            ambiguity=frozenset[Ambiguity]({"order", *unknown}),
            cost={"evaluations": 1},
            notes=(*self.notes, *self._notes(len(rows), certified)),
        )

    @property
    def _certifiable(self) -> bool:
        return self._exact and len(self.spectrum.left) >= MIN_CERTIFYING_UNITS

    def _scaled(self, found: Unmixed) -> tuple[Tensor, frozenset[Ambiguity]]:
        """Rows with scale and sign from the bias gradient, and which of the two stay unknown: both without a bias."""
        stretched = "" if self.layer.reads_input is None else ": each example is stretched to the value range"
        if self.bias is None:
            what = "scale is" if self.layer.sparse else "scale and sign are"  # what a ReLU gives is not negative
            self.notes.append(f"{what} not known{stretched}")
            return found.rows, frozenset[Ambiguity]({"sign", "scale"})
        # columns @ ones = bias gradient, by least squares: rounding outside the span is left out. [r]
        columns = self.spectrum.keep(len(found.rows)).columns
        ones = torch.linalg.lstsq(columns, self.bias[:, None]).solution[:, 0]
        # rows @ ones = 1 where the scale is right (see `Mixture.ones`): dividing by it sets scale and sign. [r]
        size = found.rows @ ones
        if self.noisy:
            self.notes.append(
                f"the update is noisy: the bias suggests each example's sign, its scale is not known{stretched}"
            )
            return found.rows * size.sign()[:, None], frozenset[Ambiguity]({"sign", "scale"})
        return over_size(found.rows, size), frozenset[Ambiguity]()

    def _notes(self, r: int, certified: Tensor | None) -> Sequence[str]:
        stated = self.observed.batch_size
        of = "" if stated is None else f", of a batch of {stated}"
        notes = [
            f"by its own statistic {r} signals lie above the noise of the update{of}; that is no reconstructed example"
        ]
        if stated is None:
            notes.append(f"the spectrum says {self.spectrum.rank} examples{self._or_more()}")
        elif r < stated:
            notes.append(f"{stated - r} with next to no loss drown in rounding and are not identifiable")
        if certified is not None:
            notes.append(f"{int(certified.sum())} are certified without the truth (mismatch below {EXACT:g})")
        return notes

    def _or_more(self) -> str:
        """What an unknown number of examples leaves open where no unit is left over to see the noise floor with."""
        live = int(self.gradient[self.layer.weight].abs().amax(1).count_nonzero())
        return f", or more: the layer has no more than {live} active units" if self.spectrum.rank >= live - 1 else ""

    def _refined_features(self, mixture: Mixture, kept: LowRank, view: UnmixingState) -> UnmixingState | None:
        """The polish works on embeddings too; kept only where most columns agree in the end."""
        if len(view.rows) > 1 and self._certified(view) < ENOUGH * len(view.rows):
            stages = stages_for(len(view.rows) / len(mixture.columns))
            view = refine(mixture, view.rows, fields=kept.right[:, None].float(), stages=stages)
        return view if self._certified(view) > len(view.rows) / 2 else None

    def _features(self) -> Reconstruction:
        """Embeddings of an inner layer: sparse rows if a ReLU feeds it, else plain unmixing."""
        kept = self._kept(CLEAR)
        draw = generator(self.seed, "unmix")
        if self.layer.sparse:
            rows = unmix_sparse(kept.right, draw=draw)
        else:
            rows = unmix(kept.right[:, None].float(), draw=draw).double()
        view, scores, labels = None, None, None
        if self._exact:
            mixture = self._mixture(kept)
            first = mixture.evaluate(mixture.scaled(rows))
            view, labels = self._refined_features(mixture, kept, first), first.labels
            scores = None if view is None else self._scores(mixture, view)
        rows = rows if view is None else view.rows
        scaled, unknown = self._scaled(Unmixed(kept.right, rows))
        # Embeddings in the layer's own units: scaled rows [r, r] times right singular vectors [r, e].
        features = scaled @ kept.right
        if self.layer.sparse:
            # A non-negative source fixes its own sign.
            unknown -= {"sign"}
            flip = features.relu().norm(dim=1) < (-features).relu().norm(dim=1)
            features = torch.where(flip[:, None], -features, features).relu()
        zeros = zero_share(rows @ kept.right)
        # A ReLU's embedding is known by its exact zeros; where the model itself can check it, that is the better score.
        objective = 1 - zeros if scores is None else scores
        # None where nothing could be certified; images (`_finish`) say False of each instead, which a gate reads alike.
        certified = None if scores is None or not self._certifiable else scores < EXACT
        if certified is not None:
            # What was set to zero after the unmixing may have left the span of what the layer read, [r, e].
            outside = (features - features @ kept.right.T @ kept.right).norm(dim=1)
            certified &= outside < EXACT * features.norm(dim=1)
        return Reconstruction(
            inputs=features.to(self.gradient[self.layer.weight]),
            labels=labels if view is None else view.labels,
            space="feature",
            objective=objective.float() if self.layer.sparse or view is not None else None,
            certified=certified,
            ambiguity=frozenset[Ambiguity]({"order", *unknown}),
            notes=(
                *self.notes,
                *self._notes(len(rows), certified),
                f"exact zeros per embedding: {float(zeros.mean()):.0%}",
            ),
        )
