"""Whether the matching objective points the way back to the truth: a probe on the auditor's own batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seepage.attacks.search.objective import Evaluates
from seepage.base.nn import generator
from seepage.errors import SeepageError

DEFAULT_NOISES = (0.003, 0.01, 0.03, 0.1)
"""Standard deviations of the noise that the probe starts at, in units of the inputs."""


PROBE_NOISE = 0.03
"""The noise by whose cosine the outlook is judged."""
EXPECTED_FROM, OPEN_FROM = 0.45, 0.1
"""Cosines at that noise from which matching is expected to bring images back, and from which it may.

Fitted to 20 victims, each with four photographs, one at a time, and 500 steps of Inverting Gradients
(`experiments/landscape.py`). An attack succeeded where it passed the image's mean color by 3 dB. The first is the
smallest twentieth that at most one in twenty of the failed attacks reached, the second the largest twentieth below
which at most one in twenty of the successful ones lay. docs/landscape.md has how often they err on other victims.
"""

Outlook = Literal["expected", "open", "not expected"]


def outlook(cosine: float) -> Outlook:
    """What the mean cosine at `PROBE_NOISE` says of gradient matching ahead. None of its words says that data are safe.

    >>> outlook(0.58), outlook(0.3), outlook(0.02)
    ('expected', 'open', 'not expected')
    """
    if cosine >= EXPECTED_FROM:
        return "expected"
    return "open" if cosine >= OPEN_FROM else "not expected"


@dataclass(frozen=True)
class Landscape:
    """How well descent points home, by distance from home.

    Attributes:
        noises: Standard deviation of the noise added to the true inputs, in their own units.
        cosines: `[len(noises), draws]`, between minus the objective's slope and the way back to the truth. About 0 for
            a direction that knows nothing: `1 / sqrt(numbers in the batch)` either way.
        distances: `[len(noises), draws]` the objective there; 0 at the truth.
    """

    noises: tuple[float, ...]
    cosines: Float[Tensor, "noises draws"]
    distances: Float[Tensor, "noises draws"]

    @property
    def means(self) -> list[float]:
        """Mean cosine at each noise."""
        means: list[float] = self.cosines.mean(1).tolist()
        return means

    def intervals(self, level: float = 0.95) -> list[tuple[float, float]]:
        """Student's interval of each mean over the draws of noise (one batch: it says nothing of other batches)."""
        from scipy import stats

        draws = self.cosines.shape[1]
        half = self.cosines.std(1) / math.sqrt(draws) * float(stats.t.ppf(0.5 + level / 2, draws - 1))
        return [(mean - wide, mean + wide) for mean, wide in zip(self.means, half.tolist(), strict=True)]


def landscape(
    problem: Evaluates,
    inputs: Float[Tensor, "n *shape"],
    labels: Int[Tensor, " n"],
    *,
    noises: Sequence[float] = DEFAULT_NOISES,
    draws: int = 8,
    seed: int = 0,
) -> Landscape:
    """Start beside the truth and ask where descent would go.

    Gradient matching can only end at the truth if its slope points there from nearby. This takes seconds where an
    attack takes hours, needs the true batch (the auditor's own), and judges the objective and network, not the
    optimizer. A low cosine can also mean an ill-conditioned objective, through which a better optimizer may find its
    way: no value of it shows that an update is safe.

    Args:
        problem: The update of this batch, with the distance to be used (`Problem`), or whatever else has a value and a
            gradient in the inputs.
        inputs: The true inputs.
        labels: The true labels.
        noises: Standard deviations of the noise.
        draws: Noises drawn at each size, at least 2.
        seed: Of the noise.

    Raises:
        SeepageError: For fewer than 2 draws, or a noise that is not above 0.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> from seepage.attacks.search.distances import L2
        >>> from seepage.attacks.search.problem import Problem
        >>> model = build(Architecture("convnet", {"width": 4, "activation": "sigmoid"}), (1, 8, 8), 3)
        >>> private = Batch(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([1]))
        >>> seen = record(model, private)
        >>> problem = Problem.of(seen[0], seen.knowledge, L2(), None)
        >>> landscape(problem, private.inputs, private.labels, noises=[0.01]).means[0] > 0.2
        True
    """
    if draws < 2 or not all(noise > 0 for noise in noises):
        raise SeepageError(
            f"a landscape probe needs 2 draws or more and noises above 0, got draws={draws} and noises={list(noises)}; "
            "correct them"
        )
    cosines, distances = torch.zeros(len(noises), draws), torch.zeros(len(noises), draws)
    for i, noise in enumerate(noises):
        for j in range(draws):
            drawn = torch.randn(inputs.shape, generator=generator(seed, f"landscape {noise}", j)).to(inputs)
            found = problem.evaluate(inputs + noise * drawn, labels)
            cosines[i, j] = _cosine(found.by_inputs, drawn)  # the way back is minus the noise, descent minus the slope
            distances[i, j] = found.value
    return Landscape(tuple(noises), cosines, distances)


def _cosine(a: Tensor, b: Tensor) -> float:
    """0 where one of the two is zero: no direction."""
    a, b = a.double().flatten(), b.double().flatten()
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths > 0 else 0.0
