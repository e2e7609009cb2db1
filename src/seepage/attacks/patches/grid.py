"""Stored images are whole numbers of levels: least squares for patches over whole numbers.

Each of the d columns of the patches X is a problem of its own. With pixels `k * step + start`, k whole,

    D^T (step k + start) = g       [width] equations for [P] whole numbers k, the same D for all columns

Directions of the patches that the gradients show poorly, or not at all, follow from the others: of the images that
agree with what is shown, only one is whole. So the basis `D^T step`, in standard deviations of the noise, is reduced
once (`core.lattice`), with a guess of each column beside it, and all columns are rounded in it.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from seepage.attacks.patches.solve import HALF_UNIT, UNKNOWN, MeasuredImage, SolvedImage, most_likely
from seepage.attacks.patches.tokens import PatchTokens
from seepage.base.lattice import reduced

ROUNDS = 4
"""Times that the columns are rounded, each time with a better guess of them."""
SAFE_GAP = 12.0
"""Smallest gap of a reduced basis, in standard deviations, that rounding is trusted across: half of it is an error."""
USUAL = 2.0
"""Residual of a column, in units of the median, up to which it helps to guess its neighbors."""
SHARP = 1e5
"""Standard deviations per level, at most, with which an equation takes part in the rounding."""
LARGEST = 8.0
"""Most that the noise may turn out above its estimate: sums round, too, which the estimate leaves out."""


@dataclass(frozen=True, eq=False)
class _Grid:
    """Entries of patches `[P, d]` as levels: an entry is `level * step + start`.

    Attributes:
        step: `[d]` of each column.
        start: `[P, d]`.
        count: Largest level.
    """

    step: Tensor
    start: Tensor
    count: int

    def levels(self, entries: Tensor) -> Tensor:
        return (entries - self.start) / self.step

    def entries(self, levels: Tensor) -> Tensor:
        return levels * self.step + self.start

    @property
    def mean_step(self) -> float:
        return float(self.step.abs().mean())


def on_grid(
    tokens: PatchTokens, measured: MeasuredImage, solved: SolvedImage, count: int
) -> tuple[SolvedImage, bool] | None:
    """The image whose pixels are whole levels, where there is one that explains the gradients; else None.

    It is returned only where every column explains its gradients up to their noise and lies in the range of levels.
    An image off the grid fails that: the whole numbers nearest to it miss its gradients by far more than noise.

    Beside it stands whether no rounding was near: the noise is that of float32, and the least gap of the reduced basis
    is `SAFE_GAP` times what was measured of noise and guess. Where not, a column may be wrong, and what else is known
    of the image has to decide.

    Args:
        tokens: Which pixels the patches are made of.
        measured: The equations.
        solved: Their most likely solution, from which the columns are guessed at first.
        count: Number of steps of the value range: 255 for images of 8 bits.
    """
    grid = _grid(tokens, measured, count)
    if grid is None:
        return None
    # A guess of the columns [P, d]; the standard deviation of its errors in directions that the equations do not show,
    # in levels; and of the noise in each row of the equations [width]: it rounds with its own size.
    guess, wide, noise = grid.levels(tokens.embed(solved.image)), float(UNKNOWN * count), _row_noise(measured)
    for turn in range(ROUNDS):
        try:
            whole, gap = _rounded(measured, grid, guess, wide, noise)
        except ArithmeticError:
            return None
        left = measured.products - measured.errors.T @ grid.entries(whole)  # G - D^T X [width, d]
        # Each row of the equations in its own standard deviations; a column with a wrong level misses by many.
        missed = (left / noise[:, None]).square().mean(0).sqrt()  # [d], about 1
        inside = ((whole >= 0) & (whole <= count)).all(0)
        # What was assumed of noise and guess is measured on what was rounded; a wrong column makes both larger.
        found, off = float(missed.max()), _off(measured, grid, guess - whole, noise)
        # Of noise that is not the rounding of sums, as in a difference of weights, the tails are not known.
        known = float(left.square().mean().sqrt()) < LARGEST * measured.rounding
        clear = known and gap > SAFE_GAP * max(found, off / wide, 1.0)
        fits = bool(inside.all()) and found < LARGEST
        if fits and (clear or turn == ROUNDS - 1):
            values = whole / count * (measured.high - measured.low) + measured.low
            image = tokens.adjoint(values / tokens.scale, measured.shape)
            return replace(solved, image=image, deviation=HALF_UNIT, whole=True), clear
        usual = inside & (missed <= USUAL * missed.median())
        noise = left[:, usual].square().mean(1).sqrt().clamp(min=1e-3 * float(left.square().mean().sqrt()))
        if usual.double().mean() < 0.5 or float(noise.square().mean().sqrt()) > LARGEST * measured.noise:
            return None
        guess = grid.levels(_from_neighbors(tokens, measured, grid.entries(whole), usual))
        wide = max(1.0, _off(measured, grid, (guess - whole)[:, usual], noise))
    return None


def _row_noise(measured: MeasuredImage) -> Tensor:
    """`[width]` the noise of each row of the equations, before anything was rounded."""
    even = torch.full((len(measured.products),), measured.noise, dtype=torch.float64)
    if measured.noise > LARGEST * measured.rounding:
        return even  # it was added
    # A sum of float32 numbers rounds in proportion to their size: row j of G, and D's column j through the patches. The
    # mean square over rows stays that of the noise.
    rows = measured.products.square().mean(1).sqrt() + measured.errors.norm(dim=0)
    by_size: Tensor = measured.noise * rows / rows.square().mean().sqrt() + 0.01 * even
    return by_size


def _grid(tokens: PatchTokens, measured: MeasuredImage, count: int) -> _Grid | None:
    """The levels in units of what the layer reads; None where patches overlap or leave out pixels, or scales differ."""
    pixels, scale = tokens.pixels, tokens.scale
    every = pixels.flatten().sort().values
    whole = torch.equal(every, torch.arange(torch.Size(measured.shape).numel()))
    if not whole or not tokens.scaled_alike:
        return None
    return _Grid(scale[0] * (measured.high - measured.low) / count, tokens.shift + scale * measured.low, count)


def _rounded(measured: MeasuredImage, grid: _Grid, guess: Tensor, wide: float, noise: Tensor) -> tuple[Tensor, float]:
    """`[P, d]` whole levels near equations and guess, and the least gap of the basis, in standard deviations."""
    # D^T (step k + start) = g becomes (D^T step / noise) k = (g - D^T start) / noise: unit noise, unknowns in levels.
    weight = grid.mean_step / noise[:, None]  # [width, 1]
    # In the axes of D, levels per standard deviation s are cut off: more is of no use, and beyond float64 in the end.
    v, s, ut = torch.linalg.svd(measured.errors.T * weight, full_matrices=False)  # [width, r], [r], [r, P]
    sharp = s.clamp(max=SHARP)
    # Least squares over whole k of |S U^T k - V^T target|^2 + |(k - guess) / wide|^2: [r + P, P], reduced once.
    basis = reduced(np.vstack([sharp[:, None] * ut, np.eye(len(measured.errors)) / wide]))
    # The columns differ in their steps by the normalization of the colors: targets are brought to the mean one.
    target = (measured.products - measured.errors.T @ grid.start) / grid.step * weight
    shown = torch.where(s > 0, sharp / s, 0.0)[:, None] * (v.T @ target)
    targets = torch.cat([shown, guess.clamp(0, grid.count) / wide])
    return torch.from_numpy(basis.nearest(targets.numpy())), float(basis.gaps.min())


def _off(measured: MeasuredImage, grid: _Grid, off: Tensor, noise: Tensor) -> float:
    """Root mean square of errors `[P, columns]` of a guess, in levels, per direction that the gradients do not show."""
    u, s, _ = measured.factors
    noise = noise.square().mean().sqrt()
    # The gradients determine u_k^T X to noise / s_k; those known to less than one level are left out. [P, shown]
    shown = u[:, noise <= s * grid.mean_step]
    rest = off - shown @ (shown.T @ off)  # [P, columns], in P - shown dimensions
    return float((rest.square().sum() / (max(len(u) - shown.shape[1], 1) * off.shape[1])).sqrt())


def _from_neighbors(tokens: PatchTokens, measured: MeasuredImage, entries: Tensor, known: Tensor) -> Tensor:
    """`[P, d]` each column as others have it: every second pixel from those between, like the squares of a board."""
    height, width = measured.shape[-2:]
    first = tokens.pixels[0]  # [d] the first patch's pixels; all patches are cut alike
    even = (first // width % height + first % width) % 2 == 0  # [d]
    odd_known = most_likely(tokens, measured, known=(known & ~even, entries))
    even_known = most_likely(tokens, measured, known=(known & even, entries))
    return torch.where(even, tokens.embed(odd_known), tokens.embed(even_known))
