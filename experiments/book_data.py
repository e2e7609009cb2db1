"""The data files of the results book, from the archives that their authors publish.

    python experiments/book_data.py cifar10 cifar-10-binary.tar.gz cifar10.npz
    python experiments/book_data.py cifar100 cifar-100-binary.tar.gz cifar100.npz
    python experiments/book_data.py mnist MNIST_FOLDER mnist.npz                    # with the four .gz files
    python experiments/book_data.py tiny_imagenet tiny-imagenet-200.zip tiny_imagenet_64.npz --each 8

Archives of plain bytes are read, and no pickle. `--each N` keeps the first N images of each class and part. The book's
own files hold fewer images than the archives, as its pages say, so that another draw gives other numbers.
"""

import argparse
import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]
Part = tuple[Bytes, Labels]


def cifar(archive: Path, labels: int) -> tuple[dict[str, Part], list[str]]:
    """Images `[n, 32, 32, 3]` of the binary version: so many bytes of labels, the last of them the class, and 3,072."""
    with tarfile.open(archive) as tar:
        files = {Path(one.name).name: tar.extractfile(one) for one in tar if one.isfile()}
        read = {name: b"" if file is None else file.read() for name, file in files.items()}

    def part(names: list[str]) -> Part:
        rows = np.frombuffer(b"".join(read[name] for name in names), np.uint8).reshape(-1, labels + 3072)
        return rows[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, labels - 1].astype(np.int64)

    train = sorted(name for name in read if name.startswith("data_batch") or name == "train.bin")
    test = [name for name in read if name in ("test_batch.bin", "test.bin")]
    names = next(read[name] for name in ("fine_label_names.txt", "batches.meta.txt") if name in read)
    return {"train": part(train), "test": part(test)}, names.decode().split()


def mnist(folder: Path) -> tuple[dict[str, Part], list[str]]:
    """Images `[n, 28, 28]` of the idx files, whose headers are 16 and 8 bytes long."""

    def part(name: str) -> Part:
        pixels, labels = (
            np.frombuffer(gzip.decompress((folder / f"{name}-{what}-ubyte.gz").read_bytes()), np.uint8)
            for what in ("images-idx3", "labels-idx1")
        )
        return pixels[16:].reshape(-1, 28, 28), labels[8:].astype(np.int64)

    return {"train": part("train"), "test": part("t10k")}, [str(digit) for digit in range(10)]


def tiny_imagenet(archive: Path) -> tuple[dict[str, Part], list[str]]:
    """The validation images `[n, 64, 64, 3]`, by their place in the sorted list of synsets."""
    with zipfile.ZipFile(archive) as zipped:
        (notes,) = (name for name in zipped.namelist() if name.endswith("val/val_annotations.txt"))
        rows = [line.split("\t")[:2] for line in zipped.read(notes).decode().splitlines()]
        synsets = sorted({synset for _, synset in rows})
        place = notes.removesuffix("val_annotations.txt")
        files = (zipped.read(f"{place}images/{name}") for name, _ in rows)
        images = np.stack([np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])
    return {"": (images, np.array([synsets.index(synset) for _, synset in rows]))}, synsets


READERS = {
    "cifar10": lambda path: cifar(path, labels=1),
    "cifar100": lambda path: cifar(path, labels=2),
    "mnist": mnist,
    "tiny_imagenet": tiny_imagenet,
}


def first_of_each(labels: Labels, count: int) -> NDArray[np.bool_]:
    """Which examples are among the first so many of their class."""
    rank = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange((labels == label).sum())
    return rank < count


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=READERS)
    parser.add_argument("archive", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--each", type=int, help="images of each class in each part; default: all")
    asked = parser.parse_args(arguments)
    parts, classes = READERS[asked.data](asked.archive)
    arrays = {"classes": np.array(classes)}
    for name, (images, labels) in parts.items():
        kept = slice(None) if asked.each is None else first_of_each(labels, asked.each)
        end = f"_{name}" if name else ""
        arrays |= {f"x{end}": np.ascontiguousarray(images[kept]), f"y{end}": labels[kept]}
    np.savez_compressed(asked.out, **arrays)
    print(f"{asked.out}: " + ", ".join(f"{name} {array.shape}" for name, array in arrays.items()))


if __name__ == "__main__":
    main()
