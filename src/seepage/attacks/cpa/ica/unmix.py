"""Blind source separation: symmetric FastICA, then non-orthogonal quasi-Newton maximum likelihood."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from seepage.base.clock import look
from seepage.base.rounding import FLOAT32_NETWORK


def whitener(signals: Tensor) -> Tensor:
    """`[n, n]` matrix that gives the rows of `signals [n, p]` unit mean square and no correlation.

    Second moments about zero: differences of images have no mean worth removing, and an unremoved mean keeps the
    rows exact linear images of the sources.
    """
    # E[y y^T] = V D V^T, and the whitener is D^-1/2 V^T.
    moments, vectors = torch.linalg.eigh(signals @ signals.T / signals.shape[1])
    whitening: Tensor = (vectors / moments.clamp(min=moments.max() * 1e-12).sqrt()).T
    return whitening


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
        look()
        # Fixed point for every row at once: w <- E[x tanh(w x)] - E[1 - tanh^2(w x)] w, then decorrelate. [n, p]
        squashed = (rotation @ white).tanh_()
        slope = 1 - squashed.square().mean(1)
        new = symmetric(squashed @ white.T / white.shape[1] - slope[:, None] * rotation)
        # A row may flip its sign from one iteration to the next and is the same one.
        turned = ((new * rotation).sum(1).abs() - 1).abs().max()
        rotation = new
        if turned < tolerance:
            break
    return rotation


@dataclass(frozen=True, kw_only=True)
class SparseScore:
    """A heavy-tailed score over the fields at one place, each source with a covariance of its own.

    With `s = y^T P y / f` the density falls like `(s + width)^(-f/2)`, so `psi(y) = w P y`, `w = 1 / (s + width)`:
    a multivariate t. A source's precision `P` is Tyler's robust estimate; photographs differ in how their contrast is
    spread over colors and directions, and that separates them.

    Args:
        width: Where the density turns from a hump to a tail, in units of the fields' mean square.
        shrink: How far each covariance is drawn to the identity.
    """

    width: float = 0.02
    shrink: float = 0.03

    def precisions(self, signals: Tensor, start: Tensor | None = None) -> Tensor:
        """`[n, f, f]` each source's precision, of `signals [n, f, p]`, by a few steps of Tyler's fixed point."""
        n, f, p = signals.shape
        identity = torch.eye(f).to(signals)
        found = identity.expand(n, f, f) if start is None else start
        for _ in range(6 if start is None else 2):
            # Tyler: Sigma = E[y y^T / (s + width)], s = y^T Sigma^-1 y / f; the scale is free and put to mean trace
            # 1. [n, f, f]
            weighted = signals * self.weights(signals, found)
            covariance = weighted @ signals.mT / p
            size = covariance.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-30)[:, None, None]
            found = torch.linalg.inv((1 - self.shrink) * covariance / size + self.shrink * identity)
        return found

    def weights(self, signals: Tensor, precisions: Tensor) -> Tensor:
        """`[n, f, p]` signals to weights `[n, 1, p]`."""
        return 1 / ((signals * (precisions @ signals)).mean(1, keepdim=True) + self.width)


REFIT_INTERVAL = 5
"""Iterations between two fits of the sources' covariances and second derivatives."""


def maximum_likelihood(
    fields: Tensor,
    rows: Tensor,
    *,
    score: SparseScore,
    steps: int = 300,
) -> Tensor:
    """Quasi-Newton maximum likelihood in relative form: `rows <- (I + E) rows`, no orthogonality asked.

    The Hessian is approximated by its 2 x 2 blocks (Pham and Garat 1997; Palmer et al. 2008): with the score's
    moments `H_ij`, each pair `E_ij, E_ji` is solved alone. Steps are capped at a spectral norm of 0.5, and shortened
    where they turn back.

    Args:
        fields: `[n, f, p]` the mixtures.
        rows: `[n, n]` start.
        score: Density of the sources.
        steps: Most iterations; it ends when a step's entries are next to nothing in root mean square.

    Returns:
        `[n, n]` unmixing rows, each scaled to a score moment of 1.
    """
    signals = (rows @ fields.flatten(1)).view_as(fields)
    precisions, moments = None, torch.empty(0)
    pace, last = 1.0, torch.zeros_like(rows)
    for turn in range(steps):
        look()
        before, size = rows, signals.square().mean((1, 2)).sqrt()[:, None]
        rows, signals = rows / size, signals / size[:, :, None]
        # Covariances and second derivatives change slowly; the gradient is made anew in every turn.
        if precisions is None or turn % REFIT_INTERVAL == 0:
            precisions = score.precisions(signals, precisions)
            gradient, moments = curvature(signals, score, precisions)
        else:
            gradient = score_gradient(signals, score, precisions)[0]
        step = pair_step(gradient, moments)
        if not bool(step.isfinite().all()):  # a source or its covariance came to nothing, and there is no step
            return before
        # Few places carry much weight, so blocks larger than 2 x 2 couple and full steps may go back and forth.
        pace = max(0.3, 0.7 * pace) if float((step * last).sum()) < 0 else pace
        last = step
        step = step * capped(step, pace)
        # Relative step rows <- (I + E) rows; the signals go along, so no product with the fields is needed. O(n^2 f p)
        rows = rows + step @ rows
        signals = signals + (step @ signals.flatten(1)).view_as(signals)
        if float(step.square().mean().sqrt()) < FLOAT32_NETWORK:
            break
    return rows


def pair_step(gradient: Tensor, moments: Tensor) -> Tensor:
    """`[n, n]` the Newton step E of the pairs `E_ij, E_ji`, each by itself: `[H_ij 1; 1 H_ji] (E_ij, E_ji) = -g`."""
    # E_ij = -(H_ji g_ij - g_ji) / (H_ij H_ji - 1). The determinant is 0 where the score is linear, as of Gaussian
    # sources, whose rotation the likelihood leaves open; the floor of 0.1 bounds the step there.
    return (gradient.T - moments.T * gradient) / (moments * moments.T - 1).clamp(min=0.1)


def capped(step: Tensor, pace: float = 1.0) -> Tensor:
    """The factor, at most `pace`, that brings a relative step `[n, n]` to a spectral norm of at most 0.5.

    Then `I + E` is well conditioned (singular values from 0.5 to 1.5), and no source is lost in a step.
    """
    factor: Tensor = (0.5 / torch.linalg.matrix_norm(step, 2)).clamp(max=pace)
    return factor


def score_gradient(signals: Tensor, score: SparseScore, precisions: Tensor) -> tuple[Tensor, Tensor]:
    """The mean negative log likelihood's derivative by a relative change `I + E` of the rows.

    Args:
        signals: `[n, f, p]` unmixed fields, each of unit mean square.
        score: Density of the sources.
        precisions: `[n, f, f]` of each source.

    Returns:
        `[n, n]` derivatives, zero on the diagonal as each row's scale is free, and `[n, 1]` each row's own score
        moment, by which its derivatives are divided.
    """
    # psi(y_i) = w_i P_i y_i at every place. [n, f, p]
    turned = score.weights(signals, precisions) * (precisions @ signals)
    gradient = turned.flatten(1) @ signals.flatten(1).T / turned[0].numel()  # E[psi(y_i) y_j]
    own = gradient.diagonal()[:, None].clone()
    return (gradient / own).fill_diagonal_(0), own


def curvature(signals: Tensor, score: SparseScore, precisions: Tensor) -> tuple[Tensor, Tensor]:
    """First and second derivatives of the mean negative log likelihood; arguments as in `score_gradient`.

    Returns:
        `[n, n]` as of `score_gradient`, and `[n, n]` second derivatives by each `E_ij`; the pair `E_ij, E_ji` is
        coupled with weight 1.
    """
    gradient, own = score_gradient(signals, score, precisions)
    weights = score.weights(signals, precisions)[:, 0]  # [n, p]
    # The derivative of psi by y taken as w P: the part that stays positive (as in Gauss-Newton).
    moments = torch.zeros_like(gradient)  # E[w_i y_j^T P_i y_j]
    for f in range(signals.shape[1]):
        for g in range(f + 1):
            size = precisions[:, f, g, None] * (1 if f == g else 2)
            moments += size * (weights @ (signals[:, f] * signals[:, g]).T)
    return gradient, moments / signals[0].numel() / own


def unmix(
    fields: Tensor,
    *,
    draw: Generator,
    steps: int = 300,
) -> Tensor:
    """Whiten, FastICA, maximum likelihood.

    Args:
        fields: `[n, f, p]` mixtures, filtered so that the sources are sparse.
        draw: Source of the random start.
        steps: Most quasi-Newton iterations.

    Returns:
        `[n, n]` rows; `rows @ mixtures` are the sources up to order, sign and scale.
    """
    flat = fields.flatten(1)
    whitening = whitener(flat)
    white = whitening @ flat
    # Orthogonal rows first, which finds all sources at once; then rows of any angle, since the sources' correlation
    # over a finite number of pixels is not zero.
    rotation = fast_ica(white, random_rotation(len(flat), draw, flat))
    return maximum_likelihood(fields, rotation @ whitening, score=SparseScore(), steps=steps)


def unmix_rest(fields: Tensor, rows: Tensor, solved: Tensor, *, draw: Generator) -> Tensor:
    """Unmix afresh what is left when the mixing columns of the solved sources are projected out.

    Projecting needs only the solved columns of the mixing matrix `rows^-1`. Subtracting the solved sources instead
    would add their errors to what is left and bury weak sources.

    Args:
        fields: `[n, f, p]` mixtures.
        rows: `[n, n]` unmixing so far.
        solved: `[n]` bool, which rows are right.
        draw: Source of the random start.

    Returns:
        `[n, n]`: the solved rows first, then the new ones.
    """
    columns = torch.linalg.inv(rows)[:, solved]  # [n, s]
    # mixing = rows^-1: column s holds how strongly source s is in each mixture. What is orthogonal to the solved
    # columns holds nothing of the solved sources, whatever their own errors.
    basis = torch.linalg.qr(columns, mode="complete")[0][:, columns.shape[1] :].T  # [n - s, n], blind to the solved
    rest = (basis.to(fields) @ fields.flatten(1)).unflatten(1, fields.shape[1:])
    return torch.cat([rows[solved], unmix(rest, draw=draw).to(rows) @ basis])
