"""Features and class probabilities of every example of a batch, solved from the gradient of the last linear layer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from seepage.attacks.network import CERTIFYING_MISMATCH
from seepage.attacks.reading.head import softmax
from seepage.attacks.reading.head.equations import MIN_SLOPE, HeadEquations
from seepage.attacks.reading.head.scale import rescaled
from seepage.attacks.reading.head.sparse import unmix
from seepage.attacks.search.labels import Auto
from seepage.base.nn import generator, last_linear
from seepage.base.rounding import FLOAT32_ZERO
from seepage.errors import refuse
from seepage.federation.types import Knowledge, Round

MIN_WIDTH = 4
"""Features per example from which on zeros are enough to separate examples."""
FORWARD = 3.0
"""Rounding of a network's own forward pass, in units of its type's epsilon and the size of its features."""
MAX_UNKNOWNS = 10_000_000
"""Most entries of the softmax equations' Jacobian."""
MAX_UNKNOWNS_SHARED = 200_000
"""Most entries where the update may be any multiple of the gradient, which takes up to four times as long."""
STARTS = 6
"""Starts from which the softmax equations are solved: random ones, and all examples alike where their labels differ."""
SHARINGS = 3
"""Times that the share of the gradient in the update and the features are solved for in turn."""
SHARES = (1.0, 0.1, 0.01, 0.001)
"""Shares of the gradient in the update from which one is searched for, with the features."""
SIZE_REMEDY = (
    "give the right --batch-size, augmented views counted (or, of two checkpoints, --steps if there were more)"
)
"""What to do about a gradient of a higher rank than the stated number of examples gives."""
CONTRADICTED = "the softmax contradicts the solution"
"""Why features are not believed where no labels of one class each fit the update, at the rate that it was read at."""


@dataclass(frozen=True)
class HeadFeatures:
    """Features of a batch, how well each is known, and whether they can be believed.

    Attributes:
        head: Name of the last fully connected layer, which reads the features.
        features: `[n, k]` float64, one row per label; zeros for an example that left no trace.
        labels: `[n]` ascending.
        probabilities: `[n, C]` float64, the softmax of the network's last layer on `features`.
        signal: `[n, k]` float64, the gradient of the mean loss with respect to the features, `(P - Y) W / n`.
        noise: `[n]` standard deviation of the error that rounding leaves in one of an example's features; infinite for
            an example that left no trace.
        known: `[n]` whether the example's features are known to a relative error of about 1e-3.
        doubt: Why some features are not known, or None.
        share: The update is so many times the gradient of the mean loss, by clipping or another rate than stated; 1
            where that contradicts nothing.
    """

    head: str
    features: Float[Tensor, "n k"]
    labels: Int[Tensor, " n"]
    probabilities: Float[Tensor, "n C"]
    signal: Float[Tensor, "n k"]
    noise: Float[Tensor, " n"]
    known: Bool[Tensor, " n"]
    doubt: str | None
    share: float = 1.0


@dataclass(frozen=True)
class _Solution:
    """One unmixing Q of the m examples that left a trace; other fields as in `HeadFeatures`."""

    unmixing: Float[Tensor, "m m"]
    labels: Int[Tensor, " m"]
    noise: Float[Tensor, " m"]
    found: Bool[Tensor, " m"]
    """Rows that are those of single examples."""
    misfit: float
    """By how much the gradient contradicts the features' own class probabilities, as a share."""
    spread: float = 0.0
    """Largest relative difference of solutions from several starts; 0 where the zeros alone gave the solution."""
    share: float = 1.0


def head_features(
    observed: Round,
    knowledge: Knowledge,
    labels: Int[Tensor, " n"] | None = None,
    *,
    most: int = MAX_UNKNOWNS,
) -> HeadFeatures:
    """Solve `[g_b G] = A^T [1 F]` for the features F of every example, with `A = (softmax(F W^T + b) - Y) / n`.

    Of n examples, fewer than classes, the gradient leaves one `n x n` matrix open (`HeadEquations`). Behind a ReLU it
    is found from the zeros of the features alone (`sparse`), and the softmax, which nothing was fitted to, vouches for
    it. Features without zeros are solved from the softmax (`softmax`), from several starts.

    A small residual by itself proves little: a confident example has almost no row in A, so its features are known only
    up to the rounding of the update over the length of that row. `noise` says how well, example by example, and `known`
    where that is enough.

    Args:
        observed: A round whose update is one plain gradient.
        knowledge: What the attacker knows.
        labels: The labels, which may repeat; None: those known, else read off the solution.
        most: Most entries of the softmax equations' Jacobian, `n^3 C`, which are solved where zeros are too few: 1.4
            million take about five seconds of a core.

    Raises:
        Inapplicable: Without a last linear layer, without a plain cross-entropy, with as many examples as classes or
            more, where the gradient is zero or of a higher rank than so many examples give, or where examples without
            zeros in their features left no trace.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("fc2", {"hidden": 64}), (1, 4, 4), 6)
        >>> private = Batch(torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 2]))
        >>> seen = record(model, private)
        >>> found = head_features(seen[0], seen.knowledge, private.labels)
        >>> truth = model[:-1](private.inputs[:1]).double()
        >>> bool((found.features[:1] - truth).norm() / truth.norm() < 1e-5), found.doubt
        (True, None)
    """
    labels = observed.labels if labels is None else labels
    labels = None if labels is None else labels.cpu().sort().values
    head, equations = _equations(observed, knowledge, labels)
    draw = generator(0, "head features")
    solution = _by_zeros(equations, labels, draw)
    if solution is None or not solution.misfit < CERTIFYING_MISMATCH:
        stated = Auto()(observed, knowledge) if labels is None else labels
        if stated is not None:
            solution = _by_softmax(equations, stated.cpu(), solution, draw, most)
    if solution is None:
        raise refuse("no_labels")(
            "the features have too few zeros to be distinguished without labels, and no labels could be inferred",
            "audit a batch of your own with --known labels",
        )
    return _result(head, equations, solution, labels)


def _equations(observed: Round, knowledge: Knowledge, labels: Tensor | None) -> tuple[str, HeadEquations]:
    """Name of the head and its equations.

    Raises:
        Inapplicable: Whatever stands in the way of solving them.
    """
    names = last_linear(knowledge.model, knowledge.num_outputs)
    if names is None:
        raise refuse("no_head")(
            f"the model has no fully connected layer with {knowledge.num_classes} outputs",
            "use another probe, or a model that ends in such a layer",
        )
    if not knowledge.softmax_labels:
        raise refuse("no_softmax_gradient")(
            "the features are solved from softmax minus label, and the client's loss is no plain cross-entropy",
            "record a client that trains on cross-entropy",
        )
    examples = observed.batch_size if labels is None else len(labels)
    if examples is None:
        raise refuse("no_batch_size")("the batch size is unknown", "name it with --batch-size")
    if examples >= knowledge.num_classes:
        raise refuse("too_few_classes")(
            f"the last layer's gradient has a rank of at most {knowledge.num_classes - 1}, so it cannot tell "
            f"{examples} examples apart: features need more classes than examples",
            "record a smaller batch",
        )
    # Small matrices in float64: on a CPU, wherever the round lies.
    sent = observed.gradient(knowledge.client)
    weight_gradient = sent[names[0]].cpu()
    if not weight_gradient.any():
        raise refuse("zero_gradient")(
            "the gradient of the last layer is zero everywhere, so it holds no features",
            "look at the update of another round",
        )
    bias_gradient = None if names[1] is None else sent[names[1]].cpu()
    bias = None if names[1] is None else observed.params[names[1]].cpu()
    equations = HeadEquations.of(observed.params[names[0]].cpu(), bias, weight_gradient, bias_gradient, examples)
    if equations.rank_beyond_batch is not None:
        raise refuse("wrong_batch_size")(
            f"the gradient of the last layer has rank {equations.rank_beyond_batch}, and that of one step on the "
            f"stated number of examples, {examples}, has at most {examples}",
            SIZE_REMEDY,
        )
    return names[0].removesuffix(".weight"), equations


def _by_zeros(equations: HeadEquations, labels: Tensor | None, draw: Generator) -> _Solution | None:
    """The solution by the zeros of the features; None where they are too few to separate the examples."""
    rank = equations.rank
    if equations.inner.shape[1] < MIN_WIDTH * rank:
        return None
    first = None
    if labels is not None and rank == len(labels):
        first = softmax.start(equations, labels, 0.1, draw)
    unmixed = unmix(equations.inner, equations.deviation, first, draw, equations.column_if_consistent)
    if unmixed is None:
        return None
    unmixing, count = equations.scaled(unmixed[0]), unmixed[1]
    if not bool(unmixing.isfinite().all()) or int(torch.linalg.matrix_rank(unmixing)) < rank:
        return None  # one example was found twice
    plain = _settled(equations, unmixing, count, labels)
    # Examples that are too alike to be separated look like one that counts several times, as in a multiple.
    if plain.misfit < CERTIFYING_MISMATCH or not equations.biased or equations.rank < equations.examples:
        return plain
    # The features do not depend on the update's size, but what the gradient holds of the softmax does.
    solution: _Solution | None = None
    for _ in range(SHARINGS):
        share = equations.share(unmixing, count)
        if share is None:
            return plain
        solution = replace(_settled(equations.over(share), unmixing, count, labels), share=share)
        unmixing = solution.unmixing
    return solution if solution is not None and solution.misfit < CERTIFYING_MISMATCH else plain


def _settled(equations: HeadEquations, unmixing: Float[Tensor, "n n"], count: int, labels: Tensor | None) -> _Solution:
    """An unmixing at the scale that the equations agree on, with labels, errors, and what the softmax says of it.

    Args:
        equations: The gradient.
        unmixing: Rows at the scale that the bias gives.
        count: Its first rows are those of single examples.
        labels: Where they are known.
    """
    from scipy.optimize import linear_sum_assignment  # heavy, and only this needs it

    rank = equations.rank
    # What is left of n A - P is -Y: -1 at the label and 0 elsewhere. [n, C]
    left = equations.examples * equations.slopes(unmixing) - equations.probabilities(unmixing)
    read = left.argmin(1)
    if labels is not None:
        # Each known label is given to one example, at the least sum of the entries chosen.
        places = linear_sum_assignment(left[:, labels].numpy())[1]
        read = labels[torch.from_numpy(places)]
    unmixing, scale_error = rescaled(equations, unmixing, read)
    noise = (equations.noise(unmixing).square() + (scale_error * equations.size(unmixing)).square()).sqrt()
    found = torch.arange(rank) < count
    off, wanted = equations.contradiction(unmixing, read)
    misfit = float(off[found].norm() / wanted[found].norm())
    if rank < equations.examples:
        # Slopes of an example that left no direction of its own still mix its features into the others', by an amount
        # that no singular value shows; the softmax of what they are mixed into does.
        mixed = off.norm(dim=1) / wanted.norm(dim=1).clamp(min=MIN_SLOPE)
        noise = (noise.square() + (mixed * equations.size(unmixing)).square()).sqrt()
    # An example without loss has next to no slopes, which are then all rounding.
    sound = off.norm(dim=1) < CERTIFYING_MISMATCH * wanted.norm(dim=1).clamp(min=MIN_SLOPE)
    return _Solution(unmixing, read, noise, found & sound, misfit)


def _by_softmax(
    equations: HeadEquations,
    labels: Int[Tensor, " n"],
    before: _Solution | None,
    draw: Generator,
    most: int,
) -> _Solution:
    """The best of `before` and of the solutions of the softmax equations from several starts."""
    if equations.rank < len(labels):
        if before is not None:
            return before
        raise refuse("examples_missing")(
            f"the gradient of the last layer holds {equations.rank} examples, not {len(labels)}: the others' "
            "slopes are no more than its errors, or those of another",
            "try a smaller batch, or one of other classes",
        )
    if len(labels) ** 3 * len(equations.weight) > most:
        if before is not None:
            return before
        raise refuse("too_few_equations")(
            f"the features have too few zeros to tell {len(labels)} examples apart, and the softmax equations are too "
            "many",
            "record a smaller batch",
        )
    plain = _of_starts(equations, labels, before, draw)
    if not plain.misfit < CERTIFYING_MISMATCH and len(labels) ** 3 * len(equations.weight) <= MAX_UNKNOWNS_SHARED:
        for guess in SHARES:
            # What the update was multiplied by is one more unknown.
            shared = _of_starts(equations.over(guess), labels, None, draw, scaling=True)
            if shared.misfit < CERTIFYING_MISMATCH:
                return replace(shared, share=guess * shared.share)
    if not math.isfinite(plain.misfit):
        raise refuse("unsolved")(
            "the softmax equations of the last layer have no finite solution: its gradient or weights are too large",
            "look at the update of another round",
        )
    return before if before is not None and before.misfit < plain.misfit else plain


def _of_starts(
    equations: HeadEquations,
    labels: Int[Tensor, " n"],
    before: _Solution | None,
    draw: Generator,
    *,
    scaling: bool = False,
) -> _Solution:
    """The best of several starts; with `scaling` the update may be any multiple of the gradient."""
    tries: list[tuple[float, Tensor, float]] = []
    for first in _starts(equations, labels, before, draw):
        unmixing, share = softmax.refine(equations, first, labels, scaling=scaling)
        tries.append((equations.over(share).misfit(unmixing, labels), unmixing, share))
        if sum(misfit < FLOAT32_ZERO for misfit, *_ in tries) == 2:
            break
    misfit, unmixing, share = min(tries, key=lambda one: math.inf if math.isnan(one[0]) else one[0])
    none = torch.zeros(len(labels), dtype=torch.bool)
    if not math.isfinite(misfit):
        return _Solution(unmixing, labels, torch.full_like(unmixing[:, 0], math.inf), none, misfit)
    features = unmixing @ equations.inner  # Q B [n, k]
    # Solutions that fit about as well must be the same, whatever the order of examples with one label.
    rivals = [_apart(features, q @ equations.inner, labels) for off, q, _ in tries if off < 10 * misfit + FLOAT32_ZERO]
    noise = softmax.noise(equations.over(share), unmixing, labels)
    return _Solution(unmixing, labels, noise, ~none, misfit, max(rivals), share)


def _starts(
    equations: HeadEquations,
    labels: Int[Tensor, " n"],
    before: _Solution | None,
    draw: Generator,
) -> Iterator[Float[Tensor, "n n"]]:
    """Unmixings to start from: all examples alike where their labels differ, what the zeros gave, random ones."""
    distinct = len(labels.unique()) == len(labels)
    if distinct:
        yield softmax.start(equations, labels, 0.0, draw)
    if before is not None and torch.equal(before.labels.sort().values, labels):
        yield before.unmixing[before.labels.argsort(stable=True)]
    for number in range(STARTS - distinct):
        yield softmax.start(equations, labels, 0.05 if 2 * number < STARTS else 0.5, draw)


def _apart(features: Float[Tensor, "n k"], other: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> float:
    """Largest relative difference of two solutions' examples, paired within their labels."""
    from scipy.optimize import linear_sum_assignment  # heavy, and only this needs it

    # Examples of one label may be found in any order. [n, n]
    away = torch.cdist(features, other) / features.norm(dim=1).clamp(min=1e-300)[:, None]
    away = away.masked_fill(labels[:, None] != labels, 1e9)
    rows, columns = linear_sum_assignment(away.numpy())
    return float(away[rows, columns].max())


def _result(head: str, equations: HeadEquations, solution: _Solution, stated: Int[Tensor, " n"] | None) -> HeadFeatures:
    """A solution in the order of its labels, with examples that left no trace, and what speaks against it."""
    features = solution.unmixing @ equations.inner  # F = Q B [n, k]
    size = equations.size(solution.unmixing)
    # Errors of the solution and of the client's own forward pass, as independent ones. [n]
    noise = (solution.noise.square() + (FORWARD * equations.epsilon * size).square()).sqrt()
    known = solution.found & (noise < CERTIFYING_MISMATCH * size) & (solution.spread < CERTIFYING_MISMATCH)
    known &= solution.misfit < CERTIFYING_MISMATCH
    labels, missing = solution.labels, equations.examples - equations.rank
    if missing:
        features = torch.cat([features, features.new_zeros((missing, features.shape[1]))])
        noise = torch.cat([noise, noise.new_full((missing,), float("inf"))])
        known = torch.cat([known, known.new_zeros(missing)])
        labels = torch.cat([labels, _leftover(labels, stated, missing)])
    chances = (features @ equations.weight.T + equations.bias).softmax(1)
    if missing:  # no gradient: the network is sure of the label
        chances[-missing:] = F.one_hot(labels[-missing:], chances.shape[1]).to(chances)
    order = labels.argsort(stable=True)
    # dL/df_i = W^T (p_i - y_i) / n: what goes back from the head to the features. [n, k]
    slopes = (chances - F.one_hot(labels, chances.shape[1])) / equations.examples
    doubt = None if bool(known.all()) else _doubt(solution, known)
    return HeadFeatures(
        head=head,
        features=features[order],
        labels=labels[order],
        probabilities=chances[order],
        signal=(slopes @ equations.weight)[order],
        noise=noise[order],
        known=known[order],
        doubt=doubt,
        share=solution.share,
    )


def _leftover(labels: Int[Tensor, " m"], stated: Int[Tensor, " n"] | None, missing: int) -> Int[Tensor, " l"]:
    """Labels for examples that left no trace: those known that no other example has, else the first class."""
    if stated is None:
        return labels.new_zeros(missing)
    rest = stated.tolist()
    for label in labels.tolist():
        rest.remove(label)
    return torch.tensor(rest)


def _doubt(solution: _Solution, known: Bool[Tensor, " n"]) -> str:
    """Why some features are not known: what concerns all of them first."""
    if not solution.misfit < CERTIFYING_MISMATCH:
        return CONTRADICTED
    if not solution.spread < CERTIFYING_MISMATCH:
        return "other starts end at other features"
    return (
        f"rounding or noise of the update hides {int((~known).sum())} of {len(known)} examples, whose slopes are small "
        "or nearly those of another, as of one class in a fresh network, or whose features are next to nothing"
    )
