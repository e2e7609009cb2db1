"""What every reader of a stranger's files has: a folder, good files, one way to spoil them, one to read them."""

import shutil
from pathlib import Path
from random import Random

from mutations import damaged
from watch import answered


class Reader:
    """A reader of seepage, and how its files are spoiled.

    Args:
        place: The sandbox, which is the working folder; the only place that may be written to.
        shared: Folder with what was made once for all readers (see `goods`).
    """

    name = ""
    about = ""

    def __init__(self, place: Path, shared: Path) -> None:
        self.place, self.shared = place, shared
        self.home = place / "in"
        self.good: dict[str, bytes] = {}
        self.prepare()
        if self.home.exists():
            self.good = {str(path.relative_to(self.home)): path.read_bytes() for path in self.files()}

    def files(self) -> list[Path]:
        """All files of the reader's folder."""
        return [path for path in sorted(self.home.rglob("*")) if path.is_file()]

    def prepare(self) -> None:
        """Write the good files below `home`."""
        raise NotImplementedError

    def spoil(self, rng: Random) -> None:
        """Spoil them: one hostile input."""
        raise NotImplementedError

    def read(self) -> object:
        """Read them."""
        raise NotImplementedError

    def outcome(self) -> str:
        """Read, as a user's command would, and say what became of it."""
        return answered(self.read)

    def restore(self) -> None:
        """Bring back the good files, and remove all others."""
        there = {str(path.relative_to(self.home)): path for path in self.files()} if self.home.exists() else {}
        for name, path in there.items():
            if name not in self.good:
                path.unlink()
        for name, content in self.good.items():
            path = self.home / name
            if name not in there or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        for other in self.place.iterdir():
            if other != self.home:
                shutil.rmtree(other, ignore_errors=True) if other.is_dir() else other.unlink()

    def put(self, name: str, content: bytes | str) -> None:
        """Write one file anew. A library may have mapped the old one, which is left as it is."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content.encode(errors="surrogatepass") if isinstance(content, str) else content)

    def damage(self, rng: Random, name: str) -> None:
        """Damage a file's bytes."""
        self.put(name, damaged(rng, self.good[name]))
