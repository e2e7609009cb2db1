"""Batches read out of one gradient of a convolutional network: how much, how exactly, at which batch size.

python experiments/convolutions.py --data ../shared/data/cifar10.npz --batch 8 --trained 100 --seeds 5

Adds one record for each batch to results/convolutions/. Networks and batches have the same seed; images are those that
development did not see (`common.draw`). The labels are known, unless `--untold`. In train mode (`--out coupled`) the
first 20 images that are drawn from were looked at while the method was made; no constant was chosen on them.

With `--checkpoints LR --out checkpoints` the update is two checkpoints in float32, as they are saved, and labels are
never told; `--clip` clips the norm of the gradient before, with `torch.nn.utils.clip_grad_norm_`, and `--decay` is the
weight decay of the optimizer.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Row, at, attacked, attacked_of, descend, draw, draws, flat_square, keep, parts
from torch import nn

from seepage import observe
from seepage.attacks import GaussNewton, Inapplicable
from seepage.attacks.exposure import infer_weight_decay
from seepage.base.nn import generator
from seepage.base.registry import Spec
from seepage.federation.clients import FedSGD
from seepage.federation.models import build
from seepage.federation.types import Batch, Transcript, Update
from seepage.measure.metrics.image import psnr


def few_classes(batch: Batch, classes: int) -> Batch:
    """The examples of the first so many classes."""
    return at(batch, batch.labels < classes)


def trained(model: nn.Module, train: Batch, steps: int, seed: int) -> nn.Module:
    """The model after so many steps of SGD as the default audit trains: rate 0.02, momentum 0.9, batches of 32."""
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    descend(model.train(), optimizer, draws(train, steps, 32, generator(seed, "train")))
    return model.eval()


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a file of images, or the name of a packaged set")
    parser.add_argument("--classes", type=int, default=0, help="keep so many classes; 0: all")
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--options", default="", help="options of the model: width=16,activation=gelu")
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    parser.add_argument("--trained", type=int, default=0, help="SGD steps before the round")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--mode", choices=("train", "eval"), default="train", help="how the client runs batch norm")
    parser.add_argument("--checkpoints", type=float, metavar="LR", help="the update is two checkpoints in float32")
    parser.add_argument("--clip", type=float, help="the client clips the norm of its gradient, which nobody is known")
    parser.add_argument("--decay", type=float, default=0.0, help="the client's weight decay, which nobody is known")
    parser.add_argument("--untold", action="store_true", help="the labels are not known")
    parser.add_argument("--out", default="exact")
    args = parser.parse_args()
    torch.set_num_threads(1)

    train, test = parts(args.data)
    classes = args.classes or int(max(train.labels.max(), test.labels.max())) + 1
    train, test = few_classes(train, classes), few_classes(test, classes)
    known = set() if args.untold else {"labels"}
    options = dict(pair.split("=") for pair in args.options.split(",") if pair)
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        given = {name: int(value) if value.isdigit() else value for name, value in options.items()}
        model = build(Spec(args.model, given), tuple(train.inputs.shape[1:]), classes, seed=seed)
        model = trained(model, train, args.trained, seed)
        for n in args.batch:
            batch = draw(test, n, seed)
            row: Row = {"data": Path(args.data).stem, "seed": seed, "model": args.model, "options": args.options}
            row |= {"classes": classes, "batch": n, "trained": args.trained, "labels": len(batch.labels.unique())}
            row |= {"mean_color_psnr": float(psnr(flat_square(batch.inputs), batch.inputs).mean())}
            try:
                attack, client = GaussNewton(steps=args.steps, layers=args.layers), FedSGD(mode=args.mode)
                if args.checkpoints is None:
                    row |= attacked(attack, model, batch, known=known, client=client)
                else:
                    row |= {"lr": args.checkpoints, "clip": args.clip, "decay": args.decay}
                    made = two_checkpoints(model, batch, client, args.checkpoints, args.clip, args.decay)
                    row |= attacked_of(attack, made, batch)
            except Inapplicable as refused:
                row |= {"refused": str(refused), "exact": 0.0}
            shown = ("classes", "batch", "seed", "psnr", "exact", "certified", "cpu_s", "refused")
            print({key: row[key] for key in shown if key in row}, flush=True)
            keep(f"convolutions/{args.out}", f"{args.model}, batch {n}, {args.trained} steps", "exact", row)


if __name__ == "__main__":
    main()
