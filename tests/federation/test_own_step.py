"""A client that trains by code of its own: what it sends is what that code does, and attacks never get the code."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from tests.helpers.each import check_each
from torch import Tensor, nn

from seepage import Architecture, Batch, SeepageError, attack, build, record
from seepage.base.nn import derived_seed, frozen_randomness, norm, state_of
from seepage.federation.clients import Aggregate, FedAvg, FedSGD, OwnStep
from seepage.federation.clients.step import Client
from seepage.federation.defenses import GaussianNoise
from seepage.federation.transcript.recorded import open_transcript, save_transcript
from seepage.federation.transcript.simulated import Victim
from seepage.federation.types import Knowledge, Tensors

SHAPE, CLASSES = (1, 8, 8), 10
LABELS = torch.tensor([1, 2, 6, 6, 2, 0])


def network() -> nn.Module:
    return build(Architecture("convnet"), SHAPE, CLASSES)


def private() -> Batch:
    return Batch(torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(0)), LABELS)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def follow(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


def of_pair(model, batch):
    inputs, labels = batch
    follow(model, torch.optim.SGD(model.parameters(), lr=0.1), inputs, labels)


def of_two(net, inputs, labels):
    follow(net, torch.optim.SGD(net.parameters(), lr=0.1), inputs, labels)


def of_loader(net, trainloader):
    optimizer = momentum(net)
    for inputs, labels in trainloader:
        follow(net, optimizer, inputs, labels)


def closure(model):
    optimizer = momentum(model)

    def step(inputs, labels):
        follow(model, optimizer, inputs, labels)

    return step


class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, momentum(model)

    def __call__(self, batch):
        follow(self.model, self.optimizer, *batch)


def delta(model: nn.Module, parts: list[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer) -> Tensors:
    before = state_of(model)[0]
    for inputs, labels in parts:
        follow(model, optimizer, inputs, labels)
    return {name: tensor - before[name] for name, tensor in state_of(model)[0].items()}


def same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_every_form_trains_as_pytorch_does_with_its_optimizer_kept() -> None:
    batch, model = private(), network()
    halves = list(zip(batch.inputs.split(3), batch.labels.split(3), strict=True))

    def check(case: tuple[Callable[..., object], bool]) -> None:
        step, keeps = case
        parts = halves if keeps else [(batch.inputs, batch.labels)]
        rule = OwnStep.of(step, batch_size=len(parts[0][0]), shuffle=False)
        own = network()
        optimizer = momentum(own) if keeps else torch.optim.SGD(own.parameters(), lr=0.1)
        assert same(rule(model, state_of(model)[0], batch).tensors, delta(own, parts, optimizer))

    forms = [(of_pair, False), (of_two, False), (of_loader, True), (closure, True), (Trainer, True)]
    check_each([(step.__name__, (step, keeps)) for step, keeps in forms], check)


def test_what_the_code_draws_is_repeatable_its_own_in_each_round_and_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES))
    params, rule, batch, global_state = state_of(model)[0], OwnStep.of(of_pair), private(), torch.get_rng_state()
    client = Client(rule)
    first, again, other = (client.send(model, params, batch, t=t).tensors for t in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert same(state_of(model)[0], params)
    seed = derived_seed(derived_seed(0, "client order", 0), "masks")
    with frozen_randomness(seed):
        places = rule.for_round(0, 0).rule.batches(6)[0]
        true = delta(model, [(batch.inputs[places], batch.labels[places])], torch.optim.SGD(model.parameters(), lr=0.1))
    assert same(first, true)


def adam(model, batch):
    follow(model, torch.optim.Adam(model.parameters(), lr=1e-3), *batch)


def decayed(model, batch):
    follow(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5e-2), *batch)


@pytest.mark.slow
def test_attackers_are_told_a_rule_that_was_stated_or_read_off_the_update() -> None:
    model, batch = network(), private()
    stated = record(model, batch, client=OwnStep.of(of_pair, lr=0.1, momentum=0.5)).knowledge.client
    assert stated == FedAvg(lr=0.1, momentum=0.5)
    read = record(model, batch, client=OwnStep.of(of_pair)).knowledge.client
    assert isinstance(read, FedAvg)
    assert read.lr == pytest.approx(0.1, rel=0.05)
    several = record(model, batch, client=OwnStep.of(of_loader, batch_size=3, momentum=0.9)).knowledge.client
    assert isinstance(several, FedAvg)
    assert several.lr == pytest.approx(0.1, rel=0.1)
    inverted = record(model, batch, client=OwnStep.of(adam))
    step = inverted[0].update.step
    assert step is not None
    assert (inverted.knowledge.client, step.rate, step.eps) == (FedSGD(), pytest.approx(1e-3, rel=1e-5), 1e-8)
    assert record(model, batch, client=OwnStep.of(adam, steps=2)).knowledge.client.sign_only
    shrunk = record(model, batch, client=OwnStep.of(decayed))[0].update.decayed
    assert max(shrunk.values()) == pytest.approx(5e-3, rel=0.05)


def test_the_attackers_side_has_no_code_and_attacks_see_the_same_bits_from_a_folder(tmp_path: Path) -> None:
    architecture = Architecture("convnet")
    seen = record(network(), private(), client=OwnStep.of(of_pair, name="mine:train_step"), architecture=architecture)
    save_transcript(seen, tmp_path)
    assert "mine" not in (tmp_path / "knowledge.json").read_text()
    found = open_transcript(tmp_path)
    options = {"steps": 2, "restarts": 1}
    mine, theirs = (attack(one, "inverting_gradients", options=options).inputs for one in (seen, found))
    assert torch.equal(mine, theirs)


def test_the_gap_is_that_between_what_was_sent_and_what_the_attackers_rule_would_send() -> None:
    model, batch = network(), private()
    params = state_of(model)[0]

    def gap(rule: OwnStep | FedAvg, **others: object) -> float | None:
        knowledge = Knowledge(model, rule, SHAPE, CLASSES)
        return Victim.of(knowledge, params, [batch], {}, others.get("defense"), 0).gap(0)  # type: ignore[arg-type]

    assert gap(FedAvg(lr=0.1)) is None
    assert gap(OwnStep.of(of_pair, lr=0.1)) == pytest.approx(0, abs=1e-6)
    assert gap(OwnStep.of(of_pair, lr=0.08)) == pytest.approx(0.2, rel=1e-4)
    assert gap(OwnStep.of(of_pair, lr=0.08), defense=GaussianNoise(sigma=9.0)) == pytest.approx(0.2, rel=1e-4)
    # Weight decay that is stated is undone by the server, and is no difference.
    assert gap(OwnStep.of(decayed, lr=0.1, weight_decay=5e-2)) == pytest.approx(0, abs=1e-5)
    by_adam, by_signs = OwnStep.of(adam, lr=1e-3, optimizer="signsgd"), FedAvg(lr=1e-3, optimizer="signsgd")
    sent, signs = (rule(model, params, batch).tensors for rule in (by_adam, by_signs))
    apart = norm({name: sent[name] - signs[name] for name in sent}) / norm(sent)
    assert gap(by_adam) == pytest.approx(float(apart), rel=1e-2)  # the examples are in another order


def test_several_clients_whose_mean_alone_is_seen_train_by_it() -> None:
    model, batch = network(), private()
    rule = Aggregate(rule=OwnStep.of(of_pair, lr=0.1), clients=2)
    seen = record(model, batch, client=rule)
    assert seen.knowledge.client == Aggregate(rule=FedAvg(lr=0.1), clients=2)
    whole = record(model, batch, client=OwnStep.of(of_pair, lr=0.1))[0].update.tensors
    assert all(torch.allclose(tensor, whole[name], atol=1e-6) for name, tensor in seen[0].update.tensors.items())


def test_code_that_is_no_training_step_is_refused_in_a_sentence() -> None:
    model, batch = network(), private()

    def idle(model, batch):
        model(batch[0])

    def broken(model, batch):
        raise KeyError("img")

    def twice(model):
        return 3

    def refused(step: object, words: str, **options: object) -> Callable[[None], None]:
        def check(_: None) -> None:
            with pytest.raises(SeepageError, match=words):
                record(model, batch, client=OwnStep.of(step, **options))  # type: ignore[arg-type]

        return check

    check_each(
        [
            ("idle", refused(idle, "moved no weight")),
            ("broken", refused(broken, r"KeyError: 'img', test_own_step.py line \d+")),
            ("made of the model alone", refused(twice, "this is a int; write")),
            ("no argument", refused(lambda: None, "takes 0 arguments; write")),
            ("no code", refused(3, "is a int; write")),
            ("an option of no rule", refused(of_pair, "no option 'rate'", rate=0.1)),
        ],
        lambda check: check(None),
    )
    unknown = Batch(batch.inputs.repeat(4, 1, 1, 1), torch.arange(24) % 10)
    with pytest.raises(SeepageError, match="does not tell its learning rate to an attacker; state it"):
        record(model, unknown, client=OwnStep.of(of_pair))
    with refusal("no_derivatives", "'of_pair'"):
        OwnStep.of(of_pair)(model, state_of(model)[0], batch, create_graph=True)
