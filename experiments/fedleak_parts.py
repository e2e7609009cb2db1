"""What FedLeak's choice of entries (eq. 8) is worth, and how far the inputs of another gradient can be (appendix B).

    python experiments/fedleak_parts.py choice --data ../shared/data/cifar10.npz --seeds 3
    python experiments/fedleak_parts.py estimation --data ../shared/data/cifar10.npz --size 8 --width 8 --batch 1

A victim is a fresh ConvNet with GELU and a batch of images that development did not see (`common.draw`). `choice`
compares rules that choose the entries to match: the largest of the dummy (the paper's rule), chance, all, and the best
that eq. 8 allows, which needs the truth and is no attack. For each rule it keeps mu of eq. 5 along the path, and where
the path ends. `estimation` is appendix B: how far the inputs of another gradient can be, given how far the gradients
are, by the smallest singular value of the Jacobian, on a network small enough for the whole of it. `sums` has L1 and
total variation as means and as sums, over weights of Table 17 and the parts of Table 19, and line 5 of Algorithm 1 at
its word. What each other reading of Algorithm 1 is worth is a recipe, `recipes/readings.toml`.

One record per variant and seed goes to results/matching/fedleak-parts.jsonl; what is there already is not made again.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from common import Clock, Row, attacked_of, clocked, command, draw, flat_square, keep, kept, measure, parts
from fedleak_ablations import ChosenEntries, fedleak_read
from torch import Tensor

from seepage import Architecture, Batch, FedSGD, GradientMatching, build, record
from seepage.attacks.search import fedleak
from seepage.attacks.search.distances import L1, Cosine, Distance
from seepage.attacks.search.problem import Problem
from seepage.base.nn import generator
from seepage.federation.types import Reconstruction, Tensors, Transcript
from seepage.measure.metrics.image import psnr
from seepage.papers.special.ablation import fedleak_without_cosine, fedleak_without_l1

STUDY = "matching/fedleak-parts"
RULES = ("largest in the dummy", "best by eq. 8", "chance", "all")
RATIO = 0.5


def victim(batch: Batch, classes: int, width: int, seed: int) -> Transcript:
    architecture = Architecture("convnet", {"width": width, "activation": "gelu"})
    model = build(architecture, tuple(batch.inputs.shape[1:]), classes, seed=seed)
    return record(model, batch, client=FedSGD(mode="eval"), known=["labels"])


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
    seen = victim(batch, classes, width, seed)
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


def readings(steps: int) -> dict[str, GradientMatching]:
    """L1 and total variation as means and as sums, by name: both terms, each alone, and weights of Table 17."""
    how: Row = {"steps": steps, "lr": 0.03, "schedule": "cosine"}
    found = {"pixels masked": fedleak_read(entries="pixels", **how)}
    for word in ("mean", "sum"):
        found[f"{word}s, 1e-5"] = fedleak(l1=word, variation=word, **how)
        found[f"{word}s, 1e-5, cosine alone"] = fedleak_without_l1(variation=word, **how)
        found[f"{word}s, 1e-5, L1 alone"] = fedleak_without_cosine(l1=word, variation=word, **how)
    for tv in (0.0, 1e-1, 1e-4, 1e-3, 1e-2):
        for word in ("sum", "mean"):
            found[f"{word}s, {tv:g}"] = fedleak(l1=word, variation=word, tv=tv, **how)
    return found


def jacobian(problem: Problem, inputs: Tensor, labels: Tensor) -> Tensor:
    """`[p, values]` of the gradient by the inputs, a row for each entry of the gradient."""
    function = torch.func.vmap(lambda v: torch.autograd.grad(flat, leaf, v, retain_graph=True)[0])
    leaf = inputs.detach().requires_grad_()
    flat = flat_gradient(problem, leaf, labels)
    rows = [function(part) for part in torch.eye(len(flat), dtype=flat.dtype).split(256)]
    return torch.cat(rows).flatten(1).detach()


def estimation(batch: Batch, classes: int, width: int, seed: int) -> Iterator[Row]:
    """|x* - x| beside |g* - g| / sigma of appendix B, for x* in a random direction and in the worst one."""
    seen = victim(batch, classes, width, seed)
    model = seen.knowledge.model.double()
    exact = record(model, Batch(batch.inputs.double(), batch.labels), client=FedSGD(mode="eval"), known=["labels"])
    problem = Problem.of(exact[0], exact.knowledge, L1("mean"), None)
    x = batch.inputs.double()
    at_truth = torch.linalg.svd(jacobian(problem, x, batch.labels), full_matrices=False)
    dice = torch.randn(x.shape, generator=generator(seed, "estimation")).double()
    for name, way in {"random": dice, "worst": at_truth.Vh[-1].view_as(x)}.items():
        for length in (0.01, 0.1):
            there = x + length * way / way.norm()
            # g* - g = (mean of J over the segment) (x* - x), by the mean value theorem; midpoints of eight parts.
            middles = [x + (i + 0.5) / 8 * (there - x) for i in range(8)]
            mean = torch.stack([jacobian(problem, middle, batch.labels) for middle in middles]).mean(0)
            gap = flat_gradient(problem, there, batch.labels) - flat_gradient(problem, x, batch.labels)
            smallest = float(torch.linalg.svdvals(mean)[-1])
            row = {"direction": name, "distance": length, "bound": gap.detach().norm().item() / smallest}
            row |= {"sigma": smallest, "gradient_gap": gap.detach().norm().item()}
            yield row | {"sigma_first": float(at_truth.S[0])}


def main(
    table: Literal["choice", "estimation", "sums"],
    *,
    data: str,
    size: int = 16,
    width: int = 16,
    batch: int = 4,
    seeds: int = 1,
    steps: int = 500,
) -> None:
    torch.set_num_threads(1)
    train, test = parts(data, size)
    classes, where = int(train.labels.max()) + 1, f"{Path(data).stem}, {size} px, width {width}, batch {batch}"
    for seed in range(seeds):
        private = draw(test, batch, seed)
        facts = {"table": table, "size": size, "width": width, "batch": batch, "seed": seed, "data": Path(data).stem}
        for row in estimation(private, classes, width, seed) if table == "estimation" else ():
            keep(STUDY, f"estimation: {row['direction']}, {row['distance']}: {where}", "bound", facts | row)
        for name, attack in readings(steps).items() if table == "sums" else ():
            if (f"sums: {name}: {where}", str(seed)) not in kept(STUDY):
                row = attacked_of(attack, victim(private, classes, width, seed), private)
                row |= {"variant": name, "flat_psnr": float(psnr(flat_square(private.inputs), private.inputs).mean())}
                keep(STUDY, f"sums: {name}: {where}", "psnr", facts | row | {"steps": steps})
        for rule in RULES if table == "choice" else ():
            if (f"choice: {rule}: {where}", str(seed)) not in kept(STUDY):
                row = chosen_path(rule, private, classes, width, seed, steps)
                row |= {"variant": rule, "flat_psnr": float(psnr(flat_square(private.inputs), private.inputs).mean())}
                keep(STUDY, f"choice: {rule}: {where}", "psnr", facts | row)


if __name__ == "__main__":
    command(main)
