"""What a search minimizes: the distance of the problem, plus priors on the inputs and on what layers see of them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seepage.attacks.search.layers import LayerPrior
from seepage.attacks.search.priors import Prior
from seepage.attacks.search.problem import Evaluation, Extra
from seepage.base.nn import LayerCall, captured_calls
from seepage.federation.types import Knowledge, Round


class Evaluates(Protocol):
    """What the objective needs of a problem: `Problem`, or one that gets the same numbers another way."""

    def evaluate(self, inputs: Tensor, labels: Tensor, extra: Extra | None = None) -> Evaluation: ...

    def distance_at(self, inputs: Tensor, labels: Tensor) -> float: ...


@dataclass(frozen=True)
class MatchingObjective:
    """Distance plus priors.

    Attributes:
        problem: The distance and its gradients.
        knowledge: Whose model the hooks go on.
        observed: The round under attack.
        priors: On the inputs.
        layer_priors: On what layers see of them.
    """

    problem: Evaluates
    knowledge: Knowledge
    observed: Round
    priors: tuple[Prior, ...]
    layer_priors: tuple[LayerPrior, ...]

    @property
    def compares(self) -> bool:
        """Whether the objective of one restart depends on where the others stand."""
        return any(prior.compares for prior in self.priors)

    def at(
        self, inputs: Tensor, labels: Tensor, others: Sequence[Tensor] = (), share: float = 1.0
    ) -> tuple[Evaluation, float]:
        """The objective with its gradients, and the part of its value that is no penalty on the inputs.

        The value is that of the last step, so that points of all steps compare; the gradients are of this one.

        Args:
            inputs: `[n, *shape]`; gradients are taken with respect to them.
            labels: `[n]`, or soft `[n, classes]`.
            others: Inputs of the other restarts, for priors that compare.
            share: Share of the steps that is done, for priors whose weight changes.
        """
        evaluation = self._matched(inputs, labels)
        if not self.priors:
            return evaluation, evaluation.value
        leaf = inputs.detach().requires_grad_()
        now = tuple(prior.at(share) for prior in self.priors)
        penalty = self._penalty(leaf, others, now)
        gradient = evaluation.by_inputs + torch.autograd.grad(penalty, leaf)[0]
        if now != self.priors:
            with torch.no_grad():
                penalty = self._penalty(leaf, others, self.priors)
        return Evaluation(evaluation.value + penalty.item(), gradient, evaluation.by_labels), evaluation.value

    def value_at(self, inputs: Tensor, labels: Tensor) -> float:
        """The objective alone, of one restart without others."""
        with self._watched_layers() as calls:
            value = self.problem.distance_at(inputs, labels)
            if self.layer_priors:
                value += self._seen_penalty(calls, labels).item()
        return value + (self._penalty(inputs, (), self.priors).item() if self.priors else 0.0)

    def _matched(self, inputs: Tensor, labels: Tensor) -> Evaluation:
        if not self.layer_priors:
            return self.problem.evaluate(inputs, labels)
        with self._watched_layers() as calls:
            return self.problem.evaluate(inputs, labels, lambda: self._seen_penalty(calls, labels))

    def _watched_layers(self) -> AbstractContextManager[dict[str, list[LayerCall]]]:
        model = self.knowledge.model
        names = [name for prior in self.layer_priors for name in prior.layers(model)]
        return captured_calls(model, dict.fromkeys(names))

    def _seen_penalty(self, calls: dict[str, list[LayerCall]], labels: Tensor) -> Tensor:
        """The layer priors of the pass just made, whose calls are then forgotten."""
        seen, model = dict(calls), self.knowledge.model
        calls.clear()
        terms = []
        for prior in self.layer_priors:
            own = {name: seen[name] for name in prior.layers(model) if name in seen}
            terms.append(prior(own, labels, self.observed))
        return torch.stack(terms).sum()

    def _penalty(self, inputs: Tensor, others: Sequence[Tensor], priors: Sequence[Prior]) -> Tensor:
        alone = inputs[None]
        group = torch.cat([alone, *(other[None] for other in others)]) if others else alone
        terms = [prior.of_first(group if prior.compares else alone) for prior in priors]
        return torch.stack(terms).sum()
