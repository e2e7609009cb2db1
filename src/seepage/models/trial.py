"""One guarded pass of a network, before anything is computed with it: a misfit is a sentence and no traceback."""

import sysconfig
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.nn import in_mode


class Untaken(Exception):
    """What a network raised for its inputs.

    Attributes:
        reason: The first line of it, with the kind of error where that is none of PyTorch's.
        place: The last line of somebody's own code that it came through, `net.py line 3`; empty where it was none.
        wants_more: Whether the network takes more than the examples.
    """

    def __init__(self, error: Exception) -> None:
        self.reason = first_line(error)
        self.place = own_line(error)
        self.wants_more = isinstance(error, TypeError) and "required positional argument" in str(error)
        super().__init__(f"{self.reason}{f', {self.place}' if self.place else ''}")


def tried(model: nn.Module, inputs: Tensor) -> Any:
    """What a network in eval mode returns.

    Raises:
        Untaken: Whatever the network, which may be anybody's code, raised.
    """
    try:
        with torch.no_grad(), in_mode(model, training=False):
            return model(inputs)
    except Exception as error:
        raise Untaken(error) from error


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its kind where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def own_line(error: Exception) -> str:
    """The last line of somebody's own code that an error came through; empty where it was none."""
    installed = tuple(filter(None, (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"))))
    ours = str(Path(__file__).parents[1])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if not frame.filename.startswith((*installed, ours))]
    return f"{Path(own[-1].filename).name} line {own[-1].lineno}" if own else ""
