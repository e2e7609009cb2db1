"""How likely a defense says it sends an update: against draws of the defense itself, scipy, and less knowledge."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import seepage.federation.data
from seepage import DEFENSES, Architecture, FedAvg, FedSGD, attack, build, record, score
from seepage.attacks.cafe import Cafe
from seepage.attacks.search.adaptive import Stated, known_likelihood
from seepage.attacks.search.partial import GaussianLikelihood
from seepage.attacks.search.presets import bayes, inverting_gradients
from seepage.audit.recipe.files import BUILT_IN, read_recipe
from seepage.base.nn import frozen_randomness
from seepage.federation.clients import Aggregate
from seepage.federation.defenses import Compose, FakeGradients, LaplaceNoise, Quantize, Sparsify
from seepage.federation.defenses.noise import LaplaceLikelihood
from seepage.federation.defenses.quantize import SOFTNESS, WITHIN, RoundingLikelihood
from seepage.federation.types import ClientUpdate, Defense, Knowledge, Tensors
from seepage.report.frontier.sweep import sweep_of


def network() -> nn.Module:
    with frozen_randomness(0):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def rounded(defense: Quantize, exact: Tensor) -> Tensor:
    return defense._send(exact)


def test_laplace_is_scipys_log_density() -> None:
    guess, sent = numbers(0, 20), numbers(1, 20)
    found = [float(LaplaceLikelihood(0.3)({"w": g}, {"w": sent})) for g in (guess, sent)]
    densities = [stats.laplace.logpdf(sent.numpy(), g.numpy(), 0.3).sum() for g in (guess, sent)]
    assert found[0] - found[1] == pytest.approx(densities[1] - densities[0])


def test_laplace_clips_the_guess_as_the_client_clipped_its_own() -> None:
    guess = {"w": torch.tensor([3.0, -1.0])}  # of magnitude 4, clipped to 2
    assert float(LaplaceLikelihood(0.5, clip=2.0)(guess, {"w": torch.tensor([1.5, -0.5])})) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "client", [FedSGD(), FedAvg(lr=0.2, epochs=2, batch_size=2, shuffle=False)], ids=["one", "avg"]
)
def test_the_scale_is_that_of_the_noise_in_units_of_the_gradient(client: ClientUpdate) -> None:
    defense = LaplaceNoise(scale=0.4)
    stated, noise = defense.likelihood(client, 4), defense.added_noise(client, 4, 0)
    assert stated.scale * math.sqrt(2) == pytest.approx(noise.deviation)


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_intervals_cost_what_lies_beyond_them_and_little_within(bits: int) -> None:
    sent, guess = rounded(Quantize(bits=bits), numbers(0, 50)), numbers(1, 50)
    step, total = float(sent.abs().max()) / (2 ** (bits - 1) - 1), 0.0
    for g, v in zip(guess.tolist(), sent.tolist(), strict=True):
        off = abs(g - v) / step
        total += WITHIN * min(off, 0.5) + (WITHIN * (off - 0.5) + (1 - WITHIN) * (off - 0.5) if off > 0.5 else 0)
    assert float(RoundingLikelihood(bits)({"w": guess}, {"w": sent})) == pytest.approx(total)


def test_one_bit_counts_wrong_signs_and_holds_the_mean_magnitude() -> None:
    exact, guess = numbers(0, 30), numbers(1, 30)
    sent = rounded(Quantize(bits=1), exact)
    mean = float(exact.abs().mean())
    pairs = zip(guess.tolist(), exact.tolist(), strict=True)
    signs = sum(math.log1p(math.exp(-g * math.copysign(1, e) / (SOFTNESS * mean))) for g, e in pairs)
    size = 30 * (float(guess.abs().mean()) / mean - 1) ** 2
    assert float(RoundingLikelihood(1)({"w": guess}, {"w": sent})) == pytest.approx(signs + size)
    # The truth has every sign right, and the magnitude.
    assert float(RoundingLikelihood(1)({"w": exact}, {"w": sent})) < 30 * math.log(2)


@pytest.mark.parametrize("bits", [1, 3])
def test_its_slope_is_that_of_finite_differences(bits: int) -> None:
    sent, guess = rounded(Quantize(bits=bits), numbers(0, 12)), numbers(1, 12)
    likelihood = RoundingLikelihood(bits)
    assert torch.autograd.gradcheck(lambda g: likelihood({"w": g}, {"w": sent}), guess.requires_grad_())


def known(defense: Defense, client: ClientUpdate) -> Knowledge:
    return Knowledge(network(), client, (1, 8, 8), 10, defense=defense)


def test_bayes_takes_the_likelihood_of_a_defense_that_states_one() -> None:
    found = bayes().distance.adapt_to(known(LaplaceNoise(scale=0.5), FedSGD()))
    assert found == Stated(LaplaceLikelihood(0.5))
    assert bayes(sigma=0.3).distance.adapt_to(known(Quantize(bits=4), FedSGD())) == GaussianLikelihood(sigma=0.3)


@pytest.mark.parametrize(
    ("defense", "client"),
    [
        (Quantize(bits=32), FedSGD()),
        (LaplaceNoise(scale=0.0), FedSGD()),
        (Quantize(bits=4), Aggregate(rule=FedSGD(), clients=2)),
        (Quantize(bits=4), FedAvg(lr=0.1, optimizer="adam")),
        (Compose((Quantize(bits=4), Sparsify(keep=0.5))), FedSGD()),
    ],
)
def test_what_has_another_law_is_not_followed(defense: Defense, client: ClientUpdate) -> None:
    assert known_likelihood(known(defense, client)) is None


def recovered(method: object, defense: Defense, known: list[str]) -> float:
    """Median PSNR over four digits in one update."""
    data = seepage.federation.data.load("digits", size=14)
    batch, model = data.batch(data.private[:4]), build(Architecture("fc2", {"hidden": 64}), (1, 14, 14), 10)
    seen = record(model, batch, defense=defense, known=known)  # type: ignore[arg-type]
    return score(attack(seen, method), batch).psnr_median or 0.0  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "defense", "gain"),
    [
        (bayes(steps=100), Quantize(bits=4), 1.0),
        (bayes(steps=100), Quantize(bits=1), 4.0),
        (bayes(steps=100), LaplaceNoise(scale=1e-3), 4.0),
        (inverting_gradients(steps=100), FakeGradients(candidates=10), 4.0),
    ],
    ids=lambda value: str(value)[:40],
)
def test_who_knows_sees_more(method: object, defense: Defense, gain: float) -> None:
    knows, does_not = (recovered(method, defense, known) for known in (["labels", "defense"], ["labels"]))
    assert knows > does_not + gain


STRENGTHS: dict[str, dict[str, object]] = {
    "adaptive_dp": {"sigma": 0.1, "clip": 1.0},
    "decaying_noise": {"sigma": 0.1, "clip": 1.0},
    "dp_sgd": {"sigma": 0.1},
    "fake_gradients": {},
    "gaussian_noise": {"sigma": 0.1},
    "jacobian_damping": {"beta": 1.0},
    "laplace_noise": {"scale": 0.1},
    "outpost": {},
    "partial_access": {"share": 0.5},
    "quantize": {"bits": 1},
    "selective_encryption": {},
    "soteria": {"ratio": 0.5},
    "sparsify": {"keep": 0.1},
    "unit_norm_noise": {"sigma": 0.1},
    "zero_sum_noise": {"sigma": 0.1},
}


@pytest.mark.parametrize("use", sorted(set(DEFENSES) - {"withhold"}))
def test_every_defense_has_an_attacker_of_the_frontier_who_makes_something_of_it(use: str) -> None:
    """Which tensors are withheld every attack sees, told of it or not."""
    tables = read_recipe(BUILT_IN / "frontier.toml")
    swept = sweep_of({**tables, "frontier": [{"use": use, **STRENGTHS[use]}]})
    assert swept.entries[1].known is not None


def test_cafe_sets_forged_entries_aside_where_it_is_told_of_them() -> None:
    by_value, by_magnitude = (known(FakeGradients(order=order), FedSGD()) for order in ("value", "magnitude"))
    assert Cafe().adapts(by_value)
    assert not Cafe().adapts(by_magnitude)
    assert not Cafe(entries="all").adapts(by_value)
    assert not Cafe().adapts(replace(by_value, defense=None))


def test_forged_entries_are_set_aside_and_true_ones_are_not() -> None:
    """Of fake gradients as written, entry by entry: what is kept was in the gradient, and most of it is kept."""
    true = numbers(0, 4_000) * 1e-3
    forged = FakeGradients(candidates=20).forge(true, seed=0).tensor
    model = FakeGradients().attacker_models(network())[0]
    kept: Tensors = model.credible({"w": forged})
    right = kept["w"][kept["w"] != 0] == true[kept["w"] != 0]
    assert float(right.double().mean()) > 0.98
    assert len(right) > 0.4 * len(true)
    bound = float(kept["w"][kept["w"] != 0].abs().min())
    assert float((true[kept["w"] == 0].abs() <= bound).double().mean()) > 0.98
