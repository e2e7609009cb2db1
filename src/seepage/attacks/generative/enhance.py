"""Another attack's images, sharpened by a network that learned it on the attacker's own images."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Progress
from seepage.attacks.generative.prior import enhancer, own_images
from seepage.attacks.matching.engine import GradientMatching
from seepage.errors import SeepageError
from seepage.types import Knowledge, Reconstruction, Transcript


@dataclass(frozen=True, kw_only=True)
class Enhanced(Attack):
    """Gradient matching over low-resolution images, then a learned enhancement of what it found.

    The enhancement knows nothing of the update: it may invent detail, and the objective stays that of the plain guess.

    Args:
        source: The attack whose images are enhanced.
        scale: By how much its images were enlarged.
        width: Channels of the enhancer.
        training: Training steps of the enhancer, of 64 images.
        keep: Folder of trained networks, for the next run; None: none.
    """

    source: GradientMatching
    scale: int = 4
    width: int = 16
    training: int = 500
    keep: str | None = None

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
        sharpen = enhancer(
            knowledge, found.inputs, scale=self.scale, width=self.width, steps=self.training, keep=self.keep
        )
        low, high = knowledge.value_range
        with torch.no_grad():
            inputs = sharpen(found.inputs.clamp(low, high)).clamp(low, high)
        note = f"enhanced by a network trained on {len(own_images(knowledge)):,} images of the attacker's own"
        return replace(found, inputs=inputs, notes=(*found.notes, note))
