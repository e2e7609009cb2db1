"""How well each rule reads a batch's labels from its update, without any search (FedLeak's Table 14).

    python experiments/labels.py --data cifar10.npz --batches 20 [--train 600] [--classes 1000]

Batches of 1 to 128 are drawn at random from the data's held-out part; a ConvNet with BatchNorm in train mode, fresh or
trained for `--train` Adam steps of 64, gives one FedSGD gradient of each. The score is the overlap of the two
multisets of labels as a share of the batch; the interval is a bootstrap over batches. Where a rule refuses a batch, its
accuracy is null and the reason is kept. `--classes` puts random labels of that many classes on the same pictures, for
fresh networks with more classes than the data have. One JSON line per row goes to results/matching/labels.jsonl.

The joint rule names no labels by itself (they come out of a search) and is left out; `chance` draws as many labels at
random. `--rules` measures some rules only.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from common import command, keep
from torch import Tensor, nn

import seepage.federation.data
from seepage import Architecture, Batch, Inapplicable, build, record
from seepage.attacks.search.labels import LABEL_RULES
from seepage.base.nn import generator
from seepage.measure.metrics.interval import bootstrap_interval
from seepage.measure.metrics.labels import label_accuracy

RULES = ("sign", "minimum", "count", "bias")
SIZES = (1, 4, 8, 16, 32, 64, 128)


def trained(model: nn.Module, data: seepage.federation.data.Dataset, steps: int) -> float:
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


def measure(model: nn.Module, batches: list[Batch], classes: int, rules: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Accuracy of each rule over batches of one size."""
    hits: dict[str, list[float]] = {rule: [] for rule in rules}
    refused: dict[str, str] = {}
    draw = generator(0, "chance")
    for batch in batches:
        transcript = record(model, batch)
        for rule in rules:
            if rule == "chance":
                drawn = torch.randint(classes, batch.labels.shape, generator=draw)
                hits[rule].append(label_accuracy(drawn, batch.labels))
                continue
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


def main(
    *,
    data: str = "digits",
    batches: int = 20,
    train: int = 0,
    classes: int | None = None,
    rules: Annotated[tuple[str, ...], (*RULES, "chance")] = (*RULES, "chance"),
) -> None:
    drawn = seepage.federation.data.load(data, split=0.8)
    count, architecture = classes or len(drawn.classes), Architecture("convnet", {"width": 16, "batch_norm": True})
    model = build(architecture, drawn.input_shape, count)
    accuracy = trained(model, drawn, train) if train else None
    for size in SIZES:
        made = []
        for number in range(batches):
            draw = generator(number, "batch", size)
            batch = drawn.batch(drawn.private[torch.randint(len(drawn.private), (size,), generator=draw)])
            if classes:
                batch = replace(batch, labels=torch.randint(classes, (size,), generator=draw))
            made.append(batch)
        facts = {"classes": count, "train_steps": train, "model": str(architecture)}
        facts |= {"train_accuracy": accuracy and round(accuracy, 3), "batch": size, "batches": len(made)}
        for rule, row in measure(model, made, count, rules).items():
            row |= {"data": Path(data).stem}
            keep("matching/labels", f"{rule}, batch {size}", "accuracy", {**facts, "rule": rule, **row})


if __name__ == "__main__":
    command(main)
