"""Examples that rows of a fully connected layer show alone: each image is solved from what that layer read of it."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.gauss_newton.levels import FIRST_NEARNESS, LEVELS, NEARNESS_GROWTH, sure_values, to_levels
from seepage.attacks.gauss_newton.preconditioner import BlockCirculant
from seepage.attacks.gauss_newton.search import FRUITLESS, LESS, Search
from seepage.attacks.gauss_newton.seen import CERTAIN, ROUNDED
from seepage.attacks.network import EXACT, LARGEST_MATRIX, AttackedRound
from seepage.attacks.network.linearize import VictimNetwork
from seepage.attacks.reading.decoding import AT_ONCE, Decoder, NaturalSpectrum
from seepage.attacks.reading.equations import Equations, Known, Structure
from seepage.attacks.reading.rows import MAX_ENTRIES, MAX_ROWS, MeasuredRows, agreeing_groups
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
ROUND, PATIENCE, FAR = 5, 60, 50
"""Of so many turns one has all equations, and sets what is surely of 8 bits; turns without gain after which an image is
left; and those of the near images before the far ones have theirs."""
SURE = 0.15
"""Nearness to 8-bit values that is not exceeded (see `levels`)."""
NEAR = 0.05
"""Relative residual below which an image is on its way, and leaving equations out leads on; else a descent does."""
STIFFEST = 100.0
"""How many times as fast as the image, both relative to themselves, what the layer reads may change."""
CHANCE = 1e-6
"""Chance of a certificate where the vector is no image's."""
Draw = torch.Generator | None


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
    spread: Tensor
    neurons: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, attacked: AttackedRound, network: VictimNetwork, *, behind_dropout: bool = False) -> Self | None:
        """The layer behind convolutions that shows most, of those behind dropout if asked; None where no rows agree."""
        shape = attacked.knowledge.input_shape
        network = replace(network, channels_last=shape[2] < min(shape[:2]))
        middle = torch.rand((1, *_channels_first(network, shape)), generator=generator(0, "probe image"))
        with torch.no_grad():
            run = network.run(middle)
        found, names = [], network.names(run)
        for place, (name, layer) in enumerate(zip(names, run.layers, strict=True)):
            kept = math.prod(1 - p for before, p in run.dropouts if before == place)
            if not name or layer.geometry or names.count(name) > 1 or (behind_dropout and kept in (0, 1)):
                continue
            structure = Structure.of(network, name, middle, 0)
            read = None if structure is None else _vectors(attacked, name)
            if structure is not None and read is not None:
                vectors, shares = read[0].to(attacked.like()), (kept, 1.0) if 0 < kept < 1 else (1.0,)
                vectors = vectors.view(-1, *structure.shape)
                found.append(cls(attacked, network, name, structure, vectors, *read[1:], shares))
        return max(found, key=lambda one: int((one.vectors != 0).sum()), default=None)

    @property
    def shape(self) -> tuple[int, ...]:
        """`(C, H, W)`."""
        return _channels_first(self.network, self.attacked.knowledge.input_shape)

    @cached_property
    def shown(self) -> Tensor:
        """`[n, *shape]` bool: entries that are not zero, beyond errors and rounding."""
        size = self.vectors.abs()
        error = (DEVIATIONS * self.spread).clamp(min=FLOAT32_NETWORK).to(size)
        mean = size.flatten(1).square().mean(1).sqrt() * error
        return size > mean.view(-1, *(1,) * (size.ndim - 1))

    def equations(self, example: int, share: float, draw: Draw = None) -> Equations:
        """`f(x) = share r` of one example, where r is not zero; and where it is, if no dropout acted.

        Args:
            example: Which.
            share: What inverted dropout divided by.
            draw: Leaves some equations out.
        """
        read, on, slope = self.vectors[example][None] * share, self.shown[example][None], self.structure.slope
        bent = self.structure.activation is not None
        if not bent and share == 1:
            on = torch.ones_like(on)
        elif bent and slope:  # from a leaky ReLU's output to what it read
            read = torch.where(read < 0, read / slope, read)
        if draw is not None:
            on = on & (torch.rand(on.shape, generator=draw) < SOME).to(on.device)
        none, weight = torch.zeros_like(on), read.new_ones(1, *(1,) * (read.ndim - 1))
        one_sided = bent and slope == 0 and share == 1 and draw is None
        known = Known(read, on, none, none, torch.ones_like(read), weight, one_sided)
        return Equations(self.network, self.structure, known, [])

    def dropped(self) -> bool:
        """Whether an example's equations nearly hold of an image with dropout, and of none without."""
        search = AloneSearch(self, 0, PLAIN)
        while not search.near and min(map(len, search.trail)) < len(self.shares):
            search.advance(0)
        return any(self.shares[search.choice[i]] < 1 for i in search.near)

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
    observed, knowledge, bias = attacked.observed, attacked.knowledge, f"{weight.removesuffix('weight')}bias"
    sent, size, last = observed.update.tensors, observed.batch_size, last_linear(knowledge.model, knowledge.num_outputs)
    # With two classes slopes are multiples of one another, and rows of the layer of the classes mix all examples.
    mixed = size != 1 and ((last is not None and last[0] == weight) or knowledge.num_classes <= 2)
    if mixed or weight not in sent or bias not in sent or sent[weight].numel() > LARGEST_MATRIX:
        return None
    measured = observed.measured(knowledge.client, [weight, bias])
    value, error = (torch.cat([part[weight], part[bias][:, None]], 1) for part in (measured.value, measured.error))
    # Of many rows those are compared that are nearest to multiples of another one: the largest ones are mixtures.
    some = F.normalize(value[:, :: -(-value.shape[1] // MAX_ENTRIES)], dim=1)
    alike = (some @ some.T).abs().fill_diagonal_(0).amax(1).topk(min(len(some), MAX_ROWS)).indices
    value, error = value[alike], error[alike]
    groups = agreeing_groups(MeasuredRows.of(value, error))
    if not groups and (size is None or len(knowledge.client.batches(size)) > 1):
        # The weights moved between the steps: what one example gave its rows is no longer in one proportion.
        drift = (DRIFT[0] * value).square() + (DRIFT[1] * value.square().mean(1, keepdim=True).sqrt()).square()
        groups = agreeing_groups(MeasuredRows.of(value, (error.square() + drift).sqrt()))
    groups = [one for one in groups if one.example.any() and one.spread.isfinite().all()][:size]
    if not groups:
        return None
    vectors, spread = torch.stack([one.example for one in groups]), torch.stack([one.spread for one in groups])
    return vectors, spread.norm(dim=1) / vectors.norm(dim=1), tuple(len(one.rows) for one in groups)


@dataclass(eq=False)
class AloneSearch(Resumable):
    """Images of single examples, in turns: all equations first, then some of them, or a descent where that is far.

    Attributes:
        x: `[n, C, H, W]` where each image stands, in [0, 1].
        best: `[n, C, H, W]` where its equations held best so far, to the relative residual in `errors`.
        fixed: `[n, C, H, W]` values set to 8-bit ones, and in `nearness` how near to these they must lie next.
        choice: Which of `shares` suits each image.
        eigen: Its preconditioner.
        trail: Its residuals after each turn.
    """

    kept: ClassVar[tuple[str, ...]] = (
        "x", "best", "fixed", "errors", "choice", "nearness", "eigen", "trail", "history", "passes",
    )  # fmt: skip

    seen: ReadAlone
    seed: int
    inner: int
    rounding: bool = True
    history: list[tuple[int, float]] = field(default_factory=list)
    passes: int = 0

    def __post_init__(self) -> None:
        n, vectors, seen = len(self.seen.vectors), self.seen.vectors, self.seen
        like = vectors if vectors.ndim == 4 else vectors[:, :, None, None]

        def features(unit: Tensor) -> Tensor:
            return seen.structure.output(seen.network.run(unit)).view(len(unit), *like.shape[1:])

        # What inverted dropout leaves is right in the mean.
        self.guesses = Decoder(features, seen.shape, generator(self.seed, "made-up images"), AT_ONCE)(like)
        self.x, self.best, self.fixed = self.guesses.clone(), self.guesses.clone(), self.guesses < 0
        self.errors, self.nearness, self.choice = [math.inf] * n, [FIRST_NEARNESS] * n, [0] * n
        self.trail, self.eigen = [list[float]() for _ in range(n)], list[Any]([None] * n)
        self.spectrum = NaturalSpectrum(seen.shape).to(self.x)

    @property
    def near(self) -> list[int]:
        """Images whose equations nearly hold."""
        return [i for i, error in enumerate(self.errors) if error < NEAR]

    def over(self, example: int) -> bool:
        """Whether an image is found, or what leads on leads nowhere."""
        trail, back = self.trail[example], PATIENCE if self.errors[example] < NEAR else FRUITLESS - 1
        slow = len(trail) >= len(self.seen.shares) + back and min(trail[-back:]) > LESS * min(trail[:-back])
        return slow or self.errors[example] < FLOAT32_SAME

    @property
    def ended(self) -> bool:
        """Whether all are over."""
        return all(map(self.over, range(len(self.x))))

    def advance(self, _step: int) -> float:
        """A turn of one image: first of those that had none, then the near ones take turns, then the far ones."""
        shares = self.seen.shares

        def order(one: int) -> tuple[float, ...]:
            turns, error = len(self.trail[one]), self.errors[one]
            return min(turns, len(shares)), (turns + FAR * (error > NEAR)) // ROUND**2, error

        i = min((one for one in range(len(self.x)) if not self.over(one)), key=order)
        turn, at, before, near = len(self.trail[i]), slice(i, i + 1), self.errors[i], self.near
        if turn < len(shares):
            error = math.inf
            if not near or any(self.choice[one] == turn for one in near):
                x, error = self._reached(i, self._searched(i, turn, self.guesses[at], PLAIN).point.x, turn)
                if error < before:
                    self.choice[i], self.x[at] = turn, x
        elif i not in near:
            noise = torch.rand(self.x[at].shape, generator=generator(self.seed, f"descent of {i}", turn)).to(self.x)
            x = self.x[at] if turn == len(shares) else 0.4 + 0.2 * noise
            self.x[at], error = self._reached(i, self._searched(i, self.choice[i], x, PLAIN, descent=True).point.x)
        else:
            whole = (turn - len(shares)) % ROUND == ROUND - 1
            draw = None if whole else generator(self.seed, f"some equations of {i}", turn)
            self.fixed[at] &= not whole  # what was set wrongly comes free again
            self.x[at], error = self._reached(i, self._searched(i, self.choice[i], self.x[at], STEPS, draw).point.x)
            if whole and self.rounding:
                self.fixed[at] = sure_values(self.x[at], self.nearness[i])
                self.x[at] = torch.where(self.fixed[at], to_levels(self.x[at]), self.x[at])
                self.nearness[i] = min(self.nearness[i] * NEARNESS_GROWTH, SURE)
        self.trail[i].append(error)
        return min(self.errors)

    def _searched(
        self, example: int, choice: int, x: Tensor, steps: int, draw: Draw = None, descent: bool = False
    ) -> Search:
        """So many steps of Gauss-Newton at most, after a descent of Adam where asked."""
        equations = self.seen.equations(example, self.seen.shares[choice], draw)
        search = Search(equations, self.spectrum, equations.start(x), self.inner)
        search.fixed = self.fixed[example : example + 1].clone()
        if self.eigen[example] is not None:
            search.preconditioner = BlockCirculant.of(self.eigen[example], x)
        descends = descent and search.descends()
        while search.left or (search.steps < steps and not search.ended):
            search.step()
        if search.preconditioner is not None and not descends:
            self.eigen[example] = search.preconditioner.eigen()
        self.passes += search.passes
        return search

    def _reached(self, example: int, x: Tensor, choice: int | None = None) -> tuple[Tensor, float]:
        """An image in the range, or the nearest of 8 bits where that explains its equations, and their residual."""
        equations = self.seen.equations(example, self.seen.shares[self.choice[example] if choice is None else choice])
        x, rounded = x.detach().clamp(0, 1), to_levels(x)
        error, error_rounded = (equations.start(one).square ** 0.5 for one in (x, rounded))
        if self.rounding and error_rounded < min(ROUNDED, max(2 * error, FLOAT32_SAME)):
            error, x = error_rounded, rounded
        # Of equations that hold of no image, a descent that meets them better has left what images look like.
        if error < self.errors[example] and (error < NEAR or choice is not None):
            self.errors[example], self.best[example] = error, x[0]
        return x, error

    def certain(self, free: float) -> tuple[Tensor, Tensor]:
        """`[n]` which images are certified, and the number of equations of each.

        The equations must hold to what rounding leaves and be enough (`ReadAlone.explains`); a change of the image by
        what counts as exact must stand out from what they miss, and no part of it may be free to change.
        """
        certain, counts = torch.zeros(len(self.best), dtype=torch.bool), self.seen.shown.flatten(1).sum(1).cpu()
        probe = torch.randn(self.best.shape, generator=generator(0, "change")).to(self.best)
        for i, error in enumerate(self.errors):
            x, change = self.best[i][None], probe[i][None]
            rounded = bool((x == to_levels(x)).all())
            if error < FLOAT32_NETWORK and self.seen.explains(int(counts[i]), error, rounded):
                equations = self.seen.equations(i, self.seen.shares[self.choice[i]])
                here, moved = equations.start(x), equations.start(x + EXACT * change)
                if error < CERTAIN * float((moved.residuals[0] - here.residuals[0]).norm()):
                    search = Search(equations, self.spectrum, here, self.inner)
                    certain[i] = bool(search.undetermined(change, free)[0] < free)
        return certain.to(self.best.device), counts
