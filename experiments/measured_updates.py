r"""What a first step of Adam and its kin hides between two float32 checkpoints, and what it does not.

python experiments/measured_updates.py --data ../shared/data/cifar10.npz
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import HELD_BACK, command, keep, parts
from torch import Tensor, nn
from torchvision.models import vit_b_32

from seepage import Architecture, attack, build
from seepage.attacks import Attack
from seepage.attacks.search.presets import inverting_gradients
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.base.nn import generator
from seepage.base.registry import Spec
from seepage.errors import Inapplicable
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.types import Batch, Reconstruction

Optimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
CLASSES, READINGS, VALUES = 10, 40, 500
PATCHES = "conv_proj.weight"


def forecaster() -> nn.Module:
    """Many values from few readings."""
    return nn.Sequential(nn.Linear(READINGS, 32), nn.ReLU(), nn.Linear(32, VALUES))


def transformer() -> nn.Module:
    """ViT-B/32 with a head that is not zero, as torchvision's is, behind which nothing has a gradient."""
    net = vit_b_32()
    net.heads = nn.Linear(768, CLASSES)
    return net


@dataclass(frozen=True)
class Client:
    """One setting.

    Attributes:
        row: Its name.
        network: How it is built.
        n: Examples.
        optimizer: Makes it.
        lr: What is told of its rate; None: nothing, so that the optimizer is seen in the files.
        stated: The client's rule, where it is told.
        use: The attack.
        seeds: How many.
        size: Pixels of a side that pictures are enlarged to; 0: as they are.
    """

    row: str
    network: Architecture
    n: int
    optimizer: Optimizer
    lr: float | None = None
    stated: Spec = Spec("fedsgd")  # noqa: RUF009
    use: str | Attack = "linear"
    seeds: int = 20
    size: int = 0

    @property
    def values(self) -> bool:
        return self.stated.options.get("loss") == "mse"


def adam(lr: float, eps: float = 1e-8) -> Optimizer:
    return lambda p: torch.optim.Adam(p, lr=lr, eps=eps)


def clients() -> Iterator[Client]:
    fc2, net, own = Architecture("fc2"), Architecture("convnet"), Architecture("measured_updates:forecaster")
    for lr in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1):
        yield Client(f"fc2, batch 1, Adam {lr:g}", fc2, 1, adam(lr))
    yield Client("fc2, batch 1, AdamW 0.001, decay 0.01", fc2, 1, lambda p: torch.optim.AdamW(p, lr=1e-3))
    yield Client("fc2, batch 1, RMSprop 0.001", fc2, 1, lambda p: torch.optim.RMSprop(p, lr=1e-3))
    yield Client("fc2, batch 1, Adadelta 1", fc2, 1, torch.optim.Adadelta)
    for n, seeds in ((8, 10), (32, 3)):
        yield Client(f"fc2, batch {n}, Adam 0.001", fc2, n, adam(1e-3), use="cocktail_party", seeds=seeds)
    squares = Spec("fedsgd", {"loss": "mse"})
    for n in (1, 3, 4, 8, 32):
        step: Optimizer = lambda p: torch.optim.SGD(p, lr=1e-2)  # noqa: E731
        yield Client(f"forecaster, batch {n}, SGD 0.01", own, n, step, 1e-2, squares, seeds=20 if n < 8 else 4)
    for n in (1, 2, 3, 4, 8):
        yield Client(f"forecaster, batch {n}, Adam 0.01", own, n, adam(1e-2), None, squares, seeds=20 if n < 8 else 4)
    for n in (1, 4):
        yield Client(
            f"convnet, batch {n}, Adam 0.001, eps 0.001", net, n, adam(1e-3, 1e-3), use="gauss_newton", seeds=3
        )
    matching = replace(inverting_gradients(), steps=600, restarts=1)
    for n in (1, 4):
        yield Client(f"convnet, batch {n}, Adam 0.001, eps 1e-08", net, n, adam(1e-3), use=matching, seeds=3)
    stated = Spec("fedavg", {"optimizer": "adamw", "lr": 1e-4, "steps": 1})
    yield Client(
        "vit_b_32, batch 1, AdamW 0.0001", Architecture("measured_updates:transformer"), 1,
        lambda p: torch.optim.AdamW(p, lr=1e-4), 1e-4, stated, "patch_embedding", seeds=3, size=224,
    )  # fmt: skip


def drawn(client: Client, test: Batch, seed: int) -> Batch:
    """The client's examples; of the forecaster made up."""
    draw = generator(seed, "measured")
    if client.values:
        return Batch(torch.rand(client.n, READINGS, generator=draw), torch.rand(client.n, VALUES, generator=draw))
    places = HELD_BACK + torch.randperm(len(test) - HELD_BACK, generator=draw)[: client.n]
    inputs = test.inputs[places]
    if client.size:
        inputs = F.interpolate(inputs, client.size, mode="bilinear")
    return Batch(inputs, test.labels[places])


def captured(client: Client, private: Batch, seed: int, folder: Path) -> tuple[Reconstruction | None, float]:
    """One step between two files: what the attack makes of them (None: it does not apply), and what is known.

    Known is the share of the first layer's entries, or of the patches', of which more than a least size is.
    """
    shape = tuple(private.inputs.shape[1:])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        own = forecaster if client.values else transformer if client.size else None
        model = own() if own else build(client.network, shape, CLASSES, seed=seed)
    torch.save(model.state_dict(), folder / "before.pt")
    optimizer, loss = client.optimizer(model.parameters()), F.mse_loss if client.values else F.cross_entropy
    loss(model(private.inputs), private.labels).backward()
    optimizer.step()
    torch.save(model.state_dict(), folder / "after.pt")
    capture = Capture(
        before=folder / "before.pt", after=folder / "after.pt", lr=client.lr, architecture=client.network,
        client=client.stated, input_shape=shape, batch_size=len(private), target="value" if client.values else None,
    )  # fmt: skip
    observe_files(capture, folder / "observed")
    seen = open_transcript(folder / "observed", trust=True)
    known = (
        seen[0].measured(seen.knowledge.client).known([next(iter(seen[0].params))] if not client.size else [PATCHES])
    )
    try:
        return attack(seen, client.use, seed=seed), known
    except Inapplicable:
        return None, known


def decibels(found: Reconstruction | None, private: Batch) -> list[float]:
    """PSNR of the nearest guess to each example, in dB; 0 without one."""
    if found is None or not len(found):
        return [0.0] * len(private)
    gaps = (found.inputs.clamp(0, 1)[:, None] - private.inputs[None]).flatten(2).square().mean(2)  # [k, n]
    return [-10 * math.log10(max(float(gap), 1e-12)) for gap in gaps.amin(0)]


def honest(found: Reconstruction | None, private: Batch) -> tuple[int, int]:
    """Certified guesses, and those of them that are further from every example than 40 dB."""
    if found is None or found.certified is None or not len(found):
        return 0, 0
    gaps = (found.inputs[found.certified][:, None] - private.inputs[None]).flatten(2).square().mean(2).sqrt()
    return len(gaps), int((gaps.amin(1) > 0.01).sum()) if len(gaps) else 0


def main(*, data: str, first: int = 0, only: str = "") -> None:
    test = parts(data)[1]
    for client in clients():
        for seed in range(first, first + client.seeds) if only in client.row else ():
            private = drawn(client, test, seed)
            with tempfile.TemporaryDirectory() as folder:
                found, known = captured(client, private, seed, Path(folder))
            each = decibels(found, private)
            sure, false = honest(found, private)
            name = client.use if isinstance(client.use, str) else "inverting_gradients"
            facts: dict[str, Any] = {"attack": name, "n": client.n, "seed": seed, "each": [round(v, 1) for v in each]}
            facts |= {"certified": sure, "certified_false": false}
            facts |= {"known": round(known, 4), "data": "made up" if client.values else Path(data).stem}
            middle = sorted(each)[len(each) // 2] if len(each) % 2 else sum(sorted(each)[len(each) // 2 - 1 :][:2]) / 2
            keep("captured/measured", client.row, "psnr", {**facts, "psnr": round(middle, 2)})


if __name__ == "__main__":
    command(main)
