"""What an attack's guesses amount to beside the truth: scores, certificates, inner errors, and the row of all that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from seepage.attacks import Attack
from seepage.audit.attempt import Attempt
from seepage.audit.row import PROTOCOL, Certified, Cost, Outcome, Row, Status, judge_outcome
from seepage.core.schema import Summary
from seepage.metrics import METRICS, Alignment, Scores, align_guess, default_metrics, find_metric, lpips_missing, score
from seepage.metrics.image import psnr
from seepage.models.vertical import VerticalModel
from seepage.recipe.case import Recipe, Scoring
from seepage.types import Batch, Knowledge, Reconstruction, Transcript


def metrics_for(scoring: Scoring, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The metrics to measure: those of every audit, and those that the recipe asks for.

    LPIPS is left out where its weights are not on this machine.

    Raises:
        SeepageError: For an unknown metric.
    """
    asked = [*(["lpips"] if scoring.lpips else []), *scoring.metrics]
    default = [metric.name for metric in default_metrics()]
    for use in asked:
        find_metric(use)
    lacking = {"lpips"} if "lpips" in asked and lpips_missing(shape) is not None else set[str]()
    return tuple(use for use in dict.fromkeys([*default, *asked]) if use not in lacking)


@dataclass(frozen=True)
class ScoredAttack:
    """One attack on one cell, measured against the truth.

    Attributes:
        scores: All numbers, with `psnr_nearest` among the values: each example takes its most similar guess, as some
            papers score, and one good guess may count many times.
        alignments: For each batch, which guess belongs to which example.
        wrong_certificates: Guesses that the attack vouches for and that are no example; None where it vouches for none.
    """

    scores: Scores
    alignments: tuple[Alignment, ...]
    wrong_certificates: int | None


def score_attempts(
    attempts: Sequence[Attempt],
    truth: Sequence[Batch],
    value_range: tuple[float, float],
    scoring: Scoring,
    *,
    seed: int = 0,
) -> ScoredAttack | None:
    """Scores of one attack over all batches of a cell; None where no batch has any guess, or only features.

    A batch that the attack gave no result for counts with all its examples, and no guess for any.

    Args:
        attempts: One per batch.
        truth: The batches.
        value_range: Smallest and largest value of an input.
        scoring: Thresholds, and the metrics to measure.
        seed: Seed of the noise baseline.
    """
    found = [attempt.reconstruction for attempt in attempts]
    some = next((reconstruction for reconstruction in found if reconstruction is not None), None)
    if some is None or some.space == "feature":
        return None
    parts, alignments = [], []
    for reconstruction, batch in zip(found, truth, strict=True):
        guess = _no_guess(some) if reconstruction is None else reconstruction
        aligned = align_guess(guess, batch, value_range)
        alignments.append(aligned)
        part = score(
            guess,
            batch,
            value_range=value_range,
            metrics=metrics_for(scoring, tuple(batch.inputs.shape[1:])),
            recovered_ssim=scoring.recovered_ssim,
            recovered_gain_db=scoring.recovered_gain_db,
            exact_db=scoring.exact_db,
            aligned=aligned,
            seed=seed,
        )
        nearest = _nearest_psnr(aligned, batch, value_range)
        parts.append(replace(part, values={**part.values, "psnr_nearest": nearest}))
    wrong = wrong_certificates(found, alignments, value_range, scoring.exact_db)
    return ScoredAttack(Scores.concatenate(parts), tuple(alignments), wrong)


def _nearest_psnr(aligned: Alignment, batch: Batch, value_range: tuple[float, float]) -> torch.Tensor:
    """`[n]` PSNR of each example's most similar guess; mid-grey stands in where there is none."""
    low, high = value_range
    guesses, inputs = aligned.pairs.nearest().clamp(low, high), batch.inputs.detach().cpu()
    return psnr((guesses - low) / (high - low), (inputs - low) / (high - low))


def _no_guess(like: Reconstruction) -> Reconstruction:
    """A reconstruction of the same kind that guesses nothing."""
    cut = {name: getattr(like, name) for name in ("labels", "indices", "objective", "certified")}
    none: dict[str, Any] = {name: None if tensor is None else tensor[:0] for name, tensor in cut.items()}
    return replace(like, inputs=like.inputs[:0], inner={}, notes=(), history=(), **none)


def wrong_certificates(
    found: Sequence[Reconstruction | None],
    alignments: Sequence[Alignment],
    value_range: tuple[float, float],
    exact_db: float,
) -> int | None:
    """How many guesses that the attack vouches for are no private example; None where it vouches for none at all.

    Each is held against its nearest example, since the matching of all guesses at once may give that one to another
    guess. It is wrong where its mean squared error is that of `exact_db` or more: PSNR = -10 log10(MSE).
    """
    if all(reconstruction is None or reconstruction.certified is None for reconstruction in found):
        return None
    largest = 10 ** (-exact_db / 10) * (value_range[1] - value_range[0]) ** 2
    wrong = 0
    for reconstruction, aligned in zip(found, alignments, strict=True):
        if reconstruction is not None and reconstruction.certified is not None and len(reconstruction):
            errors = aligned.pairs.errors(reconstruction.certified.cpu())  # [certified]
            wrong += int((errors >= largest).sum())
    return wrong


def inner_errors(
    attack: Attack,
    views: Sequence[Transcript],
    truth: Sequence[Batch],
    attempts: Sequence[Attempt],
    alignments: Sequence[Alignment],
) -> dict[str, float]:
    """Relative error, in the Frobenius norm, of each quantity that the attack finds on its way.

    Only the entries that the attack says it knows count, and only of examples that have a guess.
    """
    sums: dict[str, tuple[float, float]] = {}
    for view, batch, attempt, aligned in zip(views, truth, attempts, alignments, strict=True):
        found = attempt.reconstruction
        if found is None or not found.inner:
            continue
        true = attack.inner_at(view, batch.inputs, batch.labels)
        rows = aligned.permutation[aligned.matched]
        for name in found.inner.keys() & true.keys():
            guess, wanted = found.inner[name][rows].double(), true[name].cpu()[aligned.matched].double()
            known = guess.isfinite()
            error = float((guess - wanted)[known].square().sum()), float(wanted[known].square().sum())
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + error[0], before[1] + error[1]
    return {name: (wrong / size) ** 0.5 for name, (wrong, size) in sums.items() if size > 0}


def at_truth(attack: Attack, views: Sequence[Transcript], truth: Sequence[Batch]) -> float | None:
    """The attack's objective at the private examples, mean over batches; None where it has none."""
    values = [attack.objective_at(view, batch.inputs, batch.labels) for view, batch in zip(views, truth, strict=True)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# --- the row -----------------------------------------------------------------------------------------------------


def make_row(
    cell: str,
    name: str,
    attempts: Sequence[Attempt],
    views: Sequence[Transcript],
    truth: Sequence[Batch] | None,
    scored: ScoredAttack | None,
    attack: Attack,
) -> Row:
    """One line of the result table: one attack on one cell.

    Args:
        cell: The cell's name.
        name: The attack's name in this run.
        attempts: One per run of the attack.
        views: What each run saw.
        truth: The private batch behind each, where it is at hand.
        scored: Their scores.
        attack: The attack.
    """
    found = [attempt.reconstruction for attempt in attempts if attempt.reconstruction is not None]
    side, shown = side_information(views[0].knowledge)
    known = [item for item in PROTOCOL if item != "batch size" or views[0][0].batch_size is not None]
    status = worst_status(attempts)
    summaries = {} if scored is None else _rounded(scored.scores.summaries)
    space = found[0].space if found else None
    returned = sum(len(r) for r in found) if found else None
    scores = None if scored is None else scored.scores
    return Row(
        cell=cell,
        attack=name,
        options=attempts[0].attack,
        status=status,
        outcome=judge_outcome(
            status,
            {key: summary.mean for key, summary in summaries.items()},
            zero_update=status == "inapplicable" and all(map(_is_zero, views)),
            returned=returned,
            space=space,
        ),
        reason=_reason(attempts),
        told=[*known, *shown, *side],
        told_extra=side,
        examples=_examples(views, truth),
        returned=returned,
        space=space,
        alignment=None if scores is None else scores.alignment,
        scores=summaries,
        baselines={} if scores is None else _rounded_baselines(scores.baselines),
        visible=None if scores is None else scores.visible,
        certified=_certified(found, scored),
        inner={}
        if scored is None or truth is None
        else inner_errors(attack, views, truth, attempts, scored.alignments),
        objective=_mean([float(r.objective.mean()) for r in found if r.objective is not None and len(r)]),
        objective_at_truth=at_truth(attack, views, truth) if scored and truth else None,
        cost=_cost(attempts, found),
        notes=list(dict.fromkeys(note for r in found for note in r.notes)) + list(scores.notes if scores else ()),
    )


def skipped_row(recipe: Recipe, cell: str, name: str, attack: Attack, told: Sequence[str], reason: str) -> Row:
    """The row of an attack on a cell that could not be recorded."""
    vertical = recipe.model.use == "vertical"
    return Row(
        cell=cell,
        attack=name,
        options=repr(attack),
        status="inapplicable",
        outcome=Outcome.NOT_RECORDED,
        reason=reason,
        told=[*PROTOCOL, *told],
        told_extra=[item for item in told if item != "indices" or not vertical],
    )


def side_information(knowledge: Knowledge) -> tuple[list[str], list[str]]:
    """What an attacker was told beyond the protocol, and what of it the protocol shows after all.

    In vertical FL the server itself names the examples of each batch, so their indices are part of the protocol; in
    horizontal FL a client keeps to itself which of its examples a batch holds, and they are side information.
    """
    shown = {"indices"} if isinstance(knowledge.model, VerticalModel) else set[str]()
    return sorted(knowledge.told - shown), sorted(knowledge.told & shown)


def worst_status(attempts: Sequence[Attempt]) -> Status:
    """The status that a reader must know: the worst of the batches that gave a result, or of all where none did."""
    order: tuple[Status, ...] = ("error", "inapplicable", "interrupted", "diverged", "exhausted", "ok")
    spoke = [attempt for attempt in attempts if attempt.reconstruction is not None] or attempts
    return next(status for status in order if any(attempt.status == status for attempt in spoke))


def _reason(attempts: Sequence[Attempt]) -> str | None:
    """Why there is no result, with how many batches that is true of where others have one."""
    silent = [attempt for attempt in attempts if attempt.reason]
    if not silent:
        return None
    where = f"on {len(silent)} of {len(attempts)} batches: " if len(silent) < len(attempts) else ""
    return f"{where}{silent[0].reason}"


def _rounded(summaries: Mapping[str, Summary]) -> dict[str, Summary]:
    """The summaries with as many decimals as each metric wants."""
    return {
        name: summary.rounded(find_metric(name).digits if name in METRICS else 4) for name, summary in summaries.items()
    }


def _rounded_baselines(means: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {metric: round(mean, 4) for metric, mean in found.items()} for name, found in means.items()}


def _certified(found: Sequence[Reconstruction], scored: ScoredAttack | None) -> Certified | None:
    """Guesses that the attack vouches for, truth or not; None where it cannot vouch for any."""
    given = [r.certified for r in found if r.certified is not None]
    if not given:
        return None
    return Certified(n=sum(int(mask.sum()) for mask in given), wrong=scored.wrong_certificates if scored else None)


def _cost(attempts: Sequence[Attempt], found: Sequence[Reconstruction]) -> Cost:
    """The work of all attempts together; of steps the most of any, which is what the option says."""
    if not found:
        return Cost()
    spent = {key: [int(r.cost[key]) for r in found if key in r.cost] for key in ("rounds", "steps", "evaluations")}
    return Cost(
        seconds=round(sum(attempt.seconds for attempt in attempts), 3),
        cpu_seconds=round(sum(attempt.cpu_seconds for attempt in attempts), 3),
        rounds=sum(spent["rounds"]) if spent["rounds"] else None,
        steps=max(spent["steps"], default=None),
        evaluations=sum(spent["evaluations"]) if spent["evaluations"] else None,
    )


def _is_zero(transcript: Transcript) -> bool:
    """Whether no round's update has anything in it."""
    updates = (transcript[t].update.tensors.values() for t in range(len(transcript)))
    return not any(bool(tensor.any()) for tensors in updates for tensor in tensors)


def _examples(views: Sequence[Transcript], truth: Sequence[Batch] | None) -> int | None:
    if truth is not None:
        return sum(len(batch) for batch in truth)
    if len(views) == 1 and len(views[0]) > 1 and "indices" in views[0].knowledge.told:
        return None  # Rounds over one data set hold its examples again and again.
    sizes = [view[t].batch_size for view in views for t in range(len(view))]
    return sum(size for size in sizes if size is not None) if None not in sizes else None


def _mean(values: Sequence[float]) -> float | None:
    mean = sum(values) / len(values) if values else None
    return None if mean is None or mean != mean or abs(mean) == float("inf") else mean
