"""Distances that follow the client's defense: against slow loops, and against attackers who do not know of it."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.victims import precise
from torch import Tensor, nn

import seepage.federation.data
from seepage import FedAvg, FedSGD, attack, record, score
from seepage.attacks.search.adaptive import DefenseAware
from seepage.attacks.search.distances import L1, L2, Cosine, Distance
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.presets import fedleak, fedleak_released, inverting_gradients
from seepage.base.nn import generator
from seepage.federation.clients import Aggregate
from seepage.federation.defenses import (
    Compose,
    GaussianNoise,
    JacobianDamping,
    LaplaceNoise,
    Outpost,
    PartialAccess,
    Quantize,
    SelectiveEncryption,
    Soteria,
    Sparsify,
    UnitNormNoise,
)
from seepage.federation.defenses.sparsify import SMALL_ENTRY_WEIGHT
from seepage.federation.types import Batch, ClientUpdate, ClientView, Defense, Knowledge, Tensors, Update

SHAPES = {"1.weight": (4, 6), "1.bias": (4,), "3.weight": (3, 4), "3.bias": (3,)}


def network(seed: int = 0, inputs: int = 6, hidden: int = 4, classes: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, classes))


def gradient(seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    return {name: torch.from_numpy(rng.normal(size=shape)) for name, shape in SHAPES.items()}


def sent(defense: Defense, true: Tensors, seed: int = 0) -> Tensors:
    model = network()
    params = {name: p.detach().double() for name, p in model.named_parameters()}
    batch = Batch(torch.rand(2, 6, generator=generator(seed, "x")).double(), torch.tensor([0, 1]))
    view = ClientView(model.double(), params, batch, FedSGD())
    return defense(Update(true), view, generator=generator(seed, "defense")).tensors


def knowing(defense: Defense | None, client: ClientUpdate | None = None) -> Knowledge:
    return Knowledge(network(), client or FedSGD(), (6,), 3, defense=defense)


EXACT: list[tuple[Defense, Distance]] = [
    (PartialAccess(share=0.6, which="lowest"), L2()),
    (SelectiveEncryption(share=0.5), Cosine()),
    (Soteria(ratio=0.5), L2()),
    (Quantize(bits=3), L1()),
    (GaussianNoise(sigma=0.0, clip=0.5), L2()),
    (LaplaceNoise(scale=0.0, clip=0.5), L1()),
    (UnitNormNoise(sigma=0.0), L2()),
    (Compose((Soteria(ratio=0.5), SelectiveEncryption(share=0.5))), L2()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("defense", "inner"), EXACT, ids=str)
@given(seed=st.integers(0, 50))
def test_the_true_gradient_fits_what_the_defense_made_of_it(defense: Defense, inner: Distance, seed: int) -> None:
    true = gradient(seed)
    seen = sent(defense, true, seed)
    assert float(DefenseAware(inner).adapt_to(knowing(defense))(true, seen)) == pytest.approx(0, abs=1e-9)
    assert float(inner(true, seen)) > 1e-4


def by_hand(guess: Tensors, seen: Tensors, bounds: dict[str, float]) -> float:
    """Squared distance where entries sent as zero count fully beyond a bound and little within, entry by entry."""
    total = 0.0
    for name in SHAPES:
        for g, v in zip(guess[name].flatten().tolist(), seen[name].flatten().tolist(), strict=True):
            over = max(0.0, abs(g) - bounds[name])
            total += (g - v) ** 2 if v != 0 else (over + SMALL_ENTRY_WEIGHT * (abs(g) - over)) ** 2
    return total


@given(st.integers(0, 50), st.sampled_from(["tensor", "model"]))
def test_a_pruned_entry_counts_fully_beyond_the_least_that_was_sent(
    seed: int, scope: Literal["tensor", "model"]
) -> None:
    defense = Sparsify(keep=0.4) if scope == "tensor" else PartialAccess(share=0.4)
    guess, seen = gradient(seed), sent(defense, gradient(seed + 100))
    guess = {name: 3 * tensor for name, tensor in guess.items()}
    shown = {name: [abs(v) for v in seen[name].flatten().tolist() if v] for name in SHAPES}
    least = min(min(sizes) for sizes in shown.values() if sizes)
    bounds = {name: min(sizes) if scope == "tensor" else least for name, sizes in shown.items()}
    found = DefenseAware(L2()).adapt_to(knowing(defense))(guess, seen)
    assert float(found) == pytest.approx(by_hand(guess, seen, bounds))


PRUNING = [
    Sparsify(keep=0.4),
    PartialAccess(share=0.4),
    Compose((Sparsify(keep=0.1), PartialAccess(share=0.9))),
    Compose((PartialAccess(share=0.9), Sparsify(keep=0.1))),
]


@given(st.integers(0, 50), st.sampled_from(PRUNING))
def test_nothing_of_the_true_gradient_lies_beyond_what_was_sent(seed: int, defense: Defense) -> None:
    true = {name: tensor * size for size, (name, tensor) in enumerate(gradient(seed).items(), 1)}
    seen = sent(defense, true, seed)
    within = sum(float((SMALL_ENTRY_WEIGHT * true[name][seen[name] == 0]).pow(2).sum()) for name in SHAPES)
    assert float(DefenseAware(L2()).adapt_to(knowing(defense))(true, seen)) == pytest.approx(within)


@given(st.integers(0, 50), st.floats(0.01, 100.0))
def test_the_bound_of_pruned_entries_grows_with_the_guess_where_length_does_not_count(seed: int, by: float) -> None:
    guess, seen = gradient(seed), sent(Sparsify(keep=0.4), gradient(seed + 100))
    distance = DefenseAware(Cosine()).adapt_to(knowing(Sparsify(keep=0.4)))
    longer = {name: by * tensor for name, tensor in guess.items()}
    assert float(distance(longer, seen)) == pytest.approx(float(distance(guess, seen)))


@given(st.integers(0, 50), st.booleans())
def test_a_tensor_of_which_nothing_was_sent_is_as_small_as_the_least_of_the_others(seed: int, first: bool) -> None:
    parts = [PartialAccess(share=0.05), Sparsify(keep=0.9)]
    defense, true = Compose(tuple(parts if first else parts[::-1])), gradient(seed)
    seen = sent(defense, true, seed)
    within = sum(float((SMALL_ENTRY_WEIGHT * true[name][seen[name] == 0]).pow(2).sum()) for name in SHAPES)
    assert any(not tensor.any() for tensor in seen.values())
    assert float(DefenseAware(L2()).adapt_to(knowing(defense))(true, seen)) == pytest.approx(within)


@given(st.integers(0, 50), st.integers(2, 6))
def test_a_rounded_entry_counts_by_what_it_lies_outside_its_interval(seed: int, bits: int) -> None:
    guess, seen = gradient(seed), sent(Quantize(bits=bits), gradient(seed + 100))
    expected = 0.0
    for name in SHAPES:
        step = max(abs(v) for v in seen[name].flatten().tolist()) / (2 ** (bits - 1) - 1)
        for g, v in zip(guess[name].flatten().tolist(), seen[name].flatten().tolist(), strict=True):
            expected += max(0.0, abs(g - v) - step / 2)
    assert float(DefenseAware(L1()).adapt_to(knowing(Quantize(bits=bits)))(guess, seen)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("defense", "inner", "client"),
    [
        (None, L2(), FedSGD()),
        (JacobianDamping(beta=1.0), L2(), FedSGD()),
        (GaussianNoise(sigma=0.1), L2(), FedSGD()),
        (GaussianNoise(sigma=0.1, clip=1.0), Cosine(), FedSGD()),
        (GaussianNoise(sigma=0.1, clip=1.0), L2(), FedAvg(lr=0.1)),
        (Quantize(bits=4), Cosine(), FedSGD()),
        (Quantize(bits=1), L1(), FedSGD()),
        (Compose((Sparsify(keep=0.5), GaussianNoise(sigma=0.1))), L2(), FedSGD()),
        (Sparsify(keep=0.5), L2(), Aggregate(rule=FedSGD(), clients=2)),
    ],
)
def test_what_cannot_be_followed_leaves_the_distance_as_it_is(
    defense: Defense | None, inner: Distance, client: ClientUpdate
) -> None:
    assert DefenseAware(inner).adapt_to(knowing(defense, client)) is not DefenseAware(inner)
    assert DefenseAware(inner).adapt_to(knowing(defense, client)) == inner


@pytest.mark.parametrize("inner", [L2(), Cosine()], ids=str)
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_its_slope_is_that_of_finite_differences(inner: Distance, scale: float) -> None:
    defense = Compose((GaussianNoise(sigma=0.0, clip=0.7), Sparsify(keep=0.5)))
    seen, guess = sent(defense, gradient(1)), gradient(2)
    distance = DefenseAware(inner).adapt_to(knowing(defense))
    names = list(guess)

    def value(*tensors: Tensor) -> Tensor:
        return distance(dict(zip(names, tensors, strict=True)), seen)

    assert torch.autograd.gradcheck(value, tuple((scale * guess[name]).requires_grad_() for name in names))


def recovered(method: GradientMatching, defense: Defense, *, knows: bool, pictures: int = 2) -> float:
    """Mean PSNR over single pictures."""
    data = seepage.federation.data.load("digits", size=8)
    found = 0.0
    for i in range(pictures):
        batch = data.batch(data.private[i : i + 1])
        known = ["labels", "defense"] if knows else ["labels"]
        transcript = record(network(i, 64, 32, 10), batch, defense=defense, known=known, seed=i)  # type: ignore[arg-type]
        found += score(attack(transcript, method), batch).psnr or 0.0
    return found / pictures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("distance", "defense", "gain"),
    [
        (L2(), Sparsify(keep=0.1), 5.0),
        (L2(), PartialAccess(share=0.8, which="lowest"), 10.0),
        (L2(), PartialAccess(share=0.1), 5.0),
        (Cosine(), SelectiveEncryption(share=0.2), 10.0),
        (Cosine(), Soteria(ratio=0.9), 10.0),
        (L2(), Outpost(prune=0.9, noise=0.0), 5.0),
        (L2(), GaussianNoise(sigma=1e-4, clip=0.05), 5.0),
        (L2(), UnitNormNoise(sigma=1e-4), 5.0),
        (L1(), Quantize(bits=4), 1.0),
    ],
)
def test_an_attacker_who_knows_the_defense_sees_more(distance: Distance, defense: Defense, gain: float) -> None:
    method = precise(DefenseAware(distance), 10)
    knows, does_not = (recovered(method, defense, knows=known) for known in (True, False))
    assert knows > does_not + gain


def test_the_published_attacks_follow_a_defense_that_they_are_told_of() -> None:
    for method in (inverting_gradients(), fedleak(), fedleak_released()):
        assert method.distance.adapt_to(knowing(Soteria(ratio=0.5))) != method.distance.adapt_to(knowing(None))
