"""FedLeak run to the end at its published constants, and what each reading of its Algorithm 1 is worth.

    python experiments/fedleak_parts.py full --data ../shared/data/cifar10.npz --seeds 3
    python experiments/fedleak_parts.py readings --data ../shared/data/cifar10.npz --seeds 3
    python experiments/fedleak_parts.py choice --data ../shared/data/cifar10.npz --seeds 3
    python experiments/fedleak_parts.py estimation --data ../shared/data/cifar10.npz --size 8 --width 8 --batch 1

A victim is a fresh ConvNet with GELU (whose second derivative eq. 9 needs) and a batch of images that development did
not see (`common.draw`). `full` runs the published constants, Adam at 1e-4 without a schedule for 10,000 steps, beside
the same 10,000 steps at the rate 0.03 with cosine decay that this package's tables use. `readings` varies one reading
at a time at those faster constants. `choice` compares rules that choose the entries to match: the largest of the dummy
(the paper's rule), chance, all, and the best that eq. 8 allows, which needs the truth and is no attack. For each rule
it keeps mu of eq. 5 along the path, and where the path ends.

`estimation` is appendix B: how far the inputs of another gradient can be, given how far the gradients are, by the
smallest singular value of the Jacobian, on a network small enough for the whole of it.

PSNR is taken of the current point, and after the share of the steps that section 6.5 names as enough. One record per
variant and seed goes to results/matching/fedleak-parts.jsonl; what is there already is not made again.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import Clock, Row, clocked, draw, flat_square, kept, measure, parts
from fedleak_ablations import fedleak_read
from torch import Tensor

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.base import Checkpoint
from seepage.attacks.search.distances import L1, Cosine, Distance
from seepage.attacks.search.partial import ChosenEntries
from seepage.attacks.search.problem import Problem
from seepage.base.nn import generator
from seepage.federation.types import Reconstruction, Tensors, Transcript
from seepage.measure.metrics import align_guess
from seepage.measure.metrics.image import psnr
from seepage.papers.records import keep_measured

STUDY = "matching/fedleak-parts"
PUBLISHED: Row = {"steps": 10_000, "lr": 1e-4}
FASTER: Row = {"steps": 10_000, "lr": 0.03, "schedule": "cosine"}
WRITTEN: Row = {"entries": "kept", "blend_labels": True}
FULL: dict[str, Row] = {
    "published constants": {**PUBLISHED},
    "published constants, Algorithm 1 to the letter": {**PUBLISHED, **WRITTEN},
    "published constants, labels known": {**PUBLISHED, "labels": "auto"},
    "faster constants": {**FASTER},
}
"""Options of `fedleak_read`; with `labels` as `auto` the client's labels are known."""
SHORT: Row = {"steps": 500, "lr": 0.03, "schedule": "cosine"}
READINGS: dict[str, Row] = {
    "as here": {},
    "entries kept at the look-ahead": {"entries": "kept"},
    "labels blended": {"blend_labels": True},
    "both, Algorithm 1 to the letter": WRITTEN,
    "no blend": {"weight": 0.0},
    "eq. 9 exact, lambda 7e-4": {"penalty": "exact"},
    "eq. 13, k 0.01": {"k": 1e-2},
    "eq. 9 exact, lambda 7e-3": {"penalty": "exact", "k": 1e-2},
    "eq. 13, k 0.1": {"k": 0.1},
    "eq. 9 exact, lambda 0.07": {"penalty": "exact", "k": 0.1},
    "labels known": {"labels": "auto"},
    "labels known, no blend": {"labels": "auto", "weight": 0.0},
    "labels inferred and fixed": {"labels": "count"},
    "labels unknown from the start": {"labels": "joint"},
}
MILESTONES = (0.1, 0.4, 1.0)
"""Shares of the steps: section 6.5 says that 1,000 of 10,000 suffice for most of the content, and 4,000 for all."""
RATIO = 0.5


class Watched:
    """Progress that scores the current point at the milestones."""

    def __init__(self, steps: int, score: Callable[[Tensor], float]) -> None:
        self.steps, self.score = steps, score
        self.at: dict[str, float] = {}

    def report(self, done: int, total: int, objective: float) -> None:
        pass

    def load(self) -> Checkpoint | None:
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        for share in MILESTONES:
            if checkpoint.facts["step"] >= share * self.steps:
                name = f"at {share * self.steps:.0f}"
                if name not in self.at:
                    self.at[name] = self.score(checkpoint.tensors["searches/0/free/0"])


def scored(guesses: Tensor, batch: Batch) -> float:
    found = align_guess(Reconstruction(inputs=guesses.detach().clamp(0, 1)), batch, (0.0, 1.0)).guesses
    return float(psnr(found, batch.inputs).mean())


def victim(batch: Batch, classes: int, width: int, seed: int, *, known: bool) -> Transcript:
    architecture = Architecture("convnet", {"width": width, "activation": "gelu"})
    model = build(architecture, tuple(batch.inputs.shape[1:]), classes, seed=seed)
    return record(model, batch, client=FedSGD(mode="eval"), known=["labels"] if known else ())


def searched(options: Row, batch: Batch, classes: int, width: int, seed: int) -> Row:
    """One attack: PSNR of the best point by the objective, and on the way."""
    given = {"labels": "refined", **options}
    seen = victim(batch, classes, width, seed, known=given["labels"] == "auto")
    watched, clock = Watched(given["steps"], lambda guess: scored(guess, batch)), Clock()
    with clocked(clock):
        found = fedleak_read(**given)(seen, seed=seed, progress=watched)
    assert found.labels is not None
    right = len(batch) - int((found.labels.sort().values != batch.labels.sort().values).sum())
    row = {**measure(found, batch), **watched.at, "labels_right": right / len(batch), **found.cost}
    return {**row, "cpu_s": clock.cpu, "wall_s": clock.wall, "status": found.status}


def flat_gradient(problem: Problem, inputs: Tensor, labels: Tensor) -> Tensor:
    gradient = problem._gradient(inputs, labels, create_graph=True)
    return torch.cat([gradient[name].flatten() for name in problem.target])


def gains(problem: Problem, inputs: Tensor, labels: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """The dummy gradient `[p]`, and eq. 8's inner product of each of its entries `[p]`.

    `<x' - x, sign(g'_i - g_i) dg'_i / dx'>` is `sign(g'_i - g_i)` times entry i of `J (x' - x)`, so one product of the
    Jacobian with a vector has them all: the derivative by u of `J^T u`, times `x' - x`.
    """
    leaf = inputs.detach().requires_grad_()
    flat = flat_gradient(problem, leaf, labels)
    u = torch.zeros_like(flat).requires_grad_()
    (back,) = torch.autograd.grad(flat, leaf, u, create_graph=True)  # J^T u, linear in u
    (along,) = torch.autograd.grad((back * (inputs - truth)).sum(), u)
    target = torch.cat([tensor.flatten() for tensor in problem.target.values()])
    return flat.detach(), along * (flat.detach() - target).sign()


def chosen(rule: str, dummy: Tensor, gain: Tensor, draw: torch.Generator) -> Tensor:
    """Places of the half of the entries that a rule matches."""
    count = round(RATIO * len(dummy))
    if rule == "all":
        return torch.arange(len(dummy))
    if rule == "chance":
        return torch.randperm(len(dummy), generator=draw)[:count]
    return (gain if rule == "best by eq. 8" else dummy.abs()).topk(count).indices


def split(places: Tensor, like: Tensors) -> Tensors:
    """Places in one long vector as places in each tensor."""
    found, first = {}, 0
    for name, tensor in like.items():
        inside = (places >= first) & (places < first + tensor.numel())
        found[name] = places[inside] - first
        first += tensor.numel()
    return found


def chosen_path(rule: str, batch: Batch, classes: int, width: int, seed: int, steps: int) -> Row:
    """Adam at 0.03 with cosine decay on the distance over the entries that a rule chooses anew at each step."""
    seen = victim(batch, classes, width, seed, known=True)
    inner: Distance = L1("mean") + Cosine()
    problem = Problem.of(seen[0], seen.knowledge, inner, None)
    x = torch.rand(batch.inputs.shape, generator=generator(seed, "start", 0)).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    dice, mus, clock = generator(seed, "choice"), [], Clock()
    with clocked(clock):
        for step in range(steps):
            dummy, gain = gains(problem, x.detach(), batch.labels, batch.inputs)
            places = chosen(rule, dummy, gain, dice)
            if step % max(1, steps // 100) == 0:
                # mu of eq. 5 for the mean L1 distance, of which eq. 8 speaks.
                mus.append(float(gain[places].mean() / (x.detach() - batch.inputs).square().sum()))
            held = replace(problem, distance=ChosenEntries(inner=inner, places=split(places, problem.target)))
            x.grad = held.evaluate(x.detach(), batch.labels).by_inputs
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                x.clamp_(0, 1)
    found = Reconstruction(inputs=x.detach())
    median = sorted(mus)[len(mus) // 2]
    return {**measure(found, batch), "mu_first": mus[0], "mu_median": median, "cpu_s": clock.cpu, "steps": steps}


def jacobian(problem: Problem, inputs: Tensor, labels: Tensor) -> Tensor:
    """`[p, values]` of the gradient by the inputs, a row for each entry of the gradient."""
    function = torch.func.vmap(lambda v: torch.autograd.grad(flat, leaf, v, retain_graph=True)[0])
    leaf = inputs.detach().requires_grad_()
    flat = flat_gradient(problem, leaf, labels)
    rows = [function(part) for part in torch.eye(len(flat), dtype=flat.dtype).split(256)]
    return torch.cat(rows).flatten(1).detach()


def estimation(batch: Batch, classes: int, width: int, seed: int) -> list[Row]:
    """|x* - x| beside |g* - g| / sigma of appendix B, for x* in a random direction and in the worst one."""
    seen = victim(batch, classes, width, seed, known=True)
    model = seen.knowledge.model.double()
    exact = record(model, Batch(batch.inputs.double(), batch.labels), client=FedSGD(mode="eval"), known=["labels"])
    problem = Problem.of(exact[0], exact.knowledge, L1("mean"), None)
    x = batch.inputs.double()
    at_truth = torch.linalg.svd(jacobian(problem, x, batch.labels), full_matrices=False)
    dice = torch.randn(x.shape, generator=generator(seed, "estimation")).double()
    rows = []
    for name, way in {"random": dice, "worst": at_truth.Vh[-1].view_as(x)}.items():
        for length in (0.01, 0.1):
            there = x + length * way / way.norm()
            # g* - g = (mean of J over the segment) (x* - x), by the mean value theorem; midpoints of eight parts.
            middles = [x + (i + 0.5) / 8 * (there - x) for i in range(8)]
            mean = torch.stack([jacobian(problem, middle, batch.labels) for middle in middles]).mean(0)
            gap = flat_gradient(problem, there, batch.labels) - flat_gradient(problem, x, batch.labels)
            smallest = float(torch.linalg.svdvals(mean)[-1])
            row = {
                "direction": name,
                "distance": length,
                "bound": gap.detach().norm().item() / smallest,
                "sigma": smallest,
            }
            rows.append(row | {"gradient_gap": gap.detach().norm().item(), "sigma_first": float(at_truth.S[0])})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=["full", "readings", "choice", "estimation"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="variants")
    args = parser.parse_args()
    torch.set_num_threads(1)
    train, test = parts(args.data, args.size)
    classes = int(train.labels.max()) + 1
    where = f"{Path(args.data).stem}, {args.size} px, width {args.width}, batch {args.batch}"
    variants: dict[str, dict[str, Any]] = {
        "full": FULL,
        "readings": {name: {**SHORT, **options} for name, options in READINGS.items()},
        "choice": {rule: {} for rule in ("largest in the dummy", "best by eq. 8", "chance", "all")},
    }
    for seed in range(args.seeds):
        batch = draw(test, args.batch, seed)
        if "estimation" in args.tables:
            for row in estimation(batch, classes, args.width, seed):
                words = f"estimation: {row['direction']}, {row['distance']}: {where}"
                row |= {"table": "estimation", "size": args.size, "width": args.width, "batch": len(batch)}
                keep_measured(STUDY, words, "bound", row.pop("bound"), seed=seed, data=Path(args.data).stem, **row)
        for table in set(args.tables) - {"estimation"}:
            for name, options in variants[table].items():
                words = f"{table}: {name}: {where}"
                if (words, str(seed)) in kept(STUDY) or (args.only and name not in args.only):
                    continue
                how = (batch, classes, args.width, seed)
                row = chosen_path(name, *how, 500) if table == "choice" else searched(options, *how)
                row |= {"table": table, "variant": name, "size": args.size, "width": args.width, "batch": len(batch)}
                row["flat_psnr"] = float(psnr(flat_square(batch.inputs), batch.inputs).mean())
                value = row.pop("psnr")
                keep_measured(STUDY, words, "psnr", value, seed=seed, data=Path(args.data).stem, **options | row)


if __name__ == "__main__":
    main()
