"""Arrays from an `.npz` file, honest and forged ones."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seepage.errors import SeepageError
from seepage.federation.data import load

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])
ALL = torch.arange(6)


def save(folder: Path, **arrays: Any) -> str:
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [(layout, "uint8") for layout in ("NHWC", "NCHW", "NHW", "NHW1", "N1HW")]
    + [("NHW", dtype) for dtype in ("float32", "float64", "float16", ">f4")],
)
def test_every_layout_and_type_gives_the_same_pixels(tmp_path: Path, layout: str, dtype: str) -> None:
    grey = "C" not in layout
    images = IMAGES[..., :1] if grey else IMAGES
    oracle = images.transpose(0, 3, 1, 2) / 255
    stored = images if dtype == "uint8" else (images / 255).astype(dtype)
    stored = {"NCHW": stored.transpose(0, 3, 1, 2), "N1HW": stored.transpose(0, 3, 1, 2), "NHW": stored[..., 0]}.get(
        layout, stored
    )
    data = load(save(tmp_path, x=stored, y=LABELS))
    assert data.input_shape == (1 if grey else 3, 5, 4)
    assert np.allclose(data.batch(ALL).inputs.numpy(), oracle, atol=1e-3 if dtype == "float16" else 1e-6)
    assert data.labels.tolist() == LABELS.tolist()
    assert data.classes == ("0", "1", "2")


def test_train_and_test_arrays_are_train_and_private(tmp_path: Path) -> None:
    path = save(tmp_path, x_train=IMAGES[:4], y_train=LABELS[:4], x_test=IMAGES[4:], y_test=LABELS[4:])
    data = load(path, split=0.9, seed=5)
    assert data.train.tolist() == [0, 1, 2, 3]
    assert data.private.tolist() == [4, 5]
    assert np.allclose(data.batch(data.private).inputs.numpy() * 255, IMAGES[4:].transpose(0, 3, 1, 2))


def test_names_of_classes(tmp_path: Path) -> None:
    assert load(save(tmp_path, x=IMAGES, y=LABELS, classes=["a", "b", "c", "d"])).classes == ("a", "b", "c", "d")
    assert load(save(tmp_path, x=IMAGES, y=LABELS, classes=np.array([b"a", b"b", b"c"]))).classes == ("a", "b", "c")
    worded = load(save(tmp_path, x=IMAGES, y=["dog", "cat"] * 3))
    assert worded.classes == ("cat", "dog")
    assert worded.labels.tolist() == [1, 0] * 3


def test_labels_in_a_column_and_with_gaps(tmp_path: Path) -> None:
    data = load(save(tmp_path, x=IMAGES, y=(LABELS * 5)[:, None].astype(np.uint16)))
    assert data.labels.tolist() == (LABELS * 5).tolist()
    assert len(data.classes) == 11


def test_minus_one_everywhere_means_unlabelled(tmp_path: Path) -> None:
    data = load(save(tmp_path, x=IMAGES, y=np.full(6, -1)))
    assert data.classes == ("unlabelled",)
    assert data.labels.tolist() == [0] * 6
    assert "no labels" in data.source


def test_the_names_of_a_batch_are_names_too(tmp_path: Path) -> None:
    both = [
        load(save(tmp_path, **named)) for named in ({"x": IMAGES, "y": LABELS}, {"inputs": IMAGES, "labels": LABELS})
    ]
    assert torch.equal(both[0].images, both[1].images)
    assert both[0].labels.tolist() == both[1].labels.tolist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": IMAGES, "y": LABELS}, "holds the arrays images, y"),
        ({"x_train": IMAGES, "y_train": LABELS}, "x_test and y_test"),
        ({"x": IMAGES, "y": LABELS[:5]}, r"x has 6 images and y has the shape \(5,\)"),
        ({"x": IMAGES, "y": np.eye(6, dtype=int)}, r"y has the shape \(6, 6\)"),
        ({"x": IMAGES, "y": LABELS - 1}, "negative labels"),
        ({"x": IMAGES, "y": LABELS.astype(complex)}, "whole numbers"),
        ({"x": IMAGES, "y": LABELS, "classes": ["a", "b"]}, "only 2 classes"),
        ({"x": IMAGES, "y": LABELS, "classes": [1, 2, 3]}, "list of names"),
        ({"x": IMAGES, "y": LABELS * 10**9}, "class numbers below"),
        ({"x": IMAGES.astype(int), "y": LABELS}, "type int64"),
        ({"x": IMAGES.astype(float), "y": LABELS}, "values from 0 to 255"),
        ({"x": IMAGES / 255 - 0.1, "y": LABELS}, r"must lie in \[0, 1\]"),
        ({"x": np.full((6, 4, 4), np.nan), "y": LABELS}, "holds NaN in example 0 and 5 more"),
        ({"x": np.full((6, 4, 4), np.inf), "y": LABELS}, "holds infinity in example 0 and 5 more"),
        ({"x": np.full((6, 4, 4), -1e300), "y": LABELS}, "holds infinity in example 0 and 5 more"),
        ({"x": np.full((6, 4, 4), 7.0), "y": LABELS}, "from 7 to 7, .* save \\(x - 7\\) / 1"),
        ({"x": IMAGES[..., :2], "y": LABELS}, r"shape \(6, 5, 4, 2\)"),
        ({"x": IMAGES[:0], "y": LABELS[:0]}, r"shape \(0, 3, 5, 4\)"),
        ({"x": np.uint8(3), "y": LABELS}, r"shape \(\)"),
        ({"x": IMAGES, "y": np.float64(3)}, r"y has the shape \(\)"),
        ({"x": IMAGES[:1], "y": LABELS[:1]}, "has 1 image,"),
        ({"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:, :3], "y_test": LABELS}, "different kinds"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(SeepageError, match=message):
        load(save(tmp_path, **arrays))


class Boom:
    """Leaves a mark when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_pickles_are_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "boom"
    bad = np.array([Boom(mark), None], dtype=object)
    with pytest.raises(SeepageError, match="is a pickle file"):
        load(save(tmp_path, x=IMAGES[:2], y=bad))
    for suffix in ("pt", "pth", "pkl", "joblib", "PKL"):
        with pytest.raises(SeepageError, match="is a pickle file"):
            load(str(tmp_path / f"x.{suffix}"))
    disguised = tmp_path / "x.npz"
    disguised.write_bytes(pickle.dumps(Boom(mark)))
    with pytest.raises(SeepageError, match="is a pickle file"):
        load(str(disguised))
    assert not mark.exists()


def test_a_lone_array_is_no_data_set(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with path.open("wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(SeepageError, match="without labels"):
        load(str(path))


def forged(folder: Path, shape: str, content: bytes, *, method: int = zipfile.ZIP_DEFLATED) -> str:
    """An archive whose `x` has a header that promises `shape`."""
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    member = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + content
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(folder / "forged.npz", "w", method) as archive:
        archive.writestr("x.npy", member)
        archive.writestr("y.npy", labels.getvalue())
    return str(folder / "forged.npz")


def test_an_honest_hand_made_header_loads(tmp_path: Path) -> None:
    assert len(load(forged(tmp_path, "(6, 2, 2)", bytes(24)))) == 6


@pytest.mark.parametrize("shape", ["(6, 1000000, 1000000)", "(6, 2, 1)", "(6, -2, -2)", "(6, 2"])
def test_headers_that_lie(tmp_path: Path, shape: str) -> None:
    with pytest.raises(SeepageError, match=r"promises|cannot read"):
        load(forged(tmp_path, shape, bytes(24)))


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    """NumPy reads `x` before `x.npy`, so the one that was checked would not be the one that is read."""
    path = forged(tmp_path, "(6, 2, 2)", bytes(24))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x", bytes(24))
    with pytest.raises(SeepageError, match="two arrays of one name"):
        load(path)


def test_values_that_take_no_room_are_refused(tmp_path: Path) -> None:
    # Endless many empty strings fit in no bytes at all; counting them would never end.
    path = forged(tmp_path, "(6, 2, 2)", bytes(24))
    head = b"{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("classes.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
    with pytest.raises(SeepageError, match="classes"):
        load(path)


def test_a_bomb_is_refused_before_it_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seepage.federation.data.npz.MAX_BYTES", 2**20)
    with pytest.raises(SeepageError, match="unpacks to"):
        load(forged(tmp_path, "(6, 1000, 1000)", bytes(6_000_000)))


def test_unbounded_compression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SeepageError, match="other than deflate"):
        load(forged(tmp_path, "(6, 2, 2)", bytes(24), method=zipfile.ZIP_BZIP2))


def test_encryption_is_refused(tmp_path: Path) -> None:
    path = Path(forged(tmp_path, "(6, 2, 2)", bytes(24), method=zipfile.ZIP_STORED))
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(signature)
        while place >= 0:
            content[place + offset] |= 1
            place = content.find(signature, place + 4)
    path.write_bytes(content)
    with pytest.raises(SeepageError, match="encrypted"):
        load(str(path))


@pytest.mark.parametrize("shape", [(9, 16), (12, 4), (2, 8, 8), (8, 8, 3), (7,)])
def test_series_and_signals_keep_the_shape_that_they_have(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).random((6, *shape), dtype=np.float32)
    data = load(save(tmp_path, x=values, y=LABELS), as_is=True)
    assert data.input_shape == shape
    assert np.array_equal(data.batch(ALL).inputs.numpy(), values)
    with pytest.raises(SeepageError):
        load(save(tmp_path, x=values - 1, y=LABELS), as_is=True)
