"""FedProx against PyTorch's own optimizer on the paper's objective, term for term."""

import pytest
import torch
from torch import nn

from seepage.base.nn import state_of
from seepage.errors import SeepageError
from seepage.federation.clients import FedAvg, FedProx
from seepage.federation.types import Batch


def trained(model: nn.Module, batch: Batch, rule: FedProx) -> dict[str, torch.Tensor]:
    """Weights after minus before, by `torch.optim.SGD` on F(w) + mu / 2 |w - w_0|^2."""
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=rule.lr, momentum=rule.momentum)
    for places in rule.batches(len(batch)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch.inputs[places]), batch.labels[places])
        far = sum((p - s).square().sum() for p, s in zip(model.parameters(), start, strict=True))
        (loss + rule.mu / 2 * far).backward()
        optimizer.step()
    return {name: p.detach() - s for (name, p), s in zip(model.named_parameters(), start, strict=True)}


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_it_is_sgd_on_the_proximal_objective(momentum: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    params, _ = state_of(model)
    batch = Batch(torch.rand(6, 4), torch.arange(6) % 3)
    rule = FedProx(lr=0.1, epochs=3, batch_size=2, mu=0.7, momentum=momentum)
    sent = rule(model, params, batch).tensors
    torch.testing.assert_close(sent, trained(model, batch, rule), rtol=1e-4, atol=1e-6)
    free = FedAvg(lr=0.1, epochs=3, batch_size=2, momentum=momentum)(model, params, batch).tensors
    assert not torch.allclose(sent["0.weight"], free["0.weight"], atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_constant_gradient_is_read_back(momentum: float) -> None:
    rule = FedProx(lr=0.1, steps=7, mu=0.7, momentum=momentum)
    slope = {"w": torch.tensor([2.0, -1.0])}
    sent = rule.walk({"w": torch.zeros(2)}, 3, lambda now, places: slope)
    torch.testing.assert_close(rule.as_gradient(sent), slope)
    assert rule.reaches(5) == pytest.approx(rule.reaches(7)[2:])


def test_without_the_term_it_is_fedavg() -> None:
    assert FedProx(steps=4, momentum=0.9, mu=0.0).reaches(4) == pytest.approx(FedAvg(momentum=0.9).reaches(4))
    with pytest.raises(SeepageError, match="mu"):
        FedProx(mu=-1.0)
