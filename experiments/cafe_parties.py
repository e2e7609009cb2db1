"""The parties of the CAFE studies: images, a fresh model; how near guesses are."""

from typing import Any

import torch
from common import Row
from torch import Tensor

import seepage.federation.data
from seepage.attacks.cafe.target_layers import true_representations
from seepage.base.nn import frozen_randomness, generator, state_of
from seepage.federation.clients import FedSGD
from seepage.federation.models.vertical import vertical
from seepage.federation.transcript.designs import Design
from seepage.federation.transcript.vertical import IndexedVictim, ServerStep
from seepage.federation.types import Batch, Knowledge


def images(path: str, samples: int, seed: int, size: int | None = None) -> Batch:
    """The first N of a seeded order of a data file's images (of its training part, where it has one), at `size`."""
    data = seepage.federation.data.load(path, size=size)
    split_by_file = torch.equal(data.train, torch.arange(len(data.train)))
    count = len(data.train) if split_by_file else len(data)
    chosen = data.batch(torch.randperm(count, generator=generator(seed, "benchmark samples"))[:samples])
    return Batch(chosen.inputs, chosen.labels)


def prepare(
    data: Batch,
    design: Design,
    rounds: int,
    *,
    seed: int = 0,
    server: ServerStep | None = None,
    model_options: dict[str, Any] | None = None,
    classes: int | None = None,
) -> IndexedVictim:
    """The parties with a fresh model."""
    shape, classes = tuple(data.inputs.shape[1:]), classes or int(data.labels.max()) + 1
    with frozen_randomness(seed):
        model = vertical(shape, classes, **(model_options or {}))
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), shape, classes, known=frozenset({"indices"}))
    return IndexedVictim(knowledge, params, data, design, rounds, buffers, None, seed, server or ServerStep())


def truth(victim: IndexedVictim) -> list[tuple[Tensor, Tensor]]:
    """The true V and H of each party."""
    parts = [
        true_representations(victim.knowledge, victim.params, victim.buffers, x, y)
        for x, y in zip(victim.data.inputs.split(100), victim.data.labels.split(100), strict=True)
    ]
    return [tuple(torch.cat(rows) for rows in zip(*one, strict=True)) for one in zip(*parts, strict=True)]  # type: ignore[misc]


def rounded(value: float, digits: int = 3) -> float:
    """A number short enough to read."""
    return float(f"{value:.{digits}g}")


def quality(guess: Tensor, true: Tensor) -> Row:
    """Mean over images of their PSNR on [0, 1], clamped, and who is exact."""
    guess = guess.clamp(0, 1)
    psnr = -10 * (guess - true).pow(2).flatten(1).mean(1).clamp(min=1e-15).log10()
    same = ((guess * 255).round() == (true * 255).round()).flatten(1).all(1)
    return {
        "psnr": rounded(float(psnr.mean()), 4),
        "psnr_median": rounded(float(psnr.median()), 4),
        "psnr_min": rounded(float(psnr.min()), 4),
        "exact": rounded(float((psnr > 40).float().mean()), 4),
        "pixel_exact": rounded(float(same.float().mean()), 4),
    }
