"""Blind source separation: symmetric FastICA, then non-orthogonal quasi-Newton maximum likelihood."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from seepage.attacks.ica.spectrum import whitener


def random_rotation(n: int, draw: Generator, like: Tensor) -> Tensor:
    """A random orthogonal `[n, n]` matrix."""
    rotation: Tensor = torch.linalg.qr(torch.randn((n, n), generator=draw, dtype=torch.float64))[0].to(like)
    return rotation


def symmetric(rows: Tensor) -> Tensor:
    """The orthogonal matrix nearest to `rows [n, n]`: `(rows rows^T)^(-1/2) rows`."""
    u, _, v = torch.linalg.svd(rows)
    nearest: Tensor = u @ v
    return nearest


def fast_ica(white: Tensor, start: Tensor, *, steps: int = 150, tolerance: float = 1e-3) -> Tensor:
    """Symmetric FastICA with the log-cosh contrast (Hyvarinen 1999) on whitened signals.

    Args:
        white: `[n, p]` rows of unit mean square, uncorrelated.
        start: `[n, n]` orthogonal start.
        steps: Most iterations.
        tolerance: Ends when no row turns by more than this in an iteration (one minus the cosine).

    Returns:
        `[n, n]` orthogonal rotation; its rows times `white` are the sources.
    """
    rotation = start
    for _ in range(steps):
        squashed = (rotation @ white).tanh_()
        slope = 1 - squashed.square().mean(1)
        new = symmetric(squashed @ white.T / white.shape[1] - slope[:, None] * rotation)
        turned = ((new * rotation).sum(1).abs() - 1).abs().max()
        rotation = new
        if turned < tolerance:
            break
    return rotation


@dataclass(frozen=True, kw_only=True)
class SparseScore:
    """A spherical heavy-tailed score over the fields at one place: `psi(y) = w y`, `w = 1 / (mean y^2 + width)`.

    Args:
        width: Where the density turns from a hump to a tail, in units of the fields' mean square.
    """

    width: float = 0.05

    def weights(self, signals: Tensor) -> Tensor:
        """`[n, f, p]` signals to weights `[n, 1, p]`."""
        return 1 / (signals.square().mean(1, keepdim=True) + self.width)


def maximum_likelihood(
    fields: Tensor,
    rows: Tensor,
    *,
    score: SparseScore,
    steps: int = 300,
    tolerance: float = 1e-4,
) -> Tensor:
    """Quasi-Newton maximum likelihood in relative form: `rows <- (I + E) rows`, no orthogonality asked.

    The Hessian is approximated by its 2 x 2 blocks (Pham and Garat 1997; Palmer et al. 2008): with the score's
    moments `H_ij`, each pair `E_ij, E_ji` is solved alone. Steps are capped at a spectral norm of 0.5.

    Args:
        fields: `[n, f, p]` the mixtures.
        rows: `[n, n]` start.
        score: Density of the sources.
        steps: Most iterations.
        tolerance: Ends when a step's entries are below this in mean square.

    Returns:
        `[n, n]` unmixing rows, each scaled to a score moment of 1.
    """
    signals = (rows @ fields.flatten(1)).view_as(fields)
    for _ in range(steps):
        size = signals.square().mean((1, 2)).sqrt()[:, None]
        rows, signals = rows / size, signals / size[:, :, None]
        gradient, moments = curvature(signals, score)
        step = (moments.T * gradient - gradient.T) / (moments * moments.T - 1).clamp(min=0.1)
        length = torch.linalg.matrix_norm(step, 2)
        step = -step * (0.5 / length).clamp(max=1)
        rows = rows + step @ rows
        signals = signals + (step @ signals.flatten(1)).view_as(signals)
        if float(step.square().mean().sqrt()) < tolerance:
            break
    return rows


def curvature(signals: Tensor, score: SparseScore) -> tuple[Tensor, Tensor]:
    """First and second order of the mean negative log likelihood under a relative change `I + E` of the rows.

    Args:
        signals: `[n, f, p]` unmixed fields, each of unit mean square.
        score: Density of the sources.

    Returns:
        `[n, n]` gradient with respect to `E` (zero on the diagonal, as each row's scale is free), and `[n, n]`
        second derivatives with respect to each `E_ij`; the pair `E_ij, E_ji` is coupled with weight 1.
    """
    weights = score.weights(signals)
    count = signals.shape[1] * signals.shape[2]
    gradient = (weights * signals).flatten(1) @ signals.flatten(1).T / count  # E[psi(y_i) y_j]
    moments = weights.squeeze(1) @ signals.square().mean(1).T / signals.shape[2]  # E[w_i y_j^2]
    diagonal = gradient.diagonal()[:, None].clone()
    return (gradient / diagonal).fill_diagonal_(0), moments / diagonal


def unmix(
    fields: Tensor,
    *,
    draw: Generator,
    score: SparseScore | None = None,
    fast_steps: int = 150,
    steps: int = 300,
) -> Tensor:
    """Whiten, FastICA, maximum likelihood.

    Args:
        fields: `[n, f, p]` mixtures, filtered so that the sources are sparse.
        draw: Source of the random start.
        score: Density of the sources; default `SparseScore()`.
        fast_steps: Most FastICA iterations.
        steps: Most quasi-Newton iterations.

    Returns:
        `[n, n]` rows; `rows @ mixtures` are the sources up to order, sign and scale.
    """
    flat = fields.flatten(1)
    whitening = whitener(flat)
    white = whitening @ flat
    rotation = fast_ica(white, random_rotation(len(flat), draw, flat), steps=fast_steps)
    return maximum_likelihood(fields, rotation @ whitening, score=score or SparseScore(), steps=steps)


def unmix_rest(fields: Tensor, rows: Tensor, solved: Tensor, *, draw: Generator, steps: int = 300) -> Tensor:
    """Unmix afresh what is left when the mixing columns of the solved sources are projected out.

    Projecting needs only the solved columns of the mixing matrix `rows^-1`. Subtracting the solved sources instead
    would add their errors to what is left and bury weak sources.

    Args:
        fields: `[n, f, p]` mixtures.
        rows: `[n, n]` unmixing so far.
        solved: `[n]` bool, which rows are right.
        draw: Source of the random start.
        steps: Most quasi-Newton iterations.

    Returns:
        `[n, n]`: the solved rows first, then the new ones.
    """
    columns = torch.linalg.inv(rows)[:, solved]  # [n, s]
    basis = torch.linalg.qr(columns, mode="complete")[0][:, columns.shape[1] :].T  # [n - s, n], blind to the solved
    rest = (basis.to(fields) @ fields.flatten(1)).unflatten(1, fields.shape[1:])
    return torch.cat([rows[solved], unmix(rest, draw=draw, steps=steps).to(rows) @ basis])
