r"""What embeddings that CPA recovers say of faces: a classifier of public faces reads from which side the light falls.

python experiments/cpa_attributes.py --data ../shared/data/faces_yaleb_32.npz --n 16 64 --batches 3 --epochs 0 8
"""

import re
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from common import Clock, clocked, command, fit, keep
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from seepage import CocktailParty, attack, record
from seepage.base.nn import frozen_randomness, generator
from seepage.federation.models import Normalize
from seepage.federation.types import Batch
from seepage.papers.special import networks

HIDDEN = 256
PRIVATE = 8
"""Persons whose faces are private; the others are public, so that no person is on both sides."""
RIDGE = 1e-2
"""Weight of the squared coefficients, as a share of the embeddings' mean square; not tuned."""


def lit(path: str) -> tuple[Tensor, Tensor, Tensor]:
    """Faces `[n, 1, 32, 32]`, persons `[n]`, whether light falls from the right `[n]`; no faces lit from ahead."""
    found = np.load(path)
    angles = [int(re.search(r"A([+-]\d{3})E", str(name))[1]) for name in found["name"]]  # type: ignore[index]
    images = torch.tensor(found["x"]).permute(0, 3, 1, 2) / 255
    _, persons = np.unique(found["y"], return_inverse=True)
    side = torch.tensor(angles)
    # Faces that are nearly black by design show no side.
    seen = (side != 0) & (images.mean((1, 2, 3)) > 0.1)
    return images[seen], torch.tensor(persons)[seen], (side > 0)[seen]


def classifier(read: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Mean `[e]` and ridge coefficients `[e]`: `(x - mean) b = +1` for light from the right, -1 from the left."""
    mean, wanted = read.mean(0), 2.0 * right.to(read) - 1
    centered = read - mean
    # Dual form: as many equations as public faces, fewer than values of an embedding.
    gram = centered @ centered.T
    weight = torch.linalg.solve(gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram)).to(gram), wanted)
    return mean, centered.T @ weight


def main(
    *,
    data: str,
    n: tuple[int, ...] = (16, 64),
    batches: int = 3,
    first: int = 3000,
    epochs: Annotated[tuple[int, ...], "of training on public faces"] = (0, 10),
) -> None:
    images, persons, right = lit(data)
    public = persons >= PRIVATE
    known = Batch(images[public], persons[public] - PRIVATE)
    classes = int(known.labels.max()) + 1
    for rounds, seed in product(epochs, range(first, first + batches)):
        with frozen_randomness(seed):
            layers = networks.small_vgg((1, 32, 32), classes, blocks=2, hidden=HIDDEN)
        model = nn.Sequential(Normalize(0.5, 0.5), *layers[1:])
        if rounds:
            fit(model, known, epochs=rounds, size=64, seed=seed, key=f"faces/{rounds}/{seed}")
        head = next(i for i, layer in enumerate(model) if isinstance(layer, nn.Linear))
        with torch.no_grad():
            read = torch.cat([model[:head](part) for part in images.split(64)]).double()
        mean, weight = classifier(read[public], right[public])
        for size in n:
            places = (~public).nonzero()[:, 0]
            chosen = places[torch.randperm(len(places), generator=generator(seed, "batch"))[:size]]
            seen, clock = record(model, Batch(images[chosen], persons[chosen])), Clock()
            with clocked(clock):
                found = attack(seen, CocktailParty())
            rows, true = found.inputs.double(), read[chosen]
            alike = F.normalize(rows, dim=1) @ F.normalize(true, dim=1).T
            row, whose = linear_sum_assignment(alike, maximize=True)
            said, sure = ((x - mean) @ weight > 0 for x in (rows[row], true))
            truth = right[chosen]
            share = float(truth.double().mean())
            facts = {
                "data": Path(data).stem,
                "n": size,
                "seed": seed,
                "network": "vgg-2",
                "epochs": rounds,
                "attribute": "light from the right",
                "accuracy": float((said == truth[whose]).double().sum()) / size,
                "accuracy_true_embeddings": float((sure == truth).double().mean()),
                "more_frequent": max(share, 1 - share),
                "embedding_cosine": float(alike[row, whose].mean()),
                "public": int(public.sum()),
                "cpu_s": clock.cpu,
            }
            keep("cpa/attributes", f"n {size}, {rounds} epochs", "accuracy", facts)


if __name__ == "__main__":
    command(main)
