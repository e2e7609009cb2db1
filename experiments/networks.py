"""What one update of a stock network shows: records of finished audits of `recipes/networks.toml` (docs/networks.md).

seepage audit experiments/recipes/networks.toml --data cifar10.npz --model torchvision:resnet18 --out RUN
python experiments/networks.py RUN [RUN ...]

Of every update of a run the labels, the features in front of the head, what the last block read and the variances of
batch norm are solved for, as an attacker would who knows nothing; then they are compared with the client's own pass
in train mode. *Known*: what the solution calls known; *wrong*: of these, those that are off by more than 1 %, or with
another label; of variances more than 10 %. Members and exact images are the audit's own counts. One row of
results/networks/rates.jsonl for each run that is not there yet; runs of `networks-search.toml` give rows of
results/networks/search.jsonl, as `runs.py` makes them.
"""

import json
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import command, read_in_training, variance_errors
from head import compared
from keeping import keep_measured
from runs import data_of, keep_run, repeatable
from torch import Tensor

from seepage.attacks.exposure import batch_norm_leaks
from seepage.attacks.network.evidence import READ
from seepage.attacks.reading.activations import InnerActivations, inner_activations
from seepage.attacks.reading.head import HeadFeatures, head_features
from seepage.attacks.search.labels import Auto
from seepage.base.storage import read_tensors
from seepage.errors import Inapplicable
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.types import Batch, Knowledge, Round
from seepage.papers.records import RESULTS, read_file

WRONG = 1e-2
"""Relative error of an example from which on what is called known of it is wrong."""
COUNTS = ("labels", "labels_right", "features", "features_wrong", "activations", "activations_wrong")
CASE = ("model", "model_options", "parameters", "history", "accuracy", "client", "batch_size", "batches")


def solved(solve: Callable[[], Any]) -> Any:
    """A solution, or why there is none."""
    try:
        return solve()
    except Inapplicable as refused:
        return str(refused)


def read_labels(found: Tensor | None, truth: Tensor) -> dict[str, int]:
    """How many labels are right, of a batch whose order is not known."""
    if found is None:
        return {"labels": 0, "labels_right": 0}
    most = int(max(found.max(), truth.max())) + 1
    right = torch.minimum(torch.bincount(found, minlength=most), torch.bincount(truth, minlength=most))
    return {"labels": len(found), "labels_right": int(right.sum())}


def counted(name: str, found: HeadFeatures | str, read: Tensor, truth: Tensor, labels: Tensor) -> dict[str, int]:
    """How many examples of a solution are called known, and how many of these are not so."""
    if isinstance(found, str):
        return {name: 0, f"{name}_wrong": 0}
    order = labels.argsort(stable=True)
    relative, _ = compared(_as_features(found, read), truth[order].double().flatten(1), labels[order])
    return {name: int(found.known.sum()), f"{name}_wrong": int((relative[found.known] > WRONG).sum())}


def _as_features(found: HeadFeatures, read: Tensor) -> HeadFeatures:
    return replace(found, features=read.double().flatten(1), noise=torch.ones(len(read), dtype=torch.float64))


def one_round(observed: Round, knowledge: Knowledge, private: Batch) -> dict[str, Any]:
    """What is solved for in one update, in counts, with the reasons of refusals and the processor time."""
    clock = time.process_time()
    labels = Auto()(observed, knowledge)
    features = solved(lambda: head_features(observed, knowledge))
    inner = solved(lambda: inner_activations(observed, knowledge))
    leaks = solved(lambda: batch_norm_leaks(observed, knowledge))
    seconds = time.process_time() - clock
    names = [found.head for found in (features,) if isinstance(found, HeadFeatures)]
    names += [found.layer for found in (inner,) if isinstance(found, InnerActivations)]
    names += [leak.norm for leak in leaks if not isinstance(leak, str)]
    truth = read_in_training(knowledge.model, names, private.inputs, observed.params, observed.buffers)
    row: dict[str, Any] = read_labels(labels, private.labels)
    row |= counted("features", features, *_sides(features, truth), private.labels)
    row |= counted("activations", inner, *_sides(inner, truth), private.labels)
    row["layer"] = inner.layer if isinstance(inner, InnerActivations) else None
    row |= {"variances": 0, "variances_wrong": 0, "channels": 0}
    for leak in () if isinstance(leaks, str) else leaks:
        row["channels"] += len(leak.variance)
        if leak.mode == "train":
            errors = variance_errors(leak, truth[leak.norm])
            row["variances"] += len(errors)
            row["variances_wrong"] += int((errors > READ).sum())
    refused = {"features": features, "activations": inner, "variances": leaks}
    row["refused"] = {name: found for name, found in refused.items() if isinstance(found, str)}
    return {**row, "solving_s": seconds}


def _sides(found: HeadFeatures | str, truth: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What was solved for and what it was; of activations less the mean of channels whose constant is not known."""
    if isinstance(found, InnerActivations):
        both = found.activations.double(), truth[found.layer].double()
        free = ~found.offset_known[None, :, None, None]
        one, other = (side - free * side.mean((0, 2, 3), keepdim=True) for side in both)
        return one, other
    return (torch.zeros(0), torch.zeros(0)) if isinstance(found, str) else (found.features, truth[found.head])


def keep_rates(study: str, folder: Path) -> None:
    """Add the row of a finished run."""
    result, env = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("result", "env"))
    recipe = tomllib.loads((folder / "recipe.toml").read_text("utf-8"))
    transcript, private = open_transcript(folder / "observed"), read_tensors(folder / "private" / "truth.safetensors")
    rounds = []
    for t in range(len(transcript)):
        own = Batch(private[f"{t:06d}/inputs"], private[f"{t:06d}/labels"])
        rounds.append(one_round(transcript[t], transcript.knowledge, own))
    (case,), (test,), rows = result["cases"], result["membership"], result["rows"]
    examples = case["batch_size"] * case["batches"]
    exact = [row for row in rows if row["status"] not in ("inapplicable", "error") and row["scores"]]
    keep_measured(
        study,
        f"{case['title']}, seed {recipe['seed']}",
        "auc",
        test["auc"],
        seed=recipe["seed"],
        interval=None if test["auc_low"] is None else (test["auc_low"], test["auc_high"]),
        data=data_of(case["data"], recipe["data"]["use"]),
        command=repeatable(env["command"]),
        **{key: case.get(key) for key in CASE},
        read_of=examples,
        **{key: sum(row[key] for row in rounds) for key in (*COUNTS, "variances", "variances_wrong", "channels")},
        layer=next((row["layer"] for row in rounds if row["layer"]), None),
        refused={name: reason for row in rounds for name, reason in row["refused"].items()},
        exact_found=_score(exact, "exact"),
        recognizable_found=_score(exact, "recovered"),
        exact_tried=bool(exact),
        exact_refused=next((row["reason"] for row in rows if row["status"] == "inapplicable"), None),
        **_identified(test),
        public=recipe["membership"]["public"],
        cpu_s=sum(row["solving_s"] for row in rounds)
        + sum((row["cost"] or {}).get("cpu_seconds") or 0 for row in rows)
        + (test["cpu_seconds"] or 0),
    )


def _identified(test: dict[str, Any]) -> dict[str, int]:
    """Members and others that were identified; of none where the test gave no result."""
    nobody = {"hits": 0, "of": 0}
    members, others = (test[f"{who}_identified"] or nobody for who in ("members", "others"))
    return {
        "identified": members["hits"],
        "identified_of": members["of"],
        "false": others["hits"],
        "false_of": others["of"],
    }


def _score(rows: list[dict[str, Any]], name: str) -> int:
    """How many examples of these attacks have it."""
    return sum(round(row["scores"][name]["mean"] * row["scores"][name]["n"]) for row in rows)


def main(runs: tuple[Path, ...]) -> None:
    torch.set_num_threads(1)
    for folder in runs:
        search = tomllib.loads((folder / "recipe.toml").read_text("utf-8"))["name"].endswith("search")
        study = "networks/search" if search else "networks/rates"
        command = repeatable(json.loads((folder / "env.json").read_text("utf-8"))["command"])
        if command not in {record.command for record in read_file(RESULTS / f"{study}.jsonl")}:
            (keep_run if search else keep_rates)(study, folder)


if __name__ == "__main__":
    command(main)
