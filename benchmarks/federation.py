"""Client steps per second: `federate` against Flower's simulation engine on the same recipe.

    OMP_NUM_THREADS=1 python benchmarks/federation.py [--models fc2 convnet] [--clients 20] [--rounds 20] [--cpus 1]

Both run the same clients with the same data, draws and local steps, so they end at the same weights, and the largest
difference between these is printed. They take turns in one process, `federate` before and after Flower, since other
programs disturb both. Ray's start and the first two rounds are not counted. Beside the median round stands the
processor time per round of this process and all below it (Linux), which other programs disturb less. Half of the
clients take part in each round, each with 64 examples in batches of 16.

Flower may work on as many clients at a time as the machine has `--cpus` cores for; `federate` takes one after the
other. Ray's workers get the niceness of this process, not 15 more. Needs `seepage[flower]`. One JSON line per model.
"""

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from processes import below, processes

from seepage.audit.simulate.federation import FederationState, federate
from seepage.papers.records import keep_measured
from seepage.recorder import flower
from seepage.recorder.flower import start_of

SHORT, EXAMPLES, SIZE = 2, 64, 16
RECIPE = """
[data]
use = "digits"
[model]
use = "{model}"
[federation]
clients = {clients}
rounds = {rounds}
share = 0.5
examples = {examples}
[client]
use = "fedavg"
lr = 0.05
batch_size = {size}
[[attack]]
use = "linear"
"""


def processor_seconds() -> float:
    """Of this process and of all that descend from it and still run."""
    alive = processes()
    return sum(alive[number].seconds for number in (os.getpid(), *below(os.getpid(), alive)))


@dataclass
class Clock:
    """Wall and processor seconds of each round."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    last: tuple[float, float] = (0.0, 0.0)

    def tick(self, done: int, total: int) -> None:
        now = time.perf_counter(), processor_seconds()
        if done > SHORT:
            self.seconds.append(now[0] - self.last[0])
            self.processor.append(now[1] - self.last[1])
        self.last = now


def here(recipe: str, cpus: int, clock: Clock) -> FederationState:
    start = start_of(recipe)
    return federate(start.clients, start.state, start.plan, progress=clock.tick)


def there(recipe: str, cpus: int, clock: Clock) -> FederationState:
    with mock.patch.object(flower, "federate", partial(federate, progress=clock.tick)):
        return flower.simulate(recipe, cpus=cpus)


TURNS = (("seepage", here), ("flower", there), ("seepage", here))


def compare(options: argparse.Namespace, model: str, folder: Path) -> dict[str, Any]:
    """All turns on one network."""
    path = folder / f"{model}.toml"
    rounds = SHORT + options.rounds
    text = RECIPE.format(model=model, clients=options.clients, rounds=rounds, examples=EXAMPLES, size=SIZE)
    path.write_text(text, encoding="utf-8")
    clocks = {"seepage": Clock(), "flower": Clock()}
    ends: dict[str, FederationState] = {}
    for name, run in TURNS:
        ends[name] = run(str(path), options.cpus, clocks[name])
    steps = options.clients // 2 * (EXAMPLES // SIZE)
    work = {name: statistics.mean(clock.processor) for name, clock in clocks.items()}
    medians = {name: statistics.median(clock.seconds) for name, clock in clocks.items()}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "client_steps_per_round": steps,
        "steps_per_s": {name: round(steps / seconds, 1) for name, seconds in medians.items()},
        "round_s": {name: [round(f(clock.seconds), 3) for f in (min, max)] for name, clock in clocks.items()},
        "ratio": round(medians["flower"] / medians["seepage"], 1),
        "steps_per_processor_s": {name: round(steps / seconds, 1) for name, seconds in work.items()},
        "processor_ratio": round(work["flower"] / work["seepage"], 1),
        "load": load,
        "largest_difference": max(
            float((ends["seepage"].params[name] - tensor).abs().max()) for name, tensor in ends["flower"].params.items()
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["fc2", "convnet"])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cpus", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("RAY_worker_niceness", "0")
    facts = {
        "clients": options.clients,
        "rounds": options.rounds,
        "cores": os.cpu_count(),
        "cpus_per_client": options.cpus,
        "flwr": version("flwr"),
        "ray": version("ray"),
    }
    command = f"OMP_NUM_THREADS=1 python benchmarks/federation.py --models {{}} --clients {options.clients}"
    command += f" --rounds {options.rounds} --cpus {options.cpus}"
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            found = compare(options, model, Path(folder))
        ratio, made = found.pop("ratio"), {**facts, "model": model, **found}
        keep_measured("federation/throughput", model, "ratio", ratio, command=command.format(model), **made)


if __name__ == "__main__":
    main()
