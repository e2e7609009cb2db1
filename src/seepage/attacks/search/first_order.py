"""The matching problem without a second derivative, in 5 parts of arithmetic for the exact step's 7."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.utils import get_total_norm

from seepage.attacks.search.distance_gradients import Products, combination, value_and_gradients
from seepage.attacks.search.frozen_pattern import ActivationPattern, FrozenPattern, RecordedPattern
from seepage.attacks.search.problem import Evaluation, Extra, Problem, leaves_of
from seepage.base.nn import forward, in_mode
from seepage.federation.types import Tensors

Move = tuple[float, float, Tensors]
"""The distance at the weights themselves; how far along v; and the weights `w + step v` after it, until the next move
is made: they lie in the problem's own memory."""
LEAST_AGREEMENT = 0.999
"""The smallest cosine to the exact gradients at which this step may stand in for them."""
FIRST_REACH = 3e-5
"""Where the reach starts, before anything is learned of the network."""
REACH_WINDOW = 5.0
"""A move in the weights may change the input gradient by this many times more or less than it best would."""
MOST_MOVES = 4
"""Moves per evaluation at most; almost all take one."""


@dataclass(eq=False)
class FirstOrderProblem(Problem):
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

    Attributes:
        reach: Length of the next move in the weights, as a share of theirs.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> from seepage.attacks.search.distances import Cosine
        >>> model = build(Architecture("convnet", {"width": 4}), (1, 8, 8), 3)
        >>> private = Batch(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2]))
        >>> seen = record(model, private)
        >>> problem = FirstOrderProblem.of(seen[0], seen.knowledge, Cosine(), None)
        >>> problem.agreement(1 - private.inputs, private.labels) > 0.999
        True
    """

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
        value, changes = self._changes(dummy, old, kept, inputs, labels, extra)
        return Evaluation(value + added, changes[0], changes[1] if len(changes) > 1 else None)

    def agreement(self, inputs: Float[Tensor, "n *shape"], labels: Shaped[Tensor, "n ..."]) -> float:
        """Cosine between this problem's gradients by the inputs and the exact ones, which it computes too."""
        own, theirs = self.evaluate(inputs, labels).by_inputs, super().evaluate(inputs, labels).by_inputs
        if not (own.any() or theirs.any()):
            return 1.0
        # cos = <a, b> / (|a| |b|), normalized before the product so that tiny gradients do not underflow.
        a, b = own.double().flatten(), theirs.double().flatten()  # [n * d]
        return float(a / a.norm() @ (b / b.norm()))

    def _changes(
        self,
        dummy: Sequence[Tensor],
        old: Sequence[Tensor],
        kept: Sequence[ActivationPattern] | None,
        inputs: Tensor,
        labels: Tensor,
        extra: Extra | None,
    ) -> tuple[float, list[Tensor]]:
        """The distance, and by how much the gradients change per length of the move along v.

        A move that changes the input gradient by a share far from the best one is made again, longer or shorter.
        """
        # Rounding leaves eps / share and the second difference about share: of one size near share = sqrt(eps).
        best = 3 * math.sqrt(torch.finfo(inputs.dtype).eps)
        for _ in range(MOST_MOVES):
            # v = dD/dg', then pass 2 at w + step v: dD/dx = (dL/dx (w + step v) - dL/dx (w)) / step + O(step).
            value, step, weights = self._moved(dummy)
            new = self._second_pass(weights, step, kept, inputs, labels, extra)
            # Too short a move drowns in rounding (error ~ eps / share), too long a one in curvature (error ~ share).
            share = float((new[0] - old[0]).norm() / old[0].norm())
            self.reach = _better_reach(self.reach, share, best, inputs.dtype)
            far = not best / REACH_WINDOW <= share <= best * REACH_WINDOW
            if not (far and 0 < share < math.inf):
                break
        # The directional derivative along v of dL/dx is (d2L/dx dw) v = dD/dx, by the chain rule through g' = dL/dw.
        return value, [(b - a) / step for a, b in zip(old, new, strict=True)]

    def _loss(self, weights: Tensors, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss whose gradient the client sends."""
        with in_mode(self.model, training=self.client.mode == "train"):
            return self.client.loss_of(forward(self.model, weights, inputs, buffers=self.buffers), labels)

    def _first_pass(
        self, inputs: Tensor, labels: Tensor, n: int, extra: Extra | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], list[ActivationPattern], float]:
        """One chunk's share in the loss of a batch of `n`.

        Its gradients by the inputs and, if soft, the labels; by each parameter; what the non-smooth points did, empty
        for one chunk of several; and the chunk's share in the extra penalty.
        """
        leaves = leaves_of(inputs, labels)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        weights = {name: tensor.detach().requires_grad_() for name, tensor in self.params.items()}
        # L = sum over chunks of (n_chunk / n) L_chunk, the mean loss of the batch.
        share = len(inputs) / n
        with RecordedPattern() as taken:
            loss = self._loss(weights, *leaves) * share
        added = 0.0 if extra is None else extra().item() * share
        gradients = torch.autograd.grad(loss, [*wanted, *weights.values()], materialize_grads=True)
        # The patterns of a chunk are made again rather than kept: what is kept grows with the batch.
        patterns = taken.patterns if len(inputs) == n else []
        return gradients[: len(wanted)], gradients[len(wanted) :], patterns, added

    def _patterns(self, inputs: Tensor, labels: Tensor) -> list[ActivationPattern]:
        with torch.no_grad(), RecordedPattern() as taken:
            self._loss(self.params, inputs, labels)
        patterns: list[ActivationPattern] = taken.patterns
        return patterns

    def _moved(self, dummy: Sequence[Tensor]) -> Move:
        """The weights moved along v by `reach` times their own length, given the dummy gradient g'.

        Into the same tensors each time: tensors as large as all weights together, given back and asked for anew, cost
        a page fault per 4 KiB: on a ResNet-18 a tenth of a step.
        """
        names, weights = list(self.params), list(self.params.values())
        with torch.no_grad():
            found = combination(self.distance, Products.of(dummy, self._observed, self._observed_square))
            if found is not None:
                # v = a g' + b g is never made: w + step b g + step a g' takes two passes over the weights.
                step = self._step(found.length)
                for to, weight, own, theirs in zip(self._room, weights, dummy, self._observed, strict=True):
                    torch.add(weight, theirs, alpha=step * found.b, out=to).add_(own, alpha=step * found.a)
                return found.value, step, dict(zip(names, self._room, strict=True))
        value, v = value_and_gradients(self.distance, dict(zip(names, dummy, strict=True)), self.target)
        step = self._step(float(get_total_norm(list(v.values()))))
        with torch.no_grad():
            for to, name, weight in zip(self._room, names, weights, strict=True):
                torch.add(weight, v[name], alpha=step, out=to)
        return value, step, dict(zip(names, self._room, strict=True))

    def _step(self, length: float) -> float:
        # |step v| = reach |w|: the move's length is a share of the weights', whatever the distance's units are.
        return self.reach * (self._size or 1.0) / length if length > 0 else 1.0

    @cached_property
    def _size(self) -> float:
        """Length of all weights together."""
        return float(get_total_norm(list(self.params.values())))

    @cached_property
    def _observed(self) -> list[Tensor]:
        """The observed gradient, in the order of the weights."""
        return [self.target[name] for name in self.params]

    @cached_property
    def _observed_square(self) -> float:
        return Products.of(self._observed, self._observed).own

    @cached_property
    def _room(self) -> list[Tensor]:
        return [torch.empty_like(weight) for weight in self.params.values()]

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
            leaves = leaves_of(inputs[chunk], labels[chunk])
            with FrozenPattern(patterns):
                loss = self._loss(weights, *leaves)
            if extra is not None:
                # The difference is divided by the step, so that d extra/dx comes out once.
                loss = loss + step * extra()
            # The chunk's share n_chunk / n again: both passes differentiate the same mean loss. [n_chunk, *shape]
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            parts.append(torch.autograd.grad(loss * (len(leaves[0]) / len(inputs)), wanted, materialize_grads=True))
        return [torch.cat(gradients) for gradients in zip(*parts, strict=True)]


def with_first_order_step(
    exact: Problem, inputs: Tensor, labels: Tensor, *, force: bool = False
) -> tuple[Problem, str | None]:
    """The problem with a first-order step, where one trial at this very point shows that it holds.

    Args:
        exact: The problem.
        inputs: A candidate to try both steps at.
        labels: Its labels.
        force: Take the first-order step, however well it holds.

    Returns:
        The problem to solve, and a sentence for the report where the exact one stays all the same. None also
        where the client does not send a single gradient; `force` does not apply there.
    """
    if not exact.client.single_gradient:
        return exact, None
    trial = FirstOrderProblem(**vars(exact))
    trial.evaluate(inputs, labels)  # learns how far to move here
    alike = 1.0 if force else trial.agreement(inputs, labels)
    if alike >= LEAST_AGREEMENT:
        return trial, None
    return exact, (
        f"The exact step was used: the gradients of the first-order one have a cosine of {alike:.4f} with it at the "
        f"start, and {LEAST_AGREEMENT} is asked for."
    )


def _better_reach(reach: float, share: float, best: float, dtype: torch.dtype) -> float:
    """The reach at which the input gradient would have changed by the best share of itself."""
    if not 0 < share < math.inf:  # nothing changed, or it is no number: nothing is learned
        return FIRST_REACH
    # Below a few roundings of the weights, w + step v is w again; above a tenth of them it is another network.
    return min(max(reach * best / share, 4 * torch.finfo(dtype).eps), 0.1)


def _add(total: list[Tensor], part: Sequence[Tensor]) -> list[Tensor]:
    """`total + part`, tensor by tensor and in place; an empty total is 0."""
    if not total:
        return list(part)
    torch._foreach_add_(total, list(part))
    return total
