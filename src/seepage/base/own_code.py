"""What user code raised, in words that lead to its line."""

import sysconfig
import traceback
from pathlib import Path


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its kind where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def own_line(error: Exception) -> str:
    """The last line of user code that an error came through; empty where it was none."""
    installed = tuple(filter(None, (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"))))
    ours = str(Path(__file__).parents[1])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if not frame.filename.startswith((*installed, ours))]
    return f"{Path(own[-1].filename).name} line {own[-1].lineno}" if own else ""
