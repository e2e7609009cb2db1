"""DP-SGD inside local epochs: against Opacus' own optimizer, one example at a time, and its accountant."""

import copy
import math
import warnings

import pytest
import torch
from refusals import refusal
from scipy import stats
from torch import Tensor, nn

from seepage import attack, record
from seepage.base.nn import frozen_randomness, generator, state_of
from seepage.federation.clients import Aggregate, FedAvg, FedSGD
from seepage.federation.defenses import DPSGD, Compose, GaussianNoise, Soteria
from seepage.federation.types import Batch, ClientUpdate, ClientView, LocalProblem, Tensors, Update
from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.guarantee import guarantee_of

RULES = {
    "one epoch": FedAvg(lr=0.2, batch_size=2, shuffle=False),
    "shuffled epochs": FedAvg(lr=0.1, epochs=3, batch_size=2, seed=5),
    "steps of the whole batch": FedAvg(lr=0.3, steps=4, batch_size=6),
    "momentum": FedAvg(lr=0.1, epochs=2, batch_size=3, momentum=0.9),
    "adam": FedAvg(lr=0.01, epochs=2, batch_size=2, optimizer="adam"),
}


def network(norm: type[nn.Module] | None = None) -> nn.Sequential:
    with frozen_randomness(0):
        inner = [] if norm is None else [norm(2, 4) if norm is nn.GroupNorm else norm(4)]
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), *inner, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
        )


def client_of(model: nn.Module, rule: ClientUpdate) -> ClientView:
    params, buffers = state_of(model)
    inputs = torch.rand((6, 1, 8, 8), generator=generator(0, "inputs"))
    return ClientView(model, params, Batch(inputs, torch.tensor([0, 2, 1, 1, 0, 2])), rule, buffers)


def sent(client: ClientView, defense: DPSGD | Compose, draw: int = 0) -> Tensors:
    update = client.rule(client.model, client.params, client.batch, buffers=client.buffers)
    return defense(update, client, generator=generator(0, "defense", draw)).tensors


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def optimizer_of(model: nn.Module, rule: FedAvg) -> torch.optim.Optimizer:
    if rule.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=rule.lr)
    return torch.optim.SGD(model.parameters(), lr=rule.lr, momentum=rule.momentum)


def slow(client: ClientView, clip: float) -> Tensors:
    """One example at a time with `backward`, stepped by PyTorch's own optimizer."""
    rule = client.rule
    assert isinstance(rule, FedAvg)
    model = copy.deepcopy(client.model)
    optimizer = optimizer_of(model, rule)
    for places in rule.batches(len(client.batch)):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for place in places:
            model.zero_grad()
            loss = nn.functional.cross_entropy(
                model(client.batch.inputs[place][None]), client.batch.labels[place][None]
            )
            loss.backward()
            length = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
            for own, p in zip(total, model.parameters(), strict=True):
                own += p.grad * min(1.0, clip / length)
        for own, p in zip(total, model.parameters(), strict=True):
            p.grad = own / len(places)
        optimizer.step()
    return {name: p.detach() - client.params[name] for name, p in model.named_parameters()}


@pytest.mark.parametrize("clip", [0.05, 50.0])
@pytest.mark.parametrize("name", list(RULES))
def test_the_difference_of_weights_is_that_of_one_example_at_a_time(name: str, clip: float) -> None:
    client = client_of(network(), RULES[name])
    ours, theirs = sent(client, DPSGD(sigma=0.0, clip=clip)), slow(client, clip)
    for key in ours:
        # Adam divides by the size of each entry, so the last bits of tiny entries show.
        assert torch.allclose(ours[key], theirs[key], atol=2e-4 if name == "adam" else 1e-6), key


@pytest.mark.parametrize("clip", [0.05, 0.5, 50.0])
@pytest.mark.parametrize("name", [name for name in RULES if name != "adam"])
def test_the_difference_of_weights_is_opacus_own(name: str, clip: float) -> None:
    """Opacus' per-example gradients, clipping and stepping over all local steps, without noise."""
    rule = RULES[name]
    client = client_of(network(nn.GroupNorm), rule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        model = GradSampleModule(network(nn.GroupNorm))
        private = DPOptimizer(
            optimizer_of(model, rule), noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=rule.batch_size
        )
        for places in rule.batches(6):
            private.zero_grad()
            nn.functional.cross_entropy(model(client.batch.inputs[places]), client.batch.labels[places]).backward()
            private.step()
        theirs = {name.removeprefix("_module."): p.detach() for name, p in model.named_parameters()}
    for key, tensor in sent(client, DPSGD(sigma=0.0, clip=clip)).items():
        assert torch.allclose(client.params[key] + tensor, theirs[key], atol=2e-6), key


@pytest.mark.parametrize("name", list(RULES))
def test_no_clip_and_no_noise_give_the_clients_own_update(name: str) -> None:
    client = client_of(network(nn.GroupNorm), RULES[name])
    plain = client.rule(client.model, client.params, client.batch).tensors
    ours = sent(client, DPSGD(sigma=0.0, clip=1e9))
    assert all(torch.allclose(ours[key], plain[key], atol=2e-4 if name == "adam" else 1e-6) for key in plain)


def test_each_local_step_adds_noise_of_its_own() -> None:
    """Without a gradient (all inputs zero, no bias) the difference of weights is the noise of all steps."""
    with frozen_randomness(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(400, 30, bias=False))
    params, _ = state_of(model)
    rule = FedAvg(lr=0.5, epochs=3, batch_size=2)
    client = ClientView(model, params, Batch(torch.zeros(6, 1, 20, 20), torch.arange(6)), rule)
    noise = flat(sent(client, DPSGD(sigma=2.0, clip=0.1))).double()
    deviation = 0.5 * 2.0 * 0.1 / 2 * math.sqrt(9)  # lr, sigma, clip, examples per step, steps
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(noise))
    assert low < float((noise / deviation).square().sum()) < high


def test_no_example_moves_the_weights_further_than_its_clips_allow() -> None:
    """With one step per epoch and no momentum: lr * clip / n for each step, and twice that for a replaced one."""
    rule = FedAvg(lr=0.5, epochs=1, batch_size=6)
    client = client_of(network(), rule)
    wild = client.batch.inputs.clone()
    wild[2] = 1000.0
    other = ClientView(client.model, client.params, Batch(wild, client.batch.labels), rule, client.buffers)
    bare = DPSGD(sigma=0.0, clip=0.1)
    moved = float((flat(sent(client, bare)) - flat(sent(other, bare))).norm())
    assert 0 < moved <= 2 * 0.5 * 0.1 / 6 * (1 + 1e-4)


def test_batch_norm_in_train_mode_is_refused_in_local_steps_too() -> None:
    with refusal("batch_norm", "'eval'"):
        sent(client_of(network(nn.BatchNorm2d), FedAvg(lr=0.1)), DPSGD(sigma=1.0))
    sent(client_of(network(nn.BatchNorm2d), FedAvg(lr=0.1, mode="eval")), DPSGD(sigma=1.0))


class Own(FedAvg):
    """A user's own local training."""

    def compute(self, problem: LocalProblem) -> Update:
        update = super().compute(problem)
        return Update({name: tensor / 2 for name, tensor in update.tensors.items()}, update.kind)


def test_local_training_of_ones_own_is_refused_with_the_remedy() -> None:
    with refusal("weight_difference", "fedsgd", "fedavg", "gaussian_noise"):
        sent(client_of(network(), Own(lr=0.1)), DPSGD(sigma=1.0))


def test_soteria_can_come_after_it() -> None:
    with frozen_randomness(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    both = sent(client_of(model, RULES["one epoch"]), Compose((DPSGD(sigma=0.1), Soteria(ratio=0.5))))
    assert int((both["3.weight"] == 0).all(0).sum()) == 4


def test_an_attacker_sees_a_difference_of_weights_as_ever() -> None:
    rule = Aggregate(rule=FedAvg(lr=0.1, steps=2, batch_size=1), clients=2)
    batch = Batch(torch.rand((2, 1, 8, 8), generator=generator(0, "x")), torch.tensor([0, 1]))
    with frozen_randomness(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    transcript = record(model, batch, client=rule, defense=DPSGD(sigma=0.0, clip=0.5), known=["labels"])
    assert transcript[0].update.kind == "delta"
    found = attack(transcript, "inverting_gradients", options={"steps": 3})
    assert found.inputs.shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("rule", "examples", "visits"),
    [
        (FedSGD(), 8, 1),
        (FedAvg(epochs=3, batch_size=2), 8, 3),
        (FedAvg(epochs=3, batch_size=3), 8, 3),
        (FedAvg(steps=5, batch_size=8), 8, 5),
        (FedAvg(steps=5, batch_size=4), 8, 3),
        (Aggregate(rule=FedAvg(steps=4, batch_size=4), clients=2), 16, 2),
    ],
)
def test_visits_are_the_steps_in_which_one_example_is_used(rule: ClientUpdate, examples: int, visits: int) -> None:
    assert rule.max_participations(examples) == visits
    if isinstance(rule, FedAvg):
        used = torch.cat(rule.batches(examples)).bincount(minlength=examples)
        assert int(used.max()) == visits


def test_epsilon_is_that_of_local_steps_over_rounds() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant

        theirs = PRVAccountant()
        theirs.history = [(8.0, 1.0, 3 * 10)]  # three epochs, ten rounds, each example once per epoch
        near = theirs.get_epsilon(1e-5, eps_error=0.01)
    visits = FedAvg(epochs=3, batch_size=2).max_participations(6)
    found = guarantee_of(DPSGD(sigma=8.0), range(10), participations=visits)
    assert found.epsilon == pytest.approx(near, abs=0.02)
    assert found.epsilon == epsilon(sigma=8.0, rounds=30)


def test_local_steps_cost_nothing_where_noise_is_added_once() -> None:
    noise = GaussianNoise(sigma=4.0, clip=1.0)
    one, many = guarantee_of(noise, range(3)), guarantee_of(noise, range(3), participations=7)
    assert one == many


def test_the_noise_of_all_steps_comes_from_the_generator() -> None:
    client, defense = client_of(network(), RULES["one epoch"]), DPSGD(sigma=0.5)
    first, again, other = (flat(sent(client, defense, draw)) for draw in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
