"""Targets that are no classes: values, scaled as people scale them for training, and maps with a class at each pixel.

A data set that has such targets gives them with its batches. Its `labels`, one number for each example, are then what a
federation is partitioned by.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.base.nn import NO_TARGET
from seepage.base.units import Units
from seepage.errors import SeepageError

BINS = 10
"""Ranges of a value, with as many examples each, that stand in for classes where a federation is partitioned."""
LARGEST_VALUE = 1e30
"""Of a target; squares of its errors are numbers in float64 still."""


@dataclass(frozen=True, eq=False)
class Targets:
    """What each example of a data set is trained towards.

    Attributes:
        each: `[N, k]` float32 values, scaled by `units`, or `[N, h, w]` int64 classes.
        parts: `[N]` int64 what a federation is partitioned by: the range of the first value, or a map's commonest
            class.
        units: Of values that were scaled; None for others, and for maps.
    """

    each: Tensor
    parts: Tensor
    units: Units | None = None

    @classmethod
    def of_values(cls, values: Tensor, train: Tensor, where: str) -> "Targets":
        """Values in the unit of their file, scaled to mean 0 and deviation 1 of the examples to train on.

        Where none is to train on, all examples give the scale. Values that are 0 or 1 everywhere stay as they are: they
        may be labels of several classes at once, for binary cross-entropies.

        Args:
            values: `[N, k]` float64.
            train: `[a]` int64 indices of the examples to train on.
            where: How to call them in messages.

        Raises:
            SeepageError: For values that are not finite.

        >>> found = Targets.of_values(torch.tensor([[1.0], [3.0], [5.0]]).double(), torch.tensor([0, 1]), "y")
        >>> found.each.tolist(), found.parts.tolist()
        ([[-1.0], [1.0], [3.0]], [0, 3, 6])
        """
        if not bool((values.abs() <= LARGEST_VALUE).all()):  # nor is NaN
            raise SeepageError(f"{where} has values that are no finite numbers; correct or leave out these examples")
        plain = bool(((values == 0) | (values == 1)).all())
        units = None if plain else Units.of(values[train] if len(train) else values)
        ranks = values[:, 0].argsort(stable=True).argsort(stable=True)
        return cls(values.float() if units is None else units.scaled(values), BINS * ranks // len(values), units)

    @classmethod
    def of_maps(cls, maps: Tensor) -> "Targets":
        """Maps `[N, h, w]` int64 of class numbers, `NO_TARGET` where a pixel has none."""
        commonest = [int(known.mode().values) if len(known := one[one != NO_TARGET]) else 0 for one in maps]
        return cls(maps, torch.tensor(commonest))


def value_names(width: int, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Names in place of class names, one for each number of a target."""
    if names is not None and len(names) == width:
        return tuple(names)
    return ("value",) if width == 1 else tuple(f"value {place}" for place in range(1, width + 1))
