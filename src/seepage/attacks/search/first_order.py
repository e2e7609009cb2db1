"""The matching problem without a second derivative, in 5 parts of arithmetic for the exact step's 7."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from seepage.attacks.search.frozen_pattern import ActivationPattern, FrozenPattern, RecordedPattern
from seepage.attacks.search.move import Mover
from seepage.attacks.search.problem import Evaluation, Problem
from seepage.base.nn import forward, in_mode
from seepage.federation.types import Tensors

Extra = Callable[[], Tensor]
LEAST_AGREEMENT = 0.999
"""The smallest cosine to the exact gradients at which this step may stand in for them."""
FIRST_REACH = 3e-5
"""Where the reach starts, before anything is learned of the network."""
REACH_WINDOW = 5.0
"""A move in the weights may change the input gradient by this many times more or less than it best would."""
MOST_MOVES = 4
"""Moves per evaluation at most; almost all take one."""


@dataclass
class FirstOrderProblem:
    r"""A matching problem whose gradients come from two first-order passes, in place of a double backward pass.

    With `g'(x) = dL/dw` and `v = dD/dg'`, the gradient `dD/dx = d/dx <v, g'(x)>` equals `d/de dL/dx (w + e v)` at
    `e = 0`: the change of the *input* gradient as the weights move along v (for the Hessian itself: Pearlmutter 1994).
    It is taken as a forward difference. In a piecewise linear network units that switch between w and w + e v would add
    jumps over e; so the second pass keeps the activation pattern (ReLU, max pooling) of the first, which is what the
    exact derivative does too. Batch norm in train mode moves its statistics along with e, as it must.

    The numbers are those of the exact step to a relative error of about 1e-3 in single precision, and 1e-6 in double.
    Call `agreement` at a point to see it: a network with non-smooth points that are not replayed shows there.

    How far to move is learned on the way: each evaluation leaves behind the `reach` that would have been best where it
    was made, and the next one, a step of the search further on, starts from it. So the numbers depend, within the error
    above, on the evaluations before; whoever wants to go on with the same bits keeps `reach` too.

    Args:
        exact: The problem to solve.
        reach: Length of the next move in the weights, as a share of theirs.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> from seepage.attacks.search.distances import Cosine
        >>> model = build(Architecture("convnet", {"width": 4}), (1, 8, 8), 3)
        >>> private = Batch(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2]))
        >>> seen = record(model, private)
        >>> exact = Problem.of(seen[0], seen.knowledge, Cosine(), None)
        >>> FirstOrderProblem(exact).agreement(1 - private.inputs, private.labels) > 0.999
        True
    """

    exact: Problem
    reach: float = FIRST_REACH

    def evaluate(
        self, inputs: Float[Tensor, "n *shape"], labels: Shaped[Tensor, "n ..."], extra: Extra | None = None
    ) -> Evaluation:
        """As `Problem.evaluate`: the same value, and gradients up to the error of a finite difference.

        Args:
            inputs: The candidate.
            labels: Its labels, `[n]` class numbers or `[n, classes]` chances.
            extra: As for `Problem.evaluate`. Its gradient rides on the second pass and costs no pass of its own.
        """
        evaluation, self.reach = self._evaluate(inputs, labels, extra)
        return evaluation

    def fitted(
        self, inputs: Float[Tensor, "n *shape"], labels: Shaped[Tensor, "n ..."], extra: Extra | None = None
    ) -> "FirstOrderProblem":
        """The same problem with the reach that is best at this point; this one keeps its own."""
        return replace(self, reach=self._evaluate(inputs, labels, extra)[1])

    def distance_at(self, inputs: Float[Tensor, "n *shape"], labels: Shaped[Tensor, "n ..."]) -> float:
        """The distance alone."""
        return self.exact.distance_at(inputs, labels)

    def agreement(
        self, inputs: Float[Tensor, "n *shape"], labels: Shaped[Tensor, "n ..."], extra: Extra | None = None
    ) -> float:
        """Cosine between this problem's gradients by the inputs and the exact ones, which it computes too."""
        own = self.evaluate(inputs, labels, extra).by_inputs
        theirs = self.exact.evaluate(inputs, labels, extra).by_inputs
        if not (own.any() or theirs.any()):
            return 1.0
        # cos = <a, b> / (|a| |b|), normalized before the product so that tiny gradients do not underflow.
        a, b = own.double().flatten(), theirs.double().flatten()  # [n * d]
        return float(a / a.norm() @ (b / b.norm()))

    def _evaluate(self, inputs: Tensor, labels: Tensor, extra: Extra | None) -> tuple[Evaluation, float]:
        n, chunks = len(inputs), self._chunks(len(inputs))
        dummy: list[Tensor] = []
        before: list[tuple[Tensor, ...]] = []
        added = 0.0
        # Pass 1 at w: dL/dw, which is the dummy gradient g', and dL/dx from the same backward pass.
        for chunk in chunks:
            by_leaves, by_weights, patterns, penalty = self._first_pass(inputs[chunk], labels[chunk], n, extra)
            before.append(by_leaves)
            dummy = _add(dummy, by_weights)
            added += penalty
        kept = patterns if len(chunks) == 1 else None
        # One chunk's activation pattern is kept for the second pass; with several each is recomputed there.
        old = [torch.cat(parts) for parts in zip(*before, strict=True)]
        value, changes, reach = self._changes(dummy, old, kept, inputs, labels, extra)
        return Evaluation(value + added, changes[0], changes[1] if len(changes) > 1 else None), reach

    def _changes(
        self,
        dummy: Sequence[Tensor],
        old: Sequence[Tensor],
        kept: Sequence[ActivationPattern] | None,
        inputs: Tensor,
        labels: Tensor,
        extra: Extra | None,
    ) -> tuple[float, list[Tensor], float]:
        """The distance; by how much the gradients change per length of the move along v; and the best reach here.

        A move that changes the input gradient by a share far from the best one is made again, longer or shorter.
        """
        reach, best = self.reach, best_share(inputs)
        for _ in range(MOST_MOVES):
            # v = dD/dg', then pass 2 at w + step v: dD/dx = (dL/dx (w + step v) - dL/dx (w)) / step + O(step).
            value, step, weights = self._mover(dummy, reach)
            new = self._second_pass(weights, step, kept, inputs, labels, extra)
            # Too short a move drowns in rounding (error ~ eps / share), too long a one in curvature (error ~ share).
            share = float((new[0] - old[0]).norm() / old[0].norm())
            reach = _better_reach(reach, share, best, inputs.dtype)
            far = not best / REACH_WINDOW <= share <= best * REACH_WINDOW
            if not (far and 0 < share < math.inf):
                break
        # The directional derivative along v of dL/dx is (d2L/dx dw) v = dD/dx, by the chain rule through g' = dL/dw.
        return value, [(b - a) / step for a, b in zip(old, new, strict=True)], reach

    def _chunks(self, n: int) -> list[slice]:
        # Where examples are coupled the loss is no sum over chunks, and the whole batch is one chunk.
        size = self.exact.microbatch
        if size is None or not self.exact.client.separable(self.exact.model):
            size = n
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]

    def _loss(self, weights: Tensors, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss whose gradient the client sends."""
        client = self.exact.client
        with in_mode(self.exact.model, training=client.mode == "train"):
            return client.loss_of(forward(self.exact.model, weights, inputs, buffers=self.exact.buffers), labels)

    def _first_pass(
        self, inputs: Tensor, labels: Tensor, n: int, extra: Extra | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], list[ActivationPattern], float]:
        """One chunk's share in the loss of a batch of `n`.

        Its gradients by the inputs and, if soft, the labels; by each parameter; what the non-smooth points did, empty
        for one chunk of several; and the chunk's share in the extra penalty.
        """
        leaves = _leaves(inputs, labels)
        weights = {name: tensor.detach().requires_grad_() for name, tensor in self.exact.params.items()}
        # L = sum over chunks of (n_chunk / n) L_chunk, the mean loss of the batch.
        share = len(inputs) / n
        with RecordedPattern() as taken:
            loss = self._loss(weights, inputs=leaves[0], labels=leaves[1] if len(leaves) > 1 else labels) * share
        added = 0.0 if extra is None else extra().item() * share
        gradients = torch.autograd.grad(loss, [*leaves, *weights.values()], materialize_grads=True)
        # The patterns of a chunk are made again rather than kept: what is kept grows with the batch.
        patterns = taken.patterns if len(inputs) == n else []
        return gradients[: len(leaves)], gradients[len(leaves) :], patterns, added

    def _patterns(self, inputs: Tensor, labels: Tensor) -> list[ActivationPattern]:
        with torch.no_grad(), RecordedPattern() as taken:
            self._loss(self.exact.params, inputs, labels)
        patterns: list[ActivationPattern] = taken.patterns
        return patterns

    @cached_property
    def _mover(self) -> Mover:
        return Mover(self.exact)

    def _second_pass(
        self,
        weights: Tensors,
        step: float,
        kept: Sequence[ActivationPattern] | None,
        inputs: Tensor,
        labels: Tensor,
        extra: Extra | None,
    ) -> list[Tensor]:
        """Gradients by inputs (and chances) at other weights, with the patterns made at the old ones."""
        parts = []
        for chunk in self._chunks(len(inputs)):
            patterns = self._patterns(inputs[chunk], labels[chunk]) if kept is None else kept
            leaves = _leaves(inputs[chunk], labels[chunk])
            with FrozenPattern(patterns):
                loss = self._loss(weights, leaves[0], leaves[-1] if len(leaves) > 1 else labels[chunk])
            if extra is not None:
                # The difference is divided by the step, so that d extra/dx comes out once.
                loss = loss + step * extra()
            # The chunk's share n_chunk / n again: both passes differentiate the same mean loss. [n_chunk, *shape]
            parts.append(torch.autograd.grad(loss * (len(leaves[0]) / len(inputs)), leaves))
        return [torch.cat(gradients) for gradients in zip(*parts, strict=True)]


def with_first_order_step(
    exact: Problem, inputs: Tensor, labels: Tensor, extra: Extra | None = None, *, force: bool = False
) -> tuple[Problem | FirstOrderProblem, str | None]:
    """The problem with a first-order step, where one trial at this very point shows that it holds.

    Args:
        exact: The problem.
        inputs: A candidate to try both steps at.
        labels: Its labels.
        extra: The penalty that will be used.
        force: Take the first-order step, however well it holds.

    Returns:
        The problem to solve, and a sentence for the report where the exact one stays all the same.
    """
    if not applies(exact):
        return exact, None
    trial = FirstOrderProblem(exact).fitted(inputs, labels, extra)
    alike = 1.0 if force else trial.agreement(inputs, labels, extra)
    if alike >= LEAST_AGREEMENT:
        return trial, None
    return exact, (
        f"The exact step was used: the gradients of the first-order one have a cosine of {alike:.4f} with it at the "
        f"start, and {LEAST_AGREEMENT} is asked for."
    )


def best_share(inputs: Tensor) -> float:
    """By which share of itself a move should change the input gradient: rounding and curvature then weigh alike."""
    # Rounding leaves eps / share and the second difference about share: of one size near share = sqrt(eps).
    return 3 * math.sqrt(torch.finfo(inputs.dtype).eps)


def _better_reach(reach: float, share: float, best: float, dtype: torch.dtype) -> float:
    """The reach at which the input gradient would have changed by the best share of itself."""
    if not 0 < share < math.inf:  # nothing changed, or it is no number: nothing is learned
        return FIRST_REACH
    # Below a few roundings of the weights, w + step v is w again; above a tenth of them it is another network.
    return min(max(reach * best / share, 4 * torch.finfo(dtype).eps), 0.1)


def applies(exact: Problem) -> bool:
    """Whether a first-order step is known for the client's rule: one gradient of the mean loss."""
    return exact.client.single_gradient


def _leaves(inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """What the loss is differentiated by: the inputs and, where they are chances, the labels."""
    soft = [labels] if labels.is_floating_point() else []
    return tuple(tensor.detach().requires_grad_() for tensor in (inputs, *soft))


def _add(total: list[Tensor], part: Sequence[Tensor]) -> list[Tensor]:
    """`total + part`, tensor by tensor and in place; an empty total is 0."""
    if not total:
        return list(part)
    torch._foreach_add_(total, list(part))
    return total
