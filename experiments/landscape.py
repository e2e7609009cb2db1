"""Does the landscape probe tell ahead what a short attack recovers?

    python experiments/landscape.py [--data photos] [--nets ...] [--size 1] [--batches 4] [--steps 500]

For each network: the probe at four noises and from an even gray, and the SSIM and PSNR of Inverting Gradients after a
short run, on images of some contrast at 32 px, labels known. Beside them the score of an image of the batch's mean
color. Trained networks saw other images of the same data for a few epochs. Each batch has an initialization of its
own. One JSON line per network and batch.

`CALIBRATION` names the networks that the threshold is fitted to, on photographs and one image; every other network,
data set or size of a batch is held out, and says how often the threshold is wrong.
"""

import itertools
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from common import at, command, flat_square, keep
from torch import nn

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.exposure import landscape
from seepage.attacks.search import inverting_gradients
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.problem import Problem
from seepage.base.nn import generator
from seepage.federation.data import load
from seepage.federation.types import Reconstruction
from seepage.measure.metrics import align_guess
from seepage.measure.metrics.image import psnr, ssim

NETS = {
    "convnet, no norm": Architecture("convnet", {"width": 16}),
    "convnet": Architecture("convnet", {"width": 16, "batch_norm": True}),
    "resnet10 w8": Architecture("resnet", {"width": 8}),
    "resnet10 w16": Architecture("resnet", {"width": 16}),
    "resnet18 w8": Architecture("resnet", {"depth": 18, "width": 8}),
    "VGG-16": Architecture("torchvision:vgg16"),
    "DenseNet-121": Architecture("torchvision:densenet121"),
    "MobileNetV2": Architecture("torchvision:mobilenet_v2"),
}
PUBLIC = ("VGG-16", "DenseNet-121", "MobileNetV2")
"""Networks of torchvision, whose activation is what it is; in eval mode, as one image of 32 px leaves single values."""
CALIBRATION = ("convnet, no norm", "convnet", "resnet10 w8")
"""With activations, modes and epochs 20 victims."""
NOISES = (0.003, 0.03, 0.1, 0.3)


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


def case(
    images: Batch, learned: Batch, classes: int, data: str, size: int, steps: int, draws: int,
    *, net: str, activation: str, mode: str, epochs: int, number: int,
) -> None:  # fmt: skip
    used = NETS[net]
    if net not in PUBLIC:
        used = Architecture(used.use, {**used.options, "activation": activation})
    model = build(used, (3, 32, 32), classes, seed=number)
    accuracy = train(model, learned, epochs)
    chosen = slice(number * size, (number + 1) * size)
    private = at(images, chosen)
    seen = record(model, private, client=FedSGD(mode=mode), known={"labels"})
    problem = Problem.of(seen[0], seen.knowledge, Cosine(), None)
    started = time.process_time()
    probe = landscape(problem, private.inputs, private.labels, noises=NOISES, draws=draws)
    seconds = time.process_time() - started
    found = inverting_gradients(steps=steps, tv=2.5e-4)(seen, seed=0).inputs.clamp(0, 1)
    attacked = time.process_time() - started - seconds
    if size > 1:  # an attack returns its guesses in an order of its own
        found = align_guess(Reconstruction(found), private, (0.0, 1.0)).guesses
    flat = flat_square(private.inputs)
    row: dict[str, Any] = {"steps": steps, "net": net, "activation": activation, "mode": mode, "epochs": epochs}
    row |= {"accuracy": round(accuracy, 3), "size": size, "batch": number, "seed": number, "data": Path(data).stem}
    row |= {"calibration": data == "photos" and size == 1 and net in CALIBRATION}
    row |= {
        "cosine": dict(zip(map(str, NOISES), [round(mean, 4) for mean in probe.means], strict=True)),
        "cosine_interval": [[round(end, 4) for end in ends] for ends in probe.intervals()],
        "from_gray": round(from_gray(problem, private), 4),
        "probe_s": round(seconds, 2),
        "attack_s": round(attacked, 1),
        "ssim": round(ssim(found, private.inputs).mean().item(), 4),
        "psnr": round(psnr(found, private.inputs).mean().item(), 2),
        "flat_ssim": round(ssim(flat, private.inputs).mean().item(), 4),
        "flat_psnr": round(psnr(flat, private.inputs).mean().item(), 2),
    }
    several = "" if size == 1 else f", batch {size}"
    keep("matching/landscape", f"{net}, {activation}, {mode}, {epochs} epochs, {row['data']}{several}", "psnr", row)


def from_gray(problem: Problem, private: Batch) -> float:
    """Cosine between descent from an even gray and the way from there to the truth."""
    start = torch.full_like(private.inputs, 0.5)
    return F.cosine_similarity(
        -problem.evaluate(start, private.labels).by_inputs.flatten(), (private.inputs - start).flatten(), dim=0
    ).item()


def main(
    *,
    data: str = "photos",
    size: Annotated[int, "images of a batch"] = 1,
    steps: int = 500,
    batches: int = 4,
    draws: int = 6,
    epochs: tuple[int, ...] = (0, 5),
    nets: Annotated[tuple[str, ...], NETS] = CALIBRATION,
) -> None:
    torch.set_num_threads(1)
    found = load(data, size=32) if data == "photos" else load(data)
    private = found.batch(found.private)
    images = at(private, private.inputs.std((1, 2, 3)) >= 0.2)  # of an even tile the mean color is a good guess
    given = (images, found.batch(found.train[:512]), len(found.classes), data, size, steps, draws)
    grid = itertools.product(nets, ("relu", "sigmoid"), ("train", "eval"), epochs, range(batches))
    for net, activation, mode, before, number in grid:
        if net in PUBLIC and (activation, mode) != ("relu", "eval"):
            continue
        if mode == "eval" or NETS[net].use == "resnet" or "batch_norm" in NETS[net].options:  # else both are one
            case(*given, net=net, activation=activation, mode=mode, epochs=before, number=number)


if __name__ == "__main__":
    command(main)
