"""Text as sequences of token numbers: files of your own, and the language reference that ships with Python."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seepage.base.nn import next_tokens
from seepage.base.registry import datasets
from seepage.base.storage import read_text
from seepage.errors import SeepageError
from seepage.federation.data.dataset import Options, divide, number_words
from seepage.federation.data.tokens import FileTokenizer, Tokenizer, WordTokenizer
from seepage.federation.types import Batch

NONE = -1
"""Number in place of tokens behind the end of a sequence."""
LEAST_VOCABULARY = 257
"""Smallest vocabulary of `words`: number 0 and the 256 single bytes, by which any text can be written."""
MAX_TOKENS = 2**15
"""Largest number of tokens of an example."""
REFERENCE = "paragraphs of the language reference that ships with Python (pydoc_data, PSF license)"


@dataclass(frozen=True, eq=False, repr=False)
class TextDataset:
    """Texts as token numbers, cut to one length.

    Without classes the task is the next token: the labels of a batch are `[n, tokens]`, each token's next one, -100
    where there is none, and the classes are the tokens themselves.

    Attributes:
        name: Short.
        source: One sentence: where the texts come from.
        ids: `[N, tokens]` int64 token numbers, -1 behind the end.
        tokenizer: What made them.
        numbers: `[N]` int64 class numbers, or None: the next token is the task.
        names: Name of each class number.
        train: `[a]` int64 indices to train on.
        private: `[b]` int64 indices to draw victims from.
    """

    name: str
    source: str
    ids: Tensor
    tokenizer: Tokenizer
    numbers: Tensor | None
    names: tuple[str, ...]
    train: Tensor
    private: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        task = "the next token" if self.numbers is None else f"{len(self.names)} classes"
        return f"TextDataset({self.name!r}, {len(self)} texts of up to {self.ids.shape[1]} tokens, {task})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.ids.shape[1:])

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """Text of each token number."""
        return self.tokenizer.pieces

    @property
    def classes(self) -> tuple[str, ...]:
        return self.pieces if self.numbers is None else self.names

    @property
    def labels(self) -> Tensor:
        """`[N]` int64: the class, or each text's first token, by which a federation may be partitioned."""
        return self.ids[:, 0] if self.numbers is None else self.numbers

    def batch(self, indices: Tensor) -> Batch:
        """The texts at `indices` `[n]`: inputs int64 `[n, tokens]`, with labels and indices."""
        ids = self.ids[indices]
        return Batch(ids, next_tokens(ids) if self.numbers is None else self.numbers[indices], indices)


@datasets.register(
    "text",
    about="lines of a .txt, or a column of a .jsonl or .csv",
    suffix=(".txt", ".jsonl", ".csv"),
    origin="named by its path",
)
def load_text(
    options: Options,
    *,
    path: Path,
    tokens: int = 32,
    column: str = "text",
    label_column: str | None = None,
    tokenizer: str = "words",
    vocabulary: int = 4096,
) -> TextDataset:
    """Load texts: each line of a `.txt` that is not blank, or a column of each row of a `.jsonl` or a `.csv` with head.

    Args:
        options: The split.
        path: Where it lies. UTF-8.
        tokens: Longest sequence; texts are cut there.
        column: Name of the column that holds the text.
        label_column: Name of the column that holds the class; None: the task is the next token.
        tokenizer: `words`, made from the part to train on, or the path of a `tokenizer.json` or of its folder.
        vocabulary: Tokens that `words` has, 257 of them for single bytes.

    Raises:
        SeepageError: For a file that is no text, lacks the column, or holds too little.
    """
    rows = _rows(read_text(path), path)
    texts = [_cell(row, column, number, path) for number, row in enumerate(rows, 1)]
    labels = (
        None if label_column is None else [_cell(row, label_column, number, path) for number, row in enumerate(rows, 1)]
    )
    source = f"{len(texts)} texts of the file {path.name}"
    return _dataset(path.stem, source, texts, labels, options, tokens, tokenizer, vocabulary)


@datasets.register("python_reference", about=REFERENCE, origin="packaged")
def python_reference(
    options: Options,
    *,
    tokens: int = 32,
    label_column: str | None = None,
    tokenizer: str = "words",
    vocabulary: int = 4096,
) -> TextDataset:
    """Paragraphs of the Python language reference, in the edition of the Python that runs.

    Args:
        options: The split.
        tokens: Longest sequence; texts are cut there.
        label_column: `topic`: the class is the chapter; None: the task is the next token.
        tokenizer: `words`, made from the part to train on, or the path of a `tokenizer.json` or of its folder.
        vocabulary: Tokens that `words` has, 257 of them for single bytes.
    """
    from pydoc_data.topics import topics

    if label_column not in (None, "topic"):
        raise SeepageError(
            f"python_reference has no column {label_column!r}; use topic, or leave data.label_column out"
        )
    found = [
        (" ".join(paragraph.split()), topic)
        for topic, text in sorted(topics.items())
        for paragraph in text.split("\n\n")
        if len(paragraph.split()) >= 8
    ]
    texts, chapters = [text for text, _ in found], [topic for _, topic in found]
    labels = None if label_column is None else chapters
    return _dataset("python_reference", REFERENCE, texts, labels, options, tokens, tokenizer, vocabulary)


def _dataset(
    name: str,
    source: str,
    texts: Sequence[str],
    labels: Sequence[str] | None,
    options: Options,
    length: int,
    tokenizer: str,
    vocabulary: int,
) -> TextDataset:
    """The data set of the texts of two words or more, split into public and private ones.

    Args:
        name: Name of the data set.
        source: Where the texts are from, in words.
        texts: The texts.
        labels: Class of each text, in words; None: the task is the next token.
        options: The split; it must not have options of images.
        length: Number of tokens of an example; longer texts are cut, shorter ones filled with `NONE`.
        tokenizer: `words`, or the path of a tokenizer.
        vocabulary: Number of tokens of `words`.
    """
    if options.size is not None or options.channels is not None:
        raise SeepageError(f"{name} is text, which has no data.size or data.channels; data.tokens is its length")
    if not 2 <= length <= MAX_TOKENS:
        raise SeepageError(f"data.tokens must be from 2 to {MAX_TOKENS}, got {length}; correct the recipe's [data]")
    if vocabulary < LEAST_VOCABULARY:
        raise SeepageError(
            f"data.vocabulary must be at least {LEAST_VOCABULARY}, one for each byte, got {vocabulary}; raise it"
        )
    kept = [place for place, text in enumerate(texts) if len(text.split()) > 1]
    if not kept:
        raise SeepageError(f"{name} holds no text of two words or more; check the file and data.column")
    texts = [texts[place] for place in kept]
    train, private = divide(len(texts), options, name)
    if tokenizer == "words":  # of public texts alone, so that it holds no word of a private text only
        encoder: Tokenizer = WordTokenizer.of([texts[place] for place in train.tolist()], vocabulary)
    else:
        encoder = FileTokenizer.read(Path(tokenizer))
    ids = torch.full((len(texts), length), NONE)
    for row, text in zip(ids, texts, strict=True):
        encoded = encoder.encode(text)[:length]
        row[: len(encoded)] = torch.tensor(encoded)
    numbers, classes = (None, ()) if labels is None else number_words([labels[place] for place in kept])
    return TextDataset(name, source, ids, encoder, numbers, classes, train, private)


def _rows(content: str, path: Path) -> list[dict[str, Any]]:
    """One table row for each text."""
    if path.suffix.lower() == ".txt":
        return [{"text": line} for line in content.splitlines() if line.strip()]
    try:
        if path.suffix.lower() == ".csv":
            return list(csv.DictReader(io.StringIO(content, newline=""), strict=True))
        found = [json.loads(line) for line in content.splitlines() if line.strip()]
    except (csv.Error, ValueError, RecursionError) as error:
        raise SeepageError(f"{path} cannot be read as {path.suffix[1:]} ({error}); check the file") from error
    if not all(isinstance(row, dict) for row in found):
        raise SeepageError(f"{path} holds lines that are no JSON objects; write one object with the text in each line")
    return found


def _cell(row: dict[str, Any], column: str, number: int, path: Path) -> str:
    value = row.get(column)
    if not isinstance(value, str | int) or value is None:
        names = ", ".join(str(name)[:30] for name in list(row)[:6])
        raise SeepageError(
            f"row {number} of {path} has no text in a column {column!r} (it has {names}); "
            "name the columns with --set data.column=… and data.label_column=…"
        )
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        # JSON can write half of a pair, which no encoding of Unicode has.
        raise SeepageError(f"row {number} of {path} has half a character in {column!r} (a surrogate); correct it there")
    return str(value)
