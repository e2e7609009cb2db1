"""Batches of a vision transformer: what is known of the mixture, the order of patches, and who is refused."""

from dataclasses import replace

import pytest
import torch
from refusals import refusal
from torch import Tensor

import seepage.federation.data
from seepage import Architecture, Batch, GaussianNoise, Transcript, attack, build, record, score
from seepage.attacks import PatchUnmixing
from seepage.attacks.patches.borders import Board, ordered
from seepage.attacks.patches.unmixing import PatchMixture, likeliest

FOUR = {"patch": 32, "width": 32, "depth": 1, "heads": 2, "hidden": 32}


def photographs(count: int) -> Batch:
    data = seepage.federation.data.load("photos", size=64)
    return data.batch(data.private[:count])


def seen(count: int, **options: int) -> Transcript:
    return record(build(Architecture("vit", {**FOUR, **options}), (3, 64, 64), 13), photographs(count))


def by_hand(images: Tensor) -> Tensor:
    """`[n, 4, 3072]` the patches of images of 64 pixels."""
    cut = images.double().unfold(2, 32, 32).unfold(3, 32, 32)  # [n, 3, 2, 2, 32, 32]
    return cut.permute(0, 2, 3, 1, 4, 5).reshape(len(images), 4, -1)


def test_patches_are_what_is_common_and_a_part_of_the_span() -> None:
    """The two facts that the attack stands on: differences lie in R, and outside R all images' patches are Y."""
    _, mixture, *_ = PatchUnmixing().prepare(seen(3))
    patches, span = by_hand(photographs(3).inputs), mixture.span
    assert span.shape == (8, 3072)
    apart = patches[0] - patches[1]
    assert float((apart - (apart @ span.T) @ span).norm() / apart.norm()) < 1e-3
    for image in patches:
        outside = image - (image @ span.T) @ span
        assert float((outside - mixture.common).norm() / outside.norm()) < 1e-3


def test_steps_leave_what_is_known_as_it_is() -> None:
    """Rows stay those of Y outside R: the first columns are ones of the patch's own row, and zeros."""
    draw = torch.Generator().manual_seed(0)
    mixture = PatchMixture(
        torch.randn(2, 192, generator=draw).double(), torch.randn(2, 192, generator=draw).double(), 2, (3, 8, 8), 16
    )
    known = torch.eye(2).double().repeat_interleave(2, 0)
    rows = torch.cat([known, torch.tensor([[1.0, 0.2], [-1.0, 0.1], [0.3, 1.0], [0.1, -1.0]]).double()], 1)
    moved = likeliest(mixture, rows, steps=5)
    torch.testing.assert_close(moved[:, :2], known)
    assert not torch.allclose(moved, rows)


def test_patches_of_several_images_are_put_in_their_order() -> None:
    draw = torch.Generator().manual_seed(0)
    patches = by_hand(photographs(3).inputs).transpose(0, 1)  # [P, n, d]
    shuffle = torch.stack([torch.randperm(3, generator=draw) for _ in range(4)])
    mixed = torch.stack([place[turn] for place, turn in zip(patches, shuffle, strict=True)])
    found = ordered(mixed, Board.of(2, 2, (3, 32, 32)))
    images = torch.gather(shuffle, 1, found)  # the true image of each place's patch, by found image
    assert (images == images[0]).all()


def test_one_image_too_many_images_and_noise_are_refused() -> None:
    with refusal("single_example"):
        PatchUnmixing().check(seen(1))
    with refusal("too_many_examples", 4, 3):
        PatchUnmixing().check(seen(4, width=12, heads=2))
    with refusal("too_few_equations", 208, 768):
        PatchUnmixing().check(seen(13, patch=16, width=208))
    model = build(Architecture("vit", FOUR), (3, 64, 64), 13)
    with refusal("too_noisy"):
        PatchUnmixing().check(record(model, photographs(2), defense=GaussianNoise(sigma=1e-2)))
    unknown = replace(seen(2)[0], batch_size=None)
    with refusal("no_batch_size", "--batch-size"):
        PatchUnmixing().check(replace(seen(2), make_round=lambda t: unknown))


@pytest.mark.slow
def test_steps_make_images_of_8_bits_exact_and_certified() -> None:
    batch = photographs(2)
    batch = Batch((batch.inputs * 255).round() / 255, batch.labels)
    transcript = record(build(Architecture("vit", FOUR), (3, 64, 64), 13), batch)
    near, found = attack(transcript, PatchUnmixing(steps=0)), attack(transcript, "patch_unmixing")
    assert near.certified is not None
    assert not near.certified.any()
    assert near.labels is None
    assert found.certified is not None
    assert found.certified.all()
    assert found.labels is not None
    assert found.labels.sort().values.tolist() == batch.labels.sort().values.tolist()
    assert score(near, batch).values["psnr"].max() < 100
    assert score(found, batch).values["psnr"].min() > 100


@pytest.mark.slow
def test_images_between_the_levels_of_8_bits_are_not_certified() -> None:
    """A third of a level aside, nothing of 8 bits gives this update; what is found is as near as before."""
    batch = photographs(2)
    aside = Batch((batch.inputs * 255).round() / 255 * 0.99 + 1 / 765, batch.labels)
    found = attack(record(build(Architecture("vit", FOUR), (3, 64, 64), 13), aside), "patch_unmixing")
    assert found.certified is not None
    assert not found.certified.any()
    assert score(found, aside).values["psnr"].min() > 50
