"""A stranger's folder: beside it lies a file for each module that a process might import, and each says that it ran."""

import sys
from importlib.metadata import packages_distributions
from pathlib import Path


def trapped(folder: Path) -> Path:
    """Put a file named after every installed top-level module and those of the standard library into a folder.

    Returns:
        A file that exists once one of them was run, with its name and who imported it.
    """
    mark = folder / "ran.txt"
    names = {*sys.stdlib_module_names, *packages_distributions(), "sitecustomize", "usercustomize"}
    for name in filter(str.isidentifier, names):
        (folder / f"{name}.py").write_text(
            f"import sys; open({str(mark)!r}, 'a').write(f'{name}: {{sys.orig_argv}} ')\n"
        )
    return mark


def caught(mark: Path) -> str:
    """Which of them were run; empty: none."""
    return mark.read_text() if mark.exists() else ""
