"""Networks by name: `fc2`, `convnet`, ..., `torchvision:NAME`, `timm:NAME`, or your own `module:factory`."""

import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from seepage.core.nn import frozen_randomness
from seepage.errors import SeepageError, unknown
from seepage.models.convnet import cnn6, convnet, lenet
from seepage.models.mlp import fc2, mlp3
from seepage.models.normalize import Normalize
from seepage.models.resnet import resnet
from seepage.models.vertical import vertical
from seepage.registry import bind, import_dotted, is_dotted
from seepage.types import Architecture

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn6": cnn6,
    "convnet": convnet,
    "fc2": fc2,
    "lenet": lenet,
    "mlp3": mlp3,
    "resnet": resnet,
    "vertical": vertical,
}
LIBRARIES = ("torchvision", "timm")

__all__ = [
    "LIBRARIES",
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
]


def trusted(architecture: Architecture) -> bool:
    """Whether building this model runs only code of this package, torchvision or timm."""
    return architecture.use in MODELS or architecture.use.partition(":")[0] in LIBRARIES


def build(architecture: Architecture, input_shape: tuple[int, ...], num_classes: int, *, seed: int = 0) -> nn.Module:
    """Build a model, initialised reproducibly from `seed`.

    Args:
        architecture: Registry name, `torchvision:NAME`, `timm:NAME` or `module:factory`, and options. A factory
            is called as `factory(input_shape, num_classes, **options)` and returns a `torch.nn.Module`.
        input_shape: Shape of one example.
        num_classes: Number of classes.
        seed: Seeds the initialisation only; torch's global generator is left as it was.

    Raises:
        SeepageError: For an unknown name, wrong options, or inputs that the network cannot take.

    >>> model = build(Architecture("fc2", {"hidden": 8}), (1, 4, 4), 3)
    >>> [tuple(p.shape) for p in model.parameters()]
    [(8, 16), (8,), (3, 8), (3,)]
    """
    try:
        with frozen_randomness(seed):
            model = _make(architecture.use, dict(architecture.options), input_shape, num_classes)
            _settle(model, input_shape)
    except SeepageError:
        raise
    except Exception as error:  # whatever somebody's factory, or a library's, may raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = (str(error).splitlines() or [""])[0]
        raise SeepageError(
            f"model {architecture.use!r} cannot be built for inputs of shape {input_shape} and {num_classes} classes "
            f"({type(error).__name__}: {reason}, {Path(place.filename).name} line {place.lineno}); "
            "correct its options, or use another model or other data"
        ) from error
    if not isinstance(model, nn.Module):
        raise SeepageError(
            f"{architecture.use!r} returned a {type(model).__name__}, not a torch.nn.Module; "
            "return the model from the factory"
        )
    return model


def _settle(model: object, input_shape: tuple[int, ...]) -> None:
    """Let lazy layers, which learn their shape from the first batch they see, see one."""
    if isinstance(model, nn.Module) and any(is_lazy(parameter) for parameter in model.parameters()):
        mode = model.training
        with torch.no_grad():
            model.eval()(torch.zeros(2, *input_shape))
        model.train(mode)


def _make(use: str, options: Mapping[str, Any], input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    library, _, name = use.partition(":")
    if use in MODELS:
        factory = MODELS[use]
        bind(factory, options, f"model {use!r}", given=2)
        return _own(use, factory, options, input_shape, num_classes)
    if library in LIBRARIES and name:
        check_channels(use, input_shape)
        return _LIBRARY_MODELS[library](name, options, num_classes)
    if is_dotted(use):
        custom: Callable[..., nn.Module] = import_dotted(use)
        if isinstance(custom, nn.Module) or not callable(custom):
            raise SeepageError(
                f"{use!r} is a {type(custom).__name__}, not a factory; name a function that returns the model"
            )
        if len(inspect.signature(custom).parameters) == 0 and not options:
            return custom()
        bind(custom, options, f"model {use!r}", given=2)
        return custom(input_shape, num_classes, **options)
    raise unknown("model", use, [*MODELS, *(f"{library}:NAME" for library in LIBRARIES), "module:factory"])


def _own(
    use: str,
    factory: Callable[..., nn.Module],
    options: Mapping[str, Any],
    input_shape: tuple[int, ...],
    num_classes: int,
) -> nn.Module:
    for name, value in options.items():
        # A whole-number option of our own networks is a size.
        if inspect.signature(factory).parameters[name].annotation is int and value < 1:
            raise SeepageError(f"model {use!r}: {name} must be at least 1, got {value}; correct the recipe")
    return factory(input_shape, num_classes, **options)


def check_channels(use: str, input_shape: tuple[int, ...]) -> None:
    """Torchvision and timm networks take colour images of a fair size."""
    if len(input_shape) != 3 or input_shape[0] != 3:
        raise SeepageError(
            f"{use} takes images with 3 channels and the data have shape {input_shape}; add --set data.channels=3"
        )


def _torchvision(name: str, options: Mapping[str, Any], num_classes: int) -> nn.Module:
    from torchvision import models

    if name not in models.list_models(module=models):
        raise unknown("torchvision model", name, models.list_models(module=models))
    try:
        return models.get_model(name, weights=None, num_classes=num_classes, **options)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise SeepageError(f"torchvision:{name} refuses the options {dict(options)}: {error}") from error


def _timm(name: str, options: Mapping[str, Any], num_classes: int) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise SeepageError("timm is not installed; run: pip install 'seepage[timm]'") from error
    if "checkpoint_path" in options:
        raise SeepageError(f"timm:{name} would load a file by checkpoint_path, which may be a pickle; leave it out")
    if name not in timm.list_models():
        raise unknown("timm model", name, timm.list_models())
    try:
        return timm.create_model(name, pretrained=False, num_classes=num_classes, **options)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise SeepageError(f"timm:{name} refuses the options {dict(options)}: {error}") from error


_LIBRARY_MODELS: dict[str, Callable[[str, Mapping[str, Any], int], nn.Module]] = {
    "torchvision": _torchvision,
    "timm": _timm,
}
