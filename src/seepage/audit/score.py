"""What an attack's guesses amount to beside the truth: scores, certificates, and the errors of its inner steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from seepage.attacks import Attack
from seepage.audit.attempt import Attempt
from seepage.metrics import Alignment, Scores, align_guess, lpips_missing, score
from seepage.metrics.image import psnr
from seepage.recipe.case import Scoring
from seepage.types import Batch, Reconstruction, Transcript


def metrics_for(scoring: Scoring, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The metrics to measure; LPIPS only where it was asked for and its weights are on this machine."""
    lpips = ("lpips",) if scoring.lpips and lpips_missing(shape) is None else ()
    return ("mse", "psnr", "ssim", "correlation", "cosine", *lpips)


@dataclass(frozen=True)
class Measured:
    """One attack on one cell, measured against the truth.

    Attributes:
        scores: All numbers.
        places: For each batch, which guess belongs to which example.
        certified: What `certificates` says of it.
        nearest: Mean PSNR in dB where each example takes its most similar guess, as some papers score; one good guess
            may count many times.
    """

    scores: Scores
    places: tuple[Alignment, ...]
    certified: Mapping[str, Any]
    nearest: float | None = None


def score_outcomes(
    outcomes: Sequence[Attempt], truth: Sequence[Batch], value_range: tuple[float, float], scoring: Scoring
) -> Measured | None:
    """Scores of one attack over all batches of a cell; None where no batch has any guess, or only features.

    A batch of which the attack could say nothing counts with no guesses.

    Args:
        outcomes: One per batch.
        truth: The batches.
        value_range: Smallest and largest value of an input.
        scoring: Thresholds.
    """
    found = [outcome.reconstruction for outcome in outcomes]
    some = next((reconstruction for reconstruction in found if reconstruction is not None), None)
    if some is None or some.space == "feature":
        return None
    parts, places, nearest = [], [], []
    for reconstruction, batch in zip(found, truth, strict=True):
        guess = _no_guess(some) if reconstruction is None else reconstruction
        aligned = align_guess(guess, batch, value_range)
        places.append(aligned)
        nearest.append(_nearest(guess, batch, value_range))
        parts.append(
            score(
                guess,
                batch,
                value_range=value_range,
                metrics=metrics_for(scoring, tuple(batch.inputs.shape[1:])),
                recovered_ssim=scoring.recovered_ssim,
                recovered_gain_db=scoring.recovered_gain_db,
                exact_db=scoring.exact_db,
                aligned=aligned,
            )
        )
    vouched = certificates(outcomes, truth, value_range, scoring.exact_db)
    return Measured(Scores.concatenate(parts), tuple(places), vouched, float(torch.cat(nearest).mean()))


def _nearest(guess: Reconstruction, batch: Batch, value_range: tuple[float, float]) -> torch.Tensor:
    """`[n]` PSNR of each example's most similar guess; mid-grey stands in where there is none."""
    best = align_guess(guess, batch, value_range, "nearest" if len(guess) else None)
    low, high = value_range
    inputs = batch.inputs.detach().cpu()
    return psnr((best.guesses.clamp(low, high) - low) / (high - low), (inputs - low) / (high - low))


def _no_guess(like: Reconstruction) -> Reconstruction:
    """A reconstruction of the same kind that guesses nothing."""
    cut = {name: getattr(like, name) for name in ("labels", "indices", "objective", "certified")}
    none: dict[str, Any] = {name: None if tensor is None else tensor[:0] for name, tensor in cut.items()}
    return replace(like, inputs=like.inputs[:0], inner={}, notes=(), history=(), **none)


def certificates(
    outcomes: Sequence[Attempt], truth: Sequence[Batch], value_range: tuple[float, float], exact_db: float
) -> dict[str, Any]:
    """Guesses the attack vouches for, per example, and how many of these are no example after all.

    Each is held against its nearest example: the matching of all guesses at once may give that one to another guess.
    """
    found = [outcome.reconstruction for outcome in outcomes]
    if all(reconstruction is None or reconstruction.certified is None for reconstruction in found):
        return {}
    vouched, wrong = 0, 0
    for reconstruction, batch in zip(found, truth, strict=True):
        if reconstruction is None or reconstruction.certified is None or not reconstruction.certified.any():
            continue
        guesses = reconstruction.inputs[reconstruction.certified].clamp(*value_range).cpu().flatten(1).double()
        inputs = batch.inputs.cpu().flatten(1).double()
        span = value_range[1] - value_range[0]
        errors = torch.cdist(guesses, inputs).amin(1).square() / (inputs.shape[1] * span**2)
        vouched += len(guesses)
        wrong += int((errors >= 10 ** (-exact_db / 10)).sum())
    examples = sum(len(batch) for batch in truth)
    return {"certified": round(vouched / examples, 4), "false_certificates": wrong}


def inner_errors(
    attack: Attack,
    views: Sequence[Transcript],
    truth: Sequence[Batch],
    outcomes: Sequence[Attempt],
    places: Sequence[Alignment],
) -> dict[str, float]:
    """Relative error (Frobenius) of what the attack found on its way, over the entries it knows."""
    sums: dict[str, tuple[float, float]] = {}
    for view, batch, outcome, place in zip(views, truth, outcomes, places, strict=True):
        found = outcome.reconstruction
        if found is None or not found.inner:
            continue
        true = attack.inner_at(view, batch.inputs, batch.labels)
        rows = place.permutation[place.matched]
        for name in found.inner.keys() & true.keys():
            guess, wanted = found.inner[name][rows].double(), true[name].cpu()[place.matched].double()
            known = guess.isfinite()
            error = float((guess - wanted)[known].square().sum()), float(wanted[known].square().sum())
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + error[0], before[1] + error[1]
    return {f"error_{name}": (wrong / size) ** 0.5 for name, (wrong, size) in sums.items() if size > 0}


def at_truth(attack: Attack, views: Sequence[Transcript], truth: Sequence[Batch]) -> float | None:
    values = [attack.objective_at(view, batch.inputs, batch.labels) for view, batch in zip(views, truth, strict=True)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
