"""`pictures.json`: that a run's pages show no pictures, until its owner asks for them again."""

from pathlib import Path

from seepage.base.manifest import renew
from seepage.base.storage import SCHEMA, check_schema, read_json, write_json

FILE = "pictures.json"


def shows_pictures(run: Path) -> bool:
    """Whether the pages of a run may show pictures: so unless it was asked for none.

    Raises:
        SeepageError: Where the file is damaged or of another schema version.
    """
    path = run / FILE
    if not path.exists():
        return True
    found = read_json(path)
    check_schema(found, path)
    return found.get("pictures") is True


def keep_choice(run: Path, *, pictures: bool) -> None:
    """Remember whether they may."""
    if not pictures:
        write_json(run / FILE, {"schema": SCHEMA, "pictures": False})
    else:
        (run / FILE).unlink(missing_ok=True)
    renew(run, [FILE])
