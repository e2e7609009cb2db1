"""Which tokens stood together, by rows of a table whose texts are summed: planted texts, and where nothing is said."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.text.bags import Bags, bags_of
from seepage.base.nn import try_inputs
from seepage.federation.clients import FedSGD
from seepage.federation.types import Knowledge, Round, Update

WORDS, WIDTH, LENGTH = 400, 24, 20


class Summed(nn.Module):
    def __init__(self, classes: int, *, bends: bool = False) -> None:
        super().__init__()
        self.words, self.head, self.bends = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, classes), bends

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.words(ids)
        logits: Tensor = self.head((rows.tanh() if self.bends else rows).mean(1))
        return logits


def read(count: int, classes: int, seed: int, *, bends: bool = False) -> tuple[Bags | None, Tensor]:
    torch.manual_seed(seed)
    model = Summed(classes, bends=bends)
    ids = (WORDS ** torch.rand(count, LENGTH)).long().clamp(0, WORDS - 1)
    try_inputs(model, (LENGTH,))
    loss = F.cross_entropy(model(ids), torch.randint(classes, (count,)))
    found = torch.autograd.grad(loss, list(model.parameters()))
    params = {name: p.detach() for name, p in model.named_parameters()}
    known = Knowledge(model=model, client=FedSGD(), input_shape=(LENGTH,), num_classes=classes, value_range=(0.0, 1.0))
    return bags_of(known, Round(0, params, Update(dict(zip(params, found, strict=True))), batch_size=count)), ids


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("count", "classes"), [(2, 4), (4, 12), (8, 20)])
def test_whole_texts_are_told_apart_with_their_counts(count: int, classes: int, seed: int) -> None:
    found, ids = read(count, classes, seed)
    assert found is not None
    texts = [dict(zip(*(part.tolist() for part in row.unique(return_counts=True)), strict=True)) for row in ids]
    for text in found.texts:
        (own,) = [one for one in texts if set(one) == {token for token, _ in text}]
        assert all(abs(many - own[token] / min(own.values())) < 0.1 for token, many in text)


@pytest.mark.parametrize("seed", range(10))
def test_of_more_texts_than_directions_no_token_is_put_into_a_wrong_one(seed: int) -> None:
    for count, classes in ((4, 4), (8, 4), (6, 3), (4, 2)):
        found, ids = read(count, classes, seed)
        for text in () if found is None else found.texts:
            assert any({token for token, _ in text} <= set(row.tolist()) for row in ids)


def test_a_network_that_bends_each_word_is_no_sum() -> None:
    assert read(2, 4, 0, bends=True)[0] is None
