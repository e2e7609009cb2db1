"""Feature inversion: the gradient of its objective, and images from the embeddings of an invertible network."""

import json
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal
from torch import nn

from seepage import Batch, attack, record
from seepage.attacks.base import Checkpoint
from seepage.attacks.cpa.cocktail_party import CocktailParty
from seepage.attacks.cpa.feature_distance import Embedding
from seepage.attacks.cpa.feature_inversion import FeatureInversion, cpa_fia, in_order
from seepage.base.nn import state_of
from seepage.federation.data import load
from seepage.federation.models import fc2
from seepage.measure.metrics.align import align
from seepage.measure.metrics.image import psnr


def photographs(n: int) -> Batch:
    data = load("photos")
    batch = data.batch(torch.randperm(len(data), generator=torch.Generator().manual_seed(1))[:n])
    return Batch(nn.functional.avg_pool2d(batch.inputs, 2), batch.labels)


def network() -> nn.Sequential:
    """Wider than its input, so that an image can be read back from its embedding."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 256, 32),
            nn.ReLU(),
            nn.Linear(32, 13),
        )


@pytest.mark.slow
@pytest.mark.parametrize("matching", [0.0, 0.1])
def test_images_come_back_from_their_embeddings(matching: float) -> None:
    batch, net = photographs(2), network()  # of four, which unmixing is found depends on the processor's rounding
    found = attack(record(net, batch), FeatureInversion(steps=200, lr=0.2, tv=0.001, matching=matching))
    grey = psnr(torch.full_like(batch.inputs, 0.5), batch.inputs).mean()
    matched = align(found.inputs, batch.inputs)
    assert psnr(matched.guesses, batch.inputs).mean() > grey + 5
    assert found.objective.max() < 0.05
    assert found.history[-1][1] < found.history[0][1]


def test_the_embedding_is_what_the_layer_reads() -> None:
    net, batch = network(), photographs(3)
    embedding = Embedding(net, "3", *state_of(net))
    torch.testing.assert_close(embedding(batch.inputs), net[:3](batch.inputs))
    assert not net[3]._forward_pre_hooks


def test_a_layer_that_reads_the_input_is_refused() -> None:
    with refusal("no_embedding"):
        attack(record(fc2((3, 16, 16), 13), photographs(2)), cpa_fia(steps=1))


@pytest.mark.slow
def test_matching_the_gradient_too_brings_the_images_closer() -> None:
    batch, net = photographs(2), network()  # of four, which unmixing is found depends on the processor's rounding
    seen = record(net, batch)
    decibels = {}
    for matching in (0.0, 1.0):
        found = attack(seen, cpa_fia(steps=200, matching=matching))
        decibels[matching] = psnr(align(found.inputs, batch.inputs).guesses, batch.inputs).mean()
    assert decibels[1.0] > decibels[0.0]


def test_equation_12_has_the_authors_weights() -> None:
    """Written out: mean over images of 1 - cos(embeddings), plus the whole 1 - cos(gradients), whatever the batch."""
    batch, net = photographs(3), network()
    batch = Batch(batch.inputs, torch.ones_like(batch.labels))  # one label, so that no order of labels matters
    seen = record(net, batch)
    still = {"steps": 1, "lr": 1e-9, "tv": 0.0}
    alone, both = (attack(seen, FeatureInversion(**still, matching=matching)) for matching in (0.0, 1.0))
    torch.testing.assert_close(alone.inputs, both.inputs)  # where the search started
    slopes = [
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
        for loss in (nn.functional.cross_entropy(net(x), batch.labels) for x in (both.inputs, batch.inputs))
    ]
    gradients = 1 - torch.cosine_similarity(*slopes, dim=0)
    assert alone.history[0][1] == pytest.approx(float(alone.objective.mean()), abs=1e-5)
    assert both.history[0][1] - alone.history[0][1] == pytest.approx(float(gradients), abs=1e-4)


@given(
    batch=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    found=st.lists(st.integers(0, 4), max_size=8),
)
def test_labels_are_put_in_the_embeddings_order(batch: list[int], found: list[int]) -> None:
    found = found[: len(batch)]
    labels = in_order(torch.tensor(found, dtype=torch.int64), torch.tensor(batch))
    assert labels.tolist()[: len(found)] == found
    if not Counter(found) - Counter(batch):
        assert sorted(labels.tolist()) == sorted(batch)


def test_the_preset_names_its_source() -> None:
    assert cpa_fia(steps=5, layer="3").source == CocktailParty(layer="3")
    assert cpa_fia(mode="published").source.mode == "published"
    assert cpa_fia().steps == 25_000


@dataclass
class Kept:
    """Progress that keeps its last checkpoint and presses Ctrl-C once `after` of them are kept."""

    after: int
    last: Checkpoint | None = None
    stages: list[str] = field(default_factory=list)

    def report(self, done: int, total: int, objective: float) -> None:
        pass

    def load(self) -> Checkpoint | None:
        return self.last

    def save(self, checkpoint: Checkpoint) -> None:
        json.dumps(checkpoint.facts, allow_nan=False)
        self.last = checkpoint
        self.stages.append(checkpoint.facts["stage"])
        if len(self.stages) == self.after:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 99, 101, 102])
def test_stopped_in_either_stage_it_goes_on_to_the_same_bits(after: int) -> None:
    fia = FeatureInversion(source=CocktailParty(mode="published", steps=100, lr=1e-2), steps=30, matching=0.1)
    seen = record(network(), photographs(4))
    whole = fia(seen, seed=0)
    kept = Kept(after)
    try:
        status = fia(seen, seed=0, progress=kept).status
    except KeyboardInterrupt:
        status = "interrupted"
    assert status == "interrupted"
    assert kept.stages[-1] == ("embeddings" if after <= 100 else "images")
    again = fia(seen, seed=0, progress=kept)
    assert torch.equal(again.inputs, whole.inputs)
    assert again.history == whole.history
    assert again.notes == whole.notes
    # What was found before the interruption is not looked for again.
    assert kept.stages.count("embeddings") == 100
