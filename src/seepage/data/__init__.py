"""Data to audit with: packaged images and tables, your own folder, zip or .npz, and torchvision's sets by name."""

import os
from pathlib import Path

from seepage.core.storage import refuse_pickle
from seepage.data.archive import load_zip
from seepage.data.arrays import ArrayDataset
from seepage.data.dataset import Dataset, Options, Progress
from seepage.data.files import FileDataset
from seepage.data.folder import load_folder
from seepage.data.npz import PICKLE_REMEDY, load_npz
from seepage.data.packaged import DIGITS_SOURCE, FACES_SOURCE, PACKAGED, PHOTOS_SOURCE
from seepage.data.tables import TABLES, TableDataset, load_table
from seepage.data.torchvision_sets import KNOWN, load_torchvision
from seepage.errors import SeepageError, unknown

DATA: dict[str, str] = {
    "album": "photographs, faces and digits as 32x32 RGB; packaged, the default (sources: photos, faces, digits)",
    "digits": f"{DIGITS_SOURCE}; packaged",
    "faces": f"{FACES_SOURCE}; packaged",
    "photos": f"{PHOTOS_SOURCE}; packaged",
    **{name: f"{about}; packaged" for name, about in TABLES.items()},
    **{name: f"{known.about}; downloaded by torchvision" for name, known in KNOWN.items()},
}
"""Every data set that has a name, with one line on what it is and where it comes from."""

__all__ = ["ArrayDataset", "DATA", "Dataset", "FileDataset", "TableDataset", "load"]


def load(
    use: str,
    *,
    size: int | None = None,
    channels: int | None = None,
    seed: int = 0,
    split: float = 0.5,
    root: Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load a data set by its name, or your own images by their path.

    Args:
        use: A name in `DATA`, or the path of a folder (one sub-folder per class), a `.zip` (images and
            `labels.csv`) or an `.npz` (`x` and `y`). What exists on disk goes before a name.
        size: Side of the square images to deliver; the central square is resized, antialiased. None: as they are.
        channels: 1 for grey (luma), 3 for RGB. None: as they are.
        seed: Seeds the split into train and private.
        split: Private share, where the data bring no training and test part of their own.
        root: Where torchvision keeps its files; default: the environment's `SEEPAGE_DATA`, else `~/.cache/seepage`.
        progress: Called with (done, total) while image files are checked.

    Raises:
        SeepageError: For a name nobody knows, a file that cannot be used, and options that make no sense.

    >>> data = load("faces", size=16)
    >>> len(data), data.input_shape, data.classes
    (200, (1, 16, 16), ('face', 'not a face'))
    >>> data.batch(data.private[:8]).inputs.shape
    torch.Size([8, 1, 16, 16])
    """
    options = Options(size, channels, seed, split)
    path = Path(os.path.expanduser(use))
    exists = bool(use) and os.path.exists(path)  # Unlike Path.exists, False for a name too long to be one.
    is_path = exists or use != path.name
    if use in PACKAGED and not is_path:
        return PACKAGED[use](options)
    if use in TABLES and not is_path:
        return load_table(use, options)
    if use in KNOWN and not is_path:
        return load_torchvision(use, root or _default_root(), options)
    refuse_pickle(path, PICKLE_REMEDY)
    if not exists and (use != path.name or path.suffix):
        raise SeepageError(f"there is no file or folder {use}; check the path")
    if not exists:
        raise SeepageError(f"{unknown('data', use, DATA)}; nor is there a file or folder of this name")
    return _load_path(path, options, progress)


def _load_path(path: Path, options: Options, progress: Progress | None) -> Dataset:
    if path.is_dir():
        return load_folder(path, options, progress)
    if path.is_file() and path.suffix.lower() == ".npz":
        return load_npz(path, options)
    if path.is_file() and path.suffix.lower() == ".zip":
        return load_zip(path, options, progress)
    raise SeepageError(
        f"{path} is no data set that seepage reads; pass a folder with one sub-folder per class, "
        "a .zip with images and labels.csv, or an .npz with x and y"
    )


def _default_root() -> Path:
    return Path(os.environ.get("SEEPAGE_DATA") or Path.home() / ".cache" / "seepage")
