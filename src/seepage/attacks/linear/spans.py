r"""All examples of a batch from two spans: a first layer's rows hold `(x_i, 1)`, those of the last layer `(a(x_i), 1)`.

Of n examples with slopes s at the first layer and S at the last one,

    (W, b)   = sum_i s_i (x_i, 1)^T / n        (W', b') = sum_i S_i (a(x_i), 1)^T / n

so where slopes are linearly independent, as those of many outputs are, both row spaces are known, of dimension n. Of
the first one only the examples themselves, and what lies between two that turn the same neurons on, have activations in
the second one:

    x in span (x_1, 1) ... (x_n, 1),    (I - P) (a(x), 1) = 0        n - 1 unknowns, as many equations as neurons

It is solved by damped Gauss-Newton steps from many points. What is found must explain both layers
(`seepage.attacks.linear.two_layers`).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.linear.two_layers import FLOORS, TwoLayers, with_one
from seepage.attacks.reading.rows import AGREEING, shares, weighted_low_rank
from seepage.base.nn import generator
from seepage.base.rounding import DEVIATIONS

STARTS, STEPS = 1000, 60
"""Points that steps begin at, and steps from each."""
SPARE, SAME, APART = 12, 0.02, (0.1, 0.01)
"""Points beyond n that are looked at; difference of two points' normalized activations up to which they are one; and
least shares of a point's activations outside of the span of those before, for it to be one more, in turn."""
DEAD = 1e-2
"""Share of the largest, or of a root mean square, up to which an activation is zero but for the errors of its span."""
MULTIPLICATIONS = 3e10
"""Of all passes together, above which there are fewer starts."""


def in_both_spans(layers: TwoLayers) -> Iterator[tuple[Tensor, Tensor]]:
    """Points of the first layer's span whose activations lie in that of the last one.

    Yields:
        `[n, d]` what the first layer reads, and `[n]` standard errors, root mean square over its values, but for those
        of the span itself: likely ones first, none where rows are of another rank than n, or n points were not found.
    """
    seen, first, last = layers.seen, layers.first, layers.last
    n = seen.batch_size
    if n >= min(first.value.shape) - 1 or n >= min(last.value.shape) - 1:
        return
    fits = weighted_low_rank(first, n), weighted_low_rank(last, n)
    basis, active = (fit.basis for fit in fits)
    if any(fit.misfit > AGREEING or fit.clear < DEVIATIONS for fit in fits):
        return
    if n == 1:
        yield (basis / basis[:, -1:])[:, :-1], basis.new_zeros(1)
        return
    # c = c_0 + N t keeps the bias's entry at 1.
    moves = torch.linalg.svd(basis[:, -1][None])[2][1:]  # [n - 1, n]
    count = int(min(STARTS, max(50, MULTIPLICATIONS / (STEPS * seen.weight.numel()))))
    places = _corners(layers, basis, moves, active, count)
    if places is None:
        low, high = seen.attacked.knowledge.value_range
        draw = torch.rand(
            (count, seen.weight.shape[1]), generator=generator(0, "spans"), dtype=torch.float64, device=basis.device
        )
        start = (low + (high - low) * draw) * seen.layer.scale.double() + seen.layer.shift.double()
        places = torch.cat([start, torch.ones_like(start[:, :1])], 1) @ basis.T
        places = places / (places @ basis[:, -1:])
    squares, places, spread = _descended(layers, places, moves, basis, active)
    inputs, order = (places @ basis)[:, :-1], squares.argsort().tolist()
    shown = F.normalize(with_one(layers.activations(inputs)[1]) @ active.T, dim=1)  # [k, n]
    pool = list[int]()
    for place in order:
        if len(pool) < n + SPARE and all(float((shown[place] - shown[one]).norm()) > SAME for one in pool):
            pool.append(place)
    for kept in _together(layers, inputs[pool], shown[pool]):
        yield inputs[pool][kept], spread[pool][kept]


def _together(layers: TwoLayers, inputs: Tensor, shown: Tensor) -> Iterator[list[int]]:
    """Sets of n of the points `[k, d]`, likely ones first, that leave little of both layers.

    The first n that are apart, then with one after another swapped for one that leaves less: what lies between
    examples, or is one with a neuron on the wrong side, may leave no more of the second span than an example does, but
    more of what was sent.
    """
    n, sets = layers.seen.batch_size, list[list[int]]()
    for apart in APART:
        kept, span = list[int](), shown[:0]
        for place in range(len(shown)):
            if len(kept) < n and float((shown[place] - span.T @ (span @ shown[place])).norm()) > apart:
                kept.append(place)
                span = torch.linalg.qr(shown[kept].T)[0].T
        if len(kept) == n and kept not in sets:
            sets.append(kept)
            yield kept
    if not sets:
        return

    def squares(places: list[int]) -> float:
        return layers.guess(inputs[places], None, FLOORS[0]).squares

    kept = sets[-1]
    least, better = squares(kept), True
    while better:
        better = False
        for one in range(n):
            for place in set(range(len(inputs))) - set(kept):
                tried = [*kept[:one], place, *kept[one + 1 :]]
                if (now := squares(tried)) < least:
                    kept, least, better = tried, now, True
    if kept not in sets:
        yield kept


def _corners(layers: TwoLayers, basis: Tensor, moves: Tensor, active: Tensor, count: int) -> Tensor | None:
    """`[k, n]` places to begin at, where activations are cut off at zero: corners of what the last layer's span allows.

    Of the points of that span with activations of zero or more, examples lie at its corners and edges, since each
    leaves neurons at zero that others reach. From its middle walks go along directions drawn by chance, until a neuron
    is at zero, and on with that one held. Neurons that are reached then tell the place in the first span,
    `W x + b = a`.
    """
    from scipy.optimize import linprog

    n = len(active)
    reads, reached, turns, _ = layers.activations((basis / basis[:, -1:])[:, :-1])
    if not torch.equal(reads * (turns != 0), reached):
        return None
    sides, one = active[:, :-1].T.cpu(), active[:, -1].cpu()  # [m, n], [n]
    sides = sides[sides.norm(dim=1) > DEAD * sides.norm(dim=1).max()]
    room = torch.cat([-sides, sides.norm(dim=1, keepdim=True)], 1)
    middle = linprog(
        [*[0.0] * n, -1.0], room.numpy(), torch.zeros(len(sides)).numpy(), [[*one.tolist(), 0.0]], [1.0],
        bounds=[*[(None, None)] * n, (None, 1.0)],
    )  # fmt: skip
    if middle.x is None:
        return None
    draw = generator(0, "corners")
    at = torch.as_tensor(middle.x[:n], dtype=one.dtype).expand(count, n)
    free = torch.eye(n, dtype=one.dtype) - one[:, None] * one / one.square().sum()
    free = free.expand(count, n, n)
    lengths = torch.randint(max(1, n - 3), n, (count,), generator=draw)
    for length in range(n - 1):
        way = (free @ torch.randn(count, n, 1, generator=draw, dtype=one.dtype))[..., 0]
        room, speed = (at @ sides.T).clamp(min=0), -way @ sides.T
        far, hit = torch.where(speed > 1e-9 * way.norm(dim=1, keepdim=True), room / speed, torch.inf).min(1)
        goes = (length < lengths) & far.isfinite()
        at = torch.where(goes[:, None], at + far.nan_to_num(posinf=0.0)[:, None] * way, at)
        held = F.normalize((free @ sides[hit][..., None])[..., 0], dim=1)
        free = torch.where(goes[:, None, None], free - held[:, :, None] * held[:, None], free)
    shown = at.to(active) @ active[:, :-1]  # [k, m]
    on = (shown > DEAD * shown.square().mean(1, keepdim=True).sqrt()).to(active)
    start = basis[:, -1] / basis[:, -1].square().sum()
    ways = layers.weight @ (moves @ basis)[:, :-1].T  # [m, n - 1]
    right = shown - layers.seen.attacked.exact[0][layers.seen.layer.bias or ""] - layers.weight @ (start @ basis)[:-1]
    return start + shares(right, on, ways.T) @ moves


def _descended(
    layers: TwoLayers, places: Tensor, moves: Tensor, basis: Tensor, active: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Where damped Gauss-Newton steps end: squares `[k]`, places `[k, n]`, and standard errors `[k]` of the points."""
    beside = torch.eye(active.shape[1], dtype=active.dtype, device=active.device) - active.T @ active  # I - P
    turned = layers.weight @ (moves @ basis)[:, :-1].T  # [m, n - 1]

    def at(where: Tensor) -> tuple[Tensor, Tensor]:
        _, activations, slopes, _ = layers.activations((where @ basis)[:, :-1])
        return torch.cat([activations, torch.ones_like(activations[:, :1])], 1) @ beside, slopes

    left, slopes = at(places)
    squares, damping = left.square().sum(1), torch.full((len(places),), 1e-3, dtype=places.dtype, device=places.device)
    unit = torch.eye(len(moves), dtype=places.dtype, device=places.device)
    for _ in range(STEPS):
        ways = beside[:, :-1] @ (slopes[:, :, None] * turned)  # [k, m + 1, n - 1]
        square = ways.transpose(1, 2) @ ways
        size = square.diagonal(dim1=1, dim2=2).mean(1)
        by = torch.linalg.solve(
            square + (damping * size + 1e-14)[:, None, None] * unit, (ways.transpose(1, 2) @ left[..., None])
        )[..., 0]
        tried = places - by @ moves
        tried_left, tried_slopes = at(tried)
        better = tried_left.square().sum(1) < squares
        places, left = torch.where(better[:, None], tried, places), torch.where(better[:, None], tried_left, left)
        slopes, squares = torch.where(better[:, None], tried_slopes, slopes), left.square().sum(1)
        damping = torch.where(better, damping / 5, damping * 4).clamp(1e-9, 1e6)
    ways = beside[:, :-1] @ (slopes[:, :, None] * turned)
    # cov t = s^2 (J^T J)^-1: a direction in which no neuron turns on or off is not told.
    each = squares / max(len(beside) - len(active) - len(moves), 1)
    values, vectors = torch.linalg.eigh(ways.transpose(1, 2) @ ways)
    through = (vectors.transpose(1, 2) @ (moves @ basis)[:, :-1]).square().mean(2)  # [k, n - 1]
    spread = (each[:, None] * through / values.clamp(min=1e-300)).sum(1).sqrt()
    return squares, places, spread
