"""Membership tests: p-values hold on nulls, members stand out from others, and linear algebra agrees with oracles."""

import re

import numpy as np
import pytest
import torch
from refusals import refusal
from scipy.stats import beta, kstest
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from seepage import Batch, GaussianNoise, build, record
from seepage.attacks.membership import (
    MEMBERSHIP_TESTS,
    Detector,
    MatchedFilter,
    MembershipInference,
    MembershipTest,
    infer_membership,
    p_values,
)
from seepage.attacks.membership.gradients import ExampleGradients
from seepage.attacks.membership.matched_filter import Whitening
from seepage.attacks.membership.noise import KnownNoise
from seepage.base.registry import Spec
from seepage.base.schema import Share
from seepage.errors import SeepageError
from seepage.federation.clients import FedAvg, FedSGD
from seepage.federation.defenses import DPSGD
from seepage.federation.types import Knowledge, Round, Transcript, Update
from seepage.measure.metrics.membership import area_interval, area_under_curve

SHAPE, CLASSES = (1, 16, 16), 4


def some(n: int, seed: int) -> Batch:
    """Examples of `CLASSES` blurred shapes with noise."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=draw)
    centers = torch.rand(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(99))
    return Batch((centers[labels] + 0.3 * torch.randn(n, *SHAPE, generator=draw)).clamp(0, 1), labels)


def joined(*parts: Batch) -> Batch:
    return Batch(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))


def small_resnet(seed: int = 0) -> nn.Module:
    return build(Spec("resnet", {"depth": 10, "width": 4}), SHAPE, CLASSES, seed=seed)


@pytest.mark.parametrize("use", [use for use in MEMBERSHIP_TESTS if use != "layer_span"])
@pytest.mark.parametrize("client", [FedSGD(), FedSGD(mode="eval"), FedAvg(lr=0.01, steps=3, batch_size=4)])
def test_members_are_told_from_others(use: str, client: FedSGD) -> None:
    """On a ReLU network with batch norm every test does better than guessing, and the matched filter far better."""
    private, others = some(8, 1), some(24, 2)
    model = small_resnet()
    found = infer_membership(
        record(model, private, client=client), MEMBERSHIP_TESTS[use](), joined(private, others), some(160, 3)
    )
    area = area_under_curve(found.statistics[:8], found.statistics[8:])
    assert area > (0.9 if use == "matched_filter" else 0.5)


def test_the_model_and_the_round_are_left_as_they_were() -> None:
    model, private = small_resnet(), some(4, 1)
    seen = record(model, private)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sent = {name: tensor.clone() for name, tensor in seen[0].params.items()}
    mode = [module.training for module in model.modules()]
    infer_membership(seen, MatchedFilter(), some(2, 5), some(20, 3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(tensor, sent[name]) for name, tensor in seen[0].params.items())
    assert mode == [module.training for module in model.modules()]


def test_the_same_seed_gives_the_same_bits_and_another_another_split() -> None:
    seen = record(small_resnet(), some(4, 1))
    one, again, other = (infer_membership(seen, MatchedFilter(), some(3, 5), some(40, 3), seed=s) for s in (0, 0, 1))
    assert torch.equal(one.statistics, again.statistics)
    assert torch.equal(one.p_values, again.p_values)
    assert not torch.equal(one.calibration, other.calibration)


class _Mean(Detector):
    """The statistic of an example is its mean; the update plays no part."""

    def templates(self, examples: Batch, done: object = None) -> Tensor:
        return examples.inputs.flatten(1)

    def statistics(self, observed: Round, templates: Tensor) -> Tensor:
        return templates.mean(1)


class _MeanTest(MembershipTest):
    def fit(
        self, knowledge: Knowledge, observed: Round, reference: Batch, *, seed: int, done: object = None
    ) -> Detector:
        return _Mean()


@pytest.mark.parametrize("use", ["mean", "matched_filter"])
def test_p_values_hold_on_a_thousand_nulls(use: str) -> None:
    """Of candidates that were in no batch, a share a has a p-value up to a, for every a, whatever the statistic is."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, CLASSES))
    test = _MeanTest() if use == "mean" else MatchedFilter()
    # The share of one calibration set is itself Beta(l, c + 1 - l) distributed: several sets are averaged over.
    p = torch.cat(
        [
            infer_membership(record(model, some(4, 1 + s)), test, some(100, 50 + s), some(240, 100 + s)).p_values
            for s in range(10)
        ]
    )
    assert len(p) == 1000
    for level in (0.01, 0.05, 0.1, 0.5):
        hits = int((p <= level).sum())
        # Clopper-Pearson at 99.9 %, doubled in variance for the shared calibration sets
        assert beta.ppf(1e-4, max(hits, 1), 1000 - hits + 1) < level
    assert kstest(p.numpy(), "uniform").statistic < 0.1


def test_p_values_are_ranks() -> None:
    found = p_values(torch.tensor([3.0, 0.0, 1.0, float("nan")]), torch.tensor([0.5, 1.0, 2.0, float("nan")]))
    assert found.tolist() == [0.2, 0.8, 0.6, 1.0]


def test_whitening_is_the_inverse_of_ledoit_and_wolfs_covariance() -> None:
    """Products with S^-1 agree with scikit-learn's estimate, inverted as it stands."""
    draw = torch.Generator().manual_seed(0)
    raw = torch.randn(30, 12, generator=draw, dtype=torch.float64) @ torch.randn(
        12, 12, generator=draw, dtype=torch.float64
    )
    whitening = Whitening.of(raw.clone())
    scaled = ((raw - raw.mean(0)) * whitening.scale).numpy()
    oracle = LedoitWolf(assume_centered=True).fit(scaled)
    assert whitening.shrinkage == pytest.approx(oracle.shrinkage_, rel=1e-6)
    x = whitening.centered(torch.randn(3, 12, generator=draw, dtype=torch.float64))
    wanted = x.numpy() @ np.linalg.inv(oracle.covariance_)
    got = whitening.solved(x).numpy()
    ratio = wanted / got
    assert np.allclose(ratio, ratio[0, 0], rtol=1e-6)  # equal up to the constant b


def test_whitening_with_known_noise_is_the_inverse_of_the_sum() -> None:
    """Products agree with (S + v D^2)^-1, S by scikit-learn's estimate, written out."""
    draw = torch.Generator().manual_seed(0)
    raw = torch.randn(30, 12, generator=draw, dtype=torch.float64) * torch.logspace(-1, 1, 12, dtype=torch.float64)
    whitening = Whitening.of(raw.clone(), 0.3)
    scaled = ((raw - raw.mean(0)) * whitening.scale).numpy()
    whole = LedoitWolf(assume_centered=True).fit(scaled).covariance_ + 0.3 * np.diag(whitening.scale.numpy() ** 2)
    x = whitening.centered(torch.randn(3, 12, generator=draw, dtype=torch.float64))
    wanted, got = x.numpy() @ np.linalg.inv(whole), whitening.solved(x).numpy()
    factor = (wanted * got).sum() / (got * got).sum()  # b, which normalized statistics do not see
    assert np.allclose(wanted, factor * got, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    # What is left of an update after its share of the mean gradient is orthogonal to that in the metric of S^-1.
    mean = (whitening.mean * whitening.scale)[None]
    left = whitening.residual(3 * whitening.mean + x[0] / whitening.scale)
    assert float((whitening.solved(mean) * left).sum()) == pytest.approx(0, abs=1e-8)


def test_public_gradients_that_are_all_the_same_are_refused() -> None:
    with refusal("gradients_alike"):
        Whitening.of(torch.zeros(8, 5))


def noisy(seed: int, sigma: float, known: tuple[str, ...]) -> tuple[Transcript, Batch]:
    private = some(8, 1 + seed)
    return record(
        small_resnet(), private, defense=GaussianNoise(clip=0.5, sigma=sigma), known=known, seed=seed
    ), private


@pytest.mark.full
def test_who_knows_the_noise_names_more() -> None:
    """Behind a clip and noise the test that knows of both names members that the other does not."""
    named = {}
    for known in ((), ("defense",)):
        hits = 0
        for seed in range(2):
            seen, private = noisy(10 * seed, 0.01, known)
            found = infer_membership(seen, MatchedFilter(), joined(private, some(24, 900 + seed)), some(160, 3))
            hits += int(found.identified(0.02)[:8].sum())
        named[known] = hits
    assert named[("defense",)] > named[()] + 3


def test_p_values_hold_where_the_noise_is_known() -> None:
    model, draws = nn.Sequential(nn.Flatten(), nn.Linear(256, CLASSES)), []
    for s in range(5):
        seen = record(model, some(4, 1 + s), defense=GaussianNoise(clip=0.1, sigma=0.05), known=["defense"], seed=s)
        draws.append(infer_membership(seen, MatchedFilter(), some(200, 50 + s), some(240, 100 + s)).p_values)
    p = torch.cat(draws)
    for level in (0.01, 0.05, 0.1, 0.5):
        hits = int((p <= level).sum())
        assert beta.ppf(1e-4, max(hits, 1), len(p) - hits + 1) < level
    assert kstest(p.numpy(), "uniform").statistic < 0.1


def test_noise_is_counted_in_units_of_one_example() -> None:
    """n (u - m) / s has n times the covariance of one gradient and (n sigma / s)^2 in every entry: here drawn."""
    draw = torch.Generator().manual_seed(0)
    rows, n, sigma, length = torch.randn(400, 50, generator=draw) + 1, 8, 0.02, 2.0
    norm = float(rows.mean(0).norm())
    found = KnownNoise(sigma, length).variance(rows, torch.ones(50), n)
    assert found == pytest.approx(n * (sigma * norm / length) ** 2, rel=0.15)
    assert KnownNoise(sigma).variance(rows, torch.ones(50), n) == pytest.approx(n * sigma**2)
    assert MatchedFilter().adapts(noisy(0, 0.01, ("defense",))[0].knowledge)
    assert not MatchedFilter().adapts(noisy(0, 0.01, ())[0].knowledge)


def test_examples_are_clipped_as_a_client_is_known_to_do() -> None:
    private = some(5, 1)
    seen = record(
        small_resnet(), private, client=FedSGD(mode="eval"), defense=DPSGD(sigma=0.0, clip=0.3), known=["defense"]
    )
    gradients = ExampleGradients.at(seen.knowledge, seen[0], some(6, 2), entries=10**6, seed=0)
    assert gradients.of(private).norm(dim=1).max() <= 0.3 + 1e-6
    assert torch.allclose(gradients.of(private).mean(0), gradients.entries_of(seen[0]), atol=1e-6)


def test_gradients_of_single_examples_average_to_the_update_in_eval_mode() -> None:
    """In eval mode the update is the mean of the examples' gradients, entry by entry."""
    model, private = small_resnet(), some(5, 1)
    seen = record(model, private, client=FedSGD(mode="eval"))
    gradients = ExampleGradients.at(seen.knowledge, seen[0], some(6, 2), entries=50, seed=0)
    assert torch.allclose(gradients.of(private).mean(0), gradients.entries_of(seen[0]), atol=1e-6)
    assert gradients.entries_of(seen[0]).numel() < sum(p.numel() for p in model.parameters())


@pytest.mark.slow
def test_several_rounds_share_what_was_learned() -> None:
    model, batches = small_resnet(), [some(4, 1), some(4, 2)]
    seen = record(model, batches)
    inference = MembershipInference(MatchedFilter(), seen, some(60, 3))
    for t, batch in enumerate(batches):
        alone = infer_membership(seen, MatchedFilter(), batch, some(60, 3), t=t)
        assert torch.allclose(inference.of(seen[t], batch).statistics, alone.statistics)


def test_a_round_at_other_weights_is_refused() -> None:
    one, other = record(small_resnet(0), some(4, 1)), record(small_resnet(1), some(4, 1))
    inference = MembershipInference(MatchedFilter(), one, some(20, 3))
    with pytest.raises(SeepageError, match="starts from other weights"):
        inference.of(other[0], some(2, 5))


def test_mistakes_are_sentences() -> None:
    seen = record(small_resnet(), some(4, 1))
    with pytest.raises(
        SeepageError, match=re.escape("the candidates have shape (1, 6, 6) and the model takes (1, 16, 16)")
    ):
        infer_membership(seen, MatchedFilter(), Batch(torch.rand(1, 1, 6, 6), torch.tensor([0])), some(20, 3))
    with pytest.raises(SeepageError, match=r"0\.\.3"):
        infer_membership(seen, MatchedFilter(), Batch(torch.rand(1, *SHAPE), torch.tensor([4])), some(20, 3))
    with pytest.raises(SeepageError, match="at least 4"):
        infer_membership(seen, MatchedFilter(), some(1, 2), some(3, 3))
    found = infer_membership(seen, MatchedFilter(), some(1, 2), some(20, 3))
    with pytest.raises(SeepageError, match="at least 99"):
        found.identified(0.01)
    zero = Update({name: torch.zeros_like(tensor) for name, tensor in seen[0].update.tensors.items()})
    nothing = MembershipInference(MatchedFilter(), seen, some(20, 3))
    with refusal("zero_update"):
        nothing.of(Round(0, seen[0].params, zero), some(1, 2))
    with pytest.raises(SeepageError, match="entries must"):
        MatchedFilter(entries=0)


def test_the_area_is_scikit_learns() -> None:
    draw = np.random.default_rng(0)
    own, rest = draw.integers(0, 9, 40) + 1.0, draw.integers(0, 9, 60) + 0.0
    wanted = roc_auc_score([1] * 40 + [0] * 60, [*own, *rest])
    assert area_under_curve(torch.tensor(own), torch.tensor(rest)) == pytest.approx(wanted)


@pytest.mark.slow
def test_the_areas_interval_covers() -> None:
    """Of 200 samples from two normals the 95 % interval holds the true area in about 95 %."""
    from scipy.stats import norm

    true, held = norm.cdf(1 / 2**0.5), 0
    for seed in range(200):
        draw = torch.Generator().manual_seed(seed)
        own, rest = torch.randn(40, generator=draw) + 1, torch.randn(40, generator=draw)
        low, high = area_interval(own, rest, seed=seed, resamples=300)
        held += low <= true <= high
    assert 175 <= held <= 199


def test_a_perfect_area_is_no_certainty() -> None:
    """Of samples that happen to be distinguished perfectly the interval still holds the true area."""
    own, rest = torch.arange(5.0) + 10, torch.arange(8.0)
    assert area_interval(own, rest) == pytest.approx((beta.ppf(0.025, 5, 1), 1.0))
    assert area_interval(rest, own) == pytest.approx((0.0, beta.ppf(0.975, 1, 5)))
    held = total = 0
    for seed in range(400):  # normals 2 deviations apart: the area is 0.921
        draw = torch.Generator().manual_seed(seed)
        own, rest = torch.randn(4, generator=draw) + 2, torch.randn(4, generator=draw)
        if own.min() > rest.max():
            low, high = area_interval(own, rest)
            held, total = held + (low <= 0.921 <= high), total + 1
    assert held == total > 50


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10)])
def test_rates_have_clopper_and_pearsons_interval(hits: int, trials: int) -> None:
    low, high = Share.count(hits, trials).interval
    assert low == pytest.approx(beta.ppf(0.025, hits, trials - hits + 1) if hits else 0, abs=1e-8)
    assert high == pytest.approx(beta.ppf(0.975, hits + 1, trials - hits) if hits < trials else 1, abs=1e-8)


def test_what_batch_norm_adds_to_an_update_is_measured_on_public_batches() -> None:
    """In train mode the variance of update minus mean gradient, times n, tensor by tensor; in eval mode nothing."""
    n, public = 4, some(80, 3)
    seen = record(small_resnet(), some(n, 1))
    gradients = ExampleGradients.at(seen.knowledge, seen[0], public, entries=50, seed=0)
    rows = gradients.of(public)
    found = gradients.coupling(public, rows)
    assert found is not None
    parts = [Batch(public.inputs[i : i + n], public.labels[i : i + n]) for i in range(0, 80, n)]
    updates = torch.stack([gradients.entries_of(record(small_resnet(), part)[0]) for part in parts])
    missed = updates - rows.reshape(20, n, -1).mean(1)
    assert torch.allclose(found[0], updates.mean(0), atol=1e-6)
    start = 0
    for places in gradients.chosen.values():
        own = missed[:, start : start + len(places)].var(0).mean()
        assert torch.allclose(found[1][start : start + len(places)], n * own, rtol=1e-4)
        start += len(places)
    whole = record(small_resnet(), some(n, 1), client=FedSGD(mode="eval"))
    other = ExampleGradients.at(whole.knowledge, whole[0], public, entries=50, seed=0)
    assert other.coupling(public, rows) is None  # the update is the mean of these gradients
    assert gradients.coupling(some(12, 3), rows[:12]) is None  # three batches say little


def test_statistics_are_those_of_large_public_batches() -> None:
    """Of the first norm mean and variance over all images, not the smaller one within the client's batches of two."""
    conv = nn.Conv2d(1, 6, 3)
    model = nn.Sequential(conv, nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 14 * 14, CLASSES))
    public = some(32, 3)
    found = ExampleGradients.at(
        record(model, some(2, 1)).knowledge, record(model, some(2, 1))[0], public, entries=5, seed=0
    )
    with torch.no_grad():
        read = conv(public.inputs).transpose(0, 1).flatten(1)  # [channels, images and places]
    assert torch.allclose(found.buffers["1.running_mean"], read.mean(1), atol=1e-5)
    assert torch.allclose(found.buffers["1.running_var"], read.var(1, correction=0), rtol=1e-3)


@pytest.mark.slow
def test_layers_that_batch_norm_ties_together_hide_no_member() -> None:
    """With maps of one pixel at the end, where four values make the statistics, members are identified all the same."""
    model = build(Spec("resnet", {"depth": 18, "width": 8}), (1, 8, 8), CLASSES, seed=0)
    draw = torch.Generator().manual_seed(0)
    own, rest = [], []

    def small(n: int) -> Batch:
        return Batch(torch.rand(n, 1, 8, 8, generator=draw), torch.randint(CLASSES, (n,), generator=draw))

    private = [small(4) for _ in range(8)]
    seen = record(model, private)
    inference = MembershipInference(MatchedFilter(entries=256), seen, small(160))
    for t in range(8):
        found = inference.of(seen[t], joined(private[t], small(8)))
        own.append(found.statistics[:4])
        rest.append(found.statistics[4:])
    assert area_under_curve(torch.cat(own), torch.cat(rest)) > 0.8
