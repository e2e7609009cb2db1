"""Private labels read from the last layer's gradient. Each rule is exact under the condition it states."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Generator, Tensor

from seepage.attacks.base import TARGETS, Inapplicable, refuse
from seepage.base.nn import last_linear, output_shape
from seepage.federation.types import Knowledge, Round, Tensors

JOINT = "search for them too, with the attack's labels as 'joint' (--set attack.labels=joint)"


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
        raise refuse("no_batch_size")("the batch size is unknown", "name it with --batch-size")
    return observed.batch_size


def _last_layer(observed: Round, knowledge: Knowledge, *, signs: bool = False) -> tuple[Tensor, Tensor | None]:
    """Gradient of the last fully connected layer: weight `[classes, k]` and bias `[classes]`."""
    if not (knowledge.client.linear_in_gradient or signs):
        raise refuse("divided_entries")(
            "the client's optimizer divides every entry by a size of its own, so the update counts no labels", JOINT
        )
    one_logit = knowledge.client.one_logit and knowledge.target == "class"
    if not (knowledge.softmax_labels or one_logit):
        own = "the client's loss is no plain cross-entropy"
        raise refuse("no_softmax_gradient")(
            f"labels are read off softmax minus label, and "
            f"{own if knowledge.target == 'class' else f'the targets are {TARGETS[knowledge.target]}'}",
            JOINT,
        )
    found = last_linear(knowledge.model, knowledge.num_outputs)
    if found is None:
        raise refuse("no_head")(
            f"the model has no fully connected layer with {knowledge.num_outputs} outputs to read labels from", JOINT
        )
    weight, bias = found
    if weight not in observed.update.tensors:
        raise refuse("not_sent")("the last layer's weight was not sent, so no labels can be read from it", JOINT)
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
        raise refuse("no_bias")("the last layer has no bias", "set the attack's labels to 'minimum' or 'joint'")
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
            raise refuse("no_labels")(
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
            raise refuse("several_examples")(
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
            raise refuse("too_few_classes")(
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
    """

    def __call__(self, observed: Round, knowledge: Knowledge) -> Int[Tensor, " n"]:
        n = batch_size_of(observed)
        weight = _last_layer(observed, knowledge)[0]  # dW, [classes, k]
        sums = weight.sum(1)  # s, [classes]
        order = sums.argsort(stable=True)
        if n <= len(sums):
            return order[:n].sort().values
        below = sums - weight.max() * weight.shape[1]  # s - m, 0 or negative
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
    "given": Given(),
    "joint": Joint(),
    "minimum": LastLayerMinimum(),
    "refined": Refined(RowSumCount()),
    "sign": SignOfLastBias(),
}
