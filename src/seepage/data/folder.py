"""Data sets from a folder with one sub-folder of images per class.

torchvision's `ImageFolder` is not used: it follows links out of the folder, waits for pipes, and opens whatever Pillow
opens, also formats that call outside programs, with no bound on their pixels.
"""

import os
from pathlib import Path

import torch

from seepage.data.dataset import Options, divide
from seepage.data.files import FileDataset, shape_of
from seepage.errors import SeepageError
from seepage.registry import datasets

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"})
_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}


@datasets.register("folder", about="an image folder with a sub-folder per class", origin="named by its path")
def load_folder(options: Options, *, path: Path) -> FileDataset:
    """Load a folder of images: the class is the sub-folder, images may lie anywhere below it.

    Hidden files, files that are no images by their suffix, and links that lead out of the folder are passed over;
    so are sub-folders without any image. Only headers are read here.

    Args:
        options: Size, channels and split.
        path: Where it lies.

    Raises:
        SeepageError: For a folder without class folders or images, unreadable images, and mixed sizes.
    """
    root = path.resolve()
    classes: list[str] = []
    files: list[str] = []
    labels: list[int] = []
    for folder in _class_folders(root):
        images = _images_below(folder, root)
        if images:
            files += images
            labels += [len(classes)] * len(images)
            classes.append(os.fsencode(folder.name).decode("utf-8", "replace"))
    if not files:
        raise SeepageError(
            f"{root} has no images in its sub-folders (links that lead out of it are not followed); "
            f"put {', '.join(sorted(SUFFIXES))} files into one sub-folder per class"
        )
    shape = shape_of(root, files, options, options.progress)
    train, private = divide(len(files), options, root.name)
    return FileDataset(
        root.name,
        f"{len(files)} images of the folder {root.name}",
        root,
        tuple(files),
        torch.tensor(labels),
        tuple(classes),
        shape,
        train,
        private,
        options.size,
    )


def _class_folders(root: Path) -> list[Path]:
    try:
        found = sorted(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise SeepageError(f"cannot read the folder {root}: {error.strerror}; check its permissions") from error
    folders = [root / name for name in found if not name.startswith(".")]
    if not folders:
        raise SeepageError(f"{root} has no class folders; put the images into one sub-folder per class")
    if len(folders) > 1 and {folder.name.lower() for folder in folders} <= _SPLITS:
        names = ", ".join(folder.name for folder in folders)
        raise SeepageError(
            f"{root} holds {names}, which look like splits and not like classes; pass one of them, e.g. {folders[0]}"
        )
    return folders


def _images_below(folder: Path, root: Path) -> list[str]:
    """Paths of the images below a class folder, relative to the root, sorted."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.suffix.lower() in SUFFIXES and _is_inside(path, root):
                found.append(str(path.relative_to(root)))
    return sorted(found)


def _is_inside(path: Path, root: Path) -> bool:
    """Whether a path is a file of this folder and no link out of it (nor a pipe, which would hang)."""
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        return False
    return path.is_file()
