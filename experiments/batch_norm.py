"""What batch norm reveals: the client's mode, and the batch's variances, read off one gradient.

    python experiments/batch_norm.py --data ../shared/data/cifar10.npz

For each network, state, mode and size of a batch: whether the mode is named right, how many variances are said to be
read to within 10 %, and how far these are off (the truth by hooks on the network). Three seeds, each with a batch and
an initialization of its own. Nothing is fitted. One JSON line per setting and seed.
"""

import argparse
import itertools
import time

import torch
from common import at, descend, draw, keep, parts
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.exposure import batch_norm_leaks
from seepage.attacks.exposure.batch_norm import MAX_VARIANCE_ERROR
from seepage.base.nn import generator, in_mode

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


def true_variances(model: nn.Module, inputs: Tensor, names: set[str]) -> dict[str, Tensor]:
    """By a hook on each norm: the biased variance of what it reads, over batch and places."""
    found: dict[str, Tensor] = {}

    def hook(name: str) -> object:
        def keep_variance(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            found[name] = given[0].detach().double().transpose(0, 1).flatten(1).var(1, correction=0)

        return keep_variance

    handles = [m.register_forward_pre_hook(hook(name)) for name, m in model.named_modules() if name in names]
    with torch.no_grad(), in_mode(model, training=True):
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        model(inputs)
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    for handle in handles:
        handle.remove()
    return found


def case(data: str, model: nn.Module, test: Batch, net: str, steps: int, mode: str, n: int, seed: int) -> None:
    private = draw(test, n, seed)
    seen = record(model, private, client=FedSGD(mode=mode))  # type: ignore[arg-type]
    started = time.process_time()
    leaks = batch_norm_leaks(seen[0], seen.knowledge)
    seconds = time.process_time() - started
    truth = true_variances(model, private.inputs, {leak.norm for leak in leaks})
    errors, read = [], 0
    for leak in leaks:
        read += leak.read
        if leak.mode == "train":
            said = leak.variance.isfinite() & (leak.variance > 0) & (leak.error < MAX_VARIANCE_ERROR)
            errors.append(((leak.variance - truth[leak.norm]).abs() / truth[leak.norm])[said])
    off = torch.cat(errors) if errors else torch.zeros(0)
    row = {
        "net": net,
        "steps": steps,
        "mode": mode,
        "n": n,
        "norms": len(leaks),
        "mode_right": sum(leak.mode == mode for leak in leaks),
        "mode_wrong": sum(leak.mode not in (mode, "unclear") for leak in leaks),
        "channels": sum(len(leak.variance) for leak in leaks),
        "read": read,
        "share": round(read / sum(len(leak.variance) for leak in leaks), 4),
        "median_error": round(off.median().item(), 5) if len(off) else None,
        "wrong": int((off > MAX_VARIANCE_ERROR).sum()),
        "cpu_s": round(seconds, 3),
        "seed": seed,
        "data": data,
    }
    keep("matching/batch-norm", f"{net}, {steps} steps, {mode}, batch {n}", "share", row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data/cifar10.npz")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 100])
    parser.add_argument("--batch", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train_set, test = parts(options.data)
    name = options.data.rsplit("/", 1)[-1]
    for net, steps, seed in itertools.product(options.nets, options.steps, range(options.seeds)):
        model = build(NETS[net], tuple(test.inputs.shape[1:]), 10, seed=seed)
        train(model, train_set, steps)
        for mode, n in itertools.product(("train", "eval"), options.batch):
            case(name, model, test, net, steps, mode, n, seed)


if __name__ == "__main__":
    main()
