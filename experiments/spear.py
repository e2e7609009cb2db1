r"""SPEAR beside the Cocktail Party Attack and the plain closed form: tables, noise, photographs.

python experiments/spear.py table noise --n 4 8 16 --batches 3
python experiments/spear.py photos --data ../shared/data/cifar10.npz --n 4 8 16 24 32
"""

import argparse

import torch
from common import attacked, draw, keep, parts

import seepage.federation.data
from seepage.attacks import CocktailParty, LinearLeak, Spear
from seepage.base.nn import frozen_randomness, generator
from seepage.federation.models import fc2
from seepage.federation.types import Batch

METHODS = {
    "fast": Spear(),
    "published": Spear(mode="published"),
    "cocktail_party": CocktailParty(),
    "linear": LinearLeak(),
}


def batch_of(kind: str, n: int, seed: int, path: str | None) -> Batch:
    """A batch of rows of a table (30 columns), of uniform noise, or of photographs (3 x 32 x 32)."""
    if kind == "noise":
        drawn = generator(seed, "noise images")
        return Batch(torch.rand((n, 3, 32, 32), generator=drawn), torch.randint(10, (n,), generator=drawn))
    if kind == "table":
        data = seepage.federation.data.load("breast_cancer")
        rows = data.private[torch.randperm(len(data.private), generator=generator(seed, "rows"))[:n]]
        return data.batch(rows)
    if path is None:
        raise SystemExit("photos need --data, an .npz file")
    return draw(parts(path)[1], n, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=["table", "noise", "photos"])
    parser.add_argument("--data", help="photographs")
    parser.add_argument("--n", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--first", type=int, default=4000, help="first batch seed")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["fast", "cocktail_party", "linear"])
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        for n in arguments.n:
            for seed in range(arguments.first, arguments.first + arguments.batches):
                batch = batch_of(kind, n, seed, arguments.data)
                with frozen_randomness(seed):
                    classes = 2 if kind == "table" else 10
                    model = fc2(tuple(batch.inputs.shape[1:]), classes, hidden=arguments.hidden)
                for method in arguments.methods:
                    facts = {"data": kind, "n": n, "seed": seed, "method": method, "hidden": arguments.hidden}
                    row = {**facts, **attacked(METHODS[method], model, batch)}
                    keep("closed/spear", f"{method}, n {n}", "exact", row)


if __name__ == "__main__":
    main()
