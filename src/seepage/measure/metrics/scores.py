"""What `score` returns: every number about one reconstruction, and its summaries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan

import torch
from torch import Tensor

from seepage.base.registry import metrics
from seepage.base.schema import Share, Summary
from seepage.base.words import plural
from seepage.errors import SeepageError
from seepage.measure.metrics.baselines import floor_of
from seepage.measure.metrics.interval import bootstrap_interval

BASELINE_NAMES = ("mean_color", "grey", "random")
"""Guesses that need no attack; see `baselines`."""

_SHARES = frozenset({"recovered", "exact", "gain_db", "label_accuracy"})
_OF_LABELS = frozenset({"label", "target_error"})


@dataclass(frozen=True)
class Score:
    """One number about one private example: one line of `scores.jsonl`.

    Attributes:
        metric: `mse`, `psnr` (dB), `ssim`, `lpips`, `label`, `target_error`.
        value: The number; None where the metric does not apply.
        alignment: How guesses were matched to examples: `identity` or `hungarian`, `+scale` if fitted.
        example: The private example's place in its batch.
        matched: False where the attack returned no guess for this example; then a mid-grey stands in.
    """

    metric: str
    value: float | None
    alignment: str
    example: int
    matched: bool = True


@dataclass(frozen=True, eq=False)
class Scores:
    """Every number about one reconstruction, or about several batches of one case joined together.

    A summary property is None where it does not apply: nothing is made up. Means are over examples, and an
    example without a guess counts with the mid-grey image that stands in for it.

    Attributes:
        alignment: How guesses were matched to examples (see `align`).
        metrics: The metrics asked for, in order, and those that came with the reconstruction.
        values: Metric to `[n]` float64, NaN for an example without a number; absent where it does not apply.
        baseline_values: Baseline (`grey`, `mean_color`, `random`) to metric to `[n]`; empty for features.
        matched: `[n]` bool: whether the attack returned a guess for the example.
        recovered_each: `[n]` bool: recognizably recovered, or None.
        exact_each: `[n]` bool: recovered exactly for all practical purposes, or None.
        batches: `[n]` int64 number of each example's batch, rising from 0.
        label_shares: `[batches]` float64 label accuracy of each batch; NaN where no labels were guessed.
        notes: Sentences for the report, e.g. why a metric has no value.
    """

    alignment: str
    metrics: tuple[str, ...]
    values: Mapping[str, Tensor]
    baseline_values: Mapping[str, Mapping[str, Tensor]]
    matched: Tensor
    recovered_each: Tensor | None
    exact_each: Tensor | None
    batches: Tensor
    label_shares: Tensor
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        found, n = self.summaries, len(self.matched)
        counts = [f"{name} {round(found[name].mean * n)}" for name in ("recovered", "exact") if name in found]
        psnr = [f"psnr {found['psnr'].mean:.1f} dB"] if "psnr" in found else []
        return f"<Scores of {plural(n, 'example')}: {', '.join([*counts, *psnr]) or 'no numbers'}>"

    @classmethod
    def concatenate(cls, scores: Sequence["Scores"]) -> "Scores":
        """Join the scores of several batches of one case; each stays a batch of its own for the interval.

        An attack may name labels, or leave the sign open, on some batches only. Then the examples of the others have
        no value for `label`, none of their labels counts as guessed right, and the alignment lists every fit made.

        Raises:
            SeepageError: Where there is nothing to join, or the parts were matched or measured differently.
        """
        if not scores:
            raise SeepageError("there are no scores to join; score at least one batch")
        kinds = {
            (part.alignment.partition("+")[0], _without_labels(part.metrics), _without_labels(part.values))
            for part in scores
        }
        if len(kinds) > 1:
            raise SeepageError(
                f"scores that were made in different ways cannot be joined, got {sorted(kinds)}; "
                "score all batches with one method and one set of metrics"
            )
        first = next((part for part in scores if _OF_LABELS & part.values.keys()), scores[0])
        sizes = [len(part.label_shares) for part in scores]
        labeled = sorted(_OF_LABELS & first.values.keys())
        offsets = [sum(sizes[:place]) for place in range(len(sizes))]
        return cls(
            alignment="+".join(dict.fromkeys(word for part in scores for word in part.alignment.split("+"))),
            metrics=first.metrics,
            values=_join([_with_labels(part.values, labeled) for part in scores]),
            baseline_values={
                name: _join([part.baseline_values[name] for part in scores])
                for name in first.baseline_values
                if all(name in part.baseline_values for part in scores)  # a batch of one has no mean target of its own
            },
            matched=torch.cat([part.matched for part in scores]),
            recovered_each=_join_masks([part.recovered_each for part in scores]),
            exact_each=_join_masks([part.exact_each for part in scores]),
            batches=torch.cat([part.batches + offset for part, offset in zip(scores, offsets, strict=True)]),
            label_shares=torch.cat(
                [part.label_shares.nan_to_num(0.0 if "label" in labeled else nan) for part in scores]
            ),
            notes=tuple(dict.fromkeys(note for part in scores for note in part.notes)),
        )

    @property
    def rows(self) -> list[Score]:
        """One `Score` per example and metric, example by example; `example` counts within its batch."""
        starts = torch.searchsorted(self.batches, self.batches)
        places, matched = (torch.arange(self.examples) - starts).tolist(), self.matched.tolist()
        columns = {name: _numbers(self.values.get(name), self.examples) for name in self.metrics}
        return [
            Score(name, column[row], self.alignment, places[row], matched[row])
            for row in range(self.examples)
            for name, column in columns.items()
        ]

    @property
    def examples(self) -> int:
        """Number of private examples."""
        return len(self.matched)

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Every score that applies, by name: shares, all metrics, gain and labels; see `__getattr__`."""
        found = {
            "recovered": _share(self.recovered_each),
            "exact": _share(self.exact_each),
            **{name: self._summary(values) for name, values in self.values.items() if name != "label"},
            **({"exact_rows": _share(self.values["exact_rows"].bool())} if "exact_rows" in self.values else {}),
            "gain_db": self._summary(self._gains),
            "label_accuracy": self._labels,
        }
        return {name: summary for name, summary in found.items() if summary is not None}

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Guess without an attack (`mean_color`, `grey`, `random`), to metric, to its mean."""
        means = {
            name: {metric: _known(values) for metric, values in found.items()}
            for name, found in self.baseline_values.items()
        }
        return {
            name: {metric: float(known.mean()) for metric, known in found.items() if known is not None}
            for name, found in means.items()
        }

    def __getattr__(self, name: str) -> float | None:
        """A score by name, None where it does not apply: nothing is made up.

        `recovered`, `exact`: the share of examples that count as such. A metric, such as `psnr`: its mean over the
        examples; for features over the matched ones only, since nothing stands in for a feature. `gain_db`: mean of
        PSNR minus the PSNR of the example's own mean color; 0 or less: no leak is seen. `label_accuracy`: share of
        labels guessed right whatever their order, each batch weighted by its size. `psnr_median`, `psnr_low`,
        `psnr_high`: median and 95 % bootstrap interval of the mean, and so for every metric. `grey_psnr`,
        `mean_color_ssim`, `random_psnr`, ...: the mean for a guess that needs no attack.
        """
        if not name.startswith("_") and "metrics" in vars(self):
            metric, _, part = name.rpartition("_")
            if name in _SHARES or name in self._names:
                return self.summaries[name].mean if name in self.summaries else None
            if part in ("median", "low", "high") and metric in self._names:
                return getattr(self.summaries.get(metric), part, None)
            for base in BASELINE_NAMES:
                if name.startswith(f"{base}_"):
                    return self.baselines.get(base, {}).get(name.removeprefix(f"{base}_"))
        raise AttributeError(f"scores have no {name!r}; they have {', '.join(sorted(self._names | _SHARES))}")

    @property
    def _names(self) -> frozenset[str]:
        """Metrics that a score can be asked of."""
        return frozenset(metrics) | frozenset(self.metrics) | frozenset(self.values)

    @property
    def _gains(self) -> Tensor | None:
        """`[n]` PSNR minus that of the example's own mean color, or of a typical example if that is more, in dB."""
        known = "psnr" in self.baseline_values.get("mean_color", {})
        return self.values["psnr"] - floor_of(self.baseline_values) if known else None

    @property
    def _labels(self) -> Summary | None:
        if "label" not in self.values:
            return None
        weights = self.batches.bincount(minlength=len(self.label_shares)).double()
        hits = float((self.label_shares * weights).sum())
        whole = abs(hits - round(hits)) < 1e-6 * self.examples  # of a map each pixel has a label
        return counted(round(hits), self.examples) if whole else Summary(mean=hits / self.examples, n=self.examples)

    def _summary(self, values: Tensor | None) -> Summary | None:
        """Mean, median and interval of what is known.

        Of two middle examples the worse one is the median, so that the 150 dB of an exact guess is averaged with
        nothing.
        """
        known = _known(values)
        if values is None or known is None:
            return None
        whole = len(known) == len(values) and bool(values.isfinite().all())
        low, high = (bootstrap_interval(values, self.batches) if whole else None) or (None, None)
        return Summary(mean=float(known.mean()), median=float(known.median()), low=low, high=high, n=len(known))


def _without_labels(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in _OF_LABELS)


def _with_labels(values: Mapping[str, Tensor], labeled: Iterable[str]) -> Mapping[str, Tensor]:
    """The values with the columns of labels, NaN where none was named."""
    return {**{name: torch.full_like(next(iter(values.values())), nan) for name in labeled}, **values}


def _join(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _join_masks(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _numbers(values: Tensor | None, length: int) -> list[float | None]:
    if values is None:
        return [None] * length
    return [None if isnan(number) else number for number in values.tolist()]


def _known(values: Tensor | None) -> Tensor | None:
    """The values that are there, or None where none is."""
    known = None if values is None else values[~values.isnan()]
    return None if known is None or not len(known) else known


def _share(mask: Tensor | None) -> Summary | None:
    return None if mask is None or not len(mask) else counted(int(mask.sum()), len(mask))


def counted(hits: int, of: int) -> Summary:
    """So many of so many as a mean, with the interval of Clopper and Pearson."""
    found = Share.count(hits, of)
    return Summary(mean=hits / of, low=found.low, high=found.high, n=of)
