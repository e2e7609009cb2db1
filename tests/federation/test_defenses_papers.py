"""Soteria, Jacobian damping, OUTPOST, quantization, partial access, masks that cancel: against slow or exact forms."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refusal
from scipy import stats
from torch import Tensor, nn

from seepage.base.nn import frozen_randomness, generator, state_of
from seepage.federation.clients import Aggregate, FedAvg, FedSGD
from seepage.federation.defenses import (
    DecayingNoise,
    GaussianNoise,
    JacobianDamping,
    Outpost,
    PartialAccess,
    Quantize,
    SelectiveEncryption,
    Soteria,
    Sparsify,
    ZeroSumNoise,
)
from seepage.federation.defenses.jacobian_damping import derivatives
from seepage.federation.defenses.soteria import sensitivity
from seepage.federation.transcript.simulated import Victim
from seepage.federation.types import Architecture, Batch, ClientView, Defense, Knowledge, Tensors, Update
from seepage.testing import DefenseCase, random_update

CLIENT = DefenseCase(defense=Sparsify(keep=0.5)).client()


def client_of(model: nn.Module, inputs: Tensor, rule: FedSGD | FedAvg | None = None) -> ClientView:
    params, buffers = state_of(model)
    labels = torch.arange(len(inputs)) % 3
    return ClientView(model, params, Batch(inputs, labels), rule or FedSGD(), buffers)


def small(activation: type[nn.Module] = nn.Sigmoid) -> nn.Sequential:
    with frozen_randomness(1):
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), activation(), nn.Linear(5, 3))


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()]).double()


def gradient(client: ClientView) -> Update:
    return client.rule(client.model, client.params, client.batch, buffers=client.buffers)


# --- Soteria -------------------------------------------------------------------------------------------------------


def test_sensitivity_is_that_of_the_dense_jacobian() -> None:
    model, inputs = small(), torch.rand((4, 2, 3), generator=generator(0, "inputs"))
    head = model[:3]
    expected = torch.zeros(5)
    for x in inputs:
        jacobian = torch.autograd.functional.jacobian(head, x[None])  # [1, 5, 1, 2, 3]
        expected += jacobian.reshape(5, 6).norm(dim=1) / head(x[None])[0].abs() / len(inputs)
    assert torch.allclose(sensitivity(client_of(model, inputs), "3"), expected.detach(), rtol=1e-4)


def test_features_that_no_example_uses_are_hidden_last() -> None:
    model = small(nn.ReLU)
    with torch.no_grad():
        model[1].bias[2] = -100.0
    client = client_of(model, torch.rand((3, 6), generator=generator(0, "inputs")))
    assert sensitivity(client, "3")[2] == math.inf
    assert 2 not in Soteria(ratio=0.6).hidden_features(client, "3")


def test_a_feature_is_judged_by_the_examples_that_use_it() -> None:
    """One example switches a ReLU off; the ratio of the other counts in full, not by half."""
    with frozen_randomness(0):
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 3))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    client = client_of(model, torch.tensor([[-1.0, 4.0], [2.0, 4.0]]))
    assert torch.allclose(sensitivity(client, "2"), torch.tensor([1 / 2, 1 / 4]))


def test_soteria_finds_the_first_layer_behind_the_input_or_the_one_named() -> None:
    with frozen_randomness(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    client = client_of(model, torch.rand((2, 6), generator=generator(0, "inputs")))
    for defense, name in ((Soteria(ratio=1.0), "3"), (Soteria(ratio=1.0, layer="5"), "5")):
        sent = defense(gradient(client), client, generator=generator(0, "none")).tensors
        assert [key for key, tensor in sent.items() if not tensor.any()] == [f"{name}.weight"]


def test_soteria_takes_the_change_of_weights_after_local_steps() -> None:
    client = client_of(small(), torch.rand((4, 6), generator=generator(0, "inputs")), FedAvg(lr=0.1, batch_size=2))
    update = gradient(client)
    sent = Soteria(ratio=0.4)(update, client, generator=generator(0, "none"))
    assert sent.kind == "delta"
    assert int((sent.tensors["3.weight"] == 0).all(0).sum()) == 2


@pytest.mark.parametrize(
    ("model", "layer", "name", "values"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), None, "no_linear_layer", ["1"]),
        (small(), "7", "no_linear_layer", ["'7'", "1, 3"]),
        (small(), "2", "no_linear_layer", ["'2'", "1, 3"]),
        (nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten()), None, "no_linear_layer", []),
        (
            nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Flatten(), nn.Linear(8, 3)),
            None,
            "not_called_once",
            ["'1'"],
        ),
    ],
)
def test_a_layer_soteria_needs_that_is_not_there_is_refused(
    model: nn.Module, layer: str | None, name: str, values: list[str]
) -> None:
    client = client_of(model, torch.rand((2, 2, 3), generator=generator(0, "inputs")))
    with refusal(name, *values):
        Soteria(ratio=0.5, layer=layer)(gradient(client), client, generator=generator(0, "none"))


def test_soteria_works_behind_batch_norm_and_leaves_its_statistics() -> None:
    with frozen_randomness(0):
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).train()
    client = client_of(model, torch.rand((3, 1, 4, 4), generator=generator(0, "inputs")))
    before = {name: b.clone() for name, b in model.named_buffers()}
    sent = Soteria(ratio=0.5)(gradient(client), client, generator=generator(0, "none"))
    assert int((sent.tensors["4.weight"] == 0).all(0).sum()) >= 4
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


# --- Jacobian damping ------------------------------------------------------------------------------------------------


def dense_jacobian(client: ClientView) -> Tensor:
    """`[params, inputs]`, column by column by central differences."""
    inputs, step, columns = client.batch.inputs, 1e-4, []
    for i in range(inputs.numel()):
        shift = torch.zeros(inputs.numel(), dtype=inputs.dtype)
        shift[i] = step
        ends = [
            gradient(replace(client, batch=replace(client.batch, inputs=inputs + s * shift.reshape(inputs.shape))))
            for s in (1, -1)
        ]
        columns.append((flat(ends[0].tensors) - flat(ends[1].tensors)) / (2 * step))
    return torch.stack(columns, dim=1)


def exact_client(rule: FedSGD | FedAvg | None = None) -> ClientView:
    inputs = torch.rand((2, 6), generator=generator(3, "inputs"), dtype=torch.float64)
    return client_of(small().double(), inputs, rule)


@pytest.mark.parametrize("rule", [FedSGD(), FedAvg(lr=0.5, steps=3, batch_size=1)], ids=["fedsgd", "fedavg"])
def test_jacobian_damping_solves_its_problem(rule: FedSGD | FedAvg) -> None:
    client = exact_client(rule)
    jacobian, update = dense_jacobian(client), gradient(client)
    g = flat(update.tensors)
    for beta in (0.1, 1.0, 100.0):
        weight = beta * g.dot(g) / (jacobian.T @ g).square().sum()
        expected = torch.linalg.solve(torch.eye(len(g), dtype=g.dtype) + weight * jacobian @ jacobian.T, g)
        sent = JacobianDamping(beta=beta, steps=200, tolerance=1e-9)(update, client, generator=generator(0, "none"))
        assert float((flat(sent.tensors) - expected).norm() / g.norm()) < 1e-5


def test_derivatives_are_each_others_transpose() -> None:
    client = exact_client()
    pull, push = derivatives(client)
    u = {name: torch.randn(p.shape, generator=generator(0, "u")).double() for name, p in client.params.items()}
    v = torch.randn((2, 6), generator=generator(0, "v")).double()
    assert float((pull(u) * v).sum()) == pytest.approx(float(flat(u).dot(flat(push(v)))), rel=1e-9)


def test_more_beta_leaks_less_and_strays_further() -> None:
    client = exact_client()
    update, (pull, _) = gradient(client), derivatives(client)
    leaks, strays = [], []
    for beta in (0.0, 0.1, 1.0, 10.0, 1000.0):
        sent = JacobianDamping(beta=beta, steps=200)(update, client, generator=generator(0, "none")).tensors
        leaks.append(float(pull(sent).norm()))
        strays.append(float((flat(sent) - flat(update.tensors)).norm()))
    assert leaks == sorted(leaks, reverse=True)
    assert strays == sorted(strays)
    assert leaks[-1] < 0.01 * leaks[0]


# --- OUTPOST and noise over rounds -----------------------------------------------------------------------------------


def test_outpost_is_used_less_and_less() -> None:
    """Chance 1 / (1 + beta t): always in round 0, and 1/5 of the time at beta t = 4."""
    update, defense = random_update(CLIENT), Outpost(beta=0.5)

    def used(t: int, draws: int) -> int:
        view = replace(CLIENT, t=t)
        sent = [defense(update, view, generator=generator(0, "outpost", i)) for i in range(draws)]
        return sum(one is not update for one in sent)

    assert used(0, 20) == 20
    assert stats.binomtest(used(8, 200), 200, 0.2).pvalue > 1e-6


def test_outpost_scales_noise_with_the_weights_variance() -> None:
    wide, huge = ({name: factor * p for name, p in CLIENT.params.items()} for factor in (3.0, 1e4))
    update = random_update(CLIENT)
    deviations = []
    for params in (CLIENT.params, wide, huge):
        sent = Outpost(prune=0.0, phi=1.0)(update, replace(CLIENT, params=params), generator=generator(0, "outpost"))
        name = next(iter(params))
        deviations.append(float((sent.tensors[name] - update.tensors[name]).std()))
    assert deviations[1] / deviations[0] == pytest.approx(9.0, rel=1e-2)
    assert deviations[2] == pytest.approx(0.8, rel=0.1), "a variance above 1 counts as 1"


def test_decaying_noise_follows_its_plan() -> None:
    update, defense = random_update(CLIENT), DecayingNoise(sigma=1.0, decay=0.5, every=2, floor=0.2)
    for t, expected in ((0, 1.0), (1, 1.0), (2, 0.5), (5, 0.25), (40, 0.2)):
        sent = defense(update, replace(CLIENT, t=t), generator=generator(0, "noise", t))
        noise = flat(sent.tensors) - flat(update.tensors)
        assert defense.sigma_at(t) == expected
        assert float(noise.std()) == pytest.approx(expected, rel=0.15)


def test_decaying_noise_without_decay_is_gaussian_noise() -> None:
    update = random_update(CLIENT)
    plain = GaussianNoise(sigma=0.3, clip=2.0)(update, CLIENT, generator=generator(0, "noise"))
    steady = DecayingNoise(sigma=0.3, clip=2.0, decay=1.0)(
        update, replace(CLIENT, t=9), generator=generator(0, "noise")
    )
    assert torch.equal(flat(plain.tensors), flat(steady.tensors))


# --- quantization and partial access ---------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=40), st.integers(1, 31))
def test_quantized_values_stay_in_range_and_near(values: list[float], bits: int) -> None:
    update = Update({"w": torch.tensor(values, dtype=torch.float64)})
    sent = Quantize(bits=bits)(update, CLIENT, generator=generator(0, "none")).tensors["w"]
    largest = max(abs(v) for v in values)
    assert float(sent.abs().max()) <= largest * (1 + 1e-12)
    if bits > 1:
        assert float((sent - update.tensors["w"]).abs().max()) <= largest / (2 ** (bits - 1) - 1) * (1 + 1e-9)


def test_one_bit_is_as_near_as_one_scale_can_be() -> None:
    tensor = torch.randn(100, generator=generator(0, "w"))
    sent = Quantize(bits=1)(Update({"w": tensor}), CLIENT, generator=generator(0, "none")).tensors["w"]
    best = min(float((tensor - scale * tensor.sign()).norm()) for scale in torch.linspace(0, 3, 3001))
    assert float((tensor - sent).norm()) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("bits", [1, 8, 32])
def test_an_update_of_zeros_stays_one(bits: int) -> None:
    zeros = Update({"w": torch.zeros(4), "b": torch.zeros(0)})
    sent = Quantize(bits=bits)(zeros, CLIENT, generator=generator(0, "none")).tensors
    assert not sent["w"].any()
    assert sent["b"].shape == (0,)


@given(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=30), st.floats(0, 1))
@example([1.0, 2.0, 3.0, 4.0], 0.5)
def test_what_is_encrypted_and_what_is_readable_make_the_whole(values: list[float], share: float) -> None:
    """Ties and rounding included: each entry is on exactly one side."""
    update = Update({"w": torch.tensor(values), "b": torch.tensor(values[:3])})
    top = PartialAccess(share=share)(update, CLIENT, generator=generator(0, "none"))
    rest = SelectiveEncryption(share=share)(update, CLIENT, generator=generator(0, "none"))
    assert torch.equal(flat(top.tensors) + flat(rest.tensors), flat(update.tensors))
    assert not bool(((flat(top.tensors) != 0) & (flat(rest.tensors) != 0)).any())


# --- masks that cancel -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [2, 3, 7])
def test_the_sum_over_the_group_is_unchanged(clients: int) -> None:
    updates = [random_update(CLIENT, seed) for seed in range(clients)]
    defense = ZeroSumNoise(sigma=10.0, secret=5)
    views = [replace(CLIENT, number=k, clients=clients, t=4) for k in range(clients)]
    sent = [
        defense(update, view, generator=generator(0, "defense", view.number))
        for update, view in zip(updates, views, strict=True)
    ]
    plain, masked = (torch.stack([flat(u.tensors) for u in group]) for group in (updates, sent))
    assert torch.allclose(masked.sum(0), plain.sum(0), atol=1e-4)
    assert float((masked - plain).std()) == pytest.approx(10 * 2**0.5, rel=0.05)


@pytest.mark.parametrize("clients", [2, 3, 5])
def test_masks_in_proportion_cancel_too_and_leave_zeros(clients: int) -> None:
    """Each entry's noise has the variance of the two magnitudes that its masks were made for."""
    updates = [random_update(CLIENT, seed) for seed in range(clients)]
    for update in updates:
        next(iter(update.tensors.values()))[0] = 0.0
    defense = ZeroSumNoise(sigma=0.7, proportional=True)
    views = [replace(CLIENT, number=k, clients=clients, neighbor=updates[k - 1]) for k in range(clients)]
    sent = [
        defense(update, view, generator=generator(0, "defense", view.number))
        for update, view in zip(updates, views, strict=True)
    ]
    plain, masked = (torch.stack([flat(u.tensors) for u in group]) for group in (updates, sent))
    assert torch.allclose(masked.sum(0), plain.sum(0), atol=1e-5)
    assert not next(iter(sent[0].tensors.values()))[0].any()
    sizes = 0.7 * (plain**2 + plain.roll(1, 0) ** 2).sqrt()
    noise = ((masked - plain) / sizes)[sizes > 0]
    assert float(noise.std()) == pytest.approx(1, rel=0.1)


def test_masks_are_new_in_each_round_and_for_each_secret() -> None:
    update = random_update(CLIENT)

    def masked(secret: int, t: int) -> Tensor:
        view = replace(CLIENT, t=t)
        return flat(ZeroSumNoise(sigma=1.0, secret=secret)(update, view, generator=generator(0, "none")).tensors)

    assert not torch.equal(masked(0, 0), masked(0, 1))
    assert not torch.equal(masked(0, 0), masked(1, 0))


def test_a_group_behind_secure_aggregation_sends_the_same_mean() -> None:
    """Through the whole way of a round: three clients, one mean."""

    def mean(defense: Defense | None) -> Tensor:
        model = small()
        params, buffers = state_of(model)
        batch = Batch(torch.rand((6, 6), generator=generator(0, "inputs")), torch.arange(6) % 3)
        knowledge = Knowledge(model, Aggregate(rule=FedSGD(), clients=3), (6,), 3, architecture=Architecture("small"))
        return flat(Victim(knowledge, params, lambda t: batch, 1, buffers, defense).update(0).tensors)

    assert torch.allclose(mean(ZeroSumNoise(sigma=1.0)), mean(None), atol=1e-5)
    assert torch.allclose(mean(ZeroSumNoise(sigma=1.0, proportional=True)), mean(None), atol=1e-5)
    assert not torch.allclose(mean(GaussianNoise(sigma=1.0)), mean(None), atol=1e-2)
