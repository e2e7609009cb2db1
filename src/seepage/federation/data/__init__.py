"""Data to audit with: packaged images and tables, torchvision's sets, your own files by path, or your own loader."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seepage.base.npz import PICKLE_REMEDY
from seepage.base.registry import Registry, Spec, datasets, is_dotted
from seepage.base.storage import refuse_pickle
from seepage.errors import SeepageError, unknown
from seepage.federation.data.arrays import ArrayDataset
from seepage.federation.data.dataset import Dataset, Options, Progress, divide
from seepage.federation.data.files import FileDataset
from seepage.federation.data.tables import TableDataset
from seepage.federation.data.text import TextDataset

DATA: Registry[Dataset] = datasets
"""Every data set that has a name, and a loader for each kind of file."""

__all__ = [
    "ArrayDataset",
    "DATA",
    "Dataset",
    "FileDataset",
    "Options",
    "TableDataset",
    "TextDataset",
    "divide",
    "is_packaged",
    "load",
    "named",
]


def load(
    use: str,
    *,
    size: int | None = None,
    channels: int | None = None,
    seed: int = 0,
    split: float = 0.5,
    root: Path | None = None,
    progress: Progress | None = None,
    **own: Any,
) -> Dataset:
    """Load a data set by its name, your own images by their path, or whatever your own loader loads.

    Args:
        use: A name in `DATA`; the path of a folder (one sub-folder per class), a `.zip` (images and `labels.csv`),
            an `.npz` (`x` and `y`), a table (`.csv`, `.tsv`, `.parquet`) or text; or `module:loader`, called as
            `loader(options, **own)` with `data.Options`. What exists on disk goes before a name.
        size: Side of the square images to deliver; the central square is resized, antialiased. None: as they are.
        channels: 1 for grey (luma), 3 for RGB. None: as they are.
        seed: Seeds the split into train and private.
        split: Private share, where the data bring no training and test part of their own.
        root: Where torchvision keeps its files; default: the environment's `SEEPAGE_DATA`, else `~/.cache/seepage`.
        progress: Called with (done, total) while image files are checked.
        own: Options of the loader's own.

    Raises:
        SeepageError: For a name nobody knows, a file that cannot be used, and options that make no sense.

    >>> data = load("faces", size=16)
    >>> len(data), data.input_shape, data.classes
    (200, (1, 16, 16), ('face', 'not a face'))
    >>> data.batch(data.private[:8]).inputs.shape
    torch.Size([8, 1, 16, 16])
    """
    common = {"size": size, "channels": channels, "seed": seed, "split": split, "root": root, "progress": progress}
    return DATA.build(named(Spec(use, common | own)))


def named(spec: Spec) -> Spec:
    """The loader that a name or a path stands for, with the path among its options.

    Raises:
        SeepageError: For a name nobody knows, and a file that no loader reads.
    """
    use, path = spec.use, Path(os.path.expanduser(spec.use))
    exists = bool(use) and os.path.exists(path)  # Unlike Path.exists, False for a name too long to be one.
    if not exists and use == path.name and (use in DATA or is_dotted(use)):
        return spec
    refuse_pickle(path, PICKLE_REMEDY)
    if not exists and (use != path.name or path.suffix):
        raise SeepageError(f"there is no file or folder {use}; check the path")
    if not exists:
        raise SeepageError(f"{unknown('data', use, DATA)}; nor is there a file or folder of this name")
    return Spec(_loader_of(path, spec.options), {"path": path, **spec.options})


def is_packaged(use: str) -> bool:
    """Whether a name is that of data which ship inside an installed package.

    >>> is_packaged("album"), is_packaged("mnist"), is_packaged("my/folder")
    (True, False, False)
    """
    return use in DATA and DATA[use].facts["origin"] == "packaged"


def _loader_of(path: Path, options: Mapping[str, Any]) -> str:
    """The name of the loader that reads a folder, or a file by its suffix."""
    if path.is_dir():
        return "folder"
    suffix = path.suffix.lower()
    found = [name for name, entry in DATA.items() if path.is_file() and suffix in entry.facts.get("suffix", ())]
    if len(found) > 1:
        from seepage.federation.data.table_files import is_text

        return "text" if is_text(path, options) else "table"
    if found:
        return found[0]
    raise SeepageError(
        f"{path} is no data set that seepage reads; pass a folder with one sub-folder per class, "
        "a .zip with images and labels.csv, an .npz with x and y, a table as .csv, .tsv or .parquet, or text as .txt, "
        ".jsonl or .csv"
    )
