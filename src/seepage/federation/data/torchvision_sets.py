"""Data sets that torchvision knows by name and downloads itself."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import torch
from torch import Tensor

from seepage.base.registry import FETCHED, datasets
from seepage.errors import SeepageError
from seepage.federation.data.arrays import ArrayDataset
from seepage.federation.data.dataset import Dataset, Options, check_labels

_TRAIN_FLAG = ({"train": True}, {"train": False})
_SPLIT_WORD = ({"split": "train"}, {"split": "test"})


@dataclass(frozen=True)
class TorchvisionSet:
    """A set that torchvision knows: its training part is for training, its test part is private.

    Attributes:
        name: What it is called here.
        made_by: Class name in `torchvision.datasets`.
        splits: Arguments of the part to train on and of the private part.
    """

    name: str
    made_by: str
    splits: tuple[Mapping[str, Any], Mapping[str, Any]] = field(default=_SPLIT_WORD)

    def __call__(self, options: Options) -> Dataset:
        """Look for the files where torchvision itself would put them, and download them if they are missing.

        Raises:
            SeepageError: When the files are not there and cannot be downloaded, or are damaged.
        """
        root = options.root or Path(os.environ.get("SEEPAGE_DATA") or Path.home() / ".cache" / "seepage")
        parts = [_open(self, root, arguments) for arguments in self.splits]
        source = f"{self.name} as torchvision downloads it: {datasets[self.name].about}"
        sizes = [len(part) for part in parts]
        train, private = torch.arange(sizes[0]), torch.arange(sizes[0], sum(sizes))
        images = torch.cat([_pixels(part) for part in parts])
        numbers = [part.targets if hasattr(part, "targets") else part.labels for part in parts]
        labels = torch.cat([torch.as_tensor(np.asarray(own)).long() for own in numbers])
        classes = check_labels(labels, _class_names(parts[0]), self.name)
        return ArrayDataset(self.name, source, images, labels, classes, train, private, options.size, options.channels)


cifar10 = datasets.register("cifar10", about="60,000 small color photographs in 10 classes, 32x32", origin=FETCHED)(
    TorchvisionSet("cifar10", "CIFAR10", _TRAIN_FLAG)
)
cifar100 = datasets.register("cifar100", about="60,000 small color photographs in 100 classes, 32x32", origin=FETCHED)(
    TorchvisionSet("cifar100", "CIFAR100", _TRAIN_FLAG)
)
fashion_mnist = datasets.register(
    "fashion_mnist", about="70,000 grey pictures of clothes in 10 classes, 28x28", origin=FETCHED
)(TorchvisionSet("fashion_mnist", "FashionMNIST", _TRAIN_FLAG))
mnist = datasets.register("mnist", about="70,000 grey handwritten digits, 28x28", origin=FETCHED)(
    TorchvisionSet("mnist", "MNIST", _TRAIN_FLAG)
)
svhn = datasets.register("svhn", about="99,289 color photographs of house-number digits, 32x32", origin=FETCHED)(
    TorchvisionSet("svhn", "SVHN")
)


def _open(known: TorchvisionSet, root: Path, arguments: Mapping[str, Any]) -> Any:
    """A torchvision data set; a download is tried only after the files were not found."""
    from torchvision import datasets as shipped

    make = getattr(shipped, known.made_by)
    with suppress(Exception):  # Each set says in its own way that its files are missing.
        return make(root, download=False, **arguments)
    try:
        root.mkdir(parents=True, exist_ok=True)
        return make(root, download=True, **arguments)
    except Exception as error:  # Whatever torchvision, the network or a damaged file comes up with.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        # What urllib says of a missing network is of interest to nobody.
        lost = isinstance(error, URLError) or "urlopen error" in str(error)
        why = "there is no network" if lost else reason[:200]
        raise SeepageError(
            f"{known.name!r} can neither be loaded from SEEPAGE_DATA, the folder of data sets, nor downloaded ({why}); "
            "get the files on a machine with a network and set SEEPAGE_DATA to their folder, or pass --data FILE.npz"
        ) from error


def _pixels(part: Any) -> Tensor:
    """A part's images as uint8 `[N, C, H, W]`; torchvision keeps them as [N, H, W], [N, H, W, C] or [N, C, H, W]."""
    images = torch.as_tensor(np.asarray(part.data))
    if images.ndim == 3:
        return images.unsqueeze(1)
    return images if images.shape[1] == 3 else images.permute(0, 3, 1, 2).contiguous()


def _class_names(part: Any) -> list[str] | None:
    """Class names where torchvision has them; where it has synonyms, the first."""
    names = getattr(part, "classes", None)
    return [name if isinstance(name, str) else name[0] for name in names] if names else None
