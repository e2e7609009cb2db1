"""Scores of rows of a table: words that are equal, numbers that are right, and rows of which all is."""

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.base.blocks import Block, one_hot, words_at
from seepage.base.limits import EXACT_DB

NAMES = ("exact_rows", "category_recall", "number_recall")
"""Metrics of rows that have words: 1 where a row is right in every column; shares of its columns that are."""


def column_hits(
    guesses: Tensor,
    truth: Tensor,
    blocks: Sequence[Block],
    value_range: tuple[float, float] = (0.0, 1.0),
    exact_db: float = EXACT_DB,
) -> tuple[Tensor, Tensor]:
    """Which columns are right: `[n, blocks]` of words, by the largest place of each, and `[n, numbers]`, both bool.

    A number is right up to the error that the values of an exact example have on average, `10^(-exact_db / 20)` of
    the range: 1 % at 40 dB.

    Args:
        guesses: `[n, d]` on [0, 1], as scores are.
        truth: `[n, d]` likewise.
        blocks: First place and width of each column of words.
        value_range: What 0 and 1 stand for in the client's rows.
        exact_db: PSNR in dB above which an example counts as exact.

    >>> column_hits(torch.tensor([[0.505, 0.3, 0.7]]), torch.tensor([[0.5, 0.0, 1.0]]), [(1, 2)])
    (tensor([[True]]), tensor([[True]]))
    """
    low, high = value_range
    ours, theirs = (one_hot(low + (high - low) * rows, blocks) for rows in (guesses, truth))
    same = (ours - theirs).abs() <= 10 ** (-exact_db / 20) * (high - low)
    words = [same[:, first : first + width].all(1) for first, width in blocks]
    return torch.stack(words, 1), same[:, ~words_at(blocks, truth.shape[1])]


def row_metrics(words: Tensor, numbers: Tensor) -> dict[str, Tensor]:
    """`NAMES` to `[n]` float64, of what `column_hits` gives; without numbers there is no `number_recall`.

    >>> {name: float(each[0]) for name, each in row_metrics(torch.tensor([[True]]), torch.tensor([[False]])).items()}
    {'exact_rows': 0.0, 'category_recall': 1.0, 'number_recall': 0.0}
    """
    found = ((words.all(1) & numbers.all(1)).double(), words.double().mean(1), numbers.double().mean(1))
    return {name: values for name, values in zip(NAMES, found, strict=True) if not values.isnan().any()}
