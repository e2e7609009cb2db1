"""Examples that rows of a fully connected layer show alone: each image is solved from what that layer read of it."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from seepage.attacks.gauss_newton.levels import FIRST_NEARNESS, LEVELS, NEARNESS_GROWTH, sure_values, to_levels
from seepage.attacks.gauss_newton.preconditioner import BlockCirculant
from seepage.attacks.gauss_newton.search import FRUITLESS, LESS, Search
from seepage.attacks.gauss_newton.seen import CERTAIN, ROUNDED
from seepage.attacks.network import EXACT, LARGEST_MATRIX, AttackedRound
from seepage.attacks.network.linearize import VictimNetwork
from seepage.attacks.reading.decoding import AT_ONCE, Decoder, NaturalSpectrum
from seepage.attacks.reading.equations import Equations, EquationsAt, Known, Structure
from seepage.attacks.reading.rows import MeasuredRows, agreeing_groups
from seepage.base.checkpoint import Resumable
from seepage.base.nn import generator, last_linear
from seepage.base.rounding import DEVIATIONS, FLOAT32_NETWORK, FLOAT32_SAME, FLOAT32_SUM

DRIFT = (0.02, 0.005)
"""Over several local steps, how far rows of one example may differ: of each entry, and of the row's mean size."""
PLAIN = 20
"""Gauss-Newton steps on all equations, at most, before some are left out."""
SOME, STEPS = 0.7, 2
"""Share of the equations in a turn, drawn anew, and its steps: what wrong choices of a pool hold up differs from one
draw to the next, and their common solution is the image."""
ROUND = 5
"""Turns after which one has all equations, and values that are surely those of 8 bits are set."""
FAR = 50
"""Turns of the near images before the far ones have theirs."""
SURE = 0.15
"""Nearness to 8-bit values that is not exceeded (see `levels`)."""
NEAR = 0.05
"""Relative residual below which an image is on its way, and leaving equations out leads on; else a descent does."""
STIFFEST = 100.0
"""How many times as fast as the image, both relative to themselves, what the layer reads may change."""
CHANCE = 1e-6
"""Chance of a certificate where the vector is no image's."""


@dataclass(frozen=True)
class ReadAlone:
    """What one fully connected layer read of single examples, by rows that agree (see `reading.rows`).

    Attributes:
        attacked: The round.
        network: The network, on images `[n, C, H, W]`.
        layer: Name of the layer's weight.
        structure: Where it lies in the network.
        vectors: `[n, *shape]` what it read, with the zeros that the client's dropout left.
        spread: `[n]` their relative standard errors.
        neurons: Rows that each was read off.
        shares: Shares of the entries that dropout in front of the layer kept; 1: none acted. Tried in this order.
    """

    attacked: AttackedRound
    network: VictimNetwork
    layer: str
    structure: Structure
    vectors: Tensor
    spread: Float[Tensor, " n"]
    neurons: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, attacked: AttackedRound, network: VictimNetwork) -> Self | None:
        """The layer behind convolutions that shows most; None where no rows agree."""
        shape = attacked.knowledge.input_shape
        network = replace(network, channels_last=shape[2] < min(shape[:2]))
        middle = torch.rand((1, *_channels_first(network, shape)), generator=generator(0, "probe image"))
        with torch.no_grad():
            run = network.run(middle)
        found, names, like = [], network.names(run), attacked.like()
        for place, (name, layer) in enumerate(zip(names, run.layers, strict=True)):
            structure = Structure.of(network, name, middle, 0) if name and not layer.geometry else None
            if structure is None or names.count(name) > 1:
                continue
            rows = _vectors(attacked, name)
            if rows is None:
                continue
            vectors, spread, neurons = rows
            kept = math.prod(1 - p for before, p in run.dropouts if before == place)
            read = vectors.to(like).view(-1, *structure.shape)
            shares = (kept, 1.0) if 0 < kept < 1 else (1.0,)
            found.append(cls(attacked, network, name, structure, read, spread, neurons, shares))
        return max(found, key=lambda one: int((one.vectors != 0).sum()), default=None)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """`(C, H, W)`."""
        return _channels_first(self.network, self.attacked.knowledge.input_shape)

    @property
    def seen(self) -> Bool[Tensor, "n *shape"]:
        """Entries that are not zero, beyond errors and rounding."""
        size = self.vectors.abs()
        error = torch.maximum(DEVIATIONS * self.spread, self.spread.new_tensor(FLOAT32_NETWORK)).to(size)
        mean = size.flatten(1).square().mean(1).sqrt() * error
        return size > mean.view(-1, *(1,) * (size.ndim - 1))

    def equations(self, example: int, share: float, draw: torch.Generator | None = None) -> Equations:
        """`f(x) = share r` of one example, where r is not zero; and where it is, if no dropout acted.

        Args:
            example: Which.
            share: What inverted dropout divided by.
            draw: Leaves some equations out.
        """
        read, seen, slope = self.vectors[example][None] * share, self.seen[example][None], self.structure.slope
        on, bent = seen, self.structure.activation is not None
        if not bent and share == 1:
            on = torch.ones_like(seen)
        elif bent and slope:  # from a leaky ReLU's output to what it read
            read = torch.where(read < 0, read / slope, read)
        if draw is not None:
            on = on & (torch.rand(on.shape, generator=draw) < SOME).to(on.device)
        none = torch.zeros_like(on)
        weight = read.new_ones(1, *(1,) * (read.ndim - 1))
        one_sided = bent and slope == 0 and share == 1 and draw is None
        known = Known(read, on, none, none, torch.ones_like(read), weight, one_sided)
        return Equations(self.network, self.structure, known, [])

    def dropped(self) -> bool:
        """Whether the first example's equations come nearer to holding with dropout than without it."""
        if len(self.shares) == 1:
            return False
        search = AloneSearch(replace(self, vectors=self.vectors[:1], spread=self.spread[:1]), 0, PLAIN)
        while search.turns[0] < len(self.shares) and not search.ended:
            search.advance(search.turns[0])
        return search.choice[0] == 0

    def explains(self, count: int, error: float, rounded: bool) -> bool:
        """Whether so many equations that hold to a relative error show that the vector is that of an image.

        The images that there are, in balls of that error, are `(STIFFEST / e)^d`, or 256^d of 8 bits. Of all vectors of
        that size in m dimensions each explains a share `(2 e)^m` at most, so that by chance one is explained with the
        product of the two.
        """
        error = max(error, FLOAT32_SUM)
        images = math.log(LEVELS + 1) if rounded else math.log(STIFFEST / error)
        return count * math.log(2 * error) + math.prod(self.shape) * images < math.log(CHANCE)


def _channels_first(network: VictimNetwork, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[-1], *shape[:-1]) if network.channels_last else shape


def _vectors(attacked: AttackedRound, weight: str) -> tuple[Tensor, Tensor, tuple[int, ...]] | None:
    """What a layer read of single examples `[n, d]`, relative errors `[n]` and numbers of rows; None where nothing."""
    observed, knowledge = attacked.observed, attacked.knowledge
    bias, last = f"{weight.removesuffix('weight')}bias", last_linear(knowledge.model, knowledge.num_outputs)
    sent, size = observed.update.tensors, observed.batch_size
    if weight not in sent or bias not in sent or sent[weight].numel() > LARGEST_MATRIX:
        return None
    # With two classes slopes are multiples of one another, and rows of the layer of the classes mix all examples.
    if size != 1 and ((last is not None and last[0] == weight) or knowledge.num_classes <= 2):
        return None
    measured = observed.measured(knowledge.client, [weight, bias])
    value, error = (torch.cat([part[weight], part[bias][:, None]], 1) for part in (measured.value, measured.error))
    groups = agreeing_groups(MeasuredRows.of(value, error))
    if not groups and (size is None or len(knowledge.client.batches(size)) > 1):
        # The weights moved between the steps: what one example gave its rows is no longer in one proportion.
        own, mean = DRIFT
        drift = (own * value).square() + (mean * value.square().mean(1, keepdim=True).sqrt()).square()
        groups = agreeing_groups(MeasuredRows.of(value, (error.square() + drift).sqrt()))
    groups = [one for one in groups if one.example.any() and one.spread.isfinite().all()][:size]
    if not groups:
        return None
    vectors, spread = (torch.stack(parts) for parts in zip(*((one.example, one.spread) for one in groups), strict=True))
    return vectors, spread.norm(dim=1) / vectors.norm(dim=1), tuple(len(one.rows) for one in groups)


@dataclass(eq=False)
class AloneSearch(Resumable):
    """Images of single examples, in turns: all equations first, then some of them, or a descent where that is far.

    Attributes:
        x: `[n, C, H, W]` where each image stands, in [0, 1].
        best: `[n, C, H, W]` where its equations held best so far, to the relative residual in `errors`.
        fixed: `[n, C, H, W]` values set to 8-bit ones.
        turns: Of each image, so far.
        choice: Which of `shares` suits it.
        nearness: How near to 8-bit values those must lie that are set next, in steps of 8 bits.
        eigen: Its preconditioner.
        trail: Its residuals after each turn.
    """

    kept: ClassVar[tuple[str, ...]] = (
        "x", "best", "fixed", "errors", "turns", "choice", "nearness", "eigen", "trail", "history", "passes",
    )  # fmt: skip

    seen: ReadAlone
    seed: int
    inner: int
    rounding: bool = True
    x: Tensor = field(init=False)
    best: Tensor = field(init=False)
    fixed: Tensor = field(init=False)
    errors: list[float] = field(init=False)
    turns: list[int] = field(init=False)
    choice: list[int] = field(init=False)
    nearness: list[float] = field(init=False)
    eigen: list[Any] = field(init=False)
    trail: list[list[float]] = field(init=False)
    history: list[tuple[int, float]] = field(default_factory=list)
    passes: int = 0

    def __post_init__(self) -> None:
        n = len(self.seen.vectors)
        self.x = self.guesses.clone()
        self.best, self.fixed = self.x.clone(), torch.zeros_like(self.x, dtype=torch.bool)
        self.errors, self.turns, self.choice = [math.inf] * n, [0] * n, [0] * n
        self.nearness, self.eigen, self.trail = [FIRST_NEARNESS] * n, [None] * n, [[] for _ in range(n)]
        self.spectrum = NaturalSpectrum(self.seen.shape).to(self.x)

    @cached_property
    def guesses(self) -> Tensor:
        """`[n, C, H, W]` by a linear decoder; what inverted dropout leaves is right in the mean."""
        seen = self.seen
        like = seen.vectors if seen.vectors.ndim == 4 else seen.vectors[:, :, None, None]

        def features(unit: Tensor) -> Tensor:
            return seen.structure.output(seen.network.run(unit)).view(len(unit), *like.shape[1:])

        return Decoder(features, seen.shape, generator(self.seed, "made-up images"), AT_ONCE)(like)

    def over(self, example: int) -> bool:
        """Whether an image is found, or what leads on leads nowhere."""
        trail = self.trail[example]
        back = 6 * ROUND if self.errors[example] < NEAR else FRUITLESS - 1
        slow = len(trail) >= len(self.seen.shares) + back and min(trail[-back:]) > LESS * min(trail[:-back])
        return slow or self.errors[example] < FLOAT32_SAME

    @property
    def ended(self) -> bool:
        """Whether all are over."""
        return all(map(self.over, range(len(self.x))))

    def advance(self, step: int) -> float:
        """A turn of one image: first of those that had none, then the near ones take turns, then the far ones."""
        plain = len(self.seen.shares)

        def order(one: int) -> tuple[float, ...]:
            turns, error = self.turns[one], self.errors[one]
            return min(turns, plain), (turns + FAR * (error > NEAR)) // ROUND**2, error

        i = min((one for one in range(len(self.x)) if not self.over(one)), key=order)
        turn, at = self.turns[i], slice(i, i + 1)
        known = {self.choice[j] for j, error in enumerate(self.errors) if error < NEAR}
        if turn < plain:
            error = math.inf
            if not known or turn in known:
                equations = self.seen.equations(i, self.seen.shares[turn])
                search = self._searched(i, equations, self.guesses[at], PLAIN)
                before = self.errors[i]
                x, error = self._reached(i, search.point.x, turn)
                if error < before:
                    self.choice[i], self.x[at] = turn, x
        else:
            share = self.seen.shares[self.choice[i]]
            whole, far = (turn - plain) % ROUND == ROUND - 1, self.errors[i] > NEAR
            draw = None if whole or far else generator(self.seed, f"some equations of {i}", turn)
            if whole:
                self.fixed[at] = False  # what was set wrongly comes free again
            equations = self.seen.equations(i, share, draw)
            search = self._descended(equations, i) if far else self._searched(i, equations, self.x[at], STEPS)
            self.x[at], error = self._reached(i, search.point.x, self.choice[i])
            if whole and not far and self.rounding:
                sure = sure_values(self.x[at], self.nearness[i])
                self.nearness[i] = min(self.nearness[i] * NEARNESS_GROWTH, SURE)
                self.fixed[at], self.x[at] = sure, torch.where(sure, to_levels(self.x[at]), self.x[at])
        self.turns[i] += 1
        self.trail[i].append(error)
        return min(self.errors)

    def _reached(self, example: int, x: Tensor, choice: int) -> tuple[Tensor, float]:
        """An image in the range, or the nearest of 8 bits where that explains its equations, and their residual."""
        x = x.detach().clamp(0, 1)
        error, rounded = self.residual(example, x, choice), to_levels(x)
        error_rounded = self.residual(example, rounded, choice) if self.rounding else math.inf
        if error_rounded < min(ROUNDED, max(2 * error, FLOAT32_SAME)):
            error, x = error_rounded, rounded
        # Of equations that hold of no image, a descent that meets them better has left what images look like.
        if error < self.errors[example] and (error < NEAR or self.turns[example] < len(self.seen.shares)):
            self.errors[example], self.best[example] = error, x[0]
        return x, error

    def residual(self, example: int, x: Tensor, choice: int) -> float:
        """Relative residual of all equations of an example at an image `[1, C, H, W]`."""
        equations = self.seen.equations(example, self.seen.shares[choice])
        return float(equations.start(x).square ** 0.5)

    def _searched(self, example: int, equations: Equations, x: Tensor, steps: int) -> Search:
        search = Search(equations, self.spectrum, equations.start(x), self.inner)
        search.fixed = self.fixed[example : example + 1]
        if self.eigen[example] is not None:
            search.preconditioner = BlockCirculant.of(self.eigen[example], x)
        while search.steps < steps and not search.ended:
            search.step()
        if search.preconditioner is not None:
            self.eigen[example] = search.preconditioner.eigen()
        self.passes += search.passes
        return search

    def _descended(self, equations: Equations, example: int) -> Search:
        """A descent of Adam: from where it rests, and from grey with noise the next time."""
        x = self.x[example : example + 1]
        if self.turns[example] > len(self.seen.shares):
            noise = torch.rand(x.shape, generator=generator(self.seed, f"descent of {example}", self.turns[example]))
            x = 0.4 + 0.2 * noise.to(x)
        search = Search(equations, self.spectrum, equations.start(x), self.inner)
        search.descends()
        while search.left:
            search.step()
        for _ in range(PLAIN):
            if search.ended:
                break
            search.step()
        self.passes += search.passes
        return search

    def certain(self, free: float) -> tuple[Tensor, Tensor]:
        """`[n]` which images are certified, and the number of equations of each.

        The equations must hold to what rounding leaves and be enough (`ReadAlone.explains`); a change of the image by
        what counts as exact must stand out from what they miss, and no part of it may be free to change.
        """
        certain, counts = torch.zeros(len(self.best), dtype=torch.bool), self.seen.seen.flatten(1).sum(1).cpu()
        probe = torch.randn(self.best.shape, generator=generator(0, "change")).to(self.best)
        for i, error in enumerate(self.errors):
            x, share = self.best[i][None], self.seen.shares[self.choice[i]]
            rounded = bool((x == to_levels(x)).all())
            if not (error < FLOAT32_NETWORK and self.seen.explains(int(counts[i]), error, rounded)):
                continue
            equations = self.seen.equations(i, share)
            here: EquationsAt = equations.start(x)
            moved = equations.start(x + EXACT * probe[i][None])
            change = (moved.residuals[0] - here.residuals[0]).norm()
            if error < CERTAIN * float(change):
                search = Search(equations, self.spectrum, here, self.inner)
                certain[i] = bool(search.undetermined(probe[i][None], free)[0] < free)
        return certain.to(self.best.device), counts
