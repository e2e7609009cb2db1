"""Equations of a convolutional network's gradient against pixels: counted, and the rank computed for one image.

python experiments/counting.py --seeds 3

Adds one record for each network to results/convolutions/counted.jsonl. Nothing private is behind them: weights are
drawn, images made up, so the counts are those of networks before training.
"""

import time

import torch
from common import Row, command, keep

from seepage.api import record
from seepage.attacks.exposure import equation_count
from seepage.base.registry import Spec
from seepage.federation.models import build
from seepage.federation.types import Batch

NETWORKS = ("width=4", "width=8", "width=16", "width=32", "width=32,activation=leaky_relu")
SHAPE, CLASSES = (3, 32, 32), 100


def main(*, seeds: int = 3) -> None:
    torch.set_num_threads(1)
    for options in NETWORKS:
        given = dict(pair.split("=") for pair in options.split(","))
        for seed in range(seeds):
            spec = Spec("convnet", {name: int(value) if value.isdigit() else value for name, value in given.items()})
            batch = Batch(torch.rand((1, *SHAPE), generator=torch.Generator().manual_seed(seed)), torch.tensor([0]))
            seen = record(build(spec, SHAPE, CLASSES, seed=seed), batch)
            start = time.process_time()
            found = equation_count(seen[0], seen.knowledge, thorough=True)
            row: Row = {"seed": seed, "options": options, "classes": CLASSES, "active": found.active}
            row |= {"shared": found.shared, "unknowns": found.unknowns, "rank": found.rank}
            row |= {"ended_by": found.ended_by, "cpu_s": round(time.process_time() - start, 2)}
            row["largest_batch"] = found.largest_batch
            keep("convolutions/counted", f"convnet, {options}", "largest_batch", row)


if __name__ == "__main__":
    command(main)
