"""Data sets of rows, and the tables that ship with scikit-learn, as banks and clinics have them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.base.blocks import Block
from seepage.base.registry import datasets
from seepage.base.units import Units
from seepage.errors import SeepageError
from seepage.federation.data.columns import Column
from seepage.federation.data.dataset import Options, divide
from seepage.federation.data.targets import Targets
from seepage.federation.types import Batch


@dataclass(frozen=True, eq=False, repr=False)
class TableDataset:
    """Rows of numbers in [0, 1].

    Attributes:
        name: Short.
        source: One sentence: where the rows come from.
        rows: `[N, d]` float32 in [0, 1].
        labels: `[N]` int64.
        classes: Name of each class number.
        train: `[a]` int64 indices to train on.
        private: `[b]` int64 indices to draw victims from.
        columns: What the `d` numbers of a row stand for, in order.
        targets: Values that rows are trained towards in place of a class.
    """

    name: str
    source: str
    rows: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    train: Tensor
    private: Tensor
    columns: tuple[Column, ...] = ()
    targets: Targets | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        what = f"{len(self.classes)} {'classes' if self.targets is None else 'values'}"
        return f"TableDataset({self.name!r}, {len(self)} rows of {self.rows.shape[1]}, {what})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape[1:])

    @property
    def typical(self) -> Tensor | None:
        """`[d]` the mean of the rows to train on, which anybody may guess; None where there are none."""
        return self.rows[self.train].mean(0) if len(self.train) else None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """First place and width of each block of places that is one-hot, or marks a gap."""
        found, first = [], 0
        for column in self.columns:
            start = first + (0 if column.categories else 1)
            first += column.width
            found += [(start, first - start)] if first > start else []
        return tuple(found)

    def batch(self, indices: Tensor) -> Batch:
        """The rows at `indices` `[n]`: inputs float32 `[n, d]` in [0, 1], with labels (or values) and indices."""
        labels = self.labels if self.targets is None else self.targets.each
        return Batch(self.rows[indices], labels[indices], indices)

    @property
    def units(self) -> Units | None:
        """Units of the regression targets; None for classes."""
        return None if self.targets is None else self.targets.units


@datasets.register(
    "breast_cancer",
    about="569 patients, 30 measurements of cell nuclei, 2 diagnoses, as shipped with scikit-learn",
    origin="packaged",
)
def breast_cancer(options: Options) -> TableDataset:
    """569 patients, 30 measurements of cell nuclei, 2 diagnoses, as shipped with scikit-learn."""
    return _table("breast_cancer", options)


@datasets.register(
    "iris", about="150 flowers, 4 measurements, 3 species, as shipped with scikit-learn", origin="packaged"
)
def iris(options: Options) -> TableDataset:
    """150 flowers, 4 measurements, 3 species, as shipped with scikit-learn."""
    return _table("iris", options)


@datasets.register(
    "wine", about="178 wines, 13 measurements, 3 cultivars, as shipped with scikit-learn", origin="packaged"
)
def wine(options: Options) -> TableDataset:
    """178 wines, 13 measurements, 3 cultivars, as shipped with scikit-learn."""
    return _table("wine", options)


def _table(use: str, options: Options) -> TableDataset:
    """A table of scikit-learn.

    Raises:
        SeepageError: Where `size` or `channels` is asked for, which rows have none of.
    """
    if options.size is not None or options.channels is not None:
        raise SeepageError(f"{use} is a table, and rows have no data.size or data.channels; leave them out")
    from sklearn import datasets as shipped

    bunch = getattr(shipped, f"load_{use}")()
    values = torch.from_numpy(bunch.data).double()
    low, high = values.amin(0), values.amax(0)
    rows = ((values - low) / (high - low)).float()
    labels = torch.from_numpy(bunch.target).long()
    train, private = divide(len(rows), options, use)
    classes = tuple(map(str, bunch.target_names))
    # Each number is a column's, scaled to [0, 1] by its smallest and largest value.
    limits = zip(map(str, bunch.feature_names), low.tolist(), high.tolist(), strict=True)
    columns = tuple(Column(*limit) for limit in limits)
    return TableDataset(use, datasets[use].about, rows, labels, classes, train, private, columns)
