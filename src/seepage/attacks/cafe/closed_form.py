"""Steps I and II by least squares: exact as soon as the rounds' index vectors have rank N."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.base import refuse
from seepage.attacks.cafe.steps import (
    Recovered,
    SeenRounds,
    cover,
    mean_table,
    step_one,
    step_two,
    zero_rows,
)
from seepage.attacks.network.evidence import READ
from seepage.base.rounding import FLOAT32_SUM

JOINT_RANK = 1e-9
"""Eigenvalues of the joint normal equations below this share of the largest are null directions."""
JOINT_OPEN_SHARE = 1e-6
"""As `FLOAT64_FLOOR`, for squared parts of null vectors: normal equations have squared the condition of these."""


def solve(seen: SeenRounds, *, weight_rounds: int = 1) -> list[Recovered]:
    """V and H of every layer.

    Args:
        seen: The rounds.
        weight_rounds: Read the weight gradients of so many covers of the samples (one is enough without noise); 0:
            of all rounds. Several guesses of one sample are averaged by their error.

    Raises:
        Inapplicable: Where the rounds determine no sample at all.
    """
    batches, samples, layers, found = seen.batches, seen.samples, seen.layers, []
    for layer, bias in zip(layers, seen.biases(), strict=True):
        one = Recovered.nothing(samples, *seen.params[layer.weight].shape)
        one.v, one.v_known = step_one(batches, bias, samples)
        one.zero_gradient = zero_rows(one.v, one.v_known)
        found.append(one)
    if not bool(found[0].v_known.any()):
        raise refuse("too_few_rounds")(
            f"the index vectors of {len(seen)} rounds have a rank that determines none of {samples} samples",
            f"record about {samples + samples // 40 + 1} rounds, or use mode='few_rounds'",
        )
    sums = [torch.zeros_like(one.h) for one in found]
    mass = [torch.zeros(samples, dtype=torch.float64) for _ in layers]
    for place in cover(batches, samples, weight_rounds) if weight_rounds else range(len(seen)):
        weights = seen.gradients(place, [layer.weight for layer in layers])
        for m, layer in enumerate(layers):
            _add_batch(found[m], batches[place], weights[layer.weight].double().cpu(), sums[m], mass[m])
    for m, one in enumerate(found):
        one.known = mass[m] > 0
        one.h = sums[m] / mass[m].clamp(min=1e-300)[:, None]
        one.spread = torch.where(one.known, mass[m].clamp(min=1e-300).rsqrt(), torch.inf)
    left = [m for m, one in enumerate(found) if bool((one.v_known & ~one.zero_gradient & ~one.known).any())]
    if left and bool(found[0].v_known.all()):
        for m, one in zip(left, _solve_jointly(seen, [found[m] for m in left], left), strict=True):
            found[m] = one
    return found


def _solve_jointly(seen: SeenRounds, found: Sequence[Recovered], which: Sequence[int]) -> list[Recovered]:
    """Step II over all rounds at once, for layers whose V has not full rank inside a batch (two classes, say).

    The normal equations of equation 8 are `((S^T S) o (V V^T)) H = sum_t S_t^T V G_t`, regular as soon as S has rank
    N and no v is zero (theorem 2's proof, without its condition on the rank of V).
    """
    table = mean_table(seen.batches, seen.samples)
    # (S^T S) [N, N]: how often, and with what weight, two samples are in one round.
    shared = table.T @ table
    names = [seen.layers[m].weight for m in which]
    right = [torch.zeros_like(one.h) for one in found]
    power = [0.0] * len(which)
    for place, batch in enumerate(seen.batches):
        weights = seen.gradients(place, names)
        for m, (one, name) in enumerate(zip(found, names, strict=True)):
            weight = weights[name].double().cpu()
            # Right side of the normal equations, S_t^T V G_t, a round at a time: only its samples' rows change. [k, d1]
            right[m][batch] += one.v[batch] @ weight / len(batch)
            power[m] += float(weight.pow(2).mean())
    sent = zip(found, right, power, strict=True)
    return [_jointly(shared, one, side, square / len(seen)) for one, side, square in sent]


def _jointly(shared: Tensor, one: Recovered, right: Tensor, power: float) -> Recovered:
    """One layer's H, given S^T S `[N, N]`, the right side `[N, d1]` and the mean square of its gradients' entries."""
    live = (~one.zero_gradient).nonzero().squeeze(1)
    scale = one.v[live].norm(dim=1)
    # Rows of V scaled to unit length, so that the rank is not a matter of their sizes; undone below.
    unit = one.v[live] / scale[:, None]
    # The Schur product of two positive matrices is positive; regular where S has rank N (theorem 2).
    values, vectors = torch.linalg.eigh(shared[live][:, live] * (unit @ unit.T))
    keep = values > JOINT_RANK * values[-1]
    solved = vectors[:, keep] / values[keep] @ (vectors[:, keep].T @ (right[live] / scale[:, None]))
    h = solved / scale[:, None]
    # By how much noise in the gradients is amplified on the way to row n: the root of the inverse's diagonal.
    gain = (vectors[:, keep].pow(2) / values[keep]).sum(1).sqrt() / scale
    noise = FLOAT32_SUM * (power * h.shape[1]) ** 0.5
    spread = gain * noise / h.norm(dim=1).clamp(min=1e-300)
    fine = (vectors[:, ~keep].pow(2).sum(1) < JOINT_OPEN_SHARE) & (spread < READ)
    # A batch that determined a sample by itself keeps its answer unless this one's error is smaller.
    better = fine & (spread < one.spread[live])
    chosen = live[better]
    joint = replace(one, h=one.h.clone(), spread=one.spread.clone(), known=one.known.clone())
    joint.h[chosen], joint.spread[chosen], joint.known[chosen] = h[better], spread[better], True
    return joint


def _add_batch(one: Recovered, batch: Tensor, weight: Tensor, sums: Tensor, mass: Tensor) -> None:
    """Solve one batch and add its rows, weighted by the inverse square of their error."""
    if not bool(one.v_known[batch].all()):
        return  # the unknown rows' part of the gradient cannot be separated from the others'
    live = batch[~one.zero_gradient[batch]]
    if not len(live):
        return
    # V_s^T H_s = K grad W for the samples of this batch that have a gradient at all. [k, d1]
    h, rows_known, error = step_two(one.v[live], weight * len(batch))
    # What the gradients' rounding does to each row, relative to the row itself.
    sent = FLOAT32_SUM * weight.norm() * len(batch) / weight.shape[0] ** 0.5
    error = error * sent / h.norm(dim=1).clamp(min=1e-300)
    ok = rows_known & torch.isfinite(h).all(1) & (error < READ)
    # Guesses of one sample from several rounds are averaged, each by one over its variance.
    trust = error[ok].clamp(min=1e-300).pow(-2)
    sums[live[ok]] += trust[:, None] * h[ok]
    mass[live[ok]] += trust
