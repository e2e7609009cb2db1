"""Linear systems that are known by what they do to a tensor, and when an iteration ends."""

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.base.clock import look

MOST_STEPS = 60
"""Steps after which an iteration that has not come to rest is given up; most rest within twenty."""


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    target: Tensor,
    precondition: Callable[[Tensor], Tensor] = lambda rest: rest,
    *,
    steps: int,
    tolerance: float,
    preconditioned: bool = False,
    by_row: bool = False,
    enough: Callable[[Tensor], bool] = lambda solution: False,
) -> Tensor:
    """Solve `apply(x) = target` from zero, for a symmetric positive system; ends at a direction of no curvature.

    From another start x0 it solves `apply(x - x0) = target - apply(x0)`.

    Args:
        apply: The system, `x -> A x`; called once for each step.
        target: The right-hand side, of any shape.
        precondition: An approximate inverse M of the system, itself symmetric and positive; the identity by default.
        steps: Most steps.
        tolerance: Ends where the length of the residual r is at most this share of the target's.
        preconditioned: Whether these lengths are `(r^T M r)^(1/2)`, which suits unknowns of different units, and not
            `(r^T r)^(1/2)`.
        by_row: Whether each row of the first axis is a system of its own; they are solved side by side, and end
            together.
        enough: Ends as soon as this holds of the solution.

    >>> matrix = torch.diag(torch.tensor([1.0, 4.0]))
    >>> conjugate_gradients(lambda x: matrix @ x, torch.ones(2), steps=5, tolerance=1e-6)
    tensor([1.0000, 0.2500])
    """
    # Hestenes and Stiefel 1952.
    solution, rest = torch.zeros_like(target), target.clone()
    direction = better = precondition(rest)  # M r
    power = first = _inner(rest, better, by_row)  # r^T M r
    for _ in range(steps):
        look()
        image = apply(direction)
        bend = _inner(direction, image, by_row)  # d^T A d
        if not (bend > 0).any():
            break
        length = _ratio(power, bend).to(target.dtype)
        solution, rest = solution + length * direction, rest - length * image
        if enough(solution):
            break
        if not preconditioned and rest.norm() < tolerance * target.norm():
            break
        better = precondition(rest)
        new = _inner(rest, better, by_row)
        if preconditioned and not (new > tolerance**2 * first).any():
            break
        # Fletcher and Reeves: the next direction is A-conjugate to all before it.
        direction, power = better + _ratio(new, power).to(target.dtype) * direction, new
    return solution


def _inner(a: Tensor, b: Tensor, by_row: bool) -> Tensor:
    """Inner product in float64, which long sums of float32 need: a number, or `[n, 1, ...]` of each row by itself."""
    product = a.double() * b.double()
    return product.sum(tuple(range(1, a.ndim)), keepdim=True) if by_row else product.sum()


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """`a / b`, 0 where b is 0: a row that is solved stays."""
    return torch.where(b > 0, a / b, 0.0)
