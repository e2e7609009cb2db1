"""One number per attack, to notice when an attack gets better or worse without meaning to.

The update carries a little noise, so that the noise and the attack's objective set the number and not rounding: float32
and float64 agree on all of them to 0.1 dB. To make a number again, run

    python -c "
    import seepage
    from seepage import *
    data = seepage.data.load('digits', size=8)
    batch = data.batch(data.private[:1])
    model = build(Architecture('convnet', {'width': 8, 'activation': 'gelu'}), (1, 8, 8), 10)
    transcript = record(model, batch, defense=GaussianNoise(sigma=1e-3))
    print(score(attack(transcript, 'inverting_gradients', options={'steps': 400}), batch).psnr)"

with the attack, options and network of the line in `GOLDEN`; attacks on rounds over one data set have their own below.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

import seepage.data
from seepage import ATTACKS, Architecture, GaussianNoise, attack, build, record, score
from seepage.clients import FedSGD
from seepage.core.nn import state_of
from seepage.transcript.designs import RandomDraws
from seepage.transcript.vertical import IndexedVictim
from seepage.types import Batch, Knowledge

GELU = Architecture("convnet", {"width": 8, "activation": "gelu"})
FC2 = Architecture("fc2", {"hidden": 32})

GOLDEN: dict[str, tuple[Architecture, dict[str, Any], float]] = {
    "linear": (FC2, {}, 57.3),
    "rgap": (FC2, {}, 57.3),
    "spear": (FC2, {}, 57.3),
    "cocktail_party": (FC2, {}, 57.3),
    "cpa_fia": (Architecture("convnet", {"width": 8}), {"steps": 400, "tv": 0.01, "matching": 1.0}, 28.6),
    "idlg": (GELU, {"steps": 20, "line_search": True}, 46.0),
    "dlg": (GELU, {"steps": 20, "line_search": True}, 46.1),
    "sapag": (GELU, {"steps": 400}, 37.2),
    "inverting_gradients": (GELU, {"steps": 400}, 45.9),
    "cpl": (GELU, {"steps": 20, "line_search": True, "label_weight": 1e-4}, 46.0),
    "bayes": (GELU, {"steps": 400, "sigma": 1e-3, "tv": 100.0}, 45.9),
    "fedleak": (GELU, {"steps": 200, "lr": 0.02, "schedule": "cosine"}, 35.4),
    "fedleak_released": (GELU, {"steps": 150, "width": 8}, 37.9),
    "grad_inversion": (GELU, {"steps": 200, "match": 1.0, "batch_norm": 0.0, "labels": "auto", "restarts": 2}, 44.0),
}
"""Attack: network, options, PSNR in dB."""


def test_every_attack_has_a_number() -> None:
    assert {*GOLDEN, *OVER_ROUNDS, *WITH_IMAGES, "averaged"} == set(ATTACKS)


@pytest.mark.slow
@pytest.mark.parametrize("use", GOLDEN)
def test_the_number_is_still_the_same(use: str) -> None:
    architecture, options, psnr = GOLDEN[use]
    data = seepage.data.load("digits", size=8)
    batch = data.batch(data.private[:1])
    transcript = record(build(architecture, (1, 8, 8), 10), batch, defense=GaussianNoise(sigma=1e-3))
    found = score(attack(transcript, use, options=options), batch)
    assert found.psnr == pytest.approx(psnr, abs=1.0)


def test_the_number_of_an_average_is_still_the_same() -> None:
    """Four rounds of the same digit: half the noise, so about 6 dB more than of one round, as draws fall."""
    data = seepage.data.load("digits", size=8)
    drawn = data.batch(data.private[:1])
    batch = Batch(drawn.inputs, drawn.labels, torch.arange(1))
    transcript = record(build(FC2, (1, 8, 8), 10), [batch] * 4, defense=GaussianNoise(sigma=1e-3), told=["indices"])
    found = score(attack(transcript, "averaged", options={"attack": "linear"}), batch)
    assert found.psnr == pytest.approx(66.7, abs=1.0)


WITH_IMAGES: dict[str, tuple[dict[str, Any], float]] = {
    "rogs": ({"steps": 150, "scale": 2, "width": 8, "training": 100}, 20.3),
    "gias": ({"steps": 300, "latent_steps": 100, "latent": 16, "width": 8, "training": 200}, 46.8),
    "ggl": ({"steps": 60, "population": 20, "reach": 3.0, "latent": 16, "width": 8, "training": 200}, 24.0),
}
"""Attack with 500 other digits of 8 x 8 pixels at hand: options, PSNR in dB."""


@pytest.mark.slow
@pytest.mark.parametrize("use", WITH_IMAGES)
def test_the_number_with_images_of_ones_own_is_still_the_same(use: str) -> None:
    options, psnr = WITH_IMAGES[use]
    data = seepage.data.load("digits", size=8)
    batch = data.batch(data.private[:1])
    seen = record(build(GELU, (1, 8, 8), 10), batch, defense=GaussianNoise(sigma=1e-3))
    own = replace(seen.knowledge, auxiliary=data.batch(data.train[:500]).inputs, told=frozenset({"auxiliary"}))
    found = score(attack(replace(seen, knowledge=own), use, options=options), batch)
    assert found.psnr == pytest.approx(psnr, abs=1.5)


OVER_ROUNDS: dict[str, tuple[dict[str, Any], float]] = {
    "cafe": ({}, 65.2),
    "cafe_published": ({"iterations": (300, 300, 300), "alpha": 0.0}, 13.4),
}
"""Attack on 30 rounds over 12 digits of 8 x 8 pixels, batches of 4: options, mean PSNR in dB."""


@pytest.mark.slow
@pytest.mark.parametrize("use", OVER_ROUNDS)
def test_the_number_over_rounds_is_still_the_same(use: str) -> None:
    options, psnr = OVER_ROUNDS[use]
    data = seepage.data.load("digits", size=8)
    drawn = data.batch(data.private[:12])
    batch = Batch(drawn.inputs, drawn.labels, torch.arange(12))
    model = build(Architecture("vertical", {"channels": 32, "hidden": 48}), (1, 8, 8), 10)
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), (1, 8, 8), 10, told=frozenset({"indices"}))
    design, noise = RandomDraws(samples=12, batch_size=4), GaussianNoise(sigma=1e-6)
    transcript = IndexedVictim(knowledge, params, batch, design, 30, buffers, noise).transcript()
    found = score(attack(transcript, use, options=options), batch)
    assert found.psnr == pytest.approx(psnr, abs=1.0)
