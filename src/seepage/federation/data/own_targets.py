"""Data whose examples are their own targets, as an autoencoder has them."""

from dataclasses import dataclass, replace
from math import prod

from torch import Tensor

from seepage.federation.data.dataset import Dataset
from seepage.federation.types import Batch


@dataclass(frozen=True)
class OwnTargets:
    """A data set whose targets are its inputs, as rows of numbers; each of these stands for a class.

    Attributes:
        data: The data set.
    """

    data: Dataset

    @property
    def name(self) -> str:
        return self.data.name

    @property
    def source(self) -> str:
        return self.data.source

    @property
    def labels(self) -> Tensor:
        return self.data.labels

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(map(str, range(prod(self.input_shape))))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.data.input_shape

    @property
    def train(self) -> Tensor:
        return self.data.train

    @property
    def private(self) -> Tensor:
        return self.data.private

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Tensor) -> Batch:
        found = self.data.batch(indices)
        return replace(found, labels=found.inputs.flatten(1))
