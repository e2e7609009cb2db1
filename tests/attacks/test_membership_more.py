"""Several rounds as one test, other clients as the null, and the span of a fully connected first layer."""

import numpy as np
import pytest
import torch
from refusals import refusal
from scipy.stats import beta
from tests.attacks.test_membership import CLASSES, joined, some
from torch import Tensor, nn

from seepage import GaussianNoise, record
from seepage.attacks.membership import LayerSpan, MatchedFilter, Membership, combined, infer_membership
from seepage.errors import SeepageError
from seepage.federation.clients import FedAvg, FedSGD


def assert_calibrated(p: Tensor) -> None:
    """A share a of these p-values, at most, is up to a: binomial interval at 99.99 %."""
    for level in (0.01, 0.05, 0.1, 0.5):
        hits = int((p <= level).sum())
        assert beta.ppf(1e-4, max(hits, 1), len(p) - hits + 1) < level


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 40), nn.ReLU(), nn.Linear(40, CLASSES))


@pytest.mark.slow
def test_several_rounds_name_more_and_their_p_values_hold() -> None:
    """Noise drawn anew in each round: the sum of four is a better test, and as calibrated as one."""
    model, named, nulls = nn.Sequential(nn.Flatten(), nn.Linear(256, CLASSES)), {}, []
    for rounds in (1, 4):
        named[rounds] = 0
        for s in range(4):
            private, noise = some(4, 1 + s), GaussianNoise(clip=0.1, sigma=0.25)
            seen = record(model, [private] * rounds, defense=noise, known=["defense"], seed=s)
            candidates = joined(private, some(150, 50 + s))
            found = infer_membership(seen, MatchedFilter(), candidates, some(240, 100 + s), t=range(rounds))
            named[rounds] += int((found.p_values[:4] <= 0.05).sum())
            nulls += [found.p_values[4:]] if rounds > 1 else []
    assert named[4] > named[1]
    assert_calibrated(torch.cat(nulls))


def test_a_combination_is_a_rank_among_sums_standardized_alike() -> None:
    """Written out with NumPy, candidate by candidate."""
    draw = np.random.default_rng(0)
    parts = [
        Membership(torch.tensor(draw.normal(size=3) * s), torch.ones(3), torch.tensor(draw.normal(size=20) * s), 5)
        for s in (1.0, 100.0)
    ]
    found = combined(parts)
    for k in range(3):
        pairs = [np.append(part.calibration.numpy(), float(part.statistics[k])) for part in parts]
        sums = sum((pair - pair.mean()) / pair.std(ddof=1) for pair in pairs)
        assert found.p_values[k] == pytest.approx((1 + (sums[:-1] >= sums[-1]).sum()) / 21)
    with pytest.raises(SeepageError, match="same candidates"):
        combined([parts[0], Membership(torch.ones(2), torch.ones(2), parts[0].calibration, 5)])
    with pytest.raises(SeepageError, match="no round"):
        combined([])


@pytest.mark.parametrize("client", [FedSGD(), FedAvg(lr=0.01, epochs=1, batch_size=4)])
def test_the_span_of_a_fully_connected_first_layer_is_exact(client: FedSGD) -> None:
    """Members lie in the row space and others do not: every residual of the one is below every one of the other."""
    private = some(16, 1)
    seen = record(perceptron(), private, client=client)
    found = infer_membership(seen, LayerSpan(), joined(private, some(100, 2)), some(400, 3))
    assert found.statistics[:16].min() > 2 * found.statistics[16:].max()
    assert bool(found.identified(0.005)[:16].all())


def test_what_the_span_says_nothing_about_is_refused() -> None:
    alone = nn.Sequential(nn.Conv2d(1, CLASSES, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with refusal("no_linear_layer"):
        infer_membership(record(alone, some(2, 1)), LayerSpan(), some(2, 5), some(20, 3))
    wide = nn.Sequential(nn.Flatten(), nn.Linear(256, 300), nn.Linear(300, CLASSES).requires_grad_(False))
    seen = record(wide, some(300, 1), defense=GaussianNoise(sigma=0.1))
    with refusal("full_span"):
        infer_membership(seen, LayerSpan(), some(2, 5), some(20, 3))


def test_p_values_hold_on_nulls() -> None:
    draws = []
    for s in range(5):
        seen = record(perceptron(), [some(16, 10 * s + t) for t in range(4)])
        draws.append(infer_membership(seen, LayerSpan(), some(200, 500 + s), some(240, 100 + s)).p_values)
    assert_calibrated(torch.cat(draws))
