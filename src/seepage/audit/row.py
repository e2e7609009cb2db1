"""Rows, verdict and threshold gate: what the outcomes of a run amount to."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seepage.attacks import Attack
from seepage.audit.attempt import Attempt
from seepage.audit.score import Measured, at_truth, inner_errors
from seepage.errors import SeepageError, unknown
from seepage.recipe.case import Scoring
from seepage.types import Batch, Reconstruction, Transcript

PROTOCOL = ("model", "client rule", "batch size", "update")
"""What every attacker here is told: what an honest-but-curious server sees anyway."""

SCORE_KEYS = (
    "recovered", "exact", "psnr", "psnr_median", "psnr_low", "psnr_high", "ssim", "lpips", "correlation", "cosine",
    "gain_db", "label_accuracy", "mean_color_psnr", "grey_psnr", "random_psnr", "mean_color_ssim", "grey_ssim",
    "random_ssim",
)  # fmt: skip


def make_row(
    cell: str,
    name: str,
    outcomes: Sequence[Attempt],
    views: Sequence[Transcript],
    truth: Sequence[Batch] | None,
    measured: Measured | None,
    attack: Attack,
) -> dict[str, Any]:
    """One line of the result table: one attack on one cell. Null where something does not apply.

    Args:
        cell: The cell's name.
        name: The attack's name in this run.
        outcomes: One per run of the attack.
        views: What each run saw.
        truth: The private batch behind each, where it is at hand.
        measured: Their scores.
        attack: The attack.
    """
    first, transcript = outcomes[0], views[0]
    found = [outcome.reconstruction for outcome in outcomes if outcome.reconstruction is not None]
    told = transcript.knowledge.told
    # Where indices are known at all, the protocol shows them: the server itself names the batches.
    told_extra, shown = sorted(told - {"indices"}), sorted(told & {"indices"})
    known = [item for item in PROTOCOL if item != "batch size" or transcript[0].batch_size is not None]
    row: dict[str, Any] = {
        "cell": cell,
        "attack": name,
        "options": first.attack,
        "status": worst_status(outcomes),
        "reason": _reason(outcomes),
        "told": [*known, *shown, *told_extra],
        "told_extra": told_extra,
        "examples": _examples(views, truth),
        **dict.fromkeys(SCORE_KEYS),
        "psnr_nearest": None,
        "alignment": None,
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 3) if found else None,
        "cpu_seconds": round(sum(outcome.cpu_seconds for outcome in outcomes), 3) if found else None,
        "rounds": _total("rounds", found),
        "steps": _most("steps", found),
        "evaluations": _total("evaluations", found),
        "objective": _mean([float(r.objective.mean()) for r in found if r.objective is not None and len(r)]),
        "objective_at_truth": None,
        "visible": None,
        "vouched": _vouched(found),
        "certified": None,
        "false_certificates": None,
        "error_v": None,
        "error_h": None,
        "space": found[0].space if found else None,
        "returned": sum(len(r) for r in found) if found else None,
        "notes": list(dict.fromkeys(note for r in found for note in r.notes)),
    }
    if measured is not None and truth is not None:
        scores = measured.scores
        row |= {key: _rounded(getattr(scores, key)) for key in SCORE_KEYS}
        row |= {"alignment": scores.alignment, "objective_at_truth": at_truth(attack, views, truth)}
        row["visible"] = scores.visible
        row["psnr_nearest"] = _rounded(measured.nearest)
        row["notes"] += list(scores.notes)
        row |= measured.certified
        row |= inner_errors(attack, views, truth, outcomes, measured.places)
    row["zero_update"] = row["status"] == "inapplicable" and all(map(_is_zero, views))
    row["outcome"] = describe_outcome(row)
    row["nothing_recovered"] = row["outcome"] == "nothing recovered"
    return row


def _vouched(found: Sequence[Reconstruction]) -> int | None:
    """Guesses that an attack certifies, truth or not; None where it cannot certify any."""
    given = [r.certified for r in found if r.certified is not None]
    return int(sum(int(certified.sum()) for certified in given)) if given else None


def worst_status(outcomes: Sequence[Attempt]) -> str:
    """The status that a reader must know: the worst of the batches that gave a result, or of all where none did."""
    order = ("error", "inapplicable", "interrupted", "diverged", "exhausted", "ok")
    spoke = [outcome for outcome in outcomes if outcome.reconstruction is not None] or outcomes
    return next(status for status in order if any(outcome.status == status for outcome in spoke))


def _reason(outcomes: Sequence[Attempt]) -> str | None:
    """Why there is no result, with how many batches that is true of where others have one."""
    silent = [outcome for outcome in outcomes if outcome.reason]
    if not silent:
        return None
    where = f"on {len(silent)} of {len(outcomes)} batches: " if len(silent) < len(outcomes) else ""
    return f"{where}{silent[0].reason}"


def skipped_row(cell: str, name: str, attack: Attack, told: Sequence[str], reason: str) -> dict[str, Any]:
    """The line of an attack on a cell that could not be recorded."""
    blank = dict.fromkeys(
        ("examples", *SCORE_KEYS, "psnr_nearest", "alignment", "seconds", "cpu_seconds", "rounds", "steps",
         "evaluations", "objective", "objective_at_truth", "visible", "vouched", "certified", "false_certificates",
         "error_v", "error_h", "space", "returned")
    )  # fmt: skip
    return {
        "cell": cell,
        "attack": name,
        "options": repr(attack),
        "status": "inapplicable",
        "reason": reason,
        "told": [*PROTOCOL, *told],
        "told_extra": [item for item in told if item != "indices"],
        **blank,
        "notes": [],
        "zero_update": False,
        "outcome": "not recorded",
        "nothing_recovered": False,
    }


def _is_zero(transcript: Transcript) -> bool:
    """Whether no round's update has anything in it."""
    updates = (transcript[t].update.tensors.values() for t in range(len(transcript)))
    return not any(bool(tensor.any()) for tensors in updates for tensor in tensors)


def describe_outcome(row: Mapping[str, Any]) -> str:
    """A row in two words, from its scores. Where some are exact their count says so: more may be recovered than exact.

    >>> describe_outcome({"status": "inapplicable", "zero_update": True})
    'zero update'
    >>> describe_outcome({"status": "ok", "psnr": 70.0, "recovered": 1.0, "exact": 0.5, "examples": 4})
    '2/4 exact'
    """
    if row["status"] == "error":
        return "failed"
    if row["status"] == "inapplicable":
        return "zero update" if row.get("zero_update") else "does not apply"
    if row["psnr"] is None:
        if row.get("returned") == 0:
            return "returned nothing"
        return "features only" if row.get("space") == "feature" else "not scored"
    if row["exact"]:
        everything = row["exact"] == row["recovered"] == 1
        return "exact" if everything else f"{round(row['exact'] * row['examples'])}/{row['examples']} exact"
    if row["recovered"]:
        return "recovered" if row["recovered"] == 1 else "partly recovered"
    return "traces" if row["gain_db"] is not None and row["gain_db"] > 0 else "nothing recovered"


def _examples(views: Sequence[Transcript], truth: Sequence[Batch] | None) -> int | None:
    if truth is not None:
        return sum(len(batch) for batch in truth)
    if len(views) == 1 and len(views[0]) > 1 and "indices" in views[0].knowledge.told:
        return None  # Rounds over one data set hold its examples again and again.
    sizes = [view[t].batch_size for view in views for t in range(len(view))]
    return sum(size for size in sizes if size is not None) if None not in sizes else None


def _most(key: str, found: Sequence[Any]) -> int | None:
    """The most of any one run: what its `steps` option says, where none ended early."""
    values = [reconstruction.cost[key] for reconstruction in found if key in reconstruction.cost]
    return int(max(values)) if values else None


def _total(key: str, found: Sequence[Any]) -> int | None:
    values = [reconstruction.cost[key] for reconstruction in found if key in reconstruction.cost]
    return int(sum(values)) if values else None


def _mean(values: Sequence[float]) -> float | None:
    mean = sum(values) / len(values) if values else None
    return None if mean is None or mean != mean or abs(mean) == float("inf") else mean


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


NAMED = 3
"""Cases or attacks that a sentence names one by one; more are counted."""


def reasons(entries: Iterable[tuple[str, str, str, str]], cases: int) -> list[tuple[str, str]]:
    """Why attacks gave no result: each reason once, however many attacks and cases it was given for.

    Args:
        entries: Attack, outcome, reason and the case's title, row by row.
        cases: Number of all cases.

    Returns:
        Attacks and sentence.

    >>> reasons([("dlg", "failed", "no memory", "A"), ("dlg", "failed", "no memory", "B")], 3)
    [('dlg', 'failed (2 of 3 cases): no memory')]
    """
    places: dict[tuple[str, str, str], list[str]] = {}
    for attack, outcome, reason, title in entries:
        places.setdefault((attack, outcome, reason), []).append(title)
    attacks: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (attack, outcome, reason), titles in places.items():
        attacks.setdefault((outcome, reason, tuple(titles)), []).append(attack)
    found = []
    for (outcome, reason, where), names in attacks.items():
        who = ", ".join(names) if len(names) <= NAMED else f"{len(names)} attacks"
        among = f" ({where[0] if len(where) == 1 else f'{len(where)} of {cases} cases'})" if cases > 1 else ""
        found.append((who, f"{outcome}{among}: {reason}"))
    return found


def promise_lines(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """What defenses promise in differential privacy, to stand beside the verdict: each sentence once.

    >>> promise_lines([{"title": "fc2", "promise": {"epsilon": 8.0, "delta": 1e-5, "unit": "example", "rounds": 1}}])
    ['Promised beside it: epsilon = 8 at delta = 1e-05 for each example, over 1 round.']
    """
    places: dict[str, list[str]] = {}
    for cell in cells:
        promise = cell.get("promise")
        if isinstance(promise, Mapping):
            places.setdefault(_promised(promise), []).append(str(cell.get("title") or cell.get("name")))
    lines = []
    for words, titles in places.items():
        where = "; ".join(titles) if len(titles) <= NAMED else f"{len(titles)} of {len(cells)} cases"
        lines.append(f"Promised beside it: {words}{f' ({where})' if len(titles) < len(cells) else ''}.")
    return lines


def _promised(promise: Mapping[str, Any]) -> str:
    epsilon, delta, rounds = (promise.get(key) for key in ("epsilon", "delta", "rounds"))
    if not isinstance(epsilon, int | float) or not isinstance(delta, int | float):
        doubts = promise.get("doubts")
        return f"no epsilon: {doubts[0]}" if isinstance(doubts, list | tuple) and doubts else "no epsilon"
    unit = "example" if promise.get("unit") == "example" else "client's update"
    over = f"over {rounds} round{'' if rounds == 1 else 's'}"
    return f"epsilon = {epsilon:.3g} at delta = {delta:g} for each {unit}, {over}"


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


# --- the gate ----------------------------------------------------------------------------------------------------

GATE_KEYS = (*SCORE_KEYS, "visible", "certified", "error_v", "error_h")
"""What `--fail-if` can name."""
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
    if key not in GATE_KEYS:
        raise unknown("score in --fail-if", key, GATE_KEYS)
    return key, sign, float(number)


def violations(rows: Sequence[Mapping[str, Any]], condition: tuple[str, str, float]) -> list[Mapping[str, Any]]:
    """Rows that meet a `--fail-if` condition.

    Raises:
        SeepageError: Where none does and a cell could not be recorded, or has no row with that score: a gate that
            cannot see must not let anything pass. A cell whose update is zero has nothing to leak, and passes.
    """
    key, sign, number = condition
    found = [row for row in rows if row.get(key) is not None and _COMPARE[sign](row[key], number)]
    if found:
        return found
    lost = {row["cell"]: row["reason"] for row in rows if row["outcome"] == "not recorded"}
    if lost:
        raise SeepageError(
            f"--fail-if cannot be judged: {_first(lost)} could not be recorded "
            f"({next(iter(lost.values()))}); mend the recipe there, or take the case out of it"
        )
    seen = {row["cell"] for row in rows if row.get(key) is not None or row["outcome"] == "zero update"}
    blind = dict.fromkeys(row["cell"] for row in rows if row["cell"] not in seen)
    if blind or not rows:
        raise SeepageError(
            f"--fail-if cannot be judged: no attack has the score {key!r}{f' in {_first(blind)}' if blind else ''}; "
            "score the run against the truth, name another score, or leave out cases that no attack applies to"
        )
    return []


def _first(cells: Collection[str]) -> str:
    """The first few names of cells."""
    return f"{', '.join(list(cells)[:NAMED])}{' and others' if len(cells) > NAMED else ''}"


def thresholds(scoring: Scoring) -> dict[str, Any]:
    """The thresholds of a run, for its result file."""
    return asdict(scoring)
