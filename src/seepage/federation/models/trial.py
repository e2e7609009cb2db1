"""One guarded pass of a network, before anything is computed with it: a misfit is a sentence and no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from seepage.base.nn import generator, in_mode, logits_in
from seepage.base.own_code import first_line, own_line
from seepage.base.registry import models
from seepage.errors import SeepageError


class Untaken(Exception):
    """What a network raised for its inputs.

    Attributes:
        reason: The first line of it, with the kind of error where that is none of PyTorch's.
        place: The last line of user code that it came through, `net.py line 3`; empty where it was none.
        wants_more: Whether the network takes more than the examples.
    """

    def __init__(self, error: Exception, *, wants_names: bool = False) -> None:
        self.reason = first_line(error)
        self.place = own_line(error)
        self.wants_more = wants_names or (isinstance(error, TypeError) and "required positional argument" in str(error))
        super().__init__(f"{self.reason}{f', {self.place}' if self.place else ''}")


def tried(model: nn.Module, inputs: Tensor) -> Any:
    """Outputs of a network in eval mode.

    Raises:
        Untaken: Whatever the network, which may be user code, raised.
    """
    try:
        with torch.no_grad(), in_mode(model, training=False):
            return model(inputs)
    except Exception as error:
        raise Untaken(error, wants_names=_asks_by_name(model)) from error


def _asks_by_name(model: nn.Module) -> bool:
    """Whether a network looks up parts of its input by name, as of a dictionary."""
    try:
        with torch.no_grad(), in_mode(model, training=False):
            model({})
    except KeyError as error:
        return bool(error.args) and isinstance(error.args[0], str)
    except Exception:  # user code may raise anything
        return False
    return False


@contextmanager
def own_faults(use: str) -> Iterator[None]:
    """Make one sentence of what user code raises in a block, which a guarded pass may not have met.

    Memory that is used up is no fault of their line.

    Args:
        use: The name of the network; of one that is not their own nothing is changed.

    Raises:
        SeepageError: In place of any error that came through a line of their code.
    """
    try:
        yield
    except (SeepageError, MemoryError):
        raise
    except Exception as error:
        place = own_line(error) if models.is_foreign(use) else ""
        if not place:
            raise
        raise SeepageError(
            f"the network {use!r} fails on a batch of examples ({first_line(error)}, {place}); correct that line: it "
            "must take batches of any size, in train and in eval mode"
        ) from error


SPREADS = (1.0, 30.0, 1000.0)
"""Sizes of the made-up inputs at which a network's outputs are computed: logits leave [0, 1] on some of them."""


def sigmoid_words(model: nn.Module, shape: tuple[int, ...]) -> str | None:
    """A warning where a network's one output is a probability already, while the loss expects a logit.

    Args:
        model: A network that takes numbers.
        shape: Of one example.

    >>> sigmoid_words(nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), (4,)) is None, sigmoid_words(nn.Linear(4, 1), (4,))
    (False, None)
    """
    like = next(model.parameters(), torch.zeros(()))
    noise = torch.randn((8, *shape), generator=generator(0, "outputs")).to(like)
    try:
        found = [logits_in(tried(model, spread * noise)) for spread in SPREADS]
    except (Untaken, SeepageError):
        return None  # reported where the update is computed
    if not all(bool(((part >= 0) & (part <= 1)).all()) for part in found):
        return None
    return (
        "all in [0, 1], as of a sigmoid, and --loss binary takes another; if the client does not, name its own loss: "
        "--loss module:function"
    )
