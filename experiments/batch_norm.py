"""What batch norm reveals: the client's mode, and the batch's variances, read off one gradient.

    python experiments/batch_norm.py --data ../shared/data/cifar10.npz

For each network, state, mode and size of a batch: whether the mode is named right, how many variances are said to be
read to within 10 %, and how far these are off (the truth by hooks on the network). Three seeds, each with a batch and
an initialization of its own. Nothing is fitted. One JSON line per setting and seed.
"""

import itertools
import time
from typing import Annotated

import torch
from common import Row, at, command, descend, draw, keep, parts, read_in_training, variance_errors
from torch import nn

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.exposure import batch_norm_leaks
from seepage.attacks.network.evidence import READ
from seepage.base.nn import generator, state_of

NETS = {
    "convnet": Architecture("convnet", {"width": 16, "batch_norm": True}),
    "resnet10 w16": Architecture("resnet", {"width": 16}),
    "resnet18 w64": Architecture("resnet", {"depth": 18}),
    "MobileNetV2": Architecture("torchvision:mobilenet_v2"),
}


def train(model: nn.Module, batch: Batch, steps: int) -> None:
    """Plain Adam on batches of 32."""
    drawn = (torch.randint(len(batch), (32,), generator=generator(0, "train", step)) for step in range(steps))
    descend(model.train(), torch.optim.Adam(model.parameters(), 1e-3), (at(batch, places) for places in drawn))


def case(data: str, model: nn.Module, test: Batch, net: str, steps: int, mode: str, n: int, seed: int) -> None:
    private = draw(test, n, seed)
    seen = record(model, private, client=FedSGD(mode=mode))  # type: ignore[arg-type]
    started = time.process_time()
    leaks = batch_norm_leaks(seen[0], seen.knowledge)
    seconds = time.process_time() - started
    truth = read_in_training(model, [leak.norm for leak in leaks], private.inputs, *state_of(model))
    errors = [variance_errors(leak, truth[leak.norm]) for leak in leaks if leak.mode == "train"]
    read, channels = sum(leak.read for leak in leaks), sum(len(leak.variance) for leak in leaks)
    off = torch.cat(errors) if errors else torch.zeros(0)
    row: Row = {"net": net, "steps": steps, "mode": mode, "n": n, "norms": len(leaks), "seed": seed, "data": data}
    row |= {
        "mode_right": sum(leak.mode == mode for leak in leaks),
        "mode_wrong": sum(leak.mode not in (mode, "unclear") for leak in leaks),
        "channels": channels,
        "read": read,
        "share": round(read / channels, 4),
        "median_error": round(off.median().item(), 5) if len(off) else None,
        "wrong": int((off > READ).sum()),
        "cpu_s": round(seconds, 3),
    }
    keep("matching/batch-norm", f"{net}, {steps} steps, {mode}, batch {n}", "share", row)


def main(
    *,
    data: str = "../shared/data/cifar10.npz",
    nets: Annotated[tuple[str, ...], NETS] = tuple(NETS),
    steps: tuple[int, ...] = (0, 100),
    batch: tuple[int, ...] = (2, 8, 32),
    seeds: int = 3,
) -> None:
    torch.set_num_threads(1)
    train_set, test = parts(data)
    name = data.rsplit("/", 1)[-1]
    for net, before, seed in itertools.product(nets, steps, range(seeds)):
        model = build(NETS[net], tuple(test.inputs.shape[1:]), 10, seed=seed)
        train(model, train_set, before)
        for mode, n in itertools.product(("train", "eval"), batch):
            case(name, model, test, net, before, mode, n, seed)


if __name__ == "__main__":
    command(main)
