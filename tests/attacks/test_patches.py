"""Patches and positions of transformers: found by running the network, and solved for."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from refusals import refusal
from torch import Tensor, nn

from seepage import Architecture, Batch, GaussianNoise, build, exposure, record
from seepage.attacks.network import AttackedRound
from seepage.attacks.patches import PatchEmbedding, PatchTokens
from seepage.attacks.patches.solve import MeasuredImage, solve
from seepage.federation.clients import FedAvg
from seepage.federation.types import Update
from seepage.measure.metrics import psnr

SHAPE, CLASSES = (3, 16, 16), 5
SMALL = {"patch": 4, "width": 32, "depth": 1, "heads": 2, "hidden": 32}


def image(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """A smooth picture in [0, 1]."""
    coarse = torch.rand((1, shape[0], 4, 4), generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic").clamp(0, 1)


def batch(seed: int = 0) -> Batch:
    return Batch(image(seed), torch.tensor([seed % CLASSES]))


class Odd(nn.Module):
    """A transformer of its own kind: how tokens are made, placed and added to can be chosen.

    Args:
        embed: `conv`, `linear` (patches are cut out by hand), or `stem` (two convolutions).
        position: `added`, `grid` (a parameter `[width, h, w]`), `sine`, `normed` (a layer norm before it is added), or
            `frozen`.
        extra: Tokens before, and after, those of the patches.
        shuffled: Whether the tokens are put into another order before the positions are added.
    """

    def __init__(
        self, embed: str = "conv", position: str = "added", extra: tuple[int, int] = (0, 0), shuffled: bool = False
    ) -> None:
        super().__init__()
        self.embed, self.position, self.extra = embed, position, extra
        width, patches = 64, 16
        self.order = torch.randperm(patches) if shuffled else torch.arange(patches)
        if embed == "conv":
            self.patch: nn.Module = nn.Conv2d(3, width, 4, stride=4)
        elif embed == "linear":
            self.patch = nn.Linear(48, width)
        else:
            self.patch = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, width, 4, stride=4))
        self.norm = nn.LayerNorm(width) if position == "normed" else nn.Identity()
        count = patches + sum(extra)
        if position == "grid":
            self.places = nn.Parameter(0.02 * torch.randn(width, 4, 4))
        elif position == "sine":
            angles = torch.arange(count)[:, None] / torch.logspace(0, 2, width)[None]
            self.register_buffer("places", angles.sin())
        else:
            self.places = nn.Parameter(0.02 * torch.randn(1, count, width), requires_grad=position != "frozen")
        self.more = nn.Parameter(0.02 * torch.randn(1, sum(extra), width)) if sum(extra) else None
        self.block = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.embed == "linear":
            cut = x.unfold(2, 4, 4).unfold(3, 4, 4)  # [n, 3, 4, 4, 4, 4]
            tokens = self.patch(cut.permute(0, 2, 3, 1, 4, 5).reshape(len(x), 16, 48))
        else:
            maps = self.patch(x)
            maps = maps + self.places if self.position == "grid" else maps
            tokens = maps.flatten(2).transpose(1, 2)
        tokens = self.norm(tokens)[:, self.order]
        if self.more is not None:
            more = self.more.expand(len(x), -1, -1)
            before, after = more.split(list(self.extra), dim=1)
            tokens = torch.cat([before, tokens, after], 1)
        if self.position != "grid":
            tokens = tokens + self.places
        head: Tensor = self.head(self.block(tokens).mean(1))
        return head


@pytest.mark.parametrize(
    "how",
    [
        {}, {"embed": "linear"}, {"position": "grid"}, {"extra": (1, 0)}, {"extra": (2, 3)}, {"shuffled": True},
        {"embed": "linear", "extra": (0, 1), "shuffled": True},
    ],
)  # fmt: skip
def test_any_layout_is_found_and_read(how: dict[str, Any]) -> None:
    model = Odd(**how)
    found = PatchEmbedding()(record(model, batch()), seed=0)
    assert float(psnr(found.inputs, image())) > 80
    assert found.certified.all()


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ({"embed": "stem"}, "no_patches"),
        ({"position": "sine"}, "no_positions"),
        ({"position": "frozen"}, "no_positions"),
        ({"position": "normed"}, "no_positions"),
    ],
)
def test_other_networks_are_refused_with_their_reason(how: dict[str, Any], name: str) -> None:
    with refusal(name):
        PatchEmbedding().check(record(Odd(**how), batch()))


def test_a_head_of_zeros_sends_nothing_in_the_first_round() -> None:
    """As torchvision's networks begin; a few local steps, and the image is there."""
    model = build(Architecture("vit", SMALL), SHAPE, CLASSES)
    nn.init.zeros_(model[1].heads.head.weight)  # type: ignore[union-attr, index]
    with refusal("zero_gradient"):
        PatchEmbedding().check(record(model, batch()))
    found = PatchEmbedding()(record(model, batch(), client=FedAvg(lr=0.1, steps=8, batch_size=1)), seed=0)
    assert float(psnr(found.inputs, image())) > 38


@pytest.mark.parametrize("withheld", ["1.encoder.pos_embedding", "1.conv_proj.weight"])
def test_a_withheld_embedding_closes_it(withheld: str) -> None:
    seen = record(build(Architecture("vit", SMALL), SHAPE, CLASSES), batch())
    first = seen[0]
    rest = {name: t * (name != withheld) for name, t in first.update.tensors.items()}
    without = replace(first, update=Update(rest))
    with refusal("zero_gradient"):
        PatchEmbedding().check(replace(seen, make_round=lambda t: without))


def test_entries_are_the_pixels_that_the_layer_reads() -> None:
    """An oracle by hand: what the convolution is given, cut into patches."""
    model = build(Architecture("vit", SMALL), SHAPE, CLASSES)
    seen = record(model, batch())
    tokens = PatchTokens.of(AttackedRound.of(seen))
    normalized = (image().double() - 0.5) / 0.25
    wanted = normalized.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(16, 48)
    torch.testing.assert_close(tokens.embed(image().double()), wanted, atol=1e-5, rtol=1e-5)
    assert tokens.rows.tolist() == list(range(1, 17)), "row 0 is the class token's"
    # The transpose: <E x, y> = <x, E^T y>.
    x, y = torch.rand(1, *SHAPE, dtype=torch.float64), torch.rand(16, 48, dtype=torch.float64)
    assert float((tokens.linear(x) * y).sum()) == pytest.approx(float((x * tokens.adjoint(y, SHAPE)).sum()))


def test_the_errors_are_the_gradients_of_the_tokens() -> None:
    model = build(Architecture("vit", SMALL), SHAPE, CLASSES)
    seen = record(model, batch())
    tokens, network = PatchTokens.of(AttackedRound.of(seen)), model[1]  # type: ignore[index]
    kept: list[Tensor] = []
    hook = network.conv_proj.register_forward_hook(lambda _, __, out: (out.retain_grad(), kept.append(out))[1])  # type: ignore[union-attr]
    nn.functional.cross_entropy(model.eval()(image()), torch.tensor([0])).backward()
    hook.remove()
    by_hand = kept[0].grad.flatten(2)[0].T.double()
    torch.testing.assert_close(tokens.errors(seen[0].update.tensors), by_hand, atol=1e-7, rtol=1e-3)


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-5, 1e-4])
def test_the_expected_error_is_the_error(noise: float) -> None:
    """Whatever the noise, the error that is announced without the truth is the measured one within 6 dB."""
    model = build(Architecture("vit", {**SMALL, "width": 64}), SHAPE, CLASSES)
    defense = GaussianNoise(sigma=noise) if noise else None
    seen = PatchEmbedding().prepare(record(model, batch(), defense=defense))
    measured = float(psnr(seen.solved.image, image().double()))
    assert -20 * math.log10(seen.solved.deviation) == pytest.approx(measured, abs=6)


def test_nothing_false_is_certified() -> None:
    """Two examples inferred as one, noise, another image's positions: each returns an image, and none a certificate."""
    model = build(Architecture("vit", SMALL), SHAPE, CLASSES)
    one = record(model, batch())
    two = record(model, Batch(torch.cat([image(0), image(1)]), torch.tensor([0, 1])))[0].update.tensors
    other = record(model, batch(2))[0].update.tensors
    name = "1.encoder.pos_embedding"
    drawn = {key: torch.randn_like(tensor) for key, tensor in two.items()}
    for tensors in (two, drawn, {**one[0].update.tensors, name: other[name]}):
        changed = replace(one[0], update=Update(tensors))
        found = PatchEmbedding()(replace(one, make_round=lambda t, changed=changed: changed), seed=0)
        assert not found.certified.any()


def test_an_update_scaled_as_a_whole_is_read_all_the_same() -> None:
    seen = record(build(Architecture("vit", SMALL), SHAPE, CLASSES), batch())
    clipped = replace(seen[0], update=Update({name: t / 50 for name, t in seen[0].update.tensors.items()}))
    found = PatchEmbedding()(replace(seen, make_round=lambda t: clipped), seed=0)
    assert float(psnr(found.inputs, image())) > 80
    assert any("0.02 times" in note for note in found.notes)


def test_more_patches_than_numbers_in_a_token_are_filled_in() -> None:
    model = build(Architecture("vit", {**SMALL, "width": 12}), SHAPE, CLASSES)  # 16 patches
    seen = PatchEmbedding().prepare(record(model, batch()))
    assert seen.solved.rank <= 12
    found = float(psnr(seen.solved.image.clamp(0, 1), image().double()))
    least = torch.linalg.pinv(seen.errors.T) @ seen.products  # of least norm: what the gradients alone say
    bare = seen.tokens.adjoint(least - seen.tokens.shift, SHAPE) / float(seen.tokens.scale[0, 0]) ** 2
    assert found > float(psnr(bare.clamp(0, 1), image().double())) + 3
    assert not PatchEmbedding()(record(model, batch()), seed=0).certified.all()  # type: ignore[union-attr]


def test_exposure_names_it() -> None:
    model = build(Architecture("vit", SMALL), SHAPE, CLASSES)
    found = exposure(record(model, batch()))
    assert found.examples == 1
    assert "reveals 1 of 1 example exactly" in found.line
    finding = next(one for one in found.findings if one.name == "patches")
    assert finding.tensors == ("1.conv_proj.weight", "1.encoder.pos_embedding")
    assert "withhold or noise one of the two" in finding.message
    withheld = {tensor.name for tensor in found.tensors if tensor.withhold}
    assert set(finding.tensors) <= withheld
    noisy = exposure(record(model, batch(), defense=GaussianNoise(sigma=1e-2)))
    assert noisy.examples == 0


def test_solving_with_all_equations_is_plain_least_squares() -> None:
    model = build(Architecture("vit", {**SMALL, "width": 64}), SHAPE, CLASSES)
    seen = PatchEmbedding().prepare(record(model, batch()))
    plain = torch.linalg.lstsq(seen.errors.T, seen.products).solution
    found = solve(seen.tokens, MeasuredImage(seen.errors, seen.products, SHAPE, 0.0, 1.0))
    assert found.rank == 16
    torch.testing.assert_close(seen.tokens.embed(found.image), plain, atol=1e-4, rtol=0)


def whole(image: Tensor, levels: int = 255) -> Tensor:
    """As an image is stored in 8 bits."""
    return (image * levels).round() / levels


@pytest.mark.parametrize("width", [64, 14])
def test_an_image_of_whole_levels_comes_back_to_the_last_bit(width: int) -> None:
    """16 patches: with 14 numbers in a token, directions of the patches are in no gradient at all."""
    model = build(Architecture("vit", {**SMALL, "width": width}), SHAPE, CLASSES)
    private = Batch(whole(image()), torch.tensor([0]))
    found = PatchEmbedding()(record(model, private), seed=0)
    torch.testing.assert_close(found.inputs, private.inputs, atol=1e-7, rtol=0)
    assert found.certified.all()
    assert any("multiples of 1/255" in note for note in found.notes), "what was taken of the image is said"
    smooth = PatchEmbedding(levels=0)(record(model, private), seed=0)
    assert float(psnr(smooth.inputs, private.inputs)) < 130


@pytest.mark.parametrize("width", [64, 14])
def test_an_image_off_the_grid_is_not_rounded(width: int) -> None:
    """Resized in float, an image has values between the levels; other grids than the named one are off it, too."""
    model = build(Architecture("vit", {**SMALL, "width": width}), SHAPE, CLASSES)
    for off in (image(), whole(image(), 100), 0.999 * whole(image())):
        seen = record(model, Batch(off, torch.tensor([0])))
        one, plain = PatchEmbedding()(seen, seed=0), PatchEmbedding(levels=0)(seen, seed=0)
        assert torch.equal(one.inputs, plain.inputs)
        assert not any("multiples" in note for note in one.notes)
        named = PatchEmbedding(levels=100)(seen, seed=0)
        assert any("multiples" in note for note in named.notes) == torch.equal(off, whole(image(), 100))


def test_two_images_told_as_one_are_not_rounded_to_any() -> None:
    model = build(Architecture("vit", {**SMALL, "width": 64}), SHAPE, CLASSES)
    both = Batch(whole(torch.cat([image(0), image(1)])), torch.tensor([0, 1]))
    known = replace(record(model, both)[0], batch_size=1)
    seen = replace(record(model, both), make_round=lambda t: known)
    found = PatchEmbedding()(seen, seed=0)
    assert not any("multiples" in note for note in found.notes)
    assert not found.certified.any()


def test_a_network_without_patches_is_refused_for_that_whatever_the_batch() -> None:
    inputs, labels = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2])
    seen = record(build(Architecture("convnet"), (1, 8, 8), CLASSES), Batch(inputs, labels))
    with refusal("no_patches"):
        PatchEmbedding().check(seen)
    two = torch.cat([image(0), image(1)])
    seen = record(build(Architecture("vit", SMALL), SHAPE, CLASSES), Batch(two, labels))
    with refusal("several_examples", 2, "patch_unmixing"):
        PatchEmbedding().check(seen)
