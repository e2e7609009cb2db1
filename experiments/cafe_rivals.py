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

    RivalCafe(objective="dlg", iterations=(500,))(transcript, seed=0)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.base import Progress, refuse
from seepage.attacks.cafe.published import PublishedCafe, PublishedRun
from seepage.attacks.cafe.row_adam import RowAdam
from seepage.attacks.cafe.steps import SeenRounds, open_rounds
from seepage.attacks.cafe.target_layers import assemble
from seepage.attacks.search.distances import L2, Cosine, Distance, GaussianKernel
from seepage.attacks.search.layers import BatchNormStatistics
from seepage.attacks.search.priors import GroupConsistency, Prior, TotalVariation
from seepage.base.nn import captured_calls
from seepage.federation.types import Batch, Transcript

Objective = Literal["dlg", "cosine", "sapag", "batch_norm", "group"]
OBJECTIVES = ("dlg", "cosine", "sapag", "batch_norm", "group")
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
    if objective not in OBJECTIVES:
        raise refuse("no_objective")(f"there is no objective {objective!r}", "take one of " + ", ".join(OBJECTIVES))
    if objective == "batch_norm":
        STATISTICS.check(transcript.knowledge, transcript[0])
    if objective in PRIORS:
        PRIORS[objective].check(transcript.knowledge)


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


@dataclass(frozen=True, kw_only=True)
class RivalCafe(PublishedCafe):
    """CAFE's loop over the rounds with another attack's objective.

    There are no steps I and II; the last of `iterations` counts, and Adam's eps is 1e-12, so that the size of an
    objective does not matter.

    Args:
        objective: What stands in place of equation 9.
        guesses: Guesses of every sample that `group` brings together; the first is returned.
    """

    objective: Objective = "dlg"
    guesses: int = 2

    def examine(self, transcript: Transcript) -> SeenRounds:
        opening = open_rounds(transcript, self.samples)
        rival_check(self.objective, transcript)
        return opening

    def begun(self, seen: SeenRounds, seed: int, progress: Progress) -> PublishedRun:
        return RivalRun(self, seen, seed, progress)


class RivalRun(PublishedRun):
    """One run of a rival."""

    kept = (*PublishedRun.kept, "others")
    plan: RivalCafe

    def __init__(self, plan: RivalCafe, seen: SeenRounds, seed: int, progress: Progress) -> None:
        super().__init__(plan, seen, seed, progress)
        count = plan.guesses if plan.objective == "group" else 1
        tables = [self.tables, *(self.start(seen.samples, seed, g) for g in range(1, count))]
        lr = self.constants["lr_three"]
        self.guesses = [
            ([RowAdam(x, lr, eps=RIVAL_EPS) for x in one.x], RowAdam(one.y, lr, eps=RIVAL_EPS)) for one in tables
        ]
        self.three, self.labels = self.guesses[0]
        self.others = [adam for images, labels in self.guesses[1:] for adam in (*images, labels)]

    def loop(self) -> bool:
        return self.through(self.plan.iterations[-1], self.step)

    def step(self, t: int) -> float:
        """One Adam step on the objective, in the images and labels of the round's samples."""
        place, rows = self.rows_of(t)
        self.steps[2] += 1
        blocks = [[adam.table[rows].requires_grad_() for adam in images] for images, _ in self.guesses]
        logits = [labels.table[rows].requires_grad_() for _, labels in self.guesses]
        middle = sum(self.knowledge.value_range) / 2
        inputs = [assemble(self.layers, own, self.knowledge.input_shape, middle) for own in blocks]
        batches = [Batch(x, y.softmax(1)) for x, y in zip(inputs, logits, strict=True)]
        objective = rival_objective(self.plan.objective, self.plan.alpha, self.transcript, place, batches)
        wanted = [tensor for own, y in zip(blocks, logits, strict=True) for tensor in (*own, y)]
        adams = [adam for images, labels in self.guesses for adam in (*images, labels)]
        found = torch.autograd.grad(objective, wanted, allow_unused=True)
        for adam, gradient in zip(adams, found, strict=True):
            if gradient is not None:
                adam.step(rows, gradient)
        return float(objective.detach())
