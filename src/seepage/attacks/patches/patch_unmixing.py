"""The images of a vision transformer's batch, unmixed from the gradients of its patch and position embeddings."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Needs, Progress, refuse
from seepage.attacks.network import AttackedRound, vouch
from seepage.attacks.patches.borders import Board, leveled, ordered
from seepage.attacks.patches.newton import SummedTokens, sharpened
from seepage.attacks.patches.tokens import PatchTokens
from seepage.attacks.patches.unmixing import LEAST_CLEARANCE, PatchMixture, separate
from seepage.attacks.search.labels import Auto
from seepage.base.clock import between_steps
from seepage.base.nn import generator
from seepage.base.registry import attacks
from seepage.federation.types import Reconstruction, Transcript

LEAST_VALUES = 4
"""Values of a patch for each of the n P patches that are mixed. Measured on photographs of 224 pixels: with 31 and 21
(ViT-B/32, two and three images) it unmixes, with 16 (four) hardly, with 2 (ViT-B/16, two) not at all."""
ROUNDS = 8
"""Most times that patches are put in order and leveled with their neighbors."""
SETTLED = 5e-3
"""Mean change of a pixel, in units of the value range, at which that ends."""
LEVELS = 255
"""Steps of the value range of an 8-bit image."""
ROUNDED = 1e-4
"""Relative difference of the updates up to which images rounded to 8 bits are the client's, but for a few values."""
STANDING = 0.9
"""A step after which S is off by more than this share of what it was off by before ends the search."""

MixedPatches = tuple[SummedTokens, PatchMixture, Board, float]
"""The round, with the places of patches and tokens; what the gradients say of all images' patches; where these lie; and
how far the weakest direction of the differences stands above the noise."""


@attacks.register(
    "patch_unmixing",
    paper="none; its equations are in the docs",
    cost="minutes (unmixing by independent components, then Gauss-Newton through the network)",
    family="unmixing by independent components",
)
@dataclass(frozen=True, kw_only=True)
class PatchUnmixing(Attack):
    """Unmixes the images of a vision transformer's batch out of the gradients of patch and position embedding.

    The position embedding's gradient is the sum of the images' token gradients, S = sum_i D_i; that of the patch
    embedding is G = sum_i D_i^T X_i. Outside the span of S, G's row space is exactly that of the differences of the
    images' patches, with (n - 1) P directions, and outside these all images' patches are known, and the same. The rest,
    n numbers for each direction and place, is found by independent components, as in the Cocktail Party Attack: pixel
    differences of photographs are sparse, and nearly independent from patch to patch. What is known fixes the place
    and the size of each component. Which of a place's patches belongs to which image, and how bright each is, follows
    from its neighbors: images go on across the borders of patches.

    At most width / P images can be separated, of patches with many more values than n P. What is unmixed is near, not
    exact. It becomes exact by Gauss-Newton on S as the network itself gives it (`patches.newton`): images of 8 bits
    whose update is the observed one are certified. That takes the labels, known or inferred, and hundreds of passes
    through the network.

    Args:
        steps: Most steps of Gauss-Newton; 0: none, in seconds.

    Example:
        >>> PatchUnmixing().needs.text
        'an image transformer with learned positions, batch of 2 and more, large patches'
    """

    needs: ClassVar[Needs] = Needs(
        text="an image transformer with learned positions, batch of 2 and more, large patches",
        images="the unmixing of patches",
        differentiable=True,
        linear_in_gradient="no gradient is a sum over patches",
        uncoupled="no gradient a sum over images",
        batch_size="the directions of the images' differences are counted by it",
        instead="gradient_matching",
    )

    steps: int = 8

    def examine(self, transcript: Transcript) -> MixedPatches:
        attacked = AttackedRound.of(transcript)
        knowledge, images = attacked.knowledge, attacked.observed.batch_size
        assert images is not None
        if images == 1:
            raise refuse("single_example")("a single image is mixed with no other", "use patch_embedding")
        tokens = PatchTokens.of(attacked)
        errors, products = tokens.equations(attacked.gradient)
        pixels, order, inside, grid = _board(tokens, knowledge.input_shape)
        count, width, size = len(errors), errors.shape[1], pixels.shape[1]
        # The rows of D_1 to D_n span n P dimensions, P of them those of S: (n - 1) P directions must fit into the
        # width - P outside of it.
        if images > width // count:
            raise refuse("too_many_examples")(
                f"{images} images of {count} patches are mixed in tokens of {width} numbers, and at most "
                f"{width // count} can be distinguished",
                "observe a smaller batch, or use gradient_matching",
            )
        if size < LEAST_VALUES * images * count:
            raise refuse("too_few_equations")(
                f"{images * count} patches of {size} values are mixed, and fewer than {LEAST_VALUES} values for each "
                "say too little to unmix them by",
                "observe a smaller batch, or use gradient_matching",
            )
        # Columns of G in the order of the pixels, as if the network read them without shift and scale.
        scale, shift = tokens.scale[order].gather(1, inside), tokens.shift[order].gather(1, inside)
        errors, products = errors[order], products[:, inside[0]]  # S [P, width], G [width, d]
        # Each patch is read as scale * x + shift, so G - S^T shift = (sum_i D_i^T X_i) diag(scale).
        mixture, clear = PatchMixture.of(errors, (products - errors.T @ shift) / scale[0], images, grid)
        if clear < LEAST_CLEARANCE:
            raise refuse("too_noisy")(
                f"the weakest direction of the images' differences stands {clear:.1f} times above the noise of the "
                f"update, and {LEAST_CLEARANCE:g} are needed (it was quantized or noised, or images are the same in a "
                "patch)",
                "use gradient_matching",
            )
        height, across = knowledge.input_shape[1] // grid[1], knowledge.input_shape[2] // grid[2]
        return SummedTokens(attacked, tokens, order, pixels), mixture, Board.of(height, across, grid), clear

    def run(self, seen: MixedPatches, *, seed: int, progress: Progress) -> Reconstruction:
        summed, mixture, board, clear = seen
        attacked, n = summed.attacked, mixture.images
        (low, high), like = attacked.knowledge.value_range, attacked.like()
        rows, unit = separate(mixture, generator(seed, "patches")), high - low
        image = ordered(_patches(rows, mixture), board, unit)
        total = ROUNDS + self.steps
        for turn in range(ROUNDS):
            before = _patches(rows, mixture)
            rows = leveled(mixture, rows, board, image, unit)
            patches = _patches(rows, mixture)
            image = ordered(patches, board, unit)
            moved = float((patches - before).square().mean().sqrt()) / unit
            progress.report(turn, total, moved)
            if moved < SETTLED:
                break
        # [P, n, d] by place, then of each image: [n, P, d]
        places = torch.arange(len(patches))
        unmixed = torch.stack([patches[places, image[:, i]] for i in range(n)]).to(like)
        labels = Auto()(attacked.observed, attacked.knowledge) if self.steps else None
        found = Sharpened(summed.images(unmixed).clamp(low, high))
        if labels is not None:
            found = self._sharpen(summed, unmixed, mixture.span, labels.to(like.device), progress)
        count, width = len(places), mixture.width
        return Reconstruction(
            inputs=found.images,
            labels=found.labels,
            certified=torch.full((n,), found.certified, device=like.device),
            status="interrupted" if found.interrupted else "ok",
            notes=(
                f"{n} images of {count} patches were unmixed; tokens of {width} numbers allow {width // count}",
                f"the weakest direction of their differences stands {clear:.0f} times above the noise",
                *found.notes,
            ),
        )

    def _sharpen(
        self, summed: SummedTokens, patches: Tensor, span: Tensor, labels: Tensor, progress: Progress
    ) -> "Sharpened":
        """Steps of Gauss-Newton, until images of 8 bits explain the update or the search stands still."""
        attacked = summed.attacked
        low, high = attacked.knowledge.value_range
        best = Sharpened(summed.images(patches).clamp(low, high))
        ordered_labels, off = summed.in_order(patches, labels), float("inf")
        if ordered_labels is None:
            return best
        try:
            for turn, (moved, now) in enumerate(sharpened(summed, patches, span, ordered_labels)):
                progress.report(ROUNDS + turn, ROUNDS + self.steps, now)
                standing, off = now > STANDING * off, min(now, off)
                images = summed.images(moved).clamp(low, high)
                if now == off:
                    off_by = f"the position embedding's gradient is off by {now:.1e} of its size"
                    note = f"after {turn} Gauss-Newton steps {off_by}"
                    best = Sharpened(images, ordered_labels, notes=(note,))
                whole = low + (high - low) * ((images - low) / (high - low) * LEVELS).round() / LEVELS
                error, _ = vouch(attacked, whole, ordered_labels)
                if error < ROUNDED:
                    fits = f"images of 8 bits give the update to {error:.1e} of its size"
                    note = f"{fits}, after {turn} Gauss-Newton steps"
                    return Sharpened(whole, ordered_labels, certified=True, notes=(note,))
                if standing or turn == self.steps:
                    return best
                between_steps()
        except KeyboardInterrupt:
            return replace(best, interrupted=True)
        return best


@dataclass(frozen=True)
class Sharpened:
    """Images `[n, *shape]`, their labels where they were looked for, and whether the update vouches for all."""

    images: Tensor
    labels: Tensor | None = None
    certified: bool = False
    notes: tuple[str, ...] = ()
    interrupted: bool = False


def _patches(rows: Tensor, mixture: PatchMixture) -> Tensor:
    """`[P, n, d]`."""
    patches: Tensor = (rows @ mixture.rows).unflatten(0, (-1, mixture.images))
    return patches


def _board(tokens: PatchTokens, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, tuple[int, int, int]]:
    """Patches in reading order: `[P, d]` their pixels, `[P]` their tokens, `[P, d]` their entries, and their grid.

    Raises:
        Inapplicable: Where the patches are no rectangles that cover the image once, all scaled alike.
    """
    inside = tokens.pixels.argsort(1)
    pixels = tokens.pixels.gather(1, inside)
    order = pixels[:, 0].argsort()
    pixels, inside = pixels[order], inside[order]
    channels, height, width = shape
    first = pixels[0]
    across = int((first % width).max() - (first % width).min()) + 1
    down = int((first // width % height).max() - (first // width % height).min()) + 1
    whole = torch.equal(pixels.flatten().sort().values, torch.arange(channels * height * width))
    even = tokens.scaled_alike and bool((inside == inside[0]).all())
    if not whole or not even or channels * down * across != pixels.shape[1] or height % down or width % across:
        raise refuse("no_patches")(
            "the patches are no rectangles that cover the image once, all scaled alike, so no borders tell their order",
            "use gradient_matching",
        )
    return pixels, order, inside, (channels, down, across)
