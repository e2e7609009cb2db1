r"""What closed forms get of updates whose networks are trained towards other targets than a softmax's classes.

python experiments/targets.py --data ../shared/data/cifar10.npz

One image in several: each photograph is trained towards one logit (its class in the first or the second half of them),
its brightness (1 value) or its mean color (3 values), or its class with another loss; all with a fresh FC-2.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated

import torch
from common import Row, command, draw, keep, measure, parts
from torch import Tensor

from seepage.api import attack, record
from seepage.base.nn import frozen_randomness
from seepage.base.units import Units
from seepage.errors import Inapplicable
from seepage.federation.clients import FedSGD
from seepage.federation.models import fc2
from seepage.federation.types import Batch
from seepage.measure.metrics import align_guess
from seepage.measure.metrics.labels import label_scores

CLASSES = 10
FEWEST = 8
"""Batches of `cocktail_party` for each seed are so many times fewer: it takes seconds where `linear` takes none."""


def halves(batch: Batch) -> Tensor:
    """`[n]` 1 where the class is in the second half."""
    return (batch.labels >= CLASSES // 2).long()


def brightness(batch: Batch) -> Tensor:
    return batch.inputs.mean((1, 2, 3))[:, None]


def color(batch: Batch) -> Tensor:
    return batch.inputs.mean((2, 3))


def own_class(batch: Batch) -> Tensor:
    return batch.labels


Case = tuple[FedSGD, int, Callable[[Batch], Tensor]]
CASES: dict[str, Case] = {
    "cross-entropy, 10 classes": (FedSGD(), CLASSES, own_class),
    "cross-entropy with class weights": (
        FedSGD(class_weights=tuple(0.5 + 0.1 * place for place in range(CLASSES))),
        CLASSES,
        own_class,
    ),
    "focal loss (one's own)": (FedSGD(loss="common:focal"), CLASSES, own_class),
    "one logit": (FedSGD(loss="binary"), 1, halves),
    "squared error, 1 value": (FedSGD(loss="mse"), 1, brightness),
    "squared error, 3 values": (FedSGD(loss="mse"), 3, color),
}


def main(
    *,
    data: str,
    n: tuple[int, ...] = (1, 2, 4, 8),
    batches: Annotated[int, "of each seed"] = 16,
    seeds: tuple[int, ...] = (0, 1, 2),
    method: tuple[str, ...] = ("linear", "cocktail_party"),
) -> None:
    train, test = parts(data)
    for (name, (rule, outputs, target)), use, size, seed in product(CASES.items(), method, n, seeds):
        units = Units.of(target(train)) if rule.loss == "mse" else None
        count = batches if use == "linear" else max(1, batches // FEWEST)
        drawn = [draw(test, size, 6000 + 100 * seed + place) for place in range(count)]
        scaled = [replace(one, labels=_labels(target(one), units)) for one in drawn]
        row = {**tried(rule, outputs, scaled, use, seed, units), "seed": seed, "data": Path(data).stem}
        keep("closed/targets", f"{name}; {use}; n {size}", "exact", row)


def _labels(labels: Tensor, units: Units | None) -> Tensor:
    return labels if units is None else units.scaled(labels)


def tried(rule: FedSGD, outputs: int, batches: list[Batch], method: str, seed: int, units: Units | None) -> Row:
    """The share of examples that came back exactly, over batches, and how many certificates were right and wrong."""
    exact = certified = wrong = 0
    errors, floors = [], []
    with frozen_randomness(seed):
        model = fc2(tuple(batches[0].inputs.shape[1:]), outputs)
    for batch in batches:
        try:
            found = attack(record(model, batch, client=rule), method)
        except Inapplicable as refused:
            return {"exact": None, "reason": str(refused)}
        if not len(found):
            continue
        row = measure(found, batch)
        exact += round(len(batch) * float(row["exact"]))
        certified += round(len(batch) * float(row.get("certified", 0)))
        wrong += int(row.get("false_certificates", 0))
        if found.labels is not None and units is not None:
            scores = label_scores(found.labels, batch.labels, align_guess(found, batch, (0.0, 1.0)).permutation, units)
            errors += scores.values["target_error"].tolist()
            floors += scores.floors["mean_target"]["target_error"].tolist()
    examples = sum(map(len, batches))
    known = torch.tensor(errors, dtype=torch.float64)
    known = known[~known.isnan()]
    return {
        "exact": exact / examples,
        "examples": examples,
        "examples_exact": exact,
        "certified": certified,
        "false_certificates": wrong,
        "target_error": float(known.mean()) if len(known) else None,
        "mean_target_error": sum(floors) / len(floors) if floors else None,
    }


if __name__ == "__main__":
    command(main)
