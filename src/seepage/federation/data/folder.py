"""Data sets from a folder with one sub-folder of images per class.

torchvision's `ImageFolder` is not used: it follows links out of the folder, waits for pipes, and opens whatever Pillow
opens, also formats that call outside programs, with no bound on their pixels.
"""

import os
from pathlib import Path

import torch

from seepage.base.registry import datasets
from seepage.base.storage import walk
from seepage.errors import SeepageError
from seepage.federation.data.dataset import Options, divide
from seepage.federation.data.files import FileDataset, shape_of

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"})
TRAINING = {"train", "training"}
"""Names of a sub-folder that holds the part to train on."""
HELD_BACK = {"test", "testing", "val", "valid", "validation"}
"""Names of sub-folders that hold the private part, where another is the part to train on."""


@datasets.register("folder", about="an image folder with a sub-folder per class", origin="named by its path")
def load_folder(options: Options, *, path: Path) -> FileDataset:
    """Load a folder of images: the class is the sub-folder, images may lie anywhere below it.

    A folder of `train` and `test` (or `val`, ...), each with a sub-folder per class, is split as it stands: what is
    below `train` is for training and the rest is private. Hidden files, files that are no images by their suffix, and
    links that lead out of the folder are passed over; so are sub-folders without any image. Only headers are read here.

    Args:
        options: Size, channels and split.
        path: Where it lies.

    Raises:
        SeepageError: For a folder without class folders or images, unreadable images, and mixed sizes.
    """
    root = path.resolve()
    parts = _parts(root)
    found = [(folder, place) for place, part in enumerate(parts) for folder in _sub_folders(part)]
    images = [(folder.name, place, _images_below(folder, root)) for folder, place in found]
    names = sorted({name for name, _, below in images if below})
    numbers = {name: number for number, name in enumerate(names)}
    files = [file for _, _, below in images for file in below]
    if not files:
        raise SeepageError(
            f"{root} has no images in its sub-folders (links that lead out of it are not followed); "
            f"put {', '.join(sorted(SUFFIXES))} files into one sub-folder per class"
        )
    labels = torch.tensor([numbers[name] for name, _, below in images for _ in below])
    shape = shape_of(root, files, options, options.progress)
    train, private = divide(len(files), options, root.name)
    if len(parts) > 1:
        of_part = torch.tensor([place for _, place, below in images for _ in below])
        train, private = (of_part == 0).nonzero().flatten(), (of_part > 0).nonzero().flatten()
        if not len(train) or not len(private):
            raise SeepageError(f"{root / parts[len(train) > 0].name} has no images in class folders; add them")
    source = f"{len(files)} images of the folder {root.name}"
    classes = tuple(os.fsencode(name).decode("utf-8", "replace") for name in names)
    return FileDataset(root.name, source, root, tuple(files), labels, classes, shape, train, private, options.size)


def _parts(root: Path) -> list[Path]:
    """The folder itself, or its parts where it is split: the one to train on first."""
    folders = _sub_folders(root)
    words = [folder.name.lower() for folder in folders]
    if len(folders) < 2 or not set(words) <= TRAINING | HELD_BACK:
        return [root]
    training = [folder for folder, word in zip(folders, words, strict=True) if word in TRAINING]
    if len(training) != 1:
        names = ", ".join(folder.name for folder in folders)
        raise SeepageError(
            f"{root} holds {names}, which look like splits, and one of them has to be named train; "
            f"pass one of them, e.g. {folders[0]}"
        )
    return training + [folder for folder in folders if folder not in training]


def _sub_folders(root: Path) -> list[Path]:
    try:
        found = sorted(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise SeepageError(f"cannot read the folder {root}: {error.strerror}; check its permissions") from error
    folders = [root / name for name in found if not name.startswith(".")]
    if not folders:
        raise SeepageError(f"{root} has no class folders; put the images into one sub-folder per class")
    return folders


def _images_below(folder: Path, root: Path) -> list[str]:
    """Paths of the images below a class folder, relative to the root, sorted."""
    found = []
    for entry in walk(folder, hidden=False, most=None):
        path = Path(entry.path)
        if path.suffix.lower() in SUFFIXES and _is_inside(path, root):
            found.append(str(path.relative_to(root)))
    return sorted(found)


def _is_inside(path: Path, root: Path) -> bool:
    """Whether a path is a file of this folder and no link out of it (nor a pipe, which would hang)."""
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        return False
    return path.is_file()
