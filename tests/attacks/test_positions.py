"""Which token stood at which place: planted texts behind dropout, one step and several, of SGD and AdamW; and nulls."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.text.positions import Places, places_of
from seepage.base.nn import try_inputs
from seepage.federation.clients import FedSGD, gradient_behind
from seepage.federation.measured import Step
from seepage.federation.types import Knowledge, Round, Update

WORDS, WIDTH, PLACES = 300, 48, 16


class Reader(nn.Module):
    """Word and place added, dropout behind them, then a recurrent layer."""

    def __init__(self, *, added: str = "sum", padding: int | None = None) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, WIDTH, padding_idx=padding), nn.Embedding(PLACES, WIDTH)
        self.norm, self.body = nn.LayerNorm(WIDTH), nn.GRU(WIDTH, 32, batch_first=True)
        self.head, self.added = nn.Linear(32, 4), added

    def forward(self, ids: Tensor) -> Tensor:
        word, place = self.word(ids), self.place(torch.arange(ids.shape[1]))
        both = {"sum": word + place, "scaled": word * WIDTH**0.5 + place, "product": word * (1 + place)}[self.added]
        read, _ = self.body(F.dropout(self.norm(both), 0.1, self.training))
        logits: Tensor = self.head(read.mean(1))
        return logits


def texts(count: int, seed: int, *, repeated: bool = False) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    if repeated:
        return torch.randint(1, 6, (count, PLACES), generator=draw)
    return 1 + torch.randperm(WORDS - 1, generator=draw)[: count * PLACES].reshape(count, PLACES)


def placed(
    model: nn.Module,
    ids: Tensor,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    *,
    lr: float = 0.1,
    step: Step | None = None,
    steps: int = 1,
) -> Places | None:
    """What is read of the texts, of `steps` batches, by weights before and after."""
    torch.manual_seed(len(ids))
    try_inputs(model, (PLACES,))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    taken = optimizer(model.parameters(), lr=lr)
    for batch in ids.chunk(steps):
        taken.zero_grad()
        F.cross_entropy(model.train()(batch), torch.arange(len(batch)) % 4).backward()
        taken.step()
    moved = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    if step is not None:
        update, _ = gradient_behind(before, Update(moved, "delta"), step, {})
    elif steps > 1:
        update = Update(moved, "delta")
    else:
        update = Update({name: -tensor / lr for name, tensor in moved.items()}, rate=lr)
    known = Knowledge(model=model, client=FedSGD(), input_shape=(PLACES,), num_classes=4, value_range=(0.0, 1.0))
    return places_of(known, Round(0, before, update, batch_size=len(ids)))


def right(found: Places, ids: Tensor) -> int:
    """Places whose tokens are all named; none may hold a token that no text had there."""
    there = [set(ids[:, place].tolist()) for place in range(PLACES)]
    assert all(set(one) <= held for one, held in zip(found.tokens, there, strict=True))
    return sum(set(one) == held for one, held in zip(found.tokens, there, strict=True))


@pytest.mark.parametrize("added", ["sum", "scaled"])
@pytest.mark.parametrize("repeated", [False, True])
def test_one_text_is_read_in_order_behind_dropout(added: str, repeated: bool) -> None:
    torch.manual_seed(0)
    ids = texts(1, 3, repeated=repeated)
    found = placed(Reader(added=added), ids)
    assert found is not None
    assert found.text is not None
    assert torch.equal(found.text, ids)


@pytest.mark.parametrize(
    ("optimizer", "step"),
    [(torch.optim.Adam, Step.adam(lr=1e-3)), (torch.optim.RMSprop, Step.rmsprop(lr=1e-3))],
)
def test_one_text_is_read_in_order_behind_an_adaptive_step(
    optimizer: Callable[..., torch.optim.Optimizer], step: Step
) -> None:
    torch.manual_seed(0)
    ids = texts(1, 4)
    found = placed(Reader(), ids, optimizer, lr=1e-3, step=step)
    assert found is not None
    assert found.text is not None
    assert torch.equal(found.text, ids)


def test_padding_stands_where_no_row_of_words_moved() -> None:
    torch.manual_seed(0)
    ids = texts(1, 5)
    ids[:, 11:] = 0
    found = placed(Reader(padding=0), ids)
    assert found is not None
    assert found.text is not None
    assert torch.equal(found.text, ids)


def test_places_that_are_masked_are_in_no_sum() -> None:
    class Masked(Reader):
        def forward(self, ids: Tensor) -> Tensor:
            both = self.norm(self.word(ids) + self.place(torch.arange(ids.shape[1])))
            pooled = (both.tanh() * (ids > 0)[..., None]).sum(1, keepdim=True)
            logits: Tensor = self.head(self.body(pooled)[0][:, 0])
            return logits

    for seed in range(3):
        torch.manual_seed(seed)
        ids = texts(1, seed, repeated=seed == 0)
        ids[:, 9:] = 0
        found = placed(Masked(), ids)
        assert found is not None
        assert [set(one) for one in found.tokens] == [{int(token)} for token in ids[0, :9]] + [set()] * 7


def test_of_two_texts_most_places_hold_both_tokens_and_none_a_wrong_one() -> None:
    whole = 0
    for seed in range(4):
        torch.manual_seed(seed)
        ids = texts(2, seed)
        found = placed(Reader(), ids)
        assert found is not None
        assert found.text is None
        whole += right(found, ids)
    assert whole >= 3 * 4 * PLACES / 4


def test_several_steps_of_sgd_add_up_as_one_does() -> None:
    torch.manual_seed(0)
    ids = texts(2, 6)
    found = placed(Reader(), ids, steps=2)
    assert found is not None
    assert right(found, ids) >= PLACES / 2


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_no_place_is_given_a_token_that_it_did_not_hold(count: int, seed: int) -> None:
    torch.manual_seed(seed)
    ids = texts(count, seed, repeated=seed % 2 == 0)
    for optimizer, lr, step in ((torch.optim.SGD, 0.1, None), (torch.optim.Adam, 1e-3, Step.adam(lr=1e-3))):
        found = placed(Reader(), ids, optimizer, lr=lr, step=step)
        assert found is not None
        right(found, ids)


def test_rows_that_have_nothing_to_do_with_one_another_do_not_add_up() -> None:
    model, draw = Reader(), torch.Generator().manual_seed(0)
    try_inputs(model, (PLACES,))
    before = {name: p.detach() for name, p in model.named_parameters()}
    noise = {name: torch.randn(p.shape, generator=draw) for name, p in before.items()}
    noise["word.weight"][20:] = 0
    known = Knowledge(model=model, client=FedSGD(), input_shape=(PLACES,), num_classes=4, value_range=(0.0, 1.0))
    found = places_of(known, Round(0, before, Update(noise), batch_size=1))
    assert found is not None
    assert not any(found.tokens)


def test_a_table_that_is_no_summand_is_none_of_places() -> None:
    torch.manual_seed(0)
    assert placed(Reader(added="product"), texts(1, 7)) is None
