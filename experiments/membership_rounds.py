r"""Who was in a client's data, from several rounds together.

python experiments/membership_rounds.py --data ../shared/data/cifar10.npz

ResNet-10 of width 16, ReLU, batch norm in train mode, after 300 steps. The client holds one batch and trains on it in
each round; between rounds the server's model goes on for 10 steps on the training images, as one client of very many
hardly moves it. A test at each round's weights, all with the same 400 public examples (200 teach, 200 calibrate),
combined by `seepage.attacks.membership.combined`; the calibration examples go through all rounds. Networks, images and
level as in membership.py; nothing was chosen. One row of results/membership/rounds.jsonl per setting, number of rounds
and seed.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from common import descend, draws
from membership import EPOCHS, LEVEL, Setting, accuracy, facts_of, fit, split
from torch import nn

from seepage import Architecture, Batch, build, record
from seepage.attacks.membership import MatchedFilter, Membership, MembershipInference, combined
from seepage.base.nn import generator
from seepage.base.registry import Spec, defenses
from seepage.base.schema import Share
from seepage.federation.clients import make_client
from seepage.federation.defenses import joined
from seepage.papers.records import RESULTS, keep_measured, read_file

ROUNDS, BETWEEN, PUBLIC, STEPS = (1, 2, 5, 10), 10, 400, 300
TITLE = "ResNet-10 of width 16"
NOISE = (Spec("gaussian_noise", {"clip": 1.0, "sigma": 0.1}),)
SETTINGS = (
    Setting("n = 8, clip 1, noise 0.1, known", steps=STEPS, batches=12, defense=NOISE, known=True),
    Setting("n = 32, 5 local epochs of 4 steps", 32, STEPS, client=EPOCHS, batches=6),
)


def further(model: nn.Module, train: Batch, seed: int, t: int) -> None:
    """The server's model goes on: SGD at rate 0.05 on batches of 64."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    descend(model.train(), optimizer, draws(train, BETWEEN, 64, generator(seed, "further", t)))


def tested(model: nn.Module, setting: Setting, public: Batch, private: Batch, seed: int, t: int) -> list[Membership]:
    """One round: each batch's candidates tested against its update at the model's weights."""
    client, defense = make_client(setting.client), joined([defenses.build(part) for part in setting.defense])
    order = torch.randperm(len(private), generator=generator(seed, "candidates"))
    found, inference = [], None
    for number, places in enumerate(order.split(2 * setting.n)[: setting.batches]):
        batch = Batch(private.inputs[places[: setting.n]], private.labels[places[: setting.n]])
        known = ["defense"] * setting.known
        seen = record(model, batch, client=client, defense=defense, known=known, seed=1000 * seed + 100 * number + t)
        inference = inference or MembershipInference(MatchedFilter(), seen, public, seed=seed)
        found.append(inference.of(seen[0], Batch(private.inputs[places], private.labels[places])))
    return found


def rates_of(found: Sequence[Membership], n: int) -> dict[str, Any]:
    """Shares and area of combined tests whose first n candidates are members."""
    own, rest = (torch.cat([part.statistics[half] for part in found]) for half in (slice(n), slice(n, None)))
    hit, wrong = (
        Share.count(int(torch.cat([part.identified(LEVEL)[half] for part in found]).sum()), len(found) * n)
        for half in (slice(n), slice(n, None))
    )
    return facts_of(own, rest, hit, wrong)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data/cifar10.npz")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    file = given.data.rsplit("/", 1)[-1]
    kept = read_file(RESULTS / "membership" / "rounds.jsonl")
    done = {seed for record in kept for seed in record.seeds if record.data == file}
    for seed in range(given.seeds):
        if str(seed) in done:
            continue
        train, public, private = split(given.data, PUBLIC)
        classes = int(max(part.labels.max() for part in (train, public, private))) + 1
        network = Architecture("resnet", {"depth": 10, "width": 16})
        model = build(network, tuple(train.inputs.shape[1:]), classes, seed=seed)
        fit(model, train, STEPS, seed, f"membership/{file}/{TITLE}/{STEPS}/{seed}")
        seen = accuracy(model, public)
        parts: dict[str, list[list[Membership]]] = {setting.name: [] for setting in SETTINGS}
        for t in range(max(ROUNDS)):
            for setting in SETTINGS:
                parts[setting.name].append(tested(model, setting, public, private, seed, t))
            further(model, train, seed, t)
        for setting in SETTINGS:
            for rounds in ROUNDS:
                found = [combined(one) for one in zip(*parts[setting.name][:rounds], strict=True)]
                facts = rates_of(found, setting.n)
                auc, ends = facts.pop("auc"), facts.pop("interval")
                facts |= {"rounds": rounds, "setting": setting.name, "accuracy": seen, "n": setting.n}
                row = f"{TITLE}, {setting.name}, {rounds} rounds"
                keep_measured("membership/rounds", row, "auc", auc, seed=seed, interval=ends, data=file, **facts)


if __name__ == "__main__":
    main()
