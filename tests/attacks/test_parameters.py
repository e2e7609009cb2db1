"""Pyramids and untrained generators: what they decode, that it can be differentiated, and that it repeats."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal
from scipy.ndimage import shift
from torch import Tensor, nn

from seepage import FedSGD, GradientMatching, SeepageError
from seepage.attacks.search.distances import L2
from seepage.attacks.search.generator import UntrainedGenerator
from seepage.attacks.search.optimizers import Adam
from seepage.attacks.search.parameters import Parameterization
from seepage.attacks.search.priors import GroupConsistency, SquaredNorm, registered
from seepage.base.nn import generator
from seepage.federation.types import Knowledge

DOUBLE = torch.ones(1, dtype=torch.float64)


def knowing(*shape: int, value_range: tuple[float, float] = (0.0, 1.0)) -> Knowledge:
    return Knowledge(nn.Identity(), FedSGD(), shape, 4, value_range)


def start(parameters: Parameterization, n: int, knowledge: Knowledge, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    space = parameters.start(n, knowledge, DOUBLE, generator(seed, "start"))
    return space.unknowns, space.decode(space.unknowns)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (1, 20, 33), (3, 32, 32), (1, 3, 3), (2, 50, 7)])
def test_a_generator_paints_images_of_any_size_within_the_value_range(shape: tuple[int, ...]) -> None:
    painter = UntrainedGenerator(width=2)
    for n in (1, 3):
        unknowns, inputs = start(painter, n, knowing(*shape, value_range=(-1.0, 3.0)))
        assert inputs.shape == (n, *shape)
        assert inputs.dtype == torch.float64
        assert bool((inputs.detach() > -1).all())
        assert bool((inputs.detach() < 3).all())
        again = start(painter, n, knowing(*shape, value_range=(-1.0, 3.0)))[1]
        assert torch.equal(inputs, again)
        assert not torch.equal(inputs, start(painter, n, knowing(*shape), seed=1)[1])
        assert len(unknowns) >= 7


def test_the_images_of_a_batch_differ_and_their_slopes_are_checked() -> None:
    space = UntrainedGenerator(width=1, latent=3).start(2, knowing(1, 8, 8), DOUBLE, generator(0, "start"))
    inputs = space.decode(space.unknowns)
    assert float((inputs[0] - inputs[1]).abs().mean()) > 0.01
    leaves = [unknown.requires_grad_() for unknown in space.unknowns]
    assert torch.autograd.gradcheck(lambda *unknowns: space.decode(unknowns), leaves, atol=1e-4)


def test_spectral_norm_makes_convolutions_blind_to_the_size_of_their_weights() -> None:
    space = UntrainedGenerator(width=2).start(2, knowing(1, 8, 8), DOUBLE, generator(0, "start"))
    before = space.decode(space.unknowns)
    # The last convolution, which makes the image, has no norm behind it.
    scaled = [u * 5 if u.ndim == 4 and len(u) > 1 else u for u in space.unknowns]
    assert any(not torch.equal(a, b) for a, b in zip(scaled, space.unknowns, strict=True))
    assert torch.allclose(space.decode(scaled), before, atol=1e-9)


def test_the_exact_norm_is_that_of_numpy() -> None:
    from seepage.attacks.search.generator import _UnitNorm

    for shape in ((3, 7, 3, 3), (40, 2, 3, 3)):
        weight = torch.randn(shape, dtype=torch.float64)
        largest = np.linalg.svd(weight.flatten(1).numpy(), compute_uv=False)[0]
        assert torch.allclose(_UnitNorm()(weight), weight / largest)


def test_tables_are_refused() -> None:
    with refusal("no_images"):
        UntrainedGenerator().check(knowing(9))


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SeepageError, match="correct the recipe"):
        UntrainedGenerator(width=0)


def test_squared_norm_is_the_mean_square_from_the_middle() -> None:
    x = torch.rand((2, 3, 1, 4, 4), dtype=torch.float64)
    expected = 0.3 * ((x.numpy() - 0.5) ** 2).mean((1, 2, 3, 4))
    assert np.allclose(SquaredNorm(0.3)(x).numpy(), expected)


def smooth(n: int, side: int, seed: int) -> Tensor:
    coarse = torch.rand((n, 2, 5, 5), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.interpolate(coarse, size=(side, side), mode="bicubic")


@given(st.integers(-2, 2), st.integers(-2, 2), st.integers(0, 20))
def test_registration_undoes_a_shift(down: int, across: int, seed: int) -> None:
    images = smooth(3, 16, seed)
    for shown in (images, images[..., :12, :]):  # also where they are not square
        rolled = shown.roll((down, across), (-2, -1))
        assert torch.equal(registered(rolled, shown, 0.17), shown)


def test_registration_finds_a_shift_that_leaves_the_frame() -> None:
    image = torch.rand((1, 2, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = torch.from_numpy(shift(image.numpy(), (0, 0, 3, -2), order=0, mode="nearest"))
    back, middle = registered(moved, image, 0.125), (..., slice(5, -5), slice(5, -5))
    assert torch.equal(back[middle], image[middle])


def test_registration_shifts_no_further_than_it_may() -> None:
    image = smooth(1, 32, 3)
    rolled = image.roll(9, -1)
    near = [rolled.roll((down, across), (-2, -1)) for down in range(-4, 5) for across in range(-4, 5)]
    found = registered(rolled, image, 0.125)
    assert any(torch.equal(found, shifted) for shifted in near)
    assert torch.equal(registered(rolled, image, 0.5), image)


def test_restarts_that_agree_up_to_a_shift_cost_nothing() -> None:
    images = smooth(2, 16, 0)
    group = torch.stack([images, images.roll(1, -1), images.roll(2, -2)])
    assert torch.allclose(GroupConsistency(1.0)(group), torch.zeros(3, dtype=torch.float64))


def test_without_shifts_the_penalty_is_the_distance_to_the_plain_mean() -> None:
    group = torch.rand((4, 2, 9), dtype=torch.float64)  # tables have nothing to register
    expected = 0.5 * ((group.numpy() - group.numpy().mean(0)) ** 2).mean((1, 2))
    assert np.allclose(GroupConsistency(0.5)(group).numpy(), expected)
    assert torch.allclose(GroupConsistency(0.5).of_first(group), GroupConsistency(0.5)(group)[0])
    assert float(GroupConsistency(0.5)(group[:1])[0]) == 0


def test_the_engine_pulls_restarts_together() -> None:
    from seepage import Architecture, Batch, build, record
    from seepage.attacks.search import engine
    from seepage.testing import planted_inputs

    batch = Batch(planted_inputs(1, (1, 8, 8)), torch.tensor([0]))
    transcript = record(build(Architecture("fc2", {"hidden": 16}), (1, 8, 8), 4), batch, known=["labels"])
    it = GradientMatching(distance=1e-6 * L2(), optimizer=Adam(lr=0.02), steps=40, restarts=3)
    spreads = []
    for priors in ((), (GroupConsistency(100.0),)):
        chosen = replace(it, priors=priors)
        run = engine._MatchingRun(chosen, chosen._objective(transcript[0], transcript.knowledge), batch.labels, 0)
        for step in range(40):
            run.advance_all(step)
        ends = torch.stack([search.decode()[1].detach() for search in run.searches])
        spreads.append(float(ends.std(0).mean()))
    assert spreads[1] < 0.7 * spreads[0]
