"""The distance of images' embeddings from recovered ones, alone and beside the update's (CPA, eq. 11 and 12)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from seepage.attacks.reading.decoding import AT_ONCE
from seepage.attacks.search.parameters import Pixels, SearchSpace
from seepage.attacks.search.problem import Evaluation, Extra, Problem
from seepage.base.nn import calls_in_pass
from seepage.base.nn import generator as draws
from seepage.federation.types import Knowledge, Tensors


@dataclass(frozen=True, eq=False)
class Embedding:
    """The part of a model in front of a named layer."""

    model: nn.Module
    layer: str
    params: Tensors
    buffers: Tensors

    def __call__(self, images: Tensor) -> Tensor:
        """`[k, *shape]` images to the `[k, e]` inputs of the layer."""
        calls = calls_in_pass(self.model, [self.layer], self.params, images, buffers=self.buffers)
        return calls[self.layer][0].input.flatten(1)


@dataclass(frozen=True, kw_only=True)
class NormalPixels(Pixels):
    """Pixels that start normal, clamped to the value range from the start."""

    seed: int

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        space = super().start(batch_size, knowledge, like, draws(self.seed, "images"))
        return replace(space, unknowns=space.project(space.unknowns))


@dataclass(frozen=True, kw_only=True)
class FeatureDistance:
    """Mean over n images of one minus the cosine of embeddings, plus the distance of a matching problem (eq. 12).

    Attributes:
        network: Images to embeddings `[n, e]`.
        targets: `[k, e]`; images beyond the first k have none, and count 0.
        update: The matching problem; None: eq. 11 alone.
    """

    network: Embedding
    targets: Tensor
    update: Problem | None = None

    def of_each(self, images: Tensor) -> Tensor:
        """`[n]` one minus the cosine of embeddings."""
        with torch.no_grad():
            return torch.cat([self._apart(part, target) for part, target in self._parts(images)])

    def evaluate(self, inputs: Tensor, labels: Tensor, extra: Extra | None = None) -> Evaluation:
        total, gradients = 0.0, []
        for part, target in self._parts(inputs):  # a sum over images, so a chunk at a time has the same gradients
            leaf = part.detach().requires_grad_()
            known = target.abs().amax(1) > 0
            value = self._apart(leaf, target).where(known, 0.0).sum() / len(inputs)
            gradients.append(torch.autograd.grad(value, leaf)[0])
            total += value.item()
        gradient = torch.cat(gradients)  # [n, *shape]
        if self.update is not None:
            matched = self.update.evaluate(inputs, labels)
            total, gradient = total + matched.value, gradient + matched.by_inputs
        return Evaluation(total, gradient, None)

    def distance_at(self, inputs: Tensor, labels: Tensor) -> float:
        return self.evaluate(inputs, labels).value

    def _apart(self, images: Tensor, targets: Tensor) -> Tensor:
        return 1 - torch.nn.functional.cosine_similarity(self.network(images), targets)

    def _parts(self, images: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        missing = len(images) - len(self.targets)
        padded = torch.cat([self.targets, self.targets.new_zeros(missing, self.targets.shape[1])])
        return zip(images.split(AT_ONCE), padded.split(AT_ONCE), strict=True)
