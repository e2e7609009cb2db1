r"""The best attacks there are on noisy updates, beside their bounds; membership behind noise, beside its bounds.

python experiments/bounds.py membership
python experiments/bounds.py attained --data ../shared/data/cifar10.npz

`membership`: results/bounds/membership.jsonl, the true positive rates of the rows behind clipped noise beside
Phi(Phi^-1(alpha) + mu). `attained`: results/bounds/attained.jsonl, on real updates of CIFAR-10 that the real defense
noised 1,000 times: a likelihood ratio between two batches that differ in one image, and the most likely of N
candidates. Settings that are there are skipped.
"""

import itertools
from typing import Literal

import torch
from common import command, draw, keep, kept, parts
from torch import nn

from seepage.api import record
from seepage.base.nn import generator
from seepage.base.schema import Share
from seepage.federation.clients import FedSGD
from seepage.federation.defenses import GaussianNoise
from seepage.federation.models import build
from seepage.federation.types import Architecture, Batch, ClientView, Defense, Tensors, Update
from seepage.measure.bounds import gaussian_auc, gaussian_tpr
from seepage.papers.records import RESULTS, read_file

CLASSES, DRAWS, LEVEL = 10, 1000, 0.05


def membership_rows() -> None:
    """Named members and areas behind clipped noise, beside the bounds of one update."""
    done = kept("bounds/membership")
    for row in read_file(RESULTS / "membership" / "tests.jsonl"):
        if "clip 1, noise" not in row.row:
            continue
        sigma = float(row.row.rsplit(" ", 1)[1])
        # Whole updates are clipped to 1; one example more or less moves them by up to twice that.
        mu = 2 / sigma
        for seed, area in row.seeds.items():
            if (row.row, seed) in done:
                continue
            facts = {"sigma": sigma, "mu": mu, "auc": area, "auc_interval": row.interval, "auc_bound": gaussian_auc(mu)}
            facts |= {
                key: row.facts[key]
                for key in ("identified", "identified_interval", "false", "false_interval", "members")
            }
            # The rate of false alarms is itself measured: the bound at its upper end is what nothing may exceed.
            facts |= {"bound_at_upper_false": gaussian_tpr(row.facts["false_interval"][1], mu)}
            bound = gaussian_tpr(0.01, mu)
            keep("bounds/membership", row.row, "tpr", {"tpr": bound, "seed": int(seed), **facts})


def noised(update: Tensors, defense: Defense, toward: torch.Tensor, seed: int) -> torch.Tensor:
    """`[DRAWS, k]` what each draw of the defended update has along `k` directions `[k, P]`."""
    view = ClientView(nn.Identity(), {}, Batch(torch.zeros(1, 1), torch.zeros(1).long()), FedSGD())
    draw = generator(seed, "noise of the best attack")
    rows = []
    for _ in range(DRAWS):
        sent = defense(Update(update), view, generator=draw).tensors
        rows.append(toward @ torch.cat([tensor.flatten() for tensor in sent.values()]))
    return torch.stack(rows)


def flat(update: Tensors, clip: float) -> torch.Tensor:
    whole = torch.cat([tensor.flatten() for tensor in update.values()])
    return whole * min(1.0, clip / float(whole.norm()))


def attained_rows(data: str) -> None:
    """The best attacks on real updates, beside the bounds."""
    done = kept("bounds/attained")
    _train, test = parts(data)
    for seed in range(3):
        model = build(Architecture("lenet"), tuple(test.inputs.shape[1:]), CLASSES, seed=seed)

        def update(batch: Batch, model: nn.Module = model) -> Tensors:
            return record(model, batch)[0].update.tensors

        whole = draw(test, 32, seed)
        for n, sigma in itertools.product((1, 8), (0.1, 0.5, 1.0, 2.0)):
            name = f"likelihood ratio, one of {n} images, sigma {sigma:g}"
            if (name, str(seed)) in done:
                continue
            there = torch.arange(n)
            other = torch.cat([there[:-1], torch.tensor([31])])  # another image in the place of the last
            pair = [update(Batch(whole.inputs[places], whole.labels[places])) for places in (there, other)]
            defense = GaussianNoise(sigma=sigma, clip=1.0)
            apart = flat(pair[0], 1.0) - flat(pair[1], 1.0)
            toward = (apart / apart.norm())[None]
            member, outsider = (noised(one, defense, toward, 2 * seed + i)[:, 0] for i, one in enumerate(pair))
            threshold = outsider.sort().values[-round(LEVEL * DRAWS)]
            rate = Share.count(int((member >= threshold).sum()), DRAWS)
            bound, here = gaussian_tpr(LEVEL, 2 / sigma), gaussian_tpr(LEVEL, float(apart.norm()) / sigma)
            facts = {"n": n, "sigma": sigma, "bound": bound, "this_pair": here, "apart": float(apart.norm())}
            row = {"tpr": rate.share, "seed": seed, "interval": rate.interval, "data": "cifar10", **facts}
            keep("bounds/attained", name, "tpr", row)
        for count, sigma in itertools.product((2, 16), (0.1, 0.5, 1.0, 2.0)):
            name = f"most likely of {count} images, sigma {sigma:g}"
            if (name, str(seed)) in done:
                continue
            defense = GaussianNoise(sigma=sigma, clip=1.0)
            singles = [
                update(Batch(x[None], y[None])) for x, y in zip(whole.inputs[:count], whole.labels, strict=False)
            ]
            toward = torch.stack([flat(one, 1.0) for one in singles])  # [N, P]
            hits = 0
            for number, one in enumerate(singles):
                # The likelihood of candidate c is -|y - u_c|^2, that is y u_c - |u_c|^2 / 2.
                scores_of = noised(one, defense, toward, 100 * seed + number) - toward.square().sum(1) / 2
                hits += int((scores_of[: DRAWS // count].argmax(1) == number).sum())
            rate = Share.count(hits, DRAWS // count * count)
            facts = {"count": count, "sigma": sigma, "bound": gaussian_tpr(1 / count, 1 / sigma)}
            row = {"share": rate.share, "seed": seed, "interval": rate.interval, "data": "cifar10", **facts}
            keep("bounds/attained", name, "share", row)


def main(what: Literal["membership", "attained"], *, data: str = "../shared/data/cifar10.npz") -> None:
    membership_rows() if what == "membership" else attained_rows(data)


if __name__ == "__main__":
    command(main)
