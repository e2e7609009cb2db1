"""Patches put together to images: neighbors go on across their border, and that also says how bright each is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.patches.unmixing import WIDTH, PatchMixture
from seepage.base.solvers import MOST_STEPS, conjugate_gradients

LEVEL = 0.08
"""Usual error of a patch's brightness, in units of the value range, before borders are looked at."""
DETAIL = 0.03
"""Usual error of a pixel beside it, and difference across a border."""


@dataclass(frozen=True, eq=False)
class Board:
    """Where the patches lie.

    Attributes:
        pairs: `[b, 2]` numbers of patches that share a border.
        edges: `[b, 2, e]` the entries of a patch along that border, of the one and of the other.
    """

    pairs: Tensor
    edges: Tensor

    @classmethod
    def of(cls, rows: int, columns: int, grid: tuple[int, int, int]) -> "Board":
        """A board of patches in reading order.

        >>> Board.of(2, 3, (1, 4, 4)).pairs.tolist()
        [[0, 1], [1, 2], [3, 4], [4, 5], [0, 3], [1, 4], [2, 5]]
        """
        places = torch.arange(rows * columns).view(rows, columns)
        entries = torch.arange(grid[0] * grid[1] * grid[2]).view(grid)
        across = torch.stack([places[:, :-1].flatten(), places[:, 1:].flatten()], 1)
        down = torch.stack([places[:-1].flatten(), places[1:].flatten()], 1)
        sides = torch.stack([entries[:, :, -1].flatten(), entries[:, :, 0].flatten()])
        ends = torch.stack([entries[:, -1].flatten(), entries[:, 0].flatten()])
        # Sides may differ in length: the shorter of the two counts for both.
        length = min(sides.shape[1], ends.shape[1])
        edges = [side[None, :, :length].expand(len(pairs), -1, -1) for side, pairs in ((sides, across), (ends, down))]
        return cls(torch.cat([across, down]), torch.cat(edges))


def ordered(patches: Tensor, board: Board, unit: float = 1.0) -> Tensor:
    """`[P, n]` which of a place's patches belongs to which image, from patches `[P, n, d]`.

    Places are joined like the tree of most certain borders: the border whose best assignment of n patches to n patches
    beats its second best by most comes first. Then each place chooses again by all its neighbors, until none changes.

    Args:
        patches: n for each place.
        board: Where the places lie.
        unit: Size of the value range.
    """
    n = patches.shape[1]
    costs = torch.stack(
        [
            _mismatch(patches[p][:, one] / unit, patches[q][:, other] / unit)
            for (p, q), (one, other) in zip(board.pairs.tolist(), board.edges, strict=True)
        ]
    )  # [b, n, n]
    image = torch.arange(n).repeat(len(patches), 1)  # [P, n]: the image of each patch, within its joined part
    part = list(range(len(patches)))
    touching = [[b for b, pair in enumerate(board.pairs.tolist()) if p in pair] for p in part]  # borders of each part
    joins: dict[int, _Join] = {}
    while len(left := sorted(set(part))) > 1:
        for number in left:
            if number not in joins:
                joins[number] = _join(part, image, board, costs, touching[number], number)
        surest = max((joins[number] for number in left), key=lambda one: one.margin)
        kept, gone = part[surest.p], part[surest.q]
        # The images of q's part are renumbered so that they are those of p's.
        for place in range(len(part)):
            if part[place] == gone:
                image[place], part[place] = surest.turn[image[place]], kept
        touching[kept] = sorted({*touching[kept], *touching[gone]})
        # Only the joins of the new part and of its neighbors have changed.
        for b in touching[kept]:
            for place in board.pairs[b].tolist():
                joins.pop(part[place], None)
    for _ in range(10):
        before = image.clone()
        for p in range(len(patches)):
            image[p] = _best(_cost_at(p, image, board, costs))[0]
        if torch.equal(before, image):
            break
    return image.argsort(1)


def _mismatch(one: Tensor, other: Tensor) -> Tensor:
    """`[n, n]` how badly edges `[n, e]` go on in each other: brightness counts less than its change along the edge."""
    apart = one[:, None] - other[None]  # [n, n, e]
    # An edge of a color image is its three channels one after the other. [n, n, channels, e / channels]
    colors = apart.unflatten(2, (3, -1)) if apart.shape[2] % 3 == 0 else apart[:, :, None]
    level = colors.mean(3, keepdim=True)
    detail = ((colors - level) / DETAIL).square()
    # -log of a Cauchy density up to a constant, log(1 + (x / s)^2): heavy tails, as an edge of the scene may lie on the
    # border. The mean brightness is one number per channel; the 2 is its weight beside the details. [n, n]
    return torch.log1p(detail).sum((2, 3)) + torch.log1p((level / LEVEL).square()).sum((2, 3)) * 2


def _cost_at(p: int, image: Tensor, board: Board, costs: Tensor) -> Tensor:
    """`[n, n]` what it costs that a patch of place p belongs to an image, by all neighbors of p."""
    total = torch.zeros_like(costs[0])
    for (one, other), cost in zip(board.pairs.tolist(), costs, strict=True):
        if one == p:
            total += cost[:, image[other].argsort()]
        elif other == p:
            total += cost.T[:, image[one].argsort()]
    return total


def _best(cost: Tensor) -> tuple[Tensor, float]:
    """The cheapest assignment, and how much dearer it becomes where one of its pairs is forbidden."""
    from scipy.optimize import linear_sum_assignment

    columns = torch.as_tensor(linear_sum_assignment(cost.numpy())[1])
    rows = torch.arange(len(cost))
    least, margin = float(cost[rows, columns].sum()), float("inf")
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        barred = cost.clone()
        barred[row, column] = 1e9
        other = torch.as_tensor(linear_sum_assignment(barred.numpy())[1])
        margin = min(margin, float(barred[rows, other].sum()) - least)
    return columns, margin


@dataclass(frozen=True, eq=False)
class _Join:
    """The surest way to join a part to another.

    Attributes:
        margin: How much dearer it becomes where one of its pairs is forbidden.
        p: A place of the part.
        q: A place of the other.
        turn: `[n]` how the images of the other are renumbered.
    """

    margin: float
    p: int
    q: int
    turn: Tensor


def _join(part: list[int], image: Tensor, board: Board, costs: Tensor, touching: list[int], number: int) -> _Join:
    """The surest way to join a part, which has the borders `touching`, to another."""
    sums: dict[int, tuple[Tensor, int, int]] = {}
    for b in touching:
        one, other = board.pairs[b].tolist()
        for p, q, c in ((one, other, costs[b]), (other, one, costs[b].T)):
            if part[p] == number and part[q] != number:
                # By images of both parts: c[a, b] is between patch a of p and patch b of q.
                by_image = c[image[p].argsort()][:, image[q].argsort()]
                total, _, _ = sums.get(part[q], (torch.zeros_like(c), p, q))
                sums[part[q]] = (total + by_image, p, q)
    choices = []
    for total, p, q in sums.values():
        columns, margin = _best(total)  # image a of the part goes with image columns[a] of the other
        choices.append(_Join(margin, p, q, columns.argsort()))
    return max(choices, key=lambda one: one.margin)


def leveled(mixture: PatchMixture, rows: Tensor, board: Board, image: Tensor, unit: float = 1.0) -> Tensor:
    """Rows whose patches go on in each other: what differences within patches leave open, borders decide.

    Around the likeliest rows the likelihood is quadratic, `a H_k a` for a change `a R` of patch k; the mismatch of
    borders is added to it, and the sum's minimum found by conjugate gradients, image by image.

    Args:
        mixture: What is known.
        rows: `[n P, n P]` the likeliest rows.
        board: Where the patches lie.
        image: `[P, n]` which of a place's patches belongs to which image.
        unit: Size of the value range.
    """
    n, count = mixture.images, len(mixture.common)
    fields = mixture.fields(diagonal=False)
    span_fields = fields[count:].double()  # [r, f, places]
    changed = rows.clone()
    for i in range(n):
        own = torch.arange(count) * n + image[:, i]  # rows of this image, place by place
        patches = rows[own] @ mixture.rows
        # -log of a t density in a bends by F^T W F, with F the fields of R and W = 1 / (s + width) taken as constant.
        signals = (rows[own].float() @ fields.flatten(1)).view(count, *fields.shape[1:]).double()
        size = signals.square().mean((1, 2))
        weights = 1 / (signals.square().mean(1) + WIDTH * size[:, None])  # [P, places]
        bends = torch.stack([((span_fields * w).flatten(1) @ span_fields.flatten(1).T) for w in weights])  # [P, r, r]
        # Only the shares in R change: a patch's part outside of R is known.
        change = _across(mixture, board, patches, bends, DETAIL * unit)
        changed[own, count:] += change
    return changed


def _across(mixture: PatchMixture, board: Board, patches: Tensor, bends: Tensor, usual: float) -> Tensor:
    """`[P, r]` the change of each patch of one image, by its own curvature `[P, r, r]` and its borders."""
    one, other = board.pairs.T
    span = mixture.span
    # What a unit change along each direction of R does to the two edges of a border.
    at_one, at_other = span[:, board.edges[:, 0]], span[:, board.edges[:, 1]]  # [r, b, e]
    apart = patches[one[:, None], board.edges[:, 0]] - patches[other[:, None], board.edges[:, 1]]  # [b, e]
    # A t density again: a border that the scene's own edge crosses has little to say. Counted per color and pixel.
    weight = 1 / (apart.square() + usual**2)
    # The ridge keeps directions that no field of the patch shows, such as a constant, from being singular. [r, r]
    ridge = 1e-6 * bends.diagonal(dim1=1, dim2=2).mean() * torch.eye(len(span), dtype=span.dtype)
    factor = torch.linalg.cholesky(bends + ridge)

    # min sum_k a_k H_k a_k + sum_borders W |apart + B a|^2: (H + ridge + B^T W B) a = -B^T W apart.
    def crossed(change: Tensor) -> Tensor:
        return torch.einsum("br,rbe->be", change[one], at_one) - torch.einsum("br,rbe->be", change[other], at_other)

    # B^T: an edge's misfit is added to one of its patches and subtracted from the other.
    def back(edge: Tensor) -> Tensor:
        into = torch.zeros(len(patches), len(span), dtype=span.dtype)
        into.index_add_(0, one, torch.einsum("be,rbe->br", edge, at_one))
        return into.index_add_(0, other, -torch.einsum("be,rbe->br", edge, at_other))

    def apply(change: Tensor) -> Tensor:
        return (bends @ change[:, :, None])[:, :, 0] + ridge[0, 0] * change + back(weight * crossed(change))

    def precondition(change: Tensor) -> Tensor:
        return torch.cholesky_solve(change[:, :, None], factor)[:, :, 0]

    return conjugate_gradients(apply, -back(weight * apart), precondition, steps=MOST_STEPS, tolerance=1e-4)
