"""Steps I and II against fake gradients as written (Algorithm 5), for an attacker who knows that they are sent.

The larger half of each tensor's entries is sent as it is. The rest becomes negative random numbers of deviation about
one, hundreds of times larger than most gradients: never positive, and seldom as small as a true entry. So an entry no
larger than the tensor's largest positive one is taken as true, and the few that are not are found as misfits.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.attacks.base import refuse
from seepage.attacks.cafe.steps import Recovered, SeenRounds, cover, mean_table
from seepage.federation.defenses.fake_gradients import plausible

MIN_ROUNDS_PER_SAMPLE = 1.25
"""Rounds with a plausible entry that a neuron needs, as a multiple of the samples: some are misfits."""
ASSUMED_ERROR = 1e-3
"""Relative error that is assumed of V and H, and up to which a sample's v counts as zero."""
MIN_SOLVED_FEATURES = 0.9
"""Share of a sample's features that must be solved for it to count as known."""
DEAD_SHARE = 0.05
"""Share of plausible entries up to which a feature's gradient is zero throughout: zeros are forged or left out."""
FORGED = 5.0
"""Medians of the misfits beyond which an entry is a forged one that slipped through."""


def solve(seen: SeenRounds) -> list[Recovered]:
    """V and H of every layer from plausible entries.

    Step I solves each neuron by itself, from the rounds in which its bias gradient is plausible; neurons with too few
    of those are left out. Step II solves each feature of a batch from the plausible entries of its weight gradient.

    Args:
        seen: The rounds; each sample's weight gradients are read three times, where it was drawn so often.

    Raises:
        Inapplicable: Where too few neurons have enough plausible rounds.
    """
    batches, layers = seen.batches, seen.layers
    table = mean_table(batches, seen.samples)
    largest = max(len(batch) for batch in batches)
    solved = [_columns(table, bias) for bias in seen.biases()]
    short = min(int(known.sum()) for _, known in solved)
    if short < 2 * largest:
        raise refuse("too_few_rounds")(
            f"only {short} neurons have enough rounds with a plausible bias gradient, and batches of {largest} need "
            f"{2 * largest}",
            f"record more rounds than {len(seen)} (about four times the number of samples)",
        )
    d1 = [seen.params[layer.weight].shape[1] for layer in layers]
    sums = [torch.zeros(seen.samples, width, dtype=torch.float64) for width in d1]
    mass = [torch.zeros_like(one) for one in sums]
    for place in cover(batches, seen.samples, 3):
        found = seen.gradients(place, [layer.weight for layer in layers])
        batch = batches[place]
        for m, layer in enumerate(layers):
            v, known = solved[m]
            weight = found[layer.weight].double().cpu() * len(batch)
            h, trust = _features(v[batch][:, known], weight[known], plausible(weight)[known])
            sums[m][batch] += trust * h
            mass[m][batch] += trust
    return [_recovered(v, h, w) for (v, _), h, w in zip(solved, sums, mass, strict=True)]


def _recovered(v: Tensor, sums: Tensor, mass: Tensor) -> Recovered:
    n = len(v)
    norms = v.norm(dim=1)
    silent = norms <= ASSUMED_ERROR * norms.median()
    known = ((mass > 0).double().mean(dim=1) > MIN_SOLVED_FEATURES) & ~silent
    return Recovered(
        v=v,
        h=sums / mass.clamp(min=1e-300),
        v_known=torch.ones(n, dtype=torch.bool),
        known=known,
        zero_gradient=silent,
        spread=torch.where(known, ASSUMED_ERROR, torch.inf).double(),
        group=torch.arange(n),
    )


def _columns(table: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """`[N, d2]` V, and `[d2]` which neurons were solved."""
    from scipy.sparse import csr_array

    rows_of = csr_array(table.numpy())
    near = torch.stack([plausible(sent) for sent in bias])  # [T, d2]
    v = torch.zeros(table.shape[1], bias.shape[1], dtype=torch.float64)
    known = torch.zeros(bias.shape[1], dtype=torch.bool)
    for j in range(bias.shape[1]):
        rows = near[:, j].numpy().nonzero()[0]
        column = solve_column(rows_of[rows], bias[rows, j].numpy())
        if column is not None:
            v[:, j], known[j] = torch.from_numpy(column), True
    return v, known


def solve_column(table: Any, target: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """`[N]` least squares of a sparse `[t, N]` table, without the rows that do not fit; None where too few are left."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    samples = table.shape[1]
    for _ in range(8):
        if table.shape[0] < MIN_ROUNDS_PER_SAMPLE * samples:
            return None
        try:
            factor = cho_factor((table.T @ table).toarray(), overwrite_a=True)
        except LinAlgError:
            return None
        found: np.ndarray[Any, Any] = cho_solve(factor, table.T @ target)
        # Forged entries that slipped through are off by far more than rounding.
        left = np.abs(table @ found - target)
        good = left <= max(FORGED * float(np.median(left)), 1e-6 * float(np.abs(target).max()))
        if good.all():
            break
        table, target = table[good], target[good]
    return found


def _features(v: Tensor, weight: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """`[k, d1]` H of one batch from the plausible entries of `[c, d1]` K grad W, and each entry's inverse variance.

    Least sums of absolute misfits, by reweighting: one wrong entry among many does not move the result.
    """
    k = len(v)
    # Feature j of the batch solves its own weighted normal equations: gram_j = sum_c w_cj v_c v_c^T, [d1, k, k] at
    # once.
    outer = torch.einsum("aj,bj->jab", v, v).reshape(-1, k * k)  # [c, k k]
    mask = near.double()
    # A trace of ridge for features with hardly a plausible entry, in units of each sample's own |v|^2. [k, k]
    ridge = torch.diag(1e-13 * v.pow(2).sum(1).clamp(min=1e-300)) * v.shape[1] ** 0.5
    trusted = mask
    for _ in range(6):
        gram = (trusted.T @ outer).reshape(-1, k, k) + ridge  # [d1, k, k]
        right = ((trusted * weight).T @ v.T)[..., None]  # [d1, k, 1]
        factor, _ = torch.linalg.cholesky_ex(gram)
        h = torch.cholesky_solve(right, factor).squeeze(2).T
        left = (v.T @ h - weight).abs() * mask
        # Misfits below a share of the typical one count alike.
        typical = left.sum(0) / mask.sum(0).clamp(min=1)
        # L1 by reweighting: w = 1 / |misfit|, bounded where the misfit is a hundredth of the typical one.
        trusted = mask / (left / typical.clamp(min=1e-300)).clamp(min=1e-2)
    keep = mask * (left <= 3 * typical).double()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex((keep.T @ outer).reshape(-1, k, k) + ridge)[0])
    h = (inverse @ ((keep * weight).T @ v.T)[..., None]).squeeze(2).T
    # The diagonal of the inverse normal matrix is the variance of each unknown, for errors of unit size.
    trust = 1 / inverse.diagonal(dim1=1, dim2=2).T.clamp(min=1e-300)  # [k, d1]
    count = near.sum(0)
    # A feature that is zero for the whole batch has a gradient of zero, which is forged or left out.
    dead = count <= DEAD_SHARE * len(weight)
    enough = keep.sum(0) >= k + 5
    fine = enough & torch.isfinite(h).all(0)
    typical_trust = trust[:, fine].median() if bool(fine.any()) else trust.new_tensor(1.0)
    h = torch.where(dead | ~fine, 0.0, h)
    return h, torch.where(dead, typical_trust, torch.where(fine, trust, 0.0))
