"""torchvision's sets without a network: files in torchvision's own formats are made on the fly."""

import hashlib
import inspect
import struct
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seepage.errors import SeepageError
from seepage.federation.data import DATA, ArrayDataset, load
from seepage.federation.data.torchvision_sets import TorchvisionSet

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


def write_mnist(root: Path, folder: str = "MNIST") -> dict[str, np.ndarray]:
    """Five training and three test images in the idx format, as torchvision unpacks it."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    images = {}
    for part, count in (("train", 5), ("t10k", 3)):
        images[part] = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        head = struct.pack(">iiii", 2051, count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + images[part].tobytes())
        labels = bytes(range(count))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, count) + labels)
    return images


KNOWN = {name: entry.make for name, entry in DATA.items() if entry.facts["origin"] == "downloaded by torchvision"}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_torchvision_takes_what_it_is_called_with(name: str) -> None:
    from torchvision import datasets

    known = KNOWN[name]
    assert isinstance(known, TorchvisionSet)
    assert known.name == name
    for arguments in known.splits:
        bound = inspect.signature(getattr(datasets, known.made_by)).bind("root", download=False, **arguments)
        assert "kwargs" not in bound.arguments
    assert known.splits[0] != known.splits[1]
    assert name in DATA


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_train_is_for_training_and_test_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
) -> None:
    images = write_mnist(tmp_path, folder)
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    data = load(name, split=0.9)
    assert isinstance(data, ArrayDataset)
    assert data.train.tolist() == [0, 1, 2, 3, 4]
    assert data.private.tolist() == [5, 6, 7]
    assert data.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert len(data.classes) == 10
    private = data.batch(data.private).inputs
    assert np.allclose(private[:, 0].numpy() * 255, images["t10k"])


def test_root_goes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "here")
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "there"))
    assert load("mnist", root=tmp_path / "here", size=16, channels=3).input_shape == (3, 16, 16)


def test_damaged_files_are_told(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").write_bytes(b"\0\0")
    with pytest.raises(SeepageError, match="neither be loaded"):
        load("mnist", root=tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "mnist", "svhn"])
def test_no_network_is_one_sentence_with_a_remedy(tmp_path: Path, name: str) -> None:
    with pytest.raises(SeepageError, match=r"SEEPAGE_DATA.*--data FILE\.npz") as caught:
        load(name, root=tmp_path / "new", size=32)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_both_layouts_of_color_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    pixels = RNG.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)

    class Stand:
        """What CIFAR10 and SVHN look like from outside."""

        def __init__(self, root: Path, *, download: bool, **part: Any) -> None:
            self.data = pixels if layout == "NHWC" else pixels.transpose(0, 3, 1, 2)
            self.labels = np.array([3, 1, 2, 0])

        def __len__(self) -> int:
            return 4

    monkeypatch.setattr("torchvision.datasets.SVHN", Stand)
    data = load("svhn", root=tmp_path)
    assert data.input_shape == (3, 8, 8)
    assert data.labels.tolist() == [3, 1, 2, 0] * 2
    inputs = data.batch(torch.arange(8)).inputs
    assert np.allclose(inputs[4:].numpy() * 255, pixels.transpose(0, 3, 1, 2), atol=1e-4)


def test_svhn_in_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MATLAB files with `X` [32, 32, 3, n] and `y` [n, 1], in which the digit 0 is class 10."""
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    pixels, sums = {}, {}
    for part, count in (("train", 5), ("test", 3)):
        pixels[part] = RNG.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        path = tmp_path / f"{part}_32x32.mat"
        savemat(path, {"X": pixels[part], "y": np.array([[10], [1], [2], [9], [10]][:count], dtype=np.uint8)})
        sums[part] = [*SVHN.split_list[part][:2], hashlib.md5(path.read_bytes()).hexdigest()]
    with pytest.raises(SeepageError, match="neither be loaded"):  # torchvision takes files of its own digest only
        load("svhn", root=tmp_path)
    monkeypatch.setattr(SVHN, "split_list", sums)
    data = load("svhn", root=tmp_path)
    assert data.labels.tolist() == [0, 1, 2, 9, 0, 0, 1, 2]
    assert (data.train.tolist(), data.private.tolist()) == ([0, 1, 2, 3, 4], [5, 6, 7])
    private = data.batch(data.private).inputs.numpy() * 255
    assert np.allclose(private, pixels["test"].transpose(3, 2, 0, 1), atol=1e-4)
