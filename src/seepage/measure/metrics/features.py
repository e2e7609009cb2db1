"""A public network's features, and the distance of images in them: SqueezeNet 1.1, whose weights the user brings.

The distance is not LPIPS, and does not compare with it: LPIPS weighs channels by what people answered, here all count
alike.
"""

from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.base.registry import metrics
from seepage.errors import SeepageError
from seepage.measure.metrics.image import below_home, is_image

IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TAPS = (1, 4, 7, 9, 10, 11, 12)
"""Where SqueezeNet's maps are read: its first rectifier, then the last Fire module before each pooling, and the rest.

They are the seven that LPIPS (Zhang et al. 2018) reads of this network.
"""
SMALLEST_SIDE = 64
"""Smaller images are enlarged until their short side has so many pixels: of 32, the last maps are a single place."""
PIECE = 16
"""Images that the network sees at a time."""


@metrics.register(
    "feature_distance",
    images_only=True,
    features=True,
    about="distance in SqueezeNet's features, all channels alike, if its weights are here; not LPIPS",
)
def feature_distance(guesses: Tensor, truth: Tensor, network: nn.Module | None = None) -> Tensor | None:
    """Squared distance of normalized features, averaged over places and seven layers, per image.

    At each place of a layer's map the vector over channels is scaled to norm 1; the squared distance of two such
    vectors lies in [0, 2], as a rectifier leaves no negative entry. It is LPIPS's distance before its weights were
    fitted to people's answers (Zhang et al. 2018, equation 1 with all weights 1), as a mean over layers in place of a
    sum. Grey images are repeated to three channels. Images of a short side below 64 are enlarged, so numbers compare
    only between images of one size.

    Args:
        guesses: `[n, C, H, W]` on [0, 1], C = 1 or 3.
        truth: `[n, C, H, W]` on [0, 1].
        network: What `feature_network` returns.

    Returns:
        `[n]` float64 in [0, 2], 0 for an exact guess; lower is better. None without a network, and for other channels.

    >>> feature_distance(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8)) is None
    True
    """
    if network is None or not is_image(tuple(truth.shape[1:])) or truth.shape[1] not in (1, 3):
        return None
    pairs = zip(guesses.split(PIECE), truth.split(PIECE), strict=True)
    return torch.cat([_distance(network, a, b) for a, b in pairs]) if len(truth) else torch.zeros(0).double()


def _distance(network: nn.Module, guesses: Tensor, truth: Tensor) -> Tensor:
    layers = zip(_maps(network, guesses), _maps(network, truth), strict=True)
    # || f(a) - f(b) ||^2 over channels: [n, h, w]; then the mean over places; then that over layers.
    return torch.stack([(a - b).square().sum(1).mean((1, 2)) for a, b in layers]).mean(0)


def _maps(network: nn.Module, images: Tensor) -> list[Tensor]:
    """The seven maps `[n, c, h, w]` of images `[n, C, H, W]`, float64, of norm 1 over channels at each place."""
    scale = SMALLEST_SIDE / min(images.shape[2:])
    sized = images.float()
    if scale > 1:
        sized = F.interpolate(sized, [round(side * scale) for side in images.shape[2:]], mode="bilinear")
    found, x = [], as_in_training(sized)
    with torch.no_grad():
        for place, layer in enumerate(next(network.children()).children()):
            x = layer(x)
            if place in TAPS:
                found.append(F.normalize(x.double(), dim=1))
    return found


def as_in_training(images: Tensor) -> Tensor:
    """Images `[n, C, H, W]` on [0, 1], C = 1 or 3, with the mean and deviation of ImageNet's: `[n, 3, H, W]`."""
    mean, deviation = (torch.tensor(part).view(3, 1, 1) for part in (IMAGENET_MEAN, IMAGENET_DEVIATION))
    return (images.expand(-1, 3, -1, -1) - mean) / deviation


def features_missing(weights: str | None) -> str | None:
    """The reason why features are not available, as a sentence; None where they are.

    Args:
        weights: The file of weights (see `feature_network`).
    """
    path = feature_weights(weights)
    if path.is_file():
        return None
    if weights is not None:
        return f"score.features names {weights}, and there is no such file; correct the path."
    return (
        "Metrics of features need the weights of torchvision's squeezenet1_1, which are not on this machine: "
        'where there is network run `python -c "import torchvision; '
        "torchvision.models.squeezenet1_1(weights='DEFAULT')\"`"
        f", then copy {path.name} to {below_home(path.parent)}, or name a file as score.features."
    )


def feature_weights(weights: str | None) -> Path:
    """The file of weights: the one that is named, or where torchvision keeps them."""
    if weights is not None:
        return Path(weights)
    from torchvision.models import SqueezeNet1_1_Weights

    return Path(torch.hub.get_dir(), "checkpoints", SqueezeNet1_1_Weights.DEFAULT.url.rsplit("/", 1)[-1])


@lru_cache(maxsize=1)
def feature_network(weights: str | None = None) -> nn.Module:
    """SqueezeNet 1.1 up to its last features, averaged over all places: images `[k, 3, H, W]` to `[k, 512]`.

    Nothing is ever downloaded.

    Args:
        weights: A `.safetensors` file or a `state_dict` of torchvision's `squeezenet1_1`; None: where torchvision keeps
            its own.

    Raises:
        SeepageError: Where the file is missing or holds other weights.
    """
    missing = features_missing(weights)
    if missing is not None:
        raise SeepageError(missing)
    from torchvision.models import squeezenet1_1

    path, network = feature_weights(weights), squeezenet1_1()
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            network.load_state_dict(load_file(path))
        else:
            network.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    except Exception as error:  # whatever a foreign file may make a reader raise
        raise SeepageError(
            f"{path} holds no weights of torchvision's squeezenet1_1 ({type(error).__name__}); name another file as "
            "score.features"
        ) from error
    return nn.Sequential(network.features, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
