"""Inverting Gradients takes the steps of its authors' code, whose constants are for normalized images.

`inverting_gradients_authors.json` was recorded once by that code on the planted case below, which is made of sines so
that any program can write it down.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from seepage import Batch, GradientMatching, attack, record
from seepage.attacks import grad_inversion, inverting_gradients
from seepage.attacks.search.parameters import Pixels, SearchSpace
from seepage.attacks.search.priors import SquaredNorm
from seepage.federation.clients import FedSGD
from seepage.federation.models import Normalize
from seepage.federation.types import Knowledge, Reconstruction

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("inverting_gradients_authors.json").read_text())


def wave(*shape: int, scale: float, phase: float) -> Tensor:
    places = torch.arange(math.prod(shape), dtype=torch.float64)
    return scale * torch.sin(1.7 * places**1.1 + phase).reshape(shape)


START = wave(2, 3, 4, 4, scale=1.0, phase=5.0)
"""In units of normalized images."""


@dataclass(frozen=True, kw_only=True)
class Planted(Pixels):
    """Normalized pixels that start where the authors' code was started."""

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        return replace(super().start(batch_size, knowledge, like, generator), unknowns=[START.clone()])


def victim() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 3)).double()
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_(wave(*parameter.shape, scale=0.6, phase=number))
    return nn.Sequential(Normalize(0.5, 0.25), *net)


def found(options: dict[str, Any]) -> Reconstruction:
    private = Batch(0.5 + wave(2, 3, 4, 4, scale=0.4, phase=9.0), torch.tensor([0, 2]))
    seen = record(victim(), private, client=FedSGD(mode="eval"), known=["labels"])
    preset = inverting_gradients(
        steps=options["max_iterations"], tv=options["total_variation"], signed=options["signed"], labels="given"
    )
    assert isinstance(preset, GradientMatching)
    started = replace(preset, parameters=Planted(mean=0.5, std=0.25), gradients="exact")
    return attack(seen, started)


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: f"{case['signed']}-{case['total_variation']}")
def test_every_step_is_the_authors(case: dict[str, Any]) -> None:
    result = found(case)
    losses: Sequence[float] = [value for _, value in result.history]
    assert losses == pytest.approx(case["losses"], rel=1e-8)
    # Adam's first moves divide by the root of a square of the gradient: eight digits are what was written down.
    lowest = (result.inputs.flatten()[:12] - 0.5) / 0.25
    assert lowest.tolist() == pytest.approx(case["lowest"], rel=1e-6, abs=1e-7)


def test_the_norm_of_grad_inversion_is_that_of_the_package_its_weight_is_from() -> None:
    norm = next(prior for prior in grad_inversion(l2=1e-6).priors if isinstance(prior, SquaredNorm))
    inputs = 0.5 + 0.25 * START
    assert float(norm(inputs[None])[0]) == pytest.approx(RECORDED["norm"], rel=1e-9)
