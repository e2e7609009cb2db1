r"""How often a start of SPEAR's search ends at one example's column, by the widths and number of its reweightings.

python experiments/spear_search.py --seeds 100 101 102 103
python experiments/spear_search.py --hidden 300 --kinds noise photos --seeds 100 101 --whole 0 5 6 10

Batches that no other script scores (seeds from 100 on): uniform noise and packaged photographs through fc2, noise
through mlp3, whose first layer has two layers behind it. One row of results/closed/spear-search.jsonl per batch and
setting. `hits`: starts of `--starts` that end at a column; `columns`: different ones among these, of n. With `--whole`
the attack itself: what it certified, after how many tries.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from common import keep
from torch import Tensor, nn

import seepage.attacks.spear.sparse_columns as search
import seepage.federation.data
from seepage.api import attack, record
from seepage.attacks import Spear
from seepage.attacks.spear.spear import _LayerPart
from seepage.base.nn import frozen_randomness, generator
from seepage.federation.models import fc2, mlp3
from seepage.federation.types import Batch

BASE = (1.0, 1e-3, 60)
SETTINGS = [
    BASE,
    *[(first, 1e-3, 60) for first in (0.1, 0.3, 3.0, 10.0)],
    *[(1.0, last, 60) for last in (1e-1, 1e-2, 1e-4)],
    *[(1.0, 1e-3, steps) for steps in (15, 30, 120, 240)],
]
"""First width, last width, steps: what the attack has, and one of the three changed at a time."""


def victim(kind: str, n: int, hidden: int, seed: int) -> tuple[nn.Module, Batch]:
    """A fresh network and a batch for it."""
    draw = generator(seed, "search")
    if kind == "photos":
        data = seepage.federation.data.load("photos")
        batch = data.batch(data.private[torch.randperm(len(data.private), generator=draw)[:n]])
    else:
        batch = Batch(torch.rand((n, 3, 16, 16), generator=draw), torch.randint(10, (n,), generator=draw))
    make = mlp3 if kind == "deep" else fc2
    with frozen_randomness(seed):
        return make(tuple(batch.inputs.shape[1:]), 13, hidden=hidden), batch


def columns(model: nn.Module, batch: Batch) -> Tensor:
    """`[m, n]` each example's own gradient of the first bias, which is its column up to a factor."""
    bias = dict(model.named_parameters())["2.bias"]
    own = []
    for i in range(len(batch)):
        loss = F.cross_entropy(model(batch.inputs[i : i + 1]), batch.labels[i : i + 1])
        own.append(torch.autograd.grad(loss, bias)[0].double())
    return torch.stack(own, 1)


def starts_of(model: nn.Module, batch: Batch, steps: int, starts: int) -> dict[str, float]:
    """Where so many starts end."""
    problem = _LayerPart.of(record(model, batch), None)
    found = torch.linalg.lstsq(problem.whole.rows, columns(model, batch)[problem.live]).solution.T
    truth = F.normalize(found, dim=1)
    draw = generator(0, "spear")
    cpu, ends = time.process_time(), []
    for _ in range(starts // 64):
        ends.append(search.reweighted(problem.span, 64, draw, steps, truth[:0]))
    cpu = time.process_time() - cpu
    there = (torch.cat(ends) @ truth.T).abs() > 1 - 1e-4  # [starts, n]
    return {"starts": starts, "hits": int(there.any(1).sum()), "columns": int(there.any(0).sum()), "cpu_s": cpu}


def whole(model: nn.Module, batch: Batch, steps: int) -> dict[str, float]:
    """The attack itself."""
    cpu = time.process_time()
    found = attack(record(model, batch), Spear(steps=steps))
    sure = 0 if found.certified is None else int(found.certified.sum())
    return {"tries": found.cost["tries"], "certified": sure / len(batch), "cpu_s": time.process_time() - cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=["noise", "photos", "deep"], default=["noise", "photos", "deep"])
    parser.add_argument("--n", type=int, default=18)
    parser.add_argument("--hidden", type=int, default=400)
    parser.add_argument("--starts", type=int, default=512)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101])
    parser.add_argument("--whole", type=int, nargs="+", help="run the attack with these of the settings, by number")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        for seed in arguments.seeds:
            model, batch = victim(kind, arguments.n, arguments.hidden, seed)
            facts: dict[str, object] = {"data": kind, "n": arguments.n, "hidden": arguments.hidden, "seed": seed}
            for first, last, steps in [SETTINGS[i] for i in arguments.whole or range(len(SETTINGS))]:
                search.SEARCH_WIDTHS = (first, last)
                setting = {"widths": [first, last], "steps": steps}
                measured = (
                    whole(model, batch, steps) if arguments.whole else starts_of(model, batch, steps, arguments.starts)
                )
                metric = "certified" if arguments.whole else "hits"
                name = f"widths {first:g} to {last:g}, {steps} steps"
                keep("closed/spear-search", name, metric, {**facts, **setting, **measured})


if __name__ == "__main__":
    main()
