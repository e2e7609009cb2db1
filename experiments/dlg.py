"""DLG and iDLG on LeNet at 32 pixels: how many evaluations they take from which start, with and without a line search.

    python experiments/dlg.py --data cifar10.npz [--variants NAME ...] [--sizes 1 2 4] [--batches 3]

The network is that of Deep Leakage from Gradients, three sigmoid convolutions with weights uniform in [-0.5, 0.5], one
seed per batch; test images from number 300 on, the first 300 are for tuning. 300 steps of 20 evaluations, which is the
paper's budget, unless the update is explained before; on the way, the best point so far is scored at 600 and 2,000
evaluations. One line per variant and batch size goes to `results/matching/dlg.jsonl`, with the PSNR of every image.
"""

import argparse
from typing import Any

import torch
from common import Clock, Row, clocked, flat_square, kept, parts
from torch import Tensor

from seepage import Architecture, Batch, build, record
from seepage.attacks import dlg, idlg
from seepage.attacks.base import Checkpoint
from seepage.attacks.search.engine import GradientMatching
from seepage.federation.types import Reconstruction
from seepage.measure.metrics import align_guess
from seepage.measure.metrics.image import psnr
from seepage.papers.records import keep_measured

STUDY = "matching/dlg"
FIRST_SCORED = 300
BUDGETS = (600, 2000, 6000)
VARIANTS: dict[str, GradientMatching] = {
    "dlg": dlg(),
    "dlg, line search": dlg(line_search=True),
    "dlg, uniform, line search": dlg(line_search=True, start="uniform"),
    "dlg, grey, line search": dlg(line_search=True, start="grey"),
    "idlg": idlg(),
    "idlg, grey": idlg(start="grey"),
    "idlg, grey, line search": idlg(line_search=True, start="grey"),
}


class Watched:
    """Progress that keeps the best point at the first look after each budget."""

    def __init__(self) -> None:
        self.at: dict[int, Tensor] = {}

    def report(self, done: int, total: int, objective: float) -> None:
        pass

    def load(self) -> Checkpoint | None:
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        made = checkpoint.facts["searches"][0]["evaluations"]
        for budget in BUDGETS:
            if made >= budget and "searches/0/best/inputs" in checkpoint.tensors:
                self.at.setdefault(budget, checkpoint.tensors["searches/0/best/inputs"].clone())


def scored(guesses: Tensor, batch: Batch) -> list[float]:
    found = align_guess(Reconstruction(inputs=guesses.detach().clamp(0, 1)), batch, (0.0, 1.0)).guesses
    values: list[float] = psnr(found, batch.inputs).tolist()
    return values


def one(it: GradientMatching, batch: Batch, seed: int) -> dict[str, Any]:
    """PSNR of each image at each budget; a run that ends before a budget keeps what it ended with."""
    seen = record(build(Architecture("lenet"), (3, 32, 32), 10, seed=seed), batch)
    watched, clock = Watched(), Clock()
    with clocked(clock):
        found = it(seen, seed=seed, progress=watched)
    at = {budget: scored(watched.at.get(budget, found.inputs), batch) for budget in BUDGETS}
    return {"at": at, "evaluations": found.cost["evaluations"], "cpu_s": clock.cpu, "status": found.status}


def case(it: GradientMatching, test: Batch, size: int, count: int) -> Row:
    runs, flat = [], []
    for place in range(count):
        chosen = slice(FIRST_SCORED + place * size, FIRST_SCORED + (place + 1) * size)
        batch = Batch(test.inputs[chosen], test.labels[chosen])
        runs.append(one(it, batch, seed=place))
        flat += psnr(flat_square(batch.inputs), batch.inputs).tolist()
    each = {f"psnr_{budget}": [value for run in runs for value in run["at"][budget]] for budget in BUDGETS}
    means = {f"mean_{name}": sum(values) / len(values) for name, values in each.items()}
    facts = {key: [run[key] for run in runs] for key in ("evaluations", "cpu_s", "status")}
    return {**each, **means, **facts, "flat_psnr": sum(flat) / len(flat)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[1])
    parser.add_argument("--batches", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    _, test = parts(options.data)
    done = {row for row, _ in kept(STUDY)}
    for size in options.sizes:
        for name in options.variants:
            if f"{name}: batch {size}" in done or (size > 1 and name.startswith("idlg")):
                continue
            row = case(VARIANTS[name], test, size, options.batches)
            words = f"--variants '{name}' --sizes {size} --batches {options.batches}"
            keep_measured(
                *(STUDY, f"{name}: batch {size}", "mean_psnr_6000", row.pop("mean_psnr_6000")),
                data="cifar10",
                command=f"python experiments/dlg.py --data cifar10.npz {words}",
                attack=name,
                batch=size,
                **row,
            )


if __name__ == "__main__":
    main()
