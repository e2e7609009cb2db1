"""Features and class probabilities of every example of a batch, solved from the gradient of the last linear layer."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from seepage.attacks.head import softmax
from seepage.attacks.head.equations import HeadEquations
from seepage.attacks.head.sparse import unmix
from seepage.attacks.matching.labels import Auto
from seepage.core.nn import generator, last_linear
from seepage.errors import Inapplicable
from seepage.types import Knowledge, Round

MAX_DISAGREEMENT = 1e-3
"""Relative error up to which features count as known: misfit, difference of two solutions, or rounding."""


@dataclass(frozen=True)
class HeadFeatures:
    """Features of a batch, how well each is known, and whether they can be believed.

    Attributes:
        features: `[n, k]` float64, one row per label; zeros for an example that left no trace.
        labels: `[n]` ascending.
        probabilities: `[n, C]` float64, the softmax of the network's last layer on `features`.
        signal: `[n, k]` float64, the gradient of the mean loss with respect to the features, `(P - Y) W / n`.
        noise: `[n]` standard deviation of the error that rounding of the update leaves in one of an example's features;
            infinite for an example that left no trace.
        misfit: By how much the gradient contradicts the features' own class probabilities, as a share.
        spread: Largest relative difference of solutions from several starts; 0 where zeros settle the solution.
        rounding: Largest `noise` over the root mean square of the example's features.
        known: `[n]` whether the example's features are known to a relative error of about 1e-3.
        doubt: Why some features are not to be believed, or None.
    """

    features: Float[Tensor, "n k"]
    labels: Int[Tensor, " n"]
    probabilities: Float[Tensor, "n C"]
    signal: Float[Tensor, "n k"]
    noise: Float[Tensor, " n"]
    misfit: float
    spread: float
    rounding: float
    known: Bool[Tensor, " n"]
    doubt: str | None

    @property
    def losses(self) -> Float[Tensor, " n"]:
        """Each example's cross-entropy, as the solution has it."""
        return -self.probabilities.log().gather(1, self.labels[:, None])[:, 0]


def head_features(
    observed: Round, knowledge: Knowledge, labels: Int[Tensor, " n"] | None = None, *, starts: int = 6, seed: int = 0
) -> HeadFeatures:
    """Solve `[g_b G] = A^T [1 F]` for the features F of every example, with `A = (softmax(F W^T + b) - Y) / n`.

    The gradient leaves one `n x n` matrix open (`HeadEquations`). Behind a ReLU it is found from the features' zeros
    alone, and the softmax is an independent check; other features are solved from the softmax.

    Args:
        observed: A round whose update is one plain gradient.
        knowledge: What the attacker knows.
        labels: The labels, which may repeat; None: as the attacker would infer them.
        starts: Starts to try.
        seed: Of the random starts.

    Raises:
        Inapplicable: Without a last linear layer, with as many examples as classes or more, or where its gradient is
            zero.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("fc2", {"hidden": 64}), (1, 4, 4), 6)
        >>> private = Batch(torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 2]))
        >>> seen = record(model, private)
        >>> found = head_features(seen[0], seen.knowledge, private.labels)
        >>> truth = model[:-1](private.inputs[:1]).double()
        >>> bool((found.features[:1] - truth).norm() / truth.norm() < 1e-3), found.doubt
        (True, None)
    """
    equations, bias_gradient, labels = _equations(observed, knowledge, labels)
    if equations.rank < len(labels):
        raise Inapplicable(
            f"the gradient of the last layer holds {equations.rank} examples, not {len(labels)}: the others "
            "have almost no loss, or slopes that are multiples of another's",
            "look at the update of an earlier round",
        )
    draw = generator(seed, "head features")
    rows = (
        unmix(torch.linalg.qr(equations.inner.T).Q.T, 4, draw)
        if equations.inner.shape[1] > 4 * equations.rank
        else None
    )
    candidates: list[tuple[Tensor, Tensor]] = []
    if rows is not None:
        # From orthonormal rows back to those of the basis: V = T B, so r V = (r T) B.
        change = torch.linalg.qr(equations.inner.T).R.T
        unmixing = equations.scaled(torch.linalg.solve(change, rows, left=False))
        candidates.append((unmixing, _assigned(equations, unmixing, labels)))
    if not candidates or not equations.misfit(*candidates[0]) < MAX_DISAGREEMENT:
        for number in range(starts):
            spread = (
                0.0 if number == 0 and len(labels.unique()) == len(labels) else 0.05 if 2 * number < starts else 0.5
            )
            first = softmax.start(equations, labels, bias_gradient, spread, draw)
            found = softmax.refine(equations, first, labels)
            candidates.append((found, labels))
            if equations.misfit(found, labels) < 1e-5:
                break
    best = min(candidates, key=lambda pair: equations.misfit(*pair))
    return _result(equations, *best)


def _assigned(equations: HeadEquations, unmixing: Float[Tensor, "n n"], labels: Int[Tensor, " m"]) -> Tensor:
    """The label of each row of an unmixing, `[n]`: what is left of `n A - P` is -1 at the label."""
    left = equations.examples * equations.slopes(unmixing) - equations.probabilities(unmixing)
    places = linear_sum_assignment(left[:, labels].numpy())[1]
    return labels[torch.from_numpy(places)]


def _equations(observed: Round, knowledge: Knowledge, labels: Tensor | None) -> tuple[HeadEquations, Tensor, Tensor]:
    names = last_linear(knowledge.model, knowledge.num_classes)
    if names is None:
        raise Inapplicable(
            f"the model has no fully connected layer with {knowledge.num_classes} outputs",
            "use another probe, or a model that ends in such a layer",
        )
    labels = Auto()(observed, knowledge) if labels is None else labels.sort().values
    if labels is None or len(labels) >= knowledge.num_classes:
        raise Inapplicable(
            "features can be told apart only where there are more classes than examples",
            "record a smaller batch",
        )
    weight = observed.params[names[0]]
    if names[1] is None:
        raise Inapplicable(
            "the last layer has no bias, whose gradient tells the scale of each row",
            "use another probe, or a model whose last layer has a bias",
        )
    gradients = observed.gradient(knowledge.client)
    if not gradients[names[0]].any():
        raise Inapplicable(
            "the gradient of the last layer is zero everywhere, so it holds no features",
            "look at the update of another round",
        )
    bias_gradient = gradients[names[1]]
    equations = HeadEquations.of(weight, observed.params[names[1]], gradients[names[0]], bias_gradient, len(labels))
    return equations, bias_gradient.double(), labels


def _result(equations: HeadEquations, unmixing: Tensor, labels: Tensor) -> HeadFeatures:
    order = labels.argsort(stable=True)
    unmixing, labels = unmixing[order], labels[order]
    features, chances = unmixing @ equations.inner, equations.probabilities(unmixing)
    signal = (chances - F.one_hot(labels, len(equations.weight))) @ equations.weight / equations.examples
    noise, misfit = equations.noise(unmixing), equations.misfit(unmixing, labels)
    relative = noise / features.square().mean(1).sqrt()
    doubts = {
        "the softmax contradicts the solution": not misfit < MAX_DISAGREEMENT,
        "some example has almost no gradient (its loss is near 0), and rounding hides it": not bool(
            (relative < MAX_DISAGREEMENT).all()
        ),
    }
    doubt = next((reason for reason, holds in doubts.items() if holds), None)
    known = (relative < MAX_DISAGREEMENT) & (misfit < MAX_DISAGREEMENT)
    return HeadFeatures(features, labels, chances, signal, noise, misfit, 0.0, float(relative.max()), known, doubt)
