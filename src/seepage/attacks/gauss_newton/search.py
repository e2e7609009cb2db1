"""Gauss-Newton on the equations of a batch, each step solved by preconditioned conjugate gradients."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.gauss_newton.levels import (
    FEWEST,
    FIRST_NEARNESS,
    LAST_NEARNESS,
    NEARNESS_GROWTH,
    NEIGHBORHOOD,
    sure_values,
    to_levels,
)
from seepage.attacks.gauss_newton.preconditioner import BlockCirculant
from seepage.attacks.reading.decoding import NaturalSpectrum
from seepage.attacks.reading.equations import Equations, EquationsAt
from seepage.attacks.reading.readings import NEWTON_SOLVED
from seepage.base.checkpoint import Resumable
from seepage.base.nn import generator
from seepage.base.rounding import FLOAT32_ZERO, FLOAT64_FLOOR
from seepage.base.solvers import conjugate_gradients

FIRST_DAMPING = 1e-6
"""Weight of the squared step at the start, beside equations whose derivative has norms of about 0.1 to 1."""
FIRST_INNER = 40
"""Iterations of the conjugate gradients in the first step."""
GROWTH = 1.5
"""Where conjugate gradients ran out but the step was good, so many times more iterations are allowed next."""
AS_PREDICTED = 0.3
"""Largest share of the predicted gain that may be missing for a step to have gone as predicted."""
ROUGHLY_SOLVED = 0.2
"""Largest relative residual at which the conjugate gradients of a step may end."""
UNSOLVED = 0.1
"""What a step leaves unsolved of its gain may be so large a share of that by which the last one missed its own."""
SHORTER = 0.4
"""A step that does not help is shortened by this."""
TRIES = 4
"""Lengths of one step that are tried."""
SETTLED = 0.05
"""A step whose objective falls by a smaller share counts as standing still."""
SLOW_STEPS, SLOW_GAIN = 8, 4.0
"""A search is at rest, too, where so many steps together lowered its objective by less than this factor: near a
solution one step does that, and what wrong masks hold up gains little more from hundreds of iterations."""
PATIENCE = 3
"""Steps that stand still before the search ends."""
NEGLIGIBLE = 3e-5
"""Root mean square of the last change of every image, in units of the value range, at which the search ends: 90 dB."""
FAINT_IMAGE = 1e-2
"""An image with a smaller share of the strongest image's signal is not waited for."""
EXPLAINED = 1e-13
"""Sum of squared residuals at which nothing but rounding is left."""
POLISHING_INNER = 200
"""Iterations of the conjugate gradients in the first step after the equations were weighted anew."""
PROBING_INNER = 800
"""Iterations, at most, of the conjugate gradients that look for what is not shown."""
STEPS_BETWEEN = 2
"""Steps after some values were set, before others are."""
DESCENT, BLOCKS = 2_000, 20
"""Iterations of a descent, and the steps that they are counted as."""
DESCENT_RATE = 0.1
"""First length of an iteration's change of a value, which falls to 0: long enough to leave a local minimum."""
MOMENTS = (0.9, 0.999)
"""Decay of Adam's running means."""
SOLVED = 1e-6
"""An example's sum of squared residuals below which its image is found, and Gauss-Newton alone goes on: at 1e-3 of what
is known."""
EVEN = 100.0
"""Examples whose residuals differ by less than this factor are all held up by what is missing of the gradient."""
LESS, FRUITLESS = 0.8, 3
"""Descents end after so many in a row, each of which left more than this share of the residuals."""


@dataclass(eq=False)
class Search(Resumable):
    """Images that satisfy the equations, and where those leave them open look like images.

    Each step minimizes `|r + J d|^2 + mu |K^-1 (x + d - 1/2)|^2 + damping |d|^2`. The first two are the negative log
    posterior of images of a natural spectrum under residuals of the present size: `mu` is the mean square of a
    residual over that of the images' coefficients, and vanishes as the equations come to hold. Without the second
    term, directions that the equations hardly see take up what wrong masks do to the others.

    Attributes:
        equations: The equations.
        spectrum: The prior.
        point: Where the search stands.
        most: Iterations of the conjugate gradients that no step exceeds.
        center: `[1, C, H, W]` where the equations do not show the contrast: the batch's distance from this image may
            be multiplied by any factor. Steps then leave it as it is. None: they show it.
        before: Images `[n, C, H, W]` at which the search came to rest with all values free, and with weights that suit
            a rounded gradient.
        fixed: `[n, C, H, W]` values that are set to 8-bit ones.
        rounding_radius: How near to 8-bit values those must lie that are set next, in steps of 8 bits.
        damping: Damping of the next step.
        iterations: Iterations of the conjugate gradients, at most, in the next step.
        tolerance: Relative residual at which they end.
        preconditioner: Made at the first step with these free values.
        passes: Products with J and its transpose so far.
        steps: Steps with these free values so far.
        steps_without_progress: Steps in a row that stood still.
        last_change: Largest root mean square by which the last step changed an image that is waited for.
        squares: The sum of squared residuals after each step with these free values.
        history: Each step's number and objective.
        best: `[n, C, H, W]` of each example the image with its smallest residuals, from the first descent on.
        errors: `[n]` those residuals' sums of squares.
        moments: Adam's running means of the slopes and of their squares, where it descends.
        left: Steps that the present descent still takes.
        totals: Sum of `errors` before each descent.
    """

    kept: ClassVar[tuple[str, ...]] = (
        "place", "fixed", "rounding_radius", "damping", "iterations", "tolerance", "passes",
        "steps", "steps_without_progress", "last_change", "squares", "history",
        "best", "errors", "moments", "left", "totals",
    )  # fmt: skip

    equations: Equations
    spectrum: NaturalSpectrum
    point: EquationsAt
    most: int
    center: Tensor | None = None
    before: tuple[Tensor, ...] = ()
    fixed: Tensor = field(init=False)
    rounding_radius: float = FIRST_NEARNESS
    damping: float = FIRST_DAMPING
    iterations: int = FIRST_INNER
    tolerance: float = NEWTON_SOLVED
    preconditioner: BlockCirculant | None = None
    passes: int = 0
    steps: int = 0
    steps_without_progress: int = 0
    last_change: float = float("inf")
    squares: list[float] = field(default_factory=list)
    history: list[tuple[int, float]] = field(default_factory=list)
    best: Tensor | None = None
    errors: Tensor | None = None
    moments: tuple[Tensor, ...] = ()
    left: int = 0
    totals: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fixed = torch.zeros_like(self.point.x, dtype=torch.bool)

    @property
    def ended(self) -> bool:
        """Whether it came to rest: explained, standing still, or more values can be set."""
        if self.left:
            return False
        before = self.squares[-1 - SLOW_STEPS] if len(self.squares) > SLOW_STEPS else float("inf")
        slow = before < SLOW_GAIN * self.point.square
        still = slow or self.last_change < NEGLIGIBLE or self.steps_without_progress >= PATIENCE
        enough = bool(self.fixed.any()) and self.steps >= STEPS_BETWEEN
        explained = self.steps > 0 and self.point.square < EXPLAINED
        return enough or explained or still

    @property
    def place(self) -> dict[str, Any]:
        """Where it stands, for checkpoints."""
        eigen = None if self.preconditioner is None else self.preconditioner.eigen()
        return {
            "x": self.point.x, "free": self.point.free, "open": self.equations.known.open,
            "floor": self.equations.floor, "before": self.before, "eigen": eigen,
        }  # fmt: skip

    @place.setter
    def place(self, place: dict[str, Any]) -> None:
        like, eigen = self.point.x, place["eigen"]
        self.equations = self.equations.opened(place["open"].to(like.device), place["floor"])
        self.point = self.equations.at(place["x"].to(like), place["free"].to(like))
        self.before = tuple(unit.to(like) for unit in place["before"])
        self.preconditioner = None if eigen is None else BlockCirculant.of(eigen, like)

    def goes_on(self) -> bool:
        """Free fewer values where it came to rest, for a client's 8-bit images; False where nothing is left to set.

        What a search comes to rest at is spoiled by what is missing of the gradient: its last digits, where it was read
        off two checkpoints. First the equations get weights that suit that. Then values that are surely those of 8 bits
        are set, so that fewer are left for the same equations, and so on.
        """
        unit = self.point.x.detach()
        if not self.before:
            self.before, self.iterations = (unit,), min(POLISHING_INNER, self.most)
            self._start_over(self.equations.of_rounded(), unit)
            return True
        while self.rounding_radius < LAST_NEARNESS:
            sure = self.fixed | sure_values(unit, self.rounding_radius)
            if int((sure & ~self.fixed).sum()) > FEWEST * int((~self.fixed).sum()):
                self.before, self.fixed = (*self.before, unit)[:2], sure
                self._start_over(self.equations, torch.where(sure, to_levels(unit), unit))
                return True
            self.rounding_radius *= NEARNESS_GROWTH
        return False

    def descends(self) -> bool:
        """Begin a descent where it came to rest at images that do not explain the equations; False where none helps.

        Which of the four values a pool takes, and which units are on, holds Gauss-Newton up in a local minimum. Adam on
        the same sum of squares, with long steps at first and values held in the range, leaves it; each example keeps
        the best of its images, so that descents find one after the other: the first from where the search rests, others
        from grey with noise, for the images that are not found. Only where the matched layers' slopes
        are known beforehand: others would have to be whitened anew in each iteration.
        """
        if self.center is not None or self.before or not self.equations.structure.fixed:
            return False
        self.settle()
        assert self.errors is not None  # as it is settled
        total = float(self.errors.sum())
        self.totals.append(total)
        fruitless = [now > LESS * before for before, now in pairwise(self.totals)]
        if bool((self.errors < SOLVED).all()) or (len(fruitless) >= FRUITLESS and all(fruitless[-FRUITLESS:])):
            return False
        if len(self.totals) > 1:
            noise = torch.rand(self.point.x.shape, generator=generator(0, "descent", len(self.totals)))
            away = self.errors.view(-1, 1, 1, 1) >= SOLVED
            x = torch.where(away, 0.4 + 0.2 * noise.to(self.point.x), self.point.x.detach())
            self._start_over(self.equations, x)
        self.left, self.moments = BLOCKS, (torch.zeros_like(self.point.x), torch.zeros_like(self.point.x))
        return True

    @property
    def even(self) -> bool:
        """Whether all examples are explained about as well."""
        errors = self._errors()
        return bool(errors.max() < EVEN * errors.min())

    def settle(self) -> None:
        """Stand at the best image of each example so far."""
        x, errors = self.point.x.detach(), self._errors()
        if self.best is not None and self.errors is not None:
            better = errors < self.errors
            x = torch.where(better.view(-1, 1, 1, 1), x, self.best)
            errors = torch.where(better, errors, self.errors)
        self.best, self.errors = x, errors
        self._start_over(self.equations, x)

    def _errors(self) -> Tensor:
        """`[n]` sums of squared residuals, example by example.

        The rows of a whitened layer's equations are orthonormal, `r = V^T e`, so that `V r` is the error e of what it
        read at each position of each example; `transposed` gives `gain V r`.
        """
        own, *matched = self.point.residuals
        errors = own.double().flatten(1).square().sum(1)
        for one, part in zip(self.point.matched, matched, strict=True):
            read, _ = one.transposed(part)
            errors = errors + (read / one.gain).double().flatten(1).square().sum(1)
        return errors

    def _descend(self) -> float:
        """So many iterations of Adam on the sum of squares; images that are found stay. Returns as `step`."""
        assert self.errors is not None  # as it was settled before
        moving = (self.errors >= SOLVED).to(self.point.x).view(-1, 1, 1, 1)
        first, second = self.moments
        x, point = self.point.x.detach(), self.point
        begin = (BLOCKS - self.left) * (DESCENT // BLOCKS)
        for number in range(begin + 1, begin + DESCENT // BLOCKS + 1):
            slope = self.equations.transposed(point, point.residuals)[0] * moving
            first = MOMENTS[0] * first + (1 - MOMENTS[0]) * slope
            second = MOMENTS[1] * second + (1 - MOMENTS[1]) * slope.square()
            mean, square = first / (1 - MOMENTS[0] ** number), second / (1 - MOMENTS[1] ** number)
            rate = DESCENT_RATE * (1 + math.cos(math.pi * number / DESCENT)) / 2
            x = torch.where(moving > 0, (x - rate * mean / (square.sqrt() + 1e-12)).clamp(0, 1), x)
            point = self.equations.at(x, point.free, point)
            self.passes += 2
        self.point, self.moments, self.left = point, (first, second), self.left - 1
        if not self.left:
            self.settle()
        return self._relative

    def _start_over(self, equations: Equations, x: Tensor) -> None:
        self.equations, self.point = equations, equations.at(x, self.point.free)
        self.damping, self.preconditioner = FIRST_DAMPING, None
        self.steps, self.steps_without_progress, self.last_change = 0, 0, float("inf")
        self.tolerance, self.squares = NEWTON_SOLVED, []

    def step(self) -> float:
        """One step. Returns the root of the sum of squared residuals, relative to that of the known quantities."""
        if self.left:
            return self._descend()
        point, before = self.point, self.point.square
        self.steps += 1
        off = point.x.detach() - 0.5  # x - 1/2
        # |K^-1 off|^2 over the number of values: 1 for an image of the natural spectrum, up to its scale.
        rough = float((off * self.spectrum.precision(off)).mean())
        mu = before / self.equations.count / max(rough, 1e-30)
        start = before + mu * rough * off.numel()  # the objective here

        images, slopes, cut_short = self._solve(point, off, mu)
        parts = self.equations.forward(point, images, slopes)
        self.passes += 1
        # The linear model's objective after a whole step: |r + J d|^2 + mu |K^-1 (x + d - 1/2)|^2.
        predicted = sum(
            float((r + d).double().square().sum()) for r, d in zip(point.residuals, parts, strict=True)
        ) + self._prior(off + images, mu)
        # Masks of ReLUs change along the step, so that the objective itself, with them, decides on its length.
        length = 1.0
        for _ in range(TRIES):
            x, free = point.x.detach() + length * images, point.free + length * slopes
            reached = self.equations.moved(x, free, point).square + self._prior(x - 0.5, mu)
            if reached < start:
                break
            length *= SHORTER
        else:
            # No length helps: stay, and take a shorter step in a direction nearer to the gradient.
            self.damping, self.tolerance = 10 * self.damping, NEWTON_SOLVED
            self.steps_without_progress += 1
            self.squares.append(before)
            return self._relative
        self.point = self.equations.at(x, free, point)
        # Images whose signal is next to nothing beside the others' are not waited for: only their features are known,
        # and the search never comes to rest on them.
        strength = self.equations.known.signal.flatten(1).norm(dim=1)
        moved = (length * images).flatten(1).square().mean(1).sqrt()
        self.last_change = float(moved[strength >= FAINT_IMAGE * strength.max()].max())
        # Whole steps: the linear model holds, trust it further. Cut short but as predicted: solve the next one longer.
        whole = length == 1
        self.damping = max(self.damping * (0.3 if whole else 1.5), FLOAT64_FLOOR)
        missing = (reached - predicted) / max(start - predicted, 1e-300)  # share of the predicted gain
        if whole and cut_short and missing < AS_PREDICTED:
            self.iterations = min(int(self.iterations * GROWTH), self.most)
        self.steps_without_progress = (
            self.steps_without_progress + 1 if self.point.square > (1 - SETTLED) * before else 0
        )
        # A residual of a share t, as r^T M r measures it, leaves about t^2 of the gain unsolved. Where masks took more
        # of it, a linear model made anew tells more than this one solved further (Eisenstat and Walker 1996).
        self.tolerance = min(max((UNSOLVED * abs(missing)) ** 0.5, NEWTON_SOLVED), ROUGHLY_SOLVED)
        if self.steps_without_progress:
            self.tolerance = NEWTON_SOLVED
            self._reopen()
        self.squares.append(self.point.square)
        return self._relative

    def _reopen(self) -> None:
        """Where the search stands still, let units near the kink take either side."""
        more = self.equations.reopened(self.point)
        if more is not None:
            self.equations, free = more
            self.point = self.equations.at(self.point.x, free, self.point)
            self.steps_without_progress = 0

    def undetermined(self, probe: Tensor, free: float) -> Tensor:
        """`[n]` how much of a random change of the images the equations do not show, where they show least of it.

        What a change e does to the equations is `J e`; least squares give back from that what they determine of it.
        What they do not determine is free: pixels that no layer reads, colors that the first layer adds up, directions
        that hardly reach the features. The share is a root mean square over a neighborhood and its colors, the largest.

        Args:
            probe: `[n, C, H, W]` standard normal numbers.
            free: Where all shares are surely below this one, they need not be known any better.
        """
        point = self.point

        def product(v: Tensor) -> Tensor:
            return _joined(*self._normal(point, v))

        def shares(back: Tensor) -> Tensor:
            # (J^T J)^+ J^T J e is the part of e in J's row space; e less it lies in the null space. Mean over colors.
            left = (probe - _apart(back, point)[0]).square().mean(1, keepdim=True)  # [n, 1, H, W]
            around = F.avg_pool2d(left, NEIGHBORHOOD, 1, NEIGHBORHOOD // 2, count_include_pad=False)
            return around.sqrt().flatten(1).amax(1)

        # What is not solved yet counts as not determined: the distance from the solution falls with each iteration.
        back = conjugate_gradients(
            product, product(_joined(probe, torch.zeros_like(point.free))), self._inverse(point, FLOAT64_FLOOR),
            steps=PROBING_INNER, tolerance=FLOAT32_ZERO, preconditioned=True,
            enough=lambda back: bool((shares(back) < free).all()),
        )  # fmt: skip
        return shares(back)

    @property
    def _relative(self) -> float:
        return float((self.point.square / len(self.point.x)) ** 0.5)

    def _prior(self, off: Tensor, mu: float) -> float:
        return mu * float((off * self.spectrum.precision(off)).double().sum())

    def _solve(self, point: EquationsAt, off: Tensor, mu: float) -> tuple[Tensor, Tensor, bool]:
        """The step of images and open slopes, and whether the conjugate gradients ended before it was solved.

        `(P (J^T J + mu K^-T K^-1) + damping) d = -P (J^T r + mu K^-T K^-1 off)`, with P what a step may change.
        """
        across, used = self._project(point), 0

        def product(v: Tensor) -> Tensor:
            nonlocal used
            used += 1
            images, free = self._normal(point, v)
            images = across(images + mu * self.spectrum.precision(_apart(v, point)[0]))
            return _joined(images, free) + self.damping * v

        pulled, free = self.equations.transposed(point, point.residuals)
        # Unknowns are pixels and slopes of open units, of different scales: convergence is measured by r^T M r.
        change = conjugate_gradients(
            product, -_joined(across(pulled + mu * self.spectrum.precision(off)), free),
            self._inverse(point, self.damping, across), steps=self.iterations, tolerance=self.tolerance,
            preconditioned=True,
        )  # fmt: skip
        self.passes += 2 * used
        return *_apart(change, point), used == self.iterations

    def _inverse(
        self, point: EquationsAt, damping: float, across: Callable[[Tensor], Tensor] = lambda images: images
    ) -> Callable[[Tensor], Tensor]:
        """An approximate inverse of `J^T J`, with that much added to its diagonal, and `across` of the images."""
        if self.preconditioner is None:
            nothing = torch.zeros_like(point.free)
            self.preconditioner = BlockCirculant(
                lambda images: self._normal(point, _joined(images, nothing))[0], point.x.detach()
            )
        circulant = self.preconditioner
        circulant.damp(damping)
        # Open slopes: the diagonal is enough, each stands almost alone. Its scale is that of the whitened equations.
        weights = 1 / (sum(one.open_columns() for one in point.matched) + damping)

        def inverse(v: Tensor) -> Tensor:
            images, free = _apart(v, point)
            return _joined(across(circulant(images)), weights * free)

        return inverse

    def _project(self, point: EquationsAt) -> Callable[[Tensor], Tensor]:
        """Removes from a step what it must not change: values already set and, where it is free, the contrast."""
        if self.center is None:
            free = ~self.fixed
            return lambda change: change * free
        # The projection I - c c^T / |c|^2 across c = x - center: a step along c alone changes the contrast.
        contrast = point.x.detach() - self.center
        square = float(contrast.double().square().sum())
        return lambda change: change - float((change.double() * contrast.double()).sum()) / square * contrast

    def _normal(self, point: EquationsAt, v: Tensor) -> tuple[Tensor, Tensor]:
        """`J^T J v` of images and open slopes in one vector, as the two."""
        return self.equations.transposed(point, self.equations.forward(point, *_apart(v, point)))


def _joined(images: Tensor, free: Tensor) -> Tensor:
    """One vector of images `[n, C, H, W]` and the slopes of open units `[m]`."""
    return torch.cat([images.flatten(), free])


def _apart(v: Tensor, point: EquationsAt) -> tuple[Tensor, Tensor]:
    """The reverse of `_joined`."""
    return v[: point.x.numel()].view_as(point.x), v[point.x.numel() :]
