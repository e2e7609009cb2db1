"""The Cocktail Party Attack's items that are no audit."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seepage.attacks import Attack, CocktailParty
from seepage.attacks.cpa.ica import IMAGES
from seepage.audit.run import record_only
from seepage.base.progress import no_progress
from seepage.federation.models import build
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.transcript.truth import open_truth
from seepage.federation.types import Architecture, Reconstruction, Transcript
from seepage.papers.special.networks import ImageNetUnits, small_vgg
from seepage.papers.special.party import cosines, embeddings, without

NETWORK = {"use": "seepage.papers.special.networks:small_vgg", "hidden": 12, "width": 2}
TABLES: dict[str, Any] = {
    "data": {"use": "photos", "size": 8},
    "model": NETWORK,
    "batch": {"size": 3, "count": 2},
    "attack": [{"use": "cocktail_party"}],
}


@pytest.mark.parametrize("term", ["negentropy", "tv", "independence"])
def test_one_term_is_left_out_and_the_others_stay(term: Any) -> None:
    attack = without(term=term, steps=7)
    assert (attack.mode, attack.steps) == ("published", 7)
    assert attack.objective == replace(IMAGES, **{term: 0.0}) != IMAGES
    assert without(steps=7) == CocktailParty(mode="published", steps=7, objective=IMAGES)


@pytest.mark.parametrize(("blocks", "features"), [(1, 4 * 8 * 8), (2, 8 * 4 * 4), (3, 16 * 2 * 2)])
def test_each_block_halves_the_sides_and_doubles_the_channels(blocks: int, features: int) -> None:
    model = small_vgg((3, 16, 16), 5, blocks=blocks, hidden=7, width=4)
    linear = [module for module in model if isinstance(module, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(features, 7), (7, 5)]
    assert model(torch.rand(2, 3, 16, 16)).shape == (2, 5)


def test_imagenet_units_are_torchvisions() -> None:
    image = torch.tensor([0.485, 0.456 + 0.224, 0.406 - 2 * 0.225]).reshape(1, 3, 1, 1).expand(1, 3, 2, 4)
    expected = torch.tensor([0.0, 1.0, -2.0]).reshape(1, 3, 1, 1).expand(1, 3, 2, 4)
    assert torch.allclose(ImageNetUnits()(image), expected, atol=1e-6)


@dataclass(frozen=True)
class Planted(Attack):
    """Returns what it was made with."""

    found: torch.Tensor

    def run(self, transcript: Transcript, *, seed: int, progress: Any) -> Reconstruction:
        return Reconstruction(self.found, space="feature")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return record_only({**TABLES, "batch": {"size": 3, "count": 1}}, out=tmp_path / "run")


def true_embeddings(folder: Path) -> torch.Tensor:
    """By the layers themselves, one after the other."""
    transcript, truth = open_transcript(folder / "observed", trust=True), open_truth(folder / "private")
    model = build(Architecture(NETWORK["use"], {"hidden": 12, "width": 2}), (3, 8, 8), 13)
    model.load_state_dict(transcript[0].params)
    out = truth[0].inputs
    for layer in model:
        if isinstance(layer, nn.Linear):
            break
        out = layer(out)
    return out.detach()


def test_cosines_take_the_most_alike_without_sign_and_in_any_order(recorded: Path) -> None:
    true = true_embeddings(recorded)
    places = (recorded / "observed", recorded / "private")
    assert torch.allclose(cosines(Planted(-2 * true.flip(0)), *places, seed=0), torch.ones(3))
    one = cosines(Planted(true[:1]), *places, seed=0)
    expected = [float(torch.dot(row, true[0]) / row.norm() / true[0].norm()) for row in true]
    assert one.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_embeddings_of_a_small_batch_come_back() -> None:
    wide = {**TABLES, "model": {**NETWORK, "hidden": 64, "width": 8}}
    two = {"name": "two", "batch": {"size": 2, "count": 1}}
    values = embeddings({**wide, "case": [two]}, data="", seed=0, show=no_progress)
    found = {(value.row, value.column): value for value in values}
    assert {column for _, column in found} == {0, 1}
    assert found["median", 0].facts["examples"] == 6
    assert found["median", 0].ours > 0.999
    assert found["lowest tenth", 0].ours <= found["median", 0].ours
    assert found["share from 0.99", 1].facts["batch_size"] == 2
