"""Where a generator comes from: trained on the attacker's own images, or the user's by its dotted path."""

import hashlib
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.base import refuse
from seepage.attacks.generative.training import settled, train_decoder
from seepage.attacks.search.parameters import check_images
from seepage.base.nn import frozen_randomness
from seepage.base.registry import import_dotted
from seepage.base.storage import read_tensors
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge

FEWEST_IMAGES = 8
"""Fewest images a network is trained on."""
MOST_NETWORKS_KEPT = 4
"""Trained networks that a process keeps."""

TRAINING_LR = 2e-3
"""Learning rate of a generator's training, at its first step."""

_trained: dict[str, nn.Module] = {}


@dataclass(frozen=True, kw_only=True)
class ImagePrior:
    """A generator of images: trained on `Knowledge.auxiliary`, or somebody's own.

    The same images and settings give the same network, so it is trained once per process.

    Args:
        generator: Dotted path `module:factory` of your own; called as `factory(input_shape, latent)` it returns a
            module from `[n, latent]` standard normal numbers to `[n, *input_shape]` inputs in the value range.
        weights: Its `.safetensors` file; None: as the factory made it.
        latent: Numbers per image.
        width: Channels of the trained decoder's last block.
        training: Training steps of 64 images.
    """

    generator: str | None = None
    weights: str | None = None
    latent: int = 64
    width: int = 16
    training: int = 2000

    def __post_init__(self) -> None:
        if min(self.latent, self.width, self.training) < 1:
            raise SeepageError(f"a generator needs numbers above 0, got {self}; correct the recipe")
        if self.weights is not None and self.generator is None:
            raise SeepageError(
                "weights are those of a generator of your own; name it with generator = 'module:factory'"
            )

    def check(self, knowledge: Knowledge) -> None:
        """Raise `Inapplicable` without images to train on, and for data that are no images."""
        check_images(knowledge, "a generator of images")
        if self.generator is None:
            own_images(knowledge)

    def network(self, knowledge: Knowledge, like: Tensor) -> nn.Module:
        """The generator, in eval mode, in the precision and on the device of `like`."""
        self.check(knowledge)
        if self.generator is not None:
            return self._users(knowledge, like)
        images, bounds = own_images(knowledge), knowledge.value_range
        latent, width, steps, lr = self.latent, self.width, self.training, TRAINING_LR
        return remembered(
            f"decoder/{latent}/{width}/{steps}/{lr}/{bounds}",
            images,
            lambda: train_decoder(images, bounds, latent=latent, width=width, steps=steps, lr=lr),
        ).to(like)

    def _users(self, knowledge: Knowledge, like: Tensor) -> nn.Module:
        assert self.generator is not None
        network = users_network(self.generator, self.weights, knowledge.input_shape, self.latent).to(like)
        with torch.no_grad():
            made = tuple(network(torch.zeros((2, self.latent)).to(like)).shape)
        if made != (2, *knowledge.input_shape):
            raise SeepageError(
                f"{self.generator!r} makes {made} of 2 x {self.latent} numbers and inputs have shape "
                f"{knowledge.input_shape}; return images of that shape, or set latent"
            )
        return network


def users_network(use: str, weights: str | None, *arguments: Any) -> nn.Module:
    """A network of the user's own, in eval mode, its parameters not trainable.

    Args:
        use: Dotted path `module:factory`.
        weights: Its `.safetensors` file; None: as the factory made it.
        arguments: What the factory is called with.

    Raises:
        SeepageError: For a factory that returns no network, and for weights that do not fit it.
    """
    with frozen_randomness(0):
        network = import_dotted(use)(*arguments)
    if not isinstance(network, nn.Module):
        raise SeepageError(f"{use!r} returned a {type(network).__name__}; return a torch.nn.Module from the factory")
    if weights is not None:
        try:
            network.load_state_dict(read_tensors(Path(weights)))
        except RuntimeError as error:
            raise SeepageError(f"{weights} does not fit {use}: {error}; give its own file") from error
    return settled(network)


def own_images(knowledge: Knowledge) -> Tensor:
    """The attacker's `[m, c, H, W]` images in float32; `Inapplicable` where there are too few."""
    images = knowledge.auxiliary
    count = 0 if images is None else len(images)
    if images is None or count < FEWEST_IMAGES:
        raise refuse("too_few_images")(
            f"the attacker has {count or 'no'} images of their own and a network is trained on {FEWEST_IMAGES} or more",
            'give some with [auxiliary] use = "photos", or a trained network with generator = "module:factory"',
        )
    return images.float()


def remembered(settings: str, images: Tensor, train: Callable[[], nn.Module]) -> nn.Module:
    """A trained network: from this process, or trained now.

    Args:
        settings: All that the network depends on beside the images.
        images: What it is trained on.
        train: Trains it.
    """
    key = digest_of(settings, [images])
    if key not in _trained:
        _trained[key] = train().cpu()
        while len(_trained) > MOST_NETWORKS_KEPT:
            del _trained[next(iter(_trained))]
    return settled(deepcopy(_trained[key]))


def digest_of(settings: str, tensors: Iterable[Tensor]) -> str:
    """A digest of some words and of tensors with their shapes and devices."""
    digest = hashlib.sha256(settings.encode())
    for tensor in tensors:
        digest.update(f"/{tuple(tensor.shape)}/{tensor.dtype}/{tensor.device}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
