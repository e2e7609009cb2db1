"""How well each rule reads a batch's labels from its update, without any search (FedLeak's Table 14).

    python experiments/labels.py --data cifar10.npz --batches 20 [--train 600] [--classes 1000]

Batches of 1 to 128 are drawn at random from the data's held-out part; a ConvNet with BatchNorm in train mode, fresh or
trained for `--train` Adam steps of 64, gives one FedSGD gradient of each. The score is the overlap of the two
multisets of labels as a share of the batch; the interval is a bootstrap over batches. Where a rule refuses a batch, its
accuracy is null and the reason is kept. `--classes` puts random labels of that many classes on the same pictures, for
fresh networks with more classes than the data have. One JSON line per row goes to results/matching/labels.jsonl.

The joint rule names no labels by itself (they come out of a search) and is left out; `chance` draws as many labels at
random.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seepage.data
from seepage import Architecture, Batch, Inapplicable, build, record
from seepage.attacks.matching.labels import LABEL_RULES
from seepage.core.nn import generator
from seepage.metrics.interval import bootstrap_interval
from seepage.metrics.labels import label_accuracy
from seepage.papers.records import keep_measured

RULES = ("sign", "minimum", "count", "count_row", "bias")
SIZES = (1, 4, 8, 16, 32, 64, 128)


def trained(model: nn.Module, data: seepage.data.Dataset, steps: int) -> float:
    """Train in place; the accuracy over the last fifth of the steps."""
    optimizer, draw, right = torch.optim.Adam(model.parameters(), lr=1e-3), generator(0, "train"), []
    for _ in range(steps):
        batch = data.batch(data.train[torch.randint(len(data.train), (64,), generator=draw)])
        logits = model(batch.inputs)
        optimizer.zero_grad()
        F.cross_entropy(logits, batch.labels).backward()
        optimizer.step()
        right.append(float((logits.argmax(1) == batch.labels).float().mean()))
    late = right[-max(1, steps // 5) :]
    return sum(late) / len(late)


def measure(model: nn.Module, batches: list[Batch], classes: int) -> dict[str, dict[str, Any]]:
    """Accuracy of each rule over batches of one size."""
    hits: dict[str, list[float]] = {rule: [] for rule in (*RULES, "chance")}
    refused: dict[str, str] = {}
    draw = generator(0, "chance")
    for batch in batches:
        transcript = record(model, batch)
        hits["chance"].append(label_accuracy(torch.randint(classes, batch.labels.shape, generator=draw), batch.labels))
        for rule in RULES:
            try:
                named = LABEL_RULES[rule](transcript[0], transcript.knowledge)
            except Inapplicable as error:
                refused[rule] = error.reason
                continue
            assert named is not None
            hits[rule].append(label_accuracy(named, batch.labels))
    found: dict[str, dict[str, Any]] = {}
    for rule, values in hits.items():
        found[rule] = {"accuracy": None, "refused": refused.get(rule)} if not values else summary(torch.tensor(values))
    return found


def summary(values: Tensor) -> dict[str, Any]:
    interval = bootstrap_interval(values, torch.arange(len(values)))
    return {"accuracy": round(float(values.mean()), 4), "interval": interval and [round(end, 4) for end in interval]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="digits")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--train", type=int, default=0)
    parser.add_argument("--classes", type=int)
    options = parser.parse_args()
    data = seepage.data.load(options.data, split=0.8)
    classes = options.classes or len(data.classes)
    architecture = Architecture("convnet", {"width": 16, "batch_norm": True})
    model = build(architecture, data.input_shape, classes)
    accuracy = trained(model, data, options.train) if options.train else None
    for size in SIZES:
        batches = []
        for number in range(options.batches):
            draw = generator(number, "batch", size)
            batch = data.batch(data.private[torch.randint(len(data.private), (size,), generator=draw)])
            if options.classes:
                batch = replace(batch, labels=torch.randint(classes, (size,), generator=draw))
            batches.append(batch)
        for rule, row in measure(model, batches, classes).items():
            facts = {"classes": classes, "train_steps": options.train, "model": str(architecture)}
            facts |= {"train_accuracy": accuracy and round(accuracy, 3), "batch": size, "batches": len(batches)}
            ends, value = row.pop("interval", None), row.pop("accuracy")
            facts |= {"rule": rule, **row}
            name = f"{rule}, batch {size}"
            keep_measured(
                "matching/labels", name, "accuracy", value, interval=ends, data=Path(options.data).stem, **facts
            )


if __name__ == "__main__":
    main()
