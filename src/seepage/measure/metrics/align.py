"""Which guess belongs to which private example. Done once per batch; every metric shares the result.

`identity` where guesses and examples carry data-set indices, else `hungarian`: the one-to-one matching with the least
total squared error. `nearest` gives every example its best guess, so one good guess may count many times; it
is only there to repeat a published protocol, and the name is printed with the score.

Legend: k guesses, n examples, d values per example.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from seepage.errors import SeepageError, unknown
from seepage.federation.types import Ambiguity

_COLUMNS = 4096
"""Columns of `[k, d]` inputs that are converted to float64 at a time: bounds the memory of the copies."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """All guesses beside all examples of one batch. Their distances are computed once, when first asked for.

    Attributes:
        guesses: `[k, d]`, as they came.
        examples: `[n, d]`.
        shape: Of one example.
        value_range: Smallest and largest value of an input; None for features.
        fit: What is fitted per pair: any of `sign` and `scale`.
    """

    guesses: Tensor
    examples: Tensor
    shape: tuple[int, ...]
    value_range: tuple[float, float] | None
    fit: frozenset[Ambiguity]

    @cached_property
    def usable(self) -> Tensor:
        """`[k]` bool: guesses without a NaN or infinite value; the others match nothing."""
        return self.guesses.isfinite().all(1)

    @cached_property
    def places(self) -> Tensor:
        """`[k']` places of the usable guesses."""
        return self.usable.nonzero().flatten()

    @cached_property
    def costs(self) -> Tensor:
        """`[k', n]` float64: how badly each usable guess fits each example, after the allowed fit."""
        return _costs(self.guesses[self.places], self.examples, self.value_range, self.fit)

    def nearest(self) -> Tensor:
        """`[n, *shape]` each example's most similar guess, fitted and clamped; mid-grey where there is no guess."""
        return self.filled(_through(self.places, _nearest(self.costs)))

    def errors(self, chosen: Tensor) -> Tensor:
        """Mean squared error of some guesses to the example that is nearest to each, clamped and without any fit.

        Args:
            chosen: `[k]` bool: which guesses.

        Returns:
            `[chosen]` float64; infinite for a guess that is not finite.
        """
        assert self.value_range is not None  # features are not vouched for
        if self.fit:  # the costs are those after the fit
            guesses = self.guesses[chosen].clamp(*self.value_range)
            return _mean_squares(guesses, self.examples).amin(1).nan_to_num(nan=torch.inf)
        least = torch.full((len(self.guesses),), torch.inf, dtype=torch.float64)
        least[self.places] = self.costs.amin(1)
        return least[chosen]

    def filled(self, permutation: Tensor) -> Tensor:
        """`[n, *shape]` the guesses at `permutation`, fitted and clamped, with mid-grey, or zeros, in the gaps."""
        g, x, value_range = self.guesses, self.examples, self.value_range
        blank = 0.0 if value_range is None else sum(value_range) / 2
        filled = torch.full_like(x, blank, dtype=torch.promote_types(g.dtype, x.dtype))
        for example, place in enumerate(permutation.tolist()):
            if place >= 0:
                guess = _fitted(g[place], x[example], value_range, self.fit)
                filled[example] = guess if value_range is None else guess.clamp(*value_range)
        return filled.reshape(len(self.examples), *self.shape)


@dataclass(frozen=True, eq=False)
class Alignment:
    """Guesses in the order of the examples.

    Attributes:
        permutation: `[n]` int64: the place of each example's guess among the guesses, -1 for none.
        name: The method, with what was fitted: `identity`, `hungarian`, `hungarian+sign+scale`, ...
        guesses: `[n, *shape]` the matched guesses, fitted and clamped; where there is none, mid-grey.
        pairs: What was matched, with the distances.
    """

    permutation: Tensor
    name: str
    guesses: Tensor
    pairs: Pairs

    @property
    def matched(self) -> Tensor:
        """`[n]` bool: whether the example has a guess."""
        return self.permutation >= 0


def align(
    guesses: Tensor,
    truth: Tensor,
    *,
    method: str = "hungarian",
    value_range: tuple[float, float] | None = (0.0, 1.0),
    ambiguity: Collection[Ambiguity] = (),
    guess_indices: Tensor | None = None,
    truth_indices: Tensor | None = None,
) -> Alignment:
    """Match guesses with examples, on the CPU.

    Guesses with a NaN or infinite value are set aside and match nothing. With `sign` or `scale` in
    `ambiguity` a factor per pair is fitted to the truth by least squares: for `sign` +1 or -1, for `scale`
    0 or more, for both any number; for `sign` of inputs also the negative `low + high - guess`. This helps the
    attacker, so it is done only where the method cannot know, and the name tells of it.

    Args:
        guesses: `[k, *shape]`; k may be below or above n.
        truth: `[n, *shape]`.
        method: `identity` (by index), `hungarian` or `nearest`.
        value_range: Smallest and largest value of an input; guesses are clamped to it before they are
            compared. None for features: these are compared by cosine, and nothing is clamped.
        ambiguity: What the reconstruction claims not to know; only `sign` and `scale` matter here.
        guess_indices: `[k]` data-set indices of the guesses, for `identity`.
        truth_indices: `[n]` data-set indices of the examples, for `identity`.

    Returns:
        The alignment. `hungarian` and `identity` (with distinct true indices) are one-to-one.

    Raises:
        SeepageError: For an unknown method, shapes that do not fit, or `identity` without indices.

    >>> truth = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> align(truth[[2, 0]], truth).permutation
    tensor([ 1, -1,  0])
    """
    if method not in METHODS:
        raise unknown("alignment", method, METHODS)
    if guesses.shape[1:] != truth.shape[1:]:
        raise SeepageError(
            f"guesses of shape {tuple(guesses.shape[1:])} cannot be matched with examples of shape "
            f"{tuple(truth.shape[1:])}; reshape the guesses, or pass the true inputs of that layer"
        )
    fit = frozenset(ambiguity) & ({"sign"} if value_range is None else {"sign", "scale"})
    # guesses [k, d], examples [n, d]
    pairs = Pairs(_rows(guesses), _rows(truth), tuple(truth.shape[1:]), value_range, fit)
    if method == "identity":
        permutation = _by_index(guess_indices, truth_indices, pairs.usable)
    else:
        permutation = _through(pairs.places, _ASSIGN[method](pairs.costs))
    name = "+".join([method, *(word for word in ("sign", "scale") if word in fit)])
    return Alignment(permutation, name, pairs.filled(permutation), pairs)


def _rows(tensor: Tensor) -> Tensor:
    rows = tensor.detach().cpu().flatten(1)
    return rows if rows.dtype == torch.float64 else rows.float()


def _through(places: Tensor, chosen: Tensor) -> Tensor:
    """Turn places among the finite guesses into places among all of them; -1 stays."""
    if not len(places):
        return chosen
    return torch.where(chosen >= 0, places[chosen.clamp_min(0)], chosen)


def _by_index(guess_indices: Tensor | None, truth_indices: Tensor | None, usable: Tensor) -> Tensor:
    """`[n]` int64 place of each example's guess with the same data-set index; -1 for none.

    Args:
        guess_indices: `[k]` indices of the guesses.
        truth_indices: `[n]` indices of the examples.
        usable: `[k]` bool: whether a guess is finite.
    """
    if guess_indices is None or truth_indices is None:
        raise SeepageError(
            "alignment by identity needs the data-set indices of the guesses and of the truth, and one of "
            "them has none; use method='hungarian'"
        )
    slots = guess_indices.tolist()
    if len(slots) != len(usable) or len(set(slots)) != len(slots):
        raise SeepageError(
            f"{len(slots)} indices for {len(usable)} guesses, {len(set(slots))} of them distinct, do not say "
            "which guess is which; give one index per guess, each once"
        )
    place = {slot: k for k, slot in enumerate(slots) if usable[k]}
    return torch.tensor([place.get(slot, -1) for slot in truth_indices.tolist()], dtype=torch.int64)


def _hungarian(costs: Tensor) -> Tensor:
    """`[n]` guess of each example in the one-to-one matching of least total cost (Kuhn 1955)."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(costs.numpy())
    permutation = torch.full((costs.shape[1],), -1, dtype=torch.int64)
    permutation[torch.from_numpy(columns)] = torch.from_numpy(rows)
    return permutation


def _nearest(costs: Tensor) -> Tensor:
    """`[n]` best guess of each example; one guess may serve many examples."""
    if not len(costs):
        return torch.full((costs.shape[1],), -1, dtype=torch.int64)
    return costs.argmin(0)


_ASSIGN: dict[str, Callable[[Tensor], Tensor]] = {"hungarian": _hungarian, "nearest": _nearest}
METHODS: tuple[str, ...] = ("identity", *_ASSIGN)


def _costs(g: Tensor, x: Tensor, value_range: tuple[float, float] | None, fit: Collection[Ambiguity]) -> Tensor:
    """`[k, n]` float64: how badly each guess fits each example, after the allowed fit."""
    if value_range is None:
        cosines = _inner(_unit(g), _unit(x))
        return 1 - (cosines.abs() if "sign" in fit else cosines)
    costs = _costs_of_factors(g, x, value_range, fit)
    if "sign" in fit:
        negative = sum(value_range) - g
        costs = torch.minimum(costs, _costs_of_factors(negative, x, value_range, frozenset(fit) - {"sign"}))
    return costs


def _costs_of_factors(g: Tensor, x: Tensor, value_range: tuple[float, float], fit: Collection[Ambiguity]) -> Tensor:
    if "scale" in fit:
        # the error left by the best factor: |x|^2 - <u, x>^2, with u = g / |g|
        along = _inner(_unit(g), x)
        along = along if "sign" in fit else along.clamp_min(0)
        return (_squares(x) - along.square()).clamp_min(0) / x.shape[1]
    costs = _mean_squares(g.clamp(*value_range), x)
    if "sign" in fit:
        costs = torch.minimum(costs, _mean_squares((-g).clamp(*value_range), x))
    return costs


def _mean_squares(g: Tensor, x: Tensor) -> Tensor:
    """`[k, n]` MSE of every pair, without a `[k, n, d]` temporary."""
    return (_squares(g)[:, None] + _squares(x) - 2 * _inner(g, x)).clamp_min(0) / x.shape[1]


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """`[k, n]` float64 inner products; d is cut so that no float64 copy of the inputs is held."""
    total = a.new_zeros((len(a), len(b)), dtype=torch.float64)
    for p, q in zip(a.split(_COLUMNS, 1), b.split(_COLUMNS, 1), strict=True):
        total += p.double() @ q.double().T
    return total


def _squares(a: Tensor) -> Tensor:
    """`[k]` float64 squared norms."""
    return torch.stack([p.double().square().sum(1) for p in a.split(_COLUMNS, 1)]).sum(0)


def _unit(a: Tensor) -> Tensor:
    """Rows of length 1, zero rows left alone; divided by the largest value first, which cannot overflow."""
    largest = a.abs().amax(1, keepdim=True)
    return nn.functional.normalize(a / torch.where(largest > 0, largest, 1), dim=1)


def _fitted(
    guess: Tensor, truth: Tensor, value_range: tuple[float, float] | None, fit: Collection[Ambiguity]
) -> Tensor:
    """The guess `[d]`, turned and scaled as allowed, that is nearest to the truth `[d]`."""
    if value_range is None:
        turned = "sign" in fit and _unit(guess[None].double())[0] @ truth.double() < 0
        return -guess if turned else guess
    ways = [guess, -guess, sum(value_range) - guess] if "sign" in fit else [guess]
    fitted = [_scaled(way, truth) if "scale" in fit else way for way in ways]
    # By the cost that chose the pair: a fitted factor is compared before it is clamped.
    errors = [((way if "scale" in fit else way.clamp(*value_range)).double() - truth).square().sum() for way in fitted]
    return fitted[int(torch.stack(errors).argmin())]


def _scaled(guess: Tensor, truth: Tensor) -> Tensor:
    """The guess `[d]` times the factor, 0 or more, that brings it nearest to the truth `[d]`."""
    u = _unit(guess[None].double())[0]
    return u * (u @ truth.double()).clamp_min(0)
