"""Data sets from an `.npz` file of plain arrays. The file may come from anyone: nothing in it is trusted."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from seepage.core.storage import pickle_refused
from seepage.core.zip_safety import check_member
from seepage.data.arrays import ArrayDataset
from seepage.data.dataset import Options, check_labels, divide, number_words
from seepage.errors import SeepageError
from seepage.registry import datasets

MAX_BYTES = 8 * 2**30
PICKLE_REMEDY = "save plain arrays with numpy.savez"

Array = NDArray[Any]


@datasets.register(
    "npz", about="arrays x and y, or x_train, y_train, x_test, y_test", suffix=(".npz",), origin="named by its path"
)
def load_npz(options: Options, *, path: Path) -> ArrayDataset:
    """Load images and labels from an `.npz` file.

    The file holds `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test`, and maybe `classes` (names). Images are
    uint8, or float in [0, 1], shaped `[N, H, W]`, `[N, H, W, C]` or `[N, C, H, W]` with C = 1 or 3. Labels are
    integers, or words. Labels that are -1 everywhere mean: no labels; then there is one class, `unlabelled`.

    Args:
        options: Size, channels and split.
        path: Where it lies.

    Raises:
        SeepageError: For a file that is cut short, needs pickle, lacks arrays, or holds anything else than the above.
    """
    arrays = _read(path)
    if {"x", "y"} <= set(arrays):
        images, labels = _images(arrays["x"], f"{path}: x"), arrays["y"]
        sizes = [len(images)]
    else:
        parts = [_images(arrays[name], f"{path}: {name}") for name in ("x_train", "x_test")]
        _check_alike(parts, path)
        images, sizes = torch.cat(parts), [len(part) for part in parts]
        labels = np.concatenate([arrays["y_train"].reshape(-1), arrays["y_test"].reshape(-1)])
    _check_lengths(arrays, path)
    numbers, classes, note = _labels(labels, arrays.get("classes"), path)
    source = f"{len(images)} images of the file {path.name}{note}"
    train, private = _split(sizes, options, path.stem)
    return ArrayDataset(path.stem, source, images, numbers, classes, train, private, options.size, options.channels)


def _split(sizes: list[int], options: Options, name: str) -> tuple[Tensor, Tensor]:
    if len(sizes) == 1:
        return divide(sizes[0], options, name)
    return torch.arange(sizes[0]), torch.arange(sizes[0], sum(sizes))


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bytes: int


def _read(path: Path) -> Mapping[str, Array]:
    """The arrays that make a data set, read only after every header was found to tell the truth."""
    try:
        _refuse_content(path)
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) < len(archive.infolist()):  # else the one that is checked is not the one that is read
                raise SeepageError(f"{path} holds two arrays of one name; save it again with numpy.savez")
            wanted = _wanted(set(members), path)
            _check_headers(archive, {name: members[name] for name in wanted}, path)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in wanted}
    except SeepageError:
        raise
    except Exception as error:  # numpy's parser of headers raises almost anything on forged ones.
        raise SeepageError(
            f"cannot read {path} ({error}); it is damaged or no .npz file: copy it again or save it with numpy.savez"
        ) from error


def _wanted(found: set[str], path: Path) -> list[str]:
    extra = sorted(found & {"classes"})
    for names in (["x", "y"], ["x_train", "y_train", "x_test", "y_test"]):
        if set(names) <= found:
            return names + extra
    raise SeepageError(
        f"{path} holds the arrays {', '.join(sorted(found)[:8]) or '(none)'}, and seepage needs x and y, or x_train, "
        "y_train, x_test and y_test; save them under these names"
    )


def _check_headers(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], path: Path) -> None:
    """Refuse pickles, encryption, headers that promise more than the file holds, and too much data in all."""
    total = 0
    for name, info in members.items():
        check_member(info, path)
        with archive.open(info) as file:
            header = _header(file)
        if header.dtype.hasobject:
            raise pickle_refused(f"the array {name} of {path}", PICKLE_REMEDY)
        if info.file_size != header.bytes or header.dtype.itemsize == 0:
            raise SeepageError(
                f"the array {name} of {path} promises {header.bytes} bytes and has {info.file_size}; copy it again"
            )
        total += info.file_size
    if total > MAX_BYTES:
        raise SeepageError(
            f"{path} unpacks to {total / 2**30:.0f} GiB and seepage loads at most {MAX_BYTES / 2**30:.0f}; "
            "keep fewer images, or pass a folder of image files, which is read on demand"
        )


def _header(file: IO[bytes]) -> _Header:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    count = 1
    for side in shape:
        count *= side
    return _Header(shape, dtype, file.tell() + count * dtype.itemsize)


def _refuse_content(path: Path) -> None:
    """Raise for a file that starts like a pickle or a lone array, whatever its name says."""
    with path.open("rb") as file:
        start = file.read(8)
    if start[:1] == b"\x80":
        raise pickle_refused(str(path), PICKLE_REMEDY)
    if start.startswith(b"\x93NUMPY"):
        raise SeepageError(f"{path} holds one array without labels; save images and labels with numpy.savez")


def _images(array: Array, where: str) -> Tensor:
    """Images as `[N, C, H, W]`, uint8 or float32 in [0, 1]."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[-1] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise SeepageError(
            f"{where} has the shape {array.shape}; save images as [N, H, W], [N, H, W, C] or [N, C, H, W] "
            "with 1 or 3 channels"
        )
    if array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array))
    if not np.issubdtype(array.dtype, np.floating):
        raise SeepageError(f"{where} has the type {array.dtype}; save images as uint8, or as floats in [0, 1]")
    if not (array.min() >= 0 and array.max() <= 1):
        raise SeepageError(
            f"{where} has values from {array.min():g} to {array.max():g}, and images must lie in [0, 1]; "
            "scale them before saving, or save them as uint8"
        )
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _check_alike(parts: list[Tensor], path: Path) -> None:
    train, test = parts
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise SeepageError(
            f"{path}: x_train and x_test have images of different kinds ({tuple(train.shape[1:])} {train.dtype} "
            f"and {tuple(test.shape[1:])} {test.dtype}); save both with one shape and type"
        )


def _check_lengths(arrays: Mapping[str, Array], path: Path) -> None:
    for images, labels in (("x", "y"), ("x_train", "y_train"), ("x_test", "y_test")):
        if images in arrays and (len(arrays[images]) != arrays[labels].size or arrays[labels].ndim not in (1, 2)):
            raise SeepageError(
                f"{path}: {images} has {len(arrays[images])} images and {labels} has the shape "
                f"{arrays[labels].shape}; save one class number for each image"
            )


def _labels(labels: Array, names: Array | None, path: Path) -> tuple[Tensor, tuple[str, ...], str]:
    """Class numbers `[N]`, class names, and a remark for the source."""
    flat = labels.reshape(-1)
    if flat.dtype.kind in "US":
        numbers, classes = number_words([_text(word) for word in flat])
        return numbers, classes, ""
    if flat.dtype.kind not in "iu":
        raise SeepageError(f"{path}: the labels have the type {flat.dtype}; save them as whole numbers")
    if bool((flat == -1).all()):
        return torch.zeros(len(flat), dtype=torch.int64), ("unlabelled",), ", which has no labels"
    numbers = torch.from_numpy(flat.astype(np.int64))
    words = None if names is None else [_text(word) for word in _names(names, path)]
    return numbers, check_labels(numbers, words, str(path)), ""


def _names(names: Array, path: Path) -> Array:
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise SeepageError(f"{path}: classes must be a list of names; save it with numpy.array([...names])")
    return names


def _text(word: Any) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)
