"""Score a reconstruction against the truth: align once, measure everything, keep every example."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from seepage.base.blocks import Block
from seepage.base.limits import Limits
from seepage.base.rounding import outward
from seepage.base.units import Units
from seepage.errors import SeepageError
from seepage.federation.types import Batch, Reconstruction, Target
from seepage.measure.metrics import image
from seepage.measure.metrics.align import Alignment, align
from seepage.measure.metrics.baselines import baselines, floor_of
from seepage.measure.metrics.labels import label_scores, labels_fit
from seepage.measure.metrics.metric import Metric, find_metric
from seepage.measure.metrics.rows import NAMES as ROW_METRICS
from seepage.measure.metrics.rows import column_hits, row_metrics
from seepage.measure.metrics.scores import Scores

_FEATURE_NOTE = "The guesses are inputs of an inner layer, not examples: only their cosine with the true ones is given."


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """What guesses are measured with, one for all batches of a case.

    Attributes:
        metrics: Names from `METRICS`, or `module:function` of your own. MSE and PSNR are always measured, the names
            say which rows come out; `label` is added where labels were guessed. Of images `likeness` is measured
            too, on which `recovered` rests.
        limits: Thresholds from which on an example counts as recovered, and as exact.
        value_range: Smallest and largest value an input can take.
        units: Units of the targets, where these are values; None: the targets as they are.
        typical: `[*shape]` a guess that needs no update, such as the mean of public rows of a table.
        target: Kind of the training target; None: inferred from the labels.
        blocks: Columns of words of a table's row, as the attacker knows them.
        seed: Seed of the noise that the scores are printed by. Batches scored with one seed share one noise
            picture, so that `random` differs between them only by the truth.
    """

    metrics: Sequence[str] = ("mse", "psnr", "ssim")
    limits: Limits = Limits()  # noqa: RUF009
    value_range: tuple[float, float] = (0.0, 1.0)
    units: Units | None = None
    typical: Tensor | None = None
    target: Target | None = None
    blocks: tuple[Block, ...] = ()
    seed: int = 0


def score(
    reconstruction: Reconstruction,
    truth: Batch,
    by: Yardstick = Yardstick(),
    *,
    method: str | None = None,
    aligned: Alignment | None = None,
) -> Scores:
    """The scores of a reconstruction: guesses matched with examples, each pair measured, beside three baselines.

    Truth and guesses are mapped from the value range to [0, 1] and the guesses clamped. An image counts as
    recovered when it has a guess in which a person would recognize it (`likeness`), or an exact one; for examples
    that are not images the gain over the PSNR of their own mean counts, and where a typical example is given, that
    over its PSNR as well. (An example of one flat color can therefore never count as recovered.)

    For a reconstruction in feature space `truth.inputs` must hold the true features. Value range, baselines
    and the image metrics do not apply there; guesses are matched by cosine, and `cosine` is the only metric.

    Args:
        reconstruction: The guesses.
        truth: The private batch.
        by: What they are measured with.
        method: `identity`, `hungarian` or `nearest` (see `align`); None: identity where guesses and examples carry
            indices and the attack knows which guess is whose, else hungarian.
        aligned: The result of `align_guess` for the two, where it was computed before; None: compute it.

    Returns:
        The scores of this batch.

    Raises:
        SeepageError: For an unknown metric or method, shapes that do not fit, an empty batch, or a truth with
            NaN or with values outside the value range.

    >>> truth = Batch(torch.eye(2).reshape(2, 1, 1, 2), torch.tensor([0, 1]))
    >>> found = score(Reconstruction(truth.inputs.flip(0)), truth)
    >>> found.alignment, found.psnr, found.ssim
    ('hungarian', 150.0, None)
    """
    wanted = {metric.name: metric for metric in map(find_metric, by.metrics)}
    feature = reconstruction.space == "feature"
    _check(reconstruction, truth, None if feature else by.value_range)
    aligned = aligned or align_guess(reconstruction, truth, None if feature else by.value_range, method)
    inputs = truth.inputs.detach().cpu()
    blank = _without_inputs(reconstruction, truth, tuple(wanted), aligned, by)
    if feature:
        cosines = image.cosine(aligned.guesses, inputs).masked_fill(~aligned.matched, torch.nan)
        return replace(blank, values={"cosine": cosines, **blank.values}, notes=(_FEATURE_NOTE,))
    guesses, inputs = (to_unit(t, by.value_range) for t in (aligned.guesses, inputs))
    typical = None if by.typical is None else to_unit(by.typical.detach().cpu(), by.value_range)
    return _with_inputs(blank, guesses, inputs, wanted, replace(by, typical=typical))


def align_guess(
    reconstruction: Reconstruction,
    truth: Batch,
    value_range: tuple[float, float] | None,
    method: str | None = None,
) -> Alignment:
    """Match an attack's guesses with a batch as `score` does.

    Args:
        reconstruction: The guesses.
        truth: The private batch.
        value_range: Smallest and largest value of an input; None for features.
        method: As in `score`.
    """
    # An attack that gives indices and still leaves the order open cannot tell some samples apart.
    known = "order" not in reconstruction.ambiguity
    indexed = known and reconstruction.indices is not None and truth.indices is not None
    return align(
        reconstruction.inputs,
        truth.inputs,
        method=method or ("identity" if indexed else "hungarian"),
        value_range=value_range,
        ambiguity=reconstruction.ambiguity,
        guess_indices=reconstruction.indices,
        truth_indices=truth.indices,
    )


def _without_inputs(
    reconstruction: Reconstruction,
    truth: Batch,
    metrics: tuple[str, ...],
    aligned: Alignment,
    by: Yardstick,
) -> Scores:
    """The scores of everything but the inputs: who was matched, and the labels."""
    feature = reconstruction.space == "feature"
    found = label_scores(reconstruction.labels, truth.labels, aligned.permutation, by.units, by.target)
    came_along = ["cosine"] * feature + list(found.values)
    return Scores(
        alignment=aligned.name,
        metrics=tuple(dict.fromkeys([*metrics, *came_along])),
        values=found.values,
        baseline_values=found.floors,
        matched=aligned.matched,
        recovered_each=None,
        exact_each=None,
        batches=torch.zeros(len(truth), dtype=torch.int64),
        label_shares=torch.tensor([found.share], dtype=torch.float64),
    )


def _with_inputs(
    blank: Scores,
    guesses: Tensor,
    truth: Tensor,
    wanted: Mapping[str, Metric],
    by: Yardstick,
) -> Scores:
    """The scores `blank` with the metrics of inputs added, and those of the baselines.

    Args:
        blank: Scores without metrics of inputs.
        guesses: `[n, *shape]` in [0, 1], one per example.
        truth: `[n, *shape]` in [0, 1].
        wanted: Name to requested metric.
        by: What they are measured with, its typical example in [0, 1].
    """
    shape = tuple(truth.shape[1:])
    pictures = image.is_image(shape)
    always = {name: find_metric(name) for name in ("mse", "psnr", *(("likeness",) if pictures else ()))}
    rest = [metric for metric in wanted.values() if metric.name not in always]
    values = _measure(guesses, truth, [*always.values(), *rest])
    compared = [find_metric(metric) for metric in ("psnr", "ssim", "lpips") if metric in values]
    floors = {
        name: _measure(guess, truth, compared)
        for name, guess in baselines(truth, seed=by.seed, typical=by.typical).items()
    }
    if by.blocks:
        hits = partial(
            column_hits, truth=truth, blocks=by.blocks, value_range=by.value_range, exact_db=by.limits.exact_db
        )
        values |= {name: found * blank.matched for name, found in row_metrics(*hits(guesses)).items()}
        if by.typical is not None:
            floors["typical"] |= row_metrics(*hits(by.typical.to(truth).expand_as(truth)))
    seen = values["psnr"] - floor_of(floors) >= by.limits.gain_db
    # Of examples that are nearly blank any guess is near: what a blank guess reaches is no reconstruction.
    exact = (values["psnr"] > by.limits.exact_db) & seen
    if pictures:  # likeness is undefined for a nearly flat image, so an exact copy counts too
        seen = (values["likeness"] >= by.limits.likeness) | (exact & seen)
    return replace(
        blank,
        metrics=(*blank.metrics, *(name for name in ROW_METRICS if name in values)),
        values={**values, **blank.values},
        baseline_values={**floors, **blank.baseline_values},
        recovered_each=blank.matched & seen,
        exact_each=blank.matched & exact,
        notes=_notes(blank.metrics, values, shape),
    )


def _check(reconstruction: Reconstruction, truth: Batch, value_range: tuple[float, float] | None) -> None:
    """Raise `SeepageError` for what cannot be scored; `value_range` is None in feature space, which has none."""
    if not len(truth):
        raise SeepageError("the private batch is empty: nothing to score; pass at least one example")
    labels = reconstruction.labels
    if labels is not None and len(labels) != len(reconstruction):
        raise SeepageError(
            f"the reconstruction has {len(reconstruction)} guesses but {len(labels)} labels; give one label per guess"
        )
    if labels is not None and not labels_fit(labels, truth.labels):
        raise SeepageError(
            f"the reconstruction has {str(labels.dtype).removeprefix('torch.')} labels of shape {tuple(labels.shape)}, "
            f"and the truth has {str(truth.labels.dtype).removeprefix('torch.')} ones of {tuple(truth.labels.shape)}; "
            "score it against the examples it is of"
        )
    if not truth.inputs.isfinite().all():
        raise SeepageError("the truth holds NaN or infinite values: no distance to it exists; check the data")
    if value_range is None:
        return
    (low, high), least, most = value_range, float(truth.inputs.min()), float(truth.inputs.max())
    slack = 1e-3 * (high - low)  # float rounding of a normalization; 60 dB below the range
    if least < low - slack or most > high + slack:
        ends = "{:g},{:g}".format(*outward(min(least, low), max(most, high)))
        raise SeepageError(
            f"the truth runs from {least:.4g} to {most:.4g}, outside value_range ({low:g}, {high:g}), "
            "so PSNR and SSIM would be wrong; give the truth as the client scaled it, or the range that inputs have: "
            f"of captured files attack them again with --values={ends}"
        )


def to_unit(values: Tensor, value_range: tuple[float, float]) -> Tensor:
    """Values on [0, 1], those outside of the range clamped."""
    low, high = value_range
    return ((values - low) / (high - low)).clamp(0.0, 1.0)


def _measure(guesses: Tensor, truth: Tensor, metrics: Iterable[Metric]) -> dict[str, Tensor]:
    """Each metric's values `[n]`; without those that do not apply to examples of this shape, or cannot be had here."""
    image_like = image.is_image(tuple(truth.shape[1:]))
    fitting = [metric for metric in metrics if not metric.of_labels and (image_like or not metric.images_only)]
    found = {metric.name: metric(guesses, truth) for metric in fitting}
    return {name: values for name, values in found.items() if values is not None}


def _notes(metrics: Sequence[str], values: Mapping[str, Tensor], shape: tuple[int, ...]) -> tuple[str, ...]:
    """Sentences on requested metrics that are not measured, or measured otherwise than usual.

    Args:
        metrics: Names of the requested metrics.
        values: Name of each measured metric, to its `[n]` values.
        shape: Shape of one example.
    """
    notes = []
    if "ssim" in values and (window := image.ssim_window(*shape[1:])) < image.SSIM_WINDOW:
        notes.append(
            f"SSIM uses a window of {window} instead of {image.SSIM_WINDOW}, since the images are "
            f"{shape[1]} x {shape[2]}; do not compare it with the SSIM of larger images."
        )
    if "lpips" in metrics and (missing := image.lpips_missing(shape)):
        notes.append(missing)
    return tuple(notes)
