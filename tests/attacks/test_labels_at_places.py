"""Labels at each place of a text, by the last bias: classes, and how many of each."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage import Batch, Update, observe
from seepage.attacks.exposure.analysis import UpdateAnalysis
from seepage.attacks.exposure.labels import LabelLeak
from seepage.base.nn import NO_TARGET
from seepage.federation.clients import gradient_behind
from seepage.federation.measured import Step

WORDS, PLACES = 60, 10


class Tagger(nn.Module):
    """A class at each place: `[n, classes, places]`."""

    def __init__(self, classes: int, seed: int, sharp: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.body = nn.Embedding(WORDS, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, classes)
        with torch.no_grad():
            self.head.weight.mul_(sharp)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.words(ids))[0]).transpose(1, 2)


def drawn(classes: int, n: int, seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    likely = 1 / torch.arange(1, WORDS + 1)
    ids = torch.multinomial(likely, n * PLACES, replacement=True, generator=draw).view(n, PLACES)
    return Batch(ids, torch.randint(classes, ids.shape, generator=draw))


def leak_of(model: nn.Module, batch: Batch, *, adam: bool = False, size: int | None = None) -> LabelLeak:
    own = copy.deepcopy(model)
    F.cross_entropy(own(batch.inputs), batch.labels).backward()
    optimizer = torch.optim.Adam(own.parameters(), 1e-3) if adam else torch.optim.SGD(own.parameters(), 0.1)
    optimizer.step()
    before = {name: p.detach() for name, p in model.named_parameters()}
    change = Update.from_states(before, {name: p.detach() for name, p in own.named_parameters()})
    how = {"batch_size": size or len(batch)}
    if adam:
        seen = observe(model, gradient_behind(before, change, Step.adam(1e-3), {})[0], (PLACES,), **how)
    else:
        seen = observe(model, change, (PLACES,), lr=0.1, **how)
    found = UpdateAnalysis(seen).labels
    assert found is not None
    return found


def counted(labels: Tensor) -> Counter[int]:
    return Counter(labels[labels >= 0].tolist())


@pytest.mark.parametrize("seed", range(3))
def test_tags_of_one_text_are_counted(seed: int) -> None:
    """Nine classes seldom prove a number of places; the stated size gives it, and the words that were looked up p."""
    batch = drawn(9, 1, seed)
    found = leak_of(Tagger(9, seed), batch)
    assert found.counts is not None
    assert +Counter(dict(enumerate(found.counts))) == counted(batch.labels)
    assert found.places in (None, PLACES)  # six classes may prove it
    for tag, share in enumerate(found.shares or ()):
        assert share <= counted(batch.labels)[tag] / PLACES + 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_tags_that_come_near_no_whole_numbers_are_not_counted(seed: int) -> None:
    """A head whose outputs differ from place to place: its mean on other texts says nothing of this one's."""
    found = leak_of(Tagger(9, seed, sharp=20.0), drawn(9, 8, seed))
    assert found.counts is None
    assert found.shares is not None


@pytest.mark.parametrize("seed", range(3))
def test_more_labels_than_examples_may_rise_behind_adam(seed: int) -> None:
    """A text has a label at each place; so many biases may rise, and no more."""
    batch = drawn(WORDS, 1, seed)
    labels = torch.cat([batch.inputs[:, 1:], torch.full_like(batch.inputs[:, :1], NO_TARGET)], 1)
    found = leak_of(Tagger(WORDS, seed), Batch(batch.inputs, labels), adam=True)
    assert found.believed
    assert set(found.present) == set(counted(labels))
    assert found.counts is None
