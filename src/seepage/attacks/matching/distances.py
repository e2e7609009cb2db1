"""How far a dummy gradient is from the observed one. Distances add and scale: `L2() + 0.1 * Cosine()`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from seepage.functional import dot, norm
from seepage.types import Tensors

TINY = 1e-30
"""Keeps a division by the norm of an all-zero gradient finite; far below any float32 gradient's square."""


class Distance(ABC):
    """A differentiable function of the dummy gradient; 0 where the two agree."""

    @abstractmethod
    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        """The distance, a scalar `[]`."""

    def __add__(self, other: "Distance") -> "Sum":
        return Sum(self, other)

    def __rmul__(self, weight: float) -> "Scaled":
        return Scaled(weight, self)


@dataclass(frozen=True)
class Sum(Distance):
    """Two distances added."""

    first: Distance
    second: Distance

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        return self.first(dummy, target) + self.second(dummy, target)


@dataclass(frozen=True)
class Scaled(Distance):
    """A distance times a weight."""

    weight: float
    inner: Distance

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        return self.weight * self.inner(dummy, target)


@dataclass(frozen=True)
class L2(Distance):
    """Squared Euclidean distance summed over all tensors (DLG, NeurIPS 2019, eq. 4).

    >>> float(L2()({"w": torch.ones(3)}, {"w": torch.zeros(3)}))
    3.0
    """

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        return torch.stack([(dummy[name] - target[name]).pow(2).sum() for name in target]).sum()


@dataclass(frozen=True)
class L1(Distance):
    """Sum of absolute differences over all tensors."""

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        return torch.stack([(dummy[name] - target[name]).abs().sum() for name in target]).sum()


@dataclass(frozen=True)
class Cosine(Distance):
    """One minus the cosine of the two gradients, all tensors as one vector (Inverting Gradients, NeurIPS 2020, eq. 4).

    Blind to the gradient's length, and so to everything a confident network hides in it.
    """

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        return 1 - dot(dummy, target) / (norm(dummy) * norm(target) + TINY)


@dataclass(frozen=True)
class GaussianKernel(Distance):
    """Layer-wise Gaussian kernel: sum over tensors of `1 - exp(-|g' - g|^2 / (n var(g)))` (SAPAG, 2020).

    The width of each tensor's kernel is the variance of its observed entries times their number `n`, so that each
    tensor's exponent is a relative squared error and no tensor saturates because it is large.
    """

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        terms = []
        for name, observed in target.items():
            # A tensor of one entry has no spread; its own square stands in.
            spread = observed.var(unbiased=False) if observed.numel() > 1 else observed.pow(2).sum()
            width = observed.numel() * spread + TINY
            terms.append(1 - torch.exp(-(dummy[name] - observed).pow(2).sum() / width))
        return torch.stack(terms).sum()
