"""FedAvg against PyTorch's own optimisers, and sums of clients against a loop."""

import copy
import math
import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch import Tensor, nn

from seepage import (
    Aggregate,
    Architecture,
    Batch,
    FedAvg,
    FedSGD,
    GaussianNoise,
    SeepageError,
    Sparsify,
    Update,
    attack,
    build,
    record,
)
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.labels import BiasCount, SignOfLastBias
from seepage.attacks.search.problem import Problem
from seepage.base.nn import in_mode, state_of
from seepage.base.registry import Spec
from seepage.federation.clients import OwnStep, client_options, make_client
from seepage.federation.clients.fedavg import MeanGradient
from seepage.federation.clients.fedprox import FedProx
from seepage.federation.types import ClientView, Defense, Tensors

SHAPE = (1, 8, 8)


def batch_of(n: int, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(torch.rand((n, *SHAPE), generator=draw), torch.arange(n) % 4)


def network(*, batch_norm: bool = False) -> nn.Module:
    return build(Architecture("convnet", {"width": 4, "batch_norm": batch_norm}), SHAPE, 4)


def by_optimizer(model: nn.Module, batch: Batch, client: FedAvg) -> Tensors:
    """The same local training by `torch.optim` on a copy of the module."""
    own = copy.deepcopy(model)
    options = {"momentum": client.momentum} if client.optimizer in ("sgd", "rmsprop") else {}
    options |= {"nesterov": client.nesterov} if client.optimizer == "sgd" else {}
    kind = {
        "sgd": "SGD",
        "adam": "Adam",
        "adamw": "AdamW",
        "rmsprop": "RMSprop",
        "adagrad": "Adagrad",
        "adadelta": "Adadelta",
    }
    make = getattr(torch.optim, kind[client.optimizer])
    optimizer = make(own.parameters(), lr=client.lr, weight_decay=client.weight_decay, **options)
    with in_mode(own, training=client.mode == "train"):
        for places in client.batches(len(batch)):
            optimizer.zero_grad()
            F.cross_entropy(own(batch.inputs[places]), batch.labels[places]).backward()
            if client.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(own.parameters(), client.clip_norm)
            if client.clip_value is not None:
                torch.nn.utils.clip_grad_value_(own.parameters(), client.clip_value)
            optimizer.step()
    before = dict(model.named_parameters())
    return {name: (after - before[name]).detach() for name, after in own.named_parameters()}


def assert_close(found: Tensors, expected: Tensors, tolerance: float) -> None:
    for name in expected:
        assert torch.allclose(found[name], expected[name], rtol=1e-3, atol=tolerance), name


@pytest.mark.parametrize(
    "client",
    [
        FedAvg(lr=0.1, epochs=2, batch_size=3),
        FedAvg(lr=0.1, steps=5, batch_size=4, momentum=0.9),
        FedAvg(lr=1e-3, epochs=2, batch_size=3, optimizer="adam"),
        FedAvg(lr=0.1, epochs=3, batch_size=4, shuffle=False),
        FedAvg(lr=0.1, steps=5, batch_size=4, momentum=0.9, nesterov=True, weight_decay=0.01),
        FedAvg(lr=1e-3, steps=5, batch_size=3, optimizer="adam", weight_decay=0.1),
        FedAvg(lr=1e-3, steps=5, batch_size=3, optimizer="adamw", weight_decay=0.1),
        FedAvg(lr=1e-3, steps=5, batch_size=3, optimizer="rmsprop", momentum=0.9, weight_decay=0.01, clip_norm=0.1),
        FedAvg(lr=1.0, steps=5, batch_size=3, optimizer="adadelta", weight_decay=0.01),
        FedAvg(lr=0.1, steps=3, batch_size=3, clip_value=0.01),
    ],
    ids=lambda client: f"{client.optimizer}-{client.momentum}-{client.steps}",
)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_it_is_the_training_that_torch_would_do(client: FedAvg, batch_norm: bool) -> None:
    # In double: Adam blows up the rounding of a gradient that is zero, as that of a bias before a batch norm.
    model, batch = network(batch_norm=batch_norm).double(), batch_of(7)
    batch = Batch(batch.inputs.double(), batch.labels)
    params, buffers = state_of(model)
    update = client(model, params, batch, buffers=buffers)
    assert update.kind == "delta"
    assert_close(update.tensors, by_optimizer(model, batch, client), 1e-9)
    assert not any(tensor.requires_grad for tensor in update.tensors.values())


def test_one_step_on_everything_is_fedsgd() -> None:
    model, batch = network(batch_norm=True), batch_of(6)
    params, buffers = state_of(model)
    client = FedAvg(lr=0.5, batch_size=6, shuffle=False)
    found = client.as_gradient(client(model, params, batch, buffers=buffers), 6)
    assert_close(found, FedSGD()(model, params, batch, buffers=buffers).tensors, 1e-6)


@pytest.mark.parametrize(
    "client",
    [
        FedAvg(lr=0.1, batch_size=6, weight_decay=0.1),
        FedAvg(lr=0.1, batch_size=6, weight_decay=0.1, momentum=0.9, nesterov=True),
    ],
)
def test_a_server_that_knows_the_weight_decay_undoes_it(client: FedAvg) -> None:
    model, batch = network(), batch_of(6)
    seen = record(model, batch, client=client)
    assert seen.knowledge.client == replace(client, weight_decay=0.0)
    expected = FedSGD()(model, state_of(model)[0], batch).tensors
    assert_close(seen[0].gradient(seen.knowledge.client), expected, 1e-6)
    # Behind a defense that looks at entries one by one nothing is undone, and the rule stays as it is.
    assert record(model, batch, client=client, defense=Sparsify(keep=0.1)).knowledge.client == client


def test_adamw_takes_its_decay_off_the_weights() -> None:
    model, batch = network(), batch_of(6)
    client = FedAvg(lr=1e-3, steps=3, batch_size=6, optimizer="adamw", weight_decay=0.1)
    seen = record(model, batch, client=client)
    plain = record(model, batch, client=replace(client, weight_decay=0.0))
    assert_close(seen[0].update.tensors, plain[0].update.tensors, 2e-5)  # weights move by 3e-3, and decay took 3e-4


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_the_update_as_a_gradient_is_the_average_of_the_steps(momentum: float, nesterov: bool) -> None:
    """At a tiny rate the weights hardly move, so every step's gradient is the one at the start."""
    model, batch = network().double(), batch_of(8)
    batch = Batch(batch.inputs.double(), batch.labels)
    params, _ = state_of(model)
    client = FedAvg(lr=1e-8, epochs=3, batch_size=8, momentum=momentum, nesterov=nesterov)
    found = client.as_gradient(client(model, params, batch), 8)
    expected = FedSGD()(model, params, batch).tensors
    for name in expected:
        assert torch.allclose(found[name], expected[name], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta"])
def test_it_can_be_differentiated_in_its_inputs(optimizer: str) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Sigmoid(), nn.Linear(5, 4)).double()
    params, _ = state_of(model)
    client = FedAvg(lr=0.1, epochs=2, batch_size=2, optimizer=optimizer)  # type: ignore[arg-type]
    labels = torch.arange(3)

    def first_weight(inputs: torch.Tensor) -> torch.Tensor:
        return client(model, params, Batch(inputs, labels), create_graph=True).tensors["0.weight"]

    inputs = torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(first_weight, inputs, eps=1e-6, atol=1e-5)


def test_adam_is_differentiable_where_a_gradient_is_zero() -> None:
    """A unit that is off has a gradient of exactly zero, and the root of its square no slope."""
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4))
    with torch.no_grad():
        model[0].bias.fill_(-10.0)  # type: ignore[operator, union-attr]
    inputs = torch.rand(2, 3, requires_grad=True)
    client = FedAvg(lr=0.01, optimizer="adam")
    update = client(model, state_of(model)[0], Batch(inputs, torch.arange(2)), create_graph=True)
    (slope,) = torch.autograd.grad(sum(t.sum() for t in update.tensors.values()), inputs, allow_unused=True)
    assert slope is None or slope.isfinite().all()


@given(
    n=st.integers(1, 40),
    size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    steps=st.none() | st.integers(1, 30),
)
@settings(deadline=None, max_examples=50)
def test_each_epoch_sees_every_example_once(n: int, size: int, epochs: int, shuffle: bool, steps: int | None) -> None:
    client = FedAvg(batch_size=size, epochs=epochs, shuffle=shuffle, steps=steps)
    parts = client.batches(n)
    assert len(parts) == client.count(n) == (steps or epochs * math.ceil(n / size))
    per_epoch = math.ceil(n / size)
    for start in range(0, len(parts) - per_epoch + 1, per_epoch):
        assert sorted(torch.cat(parts[start : start + per_epoch]).tolist()) == list(range(n))


def test_a_clients_own_order_is_not_the_attackers() -> None:
    client = FedAvg(lr=0.1, epochs=2, batch_size=2)
    batch = batch_of(8)
    model = network()
    seen = record(model, batch, client=client)
    known = seen.knowledge.client
    assert known == client
    again = known(model, seen[0].params, batch)
    assert not torch.equal(again.tensors["1.weight"], seen[0].update.tensors["1.weight"])
    own = client.for_round(0, 0)
    assert torch.equal(own(model, seen[0].params, batch).tensors["1.weight"], seen[0].update.tensors["1.weight"])
    assert client.for_round(0, 1) != own


@pytest.mark.parametrize("rule", [FedSGD(), FedAvg(lr=0.1, epochs=2, batch_size=2, shuffle=False)])
def test_a_sum_of_clients_is_their_weighted_mean(rule: FedSGD | FedAvg) -> None:
    model, batch = network(batch_norm=True), batch_of(7)
    params, buffers = state_of(model)
    found = Aggregate(rule=rule, clients=3)(model, params, batch, buffers=buffers)
    parts = [slice(0, 3), slice(3, 5), slice(5, 7)]
    expected: Tensors = {name: torch.zeros_like(p) for name, p in params.items()}
    for part in parts:
        own = rule(model, params, Batch(batch.inputs[part], batch.labels[part]), buffers=buffers)
        for name, tensor in own.tensors.items():
            expected[name] += tensor * (part.stop - part.start) / 7
    assert_close(found.tensors, expected, 1e-7)


class _Stamp(Defense):
    """Says which client it was asked for."""

    def __call__(self, update: Update, client: ClientView, *, generator: torch.Generator) -> Update:
        assert client.clients == 2
        value = float(client.number + 1)
        return Update({name: torch.full_like(t, value) for name, t in update.tensors.items()}, update.kind)


def test_each_client_defends_its_own_update_before_the_sum() -> None:
    seen = record(network(), batch_of(4), client=Aggregate(rule=FedSGD(), clients=2), defense=_Stamp())
    assert all((tensor == 1.5).all() for tensor in seen[0].update.tensors.values())


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("use", ["fedsgd", "fedavg"])
def test_a_rule_survives_the_way_to_a_file(use: str, clients: int) -> None:
    client = make_client(Spec(use, {"clients": clients, "mode": "eval"}))
    assert make_client(Spec.of(client_options(client))) == client


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.0}, "lr > 0"),
        ({"steps": 0}, "steps from 1"),
        ({"epochs": 0}, "epochs from 1"),
        ({"batch_size": 0}, "batch_size from 1"),
        ({"optimizer": "lion"}, "'adamw'"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": 0.5, "optimizer": "adam"}, "momentum"),
        ({"mode": "test"}, "mode"),
    ],
)
def test_impossible_rules_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(SeepageError, match=words):
        FedAvg(**options)  # type: ignore[arg-type]


def test_epochs_without_the_number_of_examples_have_no_scale() -> None:
    update = Update({"w": torch.ones(1)}, kind="delta")
    with pytest.raises(SeepageError, match="--batch-size"):
        FedAvg(epochs=2).as_gradient(update)
    assert FedAvg(lr=0.5, steps=2).as_gradient(update)["w"] == -1
    with pytest.raises(SeepageError, match="fedsgd"):
        FedAvg(steps=1).as_gradient(Update({"w": torch.ones(1)}))


@pytest.mark.parametrize("rule", [FedAvg(), FedAvg(momentum=0.9), FedAvg(momentum=0.999), FedProx(lr=0.1, mu=0.5),
                                  FedProx(lr=0.1, mu=0.5, momentum=0.9)], ids=repr)  # fmt: skip
@pytest.mark.parametrize("steps", [1, 2, 999, 1001, 4321])
def test_the_reach_of_many_steps_is_the_sum_of_each(rule: FedAvg, steps: int) -> None:
    """A unit gradient at every step, followed by hand with PyTorch's recursion and the proximal pull."""
    moved = velocity = 0.0
    for _ in range(steps):
        velocity = rule.momentum * velocity + 1 - rule.lr * getattr(rule, "mu", 0.0) * moved
        moved += velocity
    assert rule.reach(steps) == pytest.approx(moved, rel=1e-9)
    assert rule._reach_of_many(steps) == pytest.approx(moved, rel=1e-9)


@pytest.mark.parametrize("rule", [FedAvg(epochs=100_000, batch_size=1, momentum=0.9),
                                  FedProx(epochs=100_000, batch_size=1, mu=0.5)], ids=repr)  # fmt: skip
def test_a_product_of_strangers_numbers_takes_no_time(rule: FedAvg) -> None:
    """Epochs and examples are each possible; one step after the other, their product would take a week."""
    update, began = Update({"w": torch.ones(3)}, kind="delta"), time.process_time()
    found = rule.as_gradient(update, examples=16_000_000)
    with refusal("too_large", 1600000000000, 100000):
        rule.batches(16_000_000)
    assert time.process_time() - began < 1
    assert bool(torch.isfinite(found["w"]).all())


def test_too_many_clients_for_a_batch_are_refused() -> None:
    with pytest.raises(SeepageError, match="at least one"):
        Aggregate(rule=FedSGD(), clients=3).parts(batch_of(2))
    with pytest.raises(SeepageError, match="at least 2 clients"):
        Aggregate(rule=FedSGD(), clients=1)


@pytest.mark.slow
def test_a_known_order_is_matched_through_the_local_steps() -> None:
    """The attack differentiates all local steps; at the truth its distance is zero."""
    model = build(Architecture("lenet"), SHAPE, 4)
    batch = batch_of(2)
    seen = record(model, batch, client=FedAvg(lr=0.1, epochs=2, batch_size=1, shuffle=False), known=["labels"])
    found = attack(seen, "dlg", options={"steps": 40, "labels": "given"})
    truth = attack_objective(seen, batch)
    assert truth < 1e-12
    assert float(found.objective[0]) < 1e-3


def test_batch_norm_takes_each_local_batch_by_itself_in_the_averaged_view() -> None:
    """The mean over local batches explains the update; the pooled batch, with other statistics, does not."""
    model, batch = network(batch_norm=True), batch_of(12)
    params, buffers = state_of(model)
    client = FedAvg(lr=1e-3, batch_size=3, shuffle=False)
    sent = client.as_gradient(client(model, params, batch, buffers=buffers), 12)
    mean = client.first_order_rule()(model, params, batch, buffers=buffers).tensors
    pooled = FedSGD()(model, params, batch, buffers=buffers).tensors

    def cosine(a: Tensors) -> float:
        flat = [torch.cat([t.flatten() for t in tensors.values()]) for tensors in (a, sent)]
        return float(torch.cosine_similarity(*flat, dim=0))

    assert cosine(mean) > 0.999
    assert cosine(pooled) < 0.98 * cosine(mean)


@pytest.mark.slow
@pytest.mark.parametrize("local", ["unrolled", "averaged"])
def test_both_views_of_local_steps_find_the_examples(local: str) -> None:
    model = build(Architecture("convnet", {"width": 8, "activation": "sigmoid"}), SHAPE, 4)
    batch = batch_of(2)
    seen = record(model, batch, client=FedAvg(lr=1e-4, batch_size=1, shuffle=False), known=["labels"])
    found = attack(
        seen, "inverting_gradients", options={"steps": 120, "labels": "given", "local": local, "start": "grey"}
    )
    assert float(found.objective[0]) < 0.05
    assert Problem.of(seen[0], seen.knowledge, Cosine(), None, local).client == (  # type: ignore[arg-type]
        seen.knowledge.client if local == "unrolled" else MeanGradient(seen.knowledge.client)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("use", ["linear", "cocktail_party"])
def test_two_steps_of_adam_keep_no_row_in_proportion(use: str) -> None:
    model = build(Architecture("fc2", {"hidden": 16}), SHAPE, 4)
    seen = record(model, batch_of(2), client=FedAvg(lr=1e-3, optimizer="adam", steps=2))
    with refusal("divided_entries"):
        attack(seen, use)


def test_one_step_of_adam_is_seen_as_the_gradient_behind_it() -> None:
    """In every entry within six of its errors; with an epsilon of 1e-4 most are known to a hundredth."""
    model, batch = build(Architecture("fc2", {"hidden": 16}), SHAPE, 4), batch_of(2)
    gradient = record(model, batch)[0].update.tensors
    for optimizer, decay in (("adam", 0.0), ("adamw", 0.01)):
        seen = record(model, batch, client=FedAvg(lr=1e-3, optimizer=optimizer, weight_decay=decay, eps=1e-4))
        assert seen.knowledge.client == FedSGD()
        measured = seen[0].measured(seen.knowledge.client)
        for name, error in measured.error.items():
            off = (measured.value[name] - gradient[name]).abs()
            assert (off <= 6 * error).all()
            assert (error < 1e-2 * gradient[name].abs())[gradient[name] != 0].float().mean() > 0.5


@pytest.mark.parametrize("defense", [GaussianNoise(sigma=1e-9), Sparsify(keep=0.5), None])
@pytest.mark.parametrize("own", [True, False])
def test_a_step_of_adam_is_inverted_behind_a_defense_and_where_a_rule_of_ones_own_states_it(
    defense: Defense | None, *, own: bool
) -> None:
    """A server that does not know of a defense reads what was sent all the same."""

    def train(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    rule = FedAvg(lr=1e-3, optimizer="adam", steps=1)
    client = OwnStep.of(train, lr=1e-3, optimizer="adam", steps=1) if own else rule
    seen = record(build(Architecture("fc2", {"hidden": 16}), SHAPE, 4), batch_of(1), client=client, defense=defense)
    assert seen.knowledge.client == FedSGD()
    assert seen[0].update.step is not None
    found = attack(seen, "linear")
    assert (
        found.certified is None
        or not found.certified.any()
        or torch.allclose(found.inputs[found.certified], batch_of(1).inputs, atol=0.05)
    )


def test_steps_of_adam_keep_the_sign_of_one_label_and_count_none() -> None:
    model = build(Architecture("fc2", {"hidden": 16}), SHAPE, 4)
    batch = Batch(batch_of(1).inputs, torch.tensor([2]))
    seen = record(model, batch, client=FedAvg(lr=1e-3, optimizer="adam", steps=2))
    labels = SignOfLastBias()(seen[0], seen.knowledge)
    assert labels.tolist() == [2]
    with refusal("divided_entries"):
        BiasCount()(seen[0], seen.knowledge)


def attack_objective(seen: object, batch: Batch) -> float:
    from seepage.attacks import dlg

    return dlg().objective_at(seen, batch.inputs, batch.labels)  # type: ignore[arg-type]
