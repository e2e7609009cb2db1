"""Train a decoder, an up-sampler, a denoiser or an inverter of features on images that are not private.

Seeds are fixed: the same images give the same bits.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor, nn

from seepage.attacks.generative.networks import Enhancer, UpSampler, decoder, encoder, shrunk, stretched
from seepage.base.clock import look
from seepage.base.nn import frozen_randomness, generator

BATCH = 64
"""Images of one training step."""
NOISE = 0.02
"""Largest noise, as a share of the value range, that the denoiser is shown on its inputs."""


def train_decoder(
    images: Tensor, bounds: tuple[float, float], *, latent: int, width: int, steps: int, lr: float
) -> nn.Module:
    """A decoder of standard normal numbers to images like `[m, c, H, W]` images: that of a variational autoencoder.

    The error of the decoder is Gaussian with the variance that fits best, so that nothing has to be weighed against the
    divergence of the latents from standard normal numbers (Rybkin et al., ICML 2021, section 3.2). Color images are
    mirrored at random. Adam with cosine decay.

    Args:
        images: Auxiliary images.
        bounds: Their value range.
        latent: Numbers per image.
        width: Channels of the last block; the first has up to four times as many.
        steps: Steps of 64 images.
        lr: Learning rate at the start.

    Returns:
        The decoder, in eval mode, its parameters not trainable.
    """
    shape = tuple(images.shape[1:])
    with frozen_randomness(0):
        decode = decoder(shape, latent, width, bounds).to(images)
        encode = encoder(shape, latent, width).to(images)
    draw = generator(0, "decoder")
    for picked in _batches(images, [decode, encode], steps, lr, draw):
        mean, spread = encode(picked).chunk(2, 1)
        noise = torch.randn(mean.shape, generator=draw).to(mean)
        error = (decode(mean + noise * (spread / 2).exp()) - picked).square().mean()
        fit = picked[0].numel() / 2 * error.clamp(min=1e-8).log()
        divergence = (mean.square() + spread.exp() - spread - 1).sum(1).mean() / 2
        (fit + divergence).backward()
    return settled(decode)


def train_upsampler(images: Tensor, *, scale: int, width: int, steps: int) -> nn.Module:
    """A network from images shrunk by `scale` to `[m, c, H, W]` images, by squared error."""
    size = (images.shape[2], images.shape[3])
    with frozen_randomness(0):
        enlarge = UpSampler(images.shape[1], width, size).to(images)
    for picked in _batches(images, [enlarge], steps, 1e-3, generator(0, "upsampler")):
        (enlarge(shrunk(picked, scale)) - picked).square().mean().backward()
    return settled(enlarge)


def train_denoiser(images: Tensor, bounds: tuple[float, float], *, scale: int, width: int, steps: int) -> nn.Module:
    """A network that restores the small versions of images `[m, c, H, W]` from what the low-resolution search returns.

    It is shown small images with noise of up to 2 % of the value range that were stretched and shrunk again, as the
    search's are, and learns the small images by squared error.
    """
    size = (images.shape[2], images.shape[3])
    with frozen_randomness(0):
        clean = Enhancer(images.shape[1], width).to(images)
    draw = generator(0, "denoiser")
    for picked in _batches(images, [clean], steps, 1e-3, draw):
        small = shrunk(picked, scale)
        noise = torch.randn(small.shape, generator=draw).to(small)
        strength = NOISE * (bounds[1] - bounds[0]) * torch.rand((len(small), 1, 1, 1), generator=draw).to(small)
        given = shrunk(stretched(small + strength * noise, size), scale)
        (clean(given) - small).square().mean().backward()
    return settled(clean)


def train_inverter(
    features: Tensor, images: Tensor, bounds: tuple[float, float], *, width: int, steps: int
) -> nn.Module:
    """A decoder of features `[m, k]`, in deviations, to their images `[m, c, H, W]`, by squared error."""
    with frozen_randomness(0):
        decode = decoder(tuple(images.shape[1:]), features.shape[1], width, bounds).to(images)
    for places in _places(len(images), [decode], steps, 2e-3, generator(0, "inverter")):
        picked = places.to(images.device)
        (decode(features[picked]) - images[picked]).square().mean().backward()
    return settled(decode)


def settled(network: nn.Module) -> nn.Module:
    """In eval mode, its parameters not trainable."""
    return network.eval().requires_grad_(False)


def _batches(images: Tensor, networks: Sequence[nn.Module], steps: int, lr: float, draw: Generator) -> Iterator[Tensor]:
    """Batches of images, those of color mirrored at random; after each one a step, as of `_places`."""
    for places in _places(len(images), networks, steps, lr, draw):
        picked = images[places.to(images.device)]
        if images.shape[1] == 3:
            mirrored = torch.rand((len(picked), 1, 1, 1), generator=draw).to(picked) < 0.5
            picked = torch.where(mirrored, picked.flip(3), picked)
        yield picked


def _places(count: int, networks: Sequence[nn.Module], steps: int, lr: float, draw: Generator) -> Iterator[Tensor]:
    """Places of the images of each batch; after each one, a step along the gradients that its user has left."""
    parameters = [parameter for network in networks for parameter in network.train().parameters()]
    optimizer = torch.optim.Adam(parameters, lr=lr, betas=(0.9, 0.99))
    for step in range(steps):
        look()
        optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
        places = torch.randint(count, (min(BATCH, count),), generator=draw)
        optimizer.zero_grad()
        with torch.enable_grad():
            yield places
        optimizer.step()
