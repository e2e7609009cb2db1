"""Score an attack against the truth: metrics, false certificates, errors of inner quantities, and the result row."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from seepage.attacks import Attack
from seepage.audit.attempt import Attempt
from seepage.audit.caveats import misfit
from seepage.audit.recipe.case import Recipe, Scoring
from seepage.audit.row import PASSED_OVER, PROTOCOL, Certified, Cost, Outcome, Row, Status, judge_outcome
from seepage.base.nn import padding_row, vocabulary_of
from seepage.base.schema import Summary
from seepage.errors import Inapplicable
from seepage.federation.models.vertical import VerticalModel
from seepage.federation.types import Batch, Knowledge, Reconstruction, Transcript
from seepage.measure.metrics import (
    METRICS,
    Alignment,
    Scores,
    Yardstick,
    align_guess,
    default_metrics,
    find_metric,
    lpips_missing,
    score,
)
from seepage.measure.metrics.image import psnr
from seepage.measure.metrics.rows import column_hits
from seepage.measure.metrics.score import to_unit
from seepage.measure.metrics.text import TextAlignment, align_text, score_text, score_token_set


def metrics_for(scoring: Scoring, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The metrics to measure: the default ones and those that the recipe names.

    LPIPS is left out if its weights are not on this machine.

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
    """One attack on one case, measured against the truth.

    Attributes:
        scores: All metrics, including `psnr_nearest`: each example is compared with its most similar guess, as some
            papers do, so that one good guess may count for several examples.
        alignments: For each batch the assignment of guesses to examples.
        wrong_certificates: Number of certified guesses that match no example; None where no guess is certified.
    """

    scores: Scores
    alignments: tuple[Alignment | TextAlignment, ...]
    wrong_certificates: int | None


def scores_of(attempts: Sequence[Attempt], truth: Sequence[Batch], by: Yardstick) -> ScoredAttack | None:
    """Scores of one attack over all batches of the case; None if there are no guesses, or only of features.

    A batch without a result counts as a batch whose examples all have no guess.

    Args:
        attempts: One per batch.
        truth: The batches.
        by: What they are measured with.
    """
    found = [attempt.reconstruction for attempt in attempts]
    some = next((reconstruction for reconstruction in found if reconstruction is not None), None)
    if some is None or some.space != "input":
        return None
    guesses = [_no_guess(some) if one is None else one for one in found]
    if not truth[0].inputs.is_floating_point():
        return _score_texts(guesses, truth)
    alignments = [align_guess(*pair, by.value_range) for pair in zip(guesses, truth, strict=True)]
    parts = []
    for guess, batch, aligned in zip(guesses, truth, alignments, strict=True):
        scores, nearest = score(guess, batch, by, aligned=aligned), _nearest_psnr(aligned, batch, by.value_range)
        parts.append(replace(scores, values={**scores.values, "psnr_nearest": nearest}))
    wrong = wrong_certificates(found, alignments, by.value_range, by.limits.exact_db)
    scores = Scores.concatenate(parts)
    if by.blocks:
        scores = replace(scores, notes=(*scores.notes, _by_column(alignments, truth, by)))
    return ScoredAttack(scores, tuple(alignments), wrong)


def _by_column(alignments: Sequence[Alignment], truth: Sequence[Batch], by: Yardstick) -> str:
    """A sentence on how often each column of a table was right, in the columns' order."""
    found = torch.cat([one.guesses for one in alignments]), torch.cat([one.inputs.detach().cpu() for one in truth])
    guesses, rows = (to_unit(part, by.value_range) for part in found)
    matched = torch.cat([one.matched for one in alignments])
    hits = column_hits(guesses, rows, by.blocks, by.value_range, by.limits.exact_db)
    words, numbers = (", ".join(map(str, part[matched].sum(0).tolist())) for part in hits)
    also = f", of numbers in {numbers}" if numbers else ""
    return f"of {len(matched)} rows each column of words was right in {words}{also}"


def _score_texts(found: Sequence[Reconstruction], truth: Sequence[Batch]) -> ScoredAttack:
    """Scores of texts, whose tokens are equal or not."""
    aligned = [align_text(guess, batch) for guess, batch in zip(found, truth, strict=True)]
    parts = [score_text(*pair) for pair in zip(found, truth, aligned, strict=True)]
    wrong = wrong_certificates(found, aligned, (0.0, 1.0), exact_db=0.0)  # an error is 0 or 1
    return ScoredAttack(Scores.concatenate(parts), tuple(aligned), wrong)


def _nearest_psnr(aligned: Alignment, batch: Batch, value_range: tuple[float, float]) -> torch.Tensor:
    """`[n]` PSNR in dB of each example's most similar guess; without any guess, PSNR of a mid-grey image."""
    low, high = value_range
    guesses, inputs = aligned.pairs.nearest().clamp(low, high), batch.inputs.detach().cpu()
    return psnr((guesses - low) / (high - low), (inputs - low) / (high - low))


def _no_guess(like: Reconstruction) -> Reconstruction:
    """A reconstruction in the same space without any guess."""
    cut = {name: getattr(like, name) for name in ("labels", "indices", "objective", "certified")}
    none: dict[str, Any] = {name: None if tensor is None else tensor[:0] for name, tensor in cut.items()}
    return replace(like, inputs=like.inputs[:0], inner={}, notes=(), history=(), **none)


def wrong_certificates(
    found: Sequence[Reconstruction | None],
    alignments: Sequence[Alignment | TextAlignment],
    value_range: tuple[float, float],
    exact_db: float,
) -> int | None:
    """Number of certified guesses that match no private example; None where no guess is certified.

    Each certified guess is compared with its nearest example, since the one-to-one assignment may give that example
    to another guess. It is wrong if its mean squared error is at least 10^(-exact_db / 10), as
    PSNR = -10 log10(MSE).
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
    alignments: Sequence[Alignment | TextAlignment],
) -> dict[str, float]:
    """Relative error, in the Frobenius norm, of each intermediate quantity that the attack estimates.

    Only entries that the attack marks as known are compared, and only for examples that have a guess.
    """
    sums: dict[str, tuple[float, float]] = {}
    for view, batch, attempt, aligned in zip(views, truth, attempts, alignments, strict=True):
        found = attempt.reconstruction
        if found is None or not found.inner:
            continue
        true = attack.inner_at(view, batch.inputs, batch.labels)
        rows = aligned.permutation[aligned.matched]
        for name in sorted(found.inner.keys() & true.keys()):  # a set is in another order in each process
            guess, wanted = found.inner[name][rows].double(), true[name].cpu()[aligned.matched].double()
            known = guess.isfinite()
            error = float((guess - wanted)[known].square().sum()), float(wanted[known].square().sum())
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + error[0], before[1] + error[1]
    return {name: (wrong / size) ** 0.5 for name, (wrong, size) in sums.items() if size > 0}


def at_truth(attack: Attack, views: Sequence[Transcript], truth: Sequence[Batch]) -> float | None:
    """The attack's objective at the private examples, mean over batches; None if the attack has no objective."""
    known = []
    for view, batch in zip(views, truth, strict=True):
        with suppress(Inapplicable):  # to this round, of which the attack says so itself
            if (value := attack.objective_at(view, batch.inputs, batch.labels)) is not None:
                known.append(value)
    return sum(known) / len(known) if known else None


# --- the row -----------------------------------------------------------------------------------------------------


def make_row(
    case: str,
    name: str,
    attempts: Sequence[Attempt],
    views: Sequence[Transcript],
    truth: Sequence[Batch] | None,
    scored: ScoredAttack | None,
    attack: Attack,
) -> Row:
    """One line of the result table: one attack on one case.

    Args:
        case: The case's name.
        name: The attack's name in this run.
        attempts: One per run of the attack.
        views: The transcript that each run observed.
        truth: The private batch behind each run, where known.
        scored: Scores of the attempts.
        attack: The attack.
    """
    found = [attempt.reconstruction for attempt in attempts if attempt.reconstruction is not None]
    side, shown = side_information(views[0].knowledge)
    unused = [item for item in side if item in attack.ignores]
    side = [item for item in side if item not in unused]
    known = [item for item in PROTOCOL if item != "batch size" or views[0][0].batch_size is not None]
    known += ["columns of words"] if views[0].knowledge.blocks else []
    status = worst_status(attempts)
    summaries = {} if scored is None else _rounded(scored.scores.summaries)
    space = found[0].space if found else None
    returned = sum(len(r) for r in found) if found else None
    scores = None if scored is None else scored.scores
    baselines = {} if scores is None else _rounded_baselines(scores.baselines)
    wrong = None if scored is None else scored.wrong_certificates
    if space == "token" and truth is not None:
        model, sets = views[0].knowledge.model, [attempt.reconstruction for attempt in attempts]
        vocabulary, padding = vocabulary_of(model), padding_row(model)
        shares, beside, wrong = score_token_set(sets, truth, vocabulary=vocabulary, padding=padding)
        summaries, baselines = _rounded(shares), _rounded_baselines(beside)
    certified = _certified(found, wrong)
    return Row(
        case=case,
        attack=name,
        options=attempts[0].attack,
        status=status,
        outcome=judge_outcome(
            status,
            {key: summary.mean for key, summary in summaries.items()},
            zero_update=status == "inapplicable" and all(map(_is_zero, views)),
            returned=returned,
            space=space,
            certified=0 if certified is None else certified.n,
        ),
        reason=_reason(attempts),
        refusal=next((attempt.refusal for attempt in attempts if attempt.refusal), None),
        known=[*known, *shown, *side],
        side_information=side,
        examples=_examples(views, truth),
        returned=returned,
        space=space,
        alignment=None if scores is None else scores.alignment,
        scores=summaries,
        baselines=baselines,
        certified=certified,
        inner={}
        if scored is None or truth is None
        else inner_errors(attack, views, truth, attempts, scored.alignments),
        objective=_mean([float(r.objective.mean()) for r in found if r.objective is not None and len(r)]),
        objective_at_truth=at_truth(attack, views, truth) if scored and truth else None,
        misfit=misfit(views, attempts) if truth is None else None,
        cost=_cost(attempts, found),
        notes=[
            *(
                f"it knew the {item} and searched for them all the same; attack.{item}=given uses them"
                for item in unused
            ),
            *dict.fromkeys(note for r in found for note in r.notes),
            *(scores.notes if scores else ()),
        ],
    )


def skipped_row(recipe: Recipe, case: str, name: str, attack: Attack, known: Sequence[str], reason: str) -> Row:
    """The row of an attack on a case that could not be recorded."""
    vertical = recipe.model.use == "vertical"
    return Row(
        case=case,
        attack=name,
        options=repr(attack),
        status="inapplicable",
        outcome=Outcome.NOT_RECORDED,
        reason=reason,
        known=[*PROTOCOL, *known],
        side_information=[item for item in known if item not in attack.ignores and (item != "indices" or not vertical)],
    )


def side_information(knowledge: Knowledge) -> tuple[list[str], list[str]]:
    """Side information of the attacker, without facts that the protocol reveals anyway.

    In vertical FL the server chooses the examples of each batch, so their indices are part of the protocol. In
    horizontal FL a client does not reveal which of its examples are in a batch, so there they are side information.
    """
    shown = {"indices"} if isinstance(knowledge.model, VerticalModel) else set[str]()
    return sorted(knowledge.known - shown), sorted(knowledge.known & shown)


def worst_status(attempts: Sequence[Attempt]) -> Status:
    """The worst status of the batches with a result; if no batch has one, the worst of all."""
    order: tuple[Status, ...] = ("error", "inapplicable", *PASSED_OVER, "interrupted", "diverged", "exhausted", "ok")
    spoke = [attempt for attempt in attempts if attempt.reconstruction is not None] or attempts
    return next(status for status in order if any(attempt.status == status for attempt in spoke))


def _reason(attempts: Sequence[Attempt]) -> str | None:
    """The reason for missing results, with the number of affected batches if only some have none."""
    silent = [attempt for attempt in attempts if attempt.reason]
    if not silent:
        return None
    where = f"on {len(silent)} of {len(attempts)} batches: " if len(silent) < len(attempts) else ""
    return f"{where}{silent[0].reason}"


def _rounded(summaries: Mapping[str, Summary]) -> dict[str, Summary]:
    """The summaries, each rounded to the number of decimals that its metric states."""
    return {
        name: summary.rounded(find_metric(name).digits if name in METRICS else 4) for name, summary in summaries.items()
    }


def _rounded_baselines(means: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    digits = {"target_error": find_metric("target_error").digits}  # in a unit of any size
    return {
        name: {metric: round(mean, digits.get(metric, 4)) for metric, mean in found.items()}
        for name, found in means.items()
    }


def _certified(found: Sequence[Reconstruction], wrong: int | None) -> Certified | None:
    """Number of certified guesses, with or without a truth; None if the attack cannot certify guesses."""
    given = [r.certified for r in found if r.certified is not None]
    if not given:
        return None
    return Certified(n=sum(int(mask.sum()) for mask in given), wrong=wrong)


def _cost(attempts: Sequence[Attempt], found: Sequence[Reconstruction]) -> Cost:
    """The total cost of all attempts; for steps the maximum, which is comparable with the option `steps`."""
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
    """Whether the updates of all rounds are zero everywhere."""
    updates = (transcript[t].update.tensors.values() for t in range(len(transcript)))
    return not any(bool(tensor.any()) for tensors in updates for tensor in tensors)


def _examples(views: Sequence[Transcript], truth: Sequence[Batch] | None) -> int | None:
    if truth is not None:
        return sum(len(batch) for batch in truth)
    if len(views) == 1 and len(views[0]) > 1 and "indices" in views[0].knowledge.known:
        return None  # rounds over one data set see the same examples repeatedly
    sizes = [view[t].batch_size for view in views for t in range(len(view))]
    return sum(size for size in sizes if size is not None) if None not in sizes else None


def _mean(values: Sequence[float]) -> float | None:
    mean = sum(values) / len(values) if values else None
    return None if mean is None or mean != mean or abs(mean) == float("inf") else mean
