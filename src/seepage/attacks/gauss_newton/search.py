"""Gauss-Newton on the equations of a batch, each step solved by preconditioned conjugate gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.decoding import NaturalSpectrum
from seepage.attacks.gauss_newton.equations import Equations, EquationsAt
from seepage.attacks.gauss_newton.levels import (
    FEWEST,
    FIRST_NEARNESS,
    LAST_NEARNESS,
    NEARNESS_GROWTH,
    sure_values,
    to_levels,
)
from seepage.attacks.gauss_newton.preconditioner import BlockCirculant

FIRST_DAMPING = 1e-6
"""Weight of the squared step at the start, beside equations whose derivative has norms of about 0.1 to 1."""
LEAST_DAMPING = 1e-10
MOST_DAMPING = 1e3
"""Damping at which the search ends: no step, however small, helps."""
FIRST_INNER = 40
"""Iterations of the conjugate gradients in the first step."""
GROWTH = 1.5
"""The next step is solved with so many times more iterations where this one went as predicted but was cut short."""
AS_PREDICTED = 0.3
"""Largest share of the predicted gain that may be missing for a step to have gone as predicted."""
SOLVED = 1e-2
"""Relative residual at which the conjugate gradients stop."""
SHORTER = 0.4
"""A step that does not help is shortened by this."""
TRIES = 4
"""Lengths of one step that are tried."""
SETTLED = 0.05
"""A step whose objective falls by a smaller share counts as standing still."""
PATIENCE = 3
"""Steps that stand still before the search ends."""
NEGLIGIBLE = 3e-5
"""Root mean square of the last change of every image, in units of the value range, at which the search ends: 90 dB."""
FAINT = 1e-2
"""An image with a smaller share of the strongest image's signal is not waited for."""
REOPENINGS = 5
"""How often units near the kink of a ReLU are opened, at most."""
EXPLAINED = 1e-13
"""Sum of squared residuals at which nothing but rounding is left."""
POLISHING_INNER = 200
"""Iterations of the conjugate gradients in the first step after the equations were weighted anew."""
PROBING_INNER, PROBED_TO = 800, 1e-5
"""Iterations, at most, and the relative residual of the conjugate gradients that look for what is not shown."""
PROBED = 3
"""Height and width of the neighborhood that is looked at for a change that the equations do not show."""
STEPS_BETWEEN = 2
"""Steps after some values were set, before others are."""

Pair = tuple[Tensor, Tensor]
"""Images `[n, C, H, W]` and the slopes of open units `[m]`."""


def inner(a: Pair, b: Pair) -> float:
    """Inner product in float64, which long sums of float32 need."""
    return sum(float((p.double() * q.double()).sum()) for p, q in zip(a, b, strict=True))


def conjugate_gradients(
    product: Callable[[Pair], Pair],
    right: Pair,
    inverse: Callable[[Pair], Pair],
    most: int,
    *,
    solved: float = SOLVED,
) -> tuple[Pair, int, bool]:
    """Solve `A d = right` for a positive definite A, from zero.

    Args:
        product: `v -> A v`.
        right: The right-hand side.
        inverse: An approximate inverse of A.
        most: Most iterations.
        solved: Relative residual at which they stop.

    Returns:
        The solution, the number of iterations, and whether the residual came down to `solved`.

    >>> one = (torch.tensor([2.0, 6.0]), torch.zeros(0))
    >>> solved = conjugate_gradients(lambda v: (v[0] * torch.tensor([1.0, 3.0]), v[1]), one, lambda v: v, 9)
    >>> solved[0][0].round(decimals=4), solved[1:]
    (tensor([2., 2.]), (2, True))
    """
    solution = (torch.zeros_like(right[0]), torch.zeros_like(right[1]))
    residual = (right[0].clone(), right[1].clone())
    first_direction = inverse(residual)
    # A copy: an inverse may give back what it was given, and the residual is changed in place.
    direction = (first_direction[0].clone(), first_direction[1].clone())
    size = first = inner(residual, direction)
    for iteration in range(most):
        if not size > solved**2 * first:
            return solution, iteration, True
        moved = product(direction)
        length = size / inner(direction, moved)
        for i in range(2):
            solution[i].add_(direction[i], alpha=length)
            residual[i].sub_(moved[i], alpha=length)
        turned = inverse(residual)
        new = inner(residual, turned)
        # Polak-Ribiere and Fletcher-Reeves agree for a quadratic; the latter needs no copy.
        direction = (turned[0] + new / size * direction[0], turned[1] + new / size * direction[1])
        size = new
    return solution, most, not size > solved**2 * first


class Stage(IntEnum):
    """What a search is at."""

    ALL_FREE = 0
    """All values are searched for."""
    WEIGHTED = 1
    """They are, with weights that suit a rounded gradient."""
    ROUNDING = 2
    """Values that are surely of 8 bits are being set."""


@dataclass(eq=False)
class Search:
    """Images that satisfy the equations, and where those leave them open look like images.

    Each step minimizes `|r + J d|^2 + mu |K^-1 (x + d - 1/2)|^2 + damping |d|^2`. The first two are the negative log
    posterior of images of a natural spectrum under residuals of the present size: `mu` is the mean square of a
    residual over that of the images' coefficients, and vanishes as the equations come to hold. Without the second
    term, directions that the equations hardly see take up what wrong masks do to the others.

    Attributes:
        equations: The equations.
        spectrum: The prior.
        point: Where the search stands.
        damping: Damping of the next step.
        iterations: Iterations of the conjugate gradients, at most, in the next step.
        most: Iterations of the conjugate gradients that no step exceeds.
        preconditioner: Made at the first step.
        passes: Products with J and its transpose so far.
        steps_without_progress: Steps in a row that stood still.
        reopenings: How often units near the kink were opened.
        moved: `[n]` root mean square of each image's last change.
        stage: What the search is at.
        fixed: `[n, C, H, W]` values that are set and not changed any more; empty at first.
        rounding_radius: How near to 8-bit values those must lie that are set next, in steps of 8 bits.
        steps_since_rounding: Steps since values were set.
        before: Images `[n, C, H, W]` at which the stages before ended, 2 at most: where values were set wrongly, these
            are better.
        center: `[1, C, H, W]` where the equations do not show the contrast: the batch's distance from this image may
            be multiplied by any factor. Steps then leave it as it is. None: they show it.
    """

    equations: Equations
    spectrum: NaturalSpectrum
    point: EquationsAt
    most: int
    damping: float = FIRST_DAMPING
    iterations: int = FIRST_INNER
    preconditioner: BlockCirculant | None = None
    passes: int = 0
    steps_without_progress: int = 0
    reopenings: int = 0
    moved: Tensor = field(default_factory=lambda: torch.zeros(0))
    stage: Stage = Stage.ALL_FREE
    fixed: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    rounding_radius: float = FIRST_NEARNESS
    steps_since_rounding: int = 0
    before: list[Tensor] = field(default_factory=list)
    center: Tensor | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do: explained, standing still, or no step helps."""
        still = self.last_change < NEGLIGIBLE
        explained = self.point.square < EXPLAINED
        enough = self.stage == Stage.ROUNDING and self.steps_since_rounding >= STEPS_BETWEEN
        return enough or explained or still or self.steps_without_progress >= PATIENCE or self.damping > MOST_DAMPING

    @property
    def last_change(self) -> float:
        """Largest root mean square by which an image changed in the last step; infinite before the first.

        Images whose signal is next to nothing beside the others' are left out: only their features are known, and the
        search never comes to rest on them.
        """
        if not len(self.moved):
            return float("inf")
        strength = self.equations.known.signal.flatten(1).norm(dim=1)
        return float(self.moved[strength >= FAINT * strength.max()].max())

    def go_on(self) -> bool:
        """Take a search that has ended up again where the client's images are of 8 bits; False where nothing is left.

        What a search comes to rest at is spoiled by what is missing of the gradient: its last digits, where it was read
        off two checkpoints. First the equations get weights that suit that. Then values that are surely those of 8 bits
        are set, so that fewer are left for the same equations, and so on.
        """
        unit = self.point.x.detach()
        if self.stage < Stage.ROUNDING:
            self.before = [*self.before, unit][: self.stage + 1]
        if self.stage == Stage.ALL_FREE:
            self._begin(Stage.WEIGHTED, self.equations.of_rounded(), unit)
            self.iterations = min(POLISHING_INNER, self.most)
            return True
        if self.stage == Stage.WEIGHTED:
            self.fixed = torch.zeros_like(unit, dtype=torch.bool)
        while self.rounding_radius < LAST_NEARNESS:
            sure = self.fixed | sure_values(unit, self.rounding_radius)
            more = int((sure & ~self.fixed).sum())
            if more and (more > FEWEST * int((~self.fixed).sum()) or bool(sure.all())):
                self.fixed = sure
                self._begin(Stage.ROUNDING, self.equations, torch.where(sure, to_levels(unit), unit))
                return True
            self.rounding_radius *= NEARNESS_GROWTH
        return False

    def _begin(self, stage: Stage, equations: Equations, x: Tensor) -> None:
        self.stage, self.equations, self.damping = stage, equations, FIRST_DAMPING
        self.steps_since_rounding = self.steps_without_progress = 0
        self.point = equations.at(x, self.point.free)
        self.preconditioner, self.moved = None, torch.zeros(0)

    def step(self) -> float:
        """One step. Returns the root of the sum of squared residuals, relative to that of the known quantities."""
        point, before = self.point, self.point.square
        self.steps_since_rounding += 1
        off = point.x.detach() - 0.5
        rough = float((off * self.spectrum.precision(off)).mean())
        mu = before / self.equations.count / max(rough, 1e-30)
        start = before + mu * rough * off.numel()

        change, cut_short = self._solve(point, off, mu)
        parts = self.equations.forward(point, *change)
        self.passes += 1
        predicted = sum(
            float((r + d).double().square().sum()) for r, d in zip(point.residuals, parts, strict=True)
        ) + self._prior(off + change[0], mu)
        length = 1.0
        for _ in range(TRIES):
            x, free = point.x.detach() + length * change[0], point.free + length * change[1]
            reached = self.equations.moved(x, free, point).square + self._prior(x - 0.5, mu)
            if reached < start:
                break
            length *= SHORTER
        else:
            self.damping *= 10
            self.steps_without_progress += 1
            return self._relative
        self.point = self.equations.at(x, free, point)
        self.moved = (length * change[0]).flatten(1).square().mean(1).sqrt()
        whole = length == 1
        self.damping = max(self.damping * (0.3 if whole else 1.5), LEAST_DAMPING)
        if whole and cut_short and reached - predicted < AS_PREDICTED * (start - predicted):
            self.iterations = min(int(self.iterations * GROWTH), self.most)
        self.steps_without_progress = (
            self.steps_without_progress + 1 if self.point.square > (1 - SETTLED) * before else 0
        )
        if self.steps_without_progress and self.reopenings < REOPENINGS:
            self._reopen()
        return self._relative

    def _reopen(self) -> None:
        """Where the search stands still, let units near the kink take either side."""
        more = self.equations.reopened(self.point)
        if more is not None:
            self.equations, free = more
            self.point = self.equations.at(self.point.x, free, self.point)
            self.reopenings, self.steps_without_progress = self.reopenings + 1, 0

    def undetermined(self, probe: Tensor) -> Tensor:
        """`[n]` how much of a random change of the images the equations do not show, where they show least of it.

        What a change e does to the equations is `J e`; least squares give back from that what they determine of it.
        What does not come back is free: pixels that no layer reads, colors that the first layer adds up, directions
        that hardly reach the features. The share is a root mean square over a neighborhood and its colors, the largest.

        Args:
            probe: `[n, C, H, W]` standard normal numbers.
        """
        point, nothing = self.point, torch.zeros_like(self.point.free)
        if self.preconditioner is None:
            self.preconditioner = BlockCirculant(lambda v: self._normal(point, (v, nothing))[0], probe)
        back, _, _ = conjugate_gradients(
            lambda v: self._normal(point, v),
            self._normal(point, (probe, nothing)),
            self._inverse(point, LEAST_DAMPING),
            PROBING_INNER,
            solved=PROBED_TO,
        )
        left = (probe - back[0]).square().mean(1, keepdim=True)
        around = F.avg_pool2d(left, PROBED, 1, PROBED // 2, count_include_pad=False)
        return around.sqrt().flatten(1).amax(1)

    @property
    def _relative(self) -> float:
        return float((self.point.square / len(self.point.x)) ** 0.5)

    def _prior(self, off: Tensor, mu: float) -> float:
        return mu * float((off * self.spectrum.precision(off)).double().sum())

    def _solve(self, point: EquationsAt, off: Tensor, mu: float) -> tuple[Pair, bool]:
        """The step, and whether the conjugate gradients ended before it was solved."""
        if self.preconditioner is None:
            nothing = torch.zeros_like(point.free)
            self.preconditioner = BlockCirculant(lambda v: self._normal(point, (v, nothing))[0], off)
        inverse, across = self._inverse(point, self.damping), self._project(point)

        def product(v: Pair) -> Pair:
            images, free = self._normal(point, v)
            images = across(images + mu * self.spectrum.precision(v[0]))
            return images + self.damping * v[0], free + self.damping * v[1]

        def preconditioned(v: Pair) -> Pair:
            images, free = inverse(v)
            return across(images), free

        pulled = self.equations.transposed(point, point.residuals)
        right = (across(-pulled[0] - mu * self.spectrum.precision(off)), -pulled[1])
        change, used, solved = conjugate_gradients(product, right, preconditioned, self.iterations)
        self.passes += 2 * used
        return change, not solved

    def _inverse(self, point: EquationsAt, damping: float) -> Callable[[Pair], Pair]:
        """An approximate inverse of `J^T J`, with that much added to its diagonal."""
        circulant = self.preconditioner
        assert circulant is not None
        circulant.damp(damping)
        # Open slopes: the diagonal is enough, each stands almost alone. Its scale is that of the whitened equations.
        weights = torch.ones_like(point.free)
        if point.patches:
            weights = 1 / (self._open_diagonal(point) + damping)
        return lambda v: (circulant(v[0]), weights * v[1])

    def _project(self, point: EquationsAt) -> Callable[[Tensor], Tensor]:
        """Removes from a step what it must not change: values already set and, where it is free, the contrast."""
        if self.center is None:
            return (lambda change: change * ~self.fixed) if len(self.fixed) else (lambda change: change)
        contrast = point.x.detach() - self.center
        square = float(contrast.double().square().sum())
        return lambda change: change - float((change.double() * contrast.double()).sum()) / square * contrast

    def _normal(self, point: EquationsAt, v: Pair) -> Pair:
        """`J^T J v`."""
        return self.equations.transposed(point, self.equations.forward(point, *v))

    def _open_diagonal(self, point: EquationsAt) -> Tensor:
        """`[m]` squared length of each open slope's column, taking the whitening as its mean gain."""
        columns = torch.zeros_like(point.free)
        for patches, whitening, wanted in zip(point.patches, point.whitenings, self.equations.gradients, strict=False):
            kernel, outputs = patches.shape[1] // wanted.shape[1], wanted.shape[0]
            # Whitened column of unit j: sum over k of W[:, (o, k)] patch[:, k]; its mean square over directions (o, k).
            per = whitening.matrix.square().sum(0).view(outputs, kernel)[self.equations.open[:, 1]].mean(1)
            columns = columns + per * patches.square().sum(1) * self.equations.gain(wanted, whitening) ** 2
        return columns
