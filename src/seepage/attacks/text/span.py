"""Whether a vector is among those that a layer has read: the gradient of its weight spans them.

    G = X^T D + E      X: [N, d] what was read    D: [N, m] gradients in what the layer made of it    E: noise

A vector x was read if x = G c for some c. The rounding then hides it no better than |E c|, about `floor |c|`, where
`floor` is the size of the singular values of G that are noise. That is all the tolerance there is: it is larger for
tokens that the update shows faintly, and it follows from the update.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.base.algebra.lowrank import CLEAR, LOG_DROP, UNSEEN_FLOOR, low_rank
from seepage.base.rounding import FLOAT32_SUM, FLOAT32_ZERO

FORMATS = (torch.float16, torch.bfloat16)
"""Number formats, coarser than float32, that updates are sent in."""


def noise_of(mixtures: Tensor, values: Tensor) -> float:
    """Size of the singular values of a gradient that are noise.

    Of a gradient in half precision it is known: rounding to steps of size h adds h / sqrt(12) to an entry, and noise of
    deviation s in a `[d, m]` matrix has singular values up to s (sqrt(d) + sqrt(m)). Rounding within float32 depends on
    the order of sums, so it is read off behind the last gap; tokens differ much in how strongly they are seen, so there
    are gaps among the signal too.

    Args:
        mixtures: `[d, m]` the gradient.
        values: Its singular values, descending.
    """
    steps = _steps(mixtures)
    if steps is not None:
        deviation, (d, m) = math.sqrt(float(steps.square().mean()) / 12), mixtures.shape
        # Largest singular value of a random d x m matrix of this deviation (Marchenko-Pastur edge).
        return deviation * (math.sqrt(d) + math.sqrt(m))
    unseen = float(values[0]) * UNSEEN_FLOOR
    # Below a share of the largest value there is only the rounding of the decomposition.
    # The last gap, not the widest: tokens seen faintly make gaps within the signal.
    drops = (values.clamp(min=unseen / 4).log().diff() < -LOG_DROP).nonzero().flatten()
    return float(values[int(drops[-1]) + 1 :][:10].median()) if len(drops) else unseen


def _steps(mixtures: Tensor) -> Tensor | None:
    """The distance between neighboring numbers at each entry, in the coarsest format that holds all entries."""
    for kind in FORMATS:
        if torch.equal(mixtures.to(kind).to(mixtures.dtype), mixtures):
            return spacing(mixtures, kind)
    return None


def spacing(values: Tensor, kind: torch.dtype) -> Tensor:
    """The distance from each value to the next larger number of a format: a unit of its last place.

    >>> spacing(torch.tensor([1.0, 3.0]), torch.bfloat16).tolist()
    [0.0078125, 0.015625]
    """
    # Numbers in [2^e, 2^(e+1)) are 2^e eps apart; below the smallest normal one the distance stays.
    facts = torch.finfo(kind)
    return torch.exp2(values.abs().double().clamp(min=facts.tiny).log2().floor()) * facts.eps


@dataclass(frozen=True, eq=False)
class GradientSpan:
    """What a layer's gradient spans.

    Attributes:
        basis: `[d, r]` orthonormal columns, float64.
        values: `[r]` singular values.
        floor: Size of the singular values that are noise.
        most: Largest rank that a gradient of this shape can have.
    """

    basis: Tensor
    values: Tensor
    floor: float
    most: int

    @classmethod
    def of(cls, mixtures: Tensor) -> "GradientSpan":
        """From a gradient `[d, m]`; the rank is where its singular values drop to the noise."""
        found = low_rank(mixtures.double().cpu())
        floor = noise_of(mixtures, found.values)
        rank = int((found.values > CLEAR * floor).sum())
        left, values = (part[..., :rank].to(mixtures.device) for part in (found.left, found.values))
        return cls(left, values, floor, min(mixtures.shape))

    @property
    def width(self) -> int:
        """Entries of one vector."""
        return len(self.basis)

    @property
    def rank(self) -> int:
        """Dimension of the span."""
        return len(self.values)

    @property
    def informative(self) -> bool:
        """Whether all that was read can lie in it, with room outside: a layer norm alone takes one direction away."""
        return self.rank < self.most - 1

    def excess(self, vectors: Tensor) -> Tensor:
        """`[k]` distance of vectors `[k, d]` from the span, in units of what noise explains; up to 1: inside."""
        x = vectors.double()
        along = x @ self.basis  # U^T x [k, r]
        # x = G c for c = V S^-1 U^T x, and noise E turns that into an error |E c| <= floor |S^-1 U^T x|.
        outside = (x - along @ self.basis.T).norm(dim=1)
        explained = CLEAR * self.floor * (along / self.values).norm(dim=1) + FLOAT32_SUM * x.norm(dim=1)
        excess: Tensor = outside / explained
        return excess

    def inside(self, vectors: Tensor) -> Tensor:
        """`[k]` bool: which of the vectors `[k, d]` were read.

        Most are ruled out in float32, by |x|^2 - |U^T x|^2, which costs half as much and has half the digits.
        """
        basis, values = self.basis.float(), self.values.float()
        x = vectors.float()
        along = x @ basis
        size = x.square().sum(1)
        # Four times the allowed square: float32 may rule out no vector that float64 would let in.
        explained = (CLEAR * self.floor * (along / values).norm(dim=1)).square()
        near: Tensor = size - along.square().sum(1) <= 4 * explained + FLOAT32_ZERO * size
        near[near.clone()] = self.excess(vectors[near]) <= 1
        return near
