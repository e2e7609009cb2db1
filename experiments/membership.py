r"""Who was in a batch, from one update: membership tests on networks on which reconstruction finds nothing.

python experiments/membership.py small --data ../shared/data/cifar10.npz
python experiments/membership.py large --data ../shared/data/cifar10.npz
python experiments/membership.py perceptron --data ../shared/data/cifar10.npz
python experiments/membership.py small --data ../shared/data/cifar100.npz --only "n = 8, fresh" "n = 8, 300 steps"

`small`: ResNet-10 of width 16, by batch size, training, client rule and defense; `large`: ResNet-18 of width 64. Both
have ReLU and batch norm in train mode. `perceptron`: two fully connected layers, 256 neurons. FedMIA compares each
batch with the setting's other batches, as other clients of the round. Of the file's images a third trains the network,
800 are public (400 teach the test, 400 calibrate it), and the private batches and as many non-members are drawn from
the others. A candidate is named where its p-value is 0.01 or less: the threshold comes from the calibration examples,
never from the scored ones. The scaling of the matched filter was chosen on 16 batches of ResNet-10 with other seeds on
CIFAR-10; nothing else was chosen. One row of results/membership/tests.jsonl per setting, test and seed that is not
there yet; its interval is the bootstrap's, that of a rate Clopper and Pearson's.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from common import at, descend_once, draws
from torch import Tensor, nn

import seepage.federation.data
from seepage import Architecture, Batch, build, record
from seepage.attacks.membership import MEMBERSHIP_TESTS, MembershipInference
from seepage.base.nn import generator
from seepage.base.registry import Spec, defenses
from seepage.base.schema import Share
from seepage.federation.clients import make_client
from seepage.federation.defenses import joined
from seepage.measure.metrics.membership import area_interval, area_under_curve
from seepage.papers.records import RESULTS, keep_measured, read_file

PUBLIC, LEVEL, PER_MILLE = 800, 0.01, 0.001


@dataclass(frozen=True)
class Setting:
    """What is tested."""

    name: str
    n: int = 8
    steps: int = 0
    batches: int = 16
    client: Spec = Spec("fedsgd")  # noqa: RUF009
    defense: tuple[Spec, ...] = ()
    tests: tuple[str, ...] = ("matched_filter",)
    public: int = PUBLIC
    known: bool = False
    options: dict[str, Any] = field(default_factory=dict)


SPAN = ("first_layer_span", "matched_filter", "gradient_cosine")
ALL = ("matched_filter", "gradient_cosine", "gradient_difference")
EPOCHS = Spec("fedavg", {"lr": 0.01, "epochs": 5, "batch_size": 8})

PERCEPTRON = (
    *(
        Setting(f"n = {n}, {trained}", n, steps, max(2, 128 // n), tests=SPAN)
        for n in (8, 16, 32, 64)
        for steps, trained in ((0, "fresh"), (300, "300 steps"))
    ),
    Setting("n = 16, 5 local epochs, 300 steps", 16, 300, 8, client=EPOCHS, tests=SPAN),
    Setting(
        "n = 16, 300 steps, clip 1, noise 0.001, known",
        16,
        300,
        8,
        defense=(Spec("gaussian_noise", {"clip": 1.0, "sigma": 0.001}),),
        tests=SPAN,
        known=True,
    ),
)
LARGE = (
    Setting("n = 8, fresh", tests=ALL[:2], batches=12),
    Setting("n = 8, 300 steps", steps=300, tests=ALL[:2], batches=12),
    Setting("n = 32, fresh", 32, batches=6),
    Setting("n = 32, 300 steps", 32, 300, batches=6),
    Setting("n = 8, 5 local epochs, fresh", client=EPOCHS, batches=12),
    Setting("n = 8, 5 local epochs, 300 steps", steps=300, client=EPOCHS, batches=12),
)
SMALL = (
    Setting("n = 8, fresh", tests=(*ALL, "fedmia")),
    Setting("n = 8, 100 steps", steps=100, tests=ALL),
    Setting("n = 8, 300 steps", steps=300, tests=(*ALL, "fedmia")),
    Setting("n = 32, fresh", 32, batches=8, tests=(*ALL, "fedmia")),
    Setting("n = 32, 300 steps", 32, 300, batches=8, tests=(*ALL, "fedmia")),
    Setting("n = 64, fresh", 64, batches=6),
    Setting("n = 64, 300 steps", 64, 300, batches=6),
    Setting("n = 128, fresh", 128, batches=3),
    Setting("n = 8, eval mode, 300 steps", steps=300, client=Spec("fedsgd", {"mode": "eval"})),
    Setting("n = 8, 5 local epochs, 300 steps", steps=300, client=EPOCHS),
    Setting("n = 32, 5 local epochs of 4 steps, 300 steps", 32, 300, client=EPOCHS, batches=8),
    Setting("sum of 4 clients of 8, 300 steps", 32, 300, client=Spec("fedsgd", {"clients": 4}), batches=8),
    *(
        Setting(f"n = 8, 300 steps, {name}", steps=300, defense=(Spec(use, options),))
        for name, use, options in (
            ("quantized to 4 bits", "quantize", {"bits": 4}),
            ("quantized to 1 bit", "quantize", {"bits": 1}),
            ("largest 10 % kept", "sparsify", {"keep": 0.1}),
            ("largest 1 % kept", "sparsify", {"keep": 0.01}),
            ("largest 10 % encrypted", "selective_encryption", {"share": 0.1}),
            ("soteria", "soteria", {"ratio": 0.8}),
            ("outpost", "outpost", {}),
            ("clip 1, noise 0.001", "gaussian_noise", {"clip": 1.0, "sigma": 0.001}),
            ("clip 1, noise 0.01", "gaussian_noise", {"clip": 1.0, "sigma": 0.01}),
            ("clip 1, noise 0.1", "gaussian_noise", {"clip": 1.0, "sigma": 0.1}),
        )
    ),
    *(
        Setting(
            f"n = 8, 300 steps, clip 1, noise {sigma:g}, known",
            steps=300,
            defense=(Spec("gaussian_noise", {"clip": 1.0, "sigma": sigma}),),
            known=True,
        )
        for sigma in (0.001, 0.01, 0.1)
    ),
    *(
        Setting(f"n = {n}, {trained}, 2,400 public", n, steps, batches, public=2400)
        for n, batches in ((8, 16), (32, 8))
        for steps, trained in ((0, "fresh"), (300, "300 steps"))
    ),
)


def split(path: str, public: int) -> tuple[Batch, Batch, Batch]:
    """Training, public and private images of a file, disjoint."""
    data = seepage.federation.data.load(path)
    order = torch.from_numpy(np.random.default_rng(3).permutation(len(data)))
    train, shown, private = order.tensor_split([len(data) // 3, len(data) // 3 + public])
    whole = (data.batch(places) for places in (train, shown, private))
    one, two, three = (Batch(part.inputs, part.labels) for part in whole)
    return one, two, three


def fit(model: nn.Module, train: Batch, steps: int, seed: int, key: str) -> None:
    """SGD with momentum 0.9 at rate 0.05 on batches of 64; weights of a key that were trained before are read."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if steps:
        descend_once(key, model.train(), optimizer, draws(train, steps, 64, generator(seed, "train")))


def accuracy(model: nn.Module, batch: Batch) -> float:
    with torch.no_grad():
        model.eval()
        return float((model(batch.inputs).argmax(1) == batch.labels).double().mean())


def facts_of(own: Tensor, rest: Tensor, hit: Share, wrong: Share) -> dict[str, Any]:
    """Area and rates, with their intervals.

    Args:
        own: Statistics of members.
        rest: Those of others.
        hit: Members identified.
        wrong: Others identified.
    """
    return {
        "auc": area_under_curve(own, rest),
        "interval": area_interval(own, rest),
        "identified": hit.share,
        "identified_interval": list(hit.interval),
        "false": wrong.share,
        "false_interval": list(wrong.interval),
        "members": hit.of,
        "others": wrong.of,
    }


def measure(model: nn.Module, setting: Setting, public: Batch, private: Batch, use: str, seed: int) -> dict[str, Any]:
    """One test on all batches of a setting."""
    client, defense = make_client(setting.client), joined([defenses.build(part) for part in setting.defense])
    order = torch.randperm(len(private), generator=generator(seed, "candidates"))
    members: list[Tensor] = []
    others: list[Tensor] = []
    identified: list[Tensor] = []
    false: list[Tensor] = []
    small: list[Tensor] = []
    inference, clock = None, time.process_time()
    drawn = [places for places in order.split(2 * setting.n) if len(places) == 2 * setting.n][: setting.batches]
    batches = [at(private, places[: setting.n]) for places in drawn]
    together = record(model, batches, client=client, defense=defense, seed=seed) if use == "fedmia" else None
    for t, (places, batch) in enumerate(zip(drawn, batches, strict=True)):
        seen = together or record(
            model, batch, client=client, defense=defense, seed=seed, known=["defense"] * setting.known
        )
        inference = inference or MembershipInference(MEMBERSHIP_TESTS.build(Spec(use)), seen, public, seed=seed)
        found = inference.of(seen[t if together else 0], at(private, places))
        if len(found.calibration) + 1 >= 1 / PER_MILLE:
            small.append(found.identified(PER_MILLE))
        members.append(found.statistics[: setting.n])
        others.append(found.statistics[setting.n :])
        identified.append(found.identified(LEVEL)[: setting.n])
        false.append(found.identified(LEVEL)[setting.n :])
    own, rest = torch.cat(members), torch.cat(others)
    hit, wrong = (Share.count(int(torch.cat(part).sum()), sum(map(len, part))) for part in (identified, false))
    more: dict[str, Any] = {}
    if small:
        for name, part in (("identified", [p[: setting.n] for p in small]), ("false", [p[setting.n :] for p in small])):
            rate = Share.count(int(torch.cat(part).sum()), sum(map(len, part)))
            more |= {f"{name}_per_mille": rate.share, f"{name}_per_mille_interval": list(rate.interval)}
    return {
        **more,
        **facts_of(own, rest, hit, wrong),
        "cpu_s": time.process_time() - clock,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["small", "large", "perceptron"])
    parser.add_argument("--data", default="../shared/data/cifar10.npz")
    parser.add_argument("--only", nargs="+", help="names of settings")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--public", type=int, help="public images, where a file has too few for a setting's own number")
    given = parser.parse_args(arguments)
    network, title, settings = {
        "small": (Architecture("resnet", {"depth": 10, "width": 16}), "ResNet-10 of width 16", SMALL),
        "large": (Architecture("resnet", {"depth": 18, "width": 64}), "ResNet-18 of width 64", LARGE),
        "perceptron": (Architecture("fc2", {"hidden": 256}), "Perceptron of width 256", PERCEPTRON),
    }[given.what]
    file = given.data.rsplit("/", 1)[-1]
    done = {
        (record.row, record.data, seed, record.facts["test"])
        for record in read_file(RESULTS / "membership" / "tests.jsonl")
        for seed in record.seeds
    }
    for seed in range(given.seeds):
        for setting in settings:
            row = f"{title}, {setting.name}"
            left = [use for use in setting.tests if (row, file, str(seed), use) not in done]
            if not left or (given.only and setting.name not in given.only):
                continue
            train, public, private = split(given.data, given.public or setting.public)
            classes = int(max(part.labels.max() for part in (train, public, private))) + 1
            model = build(network, tuple(train.inputs.shape[1:]), classes, seed=seed)
            fit(model, train, setting.steps, seed, f"membership/{file}/{title}/{setting.steps}/{seed}")
            seen = accuracy(model, public)
            for use in left:
                facts = measure(model, setting, public, private, use, seed)
                auc, ends = facts.pop("auc"), facts.pop("interval")
                facts |= {"public": given.public} if given.public else {}
                facts |= {"test": use, "accuracy": seen, "n": setting.n, "steps": setting.steps}
                keep_measured("membership/tests", row, "auc", auc, seed=seed, interval=ends, data=file, **facts)


if __name__ == "__main__":
    main()
