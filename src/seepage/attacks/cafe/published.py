"""CAFE as published: steps I to III by stochastic optimization, nested (Algorithm 3) or in one loop (Algorithm 4)."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Needs, Progress, refuse, run_resumable
from seepage.attacks.cafe.row_adam import RowAdam
from seepage.attacks.cafe.steps import SeenRounds, gradients, open_rounds, params_of
from seepage.attacks.cafe.table_9 import TABLE_9, TABLE_9_BATCH, TABLE_9_TILE, Constants
from seepage.attacks.cafe.target_layers import TargetLayer, assemble, block_shape
from seepage.base.checkpoint import Resumable
from seepage.base.images import neighbor_differences
from seepage.base.nn import generator
from seepage.base.registry import attacks
from seepage.federation.types import Batch, Knowledge, Reconstruction, Tensors, Transcript

RECORD_INTERVAL = 100
"""Iterations between two records of the objective; each takes milliseconds."""


@dataclass
class _Tables:
    """The unknowns, a row per sample: V and H of each party, images of each party, label logits."""

    v: list[Tensor]
    h: list[Tensor]
    x: list[Tensor]
    y: Tensor


@attacks.register(
    "cafe_published",
    paper="Jin et al. 2021, algorithms 3 and 4",
    cost="hours (8,000 iterations of each step)",
    family="many rounds of one data set",
)
@dataclass(frozen=True, kw_only=True)
class PublishedCafe(Attack):
    """CAFE's own stochastic algorithms, one batch per iteration (Jin et al. 2021, algorithms 3 and 4).

    Kept to compare with; `Cafe` needs a fraction of the time. The constants of `constants` are table 9's unless given.
    Iteration t reads round t; a shorter transcript is gone through again. V holds `v / K`, as in the paper, so all
    batches must have one size.

    Readings: V starts uniform in -8e-4 to 8e-4 and H in 0 to 8e-2, as the released code has them (the paper says
    uniform). Total variation is the mean over the batch, summed over parties. With the paper's rates step I does not
    come below the paper's threshold of 1e-9 in its 8,000 iterations (docs/attacks/cafe.md).

    The released code takes the softmax twice and corrects Adam's bias twice; this does neither, as the paper writes of
    neither.

    Where the server trains meanwhile, V and H are one guess for all rounds, and step III compares H with the features
    of the images at the weights of round t (equation 9), unless `follow` is off.

    Args:
        follow: Take the features of the images at the weights of the round that is read; off: of the first round.
        loop: `nested` runs the three steps one after the other, `single_loop` all in each iteration.
        constants: A row of table 9: `cifar10`, `mnist`, `linnaeus5`, `yale32`.
        iterations: Nested: of steps I, II and III. Single loop: the last number counts all of them.
        lr_one: Learning rate of step I (SGD).
        lr_two: Of step II (Adam).
        lr_three: Of step III (Adam).
        alpha: Weight of the gradients' distance in equation 9; 0 saves the double backward pass.
        beta: Weight of the truncated total variation.
        gamma: Weight of the distance of the internal representations.
        xi: Total variation (mean over the batch and parties, per tile) below which it is left alone.
        thresholds: Single loop: step II starts once step I's objective was below the first, step III once step II's
            was below the second; () runs all three from the start, as the released code does.
        together: Single loop with thresholds: a step goes on once the next one has started; off: it ends. The paper
            says that it switches.
        scaled: Where table 9's lr_one and xi are taken, bring them to another batch size and another tile: lr_one
            times 40 / K, for one visit of step I leaves `1 - 2 lr_one K` of its error, and xi times the values of a
            tile over those of the paper's, for total variation is a sum over them.
        samples: N; None takes the largest index.
    """

    certifies: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs(text="as cafe, and thousands of rounds")
    rounds: ClassVar[Literal["one", "all"]] = "all"

    follow: bool = True
    loop: Literal["nested", "single_loop"] = "nested"
    constants: Literal["cifar10", "mnist", "linnaeus5", "yale32"] = "mnist"
    iterations: Sequence[int] = (8000, 8000, 8000)
    lr_one: float | None = None
    lr_two: float | None = None
    lr_three: float | None = None
    alpha: float = 1e-2
    beta: float = 1e-4
    gamma: float = 1e-3
    xi: float | None = None
    thresholds: Sequence[float] = (1e-9, 5e-9)
    together: bool = True
    scaled: bool = False
    samples: int | None = None

    def constants_at(self, batch: int, tile: float) -> Constants:
        """lr_one, lr_two, lr_three and xi for batches of so many samples and tiles of so many values.

        >>> PublishedCafe(constants="cifar10", scaled=True).constants_at(5, 8 * 8 * 3)
        {'lr_one': 0.04, 'lr_two': 0.008, 'lr_three': 0.02, 'xi': 22.5}
        """
        own = dict(TABLE_9[self.constants])
        if self.scaled:
            own["lr_one"] *= TABLE_9_BATCH / batch
            own["xi"] *= tile / TABLE_9_TILE[self.constants]
        return {name: float(own[name] if (given := getattr(self, name)) is None else given) for name in own}

    def examine(self, transcript: Transcript) -> SeenRounds:
        opening = open_rounds(transcript, self.samples)
        largest = max(len(batch) for batch in opening.batches)
        if len({len(batch) for batch in opening.batches}) > 1:
            raise refuse("batch_sizes")("batches differ in size and V holds v / K", "drop the odd batches, or use Cafe")
        lr_one = self.constants_at(largest, 1.0)["lr_one"]
        if lr_one * largest >= 1:
            raise refuse("step_diverges")(
                f"step I diverges with lr_one={lr_one:g} and batches of {largest}", f"set lr_one below {1 / largest:g}"
            )
        return opening

    def run(self, seen: SeenRounds, *, seed: int, progress: Progress) -> Reconstruction:
        run = self.begun(seen, seed, progress)
        interrupted, knowledge = run.loop(), seen.knowledge
        drawn = torch.cat(run.batches).unique()
        blocks = [x[drawn] for x in run.tables.x]
        inputs = assemble(run.layers, blocks, knowledge.input_shape, sum(knowledge.value_range) / 2)
        return Reconstruction(
            inputs=inputs.clamp(*knowledge.value_range),
            labels=run.tables.y[drawn].argmax(1) if self.alpha else None,
            indices=drawn.to(inputs.device),
            ambiguity=frozenset(),
            status="interrupted" if interrupted else "exhausted",
            history=tuple(run.history),
            cost={"rounds": run.read},
            notes=(f"{run.read} rounds were read; V by {run.steps[0]}, H by {run.steps[1]} and x by {run.steps[2]}",),
        )

    def begun(self, seen: SeenRounds, seed: int, progress: Progress) -> "PublishedRun":
        """The loops before their first iteration."""
        return PublishedRun(self, seen, seed, progress)


class PublishedRun(Resumable):
    """One run of the published algorithms."""

    kept = ("v", "two", "three", "labels", "steps", "opened", "history")

    def __init__(self, plan: PublishedCafe, seen: SeenRounds, seed: int, progress: Progress) -> None:
        self.plan, self.transcript, self.progress = plan, seen.transcript, progress
        self.knowledge: Knowledge = seen.knowledge
        self.params, self.buffers = seen.params, seen.buffers
        self.layers, self.batches = seen.layers, seen.batches
        self.tables = self.start(seen.samples, seed)
        # Parties may hold tiles of several sizes; the threshold is one for the mean of their variations.
        tile = sum(x[0].numel() for x in self.tables.x) / len(self.layers)
        self.constants = plan.constants_at(len(self.batches[0]), tile)
        self.two = [RowAdam(h, self.constants["lr_two"]) for h in self.tables.h]
        self.three = [RowAdam(x, self.constants["lr_three"]) for x in self.tables.x]
        self.labels = RowAdam(self.tables.y, self.constants["lr_three"])
        self.v = self.tables.v
        self.read = 0
        self.steps = [0, 0, 0]
        self.opened = 1
        self.history: list[tuple[int, float]] = []

    def start(self, samples: int, seed: int, guess: int = 0) -> _Tables:
        draw = generator(seed, "cafe start", guess) if guess else generator(seed, "cafe start")
        low, high = self.knowledge.value_range

        def uniform(low: float, high: float, *shape: int) -> Tensor:
            drawn = low + (high - low) * torch.rand(samples, *shape, generator=draw)
            return drawn.to(self.params[self.layers[0].weight])

        shapes = [self.params[layer.weight].shape for layer in self.layers]
        return _Tables(
            v=[uniform(-8e-4, 8e-4, shape[0]) for shape in shapes],
            h=[uniform(0, 8e-2, shape[1]) for shape in shapes],
            x=[uniform(low, high, *block_shape(layer, self.knowledge.input_shape)) for layer in self.layers],
            y=uniform(0, 1, self.knowledge.num_classes),
        )

    def loop(self) -> bool:
        """All iterations of Algorithm 3, nested, or 4, a single loop; whether they were interrupted."""
        steps, thresholds = (self.step_one, self.step_two, self.step_three), self.plan.thresholds
        if self.plan.loop == "nested":
            ends = list(accumulate(self.plan.iterations))
            return self.through(ends[-1], lambda t: steps[bisect_right(ends, t)](t))

        def iteration(t: int) -> float:
            """One of each open step; with thresholds a step waits until the one before was good enough once."""
            open_to = 3 if not thresholds else self.opened
            begun = steps[:open_to] if self.plan.together or not thresholds else steps[open_to - 1 : open_to]
            objectives = [step(t) for step in begun]
            if open_to < 3 and objectives[-1] < thresholds[open_to - 1]:
                self.opened += 1
            return objectives[-1]

        return self.through(self.plan.iterations[-1], iteration)

    def through(self, total: int, iteration: Callable[[int], float]) -> bool:
        """Run all iterations, from the checkpoint if there is one; returns whether they were interrupted."""
        self.read, interrupted = run_resumable(
            self, total, iteration, self.progress, note=self.note, every=RECORD_INTERVAL
        )
        return interrupted

    def note(self, step: int, value: float) -> None:
        """Add to the history."""
        self.history.append((step, value))

    def rows_of(self, t: int) -> tuple[int, Tensor]:
        place = t % len(self.batches)
        return place, self.batches[place]

    def step_one(self, t: int) -> float:
        """One SGD step on equation 7; returns the objective before it, the mean over parties."""
        place, rows = self.rows_of(t)
        found = gradients(self.transcript, place, [layer.bias for layer in self.layers])
        self.steps[0] += 1
        total = 0.0
        for v, layer in zip(self.tables.v, self.layers, strict=True):
            # Equation 7: |sum_n v_n - grad b|^2, with V holding v / K; the gradient is the same 2 * left for every
            # row. [d2]
            left = v[rows].sum(0) - found[layer.bias]
            v[rows] -= self.constants["lr_one"] * 2 * left
            total += float(left.pow(2).sum())
        return total / len(self.layers)

    def step_two(self, t: int) -> float:
        """One Adam step on equation 8."""
        place, rows = self.rows_of(t)
        found = gradients(self.transcript, place, [layer.weight for layer in self.layers])
        self.steps[1] += 1
        total = 0.0
        for m, layer in enumerate(self.layers):
            v, h = self.tables.v[m][rows], self.tables.h[m][rows]
            left = v.T @ h - found[layer.weight]  # [d2, d1]
            # Equation 8: |V^T H - grad W|^2; its gradient in H is 2 V (V^T H - grad W). [k, d1]
            self.two[m].step(rows, 2 * v @ left)
            total += float(left.pow(2).sum())
        return total / len(self.layers)

    def step_three(self, t: int) -> float:
        """One Adam step on equation 9."""
        place, rows = self.rows_of(t)
        self.steps[2] += 1
        blocks = [x[rows].requires_grad_() for x in self.tables.x]
        logits = self.tables.y[rows].requires_grad_()
        params = params_of(self.transcript, place) if self.plan.follow else self.params
        objective = self.plan.gamma * sum(
            (self._features(layer, block, params) - h[rows]).pow(2).sum()
            for layer, block, h in zip(self.layers, blocks, self.tables.h, strict=True)
        )
        variation = torch.stack([_variation(block) for block in blocks]).mean()
        # Truncated term: max(TV, xi) has no gradient once the images are smoother than xi.
        if self.plan.beta and float(variation.detach()) > self.constants["xi"]:
            objective = objective + self.plan.beta * variation * len(blocks)
        if self.plan.alpha:
            objective = objective + self.plan.alpha * self._gradient_distance(place, blocks, logits)
        assert isinstance(objective, Tensor)
        wanted = [*blocks, logits] if self.plan.alpha else blocks
        # Equation 9 in the images and the labels' logits together; V and H are constants here.
        found = torch.autograd.grad(objective, wanted)
        for adam, gradient in zip([*self.three, self.labels], found, strict=False):
            adam.step(rows, gradient)
        return float(objective.detach())

    def _features(self, layer: TargetLayer, block: Tensor, params: Tensors) -> Tensor:
        return layer.features(self.knowledge.model, params, self.buffers, block)

    def _gradient_distance(self, place: int, blocks: Sequence[Tensor], logits: Tensor) -> Tensor:
        observed = self.transcript[place]
        inputs = assemble(self.layers, list(blocks), self.knowledge.input_shape, sum(self.knowledge.value_range) / 2)
        made = self.knowledge.client(
            self.knowledge.model,
            observed.params,
            Batch(inputs, logits.softmax(1)),
            buffers=observed.buffers or None,
            create_graph=True,
        )
        sent = observed.gradient(self.knowledge.client)
        mine = self.knowledge.client.as_gradient(made, len(inputs))
        return torch.stack([(mine[name] - sent[name]).pow(2).sum() for name in sent]).sum()


def _variation(block: Tensor) -> Tensor:
    """Anisotropic total variation, summed over a tile and averaged over the batch; 0 for tables."""
    if block.ndim != 4:
        return block.new_zeros(())
    down, across = neighbor_differences(block)
    return (down.flatten(1).sum(1) + across.flatten(1).sum(1)).mean()
