"""Another attack's low-resolution images, denoised and then up-sampled by two networks that are trained."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Progress
from seepage.attacks.generative.networks import shrunk
from seepage.attacks.generative.prior import own_images, remembered
from seepage.attacks.generative.training import train_denoiser, train_upsampler
from seepage.attacks.search.engine import GradientMatching
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Reconstruction, Transcript

Apply = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Enhanced(Attack):
    """Gradient matching over low-resolution images, then a denoiser and an up-sampler of what it found.

    Both are trained on the attacker's own images and work in the value range. They know nothing of the update and may
    invent detail, and the objective stays that of the plain guess.

    Args:
        source: The attack whose images are enhanced.
        scale: By how much its images were enlarged.
        width: Channels of the networks.
        training: Training steps of each, of 64 images.
    """

    source: GradientMatching
    scale: int = 4
    width: int = 16
    training: int = 500

    certifies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if min(self.scale, self.width, self.training) < 1:
            raise SeepageError(f"an enhancer needs whole numbers from 1 up, got {self}; correct the recipe")

    def examine(self, transcript: Transcript) -> tuple[Knowledge, Any]:
        prepared = self.source.prepare(transcript)
        own_images(transcript.knowledge)
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
        trained = f"trained on {len(own_images(knowledge)):,} images of the attacker's own"
        note = f"denoised by one {trained}, up-sampled by one {trained}"
        return replace(found, inputs=inputs, notes=(*found.notes, note))

    def _denoiser(self, knowledge: Knowledge, like: Tensor) -> Apply:
        bounds, scale, width = knowledge.value_range, self.scale, self.width
        images = own_images(knowledge)
        return remembered(
            f"denoiser/{scale}/{width}/{self.training}/{bounds}",
            images,
            lambda: train_denoiser(images, bounds, scale=scale, width=width, steps=self.training),
        ).to(like)

    def _upsampler(self, knowledge: Knowledge, like: Tensor) -> Apply:
        images, scale, width = own_images(knowledge), self.scale, self.width
        return remembered(
            f"upsampler/{scale}/{width}/{self.training}",
            images,
            lambda: train_upsampler(images, scale=scale, width=width, steps=self.training),
        ).to(like)
