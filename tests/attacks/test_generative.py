"""What the generative attacks learn, where from, and what they refuse."""

import sys
import tomllib
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import seepage.federation.data
from seepage import Architecture, Batch, SeepageError, Sparsify, Transcript, attack, build, record
from seepage.attacks import ggl, rogs
from seepage.attacks.generative import ImagePrior, Latent, LatentSearch, LowResolution
from seepage.attacks.generative import prior as priors
from seepage.attacks.generative.networks import shrunk, stretched
from seepage.attacks.generative.search import _EvolutionSearch, _Target
from seepage.attacks.generative.training import train_decoder, train_denoiser, train_upsampler
from seepage.attacks.search.distances import L2
from seepage.audit.recipe.auxiliary import Auxiliary, auxiliary_images
from seepage.audit.recipe.files import BUILT_IN, read_recipe
from seepage.audit.recipe.resolve import resolve_cases, resolved
from seepage.audit.run import run
from seepage.base.nn import generator
from seepage.errors import Problems
from seepage.federation.defenses import Compose, ZeroSumNoise
from seepage.federation.transcript.truth import open_truth
from seepage.federation.types import Defense
from seepage.testing import planted_inputs

SHAPE = (1, 8, 8)


class Linear(nn.Module):
    """A generator whose inputs can be distinguished from its images: 4 x 4 numbers, each a square of 2 x 2 pixels."""

    def __init__(self, input_shape: tuple[int, ...], latent: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.2))

    def forward(self, latents: Tensor) -> Tensor:
        small = 0.5 + self.gain * latents.tanh().view(-1, 1, 4, 4)
        return F.interpolate(small, scale_factor=2.0, mode="nearest")


def no_module(input_shape: tuple[int, ...], latent: int) -> str:
    return "an image"


own = types.ModuleType("own_generators")
for thing in (Linear, no_module):
    setattr(own, thing.__name__, thing)
sys.modules["own_generators"] = own


def seen_of(inputs: Tensor, images: Tensor | None = None, model: str = "fc2") -> Transcript:
    options = {"hidden": 32} if model == "fc2" else {"width": 4, "activation": "gelu"}
    batch = Batch(inputs, torch.arange(len(inputs)) % 4)
    seen = record(build(Architecture(model, options), tuple(inputs.shape[1:]), 4), batch)
    known = frozenset({"auxiliary"}) if images is not None else frozenset[str]()
    return replace(seen, knowledge=replace(seen.knowledge, auxiliary=images, known=known))  # type: ignore[arg-type]


def drawn_by_linear(n: int, seed: int = 0) -> Tensor:
    latents = torch.randn((n, 16), generator=generator(seed, "latents"))
    with torch.no_grad():
        images: Tensor = Linear(SHAPE, 16)(latents)
    return images


@pytest.mark.parametrize("search", ["cma", "adam"])
@pytest.mark.slow
def test_an_image_that_a_users_generator_can_draw_comes_back(search: str) -> None:
    truth = drawn_by_linear(1)
    steps = {"cma": 120, "adam": 250}[search]
    found = attack(
        seen_of(truth),
        ggl(search=search, steps=steps, population=12, reach=4.0, generator="own_generators:Linear", latent=16),  # type: ignore[arg-type]
    )
    assert (found.inputs - truth).abs().max() < {"cma": 0.05, "adam": 0.02}[search]
    blocks = found.inputs.unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2)
    assert blocks.std(-1).max() < 1e-6  # it is an image of that generator


def test_latents_stay_within_reach() -> None:
    latents = Latent(reach=1.0).latents(torch.tensor([[-50.0, 0.01, 3.0]]))
    assert torch.allclose(latents, torch.tensor([[-50.0, 0.01, 3.0]]).tanh())
    assert torch.equal(Latent().latents(torch.ones(1, 2)), torch.ones(1, 2))


def test_bicubic_enlargement_is_the_textbooks() -> None:
    """Keys' kernel with a = -0.75, four neighbors on each axis, written out."""

    def weight(x: float) -> float:
        x, a = abs(x), -0.75
        return (a + 2) * x**3 - (a + 3) * x**2 + 1 if x <= 1 else a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    coarse = torch.rand((5, 5), generator=generator(0, "coarse"), dtype=torch.float64)
    matrix = torch.zeros(15, 5).double()
    for i in range(15):
        place = (i + 0.5) / 3 - 0.5
        for j in range(-4, 10):
            matrix[i, min(max(j, 0), 4)] += weight(place - j)
    assert torch.allclose(stretched(coarse[None, None], (15, 15))[0, 0], matrix @ coarse @ matrix.T)


@pytest.mark.slow
def test_a_low_resolution_search_ends_at_an_enlarged_image() -> None:
    small = torch.rand((1, 1, 4, 4), generator=generator(0, "small"))
    truth = stretched(small, (8, 8)).clamp(0, 1)
    found = attack(seen_of(truth), rogs(steps=400, scale=2, enhance=False))
    assert (found.inputs - truth).abs().mean() < 0.05
    space = LowResolution(scale=3).start(2, seen_of(truth).knowledge, truth, generator(0, "start"))
    assert space.unknowns[0].shape == (2, 1, 3, 3)
    assert space.decode(space.unknowns).shape == (2, 1, 8, 8)


@pytest.mark.slow
def test_a_trained_decoder_draws_unseen_images_better_than_the_mean_image() -> None:
    """And worse than what it is: 16 numbers per image draw images of 16 numbers to a few percent."""
    images, unseen = planted_inputs(256, SHAPE, seed=1), planted_inputs(16, SHAPE, seed=2)
    network = train_decoder(images, (0.0, 1.0), latent=16, width=8, steps=200, lr=2e-3)
    latents = torch.zeros((16, 16), requires_grad=True)
    optimizer = torch.optim.Adam([latents], lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        (network(latents) - unseen).square().mean().backward()
        optimizer.step()
    error = (network(latents) - unseen).square().mean().item()
    assert error < 0.25 * (images.mean(0) - unseen).square().mean().item()
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_an_up_sampler_comes_nearer_to_unseen_images_than_bicubic() -> None:
    digits = seepage.federation.data.load("digits", size=16)
    images, unseen = (digits.batch(part).inputs for part in (digits.train[:256], digits.private[:32]))
    network = train_upsampler(images, scale=2, width=8, steps=60)
    small = F.avg_pool2d(unseen, 2)
    errors = [(guess - unseen).square().mean() for guess in (stretched(small, (16, 16)), network(small))]
    assert errors[1] < 0.9 * errors[0]


def test_a_denoiser_comes_nearer_to_unseen_small_images_than_what_it_is_given() -> None:
    digits = seepage.federation.data.load("digits", size=16)
    images, unseen = (digits.batch(part).inputs for part in (digits.train[:256], digits.private[:32]))
    network = train_denoiser(images, (0.0, 1.0), scale=2, width=8, steps=60)
    small = F.avg_pool2d(unseen, 2)
    noisy = small + 0.02 * torch.randn(small.shape, generator=generator(0, "noise"))
    given = shrunk(stretched(noisy, (16, 16)), 2)
    assert (network(given) - small).square().mean() < 0.7 * (given - small).square().mean()


def test_the_same_images_give_the_same_bits_and_are_learned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images = planted_inputs(16, SHAPE, seed=3)
    knowledge = seen_of(images[:1], images).knowledge
    prior = ImagePrior(latent=4, width=2, training=3)
    first = prior.network(knowledge, images).state_dict()
    monkeypatch.setattr(priors, "_trained", {})
    again = prior.network(knowledge, images).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    monkeypatch.setattr(priors, "train_decoder", lambda *_, **__: pytest.fail("trained again"))
    kept = prior.network(knowledge, images).state_dict()
    assert all(torch.equal(first[name], kept[name]) for name in first)


def test_other_images_are_learned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priors, "_trained", {})
    prior = ImagePrior(latent=4, width=2, training=2)
    for seed in range(3):
        images = planted_inputs(16, SHAPE, seed=seed)
        prior.network(seen_of(images[:1], images).knowledge, images)
    assert len(priors._trained) == 3


def test_a_search_without_slopes_finds_the_minimum_of_a_bowl() -> None:
    """A closed form: the minimum of a quadratic function is where it was put."""
    place = np.linspace(-1, 1, 6)
    search = _EvolutionSearch(LatentSearch(distance=L2(), steps=120, population=10), 6, seed=0)
    from seepage.attacks.base import ignore

    search.run(lambda point: float(((point - place) ** 2 * np.arange(1, 7)).sum()), ignore)
    assert np.abs(search.best - place).max() < 1e-3


@pytest.mark.slow
def test_a_defense_that_is_told_is_followed() -> None:
    truth = drawn_by_linear(1)
    batch = Batch(truth, torch.tensor([2]))
    seen = record(build(Architecture("fc2", {"hidden": 32}), SHAPE, 4), batch, defense=Sparsify(keep=0.05))
    search = ggl(steps=60, population=10, reach=4.0, generator="own_generators:Linear", latent=16)
    blind = attack(seen, search)
    knows = attack(replace(seen, knowledge=replace(seen.knowledge, defense=Sparsify(keep=0.05))), search)
    assert (knows.inputs - truth).square().mean() < (blind.inputs - truth).square().mean()


@pytest.mark.parametrize("within", [lambda mask: mask, lambda mask: Compose((Sparsify(keep=0.5), mask))])
def test_a_secret_of_the_clients_is_not_used(within: Callable[[Defense], Defense]) -> None:
    """Told of `zero_sum_noise`, the attacker cannot take the mask off: the truth is as far as the mask is large."""
    batch = Batch(drawn_by_linear(1), torch.tensor([2]))
    defense = within(ZeroSumNoise(sigma=1.0, secret=5))
    seen = record(build(Architecture("fc2", {"hidden": 32}), SHAPE, 4), batch, defense=defense, known=["defense"])
    assert _Target.of(L2(), seen).distance(batch.inputs, batch.labels) > 100


def test_it_says_what_is_missing() -> None:
    image = planted_inputs(1, SHAPE)
    for use in (ggl(), rogs()):
        with refusal("too_few_images", "[auxiliary]"):
            use.check(seen_of(image))
        with refusal("too_few_images", 7):
            use.check(seen_of(image, planted_inputs(7, SHAPE)))
    table = record(build(Architecture("fc2"), (5,), 3), Batch(torch.rand(1, 5), torch.tensor([0])))
    with refusal("no_images"):
        ggl().check(table)
    with refusal("no_derivatives"):
        ggl(labels="joint").check(seen_of(image, planted_inputs(20, SHAPE)))
    with pytest.raises(SeepageError, match="a str"):
        attack(seen_of(image), ggl(generator="own_generators:no_module"))
    with pytest.raises(SeepageError, match="generator"):
        ggl(weights="file.safetensors")
    with pytest.raises(SeepageError, match="2 x 16"):
        attack(seen_of(planted_inputs(1, (1, 9, 9))), ggl(generator="own_generators:Linear", latent=16))


def test_a_generators_file_is_read_and_must_fit(tmp_path: Path) -> None:
    truth = drawn_by_linear(1)
    fits, misfits = tmp_path / "fits.safetensors", tmp_path / "misfits.safetensors"
    save_file({"gain": torch.tensor(0.0)}, fits)
    save_file({"gain": torch.zeros(3)}, misfits)
    flat = attack(seen_of(truth), ggl(steps=2, generator="own_generators:Linear", weights=str(fits), latent=16))
    assert torch.allclose(flat.inputs, torch.full_like(truth, 0.5))
    with pytest.raises(SeepageError, match="does not fit"):
        attack(seen_of(truth), ggl(generator="own_generators:Linear", weights=str(misfits), latent=16))


def test_without_the_extra_the_search_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seepage.attacks.generative.search.find_spec", lambda _: None)
    with refusal("not_installed", "seepage[generative]"):
        ggl().check(seen_of(planted_inputs(1, SHAPE), planted_inputs(20, SHAPE)))
    ggl(search="adam").check(seen_of(planted_inputs(1, SHAPE), planted_inputs(20, SHAPE)))


def test_no_attacked_image_is_among_the_attackers_own() -> None:
    """Also where the attacker's images are named so that they hold all of the private ones."""
    digits = seepage.federation.data.load("digits", size=8)
    attacked = digits.batch(digits.private[:40]).inputs
    every = auxiliary_images(Auxiliary(use="digits"), digits, [attacked[:20], attacked[20:]], seed=0)
    assert torch.cdist(every.flatten(1), attacked.flatten(1)).min() > 0
    assert len(every) >= len(digits) - 60  # some digits of 8 x 8 pixels are alike
    half = auxiliary_images(Auxiliary(), digits, [], seed=0)
    trained = {image.numpy().tobytes() for image in digits.batch(digits.train).inputs}
    assert len(half) == len(digits.train)
    assert all(image.numpy().tobytes() in trained for image in half)


def test_auxiliary_images_of_another_shape_or_none_left_are_refused() -> None:
    digits = seepage.federation.data.load("digits", size=8)
    with pytest.raises(SeepageError, match="no auxiliary image is left"):
        auxiliary_images(Auxiliary(), digits, [digits.batch(digits.train).inputs], seed=0)
    with pytest.raises(SeepageError, match="have shape"):
        auxiliary_images(Auxiliary(use="digits"), seepage.federation.data.load("iris"), [], seed=0)
    assert auxiliary_images(Auxiliary(use="photos", count=3), digits, [], seed=0).shape == (3, 1, 8, 8)


TABLES = {
    "data": {"use": "digits", "size": 8},
    "model": {"use": "fc2", "hidden": 16},
    "batch": {"size": 3},
    "attack": [{"use": "linear"}],
}


def test_an_audit_says_that_images_were_told_and_hands_over_none_of_the_private_ones(tmp_path: Path) -> None:
    done = run({**TABLES, "auxiliary": {"use": "digits"}}, out=tmp_path / "run", jobs=1)
    assert [row["side_information"] for row in done.result.record()["rows"]] == [["auxiliary"]]
    handed = load_file(tmp_path / "run/observed/auxiliary.safetensors")["inputs"]
    private = open_truth(tmp_path / "run/private").whole.inputs
    assert torch.cdist(handed.flatten(1), private.flatten(1)).min() > 0
    assert "auxiliary images of digits" in done.result.record()["cases"][0]["title"]


def test_a_recipe_keeps_its_auxiliary_images_and_refuses_those_of_a_shared_data_set() -> None:
    tables = {**TABLES, "auxiliary": {"count": 7}}
    written = tomllib.loads(resolved(tables, resolve_cases(tables)))
    assert resolve_cases(written)[0].auxiliary == Auxiliary(count=7)
    with pytest.raises(Problems, match="all of the data set"):
        resolve_cases({**tables, "federation": {"clients": 4, "rounds": 1}})
    with pytest.raises(Problems, match=r"\[auxiliary\]: count"):
        resolve_cases({**TABLES, "auxiliary": {"count": 0}})


def test_every_recipe_gives_its_generators_images() -> None:
    for file in (BUILT_IN / "generative").glob("*.toml"):
        assert all(recipe.auxiliary is not None for recipe in resolve_cases(read_recipe(file))), file.stem
