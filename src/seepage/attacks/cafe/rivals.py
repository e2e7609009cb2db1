"""What CAFE is compared with in its own loop: five objectives in place of equation 9 (Jin et al. 2021, section 4.1).

The loop is the same, and so is what it knows: in round t the rows of the guess that the round's indices name move, by
Adam, against the gradient that the round shows. Only the objective is another attack's:

    dlg         |g(x, y) - g|^2 (i)
    cosine      1 - cos(g(x, y), g) + total variation (ii)
    sapag       the Gaussian kernel of each tensor (iii)
    batch_norm  alpha |g(x, y) - g|^2 + distance to the running statistics of batch norms (iv)
    group       alpha |g(x, y) - g|^2 + distance to the mean of several guesses, once these are registered (v)

The paper does not state the weights of total variation and of the regularizers: here they are those of the attacks' own
papers, as in `inverting_gradients` and `grad_inversion`. Labels are found together with the images.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.base import Inapplicable
from seepage.attacks.search.distances import L2, Cosine, Distance, GaussianKernel
from seepage.attacks.search.layers import BatchNormStatistics
from seepage.attacks.search.priors import GroupConsistency, Prior, TotalVariation
from seepage.base.nn import captured_calls
from seepage.federation.types import Batch, Transcript

Objective = Literal["cafe", "dlg", "cosine", "sapag", "batch_norm", "group"]
RIVAL_EPS = 1e-12
"""Adam's eps for the rivals: a squared distance of small gradients would stand still under Keras's 1e-7."""

UNIT = 0.25
"""The length in which the rivals' own papers state their weights: a deviation of normalized images."""
DISTANCES: dict[str, Distance] = {"cosine": Cosine(), "sapag": GaussianKernel()}
PRIORS: dict[str, Prior] = {"cosine": TotalVariation(1e-4, UNIT), "group": GroupConsistency(0.01, unit=UNIT)}
STATISTICS = BatchNormStatistics(0.1)


def rival_check(objective: Objective, transcript: Transcript) -> None:
    """Refuse a rival where the model or the examples lack what its objective reads.

    Raises:
        Inapplicable: For `batch_norm` without batch norms, and for `cosine` and `group` on images without neighbors.
    """
    if objective not in Objective.__args__:  # type: ignore[attr-defined]
        raise Inapplicable(f"there is no objective {objective!r}", "take one of cafe, " + ", ".join(rivals()))
    if objective == "batch_norm":
        STATISTICS.check(transcript.knowledge, transcript[0])
    if objective in PRIORS:
        PRIORS[objective].check(transcript.knowledge)


def rivals() -> tuple[str, ...]:
    """The names of the objectives that are not CAFE's.

    >>> rivals()
    ('dlg', 'cosine', 'sapag', 'batch_norm', 'group')
    """
    names: tuple[str, ...] = Objective.__args__[1:]  # type: ignore[attr-defined]
    return names


def rival_objective(
    objective: Objective, alpha: float, transcript: Transcript, place: int, batches: Sequence[Batch]
) -> Tensor:
    """The objective of a round, a scalar `[]` that is differentiable in the batches' inputs and labels.

    Args:
        objective: Which.
        alpha: Weight of the gradients' distance for `batch_norm` and `group`; it does not matter for the others.
        transcript: The rounds.
        place: The round's number.
        batches: A batch for each guess, `[K, *shape]` and `[K, classes]` probabilities.
    """
    observed, knowledge = transcript[place], transcript.knowledge
    model, rule = knowledge.model, knowledge.client
    sent = observed.gradient(rule)
    distance: Distance = DISTANCES.get(objective, (1.0 if objective == "dlg" else alpha) * L2())
    names = STATISTICS.layers(model) if objective == "batch_norm" else []
    terms = []
    for batch in batches:
        with captured_calls(model, names) as calls:
            made = rule(model, observed.params, batch, buffers=observed.buffers or None, create_graph=True)
        terms.append(distance(rule.as_gradient(made, len(batch)), sent))
        if names:
            terms.append(STATISTICS(calls, batch.labels, observed))
    if objective in PRIORS:
        candidates = torch.stack([batch.inputs for batch in batches])  # [guesses, K, *shape]
        terms.append(PRIORS[objective](candidates).sum())
    return torch.stack(terms).sum()
