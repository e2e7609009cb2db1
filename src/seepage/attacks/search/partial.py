"""Distances over a part of the gradient, and distances that know the client's defense."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from seepage.attacks.search.adaptive import Stated, known_likelihood, known_noise
from seepage.attacks.search.distances import Distance
from seepage.attacks.search.selection import kth_smallest
from seepage.base.nn import safe_norm
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Round, Tensors

UNKNOWN_SIGMA = 0.1
"""Deviation of the noise on an entry of the gradient that is assumed where none is known (the default of the code of
Balunovic et al.)."""


@dataclass(frozen=True, kw_only=True)
class TopMagnitude(Distance):
    """A distance over the largest entries only: partial gradient matching (FedLeak, USENIX Security 2025, eq. 7).

    The entries are chosen anew at each evaluation: those whose magnitude is at least the `1 - ratio` quantile. Entries
    as large as the threshold all stay, so more than this share may stay (all of a dummy gradient that is mostly zeros).
    Section 4.2 of the paper chooses by the gradient with respect to the weights, which is used here. Line 5 of its
    Algorithm 1 says of the inputs, which would choose pixels that move in place of entries that are matched:
    `experiments/fedleak_ablations.py` has that reading.

    Args:
        inner: Distance over the chosen entries; it sees each tensor's as one row, and no tensor without a chosen entry.
        ratio: Share that is kept, in (0, 1].
        by: One threshold over all tensors together, or one in each `tensor`.
        sample: Estimate a threshold from about this many evenly spaced entries; None: from all, exactly.

    >>> from seepage.attacks.search.distances import L1
    >>> dummy, observed = {"w": torch.tensor([0.1, -3.0, 2.0, 0.0])}, {"w": torch.zeros(4)}
    >>> float(TopMagnitude(inner=L1(), ratio=0.5)(dummy, observed))
    5.0
    """

    inner: Distance
    ratio: float
    by: Literal["global", "tensor"] = "global"
    sample: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1 or (self.sample is not None and self.sample < 1):
            raise SeepageError(
                f"partial matching needs a ratio above 0 and up to 1 and a sample of at least 1, got ratio={self.ratio}"
                f" and sample={self.sample}; correct the recipe"
            )

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        # The choice is piecewise constant in the dummy, so no derivative goes through it.
        chosen = self.chosen(dummy, target)
        kept = {name: index for name, index in chosen.items() if len(index)}
        return self.inner(_take(dummy, kept), _take(target, kept))

    def adapt_to(self, knowledge: Knowledge, observed: Round | None = None) -> Distance:
        return replace(self, inner=self.inner.adapt_to(knowledge, observed))

    def chosen(self, dummy: Tensors, target: Tensors) -> Tensors:
        """Places of the chosen entries in each flattened tensor, int64."""
        sizes = {name: dummy[name].detach().abs().reshape(-1) for name in target}
        if self.by == "tensor":
            return {name: (size >= self.threshold([size])).nonzero()[:, 0] for name, size in sizes.items()}
        threshold = self.threshold(list(sizes.values()))
        return {name: (size >= threshold).nonzero()[:, 0] for name, size in sizes.items()}

    def threshold(self, sizes: list[Tensor]) -> Tensor:
        """The smallest magnitude that is kept, of flattened magnitudes."""
        total = sum(len(size) for size in sizes)
        # The (1 - ratio) quantile of |g'|, from every stride-th entry.
        stride = 1 if self.sample is None else max(1, total // self.sample)
        offset, parts = 0, []
        for size in sizes:
            parts.append(size[offset::stride])
            offset = (offset - len(size)) % stride  # evenly spaced over all tensors laid end to end
        looked = sum(len(part) for part in parts)
        keep = max(1, round(self.ratio * looked))
        return kth_smallest(parts, looked - keep)


def _take(tensors: Tensors, places: Mapping[str, Tensor]) -> Tensors:
    return {name: tensors[name].reshape(-1)[index] for name, index in places.items()}


@dataclass(frozen=True, kw_only=True)
class GaussianLikelihood(Distance):
    """Minus the log-likelihood of the update where the client adds Gaussian noise, up to a constant.

    `|g - m(g')|^2 / (2 sigma^2)`, where m is what the defense does before the noise: it clips the norm, or scales it to
    1. This is the Bayes-optimal attack's first term (Balunovic et al., ICLR 2022, eq. 3) for Gaussian noise: that of
    `gaussian_noise`, `decaying_noise`, `unit_norm_noise` and `dp_sgd`, whose clip of single examples is the client
    rule's (see `known_noise`). A defense that states a likelihood of its own, as `laplace_noise` and `quantize` do,
    puts that in this one's place where the attacker knows of it.

    Args:
        sigma: Standard deviation of the noise on each entry of the gradient; None: read from the known defense, else
            0.1.
        clip: Largest norm of the gradient before the noise; None: none.
        unit: The gradient is scaled to norm 1 before the noise.

    >>> known = GaussianLikelihood(sigma=0.5)
    >>> float(known({"w": torch.ones(1)}, {"w": torch.zeros(1)}))
    2.0
    """

    sigma: float | None = None
    clip: float | None = None
    unit: bool = False

    def __post_init__(self) -> None:
        numbers = [value for value in (self.sigma, self.clip) if value is not None]
        if not all(value > 0 for value in numbers):
            raise SeepageError(
                f"a likelihood needs a noise and a clip norm above 0, got sigma={self.sigma}, clip={self.clip}; "
                "correct the recipe"
            )

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        sigma = UNKNOWN_SIGMA if self.sigma is None else self.sigma
        scale = 1.0 if self.clip is None else (self.clip / safe_norm(dummy)).clamp(max=1)
        if self.unit:
            scale = 1 / safe_norm(dummy)
        # -log p(g | g') = |g - m(g')|^2 / (2 sigma^2) + const, with m the clip or the scaling before the noise.
        square = torch.stack([(scale * dummy[name] - target[name]).pow(2).sum() for name in target]).sum()
        return square / (2 * sigma**2)

    def adapt_to(self, knowledge: Knowledge, observed: Round | None = None) -> Distance:
        if self.sigma is not None:
            return self
        noise = known_noise(knowledge, observed)
        if noise is not None:
            return replace(self, sigma=noise.deviation, clip=noise.clip, unit=noise.unit)
        stated = known_likelihood(knowledge, observed)
        return self if stated is None else Stated(stated)
