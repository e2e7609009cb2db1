"""Does the landscape probe tell ahead what a short attack recovers?

    python experiments/landscape.py [--steps 300] [--batches 2] [--draws 6]

For each network: the probe at two noises, and the SSIM and PSNR of Inverting Gradients after a short run, on packaged
photographs of some contrast at 32 px, one image per batch, labels told. Beside them the score of an image of the
batch's mean color. Trained networks saw other photographs for a few epochs. One JSON line per network and batch.
"""

import argparse
import itertools
import time

import torch
import torch.nn.functional as F
from common import flat_square, keep
from torch import nn

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.matching import inverting_gradients
from seepage.attacks.matching.distances import Cosine
from seepage.attacks.matching.problem import Problem
from seepage.core.nn import generator
from seepage.data import load
from seepage.leakage import landscape
from seepage.metrics.image import psnr, ssim

NETS = {
    "convnet, no norm": Architecture("convnet", {"width": 16}),
    "convnet": Architecture("convnet", {"width": 16, "batch_norm": True}),
    "resnet10 w8": Architecture("resnet", {"width": 8}),
    "resnet10 w16": Architecture("resnet", {"width": 16}),
    "resnet18 w8": Architecture("resnet", {"depth": 18, "width": 8}),
}
NOISES = (0.003, 0.03)


def train(model: nn.Module, batch: Batch, epochs: int) -> float:
    """Plain Adam; the accuracy on its last epoch comes back."""
    inputs, labels = batch.inputs, batch.labels
    optimizer, right = torch.optim.Adam(model.parameters(), 1e-3), 0
    model.train()
    for epoch in range(epochs):
        order, right = torch.randperm(len(inputs), generator=generator(0, "order", epoch)), 0
        for chunk in order.split(32):
            logits = model(inputs[chunk])
            optimizer.zero_grad()
            F.cross_entropy(logits, labels[chunk]).backward()
            optimizer.step()
            right += int((logits.argmax(1) == labels[chunk]).sum())
    return right / len(inputs)


def cell(options: argparse.Namespace, net: str, activation: str, mode: str, epochs: int, number: int) -> None:
    used = Architecture(NETS[net].use, {**NETS[net].options, "activation": activation})
    model = build(used, (3, 32, 32), options.classes)
    accuracy = train(model, options.learned, epochs)
    private = Batch(options.private.inputs[number : number + 1], options.private.labels[number : number + 1])
    seen = record(model, private, client=FedSGD(mode=mode), told={"labels"})
    problem = Problem.of(seen[0], seen.knowledge, Cosine(), None)
    started = time.process_time()
    probe = landscape(problem, private.inputs, private.labels, noises=NOISES, draws=options.draws)
    seconds = time.process_time() - started
    found = inverting_gradients(steps=options.steps, tv=2.5e-4)(seen, seed=0).inputs.clamp(0, 1)
    flat = flat_square(private.inputs)
    row = {
        "steps": options.steps,
        "net": net,
        "activation": activation,
        "mode": mode,
        "epochs": epochs,
        "accuracy": round(accuracy, 3),
        "batch": number,
        "cosine": dict(zip(map(str, NOISES), [round(mean, 4) for mean in probe.means], strict=True)),
        "cosine_interval": [[round(end, 4) for end in ends] for ends in probe.intervals()],
        "probe_s": round(seconds, 2),
        "attack_s": round(time.process_time() - started - seconds, 1),
        "ssim": round(ssim(found, private.inputs).item(), 4),
        "psnr": round(psnr(found, private.inputs).item(), 2),
        "flat_ssim": round(ssim(flat, private.inputs).item(), 4),
        "flat_psnr": round(psnr(flat, private.inputs).item(), 2),
        "seed": number,
        "data": "photos",
    }
    keep("matching/landscape", f"{net}, {activation}, {mode}, {epochs} epochs", "psnr", row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--epochs", type=int, nargs="+", default=[0, 5])
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load("photos", size=32)
    private = data.batch(data.private)
    contrast = private.inputs.std((1, 2, 3)) >= 0.2  # on a nearly even tile the mean color is a good reconstruction
    options.private = Batch(private.inputs[contrast], private.labels[contrast])
    options.learned, options.classes = data.batch(data.train[:512]), len(data.classes)
    grid = itertools.product(
        options.nets, ("relu", "sigmoid"), ("train", "eval"), options.epochs, range(options.batches)
    )
    for net, activation, mode, epochs, number in grid:
        if mode == "eval" or NETS[net].use == "resnet" or "batch_norm" in NETS[net].options:  # else both are one
            cell(options, net, activation, mode, epochs, number)


if __name__ == "__main__":
    main()
