r"""LoRA as `peft` trains and saves it: two adapter files around one step, read as captured files are.

python experiments/captured_adapters.py --data ../shared/data/cifar10.npz
"""

import sys
import tempfile
from itertools import product
from pathlib import Path

import peft
import torch
import torch.nn.functional as F
from common import Clock, Row, clocked, command, draw, keep, measure, parts
from torch import nn

from seepage import ATTACKS, Architecture, open_transcript
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.base.nn import frozen_randomness
from seepage.base.registry import Spec
from seepage.errors import Inapplicable
from seepage.federation.types import Batch

RANK, HIDDEN, ROUNDS = 16, 256, 20
OPTIMIZERS = {"SGD": (torch.optim.SGD, 0.1), "AdamW": (torch.optim.AdamW, 1e-3)}
TARGETS = {"first layer adapted": "1", "first layer frozen": "3"}
SEED = 0
"""Of the base and the adapter, which the attacker's factory makes again."""


def adapted(input_shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 10, targets: str = "1") -> nn.Module:
    """A perceptron of two hidden layers with a LoRA adapter, and a head that is trained in full."""
    with frozen_randomness(SEED):
        sizes = int(torch.tensor(input_shape).prod()), HIDDEN
        base = nn.Sequential(
            nn.Flatten(), nn.Linear(*sizes), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
            nn.Linear(HIDDEN, num_classes),
        )  # fmt: skip
        config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=[targets], modules_to_save=["5"])
        return peft.get_peft_model(base, config)


def saved_steps(test: Batch, batch: Batch, target: str, name: str, folder: Path) -> None:
    """Adapter files before and after one step on a batch, after some rounds on others."""
    model, (kind, lr) = adapted(targets=target), OPTIMIZERS[name]
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    earlier = torch.optim.SGD(learned, lr=0.1)
    for seed in range(ROUNDS):  # B is zero at first, and grad A with it
        other = draw(test, 32, 100 + seed)
        earlier.zero_grad()
        F.cross_entropy(model(other.inputs), other.labels).backward()
        earlier.step()
    model.save_pretrained(str(folder / "before"))
    last = kind(learned, lr=lr)
    last.zero_grad()
    F.cross_entropy(model(batch.inputs), batch.labels).backward()
    last.step()
    model.save_pretrained(str(folder / "after"))


def attacked(batch: Batch, target: str, name: str, folder: Path, use: str) -> Row:
    """One attack on the two files, as `seepage attack` reads them."""
    before, after = (folder / one / "adapter_model.safetensors" for one in ("before", "after"))
    lr, named = OPTIMIZERS[name][1], Architecture("captured_adapters:adapted", {"targets": target})
    sgd = name == "SGD"
    rule = Spec("fedsgd") if sgd else Spec("fedavg", {"optimizer": "adam", "lr": lr, "steps": 1})
    observed, clock = folder / f"observed-{use}", Clock()
    capture = Capture(
        before=before, after=after, lr=lr if sgd else None, steps=1 if sgd else None, architecture=named, client=rule,
        input_shape=(3, 32, 32), num_classes=10, batch_size=len(batch),
    )  # fmt: skip
    observe_files(capture, observed)
    with clocked(clock):
        found = ATTACKS[use]()(open_transcript(observed, trust=True), seed=0)
    sure = found.certified is not None and len(found) > 0
    row = {**measure(found, batch), "cpu_s": clock.cpu, "notes": list(found.notes)}
    return {**row, "certified_examples": int(found.certified.sum()) if sure and found.certified is not None else 0}


def main(*, data: str, n: tuple[int, ...] = (1, 4, 8), batches: int = 3, first: int = 7000) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    test = parts(data)[1]
    for (what, target), name, size, seed in product(TARGETS.items(), OPTIMIZERS, n, range(first, first + batches)):
        batch = draw(test, size, seed)
        with tempfile.TemporaryDirectory() as folder:
            saved_steps(test, batch, target, name, Path(folder))
            for use in ("lora", "linear"):
                facts = {"what": what, "optimizer": name, "n": size, "seed": seed, "attack": use, "rank": RANK}
                try:
                    row = attacked(batch, target, name, Path(folder), use)
                except Inapplicable as refused:
                    row = {"certified_examples": 0, "refused": str(refused)}
                facts |= {"data": Path(data).stem, "lr": OPTIMIZERS[name][1]}
                keep("captured/peft", f"{what}, {name}, n {size}, {use}", "certified_examples", {**row, **facts})


if __name__ == "__main__":
    command(main)
