"""Networks by name: `fc2`, `convnet`, ..., `torchvision:NAME`, `timm:NAME`, or your own `module:factory`."""

import inspect
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from seepage.base.nn import frozen_randomness, in_mode, try_inputs
from seepage.base.own_code import first_line, own_line
from seepage.base.registry import Registry, Spec, is_network_file, models, working_folder_first
from seepage.base.signatures import bind
from seepage.errors import SeepageError
from seepage.federation.models.convnet import cnn6, convnet, lenet
from seepage.federation.models.factories import make_own
from seepage.federation.models.files import read_network
from seepage.federation.models.mlp import fc2, mlp3
from seepage.federation.models.normalize import Normalize, classes_second, normalize_inputs, take_last_made
from seepage.federation.models.resnet import resnet
from seepage.federation.models.trained_part import split_options, train_part
from seepage.federation.models.vertical import vertical
from seepage.federation.models.vit import vit

MODELS: Registry[nn.Module] = models
"""Every network that has a name."""

DEEPEST = 256
"""Blocks of a network of this package, and its parties: each takes time to make, however small it is."""

MOST_WARNED = 160
"""Letters of a factory's warning that are shown."""

__all__ = [
    "MODELS",
    "Normalize",
    "build",
    "cnn6",
    "convnet",
    "fc2",
    "lenet",
    "mlp3",
    "resnet",
    "trusted",
    "vertical",
    "vit",
    "warned_words",
]


def build(
    architecture: Spec,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    seed: int = 0,
    heard: list[str] | None = None,
) -> nn.Module:
    """Build a model, initialized reproducibly from `seed`.

    Args:
        architecture: Registry name, `torchvision:NAME`, `timm:NAME` or `module:factory`, and options. A factory
            is called as `factories` says and returns a `torch.nn.Module`; a file with a whole network is read where
            its option `trust` is true. The options `trainable`, `frozen` and `adapter` say which part of any model is
            trained (`train_part`), `normalize` what it does to its inputs first (`normalize_inputs`).
        input_shape: Shape of one example.
        num_classes: Number of classes.
        seed: Seeds the initialization only; torch's global generator is left as it was.
        heard: Is given what the factory warned of. A model is built again and again, and heard once.

    Raises:
        SeepageError: For an unknown name, wrong options, or inputs that the network cannot take.

    >>> model = build(Spec("fc2", {"hidden": 8}), (1, 4, 4), 3)
    >>> [tuple(p.shape) for p in model.parameters()]
    [(8, 16), (8,), (3, 8), (3,)]
    """
    own, part = split_options(architecture.options)
    try:
        with frozen_randomness(seed), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            model = _make(replace(architecture, options=own), input_shape, num_classes)
            _settle(model, input_shape)
            if part and isinstance(model, nn.Module):
                model = train_part(model, part)
            if isinstance(model, nn.Module):
                try_inputs(model, input_shape)
            if models.is_foreign(architecture.use) and isinstance(model, nn.Module):
                take_last_made(model, input_shape)
            if "normalize" in part and isinstance(model, nn.Module):
                normalize_inputs(model, part["normalize"])
            if part.get("classes_last") and isinstance(model, nn.Module):
                classes_second(model)
    except SeepageError:
        raise
    except Exception as error:  # a factory may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = own_line(error) or f"{Path(frame.filename).name} line {frame.lineno}"
        raise SeepageError(
            f"model {architecture.use!r} cannot be built for inputs of shape {input_shape} and {num_classes} classes "
            f"({type(error).__name__}: {first_line(error)}, {place}); "
            "correct its options, or use another model or other data"
        ) from error
    if heard is not None:
        heard += [str(one.message) for one in warned]
    if not isinstance(model, nn.Module):
        raise SeepageError(
            f"{architecture.use!r} returned a {type(model).__name__}, not a torch.nn.Module; "
            "return the model from the factory"
        )
    return model


def warned_words(architecture: Spec, heard: Sequence[str]) -> str | None:
    """One sentence on what a factory warned of; None where it did not.

    >>> warned_words(Spec("mine:net"), ["a", "b"])
    "'mine:net' warned 2 times while it was built, first of: a"
    """
    if not heard:
        return None
    first = " ".join(heard[0].split())[:MOST_WARNED]
    times = "once" if len(heard) == 1 else f"{len(heard)} times"
    return f"{architecture.use!r} warned {times} while it was built, first of: {first}"


def trusted(architecture: Spec) -> bool:
    """Whether building this model runs only code of this package, of torchvision, timm, or an installed package."""
    return models.knows(architecture.use)


def _settle(model: object, input_shape: tuple[int, ...]) -> None:
    """Let lazy layers, which learn their shape from the first batch they see, see one."""
    if isinstance(model, nn.Module) and any(is_lazy(parameter) for parameter in model.parameters()):
        with torch.no_grad(), in_mode(model, training=False):
            model(torch.zeros(2, *input_shape))


def _make(spec: Spec, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    if is_network_file(spec.use):
        return read_network(Path(spec.use), trust=spec.options.get("trust") is True)
    factory, what = models.find(spec.use).make, f"model {spec.use!r}"
    if models.is_foreign(spec.use):
        with working_folder_first():  # which it may import from once it is called
            return _module(make_own(factory, spec.options, input_shape, num_classes, what))
    bind(factory, spec.options, what, given=2)
    if spec.use in models:
        _check_sizes(spec, factory)
    return _module(factory(input_shape, num_classes, **spec.options))


def _module(made: Any) -> nn.Module:
    return made  # type: ignore[no-any-return]  # `build` looks at what a factory returned


def _check_sizes(spec: Spec, factory: Callable[..., Any]) -> None:
    """Raise where a whole-number option of a named network, which is a size, is not positive."""
    for name, value in spec.options.items():
        if inspect.signature(factory).parameters[name].annotation is int and value < 1:
            raise SeepageError(f"model {spec.use!r}: {name} must be at least 1, got {value}; correct the recipe")
        if name in ("depth", "parties") and value > DEEPEST:
            raise SeepageError(f"model {spec.use!r}: {name} is at most {DEEPEST}, got {value}; correct the recipe")
