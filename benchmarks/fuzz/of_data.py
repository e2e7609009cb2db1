"""Readers of data sets: archives, arrays, folders of pictures, tables, texts."""

import io
import json
import struct
import warnings
import zipfile
import zlib
from random import Random
from typing import ClassVar

import numpy as np
import torch
from base import Reader
from mutations import HOSTILE, WORDS, damaged, odd, spoiled
from PIL import Image

from seepage.federation.data import load

PLAIN = tuple(word for word in (*WORDS, *HOSTILE) if word.isprintable() and 0 < len(word) < 200)


def picture(rng: Random, form: str = "PNG", side: int = 4) -> bytes:
    """A small picture."""
    buffer = io.BytesIO()
    mode = rng.choice(("RGB", "L", "RGB", "P", "RGBA", "1", "I;16")) if form == "PNG" else "RGB"
    Image.new(mode, (side, side), 0).save(buffer, format=form)
    return buffer.getvalue()


def enlarged(rng: Random, png: bytes) -> bytes:
    """A PNG whose header promises another size, with a right checksum."""
    sides = [rng.choice((0, 1, 4, 5, 3000, 2**16, 2**31 - 1)) for _ in range(2)]
    head = b"IHDR" + struct.pack(">II", *sides) + png[24:29]
    return png[:12] + head + struct.pack(">I", zlib.crc32(head)) + png[33:]


def spoiled_picture(rng: Random) -> bytes:
    """A picture that may be none."""
    form = rng.choice(("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"))
    content = picture(rng, form)
    kind = rng.random()
    if kind < 0.35 and form == "PNG":
        return enlarged(rng, content)
    return damaged(rng, content) if kind < 0.8 else content


class _Data(Reader):
    path = "x"

    def read(self) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = load(str(self.home / self.path), **self.options)
            return data.batch(torch.arange(min(3, len(data))))

    options: ClassVar[dict[str, object]] = {}


class Archive(_Data):
    name, about, path = "zip", "zip archive of pictures and labels", "x.zip"

    def prepare(self) -> None:
        self.put("x.zip", self._packed(Random(0), good=True))

    def _packed(self, rng: Random, *, good: bool = False) -> bytes:
        buffer = io.BytesIO()
        how = (
            zipfile.ZIP_DEFLATED
            if good
            else rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        )
        with zipfile.ZipFile(buffer, "w", how) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = "file,label\na.png,0\nb.png,1\n"
            if not good and rng.random() < 0.6:
                table = rng.choice(
                    (
                        damaged(rng, table.encode()).decode(errors="replace"),
                        f"file,label\na.png,{rng.choice(WORDS)!r}\nb.png,9\n",
                        "file;label\na.png;0",
                        "",
                        f"{rng.choice(PLAIN)},label\n",
                        "file,label\n" + "a.png,0\n" * 500,
                    )
                )
            if good or rng.random() < 0.8:
                archive.writestr("labels.csv", table)
            for name in "ab" if good else rng.sample(["a", "b", "../c", "/d", *PLAIN[:6]], 3):
                content = picture(rng) if good or rng.random() < 0.5 else spoiled_picture(rng)
                archive.writestr(f"{rng.choice(('', 'images/')) if not good else 'images/'}{name}.png", content)
        return buffer.getvalue()

    def spoil(self, rng: Random) -> None:
        content = self._packed(rng, good=rng.random() < 0.3)
        self.put("x.zip", damaged(rng, content) if rng.random() < 0.5 else content)


class Npz(_Data):
    name, about, path = "npz", "npz file of arrays", "x.npz"

    def prepare(self) -> None:
        self.put("x.npz", self._saved({"x": np.zeros((4, 3, 3), np.uint8), "y": np.arange(4)}))

    @staticmethod
    def _saved(arrays: dict[str, object], *, packed: bool = False) -> bytes:
        buffer = io.BytesIO()
        (np.savez_compressed if packed else np.savez)(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    def _strange(self, rng: Random) -> dict[str, object]:
        shape = rng.choice(
            ((4, 3, 3), (4, 3, 3, 1), (4, 3, 3, 3), (4, 1, 3, 3), (0, 3, 3), (4,), (), (4, 3, 3, 2), (1, 1, 1))
        )
        kind = rng.choice(
            (
                np.uint8,
                np.float32,
                np.float16,
                np.float64,
                np.int8,
                np.int64,
                np.bool_,
                np.complex64,
                "M8[s]",
                "V3",
                "U4",
            )
        )
        images = np.zeros(shape, kind)
        if rng.random() < 0.3 and images.dtype.kind == "f" and images.size:
            images.flat[0] = rng.choice((np.nan, np.inf, 2.0, -1.0, 1e300))
        labels = rng.choice(
            (
                np.arange(4),
                np.full(4, -1),
                np.array([0, 1, 2**62, -5]),
                np.array(["a", "b", "", "\x00"]),
                np.float32([0, 1, 2, 3]),
                np.zeros((4, 1), int),
                np.zeros((4, 2), int),
                np.array(3),
                np.array([]),
                np.uint64([2**64 - 1] * 4),
                np.array([rng.choice(WORDS).encode("utf-8", "replace")] * 4),
                np.array([PLAIN[0]] * 4),
                np.array([1, "a", None, {}], dtype=object),
            )
        )
        arrays: dict[str, object] = {"x": images, "y": labels}
        if rng.random() < 0.3:
            arrays = {
                "x_train": images,
                "y_train": labels,
                "x_test": images[:2] if images.ndim else images,
                "y_test": labels,
            }
        if rng.random() < 0.3:
            arrays["classes"] = rng.choice(
                (
                    np.array(["a", "b", "c", "d"]),
                    np.array([PLAIN[1]] * 4),
                    np.arange(4),
                    np.array("a"),
                    np.array([b"\xff"] * 9),
                )
            )
        return arrays

    def spoil(self, rng: Random) -> None:
        content = (
            self._saved(self._strange(rng), packed=rng.random() < 0.3) if rng.random() < 0.75 else self.good["x.npz"]
        )
        if rng.random() < 0.2:  # one more member, whose name may stand for an array's
            buffer = io.BytesIO(content)
            with zipfile.ZipFile(buffer, "a") as archive, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                archive.writestr(
                    rng.choice(("x", "y", "x.npy", "classes.npy", "../x.npy", "labels")),
                    rng.randbytes(rng.choice((0, 9, 200))),
                )
            content = buffer.getvalue()
        self.put("x.npz", damaged(rng, content) if rng.random() < 0.4 else content)


class Images(_Data):
    name, about, path = "images", "folder of pictures, one folder for each class", "."

    def prepare(self) -> None:
        for place in ("a/1.png", "a/2.png", "b/3.png"):
            self.put(place, picture(Random(0)))
        type(self).options = {}

    def spoil(self, rng: Random) -> None:
        for place in rng.sample(sorted(self.good), rng.choice((1, 1, 2))):
            self.put(place, spoiled_picture(rng))
        if rng.random() < 0.3:
            name = rng.choice(PLAIN).replace("/", "_")[:60]
            self.put(
                f"{name}/{rng.choice(('1.png', 'x.JPG', 'y.txt', '.png', name[:20] + '.png'))}", spoiled_picture(rng)
            )
        type(self).options = rng.choice(({}, {"size": 2}, {"size": 4, "channels": 1}, {"channels": 3}))


class Table(_Data):
    name, about, path = "table", "table as .csv, .tsv and .parquet", "x.csv"

    def prepare(self) -> None:
        self.rows = [[str(20 + n), f"{n}.5", "ns"[n % 2], "" if n % 3 else "7", "ab"[n % 2]] for n in range(6)]
        self.put("x.csv", self._lines(self.rows, ","))
        type(self).options = {"label_column": "y"}

    @staticmethod
    def _lines(rows: list[list[str]], between: str) -> bytes:
        head = ["age", "income", "region", "debt", "y"]
        return "\n".join(between.join(row) for row in [head, *rows]).encode(errors="surrogatepass")

    def spoil(self, rng: Random) -> None:
        rows = [list(row) for row in self.rows]
        for _ in range(rng.choice((0, 1, 3, 9))):
            row = rng.choice(rows)
            strange = rng.choice((*PLAIN, "nan", "inf", "-1e308", "1e309", "1_0", "0x1", "١٢", '"', "", " ", "9" * 400))
            row[rng.randrange(len(row))] = strange
        if rng.random() < 0.2:
            rows[rng.randrange(len(rows))] = [rng.choice(PLAIN)] * rng.choice((0, 1, 4, 6))
        between = rng.choice(",;\t|")
        content = self._lines(rows, between)
        self.path = rng.choice(("x.csv", "x.csv", "x.tsv", "x.parquet"))
        if self.path == "x.parquet":
            content = self._parquet(rng, rows)
        self.put(self.path, damaged(rng, content) if rng.random() < 0.4 else content)
        chosen = {"label_column": rng.choice(("y", "y", "region", "debt", *PLAIN[:3]))}
        type(self).options = chosen | ({"drop": [rng.choice(("age", "y", PLAIN[0]))]} if rng.random() < 0.2 else {})

    @staticmethod
    def _parquet(rng: Random, rows: list[list[str]]) -> bytes:
        import pyarrow
        from pyarrow import parquet

        rows = [row for row in rows if len(row) == 5]
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 5
        kinds = (
            [None] * len(rows), [float("nan")] * len(rows), [{"a": 1}] * len(rows), [b"\xff"] * len(rows),
            [[1, 2]] * len(rows), [True] * len(rows), [2**62] * len(rows),
        )  # fmt: skip
        if rng.random() < 0.5:
            columns[rng.randrange(5)] = rng.choice(kinds)
        names = ["age", "income", rng.choice(("region", "age", *PLAIN[:3])), "debt", "y"]
        buffer = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array(c) for c in columns], names=names), buffer)
        return buffer.getvalue()

    def restore(self) -> None:
        super().restore()
        self.path = "x.csv"
        type(self).options = {"label_column": "y"}


class Text(_Data):
    name, about = "text", "texts as .txt, .jsonl and .csv"

    def prepare(self) -> None:
        self.rows = [{"text": f"some words of text number {n}", "label": n % 2} for n in range(6)]
        self.put("x.jsonl", "".join(f"{json.dumps(row)}\n" for row in self.rows))
        self.path = "x.jsonl"

    def spoil(self, rng: Random) -> None:
        self.path = rng.choice(("x.txt", "x.jsonl", "x.csv"))
        rows = spoiled(rng, self.rows)
        rows = rows if isinstance(rows, list) else [odd(rng)]
        if self.path == "x.jsonl":
            content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        elif self.path == "x.csv":
            lines = [
                ",".join(f'"{part}"' for part in row.values()) if isinstance(row, dict) else str(row) for row in rows
            ]
            content = "\n".join(["text,label", *lines]).encode(errors="surrogatepass")
        else:
            content = "\n".join(map(str, rows)).encode(errors="surrogatepass")
        self.put(self.path, damaged(rng, content) if rng.random() < 0.4 else content)

    def restore(self) -> None:
        super().restore()
        self.path = "x.jsonl"
