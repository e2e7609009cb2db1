"""Rows, verdict and threshold gate: what the outcomes of a run amount to."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seepage.attacks import Attack
from seepage.errors import SeepageError, unknown
from seepage.metrics import Scores, lpips_missing, score
from seepage.outcome import Outcome
from seepage.recipe import Scoring
from seepage.transcript import OneRound
from seepage.types import Batch, Transcript

PROTOCOL = ("model", "client rule", "batch size", "update")
"""What every attacker here is told: what an honest-but-curious server sees anyway."""

SCORE_KEYS = (
    "recovered", "exact", "psnr", "psnr_low", "psnr_high", "ssim", "lpips", "correlation", "cosine", "gain_db",
    "label_accuracy", "mean_color_psnr", "grey_psnr", "random_psnr", "mean_color_ssim", "grey_ssim", "random_ssim",
)  # fmt: skip


def metrics_for(scoring: Scoring, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The metrics to measure; LPIPS only where it was asked for and its weights are on this machine."""
    lpips = ("lpips",) if scoring.lpips and lpips_missing(shape) is None else ()
    return ("mse", "psnr", "ssim", "correlation", *lpips)


def score_outcomes(
    outcomes: Sequence[Outcome], truth: Sequence[Batch], value_range: tuple[float, float], scoring: Scoring
) -> Scores | None:
    """Scores of one attack over all batches of a cell, or None where a batch has none or only features."""
    found = [outcome.reconstruction for outcome in outcomes]
    if any(reconstruction is not None and reconstruction.space == "feature" for reconstruction in found):
        return None
    parts = [
        score(
            reconstruction,
            batch,
            value_range=value_range,
            metrics=metrics_for(scoring, tuple(batch.inputs.shape[1:])),
            recovered_ssim=scoring.recovered_ssim,
            recovered_gain_db=scoring.recovered_gain_db,
            exact_db=scoring.exact_db,
        )
        for reconstruction, batch in zip(found, truth, strict=True)
        if reconstruction is not None
    ]
    return Scores.concatenate(parts) if parts and len(parts) == len(outcomes) else None


def make_row(
    cell: str,
    name: str,
    outcomes: Sequence[Outcome],
    transcript: Transcript,
    truth: Sequence[Batch] | None,
    scores: Scores | None,
    attack: Attack,
) -> dict[str, Any]:
    """One line of the result table: one attack on one cell. Null where something does not apply."""
    first = outcomes[0]
    found = [outcome.reconstruction for outcome in outcomes if outcome.reconstruction is not None]
    told_extra = sorted(transcript.knowledge.told)
    known = [item for item in PROTOCOL if item != "batch size" or transcript[0].batch_size is not None]
    row: dict[str, Any] = {
        "cell": cell,
        "attack": name,
        "options": first.attack,
        "status": worst_status(outcomes),
        "reason": next((outcome.reason for outcome in outcomes if outcome.reason), None),
        "told": [*known, *told_extra],
        "told_extra": told_extra,
        "examples": _examples(transcript, truth),
        **dict.fromkeys(SCORE_KEYS),
        "alignment": None,
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 3) if found else None,
        "cpu_seconds": round(sum(outcome.cpu_seconds for outcome in outcomes), 3) if found else None,
        "steps": _total("steps", found),
        "evaluations": _total("evaluations", found),
        "objective": _mean([float(r.objective.mean()) for r in found if r.objective is not None and len(r)]),
        "objective_at_truth": None,
        "visible": None,
        "space": found[0].space if found else None,
        "returned": sum(len(r) for r in found) if found else None,
        "notes": list(dict.fromkeys(note for r in found for note in r.notes)),
    }
    if scores is not None and truth is not None:
        row |= {key: _rounded(getattr(scores, key)) for key in SCORE_KEYS}
        row |= {"alignment": scores.alignment, "objective_at_truth": _at_truth(attack, transcript, truth)}
        row["visible"] = scores.visible
        row["notes"] += list(scores.notes)
    row["outcome"] = describe_outcome(row)
    row["nothing_recovered"] = row["outcome"] == "nothing recovered"
    return row


def worst_status(outcomes: Sequence[Outcome]) -> str:
    """The status that a reader must know: the worst of the batches'."""
    order = ("error", "inapplicable", "interrupted", "diverged", "exhausted", "ok")
    return next(status for status in order if any(outcome.status == status for outcome in outcomes))


def describe_outcome(row: Mapping[str, Any]) -> str:
    """A row in two words, from its scores."""
    if row["status"] in ("inapplicable", "error"):
        return "does not apply" if row["status"] == "inapplicable" else "failed"
    if row["psnr"] is None:
        return "features only" if row.get("space") == "feature" else "not scored"
    if row["exact"]:
        return "exact" if row["exact"] == 1 else "partly exact"
    if row["recovered"]:
        return "recovered" if row["recovered"] == 1 else "partly recovered"
    return "traces" if row["gain_db"] is not None and row["gain_db"] > 0 else "nothing recovered"


def _examples(transcript: Transcript, truth: Sequence[Batch] | None) -> int | None:
    if truth is not None:
        return sum(len(batch) for batch in truth)
    sizes = [transcript[t].batch_size for t in range(len(transcript))]
    return sum(size for size in sizes if size is not None) if None not in sizes else None


def _at_truth(attack: Attack, transcript: Transcript, truth: Sequence[Batch]) -> float | None:
    values = [attack.objective_at(OneRound(transcript, t), batch.inputs, batch.labels) for t, batch in enumerate(truth)]
    return _mean([value for value in values if value is not None])


def _total(key: str, found: Sequence[Any]) -> int | None:
    values = [reconstruction.cost[key] for reconstruction in found if key in reconstruction.cost]
    return int(sum(values)) if values else None


def _mean(values: Sequence[float]) -> float | None:
    mean = sum(values) / len(values) if values else None
    return None if mean is None or mean != mean or abs(mean) == float("inf") else mean


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


SHOWN = (
    "cell", "attack", "status", "reason", "told_extra", "examples", "recovered", "psnr", "psnr_low", "psnr_high",
    "ssim", "gain_db", "seconds", "outcome",
)  # fmt: skip
"""What every row has had since schema 1; a reader relies on these."""


def check_result(result: Mapping[str, Any], path: Path) -> None:
    """Raise unless a result file has the keys that readers rely on."""
    parts = {"rows": SHOWN, "cells": ("name", "title", "baselines")}
    lacking = [key for key in ("verdict", "verdict_level", "thresholds", *parts) if key not in result]
    for part, keys in parts.items():
        for entry in result.get(part, []):
            lacking += [key for key in keys if not isinstance(entry, Mapping) or key not in entry]
    if lacking:
        raise SeepageError(f"{path} is damaged: it lacks {', '.join(dict.fromkeys(lacking))}; make the run again")


# --- verdict -----------------------------------------------------------------------------------------------------


def verdict(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> tuple[str, str]:
    """The run in plain words: `(level, text)` with level `exact`, `recognizable`, `traces`, `nothing`, `unscored`.

    Args:
        rows: All rows.
        titles: A cell's name to its title.
    """
    scored = [row for row in rows if row["psnr"] is not None]
    silent = _silent(rows, titles)
    if not any(_spoke(row) for row in rows):
        return "unscored", f"NO RESULT. {silent}"
    if not scored:
        return "unscored", (
            "NOT SCORED. The truth is not at hand, so nobody can say how close these reconstructions are; "
            "look at them, or score them with: seepage score RUN --truth FOLDER"
        )
    best = {
        cell: max((row for row in scored if row["cell"] == cell), key=_strength)
        for cell in titles
        if any(row["cell"] == cell for row in scored)
    }
    leaking = [row for row in best.values() if row["recovered"] or row["exact"]]
    if not leaking:
        traces = any(row["outcome"] == "traces" or row.get("visible") for row in scored)
        return ("traces" if traces else "nothing"), f"{_quiet_verdict(best, traces)} {silent}".strip()
    worst = max(leaking, key=_strength)
    level = "exact" if worst["exact"] else "recognizable"
    parts = [
        f"LEAKS. Private examples can be read back out of {len(leaking)} of {_cases(len(best))}.",
        f"Worst: {titles[worst['cell']]}, where {worst['attack']} rebuilt {_share(worst)}"
        f" ({worst['psnr']:.0f} dB on average{_gain(worst)}), {_told(worst)}.",
    ]
    quiet = [row for row in best.values() if row not in leaking]
    if quiet:
        parts.append(
            f"In {_cases(len(quiet))} no example counts as recovered within these steps "
            f"({'; '.join(titles[row['cell']] for row in quiet)}). That is no proof of safety."
        )
    return level, " ".join([*parts, silent]).strip()


def _silent(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """A sentence about the cells of which no attack could say anything, or nothing where there are none."""
    spoke = {row["cell"] for row in rows if _spoke(row)}
    silent = [title for cell, title in titles.items() if cell not in spoke]
    if not silent:
        return ""
    return (
        f"In {_cases(len(silent))} no attack gave a result, since none applies or all failed ({'; '.join(silent)}). "
        "That is no proof of safety either; the reasons stand beside each attack."
    )


def _spoke(row: Mapping[str, Any]) -> bool:
    return row["status"] not in ("inapplicable", "error")


def _cases(count: int) -> str:
    return "1 audited case" if count == 1 else f"{count} audited cases"


def _strength(row: Mapping[str, Any]) -> tuple[float, float, float]:
    return row["exact"] or 0.0, row["recovered"] or 0.0, row["gain_db"] if row["gain_db"] is not None else -1e9


def _share(row: Mapping[str, Any]) -> str:
    kind, share = ("exactly", row["exact"]) if row["exact"] else ("recognizably", row["recovered"])
    return f"{round(share * row['examples'])} of {row['examples']} examples {kind}"


def _gain(row: Mapping[str, Any]) -> str:
    return "" if row["gain_db"] is None else f", {row['gain_db']:+.0f} dB over the mean color"


def _told(row: Mapping[str, Any]) -> str:
    return f"told {', '.join(row['told_extra'])}" if row["told_extra"] else "told nothing beyond the protocol"


def _quiet_verdict(best: Mapping[str, Mapping[str, Any]], traces: bool) -> str:
    if traces:
        return (
            f"TRACES. In {_cases(len(best))} no example counts as recovered, but some guesses come closer than a flat "
            "color or show outlines; look at the pictures. A stronger attack or more steps may recover more."
        )
    return (
        f"NOTHING RECOGNIZABLE. In {_cases(len(best))} these attacks recovered nothing within their steps. "
        "That is no proof of safety: a stronger attack, more steps or an earlier round may recover more."
    )


# --- the gate ----------------------------------------------------------------------------------------------------

_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|>|<)\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*")
_COMPARE = {
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}


def parse_condition(text: str) -> tuple[str, str, float]:
    """A condition such as `psnr>20`.

    Raises:
        SeepageError: Where it is no condition or names no score.

    >>> parse_condition("psnr > 20")
    ('psnr', '>', 20.0)
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise SeepageError(f"--fail-if takes SCORE>NUMBER such as 'psnr>20', got {text!r}")
    key, sign, number = match.groups()
    if key not in SCORE_KEYS:
        raise unknown("score in --fail-if", key, SCORE_KEYS)
    return key, sign, float(number)


def violations(rows: Sequence[Mapping[str, Any]], condition: tuple[str, str, float]) -> list[Mapping[str, Any]]:
    """Rows that meet a `--fail-if` condition.

    Raises:
        SeepageError: Where no row has that score: a gate that cannot see must not let anything pass.
    """
    key, sign, number = condition
    if all(row.get(key) is None for row in rows):
        raise SeepageError(
            f"--fail-if cannot be judged: no row of this run has the score {key!r}; "
            "score the run against the truth, or name another score"
        )
    return [row for row in rows if row.get(key) is not None and _COMPARE[sign](row[key], number)]


def thresholds(scoring: Scoring) -> dict[str, Any]:
    """The thresholds of a run, for its result file."""
    return asdict(scoring)
