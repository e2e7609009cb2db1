"""Rows of a table whose words are one-hot blocks: what an attack that knows the blocks may put in them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from seepage.base.limits import EXACT_DB
from seepage.errors import SeepageError

Block = tuple[int, int]
"""First place of a block in a row, and its width: one place of it is 1 and the others 0. Of width 1: 0 or 1."""
ROUNDING = 10 ** (-EXACT_DB / 20)
"""Error of a value up to which an example is exact."""


def check_blocks(blocks: Sequence[Block], shape: Sequence[int]) -> None:
    """Raise `SeepageError` where blocks do not lie in a row of this shape, each in places of its own."""
    if blocks and len(shape) != 1:
        raise SeepageError(f"one-hot blocks are of rows [places], and an example has shape {tuple(shape)}")
    end = 0
    for first, width in sorted(blocks):
        if width < 1 or first < end or first + width > shape[0]:
            raise SeepageError(
                f"a block of {width} places from place {first} on does not fit a row of {shape[0]}, or lies in another "
                "block; give (first place, width) of each, places counted from 0"
            )
        end = first + width


def relaxed(values: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Rows `[n, d]` with the softmax of each block in its place: shares of its words, which can be followed.

    >>> relaxed(torch.tensor([[5.0, 0.0, 0.0]]), [(1, 2)])
    tensor([[5.0000, 0.5000, 0.5000]])
    """
    return _each(values, blocks, lambda part: part.softmax(1) if part.shape[1] > 1 else part.sigmoid())


def one_hot(values: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Rows `[n, d]` with 1 at each block's largest place and 0 at its others.

    >>> one_hot(torch.tensor([[0.5, 0.2, 0.7, 0.6]]), [(1, 2), (3, 1)])
    tensor([[0.5000, 0.0000, 1.0000, 1.0000]])
    """

    def hard(part: Tensor) -> Tensor:
        if part.shape[1] == 1:
            return (part > 0.5).to(part)
        return torch.zeros_like(part).scatter(1, part.argmax(1, keepdim=True), 1.0)

    return _each(values, blocks, hard)


def words_at(blocks: Sequence[Block], width: int) -> Tensor:
    """`[width]` bool: which places of a row belong to blocks.

    >>> words_at([(1, 2)], 4).tolist()
    [False, True, True, False]
    """
    found = torch.zeros(width, dtype=torch.bool)
    for first, size in blocks:
        found[first : first + size] = True
    return found


def settled(values: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Rows `[n, d]`, with blocks one-hot in those rows where this changes no place by `ROUNDING` or more.

    >>> settled(torch.tensor([[0.001, 0.998], [0.3, 0.7]]), [(0, 2)])
    tensor([[0.0000, 1.0000],
            [0.3000, 0.7000]])
    """
    rounded = one_hot(values, blocks)
    return torch.where(((rounded - values).abs() < ROUNDING).all(1, keepdim=True), rounded, values)


def _each(values: Tensor, blocks: Sequence[Block], change: Callable[[Tensor], Tensor]) -> Tensor:
    """Rows with `change` of each block `[n, width]` in its place; the other places as they are."""
    parts, end = [], 0
    for first, width in sorted(blocks):
        parts += [values[:, end:first], change(values[:, first : first + width])]
        end = first + width
    return torch.cat([*parts, values[:, end:]], 1) if blocks else values
