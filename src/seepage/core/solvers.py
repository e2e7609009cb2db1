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
) -> Tensor:
    """Solve `apply(x) = target` from zero, for a symmetric positive system; ends at a direction of no curvature.

    Args:
        apply: The system, `x -> A x`.
        target: The right-hand side, of any shape.
        precondition: An approximate inverse of the system, itself symmetric and positive.
        steps: Most steps.
        tolerance: Ends where the residual is below this share of the target.

    >>> matrix = torch.diag(torch.tensor([1.0, 4.0]))
    >>> conjugate_gradients(lambda x: matrix @ x, torch.ones(2), lambda x: x, steps=5, tolerance=1e-6)
    tensor([1.0000, 0.2500])
    """
    # Hestenes and Stiefel 1952. `defenses.jacobian_damping` has its own: unknowns by name, from nearly the answer.
    solution, rest = torch.zeros_like(target), target.clone()
    better = precondition(rest)
    direction, power = better, (rest * better).sum()
    for _ in range(steps):
        image = apply(direction)
        bend = (direction * image).sum()
        if not bend > 0:
            break
        length = power / bend
        solution, rest = solution + length * direction, rest - length * image
        if rest.norm() < tolerance * target.norm():
            break
        better = precondition(rest)
        new = (rest * better).sum()
        direction, power = better + new / power * direction, new
    return solution
