"""Networks of torchvision and timm, by the names that these libraries give them. No weights are loaded here."""

from typing import Any

from torch import nn

from seepage.base.registry import models
from seepage.errors import SeepageError, not_installed, unknown


def check_channels(use: str, input_shape: tuple[int, ...]) -> None:
    """Raise unless inputs are color images, which is what torchvision and timm networks take."""
    if len(input_shape) != 3 or input_shape[0] != 3:
        raise SeepageError(
            f"{use} takes images with 3 channels and the data have shape {input_shape}; add --set data.channels=3"
        )


@models.register("torchvision:NAME")
def torchvision(name: str, input_shape: tuple[int, ...], num_classes: int, **options: Any) -> nn.Module:
    """Any classifier of torchvision."""
    from torchvision import models

    check_channels(f"torchvision:{name}", input_shape)
    if name not in models.list_models(module=models):
        raise unknown("torchvision model", name, models.list_models(module=models))
    try:
        return models.get_model(name, weights=None, num_classes=num_classes, **options)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise SeepageError(f"torchvision:{name} refuses the options {options}: {error}") from error


@models.register("timm:NAME")
def timm(name: str, input_shape: tuple[int, ...], num_classes: int, **options: Any) -> nn.Module:
    """Any classifier of timm."""
    check_channels(f"timm:{name}", input_shape)
    try:
        import timm
    except ImportError as error:
        raise not_installed("timm", "timm") from error
    if "checkpoint_path" in options:
        raise SeepageError(f"timm:{name} would load a file by checkpoint_path, which may be a pickle; leave it out")
    if name not in timm.list_models():
        raise unknown("timm model", name, timm.list_models())
    try:
        return timm.create_model(name, pretrained=False, num_classes=num_classes, **options)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise SeepageError(f"timm:{name} refuses the options {options}: {error}") from error
