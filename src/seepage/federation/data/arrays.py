"""Data sets whose images all lie in memory."""

from dataclasses import dataclass

from torch import Tensor

from seepage.base.units import Units
from seepage.errors import SeepageError
from seepage.federation.data.pixels import as_float, fit, fitted_shape
from seepage.federation.data.targets import Targets
from seepage.federation.types import Batch


@dataclass(frozen=True, eq=False, repr=False)
class ArrayDataset:
    """Images in one tensor. They are kept as they came; `batch` changes size and channels.

    Attributes:
        name: Short.
        source: One sentence: where the images come from.
        images: `[N, C, H, W]`, uint8, or float32 in [0, 1]; C = 1 or 3.
        labels: `[N]` int64.
        classes: Name of each class number.
        train: `[a]` int64 indices to train on.
        private: `[b]` int64 indices to draw victims from.
        size: Side of the square images that `batch` delivers, or None to leave them as they are.
        channels: Channels that `batch` delivers, or None to leave them as they are.
        targets: Values, or maps of the images' size, that images are trained towards in place of a class.

    >>> import torch
    >>> data = ArrayDataset("two", "made up", torch.zeros(2, 1, 4, 6), torch.tensor([0, 1]), ("a", "b"),
    ...                     torch.tensor([0]), torch.tensor([1]), size=8, channels=3)
    >>> data.input_shape, data.batch(data.private).inputs.shape
    ((3, 8, 8), torch.Size([1, 3, 8, 8]))
    """

    name: str
    source: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    train: Tensor
    private: Tensor
    size: int | None = None
    channels: int | None = None
    targets: Targets | None = None

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[1] not in (1, 3):
            raise SeepageError(
                f"the images of {self.name!r} have the shape {tuple(self.images.shape)}; "
                "pass [N, C, H, W] with C = 1 or 3"
            )
        if len(self.images) != len(self.labels):
            raise SeepageError(
                f"{self.name!r} has {len(self.images)} images and {len(self.labels)} labels; pass one label each"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"ArrayDataset({self.name!r}, {len(self)} images {self.input_shape}, {len(self.classes)} classes)"

    @property
    def input_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return fitted_shape((channels, height, width), self.size, self.channels)

    def batch(self, indices: Tensor) -> Batch:
        """The examples at `indices` `[n]`: inputs float32 `[n, C, H, W]` in [0, 1], with labels and indices."""
        inputs = fit(as_float(self.images[indices]), self.size, self.channels)
        labels = self.labels if self.targets is None else self.targets.each
        return Batch(inputs, labels[indices], indices)

    @property
    def units(self) -> Units | None:
        """Of the values that images are trained towards."""
        return None if self.targets is None else self.targets.units
