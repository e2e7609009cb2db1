"""Whether guesses explain an update without labels or the loss: true ones do, others do not."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.network import AttackedRound, vouch_unlabeled
from seepage.federation.clients import FedSGD
from seepage.federation.types import Knowledge, Round, Update


def seen(inputs: Tensor) -> AttackedRound:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))
    # A loss that the attacker does not know: of tags, each with a weight.
    loss = (torch.tensor([1.0, 3.0, 0.5]) * F.softplus(model(inputs))).sum()
    gradient = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )
    known = Knowledge(model=model, client=FedSGD(), input_shape=(1, 4, 4), num_classes=3, value_range=(0.0, 1.0))
    params = {name: p.detach() for name, p in model.named_parameters()}
    return AttackedRound(known, Round(0, params, Update(gradient), batch_size=len(inputs)))


def test_the_private_examples_explain_an_update_under_a_loss_that_nobody_stated() -> None:
    inputs = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    found = vouch_unlabeled(seen(inputs), inputs)
    assert found is not None
    assert found < 1e-3


def test_other_examples_and_mixtures_do_not() -> None:
    draw = torch.Generator().manual_seed(1)
    inputs, others = torch.rand(2, 4, 1, 4, 4, generator=draw)
    mixed = torch.einsum("ij,jchw->ichw", torch.eye(4) + 0.2 * torch.rand(4, 4, generator=draw), inputs)
    for guess in (others, mixed, inputs[:2]):
        found = vouch_unlabeled(seen(inputs), guess)
        assert found is not None
        assert found > 0.02


def test_nothing_is_said_of_an_update_with_few_numbers_for_each_slope() -> None:
    inputs = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    assert vouch_unlabeled(seen(inputs), inputs) is None
