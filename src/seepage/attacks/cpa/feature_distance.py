"""The distance of images' embeddings from recovered ones, alone and beside the update's (CPA, eq. 11 and 12)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from seepage.attacks.base import Progress, run_resumable
from seepage.attacks.reading.decoding import AT_ONCE, Decoder, NaturalSpectrum
from seepage.attacks.search.parameters import Pixels, SearchSpace
from seepage.attacks.search.problem import Evaluation, Extra, Problem
from seepage.base.checkpoint import Resumable
from seepage.base.nn import calls_in_pass
from seepage.base.nn import generator as draws
from seepage.federation.types import Knowledge, Reconstruction, Tensors

ITERATIONS = 25
"""L-BFGS iterations of one step of the second-order search."""
MOST_COEFFICIENTS = 2**26
"""Coefficients of a decoder, embedding values times pixels, above which the second-order search starts near grey."""
FADING = (1e-2, 1e-3, 1e-4)
"""Weights of the prior in the second-order search, each for a third of the steps."""


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


class SecondOrder(Resumable):
    """The same by L-BFGS, in coefficients of a natural spectrum: `x = 1/2 + K u`, in units of the value range.

        |f(x) - t|^2 / |t|^2 + mu |u|^2 / d + |x - clamp(x)|^2 / d,        mu from `FADING`, first to last

    An optimizer is made anew for each step of `ITERATIONS` iterations, so that images alone are a checkpoint.
    """

    kept = ("unit", "history")

    def __init__(self, features: FeatureDistance, knowledge: Knowledge, steps: int, seed: int) -> None:
        self.network, self.targets = features.network, features.targets
        self.low, self.high = knowledge.value_range
        self.steps = max(1, steps // ITERATIONS)
        shape = knowledge.input_shape
        self.spectrum = NaturalSpectrum(shape).to(self.targets)
        if self.targets.shape[1] * math.prod(shape) <= MOST_COEFFICIENTS:
            draw = draws(seed, "decoder")
            unit = Decoder(self._maps, shape, draw, at_once=min(16, AT_ONCE))(self.targets[:, :, None, None])
        else:
            start = torch.randn((len(self.targets), *shape), generator=draws(seed, "images")).to(self.targets)
            unit = 0.5 + 0.04 * (start / 4).clamp(-0.5, 0.5)  # near mid-grey
        self.unit = unit.detach().clone()  # images in units of the value range, [k, *shape]
        self.history: list[tuple[int, float]] = []

    def run(self, progress: Progress) -> Reconstruction:
        step, interrupted = run_resumable(self, self.steps, self.step, progress, note=self.note, every=1)
        return Reconstruction(
            inputs=self.low + (self.high - self.low) * self.unit,
            status="interrupted" if interrupted else "exhausted",
            history=tuple(self.history),
            cost={"steps": step, "evaluations": step},
        )

    def note(self, step: int, value: float) -> None:
        self.history.append((step, value))

    def _maps(self, unit: Tensor) -> Tensor:
        """Features without positions `[n, e, 1, 1]` of images in [0, 1]."""
        return self.network(self.low + (self.high - self.low) * unit)[:, :, None, None]

    def step(self, done: int) -> float:
        """`ITERATIONS` iterations, chunk by chunk; the mean objective after them."""
        mu = FADING[min(len(FADING) * done // self.steps, len(FADING) - 1)]
        values = []
        for part, target in zip(self.unit.split(AT_ONCE), self.targets.split(AT_ONCE), strict=True):
            images, value = self._searched(part, target, mu)
            part.copy_(images)
            values.append(value)
        return sum(values) / len(self.unit)

    def _searched(self, start: Tensor, target: Tensor, mu: float) -> tuple[Tensor, float]:
        """Images `[k, *shape]` in [0, 1] after some iterations, and the sum of their objectives."""
        deviation, d = self.spectrum.deviation, start[0].numel()
        u = (self.spectrum.coefficients(start - 0.5) / deviation).contiguous().requires_grad_()
        optimizer = torch.optim.LBFGS([u], max_iter=ITERATIONS, history_size=ITERATIONS, line_search_fn="strong_wolfe")
        size = target.square().sum(1).clamp(min=1e-12)

        def closure() -> Tensor:
            optimizer.zero_grad()
            x = 0.5 + self.spectrum.image(deviation * u)
            apart = (self._maps(x)[:, :, 0, 0] - target).square().sum(1) / size
            outside = (x - x.clamp(0, 1)).square().flatten(1).sum(1) / d
            value = (apart + mu * u.square().flatten(1).sum(1) / d + 10 * outside).sum()
            value.backward()
            assert u.grad is not None
            u.grad = u.grad.contiguous()
            return value.detach()

        with torch.enable_grad():
            optimizer.step(closure)
        value = float(closure())
        return (0.5 + self.spectrum.image(deviation * u.detach())).clamp(0, 1), value
