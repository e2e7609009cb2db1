"""The image of a vision transformer, from the gradients of its patch and position embeddings."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Inapplicable, Needs, Progress, refuse
from seepage.attacks.network import EXACT, AttackedRound, vouch
from seepage.attacks.patches.grid import on_grid
from seepage.attacks.patches.solve import MeasuredImage, SolvedImage, solve
from seepage.attacks.patches.tokens import PatchTokens
from seepage.attacks.search.labels import SignOfLastBias
from seepage.base.algebra.lowrank import CLEAR
from seepage.base.registry import attacks
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.federation.types import Reconstruction, Transcript

NEARER = 0.01
"""Share of the smooth image's disagreement at which a rounded image is taken, although a rounding was near."""


@dataclass(frozen=True)
class PatchGradients:
    """What the attack works on.

    Attributes:
        attacked: The round.
        tokens: Where patches and positions are.
        errors: `[P, width]` the gradient of the loss in each patch's token.
        products: `[width, d]` the gradient of the patch embedding's weight.
        levels: As of the attack.
    """

    attacked: AttackedRound
    tokens: PatchTokens
    errors: Tensor
    products: Tensor
    levels: int = 255

    @cached_property
    def solved(self) -> SolvedImage:
        """The image, by least squares; over whole levels where they explain the gradients."""
        knowledge = self.attacked.knowledge
        measured = MeasuredImage(self.errors, self.products, knowledge.input_shape, *knowledge.value_range)
        solved = solve(self.tokens, measured)
        found = on_grid(self.tokens, measured, solved, self.levels) if self.levels else None
        if found is None:
            return solved
        whole, clear = found
        return whole if clear or self._explains(whole, solved) else solved

    @cached_property
    def expected_db(self) -> float | None:
        """Expected error of the image, as a PSNR in dB; None where the image itself contradicts it.

        The private image lies within the value range, so the solved one is off by no less than it leaves that range by.
        Where that is far more than expected, the equations are not those of the network: a decay that was taken out
        wrongly, several images or a change of the update.
        """
        low, high = self.attacked.knowledge.value_range
        found = self.solved.image
        # Root mean square of what lies outside, in units of the range: a lower bound of the image's error.
        outside = float((found - found.clamp(low, high)).square().mean().sqrt()) / (high - low)
        if outside > CLEAR * max(self.solved.deviation, FLOAT32_NETWORK):
            return None
        return -20 * math.log10(max(self.solved.deviation, 1e-12))

    @cached_property
    def labels(self) -> Tensor | None:
        """`[1]` the label that is known, or the one that the last layer shows; None where it shows none."""
        if self.attacked.observed.labels is not None:
            return self.attacked.observed.labels
        try:
            return SignOfLastBias()(self.attacked.observed, self.attacked.knowledge)
        except Inapplicable:
            return None

    def image(self, solved: SolvedImage) -> Tensor:
        """`[1, C, H, W]` within the value range, as the network reads it."""
        return solved.image.clamp(*self.attacked.knowledge.value_range).to(self.attacked.like())

    def _explains(self, whole: SolvedImage, solved: SolvedImage) -> bool:
        """Whether the network's own update at the rounded image is far nearer to the observed one."""
        if self.labels is None:
            return False
        tries = (vouch(self.attacked, self.image(one), self.labels, multiple=None) for one in (whole, solved))
        (rounded, _), (smooth, _) = tries
        return rounded < NEARER * smooth


@attacks.register(
    "patch_embedding",
    paper="after APRIL (Lu et al., CVPR 2022), with other equations",
    cost="seconds (closed form)",
)
@dataclass(frozen=True, kw_only=True)
class PatchEmbedding(Attack):
    """Reads the image of a vision transformer's single example out of two gradients, by one least-squares solve.

    A learned position embedding is added to each token, so its gradient *is* the gradient `delta_p` of the loss in
    token p. The patch embedding `z_p = E x_p + b + pos_p` has the gradient `sum_p delta_p x_p^T`. All `delta_p` known,
    this is a system of linear equations for the patches x_p, in their order: exact where the `delta_p` are linearly
    independent, so at most as many patches as a token has numbers. Of more patches, and of gradients that were
    quantized or noised, it returns the most likely image under a smoothness prior.

    The same holds for the difference of weights after local SGD steps on the one example: both gradients are sums over
    the steps with the same factors. APRIL (Lu et al., CVPR 2022) solves for the tokens through the first attention
    block instead, one by one.

    Patches and positions are found by running the network, so it works on any code: class and register tokens before
    or behind the patches, a convolution or a fully connected layer as patch embedding, any patch and image size.

    Most images are stored with 8 bits, so their pixels are whole multiples of 1/255 of the value range. That is tried:
    least squares over whole numbers also finds the directions that the gradients show poorly or not at all. The
    rounded image is taken only where it explains the gradients up to their noise, which no wrong one does, nor one
    that lies off the grid; a note of the report says so.

    An image is certified where the network's own update at it is the observed one, up to a factor, and the singular
    values of the tokens' errors leave less than 40 dB of error at the update's own noise.

    Args:
        levels: Steps of the value range that pixels are taken to be multiples of, where that explains the gradients:
            255 for 8 bits; 0: never.

    Example:
        >>> import torch
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("vit", {"patch": 4, "width": 32, "depth": 1}), (3, 16, 16), 5)
        >>> private = Batch(torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([3]))
        >>> found = PatchEmbedding()(record(model, private), seed=0)
        >>> bool((found.inputs - private.inputs).abs().max() < 1e-3), found.labels, found.certified
        (True, tensor([3]), tensor([True]))
    """

    needs: ClassVar[Needs] = Needs(
        text="an image transformer with learned positions, batch of 1",
        images="the solve for patches",
        differentiable=True,
        linear_in_gradient="no gradient is a sum over patches",
        instead="gradient_matching",
    )

    levels: int = 255

    def examine(self, transcript: Transcript) -> PatchGradients:
        attacked = AttackedRound.of(transcript)
        tokens = PatchTokens.of(attacked)
        if attacked.observed.batch_size != 1:  # which no network without patches need to know
            mixed = attacked.observed.batch_size or "an unknown number"
            raise refuse("several_examples")(
                f"the patches of one image are solved for, and {mixed} are mixed in this update",
                "use patch_unmixing for several images, or gradient_matching",
            )
        return PatchGradients(attacked, tokens, *tokens.equations(attacked.gradient), self.levels)

    def run(self, seen: PatchGradients, *, seed: int, progress: Progress) -> Reconstruction:
        solved, labels = seen.solved, seen.labels
        image = seen.image(solved)
        # The certificate: the network's own update at this image against the observed one, up to one factor.
        error, factor = math.inf, 1.0
        if labels is not None:
            error, factor = vouch(seen.attacked, image, labels, multiple=None)
        expected = "the gradient is not that of one image in its value range, so how near this is, is not known"
        if seen.expected_db is not None:
            expected = f"expected error {seen.expected_db:.0f} dB"
        notes = [
            f"{solved.rank} of {len(seen.errors)} directions of the patches are shown, condition "
            f"{solved.condition:.1e}; {expected}",
        ]
        if solved.whole:
            notes.append(f"all pixels are multiples of 1/{seen.levels} of the value range, and were rounded to them")
        if labels is not None:
            notes.append(f"the update at this image differs from the observed one by {error:.1e} of its size")
        # Through a small ViT, an image off by some share of the value range moves the update by 1.2 to 1.9 times it.
        explained = error < EXACT
        if abs(factor - 1) > EXACT and explained:
            notes.append(f"the observed update is {factor:.3g} times what this image gives: it was scaled")
        return Reconstruction(
            inputs=image,
            labels=labels,
            objective=torch.tensor([error], device=image.device),
            certified=torch.tensor([explained and solved.deviation < EXACT], device=image.device),
            cost={"evaluations": 2},
            notes=tuple(notes),
        )
