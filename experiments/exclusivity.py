r"""Exclusive neurons of a batch, and what the closed form gets of it.

python experiments/exclusivity.py --data ../shared/data/cifar10.npz --n 2 4 8 16 32
"""

import argparse
from pathlib import Path

from common import draw, keep, measure, parts

from seepage.api import attack, record
from seepage.attacks.exposure import exclusivity
from seepage.base.nn import frozen_randomness, state_of
from seepage.federation.models import mlp3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--n", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--first", type=int, default=4000, help="first batch seed")
    arguments = parser.parse_args()
    test = parts(arguments.data)[1]
    for n in arguments.n:
        for seed in range(arguments.first, arguments.first + arguments.batches):
            batch = draw(test, n, seed)
            with frozen_randomness(seed):
                model = mlp3(tuple(batch.inputs.shape[1:]), 10, hidden=arguments.hidden)
            first, last = exclusivity(model, state_of(model)[0], batch)
            found = attack(record(model, batch), "linear")
            exact = round(n * float(measure(found, batch)["exact"])) if len(found) else 0
            both = int(((first.counts >= 1) & (last.counts >= 2)).sum())
            facts = {
                "data": Path(arguments.data).stem,
                "n": n,
                "seed": seed,
                "method": "linear",
                "examples_exact": exact,
            }
            counts = {"first_layer_one": first.having(1), "last_layer_two": last.having(2), "paper_condition": both}
            keep("closed/exclusivity", f"n {n}", "examples_exact", {**facts, **counts})


if __name__ == "__main__":
    main()
