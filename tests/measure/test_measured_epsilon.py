"""What is measured of filters whose true epsilon is known, and of broken ones."""

import json
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from refusals import refusal
from torch import Tensor

from seepage.errors import SeepageError
from seepage.federation.defenses import DPSGD, Compose, DecayingNoise, GaussianNoise, LaplaceNoise
from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.measured import Batched, MeasuredEpsilon, Measurement, measure_defense

DELTA = 1e-5
Many = Callable[[Mapping[str, Tensor], int], dict[str, Tensor]]


def _norm(update: Mapping[str, Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in update.values()]).norm())


def _noisy(sigma: float, clip: float = 1.0) -> Many:
    """Clipped, then Gaussian noise with a deviation of sigma."""

    def call(update: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
        shrink = min(1.0, clip / max(_norm(update), 1e-12))
        return {name: shrink * t + sigma * torch.randn(count, *t.shape) for name, t in update.items()}

    return call


def _noise_first(update: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    noisy = {name: t + torch.randn(count, *t.shape) for name, t in update.items()}
    norms = torch.cat([t.reshape(count, -1) for t in noisy.values()], 1).norm(dim=1)
    shrink = (1 / norms).clamp(max=1)
    return {name: torch.einsum("n...,n->n...", t, shrink) for name, t in noisy.items()}


def _relative(update: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Noise as strong as the update is long: without one there is none."""
    return _noisy(_norm(update))(update, count)


def _passing(update: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Noise on a random half of the entries, and the other half as it is."""
    noisy = _noisy(5.0, clip=1.0)(update, count)
    return {name: torch.where(torch.rand_like(n) < 0.5, n, update[name]) for name, n in noisy.items()}


def _withheld(update: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Well noised, but a tensor of zeros is not sent."""
    return {name: t for name, t in _noisy(5.0)(update, count).items() if update[name].any()}


def _hospital() -> Many:
    """Clip 1, sensitivity 1e-4, epsilon 10 and delta 1e-5 by the classical formula."""
    return _noisy(1e-4 * math.sqrt(2 * math.log(1.25 / DELTA)) / 10)


@pytest.mark.parametrize(
    ("filters", "contradicted"),
    [
        pytest.param(_hospital(), True, id="sensitivity 1e-4"),
        pytest.param(_noisy(0.05), True, id="sensitivity below the clip"),
        pytest.param(_noise_first, True, id="noise before the clip"),
        pytest.param(_noisy(0.0), True, id="forgotten noise"),
        pytest.param(_noisy(1.0, clip=math.inf), True, id="forgotten clip"),
        pytest.param(_relative, True, id="noise relative to the norm"),
        pytest.param(_passing, True, id="true values among noisy ones"),
        pytest.param(_withheld, True, id="what is left out tells"),
        pytest.param(_noisy(0.6), False, id="honest"),
    ],
)
def test_an_epsilon_of_ten_is_contradicted_where_it_is_false(filters: Many, contradicted: bool) -> None:
    found = Measurement(delta=DELTA, stated=10.0, seconds=None).epsilon(Batched(filters))
    assert found.contradicted is contradicted
    assert found.ceiling > 10
    assert found.calls <= 120_000
    if contradicted:
        assert found.stated_verdict == "contradicted"  # without any assumption
        assert found.low > 10


def test_twenty_rounds_of_sigma_2_4_are_not_contradicted() -> None:
    computed = epsilon(sigma=2.4, rounds=20, delta=DELTA)
    assert computed == pytest.approx(9.2, abs=0.1)
    found = Measurement(delta=DELTA, stated=10.0, computed=computed, rounds=20, seconds=None).epsilon(
        Batched(_noisy(2.4))
    )
    assert (found.stated_verdict, found.computed_verdict) == ("not contradicted", "not contradicted")
    assert found.fit.alike
    assert found.fit.epsilon[0] < computed < found.fit.epsilon[2]
    assert 2 < found.low < computed  # trials of all twenty rounds
    assert found.rounds_per_trial == 20


def test_the_fit_sees_what_no_number_of_calls_can_show() -> None:
    """20,640 times the deviation: 2e8 from a few thousand calls."""
    found = Measurement(delta=DELTA, stated=1e4, calls=4000, seconds=None).epsilon(Batched(_hospital()))
    assert found.stated_verdict == "contradicted by Gaussian fit"
    assert found.fit.mu[0] < 20640 < found.fit.mu[2]
    assert found.fit.epsilon[0] == pytest.approx(2e8, rel=0.15)
    assert found.low < 7  # and that, without assumption, is all that 4,000 calls tell


@pytest.mark.parametrize(
    ("defense", "rounds", "unit"),
    [
        (GaussianNoise(sigma=1.0, clip=0.5), 1, "update"),
        (GaussianNoise(sigma=2.0, clip=1.0), 4, "update"),
        (DecayingNoise(sigma=2.0, decay=0.5, clip=3.0), 3, "update"),
        # A thousand gradients per example take four seconds.
        pytest.param(DPSGD(sigma=1.0, clip=1.0), 1, "example", marks=pytest.mark.slow),
    ],
)
def test_the_fit_of_our_defenses_agrees_with_the_accountant(
    defense: GaussianNoise | DecayingNoise | DPSGD, rounds: int, unit: str
) -> None:
    found = measure_defense(defense, Measurement(delta=DELTA, rounds=rounds, calls=2000, seconds=None))
    assert found.unit == unit
    assert not found.contradicted
    assert found.fit.epsilon[0] < found.computed
    assert found.fit.epsilon[2] > 0.9 * found.computed


def test_replacing_doubles_what_joining_tells() -> None:
    defense = GaussianNoise(sigma=2.0, clip=1.0)
    found = measure_defense(defense, Measurement(delta=DELTA, neighbors="replace", calls=2000, seconds=None))
    assert found.computed is None
    assert found.fit.mu[0] < 2 / 2.0 < found.fit.mu[2]


@pytest.mark.slow
def test_laplace_noise_stays_below_its_epsilon_and_has_no_fit() -> None:
    """Scale b on a sum of magnitudes clipped to 1 is (1/b)-private (Dwork and Roth 2014, Theorem 3.6)."""
    found = measure_defense(
        LaplaceNoise(scale=0.5, clip=1.0), Measurement(delta=DELTA, calls=6000, stated=2.0, seconds=None)
    )
    assert 0.5 < found.low < 2
    assert found.stated_verdict == "not contradicted"
    assert not found.fit.plausible


def test_a_clip_of_its_own_behind_the_noise_costs_nothing() -> None:
    defense = Compose((GaussianNoise(sigma=1.0, clip=1.0), GaussianNoise(sigma=0.0, clip=0.5)))
    assert not measure_defense(defense, Measurement(delta=DELTA, calls=2000, seconds=None)).contradicted


def test_json_has_words_for_infinity_and_says_both_verdicts() -> None:
    found = Measurement(delta=DELTA, stated=math.inf, computed=3.0, calls=2000).epsilon(Batched(_noisy(0.0)))
    table = json.loads(json.dumps(found.table(), allow_nan=False))
    assert table["stated"] == "Infinity"
    assert (table["stated_verdict"], table["computed_verdict"]) == ("not contradicted", "contradicted")
    assert found.low == found.ceiling
    assert found.deterministic


def test_sameness_contradicts_any_finite_epsilon() -> None:
    found = Measurement(delta=DELTA, stated=1000.0, calls=1000).epsilon(Batched(_noisy(0.0)))
    assert found.stated_verdict == "contradicted by sameness"


def test_a_filter_that_gives_nothing_away_measures_zero() -> None:
    found = Measurement(delta=DELTA, stated=0.5, calls=5000).epsilon(
        Batched(lambda update, count: {name: torch.randn(count, *t.shape) for name, t in update.items()})
    )
    assert found.low < 0.1
    assert not found.contradicted
    assert not found.deterministic


def test_a_filter_may_write_into_what_it_is_given() -> None:
    def call(update: dict[str, Tensor]) -> dict[str, Tensor]:
        for tensor in update.values():
            tensor.add_(5.0 * torch.randn(tensor.shape))
        return update

    found = Measurement(delta=DELTA, calls=1000, seconds=None).epsilon(call, shapes={"w": (3,)})
    assert found.fit is not None
    assert found.canary


def test_the_clock_stops_it_and_what_was_counted_counts() -> None:
    found = Measurement(delta=DELTA, seconds=0.5, calls=10_000_000).epsilon(
        lambda update: {name: t + torch.randn(t.shape) for name, t in update.items()}
    )
    assert found.seconds < 10
    assert found.calls < 100_000
    assert isinstance(found, MeasuredEpsilon)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delta": 0.0},
        {"rounds": 0},
        {"calls": 10},
        {"stated": -1.0},
        {"stated": math.nan},
        {"clip": 0.0},
        {"shapes": {"w": (10_000,)}},
        {"shapes": {}},
    ],
)
def test_what_is_out_of_range_is_said(wrong: dict[str, object]) -> None:
    of_call = {name: value for name, value in wrong.items() if name in ("clip", "shapes")}
    options = {"delta": DELTA, "calls": 1000, **{name: wrong[name] for name in wrong.keys() - of_call.keys()}}
    with pytest.raises(SeepageError):
        Measurement(**options).epsilon(Batched(_noisy(1.0)), **of_call)  # type: ignore[arg-type]


def test_a_measurement_without_pairs_is_refused() -> None:
    with pytest.raises(SeepageError, match="at least one pair"):
        Measurement(delta=DELTA, calls=1000).pairs([])


def test_a_filter_that_returns_something_else_is_said() -> None:
    with pytest.raises(SeepageError, match="named tensors"):
        Measurement(delta=DELTA, calls=1000).epsilon(lambda update: [np.zeros(3)])  # type: ignore[arg-type,return-value]


def test_a_defense_that_looks_at_examples_is_refused() -> None:
    from seepage.federation.defenses import Soteria

    with refusal("needs_examples"):
        measure_defense(Soteria(ratio=0.5), Measurement(delta=DELTA, calls=1000))
