"""Another attack's images, sharpened by a network that learned it on the attacker's own images."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Progress, ignore
from seepage.attacks.generative.prior import enhancer, own_images
from seepage.attacks.matching.engine import GradientMatching
from seepage.errors import SeepageError
from seepage.types import Reconstruction, Transcript


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

    def check(self, transcript: Transcript) -> None:
        self.source.check(transcript)
        own_images(transcript.knowledge)

    def objective_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> float:
        return self.source.objective_at(transcript, inputs, labels)

    def __call__(self, transcript: Transcript, *, seed: int, progress: Progress = ignore) -> Reconstruction:
        self.check(transcript)
        knowledge = transcript.knowledge
        found = self.source(transcript, seed=seed, progress=progress)
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
