"""A distance and its gradient by the dummy gradient: in closed form where that is faster, else by autograd."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch

import torch
from torch import Tensor

from seepage.attacks.search.distances import L1, L2, Cosine, Distance, PerTensor, Scaled, Sum
from seepage.attacks.search.partial import TopMagnitude
from seepage.base.nn import TINY
from seepage.base.rounding import FLOAT32_ZERO
from seepage.federation.types import Tensors

Gradients = tuple[Tensor, list[Tensor]]
"""The distance `[]`, and one gradient per tensor."""
Counts = Callable[[], list[Tensor]]
"""How many entries of each tensor take part; asked only where it is needed."""


def value_and_gradients(distance: Distance, dummy: Tensors, target: Tensors) -> tuple[float, Tensors]:
    """The distance at `dummy`, and its derivative by each of dummy's entries.

    The closed forms make no graph and few new tensors; what is in them is `_closed`'s registered types and sums,
    multiples and parts of them.

    >>> value_and_gradients(L2(), {"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])})
    (4.0, {'w': tensor([4.])})
    """
    names = list(target)
    with torch.no_grad():
        theirs = [target[name] for name in names]
        found = _closed(distance, [dummy[name] for name in names], theirs, lambda: _sizes(theirs))
    if found is None:
        found = _by_autograd(distance, dummy, target)
    return found[0].item(), dict(zip(names, found[1], strict=True))


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


def _by_autograd(distance: Distance, dummy: Tensors, target: Tensors) -> Gradients:
    leaves = {name: dummy[name].detach().requires_grad_() for name in target}
    value = distance(leaves, target)
    return value, list(torch.autograd.grad(value, list(leaves.values()), materialize_grads=True))


@singledispatch
def _closed(distance: Distance, dummy: list[Tensor], target: list[Tensor], counts: Counts) -> Gradients | None:
    """Value and gradients, or None where no closed form is written down. The gradients are new tensors.

    Registered for distances whose gradient is 0 in each entry where dummy and target both are: `TopMagnitude` needs it.
    """
    return None


@_closed.register
def _(distance: L2, dummy: list[Tensor], target: list[Tensor], counts: Counts) -> Gradients | None:
    # D = sum (g' - g)^2, dD/dg' = 2 (g' - g); of its root (g' - g) / D.
    gaps = list(torch._foreach_sub(dummy, target))
    square = _dot(gaps, gaps)
    if not distance.root:
        torch._foreach_mul_(gaps, 2)
        return square, gaps
    length = (square + TINY).sqrt()
    torch._foreach_div_(gaps, length)
    return length, gaps


@_closed.register
def _(distance: L1, dummy: list[Tensor], target: list[Tensor], counts: Counts) -> Gradients | None:
    # D = sum |g' - g|, dD/dg' = sign(g' - g), over the number of entries for the mean.
    gaps = list(torch._foreach_sub(dummy, target))
    total = torch.stack([gap.abs().sum() for gap in gaps]).sum()
    torch._foreach_sign_(gaps)
    if distance.reduce == "mean":
        count = torch.stack(counts()).sum()
        torch._foreach_div_(gaps, count)
        total /= count
    return total, gaps


@_closed.register
def _(distance: Cosine, dummy: list[Tensor], target: list[Tensor], counts: Counts) -> Gradients | None:
    own, theirs, product = _dot(dummy, dummy).sqrt(), _dot(target, target).sqrt(), _dot(dummy, target)
    # With a = |g'|, b = |g|: D = 1 - <g', g> / (a b), dD/dg' = cos g' / a^2 - g / (a b).
    lengths = own * theirs + TINY
    cosine = product / lengths
    gradients = list(torch._foreach_mul(dummy, cosine * theirs / (lengths * own)))
    torch._foreach_add_(gradients, target, alpha=-1 / lengths.item())
    return 1 - cosine, gradients


@_closed.register
def _(distance: Scaled, dummy: list[Tensor], target: list[Tensor], counts: Counts) -> Gradients | None:
    inner = _closed(distance.inner, dummy, target, counts)
    if inner is None:
        return None
    torch._foreach_mul_(inner[1], distance.weight)
    return inner[0] * distance.weight, inner[1]


@_closed.register
def _(distance: Sum, dummy: list[Tensor], target: list[Tensor], counts: Counts) -> Gradients | None:
    first, second = (_closed(part, dummy, target, counts) for part in (distance.first, distance.second))
    if first is None or second is None:
        return None
    torch._foreach_add_(first[1], second[1])
    return first[0] + second[0], first[1]


@_closed.register
def _(distance: PerTensor, dummy: list[Tensor], target: list[Tensor], counts: Counts) -> Gradients | None:
    values, gradients = [], []
    for own, theirs, count in zip(dummy, target, counts(), strict=True):
        if not count:  # no entry of this tensor takes part
            gradients.append(torch.zeros_like(own))
            continue
        one = _closed(distance.inner, [own], [theirs], partial(_listed, count))
        if one is None:
            return None
        values.append(one[0])
        gradients += one[1]
    return torch.stack(values).sum(), gradients


@_closed.register
def _(distance: TopMagnitude, dummy: list[Tensor], target: list[Tensor], counts: Counts) -> Gradients | None:
    """Entries left out are set to 0 on both sides, where the gradients of all registered distances are 0."""
    sizes = [tensor.abs() for tensor in (dummy if distance.of == "dummy" else target)]
    groups = [[size] for size in sizes] if distance.by == "tensor" else [sizes]
    limits = [distance.threshold([size.reshape(-1) for size in group]) for group in groups]
    limits = limits if distance.by == "tensor" else limits * len(sizes)
    return _closed(
        distance.inner,
        [_from(limit, size, tensor) for limit, size, tensor in zip(limits, sizes, dummy, strict=True)],
        [_from(limit, size, tensor) for limit, size, tensor in zip(limits, sizes, target, strict=True)],
        lambda: [(size >= limit).sum() for limit, size in zip(limits, sizes, strict=True)],
    )


def _from(limit: Tensor, sizes: Tensor, tensor: Tensor) -> Tensor:
    """`tensor` where `sizes` reach the limit, else 0."""
    below = torch.nextafter(limit, -torch.ones_like(limit))
    # The kernel of ReLU's derivative does this in one pass; a mask takes several.
    return torch.ops.aten.threshold_backward(tensor, sizes, below.item())  # type: ignore[no-any-return]


def _sizes(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.tensor(tensor.numel(), device=tensor.device) for tensor in tensors]


def _listed(count: Tensor) -> list[Tensor]:
    return [count]


def _dot(a: list[Tensor], b: list[Tensor]) -> Tensor:
    return torch.stack([torch.dot(x.reshape(-1), y.reshape(-1)) for x, y in zip(a, b, strict=True)]).sum()
