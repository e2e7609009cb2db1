r"""Who was in a client's data, from several rounds together.

python experiments/membership_rounds.py --data ../shared/data/cifar10.npz

ResNet-10 of width 16, ReLU, batch norm in train mode, after 300 steps. The client holds one batch and trains on it in
each round; between rounds the server's model goes on for 10 steps on the training images, as one client of very many
hardly moves it. A test at each round's weights, all with the same 400 public examples (200 teach, 200 calibrate),
combined by `seepage.attacks.membership.combined`; the calibration examples go through all rounds. Of the file's images
a third trains the network, and private batches and as many non-members are drawn from those that are neither trained on
nor public. A candidate is named where its p-value is 0.01 or less; nothing was chosen. One row of
results/membership/rounds.jsonl per setting, number of rounds and seed. One round alone is a recipe,
`recipes/membership.toml`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from common import Row, at, command, descend, descend_once, draws, keep
from torch import nn

import seepage.federation.data
from seepage import Architecture, Batch, FedAvg, FedSGD, GaussianNoise, build, record
from seepage.attacks.membership import MatchedFilter, Membership, MembershipInference, combined
from seepage.base.nn import generator
from seepage.base.schema import Share
from seepage.federation.types import ClientUpdate, Defense
from seepage.measure.metrics.membership import area_interval, area_under_curve
from seepage.papers.records import RESULTS, read_file

STUDY, TITLE = "membership/rounds", "ResNet-10 of width 16"
ROUNDS, BETWEEN, PUBLIC, STEPS, LEVEL = (1, 2, 5, 10), 10, 400, 300, 0.01


@dataclass(frozen=True)
class Setting:
    """What is tested."""

    name: str
    n: int
    batches: int
    client: ClientUpdate
    defense: Defense | None = None


SETTINGS = (
    Setting("n = 8, clip 1, noise 0.1, known", 8, 12, FedSGD(), GaussianNoise(clip=1.0, sigma=0.1)),
    Setting("n = 32, 5 local epochs of 4 steps", 32, 6, FedAvg(lr=0.01, epochs=5, batch_size=8)),
)


def split(path: str) -> list[Batch]:
    """Training, public and private images of a file, disjoint."""
    data = seepage.federation.data.load(path)
    order = torch.from_numpy(np.random.default_rng(3).permutation(len(data)))
    whole = [data.batch(places) for places in order.tensor_split([len(data) // 3, len(data) // 3 + PUBLIC])]
    return [Batch(part.inputs, part.labels) for part in whole]


def accuracy(model: nn.Module, batch: Batch) -> float:
    with torch.no_grad():
        model.eval()
        return float((model(batch.inputs).argmax(1) == batch.labels).double().mean())


def further(model: nn.Module, train: Batch, seed: int, t: int) -> None:
    """The server's model goes on: SGD at rate 0.05 on batches of 64."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    descend(model.train(), optimizer, draws(train, BETWEEN, 64, generator(seed, "further", t)))


def tested(model: nn.Module, setting: Setting, public: Batch, private: Batch, seed: int, t: int) -> list[Membership]:
    """One round: each batch's candidates tested against its update at the model's weights."""
    order = torch.randperm(len(private), generator=generator(seed, "candidates"))
    client, defense, found, inference = setting.client, setting.defense, [], None
    for number, places in enumerate(order.split(2 * setting.n)[: setting.batches]):
        batch, known = at(private, places[: setting.n]), ["defense"] * bool(defense)
        seen = record(model, batch, client=client, defense=defense, known=known, seed=1000 * seed + 100 * number + t)
        inference = inference or MembershipInference(MatchedFilter(), seen, public, seed=seed)
        found.append(inference.of(seen[0], at(private, places)))
    return found


def rates_of(found: Sequence[Membership], n: int) -> Row:
    """Shares and area of combined tests whose first n candidates are members."""
    own, rest = (torch.cat([part.statistics[half] for part in found]) for half in (slice(n), slice(n, None)))
    row: Row = {"auc": area_under_curve(own, rest), "interval": area_interval(own, rest)}
    for name, of, half in (("named", "members", slice(n)), ("false", "others", slice(n, None))):
        hits = int(torch.cat([part.identified(LEVEL)[half] for part in found]).sum())
        rate = Share.count(hits, len(found) * n)
        row |= {name: rate.share, f"{name}_interval": list(rate.interval), of: rate.of}
    return row


def main(*, data: str = "../shared/data/cifar10.npz", seeds: int = 3) -> None:
    file = data.rsplit("/", 1)[-1]
    done = {seed for one in read_file(RESULTS / f"{STUDY}.jsonl") for seed in one.seeds if one.data == file}
    for seed in (seed for seed in range(seeds) if str(seed) not in done):
        train, public, private = split(data)
        classes = int(max(part.labels.max() for part in (train, public, private))) + 1
        model = build(
            Architecture("resnet", {"depth": 10, "width": 16}), tuple(train.inputs.shape[1:]), classes, seed=seed
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        key, batches = f"membership/{file}/{TITLE}/{STEPS}/{seed}", draws(train, STEPS, 64, generator(seed, "train"))
        descend_once(key, model.train(), optimizer, batches)
        seen = accuracy(model, public)
        parts: dict[str, list[list[Membership]]] = {setting.name: [] for setting in SETTINGS}
        for t in range(max(ROUNDS)):
            for setting in SETTINGS:
                parts[setting.name].append(tested(model, setting, public, private, seed, t))
            further(model, train, seed, t)
        for setting in SETTINGS:
            for rounds in ROUNDS:
                row = rates_of([combined(one) for one in zip(*parts[setting.name][:rounds], strict=True)], setting.n)
                row |= {"rounds": rounds, "setting": setting.name, "accuracy": seen, "n": setting.n}
                keep(STUDY, f"{TITLE}, {setting.name}, {rounds} rounds", "auc", {**row, "seed": seed, "data": file})


if __name__ == "__main__":
    command(main)
