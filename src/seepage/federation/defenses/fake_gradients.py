"""Fake gradients: send the true gradient clipped entry by entry to sorted random numbers (CAFE, Algorithm 5)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Generator, Tensor, nn

from seepage.base import nn as functional
from seepage.base.registry import defenses
from seepage.errors import SeepageError
from seepage.federation.defenses.sparsify import Pruned
from seepage.federation.types import ClientView, Defense, DefenseModel, Tensors, Update


@dataclass(frozen=True)
class Forged:
    """One tensor as sent.

    Attributes:
        tensor: The fake gradient.
        distance: Euclidean distance of the chosen candidate from the true gradient, both sorted.
        draws: Number of draws of candidates; more than one if none of the first was within tau.
        within: Whether the chosen candidate is within tau.
        kept: Share of entries that are sent as they are.
    """

    tensor: Tensor
    distance: float
    draws: int
    within: bool
    kept: float


REDRAWS = 10
"""Draws at most per tensor."""
MOST_NUMBERS = 2**20
"""Random numbers per tensor and draw at most: large tensors get fewer candidates, at least one."""


@defenses.register("fake_gradients")
@dataclass(frozen=True, kw_only=True)
class FakeGradients(Defense):
    """Clip each tensor's entries to the nearest of many sorted Gaussian candidates (Jin et al. 2021, Algorithm 5).

    For every tensor: draw candidates with independent entries from N(0, sigma2) and sort each in descending order; sort
    the true entries by magnitude; take the candidate nearest to them; send `min(psi, max(g, -psi))` entry by entry.

    As written the candidates are sorted by value, so their second half is negative: the smaller half of the gradient is
    replaced by negative random numbers, and the larger half, being far below psi, is sent as it is. Sorted by
    magnitude nothing is changed at all while gradients are below psi. Both are here to be measured.

    Deviations from the paper: the candidates are of one tensor each. The paper has one psi for the whole gradient, from
    one set of candidates that all workers share. And a large tensor has fewer than nu (`MOST_NUMBERS`): on figure 4's
    network the first fully connected weight 2, the second convolution 5, in place of 1,000. Sorted candidates of d
    entries have almost the same shape, and their lengths differ by a share of 1 / sqrt(2 d): against gradients that are
    small beside them the nearest of 1,000 is 0.3 % shorter than the nearest of 2 where d = 524,288, 0.3 % than that of
    5 where d = 204,800.

    Args:
        candidates: nu, candidates per tensor and draw.
        sigma2: Variance of their entries, absolute.
        order: `value` is the algorithm as written, `magnitude` sorts the candidates' magnitudes instead.
        tau: Largest distance of the nearest candidate from the gradient; None takes any. The published loop draws
            until one is near enough, which may be never; here the nearest of the last of `REDRAWS` is used, and `forge`
            says so.

    Example:
        >>> defense = FakeGradients(candidates=10)
        >>> forged = defense.forge(torch.linspace(-1e-3, 1e-3, 200), seed=0)
        >>> 0.4 < forged.kept < 0.6, forged.draws, forged.within
        (True, 1, True)
    """

    tensorwise: ClassVar[bool] = True
    """Each tensor is forged with its own randomness, so single tensors of a round can be computed alone."""

    reads_examples: ClassVar[bool] = False

    candidates: int = 1000
    sigma2: float = 1.1
    order: Literal["value", "magnitude"] = "value"
    tau: float | None = None

    def __post_init__(self) -> None:
        if self.candidates < 1 or not self.sigma2 > 0:
            raise SeepageError(
                f"FakeGradients needs candidates of at least 1 and sigma2 > 0, got {self}; correct the recipe"
            )
        if self.tau is not None and not self.tau > 0:
            raise SeepageError(f"FakeGradients needs tau > 0, got tau={self.tau}; leave it out to take any distance")

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        forged = self.forge_all(update.tensors, generator)
        return replace(update, tensors={name: one.tensor for name, one in forged.items()})

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return (Unforged(),) if self.order == "value" else ()

    def forge_all(self, tensors: Tensors, generator: Generator) -> dict[str, Forged]:
        """The forgery of every tensor, with its diagnostics."""
        seed = int(torch.randint(2**31, (), generator=generator))
        return {
            name: self.forge(tensor, seed=functional.generator(seed, name).initial_seed() % 2**31)
            for name, tensor in tensors.items()
        }

    def forge(self, tensor: Tensor, *, seed: int) -> Forged:
        """The forgery of one tensor."""
        flat = tensor.flatten()
        places = flat.abs().argsort(descending=True, stable=True)
        ordered = flat[places]
        count = max(1, min(self.candidates, MOST_NUMBERS // max(1, len(flat))))
        near = torch.inf
        for draw in range(1, REDRAWS + 1):
            psi, near = self._nearest(ordered, count, functional.generator(seed, "candidates", draw))
            if self.tau is None or near <= self.tau:
                break
        fake = torch.empty_like(flat)
        fake[places] = torch.minimum(psi, torch.maximum(ordered, -psi))
        kept = float((fake == flat).double().mean())
        within = self.tau is None or near <= self.tau
        return Forged(fake.reshape(tensor.shape), near, draw, within, kept)

    def _nearest(self, ordered: Tensor, count: int, draw: Generator) -> tuple[Tensor, float]:
        psi = torch.randn(count, len(ordered), generator=draw).to(ordered) * self.sigma2**0.5
        if self.order == "magnitude":
            psi = psi.abs()
        # numpy's sort of numbers alone is ten times as fast as torch's, which sorts their places as well.
        psi = torch.from_numpy(np.sort(psi.cpu().numpy(), axis=1)).flip(1).to(ordered)
        distances = (psi - ordered).norm(dim=1)
        best = int(distances.argmin())
        return psi[best], float(distances[best])


@dataclass(frozen=True)
class Unforged(Pruned):
    """What is left of fake gradients as written is a pruned gradient: its larger half, and nothing of the smaller one.

    The negative half of a sorted candidate takes the place of the smaller entries, hundreds of times larger than most
    gradients are. So an entry no larger than its tensor's largest positive one is taken as true, all others as forged;
    those were no larger than the least true one, as behind pruning. Of the plausible ones the smallest tenth is set
    aside too (`MIDDLE`).

    >>> Unforged().credible({"w": torch.tensor([0.02, -0.01, -0.7, -0.02, -1.3])})
    {'w': tensor([ 0.0200,  0.0000,  0.0000, -0.0200,  0.0000])}
    """

    forges: ClassVar[bool] = True

    def credible(self, target: Tensors) -> Tensors:
        return {name: _credible(tensor) for name, tensor in target.items()}


MIDDLE = 0.1
"""Share of the plausible entries, the smallest, that are set aside: near the middle of the order the candidate crosses
zero, and cuts true entries down to almost nothing."""


def _credible(tensor: Tensor) -> Tensor:
    near = plausible(tensor)
    if not bool(near.any()):
        return torch.zeros_like(tensor)
    least = tensor[near].abs().quantile(MIDDLE)
    return torch.where(near & (tensor.abs() >= least), tensor, 0)


def plausible(sent: Tensor) -> Tensor:
    """Which entries of one tensor behind fake gradients as written may be true: no larger than the largest positive.

    >>> plausible(torch.tensor([0.02, -0.01, -0.7, -0.02, -1.3])).tolist()
    [True, True, False, True, False]
    """
    near: Tensor = (sent.abs() <= sent.max()) & (sent != 0)
    return near
