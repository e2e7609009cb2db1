"""Private labels read from the last layer's gradient. Each rule is exact under the condition it states."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Generator, Tensor

from seepage.attacks.base import TARGETS, Inapplicable
from seepage.base.nn import last_linear, output_shape
from seepage.base.rounding import FLOAT32_ZERO
from seepage.federation.types import Knowledge, Round, Tensors

TINY_BIAS = 1e-12
"""Entry of a bias gradient below which it counts as none."""
LARGEST_EMBEDDING = 1e10
"""Largest entry of an embedding that is read as a ratio of gradients."""


class LabelInference(ABC):
    """A rule that names a batch's labels from its update alone."""

    @abstractmethod
    def __call__(self, observed: Round, knowledge: Knowledge) -> Shaped[Tensor, "n ..."] | None:
        """Labels `[n]` int64 in ascending order, values or maps; or None: optimize them together with the inputs.

        Raises:
            Inapplicable: Where the rule's condition does not hold.
        """

    def first_logits(self, observed: Round, knowledge: Knowledge, draw: Generator) -> Float[Tensor, "n *classes"]:
        """Where labels that are optimized start: standard normal, from `draw`.

        `[n, classes]` logits; of values the numbers themselves, which training scales to this size; of maps `[n,
        classes, h, w]` logits, in the shape of the model's outputs.
        """
        n = batch_size_of(observed)
        if knowledge.target == "class":
            return torch.randn((n, knowledge.num_classes), generator=draw)
        shape = output_shape(knowledge.model, observed.params, observed.buffers, knowledge.input_shape)
        if knowledge.target == "map":
            shape = (knowledge.num_classes, *shape[1:])
        return torch.randn((n, *shape), generator=draw)


def labels_by(rule: LabelInference, observed: Round, knowledge: Knowledge) -> Shaped[Tensor, "n ..."] | None:
    """What a rule names; numbers that nothing looks at where each example is its own target."""
    if knowledge.client.target == "input":
        return torch.zeros(batch_size_of(observed), dtype=torch.int64)
    return rule(observed, knowledge)


def batch_size_of(observed: Round) -> int:
    if observed.batch_size is None:
        raise Inapplicable("the batch size is unknown", "name it with --batch-size")
    return observed.batch_size


def _last_layer(observed: Round, knowledge: Knowledge, *, signs: bool = False) -> tuple[Tensor, Tensor | None]:
    """Gradient of the last fully connected layer: weight `[classes, k]` and bias `[classes]`."""
    if not (knowledge.client.linear_in_gradient or signs):
        raise Inapplicable(
            "the client's optimizer divides every entry by a size of its own, so the update counts no labels",
            "search for them too, with the attack's labels as 'joint' (--set attack.labels=joint)",
        )
    one_logit = knowledge.client.one_logit and knowledge.target == "class"
    if not (knowledge.softmax_labels or one_logit):
        own = "the client's loss is no plain cross-entropy"
        raise Inapplicable(
            f"labels are read off softmax minus label, and "
            f"{own if knowledge.target == 'class' else f'the targets are {TARGETS[knowledge.target]}'}",
            "search for them too, with the attack's labels as 'joint' (--set attack.labels=joint)",
        )
    found = last_linear(knowledge.model, knowledge.num_outputs)
    if found is None:
        raise Inapplicable(
            f"the model has no fully connected layer with {knowledge.num_outputs} outputs to read labels from",
            "search for them too, with the attack's labels as 'joint' (--set attack.labels=joint)",
        )
    weight, bias = found
    if weight not in observed.update.tensors:
        raise Inapplicable(
            "the last layer's weight was not sent, so no labels can be read from it",
            "search for them too, with the attack's labels as 'joint' (--set attack.labels=joint)",
        )
    gradient: Tensors = observed.gradient(knowledge.client)
    weights, shifts = gradient[weight].double(), gradient[bias].double() if bias in gradient else None
    if one_logit:
        return two_rows(weights), None if shifts is None else two_rows(shifts)
    return weights, shifts


def two_rows(gradient: Tensor) -> Tensor:
    """The gradient `[1, ...]` at one logit z as that at two logits, `[2, ...]`: sigmoid(z) is the softmax of (0, z).

    With y = 1 for the second class, `p_1 - y` is the slope at z and `p_0 - (1 - y) = -(p_1 - y)` that of the first.

    >>> two_rows(torch.tensor([-0.25]))
    tensor([ 0.2500, -0.2500])
    """
    return torch.cat([-gradient, gradient])


def bias_of(observed: Round, knowledge: Knowledge) -> Tensor:
    bias = _last_layer(observed, knowledge)[1]
    if bias is None:
        raise Inapplicable("the last layer has no bias", "set the attack's labels to 'minimum' or 'joint'")
    return bias


def counts_to_labels(counts: Int[Tensor, " classes"]) -> Int[Tensor, " n"]:
    """Class counts `[classes]` to sorted labels.

    >>> counts_to_labels(torch.tensor([2, 0, 1]))
    tensor([0, 0, 2])
    """
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


def largest_remainder(shares: Float[Tensor, " classes"], total: int) -> Int[Tensor, " classes"]:
    """Round non-negative shares to whole counts that sum to `total`, largest fractions first.

    >>> largest_remainder(torch.tensor([1.6, 0.2, 1.2]), 3)
    tensor([2, 0, 1])
    """
    shares = shares.clamp(min=0)
    weight = shares.sum()
    # Whole parts first; what is left of the total goes to the largest remainders (Hamilton's method).
    shares = total * (shares / weight) if weight > 0 else torch.full_like(shares, total / len(shares))
    counts = shares.floor().long()
    rest = shares - counts
    counts[rest.argsort(descending=True, stable=True)[: total - int(counts.sum())]] += 1
    return counts


def counted_shares(bias: Float[Tensor, " classes"], n: int) -> Float[Tensor, " classes"]:
    """Examples of each class by the last bias gradient db of n examples, for a mean output near uniform.

    `db_j = mean p_j - n_j / n`, so `n_j = n (mean p_j - db_j)`, with mean p_j taken for 1 / C. They sum to n.
    """
    return n * (1 / len(bias) - bias)


@dataclass(frozen=True)
class Given(LabelInference):
    """The true labels, when the attacker knows them."""

    def __call__(self, observed: Round, knowledge: Knowledge) -> Shaped[Tensor, "n ..."]:
        if observed.labels is None:
            raise Inapplicable(
                "the attack wants to be given the labels and this transcript does not tell them",
                "set the attack's labels to 'auto' (--set attack.labels=auto), or audit a batch of your own with "
                "--known labels",
            )
        return observed.labels


@dataclass(frozen=True)
class SignOfLastBias(LabelInference):
    """iDLG (Zhao et al. 2020): with cross-entropy only the true class has a negative last-layer gradient.

    Exact for one example; with more, a class can be hidden by others, so larger batches are refused.
    """

    def __call__(self, observed: Round, knowledge: Knowledge) -> Int[Tensor, " n"]:
        if batch_size_of(observed) != 1:
            raise Inapplicable(
                "the sign of the last layer is a rule for one example and this update comes from "
                f"{observed.batch_size or 'an unknown number'}",
                "attack batches of one, or use an attack that infers several labels, such as inverting_gradients",
            )
        weight, bias = _last_layer(observed, knowledge, signs=True)
        # dL/db_c = p_c - 1{c = y}: only the true class is negative. Rows of the weight are (p_c - 1{c = y}) h^T, whose
        # sum has that sign where the last layer's inputs h are not negative.
        evidence = bias if bias is not None else weight.sum(1)
        return evidence.argmin().reshape(1)


@dataclass(frozen=True)
class LastLayerMinimum(LabelInference):
    """GradInversion (CVPR 2021, eq. 8): the classes with the smallest entry in their row of the last weight.

    Classes that are absent have no negative entry where the last layer's inputs are non-negative; a class that is
    present has one where its example is the strongest. Exact when all labels differ and each example is the strongest
    somewhere.
    """

    def __call__(self, observed: Round, knowledge: Knowledge) -> Int[Tensor, " n"]:
        n = batch_size_of(observed)
        if n > knowledge.num_classes:
            raise Inapplicable(
                f"the minimum rule needs labels that all differ and {n} examples have only "
                f"{knowledge.num_classes} classes",
                "use 'count', 'bias' or 'joint' labels",
            )
        # Row c is the mean over examples of (p_c - 1{c = y}) h: negative entries come from examples of class c alone.
        weight, _ = _last_layer(observed, knowledge)  # [classes, d]
        return weight.amin(1).argsort(stable=True)[:n].sort().values


@dataclass(frozen=True)
class RowSumCount(LabelInference):
    """FedLeak section 5: row sums `s` of the last weight gradient `dW` (`[classes, k]`); the smallest name the classes.

    Up to as many examples as classes, each of the smallest rows gives one label (repeats do not show). Beyond,
    class j counts `floor(n (s_j - m) / sum_i (s_i - m))`, and what the floor leaves is filled round robin starting at
    the smallest row sum. In the paper m is `k max dW`, since the largest entry is subtracted from each of a row's k.

    Args:
        least: What the class of the least evidence counts from: `entry` is the paper's largest entry, `row` the
            largest row sum, which gives that class no label at all.
    """

    least: Literal["entry", "row"] = "entry"

    def __call__(self, observed: Round, knowledge: Knowledge) -> Int[Tensor, " n"]:
        n = batch_size_of(observed)
        weight = _last_layer(observed, knowledge)[0]  # dW, [classes, k]
        sums = weight.sum(1)  # s, [classes]
        order = sums.argsort(stable=True)
        if n <= len(sums):
            return order[:n].sort().values
        most = weight.max() * weight.shape[1] if self.least == "entry" else sums.max()  # m
        below = sums - most  # 0 or negative
        total = below.sum()
        shares = below / total if total < 0 else torch.full_like(below, 1 / len(below))
        # A share that would be whole but for rounding must not fall to the number below.
        counts = (n * shares + 1e-7).floor().long()
        for place in range(n - int(counts.sum())):
            counts[order[place % len(order)]] += 1
        return counts_to_labels(counts)


@dataclass(frozen=True)
class BiasCount(LabelInference):
    """Counts from the bias gradient: `n_j = n (1/C - db_j)`, rounded by largest remainder.

    Exact where the network's mean output is uniform over the `C` classes, as it nearly is when freshly initialized;
    a trained network's output is not, and the rule then errs.
    """

    def __call__(self, observed: Round, knowledge: Knowledge) -> Int[Tensor, " n"]:
        n = batch_size_of(observed)
        return counts_to_labels(largest_remainder(counted_shares(bias_of(observed, knowledge), n), n))


@dataclass(frozen=True)
class SeparableClasses(LabelInference):
    """RLG (Dang et al., NeurIPS 2021): the classes whose singular vectors a plane parts from all others.

    An example's row `p - y` of logit gradients is negative at its own class alone. With fewer examples than classes
    these rows span the column space of dW, so with `dW = U S V^T` of rank r (`U` is `[classes, r]`) each class c of the
    batch has a z with `u_c z < 0` and `u_j z >= 0` for every other j: a linear program for each class. It asks nothing
    of the signs of the embeddings. The rule names a set: examples beyond it repeat its classes, the most
    negative row sums first, and of more classes than examples the best separated are taken.

    Deviations: no perceptron sifts the classes first, and z is bounded by 1 in each entry in place of a norm.

    Args:
        separated: How far below 0 `u_c z` must come, as a share of the length of `u_c`.
    """

    separated: float = 1e-3

    def __call__(self, observed: Round, knowledge: Knowledge) -> Int[Tensor, " n"]:
        n = batch_size_of(observed)
        weight = _last_layer(observed, knowledge)[0]  # dW, [classes, k]
        classes, width = weight.shape
        # Columns of p - y sum to 0, so from classes - 1 directions on every class can be parted from the others.
        if n >= min(classes - 1, width + 1):
            raise Inapplicable(
                f"the separation of classes needs fewer examples than classes less one, and no more than the last "
                f"layer's {width} inputs; {n} examples have {classes} classes",
                "use 'ilrg', 'count', 'bias' or 'joint' labels",
            )
        left, sizes, _ = torch.linalg.svd(weight, full_matrices=False)
        rank = int((sizes > FLOAT32_ZERO * sizes[0]).sum()) if sizes[0] > 0 else 0
        depths = _depths(left[:, : min(rank, n)])
        sums = weight.sum(1)
        inside = (depths > self.separated).nonzero()[:, 0]
        if not len(inside):
            inside = sums.argsort(stable=True)[:1]  # a gradient that no batch has: something has to be named
        chosen = inside[depths[inside].argsort(descending=True, stable=True)[:n]]
        counts = torch.zeros(classes, dtype=torch.long, device=weight.device)
        order = chosen[sums[chosen].argsort(stable=True)]
        for place in range(n):
            counts[order[place % len(order)]] += 1
        return counts_to_labels(counts)


def _depths(vectors: Float[Tensor, "classes rank"]) -> Float[Tensor, " classes"]:
    """How far each row can be pushed below 0 by a z in [-1, 1] that keeps all other rows at 0 or above.

    As a share of the row's length; 0 where it cannot.

    >>> depths = _depths(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))  # the last lies between the others
    >>> [round(depth, 3) for depth in depths.tolist()]
    [1.0, 1.0, 0.0]
    """
    from scipy.optimize import linprog

    rows = vectors.cpu().numpy()
    depths = torch.zeros(len(rows), dtype=torch.float64)
    slack = FLOAT32_ZERO
    for c, row in enumerate(rows):
        length = float((row**2).sum() ** 0.5)
        if length <= FLOAT32_ZERO:
            continue
        others = rows[[j for j in range(len(rows)) if j != c]]
        # min u_c z subject to u_j z >= -slack: single precision leaves the other rows a little below 0.
        found = linprog(row, A_ub=-others, b_ub=[slack] * len(others), bounds=(-1, 1))
        if found.status == 0:
            depths[c] = max(0.0, -found.fun / length)
    return depths.to(vectors.device)


@dataclass(frozen=True)
class InstanceCount(LabelInference):
    """iLRG (Ma et al., ICLR 2023): counts from the equations of the last bias, with each class's own probabilities.

    `dW_c / db_c` is about the mean embedding of class c, so that the last layer itself gives about the softmax `q_c`
    of its examples. With `x_c` examples of class c in n, `n db_j = sum_c x_c q_c(j) - x_j` for each j, and the x sum to
    n: least squares by the pseudoinverse. `BiasCount` is the same with `q` uniform. Exact where all embeddings of the
    batch are alike, whatever the outputs are.

    Deviation: whole counts that sum to n come from the largest remainders.
    """

    def __call__(self, observed: Round, knowledge: Knowledge) -> Int[Tensor, " n"]:
        n = batch_size_of(observed)
        weight, _ = _last_layer(observed, knowledge)
        bias = bias_of(observed, knowledge)
        names = last_linear(knowledge.model, knowledge.num_outputs)
        assert names is not None  # `_last_layer` refused it
        w, b = (observed.params[str(name)].to(weight) for name in names)
        if knowledge.client.one_logit:  # of the logits (0, z)
            w, b = (torch.cat([torch.zeros_like(part), part]) for part in (w, b))
        # A class without any gradient has no embedding; the ratio is bounded so that its softmax is a number.
        safe = torch.where(bias.abs() > TINY_BIAS, bias, torch.full_like(bias, TINY_BIAS))
        embeddings = (weight / safe[:, None]).clamp(-LARGEST_EMBEDDING, LARGEST_EMBEDDING)  # [classes, k]
        q = (embeddings @ w.T + b).softmax(1)  # [classes, classes], a row for each class's examples
        classes = len(bias)
        # Unknown x: sum x = n, and (q^T - 1) x = n db.
        system = torch.cat([torch.ones((1, classes)).to(q), q.T - torch.eye(classes).to(q)])
        values = torch.cat([torch.full((1,), float(n)).to(bias), n * bias])
        return counts_to_labels(largest_remainder(torch.linalg.pinv(system) @ values, n))


@dataclass(frozen=True)
class Joint(LabelInference):
    """No inference: the label probabilities are unknowns of the search (DLG)."""

    def __call__(self, observed: Round, knowledge: Knowledge) -> None:
        return None


@dataclass(frozen=True)
class Refined(LabelInference):
    """Labels that are optimized together with the inputs, starting from those another rule names (FedLeak, section 5).

    Labels that are known are taken as they are.

    Args:
        rule: Names the labels to start from.
        confidence: First logit of the named label; the others' is 0. The paper gives none.
    """

    rule: LabelInference
    confidence: float = 10.0

    def __call__(self, observed: Round, knowledge: Knowledge) -> Shaped[Tensor, "n ..."] | None:
        if observed.labels is not None:
            return observed.labels
        self.rule(observed, knowledge)  # so that what it refuses is refused before the search
        return None

    def first_logits(self, observed: Round, knowledge: Knowledge, draw: Generator) -> Float[Tensor, "n classes"]:
        labels = self.rule(observed, knowledge)
        if labels is None:
            return self.rule.first_logits(observed, knowledge, draw)
        return self.confidence * torch.nn.functional.one_hot(labels.cpu(), knowledge.num_classes).float()


@dataclass(frozen=True)
class Auto(LabelInference):
    """The labels if known; else the sign rule for one example, the bias count for more, joint as a last resort."""

    def __call__(self, observed: Round, knowledge: Knowledge) -> Shaped[Tensor, "n ..."] | None:
        if observed.labels is not None:
            return observed.labels
        rule: LabelInference = SignOfLastBias() if batch_size_of(observed) == 1 else BiasCount()
        try:
            return rule(observed, knowledge)
        except Inapplicable:
            return None


LABEL_RULES: dict[str, LabelInference] = {
    "auto": Auto(),
    "bias": BiasCount(),
    "count": RowSumCount(),
    "count_row": RowSumCount(least="row"),
    "given": Given(),
    "ilrg": InstanceCount(),
    "joint": Joint(),
    "minimum": LastLayerMinimum(),
    "refined": Refined(RowSumCount()),
    "rlg": SeparableClasses(),
    "sign": SignOfLastBias(),
}
