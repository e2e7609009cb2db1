"""The command line."""

import os
import sys
import traceback
from typing import NoReturn

from seepage.cli.commands import Interrupted, NobodyReads, app
from seepage.cli.stopping import INTERRUPTED, TERMINATED, Stopped, begin, stoppable
from seepage.errors import SeepageError, brief, printable, say

__all__ = ["app", "main"]

PIPE_CLOSED = 141
"""128 and SIGPIPE's number."""


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2, Ctrl-C is 130 and SIGTERM 143.

    A fault of ours shows its traceback and ends with 2 as well: 1 is for a gate that is closed. Where nobody reads what
    is printed any more (`seepage list | head -1`) it is 141, as of other programs that SIGPIPE ends.
    """
    begin()
    if sys.stdout is None:  # closed by whoever started it, who asks for the exit code alone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        with stoppable():
            try:
                _check_arguments(sys.argv[1:])
                app()
            finally:
                sys.stdout.flush()
    except (BrokenPipeError, NobodyReads):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the very end
        sys.exit(PIPE_CLOSED)
    except SeepageError as error:
        _fail(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}; check the path, its permissions and the space on the disk")
    except (MemoryError, RuntimeError, ValueError) as error:
        # PyTorch and NumPy have one such class each, which are not imported here to start in no time.
        if type(error).__name__ in ("_LinAlgError", "LinAlgError"):
            _fail(
                f"a matrix of these numbers cannot be decomposed ({str(error)[:160]}); look for values far larger or "
                "smaller than the others in the update or the weights, and record again"
            )
        if not _is_out_of_memory(error):
            _fault()
        _fail("the memory is used up; use a smaller batch, model or image size, or --jobs 1")
    except (KeyboardInterrupt, Interrupted):
        _stopped(INTERRUPTED)
    except Stopped as stopped:
        _stopped(TERMINATED if stopped.code == TERMINATED else INTERRUPTED)
    except Exception:
        _fault()


def _check_arguments(words: list[str]) -> None:
    """Raise for bytes that are no UTF-8: recipes, records and safetensors cannot name such a path."""
    odd = next((word for word in words if any("\ud800" <= letter <= "\udfff" for letter in word)), None)
    if odd is not None:
        raise SeepageError(f"{odd} has bytes that are no UTF-8, which no recipe can name; rename the file or folder")


def _stopped(code: int) -> NoReturn:
    word = "terminated" if code == TERMINATED else "interrupted"
    kept = (
        "nothing was written"
        if sys.argv[1:2] == ["prove"] or any(word.startswith("--candidates") for word in sys.argv)
        else ("what is finished is kept, and the same command goes on from there")
    )
    say(f"{word}; {kept}")
    sys.exit(code)


def _fault() -> NoReturn:
    """Print the traceback of the exception being handled, and exit."""
    traceback.print_exc()
    _fail("this is a fault of seepage or of your own code in the traceback above; if it is seepage's, please report it")


def _fail(sentence: str) -> NoReturn:
    words = "\n".join(printable(line) for line in sentence.split("\n"))  # several mistakes have a line each
    say(f"error: {brief(words)}")
    sys.exit(2)


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch has a class of its own for this on accelerators only."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)
