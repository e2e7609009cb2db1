"""A distance and its gradient by the dummy gradient: by autograd, the cosine's without a look at single entries."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.search.distances import Cosine, Distance, Scaled
from seepage.base.rounding import FLOAT32_ZERO
from seepage.federation.types import Tensors


def value_and_gradients(distance: Distance, dummy: Tensors, target: Tensors) -> tuple[float, Tensors]:
    """The distance at `dummy`, and its derivative by each of dummy's entries.

    >>> from seepage.attacks.search.distances import L2
    >>> value_and_gradients(L2(), {"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])})
    (4.0, {'w': tensor([4.])})
    """
    leaves = {name: dummy[name].detach().requires_grad_() for name in target}
    value = distance(leaves, target)
    gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return value.item(), dict(zip(leaves, gradients, strict=True))


@dataclass(frozen=True)
class Products:
    """What a distance that sees lengths and angles alone knows of the dummy gradient g' and the observed one g.

    Attributes:
        own: `<g', g'>`.
        theirs: `<g, g>`.
        mixed: `<g', g>`.
    """

    own: float
    theirs: float
    mixed: float

    @classmethod
    def of(cls, dummy: Sequence[Tensor], target: Sequence[Tensor], theirs: float | None = None) -> "Products":
        """The products, all tensors as one vector; `theirs` where it is known already."""
        return cls(
            _sum_of_products(dummy, dummy), theirs or _sum_of_products(target, target), _sum_of_products(dummy, target)
        )


@dataclass(frozen=True)
class Combination:
    """A distance's value, and its derivative by g' as the combination `a g' + b g`, of this length."""

    value: float
    a: float
    b: float
    length: float


def combination(distance: Distance, products: Products) -> Combination | None:
    """The derivative by g' without a look at single entries, or None where the distance has none such.

    None also where `a g'` and `b g` cancel so far that rounding shows: then it takes a look at each entry.

    >>> combination(Cosine(), Products(own=4.0, theirs=1.0, mixed=0.0))
    Combination(value=1.0, a=0.0, b=-0.5, length=0.5)
    """
    if isinstance(distance, Scaled):
        inner, weight = combination(distance.inner, products), distance.weight
        if inner is None:
            return None
        return Combination(weight * inner.value, weight * inner.a, weight * inner.b, abs(weight) * inner.length)
    if not isinstance(distance, Cosine) or not products.own > 0 or not products.theirs > 0:
        return None
    # With D = 1 - <g', g> / (|g'| |g|): dD/dg' = cos g' / |g'|^2 - g / (|g'| |g|), of length sin / |g'|.
    lengths = math.sqrt(products.own * products.theirs)
    cosine = products.mixed / lengths
    if not cosine**2 < 1 - FLOAT32_ZERO:
        return None
    return Combination(1 - cosine, cosine / products.own, -1 / lengths, math.sqrt((1 - cosine**2) / products.own))


def _sum_of_products(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return math.fsum(float(torch.dot(x.reshape(-1), y.reshape(-1))) for x, y in zip(a, b, strict=True))
