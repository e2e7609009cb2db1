"""Data sets from an `.npz` file of plain arrays. The file may come from anyone: nothing in it is trusted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.base.nn import NO_TARGET
from seepage.base.npz import PICKLE_REMEDY, read_arrays
from seepage.base.registry import datasets
from seepage.base.rounding import outward
from seepage.base.storage import pickle_refused
from seepage.errors import SeepageError
from seepage.federation.data.arrays import ArrayDataset
from seepage.federation.data.dataset import Options, check_labels, divide, number_words
from seepage.federation.data.tables import TableDataset
from seepage.federation.data.targets import Targets, value_names
from seepage.federation.types import Batch

MAX_BYTES = 8 * 2**30
"""Largest size in bytes (8 GiB) of the unpacked arrays, which are held in memory."""
OF_BATCH = {"inputs": "x", "labels": "y"}
"""What `Batch` calls the two arrays, and what they are called here."""

Array = NDArray[Any]


@datasets.register(
    "npz", about="arrays x and y, or x_train, y_train, x_test, y_test", suffix=(".npz",), origin="named by its path"
)
def load_npz(options: Options, *, path: Path, as_is: bool = False) -> ArrayDataset | TableDataset:
    """Load images, or rows of a table, and labels from an `.npz` file.

    The file holds `x` and `y` (or `inputs` and `labels`, as `Batch` calls them), or `x_train`, `y_train`, `x_test`,
    `y_test`, and maybe `classes` (names). Images are
    uint8, or float in [0, 1], shaped `[N, H, W]`, `[N, H, W, C]` or `[N, C, H, W]` with C = 1 or 3; rows of a table are
    float in [0, 1], shaped `[N, d]`, as the network reads them. Labels are
    integers, or words. Labels that are -1 everywhere mean: no labels; then there is one class, `unlabelled`. Floats
    `[N]` or `[N, k]` are values to be predicted (`client.loss = "mse"`), integers `[N, H, W]` a class at each pixel,
    -100 where there is none.

    Args:
        options: Size, channels and split.
        path: Where it lies.
        as_is: Examples are no images but series, signals or stacks, and keep the shape that they have; floats in
            [0, 1].

    Raises:
        SeepageError: For a file that is cut short, needs pickle, lacks arrays, or holds anything else than the above.
    """
    arrays, read = _read(path), _as_they_are if as_is else _images
    if {"x", "y"} <= set(arrays):
        images, labels = read(arrays["x"], f"{path}: x"), arrays["y"]
        sizes = [len(images)]
    else:
        parts = [read(arrays[name], f"{path}: {name}") for name in ("x_train", "x_test")]
        _check_alike(parts, path)
        images, sizes = torch.cat(parts), [len(part) for part in parts]
        labels = _joined(arrays["y_train"], arrays["y_test"], path)
    _check_lengths(arrays, path)
    train, private = torch.arange(sizes[0]), torch.arange(sizes[0], sum(sizes))
    if len(sizes) == 1:
        train, private = divide(sizes[0], options, path.stem)
    targets, names, note = None, arrays.get("classes"), ""
    if labels.dtype.kind == "f":
        targets, classes = _values(labels, names, train, path)
        note = ", trained towards values"
    elif labels.ndim == 3 and labels.dtype.kind in "iu":
        targets, classes = _maps(labels, names, images, options, path)
        note = ", each with a map of classes"
    else:
        numbers, classes, note = _labels(labels, names, path)
    numbers = numbers if targets is None else targets.parts
    if images.ndim == 2 or as_is:
        source = f"{len(images)} {'examples' if as_is else 'rows'} of the file {path.name}{note}"
        return TableDataset(path.stem, source, images, numbers, classes, train, private, targets=targets)
    source = f"{len(images)} images of the file {path.name}{note}"
    return ArrayDataset(
        path.stem, source, images, numbers, classes, train, private, options.size, options.channels, targets
    )


def load_tokens(path: Path, vocabulary: int) -> Batch:
    """Texts and codes: `x` integers `[N, L]`, and `y` a class or a value `[N]`, or a next token at each `[N, L]`.

    Args:
        path: An `.npz` file.
        vocabulary: How many tokens the network knows.

    Raises:
        SeepageError: For a file that holds anything else.
    """
    arrays = _read(path)
    if not {"x", "y"} <= set(arrays):
        raise SeepageError(f"{path} lacks x or y; save the token numbers of texts as x [N, L], and their classes as y")
    x, y = arrays["x"], arrays["y"]
    whole = x.dtype.kind in "iu" and y.dtype.kind in "iuf" and x.ndim == 2 and x.size
    if not whole or y.shape not in ((len(x),), (len(x), 1), x.shape) or not np.isfinite(y).all():
        raise SeepageError(
            f"{path} has x {x.dtype} {x.shape} and y {y.dtype} {y.shape}; save texts as whole token numbers x [N, L], "
            "with a class or a value y [N] or a next token at each y [N, L]"
        )
    if x.min() < 0 or x.max() >= vocabulary:
        raise SeepageError(
            f"{path} has tokens from {x.min()} to {x.max()} and the network knows {vocabulary}, from 0; save the "
            "numbers that the client's tokenizer gave"
        )
    labels = y.astype(np.float32 if y.dtype.kind == "f" else np.int64)
    return Batch(torch.from_numpy(x.astype(np.int64)), torch.from_numpy(labels))


def load_shaped(path: Path, input_shape: tuple[int, ...]) -> Batch | None:
    """Examples of any shape that a network takes, such as series, signals and stacks: `x` `[N, *shape]` and `y`.

    Args:
        path: An `.npz` file.
        input_shape: Of one example, which decides.

    Returns:
        None where the examples are of another shape or are no floats.

    Raises:
        SeepageError: For a file that holds no such arrays, NaN, or not one label for each example.
    """
    arrays = _read(path)
    if not {"x", "y"} <= set(arrays) or arrays["x"].shape[1:] != input_shape or arrays["x"].dtype.kind != "f":
        return None
    x, y = arrays["x"], arrays["y"]
    if y.dtype.kind not in "iuf" or y.shape[:1] != x.shape[:1] or not np.isfinite(x).all() or not len(x):
        raise SeepageError(f"{path} has x {x.shape} and y {y.dtype} {y.shape}; save finite x and a label of each, y")
    labels = y.astype(np.int64) if y.dtype.kind in "iu" else y.astype(np.float32)
    return Batch(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)), torch.from_numpy(labels))


def _joined(train: Array, test: Array, path: Path) -> Array:
    """The labels of both parts; those of single numbers in one row."""
    flat = [part.reshape(-1) if part.size == len(part) else part for part in (train, test) if part.ndim]
    if len(flat) < 2 or flat[0].shape[1:] != flat[1].shape[1:]:
        raise SeepageError(
            f"{path}: y_train has the shape {train.shape} and y_test {test.shape}; save both with one label, or one "
            "map of one size, for each image"
        )
    return np.concatenate(flat)


def _values(labels: Array, names: Array | None, train: Tensor, path: Path) -> tuple[Targets, tuple[str, ...]]:
    """Numbers `[N]` or `[N, k]` with a point, to be predicted as they are."""
    if not labels.size:
        raise SeepageError(f"{path}: y holds no values; save a number for each image")
    values = torch.from_numpy(labels.reshape(len(labels), -1).astype(np.float64))
    return Targets.of_values(values, train, f"{path}: y"), value_names(values.shape[1], _names(names, path))


def _maps(
    labels: Array, names: Array | None, images: Tensor, options: Options, path: Path
) -> tuple[Targets, tuple[str, ...]]:
    """Maps `[N, H, W]` of whole numbers: a class at each pixel, -100 where there is none."""
    shape = (options.size, options.size) if options.size is not None else tuple(images.shape[2:])
    if options.size is not None and shape != labels.shape[1:]:
        raise SeepageError(
            f"{path}: the maps are {labels.shape[1]} x {labels.shape[2]}, and a map of classes is not resized with its "
            "image; leave out data.size, or save both in the size you want"
        )
    maps = torch.from_numpy(labels.astype(np.int64))
    known = maps[maps != NO_TARGET]
    if not len(known):
        raise SeepageError(f"{path}: no pixel of the maps has a class; number the classes from 0")
    return Targets.of_maps(maps), check_labels(known, _names(names, path), str(path))


def _read(path: Path) -> Mapping[str, Array]:
    """The arrays that make a data set, read only after every header was found to tell the truth."""
    _refuse_content(path)
    arrays = read_arrays(path, most=MAX_BYTES, choose=lambda found: _wanted(set(found), path))
    return {OF_BATCH.get(name, name): array for name, array in arrays.items()}


def _wanted(found: set[str], path: Path) -> list[str]:
    extra = sorted(found & {"classes"})
    for names in (["x", "y"], list(OF_BATCH), ["x_train", "y_train", "x_test", "y_test"]):
        if set(names) <= found:
            return names + extra
    raise SeepageError(
        f"{path} holds the arrays {', '.join(sorted(found)[:8]) or '(none)'}, and seepage needs x and y (or, as in "
        "Batch, inputs and labels), or x_train, y_train, x_test and y_test; save them under these names"
    )


def _refuse_content(path: Path) -> None:
    """Raise for a file that starts like a pickle or a lone array, whatever its name says."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise SeepageError(f"cannot read {path} ({error}); check the path") from error
    if start[:1] == b"\x80":
        raise pickle_refused(str(path), PICKLE_REMEDY)
    if start.startswith(b"\x93NUMPY"):
        raise SeepageError(f"{path} holds one array without labels; save images and labels with numpy.savez")


def _images(array: Array, where: str) -> Tensor:
    """Images as `[N, C, H, W]`, uint8 or float32 in [0, 1]; rows of a table as `[N, d]`, float32 in [0, 1]."""
    rows = array.ndim == 2 and array.dtype.kind == "f" and array.size > 0
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[-1] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if not rows and (array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape):
        raise SeepageError(
            f"{where} has the shape {array.shape}; save images as [N, H, W], [N, H, W, C] or [N, C, H, W] "
            "with 1 or 3 channels, or rows of a table as floats [N, d]; of series and signals add --set data.as_is=true"
        )
    if array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array))
    return _as_they_are(array, where)


def _as_they_are(array: Array, where: str) -> Tensor:
    """Examples `[N, ...]` of any shape, float32 in [0, 1]."""
    if not np.issubdtype(array.dtype, np.floating) or array.ndim < 2 or not array.size:
        raise SeepageError(f"{where} has the type {array.dtype}; save images as uint8, or as floats in [0, 1]")
    if not (array.min() >= 0 and array.max() <= 1):
        with np.errstate(over="ignore"):  # a number beyond float32's is infinite to a network
            unknown = np.flatnonzero(~np.isfinite(array.astype(np.float32)).reshape(len(array), -1).all(1))
        if len(unknown):
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            what = "NaN" if np.isnan(array).any() else "infinity"
            raise SeepageError(
                f"{where} holds {what} in example {unknown[0]}{more}; correct or leave out these examples"
            )
        low, high = outward(float(array.min()), float(array.max()))
        high = low + 1.0 if high == low else high
        undone = f"{-low / (high - low):.6g},{1 / (high - low):.6g}"
        raise SeepageError(
            f"{where} has values from {array.min():g} to {array.max():g}, and these must lie in [0, 1]; save "
            f"(x - {low:g}) / {high - low:g}, and add --normalize={undone}, which undoes that in front of the network"
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
        if images in arrays and not _one_each(len(arrays[images]), arrays[labels]):
            remedy = "save one class number, one row of values, or one map for each image"
            raise SeepageError(
                f"{path}: {images} has {len(arrays[images])} images and {labels} has the shape "
                f"{arrays[labels].shape} and the type {arrays[labels].dtype}; "
                f"{_as_maps(len(arrays[images]), arrays[labels], labels) or remedy}"
            )


def _as_maps(count: int, labels: Array, name: str) -> str:
    """What makes maps of arrays that are nearly such; an empty string for others."""
    lone = next((axis for axis in (1, -1) if labels.ndim == 4 and labels.shape[axis] == 1), None)
    if not labels.ndim or len(labels) != count or (labels.ndim != 3 and lone is None):
        return ""
    whole = "" if labels.dtype.kind in "iu" else ".astype(int)"
    axis = "" if lone is None else f".squeeze({lone})"
    return f"save maps of class numbers as whole numbers [N, H, W], here {name}{axis}{whole}" if axis or whole else ""


def _one_each(count: int, labels: Array) -> bool:
    """Whether labels are one number, one row of values, or one map for each of so many images."""
    if labels.ndim == 3:
        return len(labels) == count and labels.dtype.kind in "iu" and 0 not in labels.shape
    if labels.ndim == 2 and labels.dtype.kind == "f":
        return len(labels) == count
    return labels.size == count and labels.ndim in (1, 2)


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
    return numbers, check_labels(numbers, _names(names, path), str(path)), ""


def _names(names: Array | None, path: Path) -> list[str] | None:
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise SeepageError(f"{path}: classes must be a list of names; save it with numpy.array([...names])")
    return [_text(word) for word in names]


def _text(word: Any) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)
