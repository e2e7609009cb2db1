"""Tokenizers: text to token numbers and back, piece by piece. Number 0 stands for no token in those made here."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from seepage.base.storage import check_regular
from seepage.errors import SeepageError, not_installed

_WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s")
_BYTES = range(1, 257)
"""Numbers of the 256 bytes in a `WordTokenizer`."""
MAX_BYTES = 2**26
"""Largest size in bytes (64 MiB) of a `tokenizer.json`, checked before it is read."""


class Tokenizer(Protocol):
    """Text to token numbers and back.

    Attributes:
        pieces: What each token number stands for; joined they are the text.
    """

    @property
    def pieces(self) -> tuple[str, ...]: ...

    def encode(self, text: str) -> list[int]:
        """The token numbers of a text."""


@dataclass(frozen=True)
class WordTokenizer:
    """Frequent words as one token each, with the space before them, and all others byte by byte: no text is lost.

    Attributes:
        words: Words with a token of their own, the most frequent first.

    >>> tokenizer = WordTokenizer.of(["to be or not to be"], 260)
    >>> tokenizer.words, tokenizer.encode("to be")
    ((' be', ' not', ' or'), [117, 112, 257])
    >>> "".join(tokenizer.pieces[token] for token in tokenizer.encode("to bee"))
    'to bee'
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> "WordTokenizer":
        """With the most frequent words of some texts; `size` tokens in all."""
        counts = Counter(word for text in texts for word in _WORD.findall(text))
        ranked = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[: max(0, size - len(_BYTES) - 1)]))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, len(_BYTES) + 1)}

    @property
    def pieces(self) -> tuple[str, ...]:
        single = (bytes([byte]).decode("ascii", errors="replace") for byte in range(256))
        return ("", *single, *self.words)

    def encode(self, text: str) -> list[int]:
        """Token numbers of the words, or of their bytes in UTF-8."""
        found: list[int] = []
        for word in _WORD.findall(text):
            number = self._numbers.get(word)
            found += [_BYTES[byte] for byte in word.encode()] if number is None else [number]
        return found


@dataclass(frozen=True, eq=False)
class FileTokenizer:
    """A tokenizer of Hugging Face's `tokenizers`, from a `tokenizer.json` on this machine.

    Attributes:
        made: The tokenizer.
    """

    made: Any

    @classmethod
    def read(cls, path: Path) -> "FileTokenizer":
        """Read it from a file, or from the folder that holds it.

        Raises:
            SeepageError: Where there is none, or the library cannot read it.
        """
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise SeepageError(f"there is no tokenizer {path}; name a tokenizer.json, or words")
        check_regular(path, MAX_BYTES)
        try:
            from tokenizers import Tokenizer as Made
        except ImportError as error:
            raise not_installed("tokenizers", "text") from error
        try:
            made = Made.from_file(str(path))
        except Exception as error:  # the library raises bare exceptions
            raise SeepageError(f"{path} is no tokenizer ({str(error)[:80]}); name a tokenizer.json") from error
        made.no_truncation()
        made.no_padding()
        return cls(made)

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """Each token by itself, decoded; pieces of words that go on carry no space."""
        size = self.made.get_vocab_size()
        found = []
        for number in range(size):
            name = self.made.id_to_token(number) or ""
            if name.startswith("##"):
                found.append(name[2:])
            elif "Ġ" in name or "Ċ" in name or "▁" in name:
                found.append(name.replace("Ġ", " ").replace("Ċ", "\n").replace("▁", " "))
            else:
                found.append(self.made.decode([number], skip_special_tokens=False))
        return tuple(found)

    def encode(self, text: str) -> list[int]:
        """Token numbers, with the special tokens that the tokenizer adds."""
        found: list[int] = self.made.encode(text).ids
        return found
