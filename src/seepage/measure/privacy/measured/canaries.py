"""Neighboring inputs of a filter, one with a canary and one without, and what the filter makes of them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seepage.errors import SeepageError, short
from seepage.federation.types import Tensors

Array: TypeAlias = npt.NDArray[np.float64]
Filter: TypeAlias = Callable[[Tensors], Mapping[str, Tensor]]
"""Gives what is sent for an update: named tensors for named tensors."""
Neighbors = Literal["join", "replace"]

SHAPES: Mapping[str, tuple[int, ...]] = {"weight": (6, 8), "bias": (6,)}
"""Shapes of the update that a filter is called on."""
MAX_ENTRIES = 4096
"""Largest number of entries of an update that is measured on; a filter treats a small one as it does a large one."""
NEARLY_ZERO = 1e-6
"""What stands for the zero update where a filter fails on that, over the canary: closer to it, if anything."""
SINGLE = "single"
"""Name of the parameter that is a single number."""
LONG = 1e4
"""Length of the canary that is far longer than the clip, over the clip."""


@dataclass(frozen=True)
class InRounds:
    """A filter that needs the round: `call(update, t)`."""

    call: Callable[[Tensors, int], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Batched:
    """A filter that treats one update many times in one call, each time with randomness of its own.

    Attributes:
        call: `call(update, count)` gives tensors `[count, *shape]`.
    """

    call: Callable[[Tensors, int], Mapping[str, Tensor]]


@dataclass(frozen=True)
class OfClients:
    """What a server makes of its clients' updates, the canary among them: its unit is the client.

    With `join`, a client that is not there sends the zero update and keeps its weight, as where the mean's denominator
    is fixed. The other clients send the same in every call: an update of the clip's length against the canary of all
    entries, so that a clip of the mean in place of the updates is passed twice.

    Attributes:
        call: `call(updates, weights)` gives the aggregate, as named tensors.
        weights: Weight of each client, such as its number of examples; of the canary's first.

    Raises:
        SeepageError: For weights that are no numbers above 0.
    """

    call: Callable[[list[Tensors], list[float]], Mapping[str, Tensor]]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.weights or not all(0 < weight < math.inf for weight in self.weights):
            raise SeepageError(f"clients' weights are numbers above 0, got {self.weights}; give one for each client")

    def beside(self, other: Callable[[], Tensors]) -> Filter:
        """The filter that this is of the first client's update beside others', new tensors in each call."""
        return lambda update: self.call([update, *(other() for _ in self.weights[1:])], list(self.weights))

    def __str__(self) -> str:
        first, *others = self.weights
        return f", of a client with weight {first:g} of {sum(self.weights):g} beside {len(others)} others"


Called: TypeAlias = Filter | InRounds | Batched | OfClients


class Sample(Protocol):
    """Draws outputs for one input: `[trials, rounds, d]`, with fresh randomness for each."""

    def __call__(self, trials: int, rounds: int) -> Array: ...


@dataclass(frozen=True)
class Pair:
    """Two neighboring inputs, as what is sent for them.

    Attributes:
        name: What the canary is.
        without: Draws what is sent without it.
        included: Draws what is sent with it.
        direction: `[d]` what an identity would add for the canary; None: unknown.
    """

    name: str
    without: Sample
    included: Sample
    direction: Array | None = None

    def sample(self, side: int, trials: int, rounds: int) -> Array:
        """Outputs without (side 0) or with the canary (side 1)."""
        return (self.included if side else self.without)(trials, rounds)


def pairs_of(
    call: Called,
    *,
    shapes: Mapping[str, Sequence[int]] = SHAPES,
    clip: float = 1.0,
    neighbors: Neighbors = "join",
    seed: int = 0,
) -> list[Pair]:
    """Neighboring updates for a filter.

    With `join` each pair is the zero update, which stands for a client that sends nothing of its own, and a canary.
    With `replace` the two are any updates: a canary and its negative, which lie twice the clip apart.

    Args:
        call: The filter.
        shapes: Shapes of the update's tensors.
        clip: Norm of canaries; the norm that the filter clips to, where one is known.
        neighbors: Which updates are neighbors.
        seed: Draws the signs of canaries.

    Raises:
        SeepageError: For a clip out of range, and for no or too many entries.
    """
    if not 0 < clip < math.inf:
        raise SeepageError(f"clip must be a number above 0, got {clip}; give the norm that the filter clips to")
    layout = RowLayout({name: tuple(shape) for name, shape in shapes.items()})
    canaries, whose = list(_canaries(layout, clip, seed)), ""
    if isinstance(call, OfClients):
        against = -dict(canaries).get("all entries", canaries[0][1])
        whose, call = str(call), call.beside(lambda: layout.tensors(against))
    base, beside = (-1.0, "") if neighbors == "replace" else (0.0, "")
    try:
        sent = layout.with_extras(_Calls(call, layout, layout, base * canaries[0][1]).sent(0))
    except ArithmeticError:  # some clips divide by the norm
        base, beside = NEARLY_ZERO, f" (against {NEARLY_ZERO:g} of it: of zero the filter makes an error)"
        sent = layout.with_extras(_Calls(call, layout, layout, base * canaries[0][1]).sent(0))
    return [
        Pair(
            name + whose + beside,
            _Calls(call, layout, sent, base * canary),
            _Calls(call, layout, sent, canary),
            sent.extended(canary - base * canary),
        )
        for name, canary in canaries
    ]


def passes_single_numbers(call: Called, shapes: Mapping[str, Sequence[int]], clip: float) -> bool:
    """Whether a parameter that is a single number, as a learned temperature is, leaves as it is.

    Code that changes arrays in place leaves such alone, since NumPy makes new numbers of them. Of a server's mechanism
    it is not asked: what leaves is no client's number.
    """
    if isinstance(call, OfClients):
        return False
    wider = RowLayout({**{name: tuple(shape) for name, shape in shapes.items()}, SINGLE: ()})
    canary = np.zeros(wider.size)
    canary[-1] = clip
    canary[0] = clip / 2
    try:
        found = _Calls(call, wider, wider, canary)(5, 1)[:, 0, len(canary) - 1]
    except Exception:  # a filter may know its own tensors alone
        return False
    return bool(np.all(found == np.float32(clip)))


def _canaries(layout: "RowLayout", clip: float, seed: int) -> Iterator[tuple[str, Array]]:
    """Names and rows `[size]` of canaries: concentrated and spread out at Euclidean norm `clip`, and beyond the clip.

    Args:
        layout: Places of the update's tensors in a row.
        clip: Norm that the filter clips to.
        seed: Seed of the signs.
    """
    size = layout.size
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size)
    many = np.flatnonzero(~layout.single)
    if len(many):
        dirac = np.zeros(size)
        dirac[many[len(many) // 2]] = clip
        yield "one entry", dirac
        yield "all entries", clip * signs / math.sqrt(size)
        yield f"{LONG:g} times the clip", LONG * clip * signs / math.sqrt(size)
    alone = np.flatnonzero(layout.single)
    if len(alone):
        number = np.zeros(size)
        number[alone[0]] = clip
        yield "a single number", number


class RowLayout:
    """How named tensors become one row of numbers: their entries, then a code for what was not as expected."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.size = sum(self.sizes.values())
        if not 0 < self.size <= MAX_ENTRIES:
            raise SeepageError(
                f"an update with {self.size} entries cannot be measured on; give shapes with 1 to {MAX_ENTRIES}"
            )
        self.single = np.concatenate([np.full(n, self.shapes[name] == ()) for name, n in self.sizes.items()])

    def with_extras(self, sent: Mapping[str, Tensor]) -> "RowLayout":
        """With what a filter sends besides, such as a metric: entries of their own, behind the others.

        Raises:
            SeepageError: Where it sent no named tensors.
        """
        _check_named(sent)
        extras = {name: tuple(np.shape(_numbers(sent[name]))) for name in sent if name not in self.shapes}
        return RowLayout({**self.shapes, **extras}) if extras else self

    def extended(self, row: Array) -> Array:
        """A row of a filter's input as one of its output: nothing besides, and the code 0 of a regular output."""
        return np.append(row, np.zeros(self.size + 1 - len(row)))

    def tensors(self, row: Array) -> Tensors:
        """A row of entries as new named tensors, in single precision as models have."""
        parts = torch.from_numpy(row.astype(np.float32)).split_with_sizes(list(self.sizes.values()))
        return {name: part.reshape(self.shapes[name]) for name, part in zip(self.shapes, parts, strict=True)}

    def rows(self, sent: Mapping[str, Tensor], count: int | None = None) -> Array:
        """What is sent as `[count, d]` rows. NaN stands for tensors left out; the last entry counts those besides.

        Args:
            sent: Named tensors, each with a leading dimension where `count` is given.
            count: How many outputs they hold; None: one.
        """
        _check_named(sent)
        n = 1 if count is None else count
        out = np.full((n, self.size + 1), np.nan)
        start, odd = 0, sum(name not in self.sizes for name in sent)
        for name, size in self.sizes.items():
            if name in sent:
                array = _numbers(sent[name])
                if array.size == n * size:
                    out[:, start : start + size] = array.reshape(n, size)
                else:
                    odd += array.size
            start += size
        out[:, -1] = odd
        return out


def _numbers(sent: object) -> npt.NDArray[Any]:
    """A tensor's or an array's numbers, in memory of the filter's."""
    if isinstance(sent, Tensor):
        sent = sent.detach().cpu()
        return (sent.double() if sent.dtype == torch.bfloat16 else sent).numpy()
    array = np.asarray(sent) if not isinstance(sent, Mapping) else np.asarray(None)
    if array.dtype.kind not in "fiub":
        raise SeepageError(
            f"the filter sent {short(type(sent).__name__)} in place of a tensor; return named tensors, not nested"
        )
    return array


def _check_named(sent: object) -> None:
    if not isinstance(sent, Mapping):
        raise SeepageError(
            f"the filter returned {short(str(type(sent).__name__))} and not named tensors; return a dict of them"
        )


@dataclass(frozen=True)
class _Calls:
    """Calls of a filter on one update; each call is given tensors of its own, which it may write into."""

    call: Filter | InRounds | Batched
    given: RowLayout
    out: RowLayout
    row: Array

    def __call__(self, trials: int, rounds: int) -> Array:
        count = trials * rounds
        if isinstance(self.call, Batched):
            found = self.out.rows(self.call.call(self.given.tensors(self.row), count), count)
        else:
            found = np.concatenate([self.out.rows(self.sent(i % rounds)) for i in range(count)])
        return found.reshape(trials, rounds, -1)

    def sent(self, t: int) -> Mapping[str, Tensor]:
        """What one call sends."""
        update = self.given.tensors(self.row)
        if isinstance(self.call, Batched):
            return {name: tensor[0] for name, tensor in self.call.call(update, 1).items()}
        return self.call.call(update, t) if isinstance(self.call, InRounds) else self.call(update)
