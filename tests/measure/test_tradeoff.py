"""Bounds from clip and noise: the best attack reaches them and none exceeds them."""

import math

import pytest
import torch
from torch import Tensor, nn

from seepage.base.nn import generator
from seepage.base.schema import Share
from seepage.errors import SeepageError
from seepage.federation.clients import FedAvg, FedSGD
from seepage.federation.defenses import DPSGD, Compose, GaussianNoise, LaplaceNoise, Soteria
from seepage.federation.types import Batch, ClientView, GaussianMechanism, Update
from seepage.measure.bounds import (
    BoundOptions,
    blind_chance,
    gaussian_auc,
    gaussian_mu,
    gaussian_tpr,
    upper_bounds,
)
from seepage.measure.metrics.membership import area_interval

DRAWS = 2000


def sent(vector: Tensor, defense: GaussianNoise | LaplaceNoise, seed: int) -> Tensor:
    """`[DRAWS, d]` what the real defense makes of one update, each time with fresh noise."""
    view = ClientView(nn.Identity(), {}, Batch(torch.zeros(1, 1), torch.zeros(1).long()), FedSGD())
    draw = generator(seed, "noise of many rounds")
    return torch.stack([defense(Update({"w": vector}), view, generator=draw).tensors["w"] for _ in range(DRAWS)])


def named_at(level: float, members: Tensor, others: Tensor) -> Share:
    """True positives where the best threshold lets this share of the others through."""
    threshold = others.sort().values[-round(level * len(others))]
    return Share.count(int((members >= threshold).sum()), len(members))


@pytest.mark.parametrize("sigma", [0.8, 2.0])
def test_likelihood_ratio_reaches_the_membership_bound(sigma: float) -> None:
    # The worst pair of batches: their updates point in opposite directions and are clipped to 1.
    update = 5 * torch.nn.functional.normalize(torch.arange(1.0, 6.0), dim=0)
    defense = GaussianNoise(sigma=sigma, clip=1.0)
    members, others = (sent(sign * update, defense, seed) @ update for seed, sign in ((0, 1.0), (1, -1.0)))
    bound = upper_bounds(Batch(torch.rand(1, 2), torch.tensor([0])), defense=defense)
    rate, area = bound.of("tpr"), bound.of("auc")
    assert rate is not None
    assert area is not None
    low, high = named_at(0.05, members, others).interval
    assert low - 0.02 < gaussian_tpr(0.05, 2 / sigma) < high + 0.02  # the threshold is estimated, too
    assert rate.value == gaussian_tpr(0.01, 2 / sigma)
    low, high = area_interval(members, others, resamples=200)
    assert low - 0.01 < area.value < high + 0.01


@pytest.mark.parametrize(("sigma", "count"), [(0.5, 2), (1.5, 2), (0.5, 16), (1.5, 16)])
@pytest.mark.slow
def test_most_likely_candidate_stays_below_reconstruction_robustness(sigma: float, count: int) -> None:
    # Two updates in opposite directions attain it; sixteen at right angles, the most a batch has room for, do not.
    places = torch.eye(count) if count > 2 else torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    hits = 0
    for number, place in enumerate(places):
        seen = sent(place, GaussianNoise(sigma=sigma, clip=1.0), seed=number)[: DRAWS // count]
        hits += int(((seen @ places.T).argmax(1) == number).sum())
    reached = Share.count(hits, DRAWS // count * count)
    batch = Batch(torch.rand(1, 2), torch.tensor([0]))
    found = upper_bounds(
        batch,
        defense=GaussianNoise(sigma=sigma, clip=1.0),
        options=BoundOptions(candidates=count),
    ).of("exact_share")
    assert found.value > reached.interval[0]
    if count == 2:
        assert found.value < reached.interval[1] + 0.01


def test_the_area_is_that_of_its_curve() -> None:
    grid = torch.linspace(0, 1, 1_001, dtype=torch.float64)
    heights = torch.tensor([gaussian_tpr(float(a), 1.3) for a in grid], dtype=torch.float64)
    assert abs(float(torch.trapezoid(heights, grid)) - gaussian_auc(1.3)) < 1e-3


def test_rounds_and_local_steps_add_up() -> None:
    assert gaussian_mu(GaussianMechanism("update", 1.0, (1.0, 2.0))) == math.hypot(1.0, 0.5)
    each = GaussianMechanism("example", 1.0, 2.0, every_step=True)
    assert gaussian_mu(each, rounds=2, participations=8) == pytest.approx(2.0)
    assert gaussian_mu(GaussianMechanism("update", 1.0, 2.0), rounds=2, participations=8) == pytest.approx(0.5**0.5)
    assert gaussian_mu(GaussianMechanism("update", 1.0, 0.0)) == math.inf
    assert gaussian_mu(GaussianMechanism("update", None, 1.0)) is None
    batch = Batch(torch.rand(4, 2), torch.zeros(4).long())
    client = FedAvg(epochs=4, batch_size=2)  # four steps use an example
    once, many = (upper_bounds(batch, client=client, defense=DPSGD(sigma=sigma)).of("tpr") for sigma in (2.0, 4.0))
    assert many is not None
    assert once.value == pytest.approx(gaussian_tpr(0.01, 2 * math.sqrt(4) / 2))
    assert many.value < once.value


@pytest.mark.parametrize(
    ("defense", "words"),
    [
        (GaussianNoise(sigma=1.0), "nothing is clipped"),
        (Compose((DPSGD(sigma=1.0), Soteria(ratio=0.5))), "Soteria looks at the private examples again"),
        (LaplaceNoise(scale=1.0), "no stage of the defense is a mechanism"),
        (None, "no stage of the defense is a mechanism"),
    ],
)
def test_no_bound_without_its_reason(defense: object, words: str) -> None:
    found = upper_bounds(Batch(torch.rand(1, 2), torch.tensor([0])), defense=defense)  # type: ignore[arg-type]
    assert found.of("tpr") is None
    assert any(words in reason for reason in found.reasons)


def test_blind_chance_holds_at_its_confidence() -> None:
    """Private and public examples from five places of known chance; the best guess is the likeliest one."""
    chances = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1])
    draw, held, limits = generator(0, "places"), 0, []
    for _ in range(300):
        places = torch.multinomial(chances, 60, replacement=True, generator=draw)
        public = 10.0 * torch.nn.functional.one_hot(places, 5) + 1e-4 * torch.randn(60, 5, generator=draw)
        limits.append(blind_chance(public, psnr_db=40))
        held += limits[-1] >= 0.3
    assert Share.count(held, 300).interval[1] >= 0.95
    assert held >= 285
    assert sum(limits) / 300 < 0.65  # and it says something


def test_blind_chance_sees_guesses_between_examples() -> None:
    # Examples on both sides of an empty place: a guess there is near to all of them, no example is near another.
    public = torch.tensor([[0.0], [0.019]]).repeat(50, 1)
    assert blind_chance(public, psnr_db=40) == 1.0  # within 0.01 of 0.0095 lie all of them


def test_mistakes_are_named() -> None:
    with pytest.raises(SeepageError, match="from 0 to 1"):
        gaussian_tpr(1.5, 1.0)
    with pytest.raises(SeepageError, match="2 public examples"):
        blind_chance(torch.zeros(1, 2), psnr_db=40)
    private, public = (Batch(torch.rand(2, *shape), torch.zeros(2).long()) for shape in ((3,), (4,)))
    with pytest.raises(SeepageError, match=r"shape \(4,\) and private ones \(3,\)"):
        upper_bounds(private, options=BoundOptions(public=public))
    with pytest.raises(SeepageError, match=r"rounds >= 1.*level"):
        BoundOptions(rounds=0, level=0.0)
