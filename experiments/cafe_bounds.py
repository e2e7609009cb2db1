"""Equation 43 of CAFE: the bound on the error of H, as it is printed and with constants that hold.

In equation 43 the error of H is bounded by how well steps I and II fit, phi_1 and phi_2, here the largest misfit over
the rounds and at least what rounding of float32 leaves. Its constant N / K comes from equations 37 and 41, which drop
the cross terms between samples: an error of V whose rows sum to zero is seen `(N - K) / (N - 1)` times as strongly.
`printed` keeps N / K; `bound` takes both constants from the index vectors themselves, of which `1 / least eigenvalue`
is `N (N - 1) / (K (N - K))` if all batches are drawn. V's own inverse stands for that of the true V, which no attacker
has.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.attacks.cafe.steps import gradients, params_of
from seepage.attacks.cafe.target_layers import TargetLayer
from seepage.attacks.exposure.indexed import rank_of
from seepage.base.rounding import FLOAT32_SUM
from seepage.federation.types import Transcript


def bounds(
    transcript: Transcript,
    table: Tensor,
    batches: Sequence[Tensor],
    layers: Sequence[TargetLayer],
    vs: Sequence[Tensor],
    biases: Sequence[Tensor],
) -> dict[int, tuple[float | None, float]]:
    """Equation 43 for each layer that meets theorem 2: as printed, and with constants that hold; relative to |H|."""
    rounds, samples = table.shape
    first = params_of(transcript, 0)
    able = [m for m, v in enumerate(vs) if samples < v.shape[1] and rank_of(v) == samples]
    names = [layers[m].weight for m in able]
    # With S^T c = 1 the rounds add up to the gradient of all samples: sum_t c_t G_t = sum_n v_n h_n^T = V^T H. [d2, d1]
    sums = _sums(table)
    whole = {m: torch.zeros(first[layers[m].weight].shape, dtype=torch.float64) for m in able}
    for t in range(rounds):
        seen = gradients(transcript, t, names)
        for m in able:
            whole[m] += sums[t] * seen[layers[m].weight].double().cpu()
    inverses = {m: torch.linalg.pinv(vs[m]) for m in able}  # V V^-1 = I_N, [d2, N]
    h = {m: inverses[m].T @ whole[m] for m in able}  # H = (V^-1)^T V^T H, [N, d1]
    # Misfits of both steps: S V - B, and V_t^T H_t / K - G_t of the worst round.
    one = {m: _worst(biases[m] - table @ vs[m], biases[m]) for m in able}
    two = dict.fromkeys(able, 0.0)
    for t, batch in enumerate(batches):
        seen = gradients(transcript, t, names)
        for m in able:
            sent = seen[layers[m].weight].double().cpu()
            made = vs[m][batch].T @ h[m][batch] / len(batch)
            two[m] = max(two[m], _worst((sent - made).reshape(1, -1), sent.reshape(1, -1)))
    sizes = {len(batch) for batch in batches}
    first_holds, second_holds = constants(table)
    found = {}
    for m in able:
        # |V^T H|^2 and |V^-1|^2, by which theorem 2 passes the misfits on to H.
        length, inverse = float(whole[m].square().sum()), float(inverses[m].square().sum())
        misfits = length * inverse**2 * one[m], inverse * two[m]
        size = float(h[m].norm())
        bound = (2 * (first_holds * misfits[0] + second_holds * misfits[1])) ** 0.5 / size
        # The paper's V holds v / K: its inverse is K times ours, its gradient of all samples 1 / K of ours. N / K K^2.
        printed = (2 * samples * max(sizes) * sum(misfits)) ** 0.5 / size if len(sizes) == 1 else None
        found[m] = (printed, bound)
    return found


def constants(table: Tensor) -> tuple[float, float]:
    """What phi_1 and phi_2 are multiplied by to bound `|V - V*|^2` and `|Delta|^2` (equations 38 and 41), for rank N.

    Args:
        table: `[T, N]` float64, row t holds 1 / K_t at the samples of round t.

    Returns:
        `T / s^2` with s the least singular value, since `sum_t |E^T s_t|^2 >= s^2 |E|^2`; and `T |c|^2` with
        `S^T c = 1`, by the inequality of Cauchy and Schwarz.

    Example:
        All pairs of three samples, where equation 38 has N / K times K^2, which is 6:

        >>> pairs = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1]], dtype=torch.float64) / 2
        >>> [round(constant, 6) for constant in constants(pairs)]
        [12.0, 9.0]
    """
    least = float(torch.linalg.svdvals(table)[-1])
    return len(table) / least**2, len(table) * float(_sums(table).square().sum())


def _sums(table: Tensor) -> Tensor:
    """`[T]` the shortest c with `S^T c = 1`: with these weights the rounds add up to all samples, once each."""
    ones = torch.ones(table.shape[1], 1, dtype=torch.float64)
    shortest: Tensor = torch.linalg.lstsq(table.T, ones, driver="gelsd").solution.squeeze(1)
    return shortest


def _worst(misfit: Tensor, sent: Tensor) -> float:
    """The largest squared misfit of a round, `[T, d]`, and no less than what rounding leaves of what was sent."""
    floor = FLOAT32_SUM**2 * sent.square().sum(1).max()
    return float(torch.maximum(misfit.square().sum(1).max(), floor))
