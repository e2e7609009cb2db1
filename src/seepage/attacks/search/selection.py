"""The k-th smallest of millions of numbers, exactly and in about one pass over them."""

import math

import numpy as np
import torch
from torch import Tensor

SAMPLE = 20_000
"""Numbers that are sorted to see where the wanted one lies; of fewer than ten times as many, all are looked at."""
SIGMAS = 5.0
"""Half-width of the bracket in standard errors of the sampled rank: outside it lies one choice in two million."""
BLOCK = 1 << 16
"""Numbers at a time: a block and its masks stay in a core's own cache."""


def kth_smallest(parts: list[Tensor], place: int) -> Tensor:
    """The number at `place`, from 0, of all parts' numbers in rising order; a tensor `[]` of their dtype and device.

    A sorted sample says between which two numbers it lies. One pass counts the numbers below that bracket and keeps
    those within, some hundredths of all, and only these are ordered (Floyd and Rivest, CACM 1975, algorithm SELECT).
    Where the bracket misses, all are ordered: the answer is exact either way.

    Args:
        parts: Flat tensors `[n_i]`.
        place: From 0 to the sum of `n_i`, exclusive.

    >>> kth_smallest([torch.tensor([5.0, 1.0]), torch.tensor([3.0])], 1)
    tensor(3.)
    """
    total = sum(len(part) for part in parts)
    if parts[0].device.type != "cpu":
        return torch.cat(parts).kthvalue(place + 1).values
    arrays = [part.numpy() for part in parts]
    found = _in_bracket(arrays, place, total) if total >= 10 * SAMPLE else None
    if found is None:
        # NumPy's selection takes a twentieth of the time of torch.kthvalue on a CPU.
        found = np.partition(np.concatenate(arrays), place)[place]
    return torch.tensor(found, dtype=parts[0].dtype)


def _in_bracket(arrays: list[np.ndarray], place: int, total: int) -> np.generic | None:
    """The number at `place` if it lies between two of a sample's, else None."""
    sample = np.sort(np.concatenate([_sampled(array, SAMPLE * len(array) / total) for array in arrays]))
    share, n = place / total, len(sample)
    # The rank of a number in a random sample of n has standard deviation sqrt(n p (1 - p)).
    margin = SIGMAS * (n * share * (1 - share)) ** 0.5 + 1
    low = sample[max(0, int(share * n - margin))]
    high = sample[min(n - 1, int(share * n + margin))]
    below, within = 0, []
    for array in arrays:
        for start in range(0, len(array), BLOCK):
            block = array[start : start + BLOCK]
            smaller = block < low
            below += int(np.count_nonzero(smaller))
            within.append(block[~smaller & (block <= high)])
    kept = np.concatenate(within)
    # By chance, or where there are NaNs, which order with nothing, the place falls outside.
    if not 0 <= place - below < len(kept):
        return None
    selected: np.generic = np.partition(kept, place - below)[place - below]
    return selected


def _sampled(array: np.ndarray, count: float) -> np.ndarray:
    """About `count` entries, one at random out of each of as many stretches of equal length; the same at each call."""
    number = math.ceil(count)
    # Without chance a stretch as long as a multiple of a kernel would always show the same place of it.
    places = (np.arange(number) + np.random.default_rng(0).random(number)) * (len(array) / number)
    sampled: np.ndarray = array[places.astype(np.int64)]
    return sampled
