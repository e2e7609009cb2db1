"""Another attack's low-resolution images, denoised and then up-sampled by two networks, each the user's or trained."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from seepage.attacks.base import Attack, Inapplicable, Progress
from seepage.attacks.generative.networks import Enhancer, UpSampler, low_size, shrunk, stretched
from seepage.attacks.generative.prior import own_images, remembered, users_network
from seepage.attacks.generative.training import train_denoiser, train_upsampler
from seepage.attacks.search.engine import GradientMatching
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Reconstruction, Transcript

Apply = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Enhanced(Attack):
    """Gradient matching over low-resolution images, then a denoiser and an up-sampler of what it found.

    Both work on images in the value range. They know nothing of the update and may invent detail, and the objective
    stays that of the plain guess.

    Args:
        source: The attack whose images are enhanced.
        scale: By how much its images were enlarged.
        upsampler: From small images to full ones. None: trained on the attacker's images; `bicubic`; or a dotted path
            `module:factory` of your own, called as `factory(input_shape, scale)`.
        upsampler_weights: A `.safetensors` file of your own up-sampler; None: as the factory made it.
        denoiser: From small images to small ones. None: trained on the attacker's images; `off`: left out; or a dotted
            path `module:factory`, called as `factory(input_shape, scale)`.
        denoiser_weights: A `.safetensors` file of your own denoiser; None: as the factory made it.
        width: Channels of the networks trained here.
        training: Training steps of each, of 64 images.
        keep: Folder of trained networks, for the next run; None: none.
    """

    source: GradientMatching
    scale: int = 4
    upsampler: str | None = None
    upsampler_weights: str | None = None
    denoiser: str | None = None
    denoiser_weights: str | None = None
    width: int = 16
    training: int = 500
    keep: str | None = None

    certifies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if min(self.scale, self.width, self.training) < 1:
            raise SeepageError(f"an enhancer needs whole numbers from 1 up, got {self}; correct the recipe")
        for what, use, weights in (
            ("upsampler", self.upsampler, self.upsampler_weights),
            ("denoiser", self.denoiser, self.denoiser_weights),
        ):
            if weights is not None and (use is None or use in ("bicubic", "off")):
                raise SeepageError(
                    f"weights are those of a network of your own; name it with {what} = 'module:factory'"
                )

    def examine(self, transcript: Transcript) -> tuple[Knowledge, Any]:
        prepared = self.source.prepare(transcript)
        if None in (self.upsampler, self.denoiser):
            try:
                own_images(transcript.knowledge)
            except Inapplicable as refusal:
                remedy = f"{refusal.remedy}, or name networks of your own with upsampler and denoiser"
                raise Inapplicable(refusal.reason, remedy) from None
        return transcript.knowledge, prepared

    def objective_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> float:
        return self.source.objective_at(transcript, inputs, labels)

    def run(self, seen: tuple[Knowledge, Any], *, seed: int, progress: Progress) -> Reconstruction:
        knowledge, prepared = seen
        found = self.source.run(prepared, seed=seed, progress=progress)
        if found.status == "interrupted":
            return found
        low, high = knowledge.value_range
        clean, enlarge = self._denoiser(knowledge, found.inputs), self._upsampler(knowledge, found.inputs)
        with torch.no_grad():
            small = clean(shrunk(found.inputs.clamp(low, high), self.scale)).clamp(low, high)
            inputs = enlarge(small).clamp(low, high)
        return replace(found, inputs=inputs, notes=(*found.notes, self._note(knowledge)))

    def _note(self, knowledge: Knowledge) -> str:
        trained = None
        if None in (self.upsampler, self.denoiser):
            trained = f"one trained on {len(own_images(knowledge)):,} images of the attacker's own"
        before = "" if self.denoiser == "off" else f"denoised by {self.denoiser or trained}, "
        return f"{before}up-sampled by {self.upsampler or trained}"

    def _denoiser(self, knowledge: Knowledge, like: Tensor) -> Apply:
        if self.denoiser == "off":
            return lambda images: images
        shape = (knowledge.input_shape[0], *low_size(_sides(knowledge), self.scale))
        if self.denoiser is not None:
            return self._users(self.denoiser, self.denoiser_weights, knowledge, like, shape)
        bounds, scale, width = knowledge.value_range, self.scale, self.width
        images = own_images(knowledge)
        return remembered(
            f"denoiser/{scale}/{width}/{self.training}/{bounds}",
            images,
            lambda: train_denoiser(images, bounds, scale=scale, width=width, steps=self.training),
            lambda: Enhancer(images.shape[1], width),
            self.keep,
        ).to(like)

    def _upsampler(self, knowledge: Knowledge, like: Tensor) -> Apply:
        size = _sides(knowledge)
        if self.upsampler == "bicubic":
            return lambda images: stretched(images, size)
        if self.upsampler is not None:
            return self._users(self.upsampler, self.upsampler_weights, knowledge, like, knowledge.input_shape)
        images, scale, width = own_images(knowledge), self.scale, self.width
        return remembered(
            f"upsampler/{scale}/{width}/{self.training}",
            images,
            lambda: train_upsampler(images, scale=scale, width=width, steps=self.training),
            lambda: UpSampler(images.shape[1], width, size),
            self.keep,
        ).to(like)

    def _users(
        self, use: str, weights: str | None, knowledge: Knowledge, like: Tensor, shape: tuple[int, ...]
    ) -> nn.Module:
        """A network of the user's own, whose outputs must have the shape that is wanted."""
        network = users_network(use, weights, knowledge.input_shape, self.scale).to(like)
        given = (2, knowledge.input_shape[0], *low_size(_sides(knowledge), self.scale))
        with torch.no_grad():
            made = tuple(network(torch.zeros(given).to(like)).shape)
        if made != (2, *shape):
            raise SeepageError(
                f"{use!r} makes {made} of {given} and {(2, *shape)} is wanted; return images of that shape"
            )
        return network


def _sides(knowledge: Knowledge) -> tuple[int, int]:
    return knowledge.input_shape[1], knowledge.input_shape[2]
