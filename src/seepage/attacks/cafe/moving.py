"""Correct for weights that change between rounds: compute their effect on h from the guessed inputs and subtract it.

The server knows the weights of every round. With `h_n(t)` the features of sample n at the weights of round t, the row
space of round t's weight gradient holds `h_n(t)` exactly, and `h_n(t) - h_n(0)` follows from a guess of the sample far
more accurately than the guess itself. So h(0) is the vector that, with these differences added, lies in all its
rounds' row spaces. Its length, which spans do not show, follows from the bias gradients. No step uses v (step I's
gradient at the layer's output) of another round, whose later layers flip units and drift a hundred times as far.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.attacks.cafe.steps import Recovered, SeenRounds, params_of
from seepage.attacks.cafe.subspaces import MAX_UNEXPLAINED, RoundGradient, row_span

MAX_STRETCH = 1.25
"""Largest factor by which lengths are corrected; a larger one indicates a wrong direction."""


def drifts(seen: SeenRounds, blocks: Sequence[Tensor]) -> list[list[Tensor]]:
    """`[layers][rounds]` of `[K, d1]`: the features of each round's batch at its weights, less those at the first's.

    Args:
        seen: The rounds.
        blocks: Guessed inputs of each layer, `[N, *block]`.
    """
    model, first, buffers = seen.knowledge.model, seen.params, seen.buffers
    found: list[list[Tensor]] = [[] for _ in seen.layers]
    for t, batch in zip(seen.numbers, seen.batches, strict=True):
        params = params_of(seen.transcript, t)
        for m, layer in enumerate(seen.layers):
            x = blocks[m][batch]
            with torch.no_grad():
                found[m].append(layer.features(model, params, buffers, x) - layer.features(model, first, buffers, x))
    return found


def correct(
    one: Recovered, rounds_seen: Sequence[RoundGradient], batches: Sequence[Tensor], drift: Sequence[Tensor]
) -> Tensor:
    """`[N, d1]` h at the weights of the first round, the drift taken out.

    Args:
        one: The current estimates for the layer.
        rounds_seen: Its rounds.
        batches: Their samples.
        drift: `[K, d1]` of each round, from `drifts`.
    """
    where: list[list[tuple[int, int]]] = [[] for _ in range(len(one.h))]
    for place, batch in enumerate(batches):
        for row, n in enumerate(batch.tolist()):
            where[n].append((place, row))
    spans = [row_span(shape.core) for shape in rounds_seen]
    h = one.h.clone()
    for n in one.known.nonzero().squeeze(1).tolist():
        own = [(spans[place], drift[place][row].to(h)) for place, row in where[n]]
        h[n] = _nearest(h[n], own)
    return h / _lengths(one, h, rounds_seen, batches, drift)[:, None]


def _nearest(h: Tensor, own: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The vector near `h` that is closest to all spans after each round's drift is added; its length is kept.

    With R spans, their bases side by side in Q, the correction c solves `(R - Q Q^T) c = -sum of what lies outside`.
    """
    outside = torch.zeros_like(h)
    for span, drift in own:
        # h(t) = h(0) + drift lies in round t's row space; what sticks out of it is the error to correct.
        moved = h + drift
        outside += moved - span @ (span.T @ moved)
    q = torch.cat([span for span, _ in own], dim=1)  # [d1, R r]
    # (R I - Q Q^T) c = -outside, solved by Woodbury in the [R r, R r] Gram matrix: (R I - Q Q^T)^-1 =
    # (I + Q (R I - Q^T Q)^-1 Q^T) / R. The eigenvalue R itself is the direction that all spans share.
    values, vectors = torch.linalg.eigh(q.T @ q)
    # The common direction is h itself.
    values, rest = values[:-1], vectors[:, :-1]
    axis = q @ vectors[:, -1]
    axis = axis / axis.norm()
    inner = rest @ ((rest.T @ (q.T @ outside)) / (len(own) - values).clamp(min=1e-3))
    step = -(outside + q @ inner) / len(own)
    corrected: Tensor = h + step - axis * (axis @ step)
    return corrected


def _lengths(
    one: Recovered, h: Tensor, rounds_seen: Sequence[RoundGradient], batches: Sequence[Tensor], drift: Sequence[Tensor]
) -> Tensor:
    """`[N]` factor by which each h is too long: with the right lengths, the v add up to the bias gradient."""
    usable = one.known | one.zero_gradient
    total, mass = torch.zeros(len(h)).double(), torch.zeros(len(h)).double()
    for shape, batch, moves in zip(rounds_seen, batches, drift, strict=True):
        rows = usable[batch]
        moved = h[batch[rows]] + moves[rows].to(h)
        live = moved.norm(dim=1) > 1e-6 * moved.norm(dim=1).max() if len(moved) else torch.zeros(0, dtype=torch.bool)
        moved, members = moved[live], batch[rows][live]
        # v_n = G pinv(H) as in step II; h_n too long by a factor makes v_n too short by it.
        inverse = torch.linalg.pinv(moved)  # [d1, k]
        parts = shape.core @ inverse  # [r, k]
        if float((shape.core - parts @ moved).norm()) > MAX_UNEXPLAINED * float(shape.core.norm()):
            continue
        # grad b = sum_n f_n v_n: the factors f_n that give the right sum are the lengths' errors.
        found = torch.linalg.lstsq(shape.left @ parts, shape.bias[:, None]).solution.squeeze(1)
        # A round with a black tile lacks its v in the sum, and shows that by the misfit.
        misfit = float((shape.left @ (parts @ found) - shape.bias).norm() / shape.bias.norm())
        weight = max(misfit, 1e-6) ** -2
        total[members] += weight * found
        mass[members] += weight
    ratio = total / mass
    fine = (ratio > 1 / MAX_STRETCH) & (ratio < MAX_STRETCH) & one.known
    return torch.where(fine, ratio, 1.0)
