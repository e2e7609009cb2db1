"""What a data set is here, and the two things every kind of them shares: options and the split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from seepage.errors import Problems, SeepageError
from seepage.federation.types import Batch

Progress = Callable[[int, int], None]
"""Called with (done, total) while many files are checked."""

MAX_CLASSES = 100_000
"""Bound of class numbers; a larger one is a mistake, such as an identifier in place of a class."""
LARGEST_SIZE = 4096
"""Largest side in pixels to which images are scaled; 4096 x 4096 x 3 floats have 192 MiB."""


@runtime_checkable
class Dataset(Protocol):
    """Examples by index. Nothing is shuffled or augmented: the same index is always the same example.

    Attributes:
        name: Short, e.g. `album`.
        source: One sentence: where the images come from, and their terms where known.
        labels: `[N]` int64 class numbers.
        classes: Name of each class number; its length is the number of classes.
        input_shape: `(C, H, W)` of images, `(d,)` of rows of a table.
        train: `[a]` int64 indices that a model may be trained on.
        private: `[b]` int64 indices that victims are drawn from; none of them is in `train`.
    """

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def labels(self) -> Tensor: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    def train(self) -> Tensor: ...

    @property
    def private(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Batch:
        """The examples at `indices` `[n]`: inputs float32 `[n, *shape]` in [0, 1], with labels and indices."""


@dataclass(frozen=True)
class Options:
    """What `load` was asked for beside the name; all mistakes in it are reported at once.

    Attributes:
        size: Side of the square images to deliver, in pixels; None leaves them as they are.
        channels: 1 for grey, 3 for RGB; None leaves them as they are.
        seed: Seeds the split into train and private, nothing else.
        split: Share of the examples that become private, where the data bring no split of their own.
        root: Where torchvision keeps its files; None: the environment's `SEEPAGE_DATA`, else `~/.cache/seepage`.
        progress: Called with (done, total) while image files are checked.
    """

    size: int | None = None
    channels: int | None = None
    seed: int = 0
    split: float = 0.5
    root: Path | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.size is not None and not 1 <= self.size <= LARGEST_SIZE:
            problems.append(f"size must be between 1 and {LARGEST_SIZE} pixels, got {self.size}")
        if self.channels not in (None, 1, 3):
            problems.append(f"channels must be 1 (grey) or 3 (RGB), got {self.channels}")
        if not 0 < self.split <= 1:
            problems.append(f"split, the private share, must lie between 0 and 1, got {self.split}")
        if problems:
            raise Problems("the data options do not work:", problems)


def divide(count: int, options: Options, name: str) -> tuple[Tensor, Tensor]:
    """Split `count` examples into (train, private) by a seeded permutation, at least one in each.

    A share of 1 makes all private.

    >>> train, private = divide(10, Options(split=0.3), "demo")
    >>> len(train), len(private), sorted([*train.tolist(), *private.tolist()]) == list(range(10))
    (7, 3, True)
    """
    if options.split == 1 and count:
        return torch.arange(0), torch.arange(count)
    if count < 2:
        raise SeepageError(
            f"the data set {name!r} has {count} image{'s' * (count != 1)}, and one to train on and one to attack "
            "are the least that works; add images"
        )
    order = torch.randperm(count, generator=Generator().manual_seed(options.seed))
    private = min(max(round(count * options.split), 1), count - 1)
    return order[private:], order[:private]


def number_words(words: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Class numbers `[n]` for class names, in the names' sorted order.

    >>> number_words(["dog", "cat", "dog"])
    (tensor([1, 0, 1]), ('cat', 'dog'))
    """
    classes = sorted(set(words))
    place = {word: number for number, word in enumerate(classes)}
    return torch.tensor([place[word] for word in words], dtype=torch.int64), tuple(classes)


def check_labels(labels: Tensor, classes: Sequence[str] | None, where: str) -> tuple[str, ...]:
    """The class names that go with integer labels; numbers that no example uses keep their place.

    Args:
        labels: `[N]` int64.
        classes: Names, when the data bring some; else the numbers serve as names.
        where: How to call the data in messages.

    Raises:
        SeepageError: For negative labels, labels beyond `classes`, and absurdly large ones.
    """
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise SeepageError(
            f"{where} has negative labels (down to {low}), which name no class; "
            "number the classes from 0, or set all labels to -1 if the images have none"
        )
    if high >= MAX_CLASSES:
        raise SeepageError(
            f"{where} has the label {high}, and seepage takes class numbers below {MAX_CLASSES}; "
            "number the classes from 0 without gaps"
        )
    if classes is None:
        return tuple(str(number) for number in range(high + 1))
    if high >= len(classes):
        raise SeepageError(
            f"{where} has the label {high} but names only {len(classes)} classes; "
            "name every class, or leave the names out"
        )
    return tuple(classes)
