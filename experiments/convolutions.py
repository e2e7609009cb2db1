"""Batches read out of one gradient of a convolutional network: how much, how exactly, at which batch size.

python experiments/convolutions.py --data ../shared/data/cifar10.npz --batch 8 --trained 100 --seeds 5

Adds one record for each batch to results/convolutions/. Networks and batches have the same seed; images are those that
development did not see (`common.draw`). Labels are known, unless `--labels-unknown`. In train mode (`--out coupled`)
the first 20 images that are drawn from were looked at while the method was made; no constant was chosen on them.

With `--checkpoints LR --out checkpoints` the update is two checkpoints in float32, as they are saved, and labels are
never told; `--clip` clips the norm of the gradient before, with `torch.nn.utils.clip_grad_norm_`, and `--decay` is the
weight decay of the optimizer.
"""

from pathlib import Path
from typing import Annotated, Literal

import common
import torch
import torch.nn.functional as F
from common import Row, at, attacked, attacked_of, command, draw, flat_square, keep, parts
from torch import nn

from seepage import observe
from seepage.attacks import GaussNewton, Inapplicable
from seepage.attacks.exposure import infer_weight_decay
from seepage.base.registry import Spec
from seepage.federation.clients import FedSGD
from seepage.federation.models import build
from seepage.federation.types import Batch, Transcript, Update
from seepage.measure.metrics.image import psnr


def few_classes(batch: Batch, classes: int) -> Batch:
    """The examples of the first so many classes."""
    return at(batch, batch.labels < classes)


def two_checkpoints(
    model: nn.Module, batch: Batch, client: FedSGD, lr: float, clip: float | None, decay: float
) -> Transcript:
    """What the weights before and after one step of PyTorch's own SGD show; no label or weight decay is known."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.zero_grad()
    model.train(client.mode == "train")
    F.cross_entropy(model(batch.inputs), batch.labels).backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    torch.optim.SGD(model.parameters(), lr=lr, weight_decay=decay).step()
    update = Update.from_states(before, model.state_dict())
    model.load_state_dict(before)
    model.eval()
    classes = model(batch.inputs[:1]).shape[1]
    found = infer_weight_decay(model, before, update.tensors, classes)
    update = update if found is None else update.without_decay(before, found.shares)
    shape = tuple(batch.inputs.shape[1:])
    return observe(model, update, shape, batch_size=len(batch.labels), lr=lr, client=client)


def main(
    *,
    data: Annotated[str, "a file of images, or the name of a packaged set"],
    classes: Annotated[int, "keep so many classes; 0: all"] = 0,
    model: str = "convnet",
    options: Annotated[str, "of the model: width=16,activation=gelu"] = "",
    batch: tuple[int, ...] = (8,),
    trained: Annotated[int, "SGD steps before the round"] = 0,
    first_seed: int = 0,
    seeds: int = 5,
    steps: int = 40,
    layers: int = 1,
    mode: Annotated[Literal["train", "eval"], "how the client runs batch norm"] = "train",
    checkpoints: Annotated[float | None, "the update is two checkpoints in float32, of this rate"] = None,
    clip: Annotated[float | None, "the client clips the norm of its gradient, which no attacker knows"] = None,
    decay: Annotated[float, "the client's weight decay, which no attacker knows"] = 0.0,
    labels_unknown: Annotated[bool, "the labels are not known"] = False,
    out: str = "exact",
) -> None:
    torch.set_num_threads(1)
    train, test = parts(data)
    classes = classes or int(max(train.labels.max(), test.labels.max())) + 1
    train, test = few_classes(train, classes), few_classes(test, classes)
    known = set() if labels_unknown else {"labels"}
    given = dict(pair.split("=") for pair in options.split(",") if pair)
    spec = Spec(model, {name: int(value) if value.isdigit() else value for name, value in given.items()})
    for seed in range(first_seed, first_seed + seeds):
        network = build(spec, tuple(train.inputs.shape[1:]), classes, seed=seed)
        network = common.trained(network, train, trained, seed)
        for n in batch:
            private = draw(test, n, seed)
            row: Row = {"data": Path(data).stem, "seed": seed, "model": model, "options": options}
            row |= {"classes": classes, "batch": n, "trained": trained, "labels": len(private.labels.unique())}
            row |= {"mean_color_psnr": float(psnr(flat_square(private.inputs), private.inputs).mean())}
            try:
                attack, client = GaussNewton(steps=steps, layers=layers), FedSGD(mode=mode)
                if checkpoints is None:
                    row |= attacked(attack, network, private, known=known, client=client)
                else:
                    row |= {"lr": checkpoints, "clip": clip, "decay": decay}
                    made = two_checkpoints(network, private, client, checkpoints, clip, decay)
                    row |= attacked_of(attack, made, private)
            except Inapplicable as refused:
                row |= {"refused": str(refused), "exact": 0.0}
            keep(f"convolutions/{out}", f"{model}, batch {n}, {trained} steps", "exact", row)


if __name__ == "__main__":
    command(main)
