"""Clients whose examples are their own targets: autoencoders, simulated, recorded and captured."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage import Batch, FedAvg, FedSGD, SeepageError, Update, attack, observe, record, score
from seepage.base.nn import state_of

Cli = Callable[..., Any]
Refused = Callable[..., str]
SHAPE = (1, 4, 4)

NETS = """
from torch import nn

def coder(shape=(), classes=16):
    inputs = shape[0] * shape[1] * shape[2] if shape else 16
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, inputs))
"""


def coder() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16))


def private(n: int) -> Batch:
    draw = torch.Generator().manual_seed(1)
    return Batch(torch.rand((n, *SHAPE), generator=draw), torch.zeros(n, dtype=torch.int64))


def test_the_update_is_that_of_an_autoencoder_and_differentiable_through_both_ends() -> None:
    model, batch = coder(), private(3)
    params = state_of(model)[0]
    found = FedAvg(lr=0.1, loss="mse", target="input")(model, params, batch).tensors
    own = coder()
    F.mse_loss(own(batch.inputs), batch.inputs.flatten(1)).backward()
    true = {name: -0.1 * p.grad for name, p in own.named_parameters() if p.grad is not None}
    assert all(torch.allclose(found[name], true[name], atol=1e-7) for name in true)
    rule, inputs = FedSGD(loss="mse", target="input"), batch.inputs.double().requires_grad_()
    names, weights = zip(*((name, p.double()) for name, p in params.items()), strict=True)

    def gradient(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sent = rule(model, dict(zip(names, weights, strict=True)), Batch(x, batch.labels), create_graph=True)
        return tuple(sent.tensors[name] for name in names)

    assert torch.autograd.gradcheck(gradient, inputs)


def test_attacks_search_for_the_inputs_alone_of_what_was_recorded_and_of_what_was_captured() -> None:
    model, batch = coder(), private(1)
    seen = record(model, batch, client=FedSGD(loss="mse", target="input"))
    assert seen.knowledge.target == "value"
    assert score(attack(seen, "linear"), private(1)).exact == 1.0
    options = {"steps": 60, "restarts": 1}
    matched = attack(seen, "inverting_gradients", options=options)
    assert matched.labels is None
    assert (matched.inputs - batch.inputs).square().mean() < (0.5 - batch.inputs).square().mean()
    again = observe(
        model, Update(seen[0].update.tensors), SHAPE, batch_size=1, client=FedSGD(loss="mse", target="input")
    )
    assert torch.equal(attack(again, "inverting_gradients", options=options).inputs, matched.inputs)


def test_what_cannot_be_its_own_target_is_refused() -> None:
    with pytest.raises(SeepageError, match="its loss cross_entropy is of classes; say which it is: --loss mse"):
        FedSGD(target="input")
    with pytest.raises(SeepageError, match="'label' or 'input', got 'inputs'"):
        FedSGD(loss="mse", target="inputs")  # type: ignore[arg-type]
    rule, model = FedSGD(loss="mse", target="input"), nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(SeepageError, match=r"returns outputs of shape \(3,\) for inputs of shape \(1, 4, 4\)"):
        record(model, private(1), client=rule)
    with pytest.raises(SeepageError, match="who knows them has all; leave out labels"):
        record(coder(), private(1), client=rule, known=["labels"])
