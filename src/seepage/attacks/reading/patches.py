"""A weight gradient taken apart into the patches that its convolution read: which outputs passed a slope on."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from seepage.attacks.network.linearize import LayerUse
from seepage.attacks.reading.head.equations import factored
from seepage.attacks.reading.head.sparse import unmix
from seepage.base.algebra.lowrank import INDEPENDENT, ZERO_GAP
from seepage.base.nn import generator

FAINT_SLOPE = 0.1
"""Slopes below this share of the median do not count in the verdict: what they add to a gradient is mostly rounding."""
ON_OR_OFF = 0.05
"""Mean distance of a unit's share of its largest slope from 0 or 1 above which nothing was found."""


def read_patches(
    layer: LayerUse, gradient: Float[Tensor, "O C k k"], largest: Float[Tensor, "n O h w"]
) -> Bool[Tensor, "n O h w"] | None:
    """Which outputs of a convolution passed a slope on, from its weight gradient alone; None where that is open.

    Behind an average each output has the known slope or none, whether its ReLU is on; behind a maximum, whether it is
    the largest. With D `[O, n P]` these slopes at P positions and H `[n P, C k k]` the patches read there, the gradient
    is `G = D H`. With as many outputs as slopes the row space of G is that of H, and H is found in it:

    1. Patches in a corner read zeros beyond the border. The combinations of rows that vanish there are those of the n
       corner patches; of these, each example's own are the sparsest non-negative ones (`unmix`).
    2. A patch shares entries with its neighbors. Known entries are linear equations for the combination that gives
       the next patch, thousands for n P unknowns.
    3. With H known `D = G H^+`. Only the right example's slopes make each entry of D all or nothing.

    Args:
        layer: The convolution's call, on n images.
        gradient: The observed gradient of its weight.
        largest: The slopes of outputs that are on.
    """
    from scipy.optimize import linear_sum_assignment  # heavy, and only this needs it

    n, outputs = largest.shape[:2]
    count = n * largest[0, 0].numel()
    if layer.geometry[3] != 1 or outputs < count:
        return None
    rows = gradient.flatten(1).cpu()
    scale, left, basis, deviation, _ = factored(rows, count)
    combinations = None if len(basis) < count else _combinations(layer, basis, deviation, n)
    if combinations is None:
        return None
    # G = D H with D^T = Q^-T (U D)^T of the combinations Q.
    slopes = torch.linalg.solve(combinations.flatten(0, 1).T, (scale[:, None] * left).T).view(n, -1, outputs)
    wanted = largest.flatten(2).transpose(1, 2).double().cpu()  # [n, P, O]
    off = torch.zeros(n, n, dtype=torch.float64)
    on = torch.zeros(n, *wanted.shape, dtype=torch.bool)
    for group in range(n):
        for example in range(n):
            off[group, example], on[group, example] = _all_or_nothing(slopes[group], wanted[example])
    groups, examples = linear_sum_assignment(off.numpy())
    if not float(off[groups, examples].max()) < ON_OR_OFF:
        return None
    chosen = torch.empty_like(on[0])
    chosen[examples] = on[groups, examples]
    return chosen.transpose(1, 2).contiguous().view(largest.shape).to(largest.device)


def _combinations(
    layer: LayerUse, basis: Float[Tensor, "r Ckk"], deviation: float, n: int
) -> Float[Tensor, "n P r"] | None:
    """The rows of Q with `Q B = H`, where B is a basis of the gradient's rows: up to one factor for each example."""
    positions = layer.places()  # [k k, P]
    entries, places = positions.shape
    rank, basis = len(basis), basis.view(len(basis), -1, entries)  # [r, C, k k]
    corner = int((positions == 0).sum(0).argmax())
    outside = positions[:, corner] == 0
    space = torch.eye(rank, dtype=basis.dtype)
    if rank > n:
        if not bool(outside.any()):
            return None
        # Combinations q with q B = 0 on all entries beyond the border: the last left singular vectors.
        left, singular, _ = torch.linalg.svd(basis[:, :, outside].flatten(1), full_matrices=True)
        singular = F.pad(singular, (0, rank - len(singular)))
        if singular[-n] > ZERO_GAP * singular[-n - 1]:
            return None
        space = left[:, -n:].T  # [n, r]
    corners = unmix(space @ basis.flatten(1), deviation, None, generator(0, "corner patches"))
    if corners is None or corners[1] < n:
        return None
    found = torch.zeros(n, places, rank, dtype=basis.dtype)
    # What is known of each example's map, [n, C, 1 + positions]; the first entry is the padding.
    size = int(layer.input.shape[2:].numel())
    known = torch.zeros(1 + size, dtype=torch.bool)
    known[0] = True
    values = basis.new_zeros(n, basis.shape[1], 1 + size)
    left_over, place, rows = set(range(places)), corner, corners[0] @ space
    while True:
        found[:, place] = rows
        values[:, :, positions[:, place]] = torch.einsum("nr,rck->nck", rows, basis)
        values[:, :, 0] = 0
        known[positions[:, place]] = True
        left_over.remove(place)
        if not left_over:
            return found
        place = max(left_over, key=lambda p: int(known[positions[:, p]].sum()))
        # q B = h on the entries that are known, in the least-squares sense.
        shared = known[positions[:, place]]  # [k k]
        if not bool((shared & (positions[:, place] > 0)).any()):
            return None  # nothing of the next patch is known
        wanted = values[:, :, positions[shared, place]].flatten(1)  # [n, C shared]
        left, singular, right = torch.linalg.svd(basis[:, :, shared].flatten(1), full_matrices=False)
        if not singular[-1] > INDEPENDENT * singular[0]:
            return None  # with a stride, corner patches vanish on all that others share
        rows = wanted @ (right.T / singular) @ left.T


def _all_or_nothing(slopes: Float[Tensor, "P O"], largest: Float[Tensor, "P O"]) -> tuple[float, Bool[Tensor, "P O"]]:
    """How far slopes, up to one positive factor, are from being all or nothing of the largest; and which are all."""
    clear = largest.abs() > FAINT_SLOPE * largest.abs().median()
    share = (slopes / largest).nan_to_num()  # [P, O]: 0 or the example's factor
    # At least a tenth of the units are on, so that half of the ninth decile lies between the two values.
    top = share[clear].quantile(0.9) / 2
    if not top > 0:
        return 1.0, clear
    share = share / share[clear & (share > top)].median()
    off = torch.minimum(share.abs(), (share - 1).abs())[clear].clamp(max=1).mean()
    return float(off), share > 0.5
