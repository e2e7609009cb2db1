"""matplotlib, imported without the settings of the working folder, which may be a stranger's."""

import contextlib
from importlib.util import find_spec
from pathlib import Path


def import_matplotlib() -> None:
    """Import it where no `matplotlibrc` lies: it reads that of the working folder first, and prints what is in it."""
    spec = find_spec("matplotlib")
    if spec is not None and spec.origin is not None:
        with contextlib.chdir(Path(spec.origin).parent):
            import matplotlib.figure
            import matplotlib.patches  # noqa: F401
