r"""Whole batches by linear equations: where exclusive neurons tell the patterns, by layers, width, bias and batch.

python experiments/linear_equations.py --data ../shared/data/cifar10.npz --n 4 8 16 --batches 3
"""

import argparse
from itertools import pairwise, product
from pathlib import Path

from common import attacked, draw, keep, parts
from torch import nn

from seepage import ATTACKS
from seepage.attacks.exposure import exclusivity
from seepage.base.nn import frozen_randomness, state_of
from seepage.errors import Inapplicable
from seepage.federation.models.normalize import Normalize

METHODS = ("linear_equations", "linear", "cocktail_party")


def network(inputs: int, hidden: int, depth: int, classes: int, *, bias: bool) -> nn.Sequential:
    """`depth` hidden layers of `hidden` units with ReLU."""
    widths = [inputs, *[hidden] * depth]
    steps: list[nn.Module] = [Normalize(), nn.Flatten()]
    for read, written in pairwise(widths):
        steps += [nn.Linear(read, written, bias=bias), nn.ReLU()]
    return nn.Sequential(*steps, nn.Linear(hidden, classes, bias=bias))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--n", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--hidden", type=int, nargs="+", default=[256])
    parser.add_argument("--depth", type=int, nargs="+", default=[2], help="hidden layers")
    parser.add_argument("--no-bias", action="store_true")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--first", type=int, default=4000, help="first batch seed")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=[*METHODS, "spear"])
    arguments = parser.parse_args()
    test, bias = parts(arguments.data)[1], not arguments.no_bias
    seeds = range(arguments.first, arguments.first + arguments.batches)
    for depth, hidden, n, seed in product(arguments.depth, arguments.hidden, arguments.n, seeds):
        batch = draw(test, n, seed)
        with frozen_randomness(seed):
            model = network(batch.inputs[0].numel(), hidden, depth, 10, bias=bias)
        layers = exclusivity(model, state_of(model)[0], batch)
        # Pan et al.'s condition: two neurons in the last hidden layer, one in each before.
        enough = [layer.counts >= (2 if layer is layers[-1] else 1) for layer in layers]
        facts = {
            "n": n,
            "seed": seed,
            "data": Path(arguments.data).stem,
            "hidden": hidden,
            "depth": depth,
            "bias": bias,
            "one_by_layer": [layer.having(1) for layer in layers],
            "condition": int(sum(enough[1:], start=enough[0].long()).eq(depth).sum()),
        }
        name = f"{depth} x {hidden}{'' if bias else ', no bias'}, n {n}"
        for method in arguments.methods:
            try:
                row = attacked(ATTACKS[method](), model, batch)
            except Inapplicable as refused:
                row = {"exact": 0.0, "refused": refused.reason}
            row["examples_exact"] = round(n * float(row["exact"]))
            keep("closed/linear-equations", name, "examples_exact", {**facts, "method": method, **row})


if __name__ == "__main__":
    main()
