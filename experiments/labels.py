"""How well each rule reads a batch's labels from its update, without any search (FedLeak's Table 14).

    python experiments/labels.py --data cifar10.npz --batches 20 [--train 600] [--classes 1000]

Batches of 1 to 128 are drawn at random from the data's held-out part; a ConvNet with BatchNorm in train mode, fresh or
trained for `--train` Adam steps of 64, gives one FedSGD gradient of each. The score is the overlap of the two
multisets of labels as a share of the batch; the interval is a bootstrap over batches. Where a rule refuses a batch, its
accuracy is null and the reason is kept. `--classes` puts random labels of that many classes on the same pictures, for
fresh networks with more classes than the data have. One JSON line per row goes to results/matching/labels.jsonl.

The joint rule names no labels by itself (they come out of a search) and is left out; `chance` draws as many labels at
random. `--rules` measures some rules only.

    python experiments/labels.py --data cifar10.npz --fishing 8

takes a dishonest server's part, which is outside of this package's threat model: it sends so many clients a model each
whose last batch norm hides the inputs (Wang et al., INFOCOM 2024), sees the mean of their updates alone, and names
each client's labels. Beside it, what the bias count reads from the honest model's mean, client by client unknown.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from common import command, keep
from fishing import PresetOutputs, disaggregated
from torch import Tensor, nn

import seepage.federation.data
from seepage import Architecture, Batch, Inapplicable, build, record
from seepage.attacks.search.labels import LABEL_RULES
from seepage.base.nn import generator, last_linear
from seepage.federation.types import Update
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


def hidden(model: nn.Module, classes: int, seed: int) -> tuple[nn.Module, Tensor]:
    """The model with a last batch norm that gives every input one embedding `[k]`; the embedding too."""
    crafted = copy.deepcopy(model)
    norm = [module for module in crafted.modules() if isinstance(module, nn.BatchNorm2d)][-1]
    with torch.no_grad():
        norm.weight.zero_()
        norm.bias.copy_(torch.rand(norm.bias.shape, generator=generator(seed, "fishing")))
    last = last_linear(crafted, classes)
    assert last is not None
    places = crafted.get_parameter(last[0]).shape[1] // len(norm.bias)
    # After ReLU each channel's bias stands at every place of its map.
    return crafted, norm.bias.detach().repeat_interleave(places)


def fished(model: nn.Module, classes: int, batches: list[Batch]) -> list[float]:
    """Accuracy for each client of one round, whose mean of last weight gradients alone is seen."""
    models, embeddings = zip(*(hidden(model, classes, m) for m in range(len(batches))), strict=True)
    sent = [record(one, batch) for one, batch in zip(models, batches, strict=True)]
    names = last_linear(models[0], classes)
    assert names is not None
    weight, bias = str(names[0]), str(names[1])
    mean = torch.stack([one[0].update.tensors[weight] for one in sent]).double().mean(0)
    found = []
    for one, own, batch in zip(sent, disaggregated(mean, torch.stack(embeddings).double()), batches, strict=True):
        # The server knows the model it sent to each client, and of the client's update only what the mean reveals.
        alone = replace(one[0], update=Update({weight: mean.float(), bias: own.float()}))
        found.append(label_accuracy(PresetOutputs()(alone, one.knowledge), batch.labels))
    return found


def main(
    *,
    data: str = "digits",
    batches: int = 20,
    train: int = 0,
    classes: int | None = None,
    rules: Annotated[tuple[str, ...], (*RULES, "chance")] = (*RULES, "chance"),
    fishing: Annotated[int | None, "clients of one round of a dishonest server"] = None,
) -> None:
    drawn = seepage.federation.data.load(data, split=0.8)
    count, architecture = classes or len(drawn.classes), Architecture("convnet", {"width": 16, "batch_norm": True})
    model = build(architecture, drawn.input_shape, count)
    accuracy = trained(model, drawn, train) if train else None
    for size in SIZES:
        made = []
        for number in range(fishing or batches):
            draw = generator(number, "batch", size)
            batch = drawn.batch(drawn.private[torch.randint(len(drawn.private), (size,), generator=draw)])
            if classes:
                batch = replace(batch, labels=torch.randint(classes, (size,), generator=draw))
            made.append(batch)
        facts = {"classes": count, "train_steps": train, "model": str(architecture)}
        facts |= {"train_accuracy": accuracy and round(accuracy, 3), "batch": size, "batches": len(made)}
        study, rows = "matching/fishing", {}
        if fishing:
            rows = {"preset": summary(torch.tensor(fished(model, count, made)))}
        else:
            study, rows = "matching/labels", measure(model, made, count, rules)
        for rule, row in rows.items():
            keep(study, f"{rule}, batch {size}", "accuracy", {**facts, "rule": rule, **row, "data": Path(data).stem})


if __name__ == "__main__":
    command(main)
