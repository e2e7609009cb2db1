"""Somebody's own network: how the function, class or module behind `module:name` is called.

net                                  a module that is there already: a copy of it
factory()                            called with nothing
factory(input_shape, num_classes)    both in this order, whatever their names
Net(num_classes=10), UNet(n_channels, n_classes), ViT(img_size=224, num_classes=1000), make(**options)
                                     called with what its parameters are named after
"""

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from seepage.base.signatures import bind
from seepage.errors import SeepageError

_SHAPE = ("input_shape", "shape", "in_shape", "image_shape")
_CLASSES = ("num_classes", "n_classes", "nclasses", "classes", "class_num", "num_labels", "n_labels")
_CHANNELS = ("in_channels", "in_chans", "input_channels", "n_channels", "num_channels")
_FEATURES = ("in_features", "input_dim", "in_dim", "n_features", "num_features")
_SIDE = ("img_size", "image_size")


def make_own(
    factory: Any, options: Mapping[str, Any], input_shape: tuple[int, ...], num_classes: int, what: str
) -> Any:
    """The network that user code makes.

    Args:
        factory: What the name leads to.
        options: Of the recipe's table; they override what is filled in here.
        input_shape: Shape of one example.
        num_classes: Number of classes.
        what: How to call it in messages.

    Raises:
        SeepageError: Where it is nothing that makes a network, and for options that it does not take.
    """
    if isinstance(factory, nn.Module) and not options:
        # A copy: each build starts from the module's own weights, and no training reaches the user's.
        return copy.deepcopy(factory)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise SeepageError(
            f"{what} is a {type(factory).__name__}, not a factory"
            f"{' with options' if options else ''}; name a class, or a function that returns the model"
        )
    places, named = _filled(factory, options, input_shape, num_classes)
    bind(factory, options, what, given=len(places), filled=named)
    return factory(*places, **named, **options)


def is_told(factory: Any) -> tuple[bool, bool]:
    """Whether a factory takes the shape of one example or a part of it, and whether it takes the number of classes."""
    if isinstance(factory, nn.Module) or not callable(factory):
        return False, False
    places, named = _filled(factory, {}, (1,), 1)
    return bool(places) or any(name not in _CLASSES for name in named), bool(places) or any(
        n in _CLASSES for n in named
    )


def _filled(
    factory: Callable[..., Any], options: Mapping[str, Any], input_shape: tuple[int, ...], num_classes: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that are known of a data set: by their places, else by their names."""
    both = (input_shape, num_classes)
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # code that says nothing of itself
        return both, {}
    kinds = {parameter.kind for parameter in parameters}
    first = [one for one in parameters[:2] if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = len(first) == 2 and all(one.default is one.empty and one.name not in options for one in first)
    known = {*_SHAPE, *_CLASSES, *_CHANNELS, *_FEATURES, *_SIDE}
    in_order = all(
        one.name in names or one.name not in known for one, names in zip(first, (_SHAPE, _CLASSES), strict=False)
    )
    if (needed and in_order) or kinds == {inspect.Parameter.VAR_POSITIONAL}:
        return both, {}
    named: dict[str, Any] = {}
    for one in parameters:
        value = _known_as(one.name, input_shape, num_classes)
        if value is not None and one.name not in options and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            named[one.name] = value
    if inspect.Parameter.VAR_KEYWORD in kinds and not any(name in _CLASSES for name in (*named, *options)):
        named["num_classes"] = num_classes
    return (), named


def _known_as(name: str, input_shape: tuple[int, ...], num_classes: int) -> Any:
    """The argument for a parameter of this name; None where the name is not known."""
    if name in _SHAPE:
        return input_shape
    if name in _CLASSES:
        return num_classes
    if name in _CHANNELS:
        return input_shape[0]
    if name in _FEATURES:
        return math.prod(input_shape)
    return input_shape[-1] if name in _SIDE and len(input_shape) > 1 else None
