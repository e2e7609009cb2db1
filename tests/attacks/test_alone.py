"""Images from what a layer read of one example alone, behind dropout too; and vectors that are no image's."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage import FedAvg, FedSGD, Transcript, Update, observe
from seepage.attacks import GaussNewton
from seepage.attacks.gauss_newton.alone import AloneSearch, ReadAlone
from seepage.attacks.gauss_newton.levels import to_levels
from seepage.base.nn import frozen_randomness
from seepage.federation.types import Reconstruction
from seepage.testing import planted_inputs


class Small(nn.Module):
    """Two convolutions, a pool, dropout, a wide layer, dropout and five classes; reads `[n, H, W, C]` where asked."""

    def __init__(self, last: bool, dropped: float) -> None:
        super().__init__()
        self.last, self.dropped = last, dropped
        self.a, self.b = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.c, self.d = nn.Linear(32 * 5 * 5, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x.movedim(-1, 1) if self.last else x).relu()
        x = F.dropout(F.max_pool2d(self.b(x).relu(), 2).flatten(1), self.dropped, self.training)
        return self.d(F.dropout(self.c(x).relu(), 0.5, self.training))


def sent(labels: list[int], *, last: bool = False, dropped: float = 0.25) -> tuple[Transcript, Tensor]:
    """What a client in train mode, dropout on, sends of 8-bit pictures; and these."""
    with frozen_randomness(1):
        model = Small(last, dropped)
        x = to_levels(planted_inputs(len(labels), (1, 10, 10)))
        x = x.movedim(1, -1) if last else x
        model.train()
        F.cross_entropy(model(x), torch.tensor(labels)).backward()
    gradient = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.eval()
    return observe(model, Update(gradient), tuple(x.shape[1:]), batch_size=len(labels), client=FedSGD()), x


def off(found: Reconstruction, truth: Tensor) -> Tensor:
    """`[k]` root mean square from each guess to the nearest picture."""
    return torch.cdist(found.inputs.flatten(1), truth.flatten(1)).amin(1) / truth[0].numel() ** 0.5


@pytest.mark.parametrize("last", [False, True])
def test_pictures_behind_dropout_come_back_from_rows_of_one_example_alone(last: bool) -> None:
    transcript, truth = sent([0, 1], last=last)
    found = GaussNewton()(transcript, seed=0)
    assert found.certified is not None
    assert len(found) == 2
    assert bool((off(found, truth) < 1e-3).all())
    assert bool(found.certified.all())


def test_as_many_examples_as_classes_and_no_known_loss_leave_rows_of_one_example() -> None:
    """The head tells no features of six examples in five classes; and none where the loss is not known."""
    transcript, truth = sent([0, 1, 2, 3, 4, 0], dropped=0.0)
    found = GaussNewton(steps=20)(transcript, seed=0)
    assert found.certified is not None
    assert int(found.certified.sum()) > 0
    assert bool((off(found, truth)[found.certified] < 1e-3).all())


@pytest.mark.parametrize("null", ["mixture", "shuffled", "noise"])
def test_a_vector_of_no_image_is_not_certified(null: str) -> None:
    """Rows agree, and what they agree on is no example's: the equations do not hold of any image."""
    transcript, _ = sent([0, 1])
    seen = GaussNewton().prepare(transcript)
    assert isinstance(seen, ReadAlone)
    one, other = seen.vectors[:2]
    draw = torch.Generator().manual_seed(0)
    vector = {
        "mixture": (one + other) / 2,
        "shuffled": one.flatten()[torch.randperm(one.numel(), generator=draw)].view_as(one),
        "noise": torch.rand(one.shape, generator=draw),
    }[null]
    search = AloneSearch(replace(seen, vectors=vector[None], spread=seen.spread[:1]), 0, 600)
    for turn in range(len(seen.shares)):
        search.advance(turn)
    assert search.errors[0] > 1e-2
    assert not search.certain(0.7)[0].any()


def test_few_equations_vouch_for_nothing_however_well_they_hold() -> None:
    seen = GaussNewton().prepare(sent([0, 1])[0])
    assert isinstance(seen, ReadAlone)
    # 100 values of 8 bits: 100 log 256 < m log(1 / 2e-6) from m = 43 on, and a little more for the chance.
    assert [seen.explains(m, 1e-7, rounded=True) for m in (42, 60)] == [False, True]
    assert [seen.explains(m, 1e-7, rounded=False) for m in (100, 160)] == [False, True]
    assert not seen.explains(60, 1e-2, rounded=True)


@pytest.mark.slow
def test_a_stopped_search_goes_on_with_the_same_bits() -> None:
    seen = GaussNewton().prepare(sent([0, 1])[0])
    assert isinstance(seen, ReadAlone)
    # Vectors with errors: their images stay near, and take turns.
    noisy = seen.vectors * (1 + 1e-3 * torch.randn(seen.vectors.shape, generator=torch.Generator().manual_seed(0)))
    seen = replace(seen, vectors=noisy)
    whole, first, second = (AloneSearch(seen, 0, 60) for _ in range(3))
    for turn in range(6):
        whole.advance(turn)
    assert not whole.ended
    for turn in range(3):
        first.advance(turn)
    assert second.resume(first.checkpoint(3)) == 3
    for turn in range(3, 6):
        second.advance(turn)
    assert torch.equal(whole.x, second.x)
    assert whole.errors == second.errors


def test_rows_of_one_example_alone_outlast_local_steps() -> None:
    """Three steps of a rate of 0.1, each of all examples: what one step alone put into some rows is exact."""
    with frozen_randomness(1):
        model, x = Small(False, 0.25), to_levels(planted_inputs(4, (1, 10, 10)))
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.train().parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), torch.tensor([0, 1, 2, 0])).backward()
            optimizer.step()
    update = Update.from_states(before, model.state_dict())
    model.load_state_dict(before)
    client = FedAvg(lr=0.1, steps=3, batch_size=4)
    found = GaussNewton(steps=10)(observe(model.eval(), update, (1, 10, 10), batch_size=4, client=client), seed=0)
    assert found.certified is not None
    assert int(found.certified.sum()) > 0
    assert bool((off(found, x)[found.certified] < 1e-3).all())
