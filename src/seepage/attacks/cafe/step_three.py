"""Step III of CAFE: each sample's input from its features at each party, and again where the weights move."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from seepage.attacks.base import Progress, run_resumable
from seepage.attacks.cafe import moving, subspaces
from seepage.attacks.cafe.invert import CERTAIN, InversionSettings, gauss_newton, invert, reads_input, residual
from seepage.attacks.cafe.steps import Recovered, SeenRounds
from seepage.attacks.cafe.target_layers import TargetLayer, assemble, block_shape
from seepage.base.checkpoint import Resumable

ROUGH_RESIDUAL = 0.03
"""Residual of step III accepted as a starting point while the weights move and h is known only roughly."""
CHUNK_SAMPLES = 100
"""Number of samples of one party that are inverted between two checkpoints."""


@dataclass(frozen=True)
class ReadRounds(SeenRounds):
    """The rounds that are used.

    Attributes:
        repeats: Rounds that repeat the batch of another and are left out.
        moving: Whether the weights change between them.
        total: Rounds in all.
    """

    repeats: int
    moving: bool
    total: int


class _Inverted(Resumable):
    """What step III has found, piece by piece: all pieces of the first party, then those of the next."""

    kept = ("inputs", "residuals")

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.residuals: list[Tensor] = []


@dataclass(frozen=True, eq=False)
class StepThree:
    """The samples' inputs, of what steps I and II found.

    Attributes:
        view: The rounds.
        found: V and H of each party.
        chosen: `[k]` the samples that all parties identify.
        steps: As those of `Cafe`, and the next two too.
        polish: Gauss-Newton steps at most after each attempt.
        corrections: How often h is corrected where the weights move.
        seed: Of all draws.
    """

    view: ReadRounds
    found: Sequence[Recovered]
    chosen: Tensor
    steps: tuple[int, ...]
    polish: int
    corrections: int
    seed: int

    def inverted(self, progress: Progress) -> tuple[Tensor, Tensor]:
        """Step III for every party, chunk by chunk, with a checkpoint after each."""
        view, chosen, knowledge = self.view, self.chosen, self.view.knowledge
        search = InversionSettings(
            steps=self.steps, polish=self.polish, certain=ROUGH_RESIDUAL if view.moving else CERTAIN
        )
        pieces = chosen.split(CHUNK_SAMPLES)
        parties = list(zip(view.layers, self.found, strict=True))
        like = view.params[view.layers[0].weight]
        done = _Inverted()

        def advance(step: int) -> float:
            layer, one = parties[step // len(pieces)]
            blank = like.new_zeros(1, *block_shape(layer, knowledge.input_shape))
            x, left = self._piece(layer, one, pieces[step % len(pieces)], blank, search)
            done.inputs.append(x)
            done.residuals.append(left)
            return float(left.max())

        if run_resumable(done, len(pieces) * len(parties), advance, progress, every=1)[1]:
            raise KeyboardInterrupt  # some party's part of every sample is missing
        starts = range(0, len(done.inputs), len(pieces))
        blocks = [torch.cat(done.inputs[start : start + len(pieces)]) for start in starts]
        residuals = [torch.cat(done.residuals[start : start + len(pieces)]) for start in starts]
        whole = assemble(view.layers, blocks, knowledge.input_shape, sum(knowledge.value_range) / 2)
        return whole, torch.stack(residuals).amax(0)

    def followed(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Where the weights move: correct h by what the guessed inputs say of the moves, and the inputs by h again."""
        view, chosen, knowledge, model = self.view, self.chosen, self.view.knowledge, self.view.knowledge.model
        low = knowledge.value_range[0]
        whole = inputs.new_full((view.samples, *inputs.shape[1:]), low)
        whole[chosen] = inputs
        blocks = [whole[(slice(None), *layer.block)].clone() for layer in view.layers]
        rounds_seen = subspaces.read_gradients(view)
        residuals = inputs.new_ones(len(view.layers), view.samples)
        search = InversionSettings(polish=self.polish)
        for turn in range(self.corrections):
            moves = moving.drifts(view, blocks)
            for m, (layer, one) in enumerate(zip(view.layers, self.found, strict=True)):
                one.h = moving.correct(one, rounds_seen[m], view.batches, moves[m])
                rows = chosen[one.known[chosen]]
                features = partial(layer.features, model, view.params, view.buffers)
                for piece in rows.split(CHUNK_SAMPLES):
                    targets = one.h[piece].to(inputs)
                    blocks[m][piece] = gauss_newton(features, targets, blocks[m][piece], knowledge.value_range, search)
                    residuals[m, piece] = residual(features, targets, blocks[m][piece])
                if turn == self.corrections // 2:
                    # h is now accurate enough to detect samples whose search is stuck at a wrong input.
                    bad = residuals[m, rows] > max(CERTAIN, 3 * float(residuals[m, rows].median()))
                    stuck = rows[bad.to(rows.device)]
                    again, left = self._again(layer, one, stuck, blocks[m])
                    better = left < residuals[m, stuck]
                    moved = stuck[better.to(stuck.device)]
                    blocks[m][moved], residuals[m, moved] = again[better], left[better]
        whole = assemble(view.layers, blocks, knowledge.input_shape, sum(knowledge.value_range) / 2)
        return whole[chosen], residuals.amax(0)[chosen]

    def _again(self, layer: TargetLayer, one: Recovered, rows: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """A fresh search for some samples of one party."""
        view = self.view
        if not len(rows):
            return blocks[rows], blocks.new_zeros(0)
        features = partial(layer.features, view.knowledge.model, view.params, view.buffers)
        search = InversionSettings(steps=self.steps[-1:], polish=self.polish)
        return invert(
            features, one.h[rows].to(blocks), blocks[:1], view.knowledge.value_range, search, seed=self.seed + 1
        )

    def _piece(
        self, layer: TargetLayer, one: Recovered, piece: Tensor, like: Tensor, search: InversionSettings
    ) -> tuple[Tensor, Tensor]:
        """Inputs `[k, *block]` of a piece of the samples at one party, and their residuals `[k]`."""
        view = self.view
        targets = one.h[piece].to(like)
        live = ~one.zero_gradient[piece]
        # A sample with v = 0 leaves no trace; guess the darkest input, for which a ReLU network's gradient vanishes.
        x = like.new_full((len(piece), *like.shape[1:]), view.knowledge.value_range[0])
        residuals = like.new_ones(len(piece), device="cpu")  # samples with zero gradient are never certain
        features = partial(layer.features, view.knowledge.model, view.params, view.buffers)
        if reads_input(features, like):
            x[live] = targets[live].reshape(-1, *like.shape[1:])
            residuals[live] = one.spread[piece][live].to(residuals)
        elif bool(live.any()):
            key = self.seed + 1000003 * view.layers.index(layer) + int(piece[0])
            found, left = invert(features, targets[live], like, view.knowledge.value_range, search, seed=key)
            x[live], residuals[live] = found, left.to(residuals)
        return x, residuals
