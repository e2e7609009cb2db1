"""What `score` returns: every number about one reconstruction, and its summaries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan

import torch
from torch import Tensor

from seepage.errors import SeepageError
from seepage.metrics.interval import bootstrap_interval
from seepage.types import Score

VISIBLE = 0.8
"""Correlation over which outlines are plain to the eye, by looking at pictures of the default audit."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Every number about one reconstruction, or about several batches of one cell joined together.

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

    @classmethod
    def concatenate(cls, scores: Sequence["Scores"]) -> "Scores":
        """Join the scores of several batches of one cell; each stays a batch of its own for the interval.

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
        first = next((part for part in scores if "label" in part.values), scores[0])
        sizes = [len(part.label_shares) for part in scores]
        labeled = "label" in first.values
        offsets = [sum(sizes[:place]) for place in range(len(sizes))]
        return cls(
            alignment="+".join(dict.fromkeys(word for part in scores for word in part.alignment.split("+"))),
            metrics=first.metrics,
            values=_join([_with_labels(part.values) if labeled else part.values for part in scores]),
            baseline_values={
                name: _join([part.baseline_values[name] for part in scores]) for name in first.baseline_values
            },
            matched=torch.cat([part.matched for part in scores]),
            recovered_each=_join_masks([part.recovered_each for part in scores]),
            exact_each=_join_masks([part.exact_each for part in scores]),
            batches=torch.cat([part.batches + offset for part, offset in zip(scores, offsets, strict=True)]),
            label_shares=torch.cat([part.label_shares.nan_to_num(0.0 if labeled else nan) for part in scores]),
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

    @property
    def matched_share(self) -> float:
        """Share of examples that the attack returned a guess for."""
        return float(self.matched.double().mean())

    @property
    def recovered(self) -> float | None:
        """Share of examples recognizably recovered: SSIM and gain over the own mean color are high enough."""
        return _share(self.recovered_each)

    @property
    def exact(self) -> float | None:
        """Share of examples recovered above the PSNR that counts as exact."""
        return _share(self.exact_each)

    @property
    def psnr(self) -> float | None:
        """Mean PSNR in dB; an exact guess counts 150."""
        return _mean(self.values.get("psnr"))

    @property
    def psnr_median(self) -> float | None:
        """Median PSNR in dB: half of the examples or more reach it.

        Of two middle examples the worse one counts, so that the 150 of an exact guess is averaged with nothing.
        """
        known = _known(self.values.get("psnr"))
        return None if known is None else float(known.median())

    @property
    def psnr_low(self) -> float | None:
        """Lower end of the 95 % bootstrap interval of `psnr`; None for a single example."""
        return None if self._psnr_interval is None else self._psnr_interval[0]

    @property
    def psnr_high(self) -> float | None:
        """Upper end of the 95 % bootstrap interval of `psnr`; None for a single example."""
        return None if self._psnr_interval is None else self._psnr_interval[1]

    @cached_property
    def _psnr_interval(self) -> tuple[float, float] | None:
        values = self.values.get("psnr")
        return None if values is None else bootstrap_interval(values, self.batches)

    @property
    def ssim(self) -> float | None:
        """Mean SSIM."""
        return _mean(self.values.get("ssim"))

    @property
    def lpips(self) -> float | None:
        """Mean LPIPS."""
        return _mean(self.values.get("lpips"))

    @property
    def correlation(self) -> float | None:
        """Mean correlation, blind to brightness and contrast."""
        return _mean(self.values.get("correlation"))

    @property
    def visible(self) -> int:
        """Examples not counted as recovered whose guess correlates with them by more than 0.8."""
        found, recovered = self.values.get("correlation"), self.recovered_each
        if found is None or recovered is None:
            return 0
        return int(((found > VISIBLE) & self.matched & ~recovered).sum())

    @property
    def cosine(self) -> float | None:
        """Mean cosine; for features over the matched examples only, since nothing stands in for a feature."""
        return _mean(self.values.get("cosine"))

    @property
    def gain_db(self) -> float | None:
        """Mean of PSNR minus the PSNR of the example's own mean color, in dB; 0 or less: no leak is seen."""
        floor = self.baseline_values.get("mean_color", {}).get("psnr")
        return None if floor is None else _mean(self.values["psnr"] - floor)

    @property
    def label_accuracy(self) -> float | None:
        """Share of labels guessed right whatever their order, each batch weighted by its size."""
        if "label" not in self.values:
            return None
        weights = self.batches.bincount(minlength=len(self.label_shares)).double()
        return float((self.label_shares * weights).sum() / weights.sum())

    @property
    def mean_color_psnr(self) -> float | None:
        """Mean PSNR in dB of each image's own mean color."""
        return self._baseline("mean_color", "psnr")

    @property
    def grey_psnr(self) -> float | None:
        """Mean PSNR in dB of a mid-grey image."""
        return self._baseline("grey", "psnr")

    @property
    def random_psnr(self) -> float | None:
        """Mean PSNR in dB of uniform noise."""
        return self._baseline("random", "psnr")

    @property
    def mean_color_ssim(self) -> float | None:
        """Mean SSIM of each image's own mean color."""
        return self._baseline("mean_color", "ssim")

    @property
    def grey_ssim(self) -> float | None:
        """Mean SSIM of a mid-grey image."""
        return self._baseline("grey", "ssim")

    @property
    def random_ssim(self) -> float | None:
        """Mean SSIM of uniform noise."""
        return self._baseline("random", "ssim")

    def _baseline(self, name: str, metric: str) -> float | None:
        return _mean(self.baseline_values.get(name, {}).get(metric))


def _without_labels(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name != "label")


def _with_labels(values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The values with a column for labels, NaN where none was named."""
    return {"label": torch.full_like(next(iter(values.values())), nan), **values}


def _join(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _join_masks(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _numbers(values: Tensor | None, length: int) -> list[float | None]:
    if values is None:
        return [None] * length
    return [None if isnan(number) else number for number in values.tolist()]


def _mean(values: Tensor | None) -> float | None:
    known = _known(values)
    return None if known is None else float(known.mean())


def _known(values: Tensor | None) -> Tensor | None:
    """The values that are there, or None where none is."""
    known = None if values is None else values[~values.isnan()]
    return None if known is None or not len(known) else known


def _share(mask: Tensor | None) -> float | None:
    return None if mask is None else float(mask.double().mean())
