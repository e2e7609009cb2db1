"""Linear systems that are known by what they do to a tensor."""

from collections.abc import Callable

import torch
from torch import Tensor


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    target: Tensor,
    precondition: Callable[[Tensor], Tensor],
    *,
    steps: int,
    tolerance: float,
    preconditioned: bool = False,
) -> Tensor:
    """Solve `apply(x) = target` from zero, for a symmetric positive system; ends at a direction of no curvature.

    Args:
        apply: The system, `x -> A x`; called once for each step.
        target: The right-hand side, of any shape.
        precondition: An approximate inverse M of the system, itself symmetric and positive.
        steps: Most steps.
        tolerance: Ends where the length of the residual r is at most this share of the target's.
        preconditioned: Whether these lengths are `(r^T M r)^(1/2)`, which suits unknowns of different units, and not
            `(r^T r)^(1/2)`.

    >>> matrix = torch.diag(torch.tensor([1.0, 4.0]))
    >>> conjugate_gradients(lambda x: matrix @ x, torch.ones(2), lambda x: x, steps=5, tolerance=1e-6)
    tensor([1.0000, 0.2500])
    """
    # Hestenes and Stiefel 1952. `defenses.jacobian_damping` has its own: unknowns by name, from nearly the answer.
    solution, rest = torch.zeros_like(target), target.clone()
    direction = better = precondition(rest)  # M r
    power = first = _inner(rest, better)  # r^T M r
    for _ in range(steps):
        image = apply(direction)
        bend = _inner(direction, image)  # d^T A d
        if not bend > 0:
            break
        length = power / bend
        solution, rest = solution + length * direction, rest - length * image
        if not preconditioned and rest.norm() < tolerance * target.norm():
            break
        better = precondition(rest)
        new = _inner(rest, better)
        if preconditioned and not new > tolerance**2 * first:
            break
        # Fletcher and Reeves: the next direction is A-conjugate to all before it.
        direction, power = better + new / power * direction, new
    return solution


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Inner product in float64, which long sums of float32 need."""
    return (a.double() * b.double()).sum()
