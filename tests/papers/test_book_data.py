"""The script that makes the book's data files, on archives of the authors' layout with few images."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers.scripts import script

from seepage.federation import data

DRAW = np.random.default_rng(0)


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(("name", "labels"), [("cifar10", 1), ("cifar100", 2)])
def test_cifar(name: str, labels: int, tmp_path: Path) -> None:
    pixels, classes = DRAW.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), np.array([1, 0, 1, 1], np.uint8)
    coarse = np.full((4, labels - 1), 9, np.uint8)  # which is no class here
    rows = np.concatenate([coarse, classes[:, None], pixels.reshape(4, -1)], axis=1).tobytes()
    files = ("data_batch_1.bin", "test_batch.bin", "batches.meta.txt")
    if labels == 2:
        files = ("train.bin", "test.bin", "fine_label_names.txt")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for file, content in zip(files, (rows, rows[: len(rows) // 2], b"cat\ndog\n"), strict=True):
            add(tar, f"cifar-binary/{file}", content)
    script("book_data").main([name, str(tmp_path / "a.tar.gz"), str(tmp_path / "out.npz"), "--each", "2"])
    found = np.load(tmp_path / "out.npz")
    assert found["y_train"].tolist() == [1, 0, 1]
    assert found["y_test"].tolist() == [1, 0]
    assert (found["x_train"] == pixels[:3].transpose(0, 2, 3, 1)).all()
    loaded = data.load(str(tmp_path / "out.npz"))
    assert (len(loaded), loaded.input_shape, loaded.classes) == (5, (3, 32, 32), ("cat", "dog"))


def test_mnist(tmp_path: Path) -> None:
    pixels, classes = DRAW.integers(0, 256, (3, 28, 28), dtype=np.uint8), bytes([7, 0, 9])
    for part, count in (("train", 3), ("t10k", 2)):
        for what, content in (
            ("images-idx3", bytes(16) + pixels[:count].tobytes()),
            ("labels-idx1", bytes(8) + classes[:count]),
        ):
            (tmp_path / f"{part}-{what}-ubyte.gz").write_bytes(gzip.compress(content))
    script("book_data").main(["mnist", str(tmp_path), str(tmp_path / "out.npz")])
    found = np.load(tmp_path / "out.npz")
    assert (found["x_train"] == pixels).all()
    assert [found["y_train"].tolist(), found["y_test"].tolist()] == [[7, 0, 9], [7, 0]]
    assert data.load(str(tmp_path / "out.npz")).input_shape == (1, 28, 28)


def test_tiny_imagenet(tmp_path: Path) -> None:
    shades, lines = {"val_0.JPEG": 40, "val_1.JPEG": 200, "val_2.JPEG": 90}, []
    with zipfile.ZipFile(tmp_path / "tiny.zip", "w") as zipped:
        for (name, shade), synset in zip(shades.items(), ("n2", "n1", "n2"), strict=True):
            held = io.BytesIO()
            Image.new("L", (64, 64), shade).save(held, "JPEG")  # some of them are grey
            zipped.writestr(f"tiny-imagenet-200/val/images/{name}", held.getvalue())
            lines.append(f"{name}\t{synset}\t0\t0\t63\t63\n")
        zipped.writestr("tiny-imagenet-200/val/val_annotations.txt", "".join(lines))
    script("book_data").main(["tiny_imagenet", str(tmp_path / "tiny.zip"), str(tmp_path / "out.npz"), "--each", "1"])
    found = np.load(tmp_path / "out.npz")
    assert found["y"].tolist() == [1, 0]
    assert found["classes"].tolist() == ["n1", "n2"]
    assert abs(found["x"].astype(int).mean((1, 2, 3)) - [40, 200]).max() < 2
    assert data.load(str(tmp_path / "out.npz")).input_shape == (3, 64, 64)
