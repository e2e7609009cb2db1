"""Thirteen clients as upstream trains them: loss, optimizer with its constants, train mode, steps, what is sent."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
import upstream_steps as steps
from tests.clients.made import Client, Part, drawn, each, split, train
from torch import nn

from seepage.base.registry import Spec

CIFAR = (3, 32, 32)


def quickstart_pytorch(size: int):
    """Flower 1.23 quickstart-pytorch: SGD at 0.1 with momentum 0.9, one batch."""
    inputs, labels = drawn(size, CIFAR, 10, seed=1)
    return *train("lenet", steps.quickstart_pytorch, [(inputs, labels)]), inputs, labels


def quickstart_huggingface():
    """Flower 1.23 quickstart-huggingface: AdamW at 5e-5 with PyTorch's decay of 0.01, dropout on; 32 texts, one batch.

    Tokens are random, the commoner the smaller, with padding that the embedding does not train.
    """
    draw = torch.Generator().manual_seed(2)
    inputs = (3000 ** torch.rand((32, 40), generator=draw)).long().clamp(1, 2999)
    labels = torch.tensor([0] * 15 + [1] * 17)
    return *train("bert", each(steps.quickstart_huggingface), [(inputs, labels)]), inputs, labels


def flowertune_vit():
    """Flower 1.23 flowertune-vit: Adam at 1e-3 on the head; the head alone is sent; 8 pictures, one batch."""
    inputs, labels = drawn(8, CIFAR, 10, seed=3)
    made = train("head_vit", each(steps.flowertune_vit), [(inputs, labels)], keep=lambda name: "heads." in name)
    return *made, inputs, labels


def fl_tabular():
    """Flower 1.23 fl-tabular: sigmoid and BCELoss, Adam at 1e-3; 32 rows of breast_cancer in place of Adult."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    scaled = (table.data - table.data.min(0)) / (table.data.max(0) - table.data.min(0))
    inputs, labels = torch.from_numpy(scaled[:32]).float(), torch.from_numpy(table.target[:32])
    return *train("income", each(steps.fl_tabular), [(inputs, labels)]), inputs, labels


def fedbn(size: int, parts: int):
    """Flower baselines fedbn: SGD at 0.01, batches of 32, batch norm in train mode."""
    inputs, labels = drawn(size, CIFAR, 10, seed=4)

    def step(net: nn.Module, batches: Sequence[Part]) -> None:
        once = steps.fedbn(net)
        for batch in batches:
            once(*batch)

    return *train("fedbn", step, split((inputs, labels), parts)), inputs, labels


def hello_pt():
    """NVFlare 2.6 hello-pt: SGD at 0.01 with momentum 0.9, one epoch of 200 pictures in 7 batches."""
    inputs, labels = drawn(200, CIFAR, 10, seed=5)
    parts = list(zip(inputs.split(32), labels.split(32), strict=True))
    return *train("lenet", steps.hello_pt, parts), inputs, labels


def opacus_cifar10():
    """Opacus 1.5 examples/cifar10.py: clip 10, noise 1.5, SGD at 0.1 with momentum 0.9; 64 pictures, one batch."""
    inputs, labels = drawn(64, CIFAR, 10, seed=6)
    before, after = train("opacus_net", each(steps.opacus_cifar10), [(inputs, labels)])
    return *({f"_module.{name}": t for name, t in one.items()} for one in (before, after)), inputs, labels


def examples_mnist():
    """pytorch/examples mnist/main.py: Adadelta at 1, dropout, negative log-likelihood; 64 pictures, one batch."""
    inputs, labels = drawn(64, (1, 28, 28), 10, seed=7, use="digits")
    return *train("mnist", steps.examples_mnist, [(inputs, labels)]), inputs, labels


def examples_vae():
    """pytorch/examples vae/main.py: Adam at 1e-3 on cross-entropy of pixels and KL; 128 pictures, one batch."""
    inputs, labels = drawn(128, (1, 28, 28), 10, seed=8, use="digits")
    made = train("vae", lambda net, parts: steps.examples_vae(net, *parts[0]), [(inputs, labels)])
    return *made, inputs, labels


def examples_imagenet():
    """pytorch/examples imagenet/main.py: SGD at 0.1, momentum 0.9, weight decay 1e-4; 4 pictures, one batch."""
    inputs, labels = drawn(4, (3, 64, 64), 100, seed=9)
    return *train("imagenet", steps.examples_imagenet, [(inputs, labels)]), inputs, labels


def pytorch_cifar(*, autocast: bool):
    """kuangliu/pytorch-cifar: SGD at 0.1, momentum 0.9, weight decay 5e-4, crop and flip; 16 pictures, one step.

    With autocast, as many forks have it: bfloat16, and two halves whose gradients are added up.
    """
    inputs, labels = drawn(16, CIFAR, 10, seed=10)
    padded = F.pad(inputs, (4, 4, 4, 4))
    draw = torch.Generator().manual_seed(10)
    places = torch.randint(0, 9, (16, 2), generator=draw).tolist()
    seen = torch.stack([one[:, i : i + 32, j : j + 32] for one, (i, j) in zip(padded, places, strict=True)])
    flip = torch.rand(16, generator=draw) < 0.5
    seen[flip] = seen[flip].flip(-1)
    step, parts = (steps.pytorch_cifar_autocast, 2) if autocast else (steps.pytorch_cifar, 1)
    made = train("resnet", step, split((seen, labels), parts))
    return *({"net": one, "acc": 10.0, "epoch": 1} for one in made), seen, labels


def timm_vit(network: str, size: int):
    """timm 1.0 train.py: SGD with Nesterov's momentum, decay 2e-5 of matrices, smoothing 0.1, drop path; 1 picture."""
    inputs, labels = drawn(1, (3, size, size), 10, seed=11)
    return *train(network, lambda net, parts: steps.TimmVit(net)(parts[0]), [(inputs, labels)]), inputs, labels


def peft_lora():
    """PEFT 0.18 image_classification: AdamW at 5e-3, bfloat16, four parts of 2 added up; adapters and head are sent."""
    inputs, labels = drawn(8, CIFAR, 10, seed=12)
    return *train("lora_vit", steps.peft_lora, split((inputs, labels), 4), keep=trained), inputs, labels


def trained(name: str) -> bool:
    return "lora_" in name or "modules_to_save" in name


def pytorch_unet():
    """milesial/Pytorch-UNet: RMSprop at 1e-3, momentum 0.9, decay 1e-8, entries clipped at 0.1; 1 picture.

    Cross-entropy and Dice; masks by brightness.
    """
    inputs, _ = drawn(1, (3, 48, 48), 2, seed=13)
    labels = (inputs.mean(1) > inputs.mean()).long()
    return *train("unet", each(steps.pytorch_unet), [(inputs, labels)]), inputs, labels


SMALL = {"lr": 0.1, "steps": 1}

CLIENTS = [
    Client(
        name="flower-quickstart-4", network="lenet", shape=CIFAR, size=4, make=partial(quickstart_pytorch, 4),
        known=SMALL, counted=True, sized=True,
    ),
    Client(
        name="flower-quickstart-32", network="lenet", shape=CIFAR, size=32, make=partial(quickstart_pytorch, 32),
        known=SMALL, counted=True, sized=True,
    ),
    Client(name="nvflare-hello-pt", network="lenet", shape=CIFAR, size=200, make=hello_pt, known={"lr": 0.01}),
    Client(
        name="flower-huggingface", network="bert", shape=(40,), classes=2, size=32, make=quickstart_huggingface,
        known={"lr": 5e-5}, signs=True, asks=frozenset({"dropout"}),
    ),
    Client(
        name="flower-vit-head", network="head_vit", shape=CIFAR, size=8, make=flowertune_vit, signs=True,
        asks=frozenset({"missing weights"}), lacking=True,
    ),
    Client(
        name="flower-tabular", network="income", shape=(30,), classes=2, size=32, make=fl_tabular, bent=True,
        known={"client": Spec("fedsgd", {"loss": "binary"})},
    ),
    Client(
        name="flower-fedbn", network="fedbn", shape=CIFAR, size=32, make=partial(fedbn, 32, 1),
        known={"lr": 0.01, "steps": 1}, sized=True,
    ),
    Client(
        name="flower-fedbn-10", network="fedbn", shape=CIFAR, size=298, make=partial(fedbn, 298, 10),
        known={"lr": 0.01, "steps": 10, "batch_size": 298}, sized=True,
    ),
    Client(
        name="opacus-cifar10", network="opacus_net", shape=CIFAR, size=64, make=opacus_cifar10,
        known=SMALL | {"batch_size": 64}, looks=frozenset({"noised"}), asks=frozenset({"noise"}), nameless=True,
        sized=True,
    ),
    Client(
        name="examples-mnist", network="mnist", shape=(1, 28, 28), size=64, make=examples_mnist, bent=True,
        asks=frozenset({"dropout"}),
    ),
    Client(
        name="examples-vae", network="vae", shape=(1, 28, 28), classes=None, size=128, make=examples_vae, bent=True,
        asks=frozenset({"dropout"}),
        nameless=True, known={"client": Spec("fedsgd", {"target": "input", "loss": "mse"})},
    ),
    Client(
        name="examples-imagenet", network="imagenet", shape=(3, 64, 64), classes=100, size=4, make=examples_imagenet,
        known=SMALL | {"batch_size": 4}, decay=1e-5, sized=True,
    ),
    Client(
        name="pytorch-cifar", network="resnet", shape=CIFAR, size=16, make=partial(pytorch_cifar, autocast=False),
        known=SMALL, decay=5e-5,
    ),
    Client(
        name="pytorch-cifar-autocast", network="resnet", shape=CIFAR, size=16,
        make=partial(pytorch_cifar, autocast=True), known=SMALL, nameless=True,
        asks=frozenset({"several passes", "low precision"}),
    ),
    Client(
        name="timm-vit", network="timm_vit", shape=(3, 64, 64), size=1, make=partial(timm_vit, "timm_vit", 64),
        known={"lr": 0.05, "steps": 1}, decay=1.9e-6, spared=("pos_embed", "cls_token", "norm.weight", "head.bias"),
        asks=frozenset({"dropout", "rate"}), sized=True, near=55,
    ),
    Client(
        name="timm-vit-tiny", network="timm_vit_tiny", shape=(3, 224, 224), size=1,
        make=partial(timm_vit, "timm_vit_tiny", 224), known={"lr": 0.05, "steps": 1, "batch_size": 1}, decay=1.9e-6,
        spared=("pos_embed", "cls_token", "norm.weight", "head.bias"), asks=frozenset({"dropout", "rate"}), sized=True,
        near=15,
    ),
    Client(
        name="peft-lora", network="lora_vit", shape=CIFAR, size=8, make=peft_lora, bent=True, decay=5e-5,
        asks=frozenset({"dropout", "missing weights"}), lacking=True,
    ),
    Client(
        name="pytorch-unet", network="unet", shape=(3, 48, 48), classes=2, size=1, make=pytorch_unet, bent=True,
        nameless=True,
    ),
]  # fmt: skip
"""The clients of thirteen upstream projects and their variants. The decay of a first step with Nesterov's momentum is
1.9 times the rate's."""
