"""Steps I and II from far fewer rounds than samples, by intersecting the row and column spaces of each sample's rounds.

The weight gradient of a round is `1/K sum v_n h_n^T`, so its column space is the span of its batch's v and its row
space that of the h. A sample drawn in two or three rounds lies in all their spans, and with few samples in common the
spans meet nowhere else. Samples that share all their rounds form a cohort, which is split by `h >= 0` (see `split`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.base import refuse
from seepage.attacks.cafe.split import split
from seepage.attacks.cafe.steps import Recovered, SeenRounds, groups
from seepage.base.nn import generator

MAX_COHORT = 8
"""Largest number of samples sharing all their rounds that are split."""
EXTRA_VALUES = 8
"""Number of singular values computed beyond the batch's own, to estimate the rounding error."""
MAX_OUTLIER_ANGLE, TYPICAL_ANGLES = 0.04, 5.0
"""With changing weights, largest angle (radians) between a direction and its rounds' spans, also in typical angles."""
CLEAR_OF_ROUNDING = 5.0
"""Times the largest singular value of the rounding that a sample's must reach to be one of the batch."""
MAX_UNEXPLAINED = 0.02
"""With changing weights, largest share of a round's gradient outside the known directions, as from black tiles."""
MAX_SPANS = 5
"""Largest number of rounds per sample whose spans are intersected; more only add work."""
Factor = Literal["v", "h"]
"""Which factor of `V^T H = G` is found where spans meet; the other follows from it."""


@dataclass(frozen=True)
class Tolerances:
    """How exactly rounds must agree.

    Attributes:
        angle: Largest mean angle (radians) between a common direction and the spans it lies in.
        apart: Largest relative difference of a cohort's `V^T H` between two rounds.
        negative: How negative an entry of h may be, relative to the sample's largest.
        unexplained: Largest share of a round's gradient outside the known directions; 0: none but rounding.
    """

    angle: float
    apart: float
    negative: float
    unexplained: float


EXACT_ROUNDS = Tolerances(angle=0.05, apart=0.05, negative=1e-3, unexplained=0.0)
"""Rounds of one model: all differences are rounding of float32 gradients."""
DRIFTING_ROUNDS = Tolerances(angle=0.3, apart=torch.inf, negative=0.05, unexplained=MAX_UNEXPLAINED)
"""Rounds between which the weights move: h drifts by percents, and v by so much that products are not compared."""


@dataclass(frozen=True)
class RoundGradient:
    """One round's weight gradient, times K, at its rank.

    Attributes:
        left: `[d2, r]` orthonormal, the span of its v.
        core: `[r, d1]`, so that the gradient is `left @ core`.
        bias: `[d2]` the bias gradient, times K.
        floor: The rounding seen beside the batch's own singular values, relative to the largest.
    """

    left: Tensor
    core: Tensor
    bias: Tensor
    floor: float


Pair = tuple[Tensor, Tensor, Tensor, float]
"""What one round says of a cohort: left `[d2, m]`, right `[m, d1]`, total `[m]`, error of `right`."""


@dataclass
class Cohort:
    """Samples that share all their rounds.

    Attributes:
        members: Their numbers.
        rounds: Places of their rounds.
        basis: `[d, m]` where the rounds' spans meet, with m at most the number of members; None before it is known.
        pairs: What each usable round says.
        covered: Other samples that are in all its rounds, and in more. The basis may hold some of theirs.
    """

    members: list[int]
    rounds: list[int]
    basis: Tensor | None = None
    pairs: list[Pair] = field(default_factory=list)
    covered: frozenset[int] = frozenset()

    @property
    def meets(self) -> bool:
        """Whether it is in two rounds, whose spans can meet, with few enough members to be split."""
        return len(self.rounds) >= 2 and len(self.members) <= MAX_COHORT


def solve(seen: SeenRounds, *, moving: bool = False) -> list[Recovered]:
    """V and H of every layer.

    Args:
        seen: The rounds.
        moving: The weights change between the rounds. Then v drifts far more than h (its later layers flip units), so
            the spans of the h are intersected, and more loosely.

    Raises:
        Inapplicable: Where no sample is in two rounds, or the layer is too narrow for the batch.
    """
    if not any(cohort.meets for cohort in find_cohorts(seen.batches, seen.samples)):
        raise refuse("too_few_rounds")(
            f"no sample of the {len(seen)} rounds is in two of them with fewer than {MAX_COHORT} others "
            "in all the same rounds",
            "record two or three epochs, each shuffled anew",
        )
    group = groups(seen.batches, seen.samples)
    return [replace(_solve_site(one, seen.batches, seen.samples, moving), group=group) for one in read_gradients(seen)]


def read_gradients(seen: SeenRounds) -> list[list[RoundGradient]]:
    """`[layers][rounds]`: what each round's weight and bias gradients show of a layer."""
    names = [name for layer in seen.layers for name in (layer.weight, layer.bias)]
    rounds_seen: list[list[RoundGradient]] = [[] for _ in seen.layers]
    for place, batch in enumerate(seen.batches):
        found = seen.gradients(place, names)
        for m, layer in enumerate(seen.layers):
            rounds_seen[m].append(round_gradient(found[layer.weight], found[layer.bias], len(batch)))
    return rounds_seen


def find_cohorts(batches: Sequence[Tensor], samples: int) -> list[Cohort]:
    """Drawn samples by the rounds they are in, in the order of their first member."""
    where: list[list[int]] = [[] for _ in range(samples)]
    for place, batch in enumerate(batches):
        for n in batch.tolist():
            where[n].append(place)
    cohorts: dict[tuple[int, ...], Cohort] = {}
    for n, places in enumerate(where):
        if places:
            cohorts.setdefault(tuple(places), Cohort([], places)).members.append(n)
    held = [frozenset(batch.tolist()) for batch in batches]
    for cohort in cohorts.values():
        common = frozenset.intersection(*(held[place] for place in cohort.rounds))
        cohort.covered = common.difference(cohort.members)
    return list(cohorts.values())


def round_gradient(weight: Tensor, bias: Tensor, k: int) -> RoundGradient:
    """A round's weight gradient at the rank that stands out of its rounding, at most K."""
    # K grad W = V^T H with V [k, d2], H [k, d1]: rank k, and what lies beyond is rounding.
    matrix = weight.double().cpu() * k  # [d2, d1]
    left, values = _left_vectors(matrix, k + EXTRA_VALUES)
    top = values[0].clamp(min=1e-300)
    floor = max(float(values[k] / top) if len(values) > k else 0.0, 1e-12)
    # Smaller values are not distinguished from rounding: their samples have next to no gradient.
    rank = int((values[:k] > CLEAR_OF_ROUNDING * floor * top).sum())
    left = left[:, :rank]
    return RoundGradient(left, left.T @ matrix, bias.double().cpu() * k, floor)


def _left_vectors(matrix: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """`[d2, most]` leading left singular vectors and their values; fewer where the matrix is small.

    By one subspace iteration (Halko, Martinsson, Tropp 2011), many times faster than all of them: beyond the batch's
    own values there is only rounding.
    """
    if most >= min(matrix.shape):
        left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
        return left, values
    left = torch.randn(len(matrix), most, dtype=matrix.dtype, generator=generator(0, "sketch"))
    # One pass each way turns a random [d2, k + 8] into the leading left vectors, for k far below min(d1, d2).
    right = torch.linalg.qr(matrix.T @ left).Q  # [d1, most]
    left = torch.linalg.qr(matrix @ right).Q  # [d2, most]
    lower = torch.linalg.qr(matrix.T @ left).R.T  # left.T @ matrix without its right factor
    inner, values, _ = torch.linalg.svd(lower)
    return left @ inner, values


def _solve_site(
    rounds_seen: Sequence[RoundGradient], batches: Sequence[Tensor], samples: int, moving: bool
) -> Recovered:
    cohorts = find_cohorts(batches, samples)
    d2, d1 = rounds_seen[0].left.shape[0], rounds_seen[0].core.shape[1]
    widest = max(shape.left.shape[1] for shape in rounds_seen)
    if widest >= min(d1, d2) and widest > 1:
        raise refuse("full_span")(
            f"batches fill all {min(d1, d2)} dimensions of the first fully connected layer ({d2} x {d1}), so their "
            "spans say nothing",
            "use rounds with a smaller batch, or mode='least_squares' with at least as many rounds as samples",
        )
    # Two spans of K meet by chance where 2 K comes near the dimension; features are many, so they take over then.
    # The span of the v is [d2, k], that of the h [d1, k]. Two spans of k meet by chance where 2 k > d.
    factor: Factor = "v" if 3 * widest <= d2 and not moving else "h"
    tolerances = DRIFTING_ROUNDS if moving else EXACT_ROUNDS
    # Orthonormal bases, one per round: columns span the v or the h of its batch.
    bases = [shape.left if factor == "v" else row_span(shape.core) for shape in rounds_seen]
    for cohort in cohorts:
        if cohort.meets:
            cohort.basis = meet(_useful(cohort, batches), bases, len(cohort.members), angle=tolerances.angle)
    if moving:
        _drop_outliers(cohorts, bases)
    _add_pairs(cohorts, rounds_seen, batches, factor, tolerances.unexplained)
    found = _collect(cohorts, samples, d1, d2, tolerances)
    for cohort in cohorts:
        if cohort.covered and moving:
            # The spans of its rounds meet in more than its own direction, and no v holds for two rounds.
            found.known[cohort.members] = False
        elif cohort.covered and bool(found.known[cohort.members].all()):
            _uncovered(cohort, found, rounds_seen, batches, factor)
    return found


def _other_factor(shape: RoundGradient, known: Tensor, factor: Factor) -> tuple[Tensor, Tensor]:
    """The other factor of `V^T H = G`, a row per column of the known one, and how much of G's error reaches each row.

    Args:
        shape: The round, with `G = left @ core` `[d2, d1]`.
        known: `[d2, m]` V^T, or `[d1, m]` H^T; a basis in its place gives the products of each cohort all the same.
        factor: Which of the two it is.

    Returns:
        `[m, d1]` H, or `[m, d2]` V; and `[m]` the norms of the rows of the pseudo-inverse.
    """
    inverse = torch.linalg.pinv(known)  # [m, d]
    # H = pinv(V^T) G, and V = pinv(H^T) G^T; by the factors of G, whose rank r is far below d1 and d2.
    one, two = (shape.left, shape.core) if factor == "v" else (shape.core.T, shape.left.T)
    return (inverse @ one) @ two, inverse.norm(dim=1)


def row_span(core: Tensor) -> Tensor:
    """`[d1, r]` orthonormal, the span of a round's h."""
    span: Tensor = torch.linalg.qr(core.T).Q  # [d1, r]
    return span


def _drop_outliers(cohorts: Sequence[Cohort], bases: Sequence[Tensor]) -> None:
    """Forget directions that fit their rounds far worse than others do.

    A black tile's features come from the moving biases alone and point elsewhere in each round.
    """
    angles = {id(cohort): _angle(cohort, bases) for cohort in cohorts if cohort.basis is not None}
    if not angles:
        return
    typical = float(torch.tensor(list(angles.values())).median())
    for cohort in cohorts:
        if angles.get(id(cohort), 0.0) > min(TYPICAL_ANGLES * typical, MAX_OUTLIER_ANGLE):
            cohort.basis = None


def _angle(cohort: Cohort, bases: Sequence[Tensor]) -> float:
    """Root mean square angle (radians) between a cohort's directions and its rounds' spans."""
    assert cohort.basis is not None
    seen = sum(float((bases[place].T @ cohort.basis).pow(2).sum()) for place in cohort.rounds)
    share = seen / (len(cohort.rounds) * cohort.basis.shape[1])
    return float(max(0.0, 1 - share) ** 0.5)


def _useful(cohort: Cohort, batches: Sequence[Tensor]) -> list[int]:
    """Few of a cohort's rounds that still have no other sample in common."""
    if len(cohort.rounds) <= MAX_SPANS:
        return cohort.rounds
    common = set(batches[cohort.rounds[0]].tolist())
    chosen = [cohort.rounds[0]]
    for place in cohort.rounds[1:]:
        smaller = common & set(batches[place].tolist())
        if len(smaller) < len(common) or len(chosen) < 3:
            chosen.append(place)
            common = smaller
        if len(common) == len(cohort.members) and len(chosen) >= MAX_SPANS:
            break
    return chosen if len(common) == len(cohort.members) else cohort.rounds


def meet(
    rounds: Sequence[int], bases: Sequence[Tensor], most: int, *, angle: float = EXACT_ROUNDS.angle
) -> Tensor | None:
    """`[d, m]` orthonormal: where the rounds' spans meet, to within a mean angle (radians); at most `most` directions.

    >>> e = torch.eye(5, dtype=torch.float64)
    >>> meet([0, 1], [e[:, [0, 1, 2]], e[:, [2, 3]]], 1).abs().squeeze(1).tolist()
    [0.0, 0.0, 1.0, 0.0, 0.0]
    """
    if len(rounds) == 2:
        a, b = bases[rounds[0]], bases[rounds[1]]
        # Principal angles: singular values of A^T B are cosines, and 1 is a common direction. The mean of the two
        # principal vectors halves the error.
        left, cosines, right = torch.linalg.svd(a.T @ b, full_matrices=False)
        keep = int((cosines[:most] > 1 - angle**2 / 2).sum())
        if not keep:
            return None
        basis: Tensor = a @ left[:, :keep] + b @ right[:keep].T
        met: Tensor = basis / basis.norm(dim=0)
        return met
    # sum_t B_t B_t^T has eigenvalue R for directions in all R spans, and less for all others. With fewer columns
    # than rows the small Gram matrix has the same eigenvalues.
    stack = torch.cat([bases[t] for t in rounds], dim=1)  # [d, R r]
    if stack.shape[1] <= stack.shape[0]:
        values, vectors = torch.linalg.eigh(stack.T @ stack)
        vectors = stack @ vectors[:, -most:]
    else:
        values, vectors = torch.linalg.eigh(stack @ stack.T)
        vectors = vectors[:, -most:]
    # A direction at angle a to each span has eigenvalue R cos^2 a.
    keep = int((values[-most:] > len(rounds) * (1 - angle**2)).sum())
    if not keep:
        return None
    basis = vectors[:, -keep:].flip(1)
    unit: Tensor = basis / basis.norm(dim=0)
    return unit


def _add_pairs(
    cohorts: Sequence[Cohort],
    rounds_seen: Sequence[RoundGradient],
    batches: Sequence[Tensor],
    factor: Factor,
    slack: float,
) -> None:
    """In every round whose live samples are all in known cohorts, share the gradient out among the cohorts.

    With slack a round counts too if what is outside the known cohorts is at most that share of its gradient.
    """
    of_round: list[list[Cohort]] = [[] for _ in batches]
    for cohort in cohorts:
        for place in cohort.rounds:
            of_round[place].append(cohort)
    for place, shape in enumerate(rounds_seen):
        present = [cohort for cohort in of_round[place] if cohort.basis is not None]
        size = sum(cohort.basis.shape[1] for cohort in present if cohort.basis is not None)
        if not present or (size < shape.left.shape[1] and not slack):
            continue  # a sample of this round is in no known cohort; its part cannot be separated from the others'
        joined = torch.cat([cohort.basis for cohort in present if cohort.basis is not None], dim=1)
        other, errors = _other_factor(shape, joined, factor)
        left, right = (joined, other) if factor == "v" else (other.T, joined.T)  # [d2, m], [m, d1]
        # The bias gradient is the sum of the v: which combination of the left factors, fixes the scales. [m]
        total = torch.linalg.lstsq(left, shape.bias[:, None]).solution.squeeze(1)  # [m]
        floor = shape.floor
        if slack:
            # The share of the round's gradient that no known cohort explains.
            outside = float((shape.left @ shape.core - left @ right).norm() / shape.core.norm())
            if outside > slack:
                continue
            # A black tile's v is missing here, and with it the lengths of all others are a little wrong.
            floor = max(floor, outside, float((left @ total - shape.bias).norm() / shape.bias.norm()))
        start = 0
        for cohort in present:
            assert cohort.basis is not None
            own = slice(start, start + cohort.basis.shape[1])
            start = own.stop
            # A basis may hold directions of another sample, whose share would then be missing from that sample's sum:
            # such rounds are passed over.
            if not any(other.covered.intersection(cohort.members) for other in present):
                cohort.pairs.append((left[:, own], right[own], total[own], float(errors[own].max()) * floor))


def _collect(cohorts: Sequence[Cohort], samples: int, d1: int, d2: int, tolerances: Tolerances) -> Recovered:
    found = Recovered.nothing(samples, d2, d1)
    for cohort in cohorts:
        if not cohort.meets:
            continue
        if cohort.basis is None:
            # The spans of its rounds have no common direction: its samples have zero gradient.
            found.zero_gradient[cohort.members] = True
            found.v_known[cohort.members] = True
        elif cohort.pairs:
            _settle(cohort, found, tolerances)
    return found


def _uncovered(
    cohort: Cohort,
    found: Recovered,
    rounds_seen: Sequence[RoundGradient],
    batches: Sequence[Tensor],
    factor: Factor,
) -> None:
    """The basis may hold another sample's direction; the other factor is right, so find this one anew from it.

    Needs a round of which all samples are known.
    """
    for place in cohort.rounds:
        live = batches[place][~found.zero_gradient[batches[place]]]
        if not bool(found.known[live].all()):
            continue
        # The factor whose basis is right is now the known one.
        known: tuple[Tensor, Factor] = (found.h[live].T, "h") if factor == "v" else (found.v[live].T, "v")
        rows, _ = _other_factor(rounds_seen[place], *known)
        own = torch.isin(live, torch.tensor(cohort.members))
        (found.v if factor == "v" else found.h)[live[own]] = rows[own]
        return
    if factor == "v":
        found.v[cohort.members], found.v_known[cohort.members] = 0.0, False
    else:
        found.known[cohort.members] = False


def _settle(cohort: Cohort, found: Recovered, tolerances: Tolerances) -> None:
    """Average a cohort's rounds, split it, and note how far the rounds disagree."""
    # Rounds are averaged by one over the variance of their error.
    weight = torch.tensor([1 / max(error, 1e-30) ** 2 for *_, error in cohort.pairs], dtype=torch.float64)
    weight = weight / weight.sum()
    # Rounds share the basis, so their factors can be averaged; where they differ is the error, seen without the truth.
    lefts, rights, totals, _ = zip(*cohort.pairs, strict=True)
    left, right, total = (torch.tensordot(weight, torch.stack(parts), 1) for parts in (lefts, rights, totals))
    apart = max(_apart(pair, cohort.pairs[0]) for pair in cohort.pairs)
    v, h, certain = split(left, right, total, tolerance=tolerances.negative)
    if certain and apart < tolerances.apart and len(h) == len(cohort.members):
        found.v[cohort.members], found.h[cohort.members] = v, h
        found.known[cohort.members] = found.v_known[cohort.members] = True
        found.spread[cohort.members] = max(apart, 1e-7)


def _apart(a: Pair, b: Pair) -> float:
    """Relative distance of two products `left @ right`, from small products: the large ones are never made."""

    def inner(x: Pair, y: Pair) -> Tensor:
        return ((x[0].T @ y[0]) * (x[1] @ y[1].T)).sum()

    # |A - B|^2 = <A, A> + <B, B> - 2 <A, B>, with <L1 R1, L2 R2> = sum (L1^T L2) o (R1 R2^T): m x m.
    square = inner(a, a) + inner(b, b) - 2 * inner(a, b)
    return float((square.clamp(min=0) / inner(b, b).clamp(min=1e-300)).sqrt())
