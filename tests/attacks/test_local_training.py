"""Accumulated gradients, active dropout and autocast of local training, against the same loop in plain PyTorch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from torch import nn

from seepage import Architecture, Batch, FedAvg, SeepageError, attack, build, record
from seepage.audit.diagnostics import model_diagnostics
from seepage.base.nn import derived_seed, frozen_randomness, norm, state_of
from seepage.federation.clients.step import Client
from seepage.federation.defenses import DPSGD
from seepage.federation.transcript.simulated import Victim
from seepage.federation.types import Knowledge, Tensors

SHAPE = (1, 8, 8)


def private(n: int = 12) -> Batch:
    draw = torch.Generator().manual_seed(0)
    return Batch(torch.rand((n, *SHAPE), generator=draw), torch.arange(n) % 4)


def network(*, batch_norm: bool = False, dropout: bool = False) -> nn.Module:
    model = build(Architecture("convnet", {"width": 4, "batch_norm": batch_norm}), SHAPE, 4)
    return nn.Sequential(nn.Dropout(0.3), model) if dropout else model


def by_pytorch(model: nn.Module, batch: Batch, client: FedAvg) -> Tensors:
    """The loop that people write, on a copy of the module."""
    own = copy.deepcopy(model).train()
    before = state_of(own)[0]
    optimizer = torch.optim.SGD(own.parameters(), lr=client.lr, momentum=client.momentum)
    order = torch.cat(client.batches(len(batch)))
    with frozen_randomness(derived_seed(client.seed, "masks")):
        for number, places in enumerate(order.split(client.batch_size), 1):
            with torch.autocast("cpu", torch.bfloat16, enabled=client.precision == "bfloat16"):
                loss = F.cross_entropy(own(batch.inputs[places]), batch.labels[places])
            (loss / client.accumulate).backward()
            if number % client.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return {name: tensor - before[name] for name, tensor in state_of(own)[0].items()}


def apart(a: Tensors, b: Tensors) -> float:
    return float(norm({name: a[name] - b[name] for name in b}) / norm(b))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"accumulate": 3}, {"batch_norm": True}),
        ({"accumulate": 2, "momentum": 0.9}, {}),
        ({"dropout": True}, {"dropout": True}),
        ({"precision": "bfloat16"}, {}),
        ({"precision": "bfloat16", "accumulate": 2, "dropout": True}, {"batch_norm": True, "dropout": True}),
    ],
)
def test_training_is_that_of_pytorch(options: dict[str, object], parts: dict[str, bool]) -> None:
    model, batch = network(**parts), private()
    client = FedAvg(lr=0.1, batch_size=2, **options)  # type: ignore[arg-type]
    params, buffers = state_of(model)
    found = client(model, params, batch, buffers=buffers).tensors
    assert apart(found, by_pytorch(model, batch, client)) < 1e-5
    plain = FedAvg(lr=0.1, batch_size=2)(model, params, batch, buffers=buffers).tensors
    assert apart(found, plain) > 1e-3, "the option does something"


def test_accumulated_batches_make_one_step_of_which_each_normalizes_by_itself() -> None:
    model, batch = network(batch_norm=True), private()
    params, buffers = state_of(model)
    client = FedAvg(lr=0.1, batch_size=2, accumulate=6)
    assert client.count(12) == 1
    assert client.max_participations(12) == 1
    assert [len(places) for places in FedAvg(batch_size=2, accumulate=4).batches(12)] == [8, 4]
    whole = FedAvg(lr=0.1, batch_size=12)(model, params, batch, buffers=buffers).tensors
    found = client(model, params, batch, buffers=buffers).tensors
    assert apart(found, whole) > 1e-2
    # One step is its own mean gradient.
    mean = client.first_order_rule()(model, params, batch, buffers=buffers).tensors
    assert apart(client.as_gradient(client(model, params, batch, buffers=buffers), 12), mean) < 1e-5


def test_masks_are_the_clients_own_and_no_attacker_has_them() -> None:
    model, batch = network(dropout=True), private()
    params, state = state_of(model)[0], torch.get_rng_state()
    rule = FedAvg(lr=0.1, dropout=True, precision="bfloat16", shuffle=False)
    one, again, other = (Client(rule).send(model, params, batch, t=t).tensors for t in (0, 0, 1))
    assert apart(one, again) == 0
    assert apart(one, other) > 0.1
    assert torch.equal(torch.get_rng_state(), state)
    seen = record(model, batch, client=rule)
    assert seen.knowledge.client == FedAvg(lr=0.1, shuffle=False)
    known = Knowledge(model, rule, SHAPE, 4)
    gap = Victim.of(known, params, [batch], {}, None, 0).gap(0)
    assert gap is not None
    assert gap == pytest.approx(apart(FedAvg(lr=0.1, shuffle=False)(model, params, batch).tensors, one), rel=1e-3)
    assert not model_diagnostics(model, "train", followed=False)
    with refusal("dropout_or_precision"):
        record(model, batch, client=rule, defense=DPSGD(clip=1.0, sigma=1.0))[0]


def test_a_known_accumulation_is_matched_through() -> None:
    model, batch = network(), private(4)
    seen = record(model, batch, client=FedAvg(lr=0.01, batch_size=2, accumulate=2))
    found = attack(seen, "inverting_gradients", options={"steps": 2, "restarts": 1})
    assert found.inputs.shape == batch.inputs.shape


def test_wrong_options_are_named() -> None:
    for options, words in (
        ({"accumulate": 0}, "accumulate from 1"),
        ({"precision": "float16"}, "precision 'float32' or 'bfloat16', got 'float16'"),
    ):
        with pytest.raises(SeepageError, match=words):
            FedAvg(**options)  # type: ignore[arg-type]
