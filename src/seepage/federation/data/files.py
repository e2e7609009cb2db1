"""Data sets whose images stay in their files, a folder or a zip archive, until a batch asks for them."""

import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from seepage.base.zip_safety import DAMAGED
from seepage.errors import SeepageError
from seepage.federation.data.dataset import Options, Progress
from seepage.federation.data.pixels import as_float, fitted_shape
from seepage.federation.types import Batch

Open = Callable[[str], IO[bytes]]
NAMED = 3
"""Number of files or sizes that a message names, so that it stays readable."""


@dataclass(frozen=True, eq=False, repr=False)
class FileDataset:
    """Images decoded on demand: memory is that of one batch, however many files there are.

    Attributes:
        name: Short.
        source: One sentence: where the images come from.
        root: A folder, or a zip archive.
        files: Each image's path under `root`, or its name in the archive.
        labels: `[N]` int64.
        classes: Name of each class number.
        input_shape: `(C, H, W)` of what `batch` delivers.
        train: `[a]` int64 indices to train on.
        private: `[b]` int64 indices to draw victims from.
        size: Side of the square images that `batch` delivers, or None if the files all have one size.
    """

    name: str
    source: str
    root: Path
    files: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    input_shape: tuple[int, int, int]
    train: Tensor
    private: Tensor
    size: int | None = None

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        return f"FileDataset({self.name!r}, {len(self)} images {self.input_shape}, {len(self.classes)} classes)"

    def batch(self, indices: Tensor) -> Batch:
        """The examples at `indices` `[n]`: inputs float32 `[n, C, H, W]` in [0, 1], with labels and indices.

        Raises:
            SeepageError: For an image whose pixels are damaged, and files that changed since `load`.
        """
        inputs = torch.empty(len(indices), *self.input_shape)
        with opener(self.root) as open_file:
            for place, index in enumerate(indices.tolist()):
                inputs[place] = as_float(self._decode(open_file, self.files[index]))
        return Batch(inputs, self.labels[indices], indices)

    def _decode(self, open_file: Open, name: str) -> Tensor:
        """One image `[C, H, W]` of the data set's shape.

        Raises:
            SeepageError: For an unreadable image and for another shape.
        """
        from seepage.federation.data.decode import Unreadable, read_image

        try:
            with open_file(name) as file:
                image = read_image(file, self.size, self.input_shape[0])
        except (Unreadable, *DAMAGED) as error:
            raise SeepageError(
                f"the image {name!r} of {self.root} cannot be read: {error}; replace it or take it out"
            ) from error
        if image.shape != self.input_shape:
            height, width = image.shape[1:]
            raise SeepageError(
                f"the image {name!r} of {self.root} has {width}x{height} pixels, the data set "
                f"{self.input_shape[2]}x{self.input_shape[1]}; {RESIZE}"
            )
        return image


RESIZE = "cut all images to one size with --set data.size=64"


@contextmanager
def opener(root: Path) -> Iterator[Open]:
    """A function that opens a file under a folder, or in a zip archive, by its name."""
    if root.is_dir():
        yield lambda name: (root / name).open("rb")
        return
    try:
        archive = zipfile.ZipFile(root)
    except DAMAGED as error:
        raise SeepageError(f"cannot open {root} ({error}); check that the file is there and whole") from error
    with archive:
        yield archive.open


def shape_of(root: Path, files: Sequence[str], options: Options, progress: Progress | None) -> tuple[int, int, int]:
    """The `(C, H, W)` that a data set of these files delivers, by every file's header.

    Raises:
        SeepageError: For images that cannot be read, and for mixed sizes when no size was asked for.
    """
    from seepage.federation.data.decode import Unreadable, read_header

    headers, broken = [], []
    with opener(root) as open_file:
        for place, name in enumerate(files, 1):
            try:
                with open_file(name) as file:
                    headers.append(read_header(file))
            except (Unreadable, *DAMAGED) as error:
                broken.append(f"{name!r}: {error}")
            if progress is not None:
                progress(place, len(files))
    if broken:
        more = ", ..." if len(broken) > NAMED else ""
        raise SeepageError(
            f"{len(broken)} of the {len(files)} images of {root} cannot be read ({', '.join(broken[:NAMED])}{more}); "
            "replace them or take them out"
        )
    height, width = _one_size([header[:2] for header in headers], root) if options.size is None else (0, 0)
    channels = 1 if all(header.grey for header in headers) else 3
    return fitted_shape((channels, height, width), options.size, options.channels)


def _one_size(found: Sequence[tuple[int, int]], root: Path) -> tuple[int, int]:
    """The one (height, width) that all images have."""
    sizes = Counter(found)
    if len(sizes) > 1:
        seen = [f"{width}x{height} ({count})" for (height, width), count in sizes.most_common(NAMED)]
        more = f" and {len(sizes) - NAMED} more" if len(sizes) > NAMED else ""
        raise SeepageError(f"the images of {root} have {len(sizes)} sizes: {', '.join(seen)}{more}; {RESIZE}")
    return next(iter(sizes))
