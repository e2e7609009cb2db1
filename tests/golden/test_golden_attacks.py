"""One number per attack, to notice when an attack gets better or worse without meaning to.

The update carries a little noise, so that the noise and the attack's objective set the number and not rounding: float32
and float64 agree on all of them to 0.1 dB. The numbers stand in `tests/attacks/NAME.toml`, under `[golden]`. To make
one again, run

    python tests/golden/test_golden_attacks.py NAME
"""

import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import seepage.federation.data
from seepage import ATTACKS, GaussianNoise, Transcript, attack, build, record, score
from seepage.base.nn import next_tokens, state_of
from seepage.base.registry import Spec
from seepage.federation.clients import FedAvg, FedSGD
from seepage.federation.defenses.quantize import Quantize
from seepage.federation.transcript.designs import RandomDraws
from seepage.federation.transcript.vertical import IndexedVictim
from seepage.federation.types import Batch, Knowledge
from seepage.measure.metrics.text import score_text, score_token_set

DATA = Path(__file__).parents[1] / "attacks"
GELU = Spec("convnet", {"width": 8, "activation": "gelu"})
NOISE = GaussianNoise(sigma=1e-3)


def digits(count: int) -> Batch:
    data = seepage.federation.data.load("digits", size=8)
    return data.batch(data.private[:count])


def one(model: Spec) -> tuple[Transcript, Batch]:
    """One digit of 8 x 8 pixels behind Gaussian noise."""
    batch = digits(1)
    return record(build(model, (1, 8, 8), 10), batch, defense=NOISE), batch


def faint(model: Spec) -> tuple[Transcript, Batch]:
    """Two digits behind noise that leaves the head's equations solvable."""
    batch = digits(2)
    return record(build(model, (1, 8, 8), 10), batch, defense=GaussianNoise(sigma=1e-5)), batch


def steps(model: Spec) -> tuple[Transcript, Batch]:
    """One digit behind three local steps and a little noise."""
    batch, client = digits(1), FedAvg(lr=0.01, steps=3, batch_size=1)
    return record(build(model, (1, 8, 8), 10), batch, client=client, defense=GaussianNoise(sigma=1e-5)), batch


def photographs(model: Spec) -> tuple[Transcript, Batch]:
    """Two tiles of photographs, 64 x 64 pixels."""
    data = seepage.federation.data.load("photos", size=64)
    batch = data.batch(data.private[:2])
    return record(build(model, (3, 64, 64), 13), batch), batch


def own_images(model: Spec, start: Callable[[Spec], tuple[Transcript, Batch]] = one) -> tuple[Transcript, Batch]:
    """The same, and 500 other digits that the attacker has."""
    data = seepage.federation.data.load("digits", size=8)
    seen, batch = start(model)
    images = data.batch(data.train[:500]).inputs
    return replace(seen, knowledge=replace(seen.knowledge, auxiliary=images, known=frozenset({"auxiliary"}))), batch


def faint_images(model: Spec) -> tuple[Transcript, Batch]:
    """Two digits behind noise that leaves the head's equations solvable, and 500 that the attacker has."""
    return own_images(model, faint)


def average(model: Spec) -> tuple[Transcript, Batch]:
    """Four rounds of the same digit: half the noise, so about 6 dB more than of one round, as draws fall."""
    drawn = digits(1)
    batch = Batch(drawn.inputs, drawn.labels, torch.arange(1))
    return record(build(model, (1, 8, 8), 10), [batch] * 4, defense=NOISE, known=["indices"]), batch


def text(model: Spec) -> tuple[Transcript, Batch]:
    """Four sequences of 8 tokens behind noise that hides some of them."""
    ids = torch.randint(60, (4, 8), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids, next_tokens(ids))
    return record(build(model, (8,), 60), batch, defense=GaussianNoise(sigma=1e-6)), batch


def few_bits(model: Spec) -> tuple[Transcript, Batch]:
    """24 texts, five local steps, in 3 bits: rows that moved little are rounded to zeros."""
    ids = torch.randint(400, (24, 8), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids, torch.arange(24) % 3)
    client = FedAvg(lr=0.1, steps=5)
    return record(build(model, (8,), 3), batch, client=client, defense=Quantize(bits=3)), batch


def rounds(model: Spec) -> tuple[Transcript, Batch]:
    """30 rounds over 12 digits, in batches of 4."""
    drawn = digits(12)
    batch = Batch(drawn.inputs, drawn.labels, torch.arange(12))
    network = build(model, (1, 8, 8), 10)
    params, buffers = state_of(network)
    knowledge = Knowledge(network, FedSGD(), (1, 8, 8), 10, known=frozenset({"indices"}))
    design, noise = RandomDraws(samples=12, batch_size=4), GaussianNoise(sigma=1e-6)
    return IndexedVictim(knowledge, params, batch, design, 30, buffers, noise).transcript(), batch


SETTINGS: dict[str, tuple[Callable[[Spec], tuple[Transcript, Batch]], Spec]] = {
    "one": (one, GELU),
    "photographs": (photographs, Spec("vit", {"patch": 32, "width": 32, "depth": 1, "heads": 2, "hidden": 32})),
    "faint": (faint, Spec("convnet", {"width": 16})),
    "steps": (steps, Spec("convnet", {"width": 16})),
    "own_images": (own_images, GELU),
    "faint_images": (faint_images, Spec("convnet", {"width": 16})),
    "average": (average, Spec("fc2", {"hidden": 32})),
    "text": (text, Spec("gpt", {"width": 64})),
    "few_bits": (few_bits, Spec("text_encoder", {"vocabulary": 400, "width": 32})),
    "rounds": (rounds, Spec("vertical", {"channels": 32, "hidden": 48})),
}
"""Where an attack is measured, and on which network unless its file names another."""


def golden(use: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((DATA / f"{use}.toml").read_text())["golden"]
    return found


def measured(use: str) -> float:
    """The PSNR in dB, a mean over examples; of text, ROUGE-1 in percent; of a set of tokens, its recall in percent."""
    entry = golden(use)
    setting, usual = SETTINGS[entry["setting"]]
    transcript, batch = setting(Spec.of(entry["model"]) if "model" in entry else usual)
    found = attack(transcript, use, options=entry.get("options", {}))
    if found.space == "token":
        return 100 * score_token_set([found], [batch], vocabulary=None)[0]["token_recall"].mean
    if entry["setting"] == "text":
        return 100 * float(score_text(found, batch).rouge_1)
    return float(score(found, batch).psnr)


@pytest.mark.full
@pytest.mark.parametrize("use", list(ATTACKS))
def test_the_number_is_still_the_same(use: str) -> None:
    assert measured(use) == pytest.approx(golden(use)["psnr"], abs=golden(use).get("tolerance", 1.0))


if __name__ == "__main__":
    sys.path.append(str(DATA.parent / "helpers"))  # networks that are named here
    for name in sys.argv[1:] or list(ATTACKS):
        print(f"{name}: {measured(name):.1f} dB, and {golden(name)['psnr']} in its file")
