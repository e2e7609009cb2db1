"""Steps I and II by least squares: exact as soon as the rounds' index vectors have rank N."""

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.attacks.base import Inapplicable
from seepage.attacks.cafe.steps import GRADIENT_ROUNDING, Recovered, cover, gradients, step_one, step_two, zero_rows
from seepage.attacks.cafe.target_layers import TargetLayer
from seepage.federation.types import Transcript

MAX_FEATURE_ERROR = 0.1
"""Estimated relative error of h above which a sample counts as not identifiable."""


def solve(
    transcript: Transcript,
    rounds: Sequence[int],
    batches: Sequence[Tensor],
    samples: int,
    layers: Sequence[TargetLayer],
    biases: Sequence[Tensor],
    *,
    weight_rounds: int = 1,
) -> list[Recovered]:
    """V and H of every layer.

    Args:
        transcript: The rounds.
        rounds: The numbers of those to use.
        batches: Their samples.
        samples: N.
        layers: The layers to read.
        biases: `[T, d2]` bias gradients of each.
        weight_rounds: Read the weight gradients of so many covers of the samples (one is enough without noise); 0:
            of all rounds. Several guesses of one sample are averaged by their error.

    Raises:
        Inapplicable: Where the rounds determine no sample at all.
    """
    found = []
    for bias in biases:
        v, v_known = step_one(batches, bias, samples)
        d1 = 0
        found.append(_empty(v, v_known, d1, batches))
    if not bool(found[0].v_known.any()):
        raise Inapplicable(
            f"the index vectors of {len(rounds)} rounds have a rank that determines none of {samples} samples",
            f"record about {samples + samples // 40 + 1} rounds, or use mode='few_rounds'",
        )
    chosen = cover(batches, samples, weight_rounds) if weight_rounds else list(range(len(rounds)))
    names = [layer.weight for layer in layers]
    sums = [torch.zeros(0)] * len(layers)
    mass = [torch.zeros(samples, dtype=torch.float64) for _ in layers]
    for place in chosen:
        weights = gradients(transcript, rounds[place], names)
        for m, layer in enumerate(layers):
            weight = weights[layer.weight].double().cpu()
            if not sums[m].numel():
                sums[m] = torch.zeros(samples, weight.shape[1], dtype=torch.float64)
            _add_batch(found[m], batches[place], weight, sums[m], mass[m])
    for m, one in enumerate(found):
        one.known = mass[m] > 0
        one.h = sums[m] / mass[m].clamp(min=1e-300)[:, None]
        one.spread = torch.where(one.known, mass[m].clamp(min=1e-300).rsqrt(), torch.inf)
    left = [m for m, one in enumerate(found) if bool((one.v_known & ~one.zero_gradient & ~one.known).any())]
    if left and bool(found[0].v_known.all()):
        _solve_jointly(transcript, rounds, batches, layers, found, left)
    return found


def _solve_jointly(
    transcript: Transcript,
    rounds: Sequence[int],
    batches: Sequence[Tensor],
    layers: Sequence[TargetLayer],
    found: Sequence[Recovered],
    which: Sequence[int],
) -> None:
    """Step II over all rounds at once, for layers whose V has not full rank inside a batch (two classes, say).

    The normal equations of equation 8 are `((S^T S) o (V V^T)) H = sum_t S_t^T V G_t`, regular as soon as S has rank
    N and no v is zero (theorem 2's proof, without its condition on the rank of V).
    """
    samples = len(found[0].v)
    table = torch.zeros(len(batches), samples, dtype=torch.float64)
    for t, batch in enumerate(batches):
        table[t, batch] = 1 / len(batch)
    # (S^T S) [N, N]: how often, and with what weight, two samples are in one round.
    shared = table.T @ table
    names = [layers[m].weight for m in which]
    right = [torch.zeros_like(found[m].h) for m in which]
    power = [0.0] * len(which)
    for t, batch in zip(rounds, batches, strict=True):
        weights = gradients(transcript, t, names)
        for place, m in enumerate(which):
            weight = weights[layers[m].weight].double().cpu()
            # Right side of the normal equations, S_t^T V G_t, a round at a time: only its samples' rows change. [k, d1]
            right[place][batch] += found[m].v[batch] @ weight / len(batch)
            power[place] += float(weight.pow(2).mean())
    for place, m in enumerate(which):
        one = found[m]
        live = (~one.zero_gradient).nonzero().squeeze(1)
        scale = one.v[live].norm(dim=1)
        # Rows of V scaled to unit length, so that the rank is not a matter of their sizes; undone below.
        unit = one.v[live] / scale[:, None]
        # The Schur product of two positive matrices is positive; regular where S has rank N (theorem 2).
        values, vectors = torch.linalg.eigh(shared[live][:, live] * (unit @ unit.T))
        keep = values > 1e-9 * values[-1]
        solved = vectors[:, keep] / values[keep] @ (vectors[:, keep].T @ (right[place][live] / scale[:, None]))
        h = solved / scale[:, None]
        # By how much noise in the gradients is amplified on the way to row n: the root of the inverse's diagonal.
        gain = (vectors[:, keep].pow(2) / values[keep]).sum(1).sqrt() / scale
        noise = GRADIENT_ROUNDING * (power[place] / len(rounds) * h.shape[1]) ** 0.5
        spread = gain * noise / h.norm(dim=1).clamp(min=1e-300)
        fine = (vectors[:, ~keep].pow(2).sum(1) < 1e-6) & (spread < MAX_FEATURE_ERROR)
        # A batch that determined a sample by itself keeps its answer unless this one's error is smaller.
        better = fine & (spread < one.spread[live])
        one.h[live[better]] = h[better]
        one.spread[live[better]] = spread[better]
        one.known[live[better]] = True


def _empty(v: Tensor, v_known: Tensor, d1: int, batches: Sequence[Tensor]) -> Recovered:
    n = len(v)
    return Recovered(
        v=v,
        h=torch.zeros(n, d1, dtype=torch.float64),
        v_known=v_known,
        known=torch.zeros(n, dtype=torch.bool),
        zero_gradient=zero_rows(v, v_known),
        spread=torch.full((n,), torch.inf, dtype=torch.float64),
        group=torch.arange(n),
    )


def _add_batch(one: Recovered, batch: Tensor, weight: Tensor, sums: Tensor, mass: Tensor) -> None:
    """Solve one batch and add its rows, weighted by the inverse square of their error."""
    if not bool(one.v_known[batch].all()):
        return  # the unknown rows' part of the gradient cannot be told from the others'
    live = batch[~one.zero_gradient[batch]]
    if not len(live):
        return
    # V_s^T H_s = K grad W for the samples of this batch that have a gradient at all. [k, d1]
    h, rows_known, error = step_two(one.v[live], weight * len(batch))
    # What the gradients' rounding does to each row, relative to the row itself.
    error = (
        error
        * GRADIENT_ROUNDING
        * weight.norm()
        * len(batch)
        / weight.shape[0] ** 0.5
        / h.norm(dim=1).clamp(min=1e-300)
    )
    ok = rows_known & torch.isfinite(h).all(1) & (error < MAX_FEATURE_ERROR)
    # Guesses of one sample from several rounds are averaged, each by one over its variance.
    trust = error[ok].clamp(min=1e-300).pow(-2)
    sums[live[ok]] += trust[:, None] * h[ok]
    mass[live[ok]] += trust
