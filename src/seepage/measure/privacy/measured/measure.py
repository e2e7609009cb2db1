"""Measure the epsilon of a filter by calling it on neighboring inputs, again and again.

Three numbers stand side by side: the *stated* epsilon is somebody's word, the *computed* one is what an accountant
makes of the filter's options, and the *measured* one is a lower bound from what the filter does. A bound above a stated
epsilon contradicts the statement. A bound below it proves nothing: another canary or event may tell more.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from seepage.errors import SeepageError
from seepage.measure.privacy.accounting import check_installed
from seepage.measure.privacy.measured.canaries import (
    SHAPES,
    Array,
    Called,
    Neighbors,
    Pair,
    pairs_of,
    passes_single_numbers,
)
from seepage.measure.privacy.measured.events import Event, best_event, lower_bound
from seepage.measure.privacy.measured.gaussian import GaussianFit, fitted
from seepage.measure.privacy.measured.statistics import Statistic, statistics_of

Verdict = Literal["contradicted", "contradicted by Gaussian fit", "contradicted by sameness", "not contradicted"]
Progress = Callable[[float, float], None]
"""Called with how many calls were made, of how many."""
Unit = Literal["update", "example"]

CALLS = 120_000
"""Calls of the filter by default: the fewest, rounded, with which a bound can exceed an epsilon of 10."""
BLIND = (
    "all that it sends is the same whatever it is given (or nothing, or no numbers), so it does not work as a filter"
)
"""Said of a filter that would pass every measurement, and from which nothing could be learned."""
CHUNK = 512
"""Calls of the filter between two checks of the time limit."""
FEWEST = 1000
"""Fewest calls with which anything is measured."""
FEW = 8000
"""Calls that the Gaussian fit is given, as long as they are at most 40 % of all."""
SINGLE_NUMBERS = (
    "a parameter that is a single number leaves as it is, neither clipped nor noised: no epsilon holds for a model "
    "with such, as a learned temperature or the counter of batch norm is"
)
DOUBT = 1.25
"""A score that was learned is chosen where it promises so much more than one that was not."""


@dataclass(frozen=True, kw_only=True)
class EpsilonClaims:
    """What the epsilons of a filter are about, and those that are claimed for it.

    Attributes:
        delta: The delta of all epsilons, in (0, 1).
        rounds: Rounds that they are over.
        unit: What joins, leaves or is replaced: a client's whole `update`, or one `example`.
        neighbors: `join`: the unit is there or is not, for which the zero update stands. `replace`: it is one or
            another, which a clip leaves twice as far apart. Accountants of this package count `join`.
        stated: The claimed epsilon over all rounds; None: none.
        computed: What an accountant computed, over all rounds; None: nothing.
    """

    delta: float
    rounds: int = 1
    unit: Unit = "update"
    neighbors: Neighbors = "join"
    stated: float | None = None
    computed: float | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredEpsilon(EpsilonClaims):
    """What a filter's epsilon is at least, and what that says of the epsilons claimed for it.

    Attributes:
        low: The measured epsilon: a lower bound that exceeds the true one in 5 % of measurements at most, whatever
            the filter does, as long as its calls are independent of each other.
        ceiling: The largest `low` that so many trials could have given.
        canary: The pair of inputs behind `low`.
        statistic: The score behind it.
        hits: Trials with the event, and all, of the likelier input.
        false_hits: The same of the other input.
        rounds_per_trial: Calls in one of these trials.
        fit: Gaussian noise fitted to a score; None: not tried, or there is no noise to fit.
        deterministic: All outputs of one input were the same, bit by bit, and differed from those of another. Where
            that is always so, no epsilon holds.
        calls: Calls made.
        seconds: How long they took.
        tried: Pairs of inputs that were tried.
        notes: What else was seen, one sentence each.
    """

    low: float
    ceiling: float
    canary: str
    statistic: str
    hits: tuple[int, int]
    false_hits: tuple[int, int]
    rounds_per_trial: int
    fit: GaussianFit | None
    deterministic: bool
    calls: int
    seconds: float
    tried: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def verdict(self, claimed: float) -> Verdict:
        """What the measurement says of an epsilon claimed for the filter."""
        if self.low > claimed:
            return "contradicted"
        if self.fit is not None and self.fit.plausible and self.fit.epsilon[0] > claimed:
            return "contradicted by Gaussian fit"
        if self.deterministic and claimed < math.inf:
            return "contradicted by sameness"
        return "not contradicted"

    @property
    def stated_verdict(self) -> Verdict | None:
        """Of the stated epsilon; None where none was."""
        return None if self.stated is None else self.verdict(self.stated)

    @property
    def computed_verdict(self) -> Verdict | None:
        """Of the computed epsilon; None where none was."""
        return None if self.computed is None else self.verdict(self.computed)

    @property
    def contradicted(self) -> bool:
        """Whether any epsilon claimed for the filter is."""
        return any(found not in (None, "not contradicted") for found in (self.stated_verdict, self.computed_verdict))

    @property
    def beyond(self) -> tuple[str, float] | None:
        """A claim that so many calls could not have contradicted without an assumption; None where they could.

        Of a filter whose outputs never differ sameness tells, whatever is claimed.
        """
        claims = (("stated", self.stated), ("computed", self.computed))
        stated = [(what, claimed) for what, claimed in claims if claimed is not None and claimed >= self.ceiling]
        return stated[0] if stated and not self.contradicted else None

    @property
    def line(self) -> str:
        """One sentence for a log or a report."""
        fit = self.fit
        if self.deterministic:
            beside = "no noise was seen at all, so no epsilon holds"
        elif fit is None:
            beside = "no Gaussian fit"
        elif not fit.plausible:
            beside = "the noise is not Gaussian, so no fit"
        else:
            beside = f"by Gaussian fit {fit.epsilon[1]:.3g}, 95 % interval [{fit.epsilon[0]:.3g}, {fit.epsilon[2]:.3g}]"
        calls = f"{self.calls:,} calls with and without one {self.unit}"
        if self.low > 0:
            shown = f"{calls} show an epsilon of at least {self.low:.3g}"
        else:
            shown = f"{calls} are not told apart beyond doubt"
        return f"{shown} (95 %, calls independent; they could show {self.ceiling:.3g}); {beside}"

    def table(self) -> dict[str, Any]:
        """As JSON, where infinite numbers are the word `Infinity`."""
        verdicts = {"stated_verdict": self.stated_verdict, "computed_verdict": self.computed_verdict}
        fit = None if self.fit is None else self.fit.table()
        found: dict[str, Any] = _words({**asdict(self), "fit": fit, **verdicts, "line": self.line})
        return found


@dataclass(frozen=True, kw_only=True)
class Measurement(EpsilonClaims):
    """A measurement to make: of a filter by `epsilon`, or of your own pairs of outputs by `pairs`.

    Part of the calls serves to choose the pair, the score and the event; the bound rests on fresh ones.

    Attributes:
        alike: All rounds have the same noise, drawn anew in each, so that one stands for all in the Gaussian fit. Else
            each trial is all rounds, which takes as many calls. The bound without assumption rests on trials of
            all rounds, or of the first one, in either case.
        calls: Most calls.
        seconds: Stop calling after this time; None: never. What is measured by then counts.
        progress: Called with how many calls were made, of how many.

    Raises:
        SeepageError: For values out of range.

    Example:
        >>> import torch
        >>> def forgotten(update):  # clips, and adds no noise
        ...     norm = torch.cat([t.flatten() for t in update.values()]).norm()
        ...     return {name: t / max(norm, 1.0) for name, t in update.items()}
        >>> found = Measurement(delta=1e-5, stated=3.0, calls=2000).epsilon(forgotten)
        >>> found.stated_verdict, found.deterministic, found.low > 5
        ('contradicted', True, True)
    """

    alike: bool = True
    calls: int = CALLS
    seconds: float | None = 50.0
    progress: Progress | None = None

    def __post_init__(self) -> None:
        wrong = []
        if not 0 < self.delta < 1:
            wrong.append(f"delta in (0, 1), got {self.delta}")
        for name, claimed in (("stated", self.stated), ("computed", self.computed)):
            if claimed is not None and not claimed >= 0:
                wrong.append(f"a {name} epsilon of at least 0, got {claimed}")
        if self.rounds < 1:
            wrong.append(f"rounds >= 1, got {self.rounds}")
        if self.calls < FEWEST:
            wrong.append(f"calls >= {FEWEST}, got {self.calls}")
        if wrong:
            raise SeepageError(f"measuring epsilon needs {'; '.join(wrong)}; correct the value")

    def epsilon(
        self,
        call: Called,
        *,
        clip: float = 1.0,
        shapes: Mapping[str, Sequence[int]] = SHAPES,
        seed: int = 0,
    ) -> MeasuredEpsilon:
        """Measure a filter that takes a client's update and gives what is sent; its unit is the whole update.

        Args:
            call: The filter: named tensors for named tensors, with fresh randomness in each call. `InRounds` where it
                needs the round, `Batched` where it can treat many in one call, which is faster; `OfClients`, for a
                server's mechanism, whose unit is the client.
            clip: Norm of the canaries: the norm that the filter clips to, in the claim.
            shapes: Shapes of the update's tensors, as few and small as the filter's options allow.
            seed: Draws the canaries. The filter's own randomness is its own.

        Raises:
            SeepageError: For a filter that returns no named tensors. What the filter raises goes through.
        """
        found = self.pairs(pairs_of(call, shapes=shapes, clip=clip, neighbors=self.neighbors, seed=seed))
        if () not in map(tuple, shapes.values()) and passes_single_numbers(call, shapes, clip):
            found = replace(found, notes=(*found.notes, SINGLE_NUMBERS))
        return found

    def pairs(self, pairs: Sequence[Pair]) -> MeasuredEpsilon:
        """The measurement on outputs of your own mechanism for two neighboring inputs."""
        check_installed()  # before the calls: the fit states an epsilon
        if not pairs:
            raise SeepageError("measuring epsilon needs at least one pair of inputs; correct the value")
        meter = _CallMeter(self.calls, self.seconds, self.progress)
        # Rounds drawn together, and those that the fit composes of single ones.
        own, composed = (1, self.rounds) if self.alike else (self.rounds, 1)
        looks = _look(pairs, own, meter)
        chosen = _choose(looks, composed, meter, self.delta)
        fit = _fit(looks, own, meter, self.delta, composed)
        event = _tune(chosen, meter, self.delta)
        n1 = max(1, round(event.share * meter.left / chosen.calls))
        n0 = max(1, round((1 - event.share) * meter.left / chosen.calls))
        k1, n1, k0, n0 = _count(chosen, event, n1, n0, meter)
        low, ceiling = (
            float(lower_bound(a, n1, b, n0, delta=self.delta, error=event.error)) for a, b in ((k1, k0), (n1, 0))
        )
        meter.done()
        return MeasuredEpsilon(
            delta=self.delta, rounds=self.rounds, unit=self.unit, neighbors=self.neighbors, stated=self.stated,
            computed=self.computed, low=low, ceiling=ceiling, canary=chosen.pair.name, statistic=chosen.statistic.name,
            hits=(k1, n1), false_hits=(k0, n0), rounds_per_trial=chosen.calls, fit=fit,
            deterministic=any(look.deterministic for look in looks), calls=meter.made, seconds=meter.seconds,
            tried=tuple(pair.name for pair in pairs), notes=(BLIND,) if all(look.blind for look in looks) else (),
        )  # fmt: skip


class _CallMeter:
    """Calls made and the time they took; how many are left follows from both."""

    def __init__(self, calls: int, limit: float | None, progress: Progress | None) -> None:
        self.most, self.limit, self.progress = calls, limit, progress
        self.made, self.start = 0, time.monotonic()
        self._warm = (0, 0.0)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    @property
    def total(self) -> float:
        """Calls that the number and the clock allow together, at the pace since it was warm."""
        calls, seconds = self.made - self._warm[0], self.seconds - self._warm[1]
        if self.limit is None or not calls:
            return self.most
        more = max(0.0, 0.95 * self.limit - self.seconds) * calls / max(seconds, 1e-9)
        return min(float(self.most), self.made + more)

    def warm(self) -> None:
        """What was done so far says nothing of the pace: first calls load what they need."""
        self._warm = (self.made, self.seconds)

    @property
    def left(self) -> float:
        return max(0.0, self.total - self.made)

    def draw(self, pair: Pair, side: int, trials: int, rounds: int) -> Array:
        found = pair.sample(side, trials, rounds)
        self.made += trials * rounds
        if self.progress is not None:
            self.progress(min(self.made, self.total), self.total)
        return found

    def done(self) -> None:
        if self.progress is not None:
            self.progress(self.made, self.made)


@dataclass(frozen=True)
class _Look:
    """First outputs of a pair, `[n, rounds, d]` of either side; statistics are learned from half of them."""

    pair: Pair
    without: Array
    included: Array
    statistics: list[Statistic]

    @property
    def rest(self) -> tuple[Array, Array]:
        return self.without[len(self.without) // 2 :], self.included[len(self.included) // 2 :]

    @property
    def blind(self) -> bool:
        """Whether all outputs, without the canary and with it, are the same, bit by bit."""
        return self._constant and self._equal_first

    @property
    def deterministic(self) -> bool:
        """Whether neither input's outputs ever varied, and the two differ."""
        return self._constant and not self._equal_first

    @property
    def _constant(self) -> bool:
        rows = (outputs.reshape(-1, outputs.shape[-1]) for outputs in (self.without, self.included))
        return all(np.array_equal(row, np.broadcast_to(row[:1], row.shape), equal_nan=True) for row in rows)

    @property
    def _equal_first(self) -> bool:
        return np.array_equal(self.without[0, 0], self.included[0, 0], equal_nan=True)


@dataclass(frozen=True)
class _Chosen:
    """The pair and score of the bound, and how many calls make a trial; `group` outputs of one draw are added up."""

    pair: Pair
    statistic: Statistic
    rounds: int
    group: int
    event: Event

    @property
    def calls(self) -> int:
        return self.rounds * self.group


def _look(pairs: Sequence[Pair], rounds: int, meter: _CallMeter) -> list[_Look]:
    """Draw about a tenth of the budget's calls, shared by all pairs, from which `_choose` picks."""
    for pair in pairs:
        meter.draw(pair, 1, 1, rounds)
    meter.warm()
    for pair in pairs:  # how long does a call take?
        meter.draw(pair, 0, 5, rounds)
    n = int(np.clip(0.1 * meter.total / (2 * len(pairs) * rounds), 40, 1000))
    found = []
    for pair in pairs:
        without, included = (meter.draw(pair, side, n, rounds) for side in (0, 1))
        found.append(
            _Look(pair, without, included, statistics_of(without[: n // 2], included[: n // 2], pair.direction))
        )
    return found


def _choose(looks: Sequence[_Look], rounds: int, meter: _CallMeter, delta: float) -> _Chosen:
    """The pair, score and length of a trial with the largest expected bound."""
    best: _Chosen | None = None
    for look in looks:
        own = look.without.shape[1]
        for statistic in look.statistics:
            scores = [statistic.of_trials(outputs) for outputs in look.rest]
            for group in {1, rounds}:
                a, b = (side[: len(side) // group * group].reshape(-1, group).sum(1) for side in scores)
                if group > 1 and min(len(a), len(b)) < 10:
                    continue
                event = best_event(a, b, meter.left / (own * group), delta, quick=True)
                if statistic.learned:
                    event = replace(event, expected=event.expected / DOUBT)
                if best is None or event.expected > best.event.expected:
                    best = _Chosen(look.pair, statistic, own, group, event)
    assert best is not None
    return best


def _fit(looks: Sequence[_Look], own: int, meter: _CallMeter, delta: float, composed: int) -> GaussianFit | None:
    """A tenth of the calls, more of few, for Gaussian noise on the linear score with the largest mu."""
    best: tuple[float, Pair, Statistic] | None = None
    for look in looks:
        for statistic in look.statistics:
            if not statistic.linear:
                continue
            a, b = (statistic.of_trials(outputs) for outputs in look.rest)
            spread = math.sqrt((a.var() + b.var()) / 2)
            if not spread > 1e-12 * max(np.abs(a).max(), np.abs(b).max()):
                continue
            mu = abs(b.mean() - a.mean()) / spread / (DOUBT if statistic.learned else 1.0)
            if best is None or mu > best[0]:
                best = (mu, look.pair, statistic)
    if best is None:
        return None
    _, pair, statistic = best
    n = max(40, int(max(0.1 * meter.total, min(0.4 * meter.total, FEW)) / (2 * own)))
    without, included = (_scored(pair, statistic, side, n, own, meter) for side in (0, 1))
    return fitted(
        without, included, canary=pair.name, statistic=statistic.name, delta=delta, rounds=composed,
        alike=own == 1 and composed > 1,
    )  # fmt: skip


def _scored(pair: Pair, statistic: Statistic, side: int, trials: int, rounds: int, meter: _CallMeter) -> Array:
    """Scores of new trials, drawn a chunk at a time so that only scores are held."""
    sizes = [min(CHUNK, trials - start) for start in range(0, trials, CHUNK)]
    return np.concatenate([statistic.of_trials(meter.draw(pair, side, size, rounds)) for size in sizes])


def _tune(chosen: _Chosen, meter: _CallMeter, delta: float) -> Event:
    """A tenth of the calls left, for the threshold of the event and the division of the trials."""
    n = max(20, int(0.05 * meter.left / chosen.calls))
    without, included = (_scored(chosen.pair, chosen.statistic, side, n, chosen.calls, meter) for side in (0, 1))
    return best_event(without, included, meter.left / chosen.calls, delta)


def _count(chosen: _Chosen, event: Event, n1: int, n0: int, meter: _CallMeter) -> tuple[int, int, int, int]:
    """Count the event in new trials, by turns of either side, until they or the time are used up."""
    made, hits, wanted = [0, 0], [0, 0], (n1, n0)
    turns = max(1, math.ceil(max(wanted) * chosen.calls / CHUNK))
    for turn in range(turns):
        for which, side in enumerate((event.likely, 1 - event.likely)):
            size = wanted[which] * (turn + 1) // turns - wanted[which] * turn // turns
            if size:
                hits[which] += event.hits(_scored(chosen.pair, chosen.statistic, side, size, chosen.calls, meter))
                made[which] += size
        if meter.limit is not None and meter.seconds > meter.limit and min(made):
            break
    return hits[0], made[0], hits[1], made[1]


def _words(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity"
    if isinstance(value, dict):
        return {key: _words(item) for key, item in value.items()}
    return [_words(item) for item in value] if isinstance(value, list | tuple) else value
