"""How many labels an attack got right, before and after guesses are matched to examples."""

import torch
from torch import Tensor

from seepage.errors import SeepageError
from seepage.registry import metrics


def label_accuracy(guessed: Tensor, true: Tensor) -> float:
    """Share of labels guessed right whatever their order: the overlap of the two multisets.

    With as many guesses as examples this is the accuracy under the best re-ordering. The overlap is divided
    by the longer of the two lists, so an attack gains nothing by naming every class.

    Args:
        guessed: `[k]` int64 class numbers.
        true: `[n]` int64 class numbers, or `[n, classes]` probabilities (the largest counts).

    Returns:
        A share in [0, 1]; higher is better.

    Raises:
        SeepageError: Where there are no labels at all.

    >>> label_accuracy(torch.tensor([3, 3, 1]), torch.tensor([1, 2, 3]))
    0.6666666666666666
    """
    guessed, true = class_numbers(guessed), class_numbers(true)
    if not len(guessed) and not len(true):
        raise SeepageError("there are no labels to compare; pass at least one example")
    classes, where = torch.cat([guessed, true]).unique(return_inverse=True)
    counts = [where[part].bincount(minlength=len(classes)) for part in _halves(len(guessed))]
    return int(torch.minimum(*counts).sum()) / max(len(guessed), len(true))


@metrics.register("label", of_labels=True, by_default=True, about="1 where the label was guessed right")
def label_hits(guessed: Tensor, true: Tensor, permutation: Tensor) -> Tensor:
    """Which examples had their label guessed right by the guess they were matched with.

    Args:
        guessed: `[k]` class numbers, in the order of the guesses.
        true: `[n]` class numbers, or `[n, classes]` probabilities.
        permutation: `[n]` int64 place of each example's guess, -1 for none (see `align`).

    Returns:
        `[n]` float64: 1 right, 0 wrong, NaN where no guess was matched.

    >>> label_hits(torch.tensor([5, 6]), torch.tensor([6, 6, 1]), torch.tensor([1, 0, -1]))
    tensor([1., 0., nan], dtype=torch.float64)
    """
    hits = torch.full((len(true),), torch.nan, dtype=torch.float64)
    matched = permutation >= 0
    chosen = class_numbers(guessed)[permutation[matched]]
    hits[matched] = (chosen == class_numbers(true)[matched]).double()
    return hits


def class_numbers(labels: Tensor) -> Tensor:
    """`[n]` class numbers from class numbers or from `[n, classes]` probabilities, on the CPU.

    >>> class_numbers(torch.tensor([[0.2, 0.8], [1.0, 0.0]]))
    tensor([1, 0])
    """
    labels = labels.detach().cpu()
    return (labels.argmax(1) if labels.ndim == 2 else labels).long()


def _halves(length: int) -> tuple[slice, slice]:
    return slice(None, length), slice(length, None)
