"""The columns of a first layer's gradient as the solution of linear equations in products of unknowns."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from seepage.attacks.spear.sparse_columns import Span

MAX_PRODUCTS = 4096
"""Products of unknowns up to which the equations are solved: a decomposition of seconds to minutes."""


def products(n: int, errors: int) -> int:
    """Unknowns of the lifted equations: `n (n + 1) / 2` squares and products, and `n errors` mixed ones.

    >>> products(20, 9)
    390
    """
    return n * (n + 1) // 2 + n * errors


def determined(n: int, errors: int, units: int) -> bool:
    """Whether so many units can separate n columns by `lifted`: `n (n - 1) / 2 + n errors <= units`.

    >>> [n for n in range(60) if determined(n, 9, 512)][-1], [n for n in range(60) if determined(n, 9, 2048)][-1]
    (24, 56)
    """
    return n > 1 and products(n, errors) - n <= units and products(n, errors) <= MAX_PRODUCTS


def lifted(span: Span, behind: Tensor) -> Tensor:
    """`[n, n, n]` symmetric mixtures of the products `q q^T`, one q per example: all that a search would look for.

    Column i of `D = rows q_i` is, at unit j, either zero or `behind_j . e_i`, with example i's own error `e_i` at the
    outputs. Either way `(rows_j . q)^2 = (rows_j . q)(behind_j . e)`: linear in the products `q q^T` and `q e^T`. Where
    units outnumber the products, all solutions are mixtures of the n true ones; `parted` takes them apart.

    Args:
        span: What the columns of D span, `[p, n]`.
        behind: `[p, errors]` a basis of what the network behind hands back to each unit that is on.

    >>> draw = torch.Generator().manual_seed(0)
    >>> behind, on = torch.randn(40, 2, generator=draw).double(), torch.rand(40, 4, generator=draw) < 0.5
    >>> columns = on * (behind @ torch.randn(2, 4, generator=draw).double())
    >>> span = Span(torch.linalg.qr(columns).Q * 40**0.5, torch.zeros(4))
    >>> ((span.rows @ parted(lifted(span, behind), draw).T).abs() > 1e-6).sum().item() == on.sum().item()
    True
    """
    # Every unit's equation is scaled to unit length: a strong unit says no more than a weak one.
    size = span.rows.norm(dim=1)
    reached = size > 1e-12 * size.max()  # a unit that no example reaches says nothing
    rows, behind = (part[reached] / size[reached, None] for part in (span.rows, behind))
    behind = behind / behind.norm(dim=1).mean()
    n = span.n
    # One unknown per entry of the symmetric q q^T, n (n + 1) / 2 of them, and n errors of q e^T.
    first, second = torch.triu_indices(n, n, device=rows.device)
    # An entry off the diagonal stands twice in the symmetric matrix; the root keeps lengths alike.
    twice = torch.where(first == second, 1.0, 2**0.5).to(rows)
    squares, mixed = rows[:, first] * rows[:, second] * twice, rows[:, :, None] * behind[:, None, :]
    # [p, n (n + 1) / 2 + n errors] equations, whose n null vectors span the n true (q q^T, q e^T).
    solutions = _null(torch.cat([squares, -mixed.flatten(1)], 1), n)[:, : len(first)] / twice
    matrices: Tensor = rows.new_zeros((n, n, n))
    matrices[:, first, second] = matrices[:, second, first] = solutions
    return matrices


def parted(matrices: Tensor, draw: Generator) -> Tensor:
    """`[n, n]` unit directions, one per example: the eigenvectors of one mixture of `q q^T` over another, both drawn.

    Args:
        matrices: `[n, n, n]` of `lifted`.
        draw: Draws the two mixtures.

    Returns:
        None at all, `[0, n]`, where the second mixture cannot be inverted.
    """
    n = len(matrices)
    weights = torch.randn((2, n), generator=draw, dtype=torch.float64).to(matrices)
    # M_k = sum_i w_ki q_i q_i^T = Q diag(w_k) Q^T, so M_1 M_2^-1 = Q diag(w_1 / w_2) Q^-1: its eigenvectors are the
    # q_i.
    one, other = torch.einsum("ks,sij->kij", weights, matrices)
    ratio, failed = torch.linalg.solve_ex(other, one, left=False)
    if failed or not ratio.isfinite().all():
        return torch.zeros((0, n)).to(matrices)
    directions: Tensor = F.normalize(torch.linalg.eig(ratio).eigenvectors.real.T, dim=1)
    return directions


def _null(equations: Tensor, count: int) -> Tensor:
    """`[count, k]` the orthonormal vectors that `[p, k]` equations send nearest to zero."""
    p, k = equations.shape
    # The null space of p equations is that of their triangular factor, [k, k].
    square = torch.linalg.qr(equations, mode="r").R if p > k else F.pad(equations, (0, 0, 0, k - p))
    vectors: Tensor = torch.linalg.svd(square).Vh
    return vectors[-count:]
