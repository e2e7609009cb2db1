r"""Whole batches by linear equations: where exclusive neurons tell the patterns, by layers, width, bias and batch.

python experiments/linear_equations.py --data ../shared/data/cifar10.npz --n 4 8 16 --batches 3
"""

from itertools import pairwise, product
from pathlib import Path
from typing import Annotated

from common import attacked, command, draw, keep, parts
from torch import Tensor, nn

from seepage import ATTACKS
from seepage.base.nn import frozen_randomness
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


def alone(model: nn.Sequential, inputs: Tensor) -> list[Tensor]:
    """`[n]` units of each hidden layer, first to last, that are on for this example and for no other."""
    found = []
    for layer in model:
        inputs = layer(inputs)
        if isinstance(layer, nn.ReLU):
            on = inputs > 0
            found.append((on & (on.sum(0) == 1)).sum(1))
    return found


def main(
    *,
    data: str,
    n: tuple[int, ...] = (4, 8, 16),
    hidden: tuple[int, ...] = (256,),
    depth: Annotated[tuple[int, ...], "hidden layers"] = (2,),
    no_bias: bool = False,
    batches: int = 3,
    first: Annotated[int, "first batch seed"] = 4000,
    methods: Annotated[tuple[str, ...], (*METHODS, "spear")] = METHODS,
) -> None:
    test, bias = parts(data)[1], not no_bias
    for layers, units, size, seed in product(depth, hidden, n, range(first, first + batches)):
        batch = draw(test, size, seed)
        with frozen_randomness(seed):
            model = network(batch.inputs[0].numel(), units, layers, 10, bias=bias)
        found = alone(model, batch.inputs)
        # Pan et al.'s condition: two neurons in the last hidden layer, one in each before.
        enough = [layer >= (2 if layer is found[-1] else 1) for layer in found]
        facts = {"n": size, "seed": seed, "data": Path(data).stem, "hidden": units, "depth": layers, "bias": bias}
        facts |= {"one_by_layer": [int((layer >= 1).sum()) for layer in found]}
        facts |= {"condition": int(sum(enough[1:], start=enough[0].long()).eq(layers).sum())}
        for method in methods:
            try:
                row = attacked(ATTACKS[method](), model, batch)
            except Inapplicable as refused:
                row = {"exact": 0.0, "refused": refused.reason}
            row["examples_exact"] = round(size * float(row["exact"]))
            name = f"{layers} x {units}{'' if bias else ', no bias'}, n {size}"
            keep("closed/linear-equations", name, "examples_exact", {**facts, "method": method, **row})


if __name__ == "__main__":
    command(main)
