"""How far a dummy gradient is from the observed one. Distances add and scale: `L2() + 0.1 * Cosine()`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from seepage.base.nn import TINY, dot, norm, safe_norm
from seepage.federation.types import ClientUpdate, Knowledge, Round, Tensors


class Distance(ABC):
    """A differentiable function of the dummy gradient; 0 where the two agree.

    Attributes:
        scale_free: It is blind to the gradient's length, as a cosine is.
        absolute: It adds up absolute differences, so an interval around an entry is as good as the entry itself.
    """

    scale_free: ClassVar[bool] = False
    absolute: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        """The distance, a scalar `[]`."""

    def adapt_to(self, knowledge: Knowledge, observed: Round | None = None) -> "Distance":
        """The distance to use by an attacker who knows this; itself, unless it depends on the client's defense.

        Args:
            knowledge: What the attacker knows.
            observed: The round under attack; None: only whether the distance depends on the defense is asked.
        """
        return self

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

    def adapt_to(self, knowledge: Knowledge, observed: Round | None = None) -> Distance:
        return Sum(self.first.adapt_to(knowledge, observed), self.second.adapt_to(knowledge, observed))


@dataclass(frozen=True)
class Scaled(Distance):
    """A distance times a weight."""

    weight: float
    inner: Distance

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        return self.weight * self.inner(dummy, target)

    def adapt_to(self, knowledge: Knowledge, observed: Round | None = None) -> Distance:
        return Scaled(self.weight, self.inner.adapt_to(knowledge, observed))


@dataclass(frozen=True)
class L2(Distance):
    """Squared Euclidean distance summed over all tensors (DLG, NeurIPS 2019, eq. 4).

    Args:
        root: Take the square root: the distance itself (of each tensor, inside `PerTensor`).

    >>> ones, zeros = {"w": torch.ones(4)}, {"w": torch.zeros(4)}
    >>> float(L2()(ones, zeros)), float(L2(root=True)(ones, zeros))
    (4.0, 2.0)
    """

    root: bool = False

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        square = torch.stack([(dummy[name] - target[name]).pow(2).sum() for name in target]).sum()
        # The root has no derivative at 0, where dummy and target agree.
        return (square + TINY).sqrt() if self.root else square


@dataclass(frozen=True)
class L1(Distance):
    """Sum, or mean over all entries, of absolute differences.

    Args:
        reduce: `sum`, or `mean` over the entries of all tensors together (inside `PerTensor`: of each).

    >>> ones, zeros = {"w": torch.ones(4)}, {"w": torch.zeros(4)}
    >>> float(L1()(ones, zeros)), float(L1("mean")(ones, zeros))
    (4.0, 1.0)
    """

    absolute: ClassVar[bool] = True

    reduce: Literal["sum", "mean"] = "sum"

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        total = torch.stack([(dummy[name] - target[name]).abs().sum() for name in target]).sum()
        return total / sum(tensor.numel() for tensor in target.values()) if self.reduce == "mean" else total


@dataclass(frozen=True)
class Cosine(Distance):
    """One minus the cosine of the two gradients, all tensors as one vector (Inverting Gradients, NeurIPS 2020, eq. 4).

    Blind to the gradient's length, and so to everything a confident network hides in it.
    """

    scale_free: ClassVar[bool] = True

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        # 1 - <g', g> / (|g'| |g|); `safe_norm` keeps the derivative finite for a dummy of zeros.
        return 1 - dot(dummy, target) / (safe_norm(dummy) * norm(target) + TINY)


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
            # n var(g) is about |g|^2 for entries of mean 0, so the exponent is the relative squared error.
            width = observed.numel() * spread + TINY
            terms.append(1 - torch.exp(-(dummy[name] - observed).pow(2).sum() / width))
        return torch.stack(terms).sum()


@dataclass(frozen=True)
class PerTensor(Distance):
    """A distance taken of each tensor by itself, and summed: `PerTensor(Cosine())` weighs all layers alike.

    >>> a, b = {"w": torch.ones(2), "b": torch.ones(1)}, {"w": torch.ones(2), "b": -torch.ones(1)}
    >>> round(float(PerTensor(Cosine())(a, b)), 5), round(float(Cosine()(a, b)), 5)
    (2.0, 0.66667)
    """

    inner: Distance

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        return torch.stack([self.inner({name: dummy[name]}, {name: target[name]}) for name in target]).sum()

    def adapt_to(self, knowledge: Knowledge, observed: Round | None = None) -> Distance:
        return PerTensor(self.inner.adapt_to(knowledge, observed))


@dataclass(frozen=True, eq=False)
class Weighted(Distance):
    """A distance of gradients whose entries are weighed first, both of them alike.

    Args:
        inner: The distance.
        weights: By name, in each tensor's shape.

    >>> ones, zeros = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
    >>> float(Weighted(L2(), {"w": torch.tensor([1.0, 0.0])})(ones, zeros))
    1.0
    """

    inner: Distance
    weights: Tensors

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        both = ({name: self.weights[name] * own[name] for name in target} for own in (dummy, target))
        return self.inner(*both)


def weighted(distance: Distance, observed: Round, rule: ClientUpdate) -> Distance:
    """The distance with entries weighed by `1 / sqrt(1 + (error / r)^2)`, r the root mean square of the known ones.

    So entries that are known well weigh alike, and those that are not known nothing. Only an update that was read off
    a bent step has errors beside which that matters.

    Args:
        distance: Of gradients.
        observed: The round.
        rule: The client's.
    """
    if observed.update.step is None:
        return distance
    found, weights = observed.measured(rule), dict[str, Tensor]()
    for name, value in found.value.items():
        known = found.error[name].isfinite()
        size = (value[known].square().mean() if bool(known.any()) else value.new_ones(())).sqrt().clamp(min=1e-300)
        weights[name] = (1 + (found.error[name] / size).square()).rsqrt().to(observed.update.tensors[name])
    return Weighted(distance, weights)
