"""What an attacker who knows of the noise makes of it: against draws of the noise itself, and against less."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.helpers.victims import precise
from torch import Tensor, nn

import seepage.federation.data
from seepage import Architecture, FedAvg, FedSGD, attack, build, record, score
from seepage.attacks.search.adaptive import defended_rule, known_noise
from seepage.attacks.search.distances import L2
from seepage.attacks.search.partial import GaussianLikelihood
from seepage.attacks.search.presets import bayes
from seepage.attacks.search.problem import Problem
from seepage.base.nn import frozen_randomness, generator, state_of
from seepage.federation.clients import Aggregate
from seepage.federation.defenses import (
    DPSGD,
    Compose,
    DecayingNoise,
    GaussianNoise,
    JacobianDamping,
    Soteria,
    Sparsify,
    UnitNormNoise,
    ZeroSumNoise,
)
from seepage.federation.defenses.dp_sgd import ClippedRule
from seepage.federation.transcript.simulated import SimulatedTranscript
from seepage.federation.types import (
    Batch,
    ClientUpdate,
    ClientView,
    Defense,
    Knowledge,
    Noise,
    Round,
    Tensors,
    Transcript,
)

LOCAL = FedAvg(lr=0.2, epochs=2, batch_size=2)
RULES: dict[str, ClientUpdate] = {
    "fedsgd": FedSGD(),
    "fedavg": LOCAL,
    "momentum": FedAvg(lr=0.2, steps=5, batch_size=2, momentum=0.8),
    "uneven": FedAvg(lr=0.2, epochs=3, batch_size=4),
    "summed": Aggregate(rule=FedSGD(), clients=3),
    "summed local": Aggregate(rule=LOCAL, clients=3),
}


def network(seed: int = 0, inputs: int = 64, hidden: int = 16, classes: int = 4) -> nn.Module:
    with frozen_randomness(seed):
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, classes))


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()]).double()


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize(
    "defense",
    [
        DPSGD(sigma=2.0, clip=0.1),
        GaussianNoise(sigma=2.0, clip=0.1),
        GaussianNoise(sigma=0.3),
        DecayingNoise(sigma=1.0),
    ],
    ids=str,
)
def test_the_noise_is_as_large_as_it_is_taken_for(name: str, defense: Defense) -> None:
    """Inputs of zero into a layer without bias: the gradient is zero, and all that is sent is noise."""
    with frozen_randomness(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(400, 50, bias=False))
    batch = Batch(torch.zeros(6, 1, 20, 20), torch.arange(6))
    transcript = record(model, batch, client=RULES[name], defense=defense, known=["defense"])
    known = known_noise(transcript.knowledge, transcript[0])
    assert known is not None
    seen = flat(transcript[0].gradient(transcript.knowledge.client))
    # 20,000 entries: the relative error of their deviation is 0.5 %.
    assert float(seen.std()) == pytest.approx(known.deviation, rel=0.025)


def test_decaying_noise_is_known_round_by_round() -> None:
    model = network()
    batches = [Batch(torch.rand(1, 1, 8, 8), torch.tensor([1]))] * 3
    transcript = record(model, batches, defense=DecayingNoise(sigma=1.0, decay=0.5, clip=0.2), known=["defense"])
    found = [known_noise(transcript.knowledge, transcript[t]) for t in range(3)]
    assert found == [Noise(0.2, 0.2), Noise(0.1, 0.2), Noise(0.05, 0.2)]


@pytest.mark.parametrize(
    ("defense", "client"),
    [
        (None, FedSGD()),
        (Sparsify(keep=0.5), FedSGD()),
        (DPSGD(sigma=0.0), FedSGD()),
        (GaussianNoise(sigma=1.0), FedAvg(lr=0.1, optimizer="adam")),
        (Compose((GaussianNoise(sigma=1.0), Sparsify(keep=0.5))), FedSGD()),
        (UnitNormNoise(sigma=1.0), Aggregate(rule=FedSGD(), clients=2)),
    ],
)
def test_what_is_no_such_noise_is_not_followed(defense: Defense | None, client: ClientUpdate) -> None:
    assert known_noise(Knowledge(network(), client, (1, 8, 8), 4, defense=defense)) is None


def test_a_unit_norm_is_undone_in_the_likelihood() -> None:
    knowledge = Knowledge(network(), FedSGD(), (1, 8, 8), 4, defense=UnitNormNoise(sigma=0.5))
    distance = GaussianLikelihood().adapt_to(knowledge)
    sent, guess = {"w": torch.tensor([0.6, 0.8])}, {"w": torch.tensor([3.0, 4.0])}
    assert float(distance(guess, sent)) == pytest.approx(0.0, abs=1e-12)
    assert float(distance({"w": torch.tensor([5.0, 0.0])}, sent)) == pytest.approx((0.4**2 + 0.8**2) / (2 * 0.5**2))


@pytest.mark.parametrize("name", list(RULES))
def test_the_rule_that_is_followed_is_the_clients_less_its_noise(name: str) -> None:
    batch = Batch(torch.rand((6, 1, 8, 8), generator=generator(0, "x")), torch.arange(6) % 4)
    client, defense = in_order(RULES[name]), DPSGD(sigma=0.0, clip=0.2)
    transcript = record(network(), batch, client=client, defense=defense, known=["defense"])
    rule = defended_rule(transcript.knowledge)
    params, buffers = state_of(network())
    own = rule(network(), params, batch, buffers=buffers).tensors
    assert torch.allclose(flat(own), flat(transcript[0].update.tensors), atol=1e-6)


def in_order(rule: ClientUpdate) -> ClientUpdate:
    """The same without the shuffling, of which an attacker knows nothing."""
    if isinstance(rule, Aggregate):
        return replace(rule, rule=in_order(rule.rule))
    return replace(rule, shuffle=False) if isinstance(rule, FedAvg) else rule


def test_local_steps_can_be_averaged_behind_a_clip() -> None:
    """Where weights hardly move, the mean of clipped gradients is what the difference of weights says."""
    batch = Batch(torch.rand((6, 1, 8, 8), generator=generator(0, "x")), torch.arange(6) % 4)
    rule = ClippedRule(FedAvg(lr=1e-4, epochs=2, batch_size=2, shuffle=False), 0.2)
    model = network().double()
    params, _ = state_of(model)
    exact = Batch(batch.inputs.double(), batch.labels)
    walked = rule.as_gradient(rule(model, params, exact), 6)
    still = rule.first_order_rule()
    assert torch.allclose(flat(walked), flat(still.as_gradient(still(model, params, exact), 6)), rtol=1e-3, atol=1e-5)


def check_slopes(problem: Problem, labels: Tensor, places: Sequence[tuple[int, int]], rel: float) -> None:
    """At a random guess, at some entries: the slope by the inputs is that of central differences."""
    guess = torch.rand((len(labels), 6), generator=generator(1, "x")).double()
    gradients = problem.evaluate(guess, labels).by_inputs
    for place in places:
        step = torch.zeros_like(guess)
        step[place] = 1e-6
        up, down = (problem.distance_at(guess + sign * step, labels) for sign in (1, -1))
        assert float(gradients[place]) == pytest.approx((up - down) / 2e-6, rel=rel)


@pytest.mark.parametrize("rule", [FedSGD(), FedAvg(lr=0.5, epochs=1, batch_size=2, shuffle=False)], ids=["sgd", "avg"])
@pytest.mark.parametrize("microbatch", [None, 1])
def test_the_slopes_through_the_clip_are_those_of_finite_differences(
    rule: FedSGD | FedAvg, microbatch: int | None
) -> None:
    model = network(inputs=6, hidden=5, classes=3).double()
    params, buffers = state_of(model)
    private = Batch(torch.rand((3, 6), generator=generator(0, "x")).double(), torch.tensor([0, 2, 1]))
    client = ClientView(model, params, private, rule, buffers)
    update = DPSGD(sigma=0.1, clip=0.7)(rule(model, params, private), client, generator=generator(0, "d"))
    knowledge = Knowledge(model, rule, (6,), 3, defense=DPSGD(sigma=0.1, clip=0.7))
    problem = Problem.of(Round(0, params, update, buffers, 3), knowledge, L2(), microbatch)
    check_slopes(problem, private.labels, ((0, 1), (1, 3), (2, 5)), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("client", [FedSGD(), FedAvg(lr=0.1, steps=2, batch_size=2)], ids=["fedsgd", "fedavg"])
def test_an_attacker_who_knows_of_the_clip_of_examples_sees_more(client: ClientUpdate) -> None:
    """Two digits in one update, each clipped to a norm of its own."""
    data = seepage.federation.data.load("digits", size=8)
    found = {}
    for knows in (True, False):
        known = ["labels", "defense"] if knows else ["labels"]
        batch = data.batch(data.private[:2])
        defense = DPSGD(sigma=1e-5, clip=0.5)
        seen = record(network(hidden=32, classes=10), batch, client=client, defense=defense, known=known)  # type: ignore[arg-type]
        found[knows] = score(attack(seen, precise(L2(), 4)), batch).psnr or 0.0
    assert found[True] > found[False] + 30


def test_bayes_follows_noise_behind_a_composition_by_its_clip_alone() -> None:
    knowledge = Knowledge(
        network(), FedSGD(), (1, 8, 8), 4, defense=Compose((DPSGD(sigma=1.0, clip=0.3), Soteria(ratio=0.5)))
    )
    assert defended_rule(knowledge) == ClippedRule(FedSGD(), 0.3)
    assert bayes().distance.adapt_to(knowledge) == bayes().distance


def test_the_deviation_of_a_sum_shrinks_with_the_clients() -> None:
    one = known_noise(Knowledge(network(), FedSGD(), (1, 8, 8), 4, defense=GaussianNoise(sigma=1.0)))
    four = known_noise(
        Knowledge(network(), Aggregate(rule=FedSGD(), clients=4), (1, 8, 8), 4, defense=GaussianNoise(sigma=1.0))
    )
    assert four.deviation == pytest.approx(one.deviation / math.sqrt(4))


@pytest.mark.slow
def test_zero_sum_noise_is_gone_from_the_sum_that_an_attacker_who_knows_attacks() -> None:
    """The promise of the defense, that the sum is unharmed, is the attacker's too."""
    data = seepage.federation.data.load("faces", size=16)
    batch = data.batch(data.private[:6])
    model = build(Architecture("fc2", {"hidden": 64}), (1, 16, 16), 2)
    group, noise = Aggregate(rule=FedSGD(), clients=3), ZeroSumNoise(sigma=0.1)
    own = Batch(batch.inputs[:2], batch.labels[:2])
    assert score(attack(record(model, own, defense=noise), "cocktail_party"), own).recovered == 0
    summed = record(model, batch, client=group, defense=noise)
    assert score(attack(summed, "cocktail_party"), batch).recovered == 1


def guarded(client: ClientUpdate, beta: float) -> tuple[Transcript, Batch]:
    data = seepage.federation.data.load("digits", size=8)
    batch = data.batch(data.private[:1])
    defense = JacobianDamping(beta=beta, steps=100, tolerance=1e-6)
    model = network(hidden=32, classes=10)
    return record(model, batch, client=client, defense=defense, known=["labels", "defense"]), batch


@pytest.mark.parametrize("beta", [0.1, 10.0])
@pytest.mark.parametrize("client", [FedSGD(), FedAvg(lr=0.1, steps=2, batch_size=1)], ids=["fedsgd", "fedavg"])
def test_the_truth_solves_jacobian_dampings_equation_and_another_batch_does_not(
    client: ClientUpdate, beta: float
) -> None:
    seen, batch = guarded(client, beta)
    sent = flat(seen[0].update.tensors)
    rule, params = defended_rule(seen.knowledge, seen[0]), seen[0].params
    right = flat(rule(seen.knowledge.model, params, batch).tensors)
    wrong = flat(rule(seen.knowledge.model, params, Batch(1 - batch.inputs, batch.labels)).tensors)
    assert float((right - sent).norm() / sent.norm()) < 1e-3
    assert float((wrong - sent).norm() / sent.norm()) > 0.1


def test_jacobian_dampings_equation_holds_where_a_layer_is_not_used() -> None:
    model = network(hidden=32, classes=10)
    model.spare = nn.Linear(3, 3)
    model.forward = lambda x: model[:4](x)  # type: ignore[index]
    data = seepage.federation.data.load("digits", size=8)
    batch = data.batch(data.private[:1])
    seen = record(
        model, batch, defense=JacobianDamping(beta=1.0, steps=100, tolerance=1e-6), known=["labels", "defense"]
    )
    right = flat(defended_rule(seen.knowledge, seen[0])(model, seen[0].params, batch).tensors)
    sent = flat(seen[0].update.tensors)
    assert float((right - sent).norm() / sent.norm()) < 1e-3


def test_the_slopes_through_jacobian_dampings_equation_are_those_of_finite_differences() -> None:
    model = network(inputs=6, hidden=5, classes=3).double()
    params, buffers = state_of(model)
    private = Batch(torch.rand((2, 6), generator=generator(0, "x")).double(), torch.tensor([0, 2]))
    update = FedSGD()(model, params, private)
    knowledge = Knowledge(model, FedSGD(), (6,), 3, defense=JacobianDamping(beta=2.0))
    problem = Problem.of(Round(0, params, update, buffers, 2), knowledge, L2(), None)
    check_slopes(problem, private.labels, ((0, 1), (1, 3)), rel=1e-4)


def test_jacobian_damping_stops_only_those_who_do_not_know_of_it() -> None:
    seen, batch = guarded(FedSGD(), 1.0)
    knows = score(attack(seen, precise(L2(), 4)), batch).psnr or 0.0
    bare = SimulatedTranscript(replace(seen.knowledge, defense=None), lambda t: seen[t], 1)
    does_not = score(attack(bare, precise(L2(), 4)), batch).psnr or 0.0
    assert does_not < 20
    assert knows > 80


@pytest.mark.parametrize(
    ("defense", "client"),
    [
        (JacobianDamping(beta=0.0), FedSGD()),
        (JacobianDamping(beta=1.0), Aggregate(rule=FedSGD(), clients=2)),
        (Compose((JacobianDamping(beta=1.0), Sparsify(keep=0.5))), FedSGD()),
    ],
)
def test_jacobian_damping_behind_others_is_not_followed(defense: Defense, client: ClientUpdate) -> None:
    assert defended_rule(Knowledge(network(), client, (1, 8, 8), 4, defense=defense)) is client
