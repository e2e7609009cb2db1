"""Data sets of strangers: archives, arrays, folders of pictures, tables, texts."""

import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from PIL import Image
from strategies import WORDS, Draw, chance, choose, damaged, json_lines, odd, plain, spoiled
from watcher import Sandbox, answered

from seepage.federation.data import load

GOOD = "file,label\na.png,0\nb.png,1\n"


def reader(sandbox: Sandbox, good: str, **usual: Any) -> Callable[..., str]:
    """Reads up to three examples of a file or folder; where nothing is said, of the good one."""

    def read(name: str = good, options: dict[str, Any] = usual) -> str:
        def first() -> None:
            data = load(str(sandbox.home / name), **options)
            data.batch(torch.arange(min(3, len(data))))

        return answered(first)

    return read


def picture(form: str = "PNG", mode: str = "RGB", side: int = 4) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side), 0).save(buffer, format=form)
    return buffer.getvalue()


@st.composite
def pictures(draw: Draw) -> bytes:
    """A picture that may be none: with damage, or with another size in its header and a right checksum."""
    form = choose(draw, "PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
    mode = choose(draw, "RGB", "L", "P", "RGBA", "1", "I;16") if form == "PNG" else "RGB"
    content, kind = picture(form, mode), draw(st.integers(0, 9))
    if kind < 4 and form == "PNG":
        sides = [choose(draw, 4, 0, 1, 5, 3000, 2**16, 2**31 - 1) for _ in range(2)]
        head = b"IHDR" + struct.pack(">II", *sides) + content[24:29]
        return content[:12] + head + struct.pack(">I", zlib.crc32(head)) + content[33:]
    return draw(damaged(content)) if kind < 8 else content


def pack(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


PACKED = {"labels.csv": GOOD.encode(), "images/a.png": picture(), "images/b.png": picture()}


@st.composite
def archives(draw: Draw) -> dict[str, bytes]:
    files = dict(PACKED)
    if chance(draw, 60):
        tables = (
            f"file,label\na.png,{draw(st.sampled_from(WORDS))!r}\nb.png,9\n", "file;label\na.png;0", "",
            f"{draw(plain)},label\n", "file,label\n" + "a.png,0\n" * 500,
        )  # fmt: skip
        texts = [table.encode(errors="replace") for table in tables]
        files["labels.csv"] = draw(damaged(GOOD.encode()) | st.sampled_from(texts))
    if chance(draw, 20):
        del files["labels.csv"]
    for name in draw(st.lists(st.sampled_from(["a", "b", "../c", "/d"]) | plain, max_size=3)):
        files[f"{choose(draw, 'images/', '')}{name}.png"] = draw(pictures())
    methods = (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    content = pack(files, choose(draw, *methods))
    return {"x.zip": draw(damaged(content)) if draw(st.booleans()) else content}


def test_zip(sandbox: Sandbox) -> None:
    """zip archive of pictures and labels"""
    sandbox.keep({"x.zip": pack(PACKED)})
    sandbox.fuzz(archives() | damaged(pack(PACKED)).map(lambda it: {"x.zip": it}), reader(sandbox, "x.zip"), most=60)


def arrays_file(arrays: dict[str, Any], save: Callable[..., None] = np.savez) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


ARRAYS = {"x": np.zeros((4, 3, 3), np.uint8), "y": np.arange(4), "classes": np.array(["a", "b", "c", "d"])}
SHAPES = ((4, 3, 3), (4, 3, 3, 1), (4, 3, 3, 3), (4, 1, 3, 3), (0, 3, 3), (4,), (), (4, 3, 3, 2), (1, 1, 1))
KINDS = (
    np.uint8, np.float32, np.float16, np.float64, np.int8, np.int64, np.bool_, np.complex64, "M8[s]", "V3", "U4",
)  # fmt: skip


@st.composite
def arrays(draw: Draw) -> dict[str, bytes]:
    images = np.zeros(choose(draw, *SHAPES), choose(draw, *KINDS))
    if images.dtype.kind == "f" and images.size and chance(draw, 30):
        images.flat[0] = choose(draw, np.nan, np.inf, 2.0, -1.0, 1e300)
    text = draw(st.sampled_from(WORDS)).encode("utf-8", "replace")
    labels = (
        np.arange(4), np.full(4, -1), np.array([0, 1, 2**62, -5]), np.array(["a", "b", "", "\x00"]),
        np.float32([0, 1, 2, 3]), np.zeros((4, 1), int), np.zeros((4, 2), int), np.array(3), np.array([]),
        np.uint64([2**64 - 1] * 4), np.array([text] * 4), np.array([draw(plain)] * 4),
        np.array([1, "a", None, {}], dtype=object),
    )  # fmt: skip
    y = labels[draw(st.integers(0, len(labels) - 1))]
    found: dict[str, Any] = {"x": images, "y": y}
    if chance(draw, 30):
        few = images[:2] if images.ndim else images
        found = {"x_train": images, "y_train": y, "x_test": few, "y_test": y}
    if chance(draw, 30):
        classes = (
            ARRAYS["classes"], np.array([draw(plain)] * 4), np.arange(4), np.array("a"), np.array([b"\xff"] * 9),
        )  # fmt: skip
        found["classes"] = classes[draw(st.integers(0, len(classes) - 1))]
    content = arrays_file(found, choose(draw, np.savez, np.savez_compressed))
    if chance(draw, 20):  # one more member, whose name may stand for an array's
        buffer = io.BytesIO(content)
        with zipfile.ZipFile(buffer, "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            archive.writestr(
                choose(draw, "x", "y", "x.npy", "classes.npy", "../x.npy", "labels"), draw(st.binary(max_size=200))
            )
        content = buffer.getvalue()
    return {"x.npz": draw(damaged(content)) if chance(draw, 40) else content}


def test_npz(sandbox: Sandbox) -> None:
    """npz file of arrays"""
    sandbox.keep({"x.npz": arrays_file(ARRAYS)})
    sandbox.fuzz(
        arrays() | damaged(sandbox.good["x.npz"]).map(lambda it: {"x.npz": it}), reader(sandbox, "x.npz"), most=60
    )


@st.composite
def folders(draw: Draw) -> tuple[dict[str, bytes], str, dict[str, int]]:
    names = st.sampled_from(["a/1.png", "a/2.png", "b/3.png"])
    files = draw(st.dictionaries(names, pictures(), min_size=1, max_size=2))
    if chance(draw, 30):
        name = draw(plain).replace("/", "_")[:60]
        files[f"{name}/{choose(draw, '1.png', 'x.JPG', 'y.txt', '.png', name[:20] + '.png')}"] = draw(pictures())
    return files, ".", dict(choose(draw, (), (("size", 2),), (("size", 4), ("channels", 1)), (("channels", 3),)))


@pytest.mark.slow
def test_images(sandbox: Sandbox) -> None:
    """folder of pictures, one folder for each class"""
    sandbox.keep(dict.fromkeys(("a/1.png", "a/2.png", "b/3.png"), picture()))
    sandbox.fuzz(folders(), reader(sandbox, "."), most=120)


ROWS = [[str(20 + n), f"{n}.5", "ns"[n % 2], "" if n % 3 else "7", "ab"[n % 2]] for n in range(6)]
HEAD = ["age", "income", "region", "debt", "y"]
CELLS = ("nan", "inf", "-1e308", "1e309", "1_0", "0x1", "١٢", '"', "", " ", "9" * 400)


def lines(rows: list[list[str]], between: str = ",") -> bytes:
    return "\n".join(between.join(row) for row in [HEAD, *rows]).encode(errors="surrogatepass")


@st.composite
def parquet(draw: Draw, rows: list[list[str]]) -> bytes:
    import pyarrow
    from pyarrow.parquet import write_table

    columns: list[list[Any]] = [list(c) for c in zip(*(row for row in rows if len(row) == 5), strict=True)] or [[]] * 5
    if draw(st.booleans()):
        cell = choose(draw, None, float("nan"), {"a": 1}, b"\xff", [1, 2], True, 2**62)
        columns[draw(st.integers(0, 4))] = [cell] * len(columns[0])
    names = ["age", "income", draw(st.sampled_from(["region", "age"]) | plain), "debt", "y"]
    buffer = io.BytesIO()
    write_table(pyarrow.Table.from_arrays([pyarrow.array(c) for c in columns], names=names), buffer)
    return buffer.getvalue()


@st.composite
def tables(draw: Draw) -> tuple[dict[str, bytes], str, dict[str, Any]]:
    rows = [list(row) for row in ROWS]
    for _ in range(choose(draw, 0, 1, 3, 9)):
        rows[draw(st.integers(0, 5))][draw(st.integers(0, 4))] = draw(st.sampled_from(CELLS) | plain)
    if chance(draw, 20):
        rows[draw(st.integers(0, 5))] = [draw(plain)] * choose(draw, 0, 1, 4, 6)
    name = choose(draw, "x.csv", "x.csv", "x.tsv", "x.parquet")
    content = draw(parquet(rows)) if name == "x.parquet" else lines(rows, choose(draw, *",;\t|"))
    options: dict[str, Any] = {"label_column": draw(st.sampled_from(["y", "y", "region", "debt"]) | plain)}
    if chance(draw, 20):
        options["drop"] = [draw(st.sampled_from(["age", "y"]) | plain)]
    return {name: draw(damaged(content)) if chance(draw, 40) else content}, name, options


def test_table(sandbox: Sandbox) -> None:
    """table as .csv, .tsv and .parquet"""
    sandbox.keep({"x.csv": lines(ROWS)})
    sandbox.fuzz(tables(), reader(sandbox, "x.csv", label_column="y"))


TEXTS = [{"text": f"some words of text number {n}", "label": n % 2} for n in range(6)]


@st.composite
def texts(draw: Draw) -> tuple[dict[str, bytes], str]:
    rows, name = draw(spoiled(TEXTS)), choose(draw, "x.jsonl", "x.csv", "x.txt")
    rows = rows if isinstance(rows, list) else [draw(odd)]
    if name == "x.jsonl":
        content = json_lines(rows)
    else:
        quoted = [",".join(f'"{part}"' for part in row.values()) if isinstance(row, dict) else str(row) for row in rows]
        written = ["text,label", *quoted] if name == "x.csv" else map(str, rows)
        content = "\n".join(written).encode(errors="surrogatepass")
    return {name: draw(damaged(content)) if chance(draw, 40) else content}, name


def test_text(sandbox: Sandbox) -> None:
    """texts as .txt, .jsonl and .csv"""
    sandbox.keep({"x.jsonl": json_lines(TEXTS)})
    sandbox.fuzz(texts(), reader(sandbox, "x.jsonl"))
