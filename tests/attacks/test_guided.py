"""Gradient matching from the head's features: its parts against numpy, and what they are worth together."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import seepage.federation.data
from seepage import Architecture, Batch, FedAvg, FedSGD, GaussianNoise, attack, build, record
from seepage.attacks.guided import GuidedMatching, gradient_matching
from seepage.attacks.guided.decoder import fit_decoder
from seepage.attacks.guided.matching import FeatureAgreement
from seepage.attacks.reading.decoding import Decoder, NaturalSpectrum
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.labels import Auto
from seepage.attacks.search.objective import MatchingObjective
from seepage.attacks.search.optimizers import LBFGS
from seepage.attacks.search.priors import ColorVariation
from seepage.attacks.search.problem import Problem
from seepage.audit.score import at_truth
from seepage.base.nn import LayerCall, generator, last_linear
from seepage.errors import Inapplicable
from seepage.federation.types import Transcript
from seepage.measure.metrics.image import psnr


def photographs(count: int) -> Batch:
    data = seepage.federation.data.load("album", size=16)
    return data.batch(data.private[:count])


def victim(n: int = 3, **options: Any) -> tuple[Transcript, Batch]:
    batch = photographs(n)
    batch = Batch(batch.inputs, torch.tensor([1, 4, 1, 7])[:n])
    return record(build(Architecture("convnet", {"width": 8} | options), (3, 16, 16), 10), batch), batch


def quality(found: Tensor, batch: Batch) -> float:
    """Mean PSNR, each example's best guess taken."""
    each = torch.stack([psnr(found.clamp(0, 1), one.expand_as(found)).max() for one in batch.inputs])
    return float(each.mean())


def flat(batch: Batch) -> float:
    return quality(batch.inputs.mean((2, 3), keepdim=True).expand_as(batch.inputs), batch)


def test_made_up_images_have_the_spectrum_of_photographs() -> None:
    images = NaturalSpectrum((3, 32, 32)).samples(400, generator(0, "test")).numpy()
    power = np.abs(np.fft.fft2(images.mean(1))).mean(0)
    # Amplitude 1 / f: four times the frequency has a quarter of it, along an axis; edges and clipping bend it.
    assert power[0, 3] / power[0, 12] == pytest.approx(4, rel=0.25)
    assert images.min() >= 0
    assert images.max() <= 1


def test_a_decoder_is_the_ridge_regression_of_numpy() -> None:
    """Of a pooled map: the features around a position, in units of their size, and a constant."""

    def features(x: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(x, 4)

    made = Decoder(features, (1, 8, 8), generator(0, "test"))
    images = NaturalSpectrum((1, 8, 8)).samples(512, generator(0, "test"))
    maps = features(images).numpy().astype(np.float64)[:, 0]  # [512, 2, 2]
    scale = np.sqrt((maps**2).mean())
    around = np.pad(maps / scale, ((0, 0), (2, 2), (2, 2)))
    rows, blocks = [], []
    for y in range(2):
        for x in range(2):
            seen = around[:, y : y + 5, x : x + 5].reshape(512, 25)
            rows.append(np.concatenate([seen, np.ones((512, 1))], 1))
            blocks.append(images.numpy()[:, 0, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4].reshape(512, 16) - 0.5)
    read, wanted = np.concatenate(rows), np.concatenate(blocks)
    ridge = 1e-3 * (read**2).mean() * len(read)
    weights = np.linalg.solve(read.T @ read + ridge * np.eye(26), read.T @ wanted)
    assert made.near == 5
    np.testing.assert_allclose(made.weights.numpy(), weights, atol=1e-4)


def test_a_decoder_makes_images_of_a_map_and_colors_of_a_pooled_vector() -> None:
    seen, batch = victim(width=32)
    names = last_linear(seen.knowledge.model, 10)
    decoder = fit_decoder(seen[0], seen.knowledge, names[0].removesuffix(".weight"), 3)
    with torch.no_grad():
        features = nn.Sequential(*list(seen.knowledge.model)[:-1]).eval()(batch.inputs)  # type: ignore[call-overload]
    assert quality(decoder(features), batch) > flat(batch) + 2
    pooled = build(Architecture("resnet", {"width": 8}), (3, 16, 16), 10)
    seen = record(pooled, batch, client=FedSGD(mode="eval"))
    decoder = fit_decoder(seen[0], seen.knowledge, "head", 3)
    assert tuple(decoder(torch.zeros(2, 64)).shape) == (2, 3, 16, 16)


def test_features_agree_as_a_share_of_their_square() -> None:
    draw = torch.Generator().manual_seed(0)
    wanted, given = torch.rand(3, 5, generator=draw), torch.rand(3, 5, generator=draw)
    prior = FeatureAgreement(2.0, "head", wanted, torch.tensor([True, False, True]))
    a, b = wanted.numpy()[[0, 2]], given.numpy()[[0, 2]]
    value = prior({"head": [LayerCall(given, given)]}, torch.zeros(3), victim()[0][0])
    assert float(value) == pytest.approx(2 * ((a - b) ** 2).sum() / (a**2).sum(), rel=1e-5)


def test_of_several_local_steps_the_first_pass_is_held_to_the_features() -> None:
    wanted, given, later = torch.rand((3, 3, 5), generator=torch.Generator().manual_seed(5))
    prior = FeatureAgreement(2.0, "head", wanted, torch.tensor([True, False, True]))
    once, often = ([LayerCall(x, x) for x in passes] for passes in ([given], [given, later]))
    one, several = (prior({"head": calls}, torch.zeros(3), victim()[0][0]) for calls in (once, often))
    assert torch.equal(one, several)
    part = prior(
        {"head": [LayerCall(given[:2], given[:2]), LayerCall(later[2:], later[2:])]}, torch.zeros(3), victim()[0][0]
    )
    assert float(part) == 0


@pytest.mark.parametrize("size", [2, 1])
def test_a_client_that_takes_several_steps_is_searched_and_scored(size: int) -> None:
    batch = Batch(photographs(2).inputs, torch.tensor([1, 4]))
    model = build(Architecture("convnet", {"width": 4}), (3, 16, 16), 10)
    seen = record(model, batch, client=FedAvg(lr=0.01, epochs=2, batch_size=size))
    search = gradient_matching(steps=2)
    assert attack(seen, search).inputs.shape == batch.inputs.shape
    value = search.objective_at(seen, batch.inputs, batch.labels)
    assert value < 0.05


def test_a_round_that_an_attack_refuses_does_not_end_the_scoring_of_others() -> None:
    batch = Batch(photographs(2).inputs, torch.tensor([1, 4]))

    class Refuses(GuidedMatching):
        def objective_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> float:
            if len(inputs) == 1:
                raise Inapplicable("single_example", "one example", "send two")
            return 0.25

    one = Batch(batch.inputs[:1], batch.labels[:1])
    views = [record(build(Architecture("convnet", {"width": 4}), (3, 16, 16), 10), part) for part in (one, batch)]
    attack = Refuses(search=gradient_matching(steps=2).search)
    assert at_truth(attack, views, [one, batch]) == 0.25
    assert at_truth(attack, views[:1], [one]) is None


def test_color_variation_is_the_mean_length_of_each_slope() -> None:
    x = torch.rand((1, 2, 3, 4, 5), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a = x.numpy()[0]
    r, g, b = a[:, 0], a[:, 1], a[:, 2]
    planes = np.stack([r, g, b, r - g, r - b, g - b], 1) / 0.5
    down, across = np.diff(planes, axis=2)[..., :-1], np.diff(planes, axis=3)[..., :-1, :]
    expected = (np.sqrt(down**2 + across**2 + 1e-6) - 1e-3).mean()
    assert float(ColorVariation(weight=0.3, unit=0.5)(x)[0]) == pytest.approx(0.3 * expected, rel=1e-9)
    assert torch.autograd.gradcheck(ColorVariation(weight=0.5), x.requires_grad_())


def test_a_changing_prior_is_followed_at_its_weight_and_valued_at_its_last() -> None:
    seen, batch = victim(n=1)
    problem = Problem.of(seen[0], seen.knowledge, Cosine(), None)
    prior = ColorVariation(weight=0.01, first=1.0)

    def at(prior: ColorVariation, share: float) -> tuple[float, Tensor]:
        objective = MatchingObjective(problem, seen.knowledge, seen[0], (prior,), ())
        found = objective.at(1 - batch.inputs, batch.labels, share=share)[0]
        return found.value, found.by_inputs

    value, gradient = at(prior, 0.5)
    assert value == pytest.approx(at(ColorVariation(weight=0.01), 0.0)[0])
    assert torch.allclose(gradient, at(ColorVariation(weight=0.1), 0.0)[1])


@pytest.mark.slow
def test_features_are_worth_more_than_the_papers_search() -> None:
    seen, batch = victim()
    found = attack(seen, gradient_matching(steps=100))
    plain = attack(seen, "inverting_gradients", options={"steps": 100})
    assert quality(found.inputs, batch) > quality(plain.inputs, batch) + 5
    assert found.labels.tolist() == [1, 1, 4]
    assert "started from an image" in found.notes[0]


@pytest.mark.slow
def test_labels_come_with_the_features_where_rules_name_wrong_ones() -> None:
    seen, _ = victim(width=32)
    batch = Batch(photographs(8).inputs, torch.tensor([0, 0, 0, 3, 3, 5, 6, 9]))
    # Train a little, so that the rows of the last layer no longer count labels.
    model = seen.knowledge.model
    optimizer, many = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), photographs(64)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(many.inputs), many.labels % 10).backward()
        optimizer.step()
    trained = record(model, batch)
    named = Auto()(trained[0], trained.knowledge)
    assert named.tolist() != sorted(batch.labels.tolist())
    found = attack(trained, gradient_matching(steps=2))
    assert found.labels.tolist() == sorted(batch.labels.tolist())


@pytest.mark.slow
def test_a_clipped_update_is_as_good_as_the_gradient_that_it_is_a_multiple_of() -> None:
    seen, batch = victim()
    clipped = record(seen.knowledge.model, batch, defense=GaussianNoise(sigma=0.0, clip=0.02))
    plain, found = (attack(one, gradient_matching(steps=40)) for one in (seen, clipped))
    assert (
        "times the gradient of the stated loss, as behind clipping to a norm, a learning rate below" in found.notes[0]
    )
    assert "times the gradient" not in plain.notes[0]
    assert quality(found.inputs, batch) > quality(plain.inputs, batch) - 0.5


def it_starts_at(seen: Transcript) -> Tensor:
    search = gradient_matching()._fitting(seen.knowledge, seen[0])
    space = search.parameters.start(2, seen.knowledge, torch.ones(1), generator(0, "start"))
    return space.decode(space.unknowns)


def test_without_features_it_is_the_plain_search_and_says_so() -> None:
    seen, batch = victim(n=1)
    bare = nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.ReLU(), nn.Linear(8, 10, bias=False))
    found = attack(record(bare, batch), gradient_matching(steps=3, labels="joint"))
    assert "no features" in found.notes[0]
    first = it_starts_at(seen)
    assert float((first - 0.5).abs().max()) < 0.15
    assert not torch.equal(first[0], first[1])  # or equal labels would stay one image
    joint = attack(seen, gradient_matching(steps=3, labels="joint"))
    assert "labels are searched for" in joint.notes[0]


@pytest.mark.slow
def test_smooth_networks_are_searched_by_l_bfgs_within_the_evaluations() -> None:
    seen, batch = victim(activation="gelu")
    found = attack(seen, gradient_matching(steps=100))
    assert found.cost["steps"] < 10
    assert found.cost["evaluations"] <= 105
    assert quality(found.inputs, batch) > flat(batch) + 5
    it = gradient_matching(steps=100)
    assert isinstance(it._fitting(seen.knowledge, seen[0]).optimizer, LBFGS)
    assert not isinstance(it._fitting(victim()[0].knowledge, victim()[0][0]).optimizer, LBFGS)


def test_the_objective_of_the_truth_does_not_depend_on_its_order() -> None:
    seen, batch = victim(n=4)
    it = gradient_matching(steps=5)
    order = torch.tensor([2, 3, 1, 0])
    one = it.objective_at(seen, batch.inputs, batch.labels)
    other = it.objective_at(seen, batch.inputs[order], batch.labels[order])
    assert one is not None
    assert other == pytest.approx(one, rel=1e-3)
    without = replace(it, weight=0.0).objective_at(seen, batch.inputs, batch.labels)
    assert isinstance(it, GuidedMatching)
    assert one == pytest.approx(without, abs=1e-4)
