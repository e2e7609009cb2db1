"""Score the outcomes of a run, raise its trust flags, and write its results."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seepage import sanity
from seepage.attacking import Source, attack_names
from seepage.attacks import Attack
from seepage.errors import SeepageError
from seepage.metrics import Scores, align
from seepage.outcome import Outcome, open_outcome
from seepage.recipe import Recipe, Scoring
from seepage.recording import Show, quiet
from seepage.results import make_row, score_outcomes, thresholds, verdict
from seepage.storage import SCHEMA, check_schema, read_json, write_json, write_lines, write_tensors
from seepage.transcript import open_truth
from seepage.types import Batch, Reconstruction, Tensors, Transcript


def summarize(sources: Sequence[Source], recipes: Sequence[Recipe], folder: Path, show: Show = quiet) -> dict[str, Any]:
    """Score all outcomes, raise the flags, and write `scores.jsonl`, `flags.json` and, last, `result.json`."""
    rows: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    flags: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    for i, (source, recipe) in enumerate(zip(sources, recipes, strict=True)):
        show(i, len(sources), f"scoring {source.name}")
        transcript = source.open("cpu")
        truth = None if source.private is None else _truth_for(transcript, source.private)
        facts.append(_facts_of(source, transcript))
        flags += _cell_flags(source.name, transcript, truth, recipe.score)
        for name, part in zip(attack_names(recipe.attack), recipe.attack, strict=True):
            row, scores = _score_attack(source, name, recipe.make_attack(part), transcript, truth, recipe.score, folder)
            rows.append(row)
            found = (
                sanity.attack_flags(row)
                + sanity.shape_flags(row)
                + (sanity.fit_flags(scores.alignment, name) if scores else [])
            )
            flags += [{"cell": source.name, "attack": name, **asdict(flag)} for flag in found]
            lines += _score_lines(source.name, name, scores) if scores else []
    write_lines(folder / "scores.jsonl", lines)
    write_json(folder / "flags.json", {"schema": SCHEMA, "flags": flags})
    level, words = verdict(rows, {fact["name"]: fact["title"] for fact in facts})
    result = {
        "schema": SCHEMA,
        "run": str(folder),
        "verdict": words,
        "verdict_level": level,
        "rows": rows,
        "cells": facts,
        "thresholds": thresholds(recipes[0].score),
    }
    write_json(folder / "result.json", result)
    return result


def _facts_of(source: Source, transcript: Transcript) -> dict[str, Any]:
    if source.private is not None and (source.private / "cell.json").exists():
        facts: dict[str, Any] = read_json(source.private / "cell.json")
        check_schema(facts, source.private / "cell.json")
        return {**facts, "name": source.name}
    knowledge, first = transcript.knowledge, transcript[0]
    use = knowledge.architecture.use if knowledge.architecture else type(knowledge.model).__name__
    return {
        "schema": SCHEMA,
        "name": source.name,
        "title": f"{use}, {len(transcript)} recorded update{'s' if len(transcript) > 1 else ''}",
        "model": use,
        "model_options": dict(knowledge.architecture.options) if knowledge.architecture else {},
        "data": None,
        "data_source": None,
        "batch_size": first.batch_size,
        "batches": len(transcript),
        "training_steps": None,
        "defense": None,
        "client": repr(knowledge.client),
        "classes": [str(label) for label in range(knowledge.num_classes)],
        "parameters": sum(p.numel() for p in first.params.values()),
        "baselines": None,
        "accuracy": None,
    }


def _truth_for(transcript: Transcript, private: Path) -> list[Batch]:
    """The truth, which must be that of this transcript."""
    truth, knowledge = open_truth(private), transcript.knowledge
    problem = None
    if len(truth) != len(transcript):
        problem = f"has {len(truth)} batches and the recording has {len(transcript)} rounds"
    for t, batch in enumerate(truth if problem is None else []):
        size = transcript[t].batch_size or len(batch)
        if tuple(batch.inputs.shape) != (size, *knowledge.input_shape) or not batch.inputs.is_floating_point():
            problem = f"holds {tuple(batch.inputs.shape)} in batch {t}, expected {(size, *knowledge.input_shape)}"
        elif not batch.inputs.isfinite().all():
            problem = f"holds NaN or infinite values in batch {t}"
        elif not _are_classes(batch.labels, knowledge.num_classes):
            problem = f"holds labels in batch {t} that are not among the {knowledge.num_classes} classes"
    if problem is not None:
        raise SeepageError(f"the truth in {private} {problem}; name the private/ folder that belongs to this recording")
    return truth


def _are_classes(labels: Tensor, classes: int) -> bool:
    if labels.is_floating_point():
        return labels.shape[1:] == (classes,)
    return labels.dtype == torch.int64 and labels.ndim == 1 and bool(((labels >= 0) & (labels < classes)).all())


def _cell_flags(
    cell: str, transcript: Transcript, truth: Sequence[Batch] | None, scoring: Scoring
) -> list[dict[str, Any]]:
    knowledge = transcript.knowledge
    found = sanity.model_flags(knowledge.model, getattr(knowledge.client, "mode", "train"))
    losses = sanity.example_losses(transcript, list(truth)) if truth is not None else []
    found += sanity.update_flags(transcript, losses)
    if truth is not None:
        found += sanity.sample_flags(sum(len(batch) for batch in truth), len(truth))
        found += sanity.metric_flags(scoring.lpips, knowledge.input_shape)
    return [{"cell": cell, "attack": None, **asdict(flag)} for flag in found]


def _score_attack(
    source: Source,
    name: str,
    attack: Attack,
    transcript: Transcript,
    truth: Sequence[Batch] | None,
    scoring: Scoring,
    folder: Path,
) -> tuple[dict[str, Any], Scores | None]:
    place = folder / "attacks" / source.name / name
    outcomes = [open_outcome(path.with_suffix("")) for path in sorted(place.glob("*.json")) if path.stem.isdigit()]
    if not outcomes:
        raise SeepageError(f"{place} has no outcome, so the run was cut short; run the same command again to go on")
    value_range = transcript.knowledge.value_range
    scores = None if truth is None else score_outcomes(outcomes, truth, value_range, scoring)
    _write_aligned(folder / "reconstructions" / source.name / f"{name}.safetensors", outcomes, truth, value_range)
    return make_row(source.name, name, outcomes, transcript, truth, scores, attack), scores


def _write_aligned(
    path: Path, outcomes: Sequence[Outcome], truth: Sequence[Batch] | None, value_range: tuple[float, float]
) -> None:
    """The guesses for the report: in the truth's order where there is one, else as they are."""
    tensors: Tensors = {}
    for t, outcome in enumerate(outcomes):
        found = outcome.reconstruction
        if found is None or found.space != "input":
            continue
        if truth is None:
            tensors[f"{t:06d}/inputs"] = found.inputs.clamp(*value_range)
            tensors[f"{t:06d}/matched"] = torch.ones(len(found), dtype=torch.bool)
        else:
            tensors |= _aligned_round(t, found, truth[t], value_range)
    if tensors:
        write_tensors(path, tensors)


def _aligned_round(t: int, found: Reconstruction, batch: Batch, value_range: tuple[float, float]) -> Tensors:
    indexed = found.indices is not None and batch.indices is not None
    aligned = align(
        found.inputs,
        batch.inputs,
        method="identity" if indexed else "hungarian",
        value_range=value_range,
        ambiguity=found.ambiguity,
        guess_indices=found.indices,
        truth_indices=batch.indices,
    )
    return {f"{t:06d}/inputs": aligned.guesses.float(), f"{t:06d}/matched": aligned.matched}


def _score_lines(cell: str, attack: str, scores: Scores) -> list[dict[str, Any]]:
    per_example = len(scores.metrics)
    batches = [int(b) for b in scores.batches for _ in range(per_example)]
    return [
        {"schema": SCHEMA, "cell": cell, "attack": attack, "round": batch, **asdict(row)}
        for batch, row in zip(batches, scores.rows, strict=True)
    ]
