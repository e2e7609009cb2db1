"""Step III, sample by sample: find the input whose features are the recovered ones.

First a robust search: a smoothed L1 distance, with total variation and pixel noise that both fade out. It finds the
right pattern of active units where plain least squares stalls. Then Gauss-Newton steps, which are exact once the
pattern is right. The residual `||h(x) - h|| / ||h||` certifies each sample without the truth.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from seepage.base.algebra.derivative import Derivative
from seepage.base.images import neighbor_differences
from seepage.base.nn import generator
from seepage.base.solvers import conjugate_gradients

Features = Callable[[Tensor], Tensor]
"""From `[n, *block]` to `[n, d1]`, differentiable."""
FADE = 0.6
"""Share of the robust search's steps after which noise and variation are gone."""
CERTAIN = 1e-4
"""Residual below which a sample is certain."""
FIRST_STEP = 0.1
"""First step size, in units of the value range; it falls to zero along a cosine."""
VARIATION = 5.0
"""First weight of the total variation (L1, images only), beside features in units of their mean distance at first."""
SMOOTH = 0.007
"""Feature distances below this (in units of their mean at the start) count quadratically."""
CHUNK = 50
"""Samples at a time."""
STALLED = 0.7
"""Factor by which a Gauss-Newton step must lower a sample's residual for another one to be made."""


@dataclass(frozen=True, kw_only=True)
class InversionSettings:
    """How step III searches.

    Args:
        steps: Adam steps of the robust search: the first attempt's, then those of fresh starts for samples that are
            not certain yet.
        noise: First deviation of the noise added after each step, in units of the value range.
        polish: Gauss-Newton steps at most.
        inner: Conjugate-gradient steps in each.
        certain: Residual below which a sample is certain and is let be.
    """

    steps: tuple[int, ...] = (30, 250, 350)
    noise: float = 0.02
    polish: int = 6
    inner: int = 15
    certain: float = CERTAIN


def reads_input(features: Features, like: Tensor) -> bool:
    """Whether the features are the flattened block itself, so that there is nothing to invert."""
    with torch.no_grad():
        probe = torch.rand(like.shape, generator=generator(0, "probe")).to(like)
        seen = features(probe)
    return seen.shape == probe.flatten(1).shape and torch.equal(seen, probe.flatten(1))


def invert(
    features: Features,
    targets: Tensor,
    like: Tensor,
    value_range: tuple[float, float],
    search: InversionSettings,
    *,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Inputs whose features are `targets`.

    A fresh start replaces a sample only where its residual is smaller, so no residual rises with more attempts in
    `search.steps`.

    Args:
        features: The layers before the fully connected one, at known weights.
        targets: `[n, d1]`.
        like: A tensor of the shape of one block, `[1, *block]`, for type and device.
        value_range: Smallest and largest value of an input.
        search: How to search.
        seed: Seeds the noise.

    Returns:
        `[n, *block]` inputs and `[n]` relative residuals.
    """
    found, residuals = _attempt(features, targets, like, value_range, search, search.steps[0], (seed, 0))
    for attempt, steps in enumerate(search.steps[1:], start=1):
        doubtful = (residuals > search.certain).nonzero().squeeze(1)
        if not len(doubtful):
            break
        again, left = _attempt(features, targets[doubtful], like, value_range, search, steps, (seed, attempt))
        better = left < residuals[doubtful]
        found[doubtful[better]] = again[better]
        residuals[doubtful[better]] = left[better]
    return found, residuals


def _attempt(
    features: Features,
    targets: Tensor,
    like: Tensor,
    value_range: tuple[float, float],
    search: InversionSettings,
    steps: int,
    key: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    parts = []
    for number, target in enumerate(targets.split(CHUNK)):
        noise = generator(key[0], f"step three/{key[1]}", number)
        x = robust_search(features, target, like, value_range, search, steps, noise)
        parts.append(gauss_newton(features, target, x, value_range, search))
    x = torch.cat(parts) if parts else like[:0]
    return x, residual(features, targets, x, CHUNK)


def residual(features: Features, targets: Tensor, x: Tensor, chunk: int = 100) -> Tensor:
    """`[n]` `||h(x) - h|| / ||h||`."""
    with torch.no_grad():
        parts = [(features(a) - b).norm(dim=1) for a, b in zip(x.split(chunk), targets.split(chunk), strict=True)]
    return torch.cat(parts) / targets.norm(dim=1).clamp(min=1e-12) if parts else targets.new_zeros(0)


def robust_search(
    features: Features,
    target: Tensor,
    like: Tensor,
    value_range: tuple[float, float],
    search: InversionSettings,
    steps: int,
    noise: Generator,
) -> Tensor:
    """Adam on the smoothed L1 distance of features, from mid-range."""
    low, high = value_range
    span = high - low
    x = like.new_full((len(target), *like.shape[1:]), (low + high) / 2).requires_grad_()
    with torch.no_grad():
        # The scale of the features, so that the weight of the variation means the same for every network.
        # One number for the batch: the mean distance of features at mid-range, where the search starts.
        scale = (target - features(x[:1])).abs().mean().clamp(min=1e-12)
    # A second moment of 100 steps' memory: searches are short, and torch's default of 1,000 would not warm up.
    adam = torch.optim.Adam([x], betas=(0.9, 0.99), eps=1e-12)
    for step in range(steps):
        faded = max(0.0, 1 - step / (steps * FADE))
        # sqrt(r^2 + s^2): |r| far out, so that units of a wrong pattern do not dominate, and smooth near zero.
        loss = ((features(x) - target) / scale).pow(2).add(SMOOTH**2).sqrt().sum()
        if faded and x.ndim == 4:
            loss = loss + VARIATION * faded * sum(part.sum() for part in neighbor_differences(x)) / span
        (x.grad,) = torch.autograd.grad(loss, x)
        adam.param_groups[0]["lr"] = FIRST_STEP * span * 0.5 * (1 + math.cos(math.pi * step / steps))
        adam.step()
        with torch.no_grad():
            if faded:
                # Noise shakes units whose pattern is wrong over their threshold; it fades before the search settles.
                x += search.noise * span * faded * torch.randn(x.shape, generator=noise).to(x)
            x.clamp_(low, high)
    return x.detach()


def gauss_newton(
    features: Features, target: Tensor, x: Tensor, value_range: tuple[float, float], search: InversionSettings
) -> Tensor:
    """Gauss-Newton with conjugate gradients, per sample, inside the value range; never worse than the start.

    Samples whose residual is at float32's rounding, or hardly falls any more, are left alone.
    """
    x = x.clone()
    left = residual(features, target, x)
    # At a wrong pattern of active units the steps gain little, and more of them are wasted.
    rounded = 2 * torch.finfo(torch.float32).eps  # a relative residual that is float32's rounding
    active = left > rounded
    for _ in range(search.polish):
        todo = active.nonzero().squeeze(1)
        if not len(todo):
            break
        x[todo] = _newton_step(features, target[todo], x[todo], value_range, search.inner)
        now = residual(features, target[todo], x[todo])
        active[todo] = (now < STALLED * left[todo]) & (now > rounded)
        left[todo] = now
    return x


def _newton_step(features: Features, target: Tensor, x: Tensor, value_range: tuple[float, float], inner: int) -> Tensor:
    x = x.detach().requires_grad_()
    h = features(x)
    error = (target - h).detach()  # [n, d1]
    slope = Derivative([h], x)  # J; never as a matrix
    # Gauss-Newton: the least |J d - e| for each sample, by conjugate gradients on J^T J d = J^T e.
    step = conjugate_gradients(
        lambda d: slope.transposed(slope.forward(d)),
        slope.transposed([error]),
        steps=inner,
        tolerance=0.0,
        by_row=True,
    )
    return _line_search(features, target, x.detach(), step, value_range, error.pow(2).sum(1))


def _line_search(
    features: Features, target: Tensor, x: Tensor, step: Tensor, value_range: tuple[float, float], best: Tensor
) -> Tensor:
    chosen = x
    shape = (-1, *[1] * (x.ndim - 1))
    for size in (1.0, 0.5, 0.25):
        guess = (x + size * step).clamp(*value_range)
        with torch.no_grad():
            error = (features(guess) - target).pow(2).sum(1)
        # Each sample takes the longest of the three steps that helps it, or none.
        better = error < best
        chosen = torch.where(better.reshape(shape), guess, chosen)
        best = torch.where(better, error, best)
    return chosen
