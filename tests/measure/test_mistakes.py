"""Mistakes of public code are contradicted, and their correct twins are not; servers are called with their clients."""

from typing import Any

import pytest
import torch
from tests.helpers.scripts import script
from torch import Tensor

from seepage.errors import SeepageError
from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.measured import Measurement, OfClients

DELTA = 1e-5
HARMLESS = {"noise added twice", "quantized with a clipping range below zero"}
"""More noise than is claimed, and the same output for any input: useless, and no less private."""
LONG = {"clip and noise after the aggregate"}
"""Its claim is above what a thousand calls can show."""
mistakes = script("mistakes")
CASES = [
    pytest.param(one, marks=pytest.mark.slow if one.name in LONG else (), id=one.name) for one in mistakes.MISTAKES
]


@pytest.mark.parametrize("mistake", CASES)
@pytest.mark.full
def test_a_mistake_is_contradicted(mistake: Any) -> None:
    few = mistake.weights is not None and mistake.name not in LONG
    found = mistakes.measured(mistake, twin=False, seed=11, calls=1000 if few else None)
    assert found.contradicted is (mistake.name not in HARMLESS)


@pytest.mark.parametrize("mistake", CASES)
def test_its_twin_is_not(mistake: Any) -> None:
    assert not mistakes.measured(mistake, twin=True, seed=11, calls=1000).contradicted


def test_what_never_differs_is_told_at_once_whatever_is_claimed() -> None:
    found = Measurement(delta=DELTA, stated=1000.0, calls=1000, seconds=None).epsilon(mistakes.noise_dropped)
    assert found.stated_verdict == "contradicted by sameness"


def test_a_server_is_given_new_updates_of_all_clients_and_their_weights() -> None:
    seen = []

    def server(updates: list[dict[str, Tensor]], weights: list[float]) -> dict[str, Tensor]:
        seen.append(([float(update["w"].norm()) for update in updates], weights))
        mean = sum(update["w"] for update in updates)
        for update in updates:
            update["w"].fill_(1e6)  # nobody's but its own
        return {"w": mean + torch.randn(4)}

    how = Measurement(delta=DELTA, calls=1000, seconds=None)
    how.epsilon(OfClients(server, (5.0, 1.0, 2.0)), shapes={"w": (4,)}, clip=3.0)
    assert {tuple(weights) for _, weights in seen} == {(5.0, 1.0, 2.0)}
    assert all(norms[1:] == pytest.approx([3.0, 3.0]) for norms, _ in seen)
    assert {round(norms[0]) for norms, _ in seen} == {0, 3, 30_000}


def test_a_clip_of_the_mean_is_passed_twice_where_the_others_are_against_the_canary() -> None:
    """The mean moves from nine tenths of the clip on one side to all of it on the other: 1.9 clips."""

    def server(updates: list[dict[str, Tensor]], weights: list[float]) -> dict[str, Tensor]:
        del weights
        mean = torch.stack([update["w"] for update in updates]).mean(0)
        return {"w": mean / max(1.0, float(mean.norm())) + torch.randn(4)}

    stated = epsilon(sigma=1.0, delta=DELTA)
    how = Measurement(delta=DELTA, stated=stated, calls=2000, seconds=None)
    found = how.epsilon(OfClients(server, tuple(10 * [1.0])), shapes={"w": (4,)})
    assert found.stated_verdict == "contradicted by Gaussian fit"
    assert found.fit.epsilon[0] < epsilon(sigma=1 / 1.9, delta=DELTA) < found.fit.epsilon[2]


@pytest.mark.parametrize("weights", [(), (1.0, 0.0), (float("nan"),), (float("inf"), 1.0)])
def test_weights_are_numbers_above_zero(weights: tuple[float, ...]) -> None:
    with pytest.raises(SeepageError, match="above 0"):
        OfClients(lambda updates, weights: updates[0], weights)
