"""The inputs of the last linear layer, solved from its gradient and weights."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seepage.attacks.matching.labels import Auto
from seepage.core.nn import generator, last_linear
from seepage.errors import Inapplicable
from seepage.types import Knowledge, Round

MAX_ITERATIONS = 2000
"""Iterations of one start."""
CONVERGED = 1e-8
"""Relative change of the features per round at which the iteration ends."""
MAX_DISAGREEMENT = 1e-3
"""Relative difference of two solutions, or error by rounding, up to which the features count as known."""


@dataclass(frozen=True)
class HeadFeatures:
    """Features of a batch, and whether they can be believed.

    Attributes:
        features: `[n, k]` float64, one row per label.
        labels: `[n]` ascending.
        losses: `[n]` each example's cross-entropy, as the solution has it.
        misfit: By how much the bias gradient contradicts the solution, as a share.
        spread: Largest relative difference of the solutions from several starts.
        rounding: Relative error that the rounding of the update may cause, by the condition of the system.
        doubt: Why the features are not to be believed, or None.
    """

    features: Float[Tensor, "n k"]
    labels: Int[Tensor, " n"]
    losses: Float[Tensor, " n"]
    misfit: float
    spread: float
    rounding: float
    doubt: str | None


def head_features(
    observed: Round, knowledge: Knowledge, labels: Int[Tensor, " n"] | None = None, *, starts: int = 3, seed: int = 0
) -> HeadFeatures:
    """Solve `G = A(F)^T F` for the features F of distinct labels, with `A = (softmax(F W^T + b) - Y) / n`.

    For a given A the features are a least-squares solution; for given features A is known. The two are taken in turn,
    from the uniform softmax of a fresh network. Dividing a class's row of G by its entry of the bias gradient, as is
    usual, instead ignores what the other examples add to that row, and is exact for one example alone.

    A small residual proves nothing: a trained network's confident examples have almost no row in A, and other features
    (small ones, of uniform softmax) solve the equations as well. So the bias gradient must agree, it is solved from
    several starts, and `doubt` says where they differ, where rounding is blown up, or where nothing came to rest.

    Args:
        observed: A round whose update is one plain gradient.
        knowledge: What the attacker knows.
        labels: The labels; None: as the attacker would infer them.
        starts: Starts to compare: the uniform softmax, and random ones.
        seed: Of the random starts.

    Raises:
        Inapplicable: Without a last linear layer with a bias, with repeated labels, with as many examples as classes
            or more, or where its gradient is zero.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("fc2", {"hidden": 12}), (1, 4, 4), 6)
        >>> private = Batch(torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 5]))
        >>> seen = record(model, private)
        >>> found = head_features(seen[0], seen.knowledge, private.labels)
        >>> truth = model[:-1](private.inputs).double()
        >>> bool((found.features - truth).norm() / truth.norm() < 1e-3), found.doubt
        (True, None)
    """
    names = last_linear(knowledge.model, knowledge.num_classes)
    if names is None:
        raise Inapplicable(
            f"the model has no fully connected layer with {knowledge.num_classes} outputs",
            "use another probe, or a model that ends in such a layer",
        )
    labels = Auto()(observed, knowledge) if labels is None else labels.sort().values
    if labels is None or len(labels.unique()) < len(labels) or len(labels) >= knowledge.num_classes:
        raise Inapplicable(
            "features can be told apart only where each example has a label of its own and a class is left over",
            "record a smaller batch with distinct labels",
        )
    weight = observed.params[names[0]]
    if names[1] is None:
        raise Inapplicable(
            "the last layer has no bias, whose gradient tells the scale of each row",
            "use another probe, or a model whose last layer has a bias",
        )
    gradients = observed.gradient(knowledge.client)
    gradient = torch.cat([gradients[names[1]][:, None], gradients[names[0]]], 1)
    if not gradient.any():
        raise Inapplicable(
            "the gradient of the last layer is zero everywhere, so it holds no features",
            "look at the update of another round",
        )
    system = _HeadEquations(weight.double(), observed.params[names[1]].double(), gradient.double(), labels)
    tries = [system.solve(_start(len(labels), len(weight), seed, i).to(system.weight)) for i in range(starts)]
    return _judge(system, tries, torch.finfo(gradient.dtype).eps)


def _start(n: int, classes: int, seed: int, number: int) -> Tensor:
    """Softmax values `[n, classes]` to start from: uniform, then random."""
    logits = torch.randn((n, classes), generator=generator(seed, "head features", number), dtype=torch.float64)
    return (logits * (number > 0)).softmax(1)


@dataclass(frozen=True)
class _HeadEquations:
    """The equations `A^T [1 F] = [g_b G]`, with the bias gradient as a feature that is 1 in each example."""

    weight: Tensor
    bias: Tensor
    gradient: Tensor
    labels: Tensor

    def rows(self, chances: Tensor) -> Tensor:
        """A `[n, classes]`: the slope of the mean loss by each example's logits."""
        # Of the mean cross-entropy: A = (softmax(F W^T + b) - Y) / n.
        wanted = torch.nn.functional.one_hot(self.labels, len(self.weight)).to(chances)
        return (chances - wanted) / len(self.labels)

    def solve(self, chances: Tensor) -> "_HeadSolution":
        """Features for given rows, divided by what should be 1: so a row's scale, which is hardest to know, cancels."""
        features, change = torch.zeros((len(self.labels), self.weight.shape[1])).to(self.weight), float("inf")
        for _ in range(MAX_ITERATIONS):
            # A^T [classes, n] times [1 F] [n, 1 + k] = [g_b G] [classes, 1 + k], in the least-squares sense.
            found = torch.linalg.lstsq(self.rows(chances).T, self.gradient).solution
            ones, new = found[:, :1], found[:, 1:] / found[:, :1]
            change = float((new - features).norm() / new.norm())
            features = new
            # Fixed point: the features give the softmax, which gives the next A.
            chances = (features @ self.weight.T + self.bias).softmax(1)
            if not change > CONVERGED:
                break
        return _HeadSolution(features, chances, float((ones - 1).abs().max()), change <= CONVERGED)


@dataclass(frozen=True)
class _HeadSolution:
    """Where one start ended.

    Attributes:
        features: `[n, k]`.
        chances: `[n, classes]` their softmax.
        misfit: By how much the bias gradient contradicts them, as a share.
        settled: Whether the iteration came to rest.
    """

    features: Tensor
    chances: Tensor
    misfit: float
    settled: bool


def _judge(system: _HeadEquations, tries: list[_HeadSolution], rounding: float) -> HeadFeatures:
    """The solution that the bias gradient contradicts least."""
    best = min(tries, key=lambda one: one.misfit if one.settled else float("inf"))
    spread = max(float((other.features - best.features).norm() / best.features.norm()) for other in tries)
    # Rounding of the gradient reaches the features times the condition number of A.
    singular = torch.linalg.svdvals(system.rows(best.chances))
    blown = rounding * float(singular[0] / singular[-1])
    doubts = {
        "the iteration did not settle": not all(one.settled for one in tries),
        "the bias gradient contradicts the solution": not best.misfit < MAX_DISAGREEMENT,
        "other starts end at other features": not spread < MAX_DISAGREEMENT,
        "some example has almost no gradient (its loss is near 0), and rounding hides it": not blown < MAX_DISAGREEMENT,
    }
    losses = -best.chances.log().gather(1, system.labels[:, None])[:, 0]
    doubt = next((reason for reason, holds in doubts.items() if holds), None)
    return HeadFeatures(best.features, system.labels, losses, best.misfit, spread, blown, doubt)
