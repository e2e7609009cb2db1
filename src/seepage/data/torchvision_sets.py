"""Data sets that torchvision knows by name and downloads itself."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.data.arrays import ArrayDataset
from seepage.data.dataset import Dataset, Options, check_labels
from seepage.data.files import RESIZE, FileDataset
from seepage.errors import SeepageError

_TRAIN_FLAG = ({"train": True}, {"train": False})
_SPLIT_WORD = ({"split": "train"}, {"split": "test"})


@dataclass(frozen=True)
class Known:
    """A torchvision class and what to call it with.

    Attributes:
        made_by: Class name in `torchvision.datasets`.
        about: One line: what it shows, how much there is.
        splits: Arguments of the part to train on and of the private part.
        in_files: Whether the images stay in files and have many sizes; else torchvision holds them as one array.
    """

    made_by: str
    about: str
    splits: tuple[Mapping[str, Any], Mapping[str, Any]] = field(default=_SPLIT_WORD)
    in_files: bool = False


KNOWN = {
    "cifar10": Known("CIFAR10", "60,000 small color photographs in 10 classes, 32x32", _TRAIN_FLAG),
    "cifar100": Known("CIFAR100", "60,000 small color photographs in 100 classes, 32x32", _TRAIN_FLAG),
    "country211": Known("Country211", "52,750 photographs from 211 countries; needs data.size", in_files=True),
    "dtd": Known("DTD", "3,760 photographs of 47 textures; needs data.size", in_files=True),
    "fashion_mnist": Known("FashionMNIST", "70,000 grey pictures of clothes in 10 classes, 28x28", _TRAIN_FLAG),
    "fgvc_aircraft": Known(
        "FGVCAircraft",
        "10,000 photographs of 100 kinds of aircraft; needs data.size",
        ({"split": "trainval"}, {"split": "test"}),
        in_files=True,
    ),
    "flowers102": Known("Flowers102", "7,169 photographs of 102 flowers; needs data.size", in_files=True),
    "food101": Known("Food101", "101,000 photographs of 101 dishes; needs data.size", in_files=True),
    "imagenette": Known(
        "Imagenette",
        "13,394 ImageNet photographs in 10 easy classes; needs data.size",
        ({"split": "train"}, {"split": "val"}),
        in_files=True,
    ),
    "kmnist": Known("KMNIST", "70,000 grey handwritten Japanese characters in 10 classes, 28x28", _TRAIN_FLAG),
    "mnist": Known("MNIST", "70,000 grey handwritten digits, 28x28", _TRAIN_FLAG),
    "stl10": Known("STL10", "13,000 color photographs in 10 classes, 96x96"),
    "svhn": Known("SVHN", "99,289 color photographs of house-number digits, 32x32"),
    "usps": Known("USPS", "9,298 grey handwritten digits, 16x16", _TRAIN_FLAG),
}


def load_torchvision(name: str, root: Path, options: Options) -> Dataset:
    """Load a set by its name in `KNOWN`: the training part is for training, the test part is private.

    The files are looked for under `root`, where torchvision itself would put them, and downloaded if missing.

    Raises:
        SeepageError: When the files are not there and cannot be downloaded, or are damaged.
    """
    known = KNOWN[name]
    if known.in_files and options.size is None:
        raise SeepageError(f"the images of {name!r} have many sizes; {RESIZE}")
    parts = [_open(name, known, root, arguments) for arguments in known.splits]
    source = f"{name} as torchvision downloads it: {known.about.removesuffix('; needs data.size')}"
    sizes = [len(part) for part in parts]
    train, private = torch.arange(sizes[0]), torch.arange(sizes[0], sum(sizes))
    if known.in_files:
        return _from_files(name, source, root, parts, train, private, options)
    images = torch.cat([_pixels(part) for part in parts])
    labels = torch.cat([_targets(part) for part in parts])
    classes = check_labels(labels, _class_names(parts[0]), name)
    return ArrayDataset(name, source, images, labels, classes, train, private, options.size, options.channels)


def _open(name: str, known: Known, root: Path, arguments: Mapping[str, Any]) -> Any:
    """A torchvision data set; a download is tried only after the files were not found."""
    from torchvision import datasets

    make = getattr(datasets, known.made_by)
    # The files' paths in place of their pixels: this package decodes, with its own limits.
    extra = {"loader": str} if known.in_files else {}
    with suppress(Exception):  # Each set says in its own way that its files are missing.
        return make(root, download=False, **arguments, **extra)
    try:
        root.mkdir(parents=True, exist_ok=True)
        return make(root, download=True, **arguments, **extra)
    except Exception as error:  # Whatever torchvision, the network or a damaged file comes up with.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise SeepageError(
            f"torchvision can neither load {name!r} from {root} nor download it ({reason[:200]}); "
            "get the files on a machine with network and set SEEPAGE_DATA to their folder, or pass --data FILE.npz"
        ) from error


def _pixels(part: Any) -> Tensor:
    """A part's images as uint8 `[N, C, H, W]`; torchvision keeps them as [N, H, W], [N, H, W, C] or [N, C, H, W]."""
    images = torch.as_tensor(np.asarray(part.data))
    if images.ndim == 3:
        return images.unsqueeze(1)
    return images if images.shape[1] == 3 else images.permute(0, 3, 1, 2).contiguous()


def _targets(part: Any) -> Tensor:
    return torch.as_tensor(np.asarray(part.targets if hasattr(part, "targets") else part.labels)).long()


def _class_names(part: Any) -> list[str] | None:
    """Class names where torchvision has them; where it has synonyms, the first."""
    names = getattr(part, "classes", None)
    return [name if isinstance(name, str) else name[0] for name in names] if names else None


def _from_files(
    name: str, source: str, root: Path, parts: list[Any], train: Tensor, private: Tensor, options: Options
) -> FileDataset:
    examples = [part[index] for part in parts for index in range(len(part))]
    labels = torch.tensor([label for _, label in examples])
    classes = check_labels(labels, _class_names(parts[0]), name)
    size = options.size or 0
    files = tuple(str(Path(path).absolute()) for path, _ in examples)
    shape = (options.channels or 3, size, size)
    return FileDataset(name, source, root.absolute(), files, labels, classes, shape, train, private, options.size)
