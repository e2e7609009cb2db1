"""Pictures from rows of a layer that one example alone reaches, out of training as upstream code does it, dropout on.

python experiments/alone.py --data ../shared/data/cifar10.npz --model pfl --batch 4 --steps 2 --seeds 3

Adds one record for each client to results/convolutions/alone.jsonl: weights before and after some SGD steps at 0.1,
each on a batch of its own. `pfl` is the CIFAR-10 network of apple/pfl-research (`simple_cnn`, images with channels
last), `leaf` LEAF's for FEMNIST with dropout of 0.25 in front of its wide layer and 0.5 behind it. Nothing was tuned on
the images that `common.draw` gives.
"""

from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from common import Row, attacked_of, command, draw, keep, parts
from torch import Tensor, nn

from seepage import observe
from seepage.attacks import GaussNewton
from seepage.base.clock import limited
from seepage.base.nn import frozen_randomness
from seepage.federation.clients import FedAvg
from seepage.federation.types import Batch, Update

LR = 0.1


class Pfl(nn.Module):
    """apple/pfl-research, `simple_cnn`."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.c, self.d = nn.Linear(64 * 14 * 14, 128), nn.Linear(128, out)
        for layer in (self.a, self.b, self.c, self.d):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.b(self.a(x.permute(0, 3, 1, 2)).relu()).relu(), 2)
        x = self.c(F.dropout(x, 0.25, self.training).flatten(1)).relu()
        return self.d(F.dropout(x, 0.5, self.training))


class Leaf(nn.Module):
    """LEAF's network for FEMNIST, with dropout."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.c, self.d = nn.Linear(64 * 7 * 7, 2048), nn.Linear(2048, out)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            x = F.max_pool2d(layer(x).relu(), 2)
        x = self.c(F.dropout(x.flatten(1), 0.25, self.training)).relu()
        return self.d(F.dropout(x, 0.5, self.training))


def main(
    *,
    data: Annotated[str, "a file of images"],
    model: Literal["pfl", "leaf"],
    batch: int = 4,
    steps: int = 1,
    first_seed: int = 0,
    seeds: int = 3,
    minutes: float = 5.0,
) -> None:
    torch.set_num_threads(1)
    test = parts(data)[1]
    classes = int(test.labels.max()) + 1
    for seed in range(first_seed, first_seed + seeds):
        private = draw(test, batch * steps, seed)
        if model == "pfl":
            private = Batch(private.inputs.permute(0, 2, 3, 1).contiguous(), private.labels)
        with frozen_randomness(seed):
            network = (Pfl if model == "pfl" else Leaf)(classes).train()
            before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
            optimizer = torch.optim.SGD(network.parameters(), LR)
            for inputs, labels in zip(private.inputs.split(batch), private.labels.split(batch), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(network(inputs), labels).backward()
                optimizer.step()
        update = Update.from_states(before, network.state_dict())
        network.load_state_dict(before)
        client = FedAvg(lr=LR, steps=steps, batch_size=batch)
        seen = observe(network.eval(), update, tuple(private.inputs.shape[1:]), batch_size=batch * steps, client=client)
        row: Row = {"data": Path(data).stem, "seed": seed, "batch": batch, "local_steps": steps, "lr": LR}
        with limited(60 * minutes):
            row |= attacked_of(GaussNewton(), seen, private)
        keep("convolutions/alone", f"{model}, {steps} steps of {batch}", "exact", row)


if __name__ == "__main__":
    command(main)
