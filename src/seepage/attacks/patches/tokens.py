"""Where a transformer embeds its patches, and which parameter is added to them: found by running it, whatever its code.

    z_p = E x_p + b + pos_p        x_p: the d pixel values of patch p    E: [width, d]    pos: [tokens, width]

The gradient of the loss in pos_p is that in z_p, and so is that in the output of the layer that embeds the patches. A
parameter whose gradient has these rows is the position embedding, and shows which of its rows belong to which patch.
"""

from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.base import refuse
from seepage.attacks.network import AttackedRound
from seepage.base.algebra.rows import same_rows
from seepage.base.nn import LayerCall, captured_calls, forward, generator, in_mode
from seepage.base.rounding import FLOAT32_ZERO
from seepage.federation.types import Tensors

REMEDY = "use gradient_matching"
FIRST_LAYERS = 3
"""Layers, in the order of their calls, among which the embedding of the patches is looked for."""
PROBE_STD = 0.02
"""Standard deviation of the random weights that replace a head of zeros while it is probed: zeros pass no gradient."""
BASE = 2048
"""Two digits of this base number the values of an image."""


@dataclass(frozen=True, eq=False)
class PatchTokens:
    """The patch embedding of a network.

    Attributes:
        weight: Name of its weight, `[width, d]` when flattened.
        position: Name of the position embedding.
        axis: Axis of the position embedding that holds the width.
        rows: `[P]` for each patch its row among the position embedding's, flattened to `[tokens, width]`.
        pixels: `[P, d]` which value of the flattened image each entry of a patch is; -1: padding.
        scale: `[P, d]` what that value was multiplied with.
        shift: `[P, d]` what was added then.
    """

    weight: str
    position: str
    axis: int
    rows: Tensor
    pixels: Tensor
    scale: Tensor
    shift: Tensor

    @classmethod
    def of(cls, attacked: AttackedRound) -> "PatchTokens":
        """Find it.

        Raises:
            Inapplicable: Where the network embeds no patches of the image, or adds no learned positions to them.
        """
        by_layer, by_parameter = _probed(attacked)
        for name, (call, slopes) in by_layer.items():
            layer = attacked.model.get_submodule(name)
            by_place = _flat(slopes, 1 if isinstance(layer, nn.Conv2d) else slopes.ndim - 1)  # [P, width]
            position = _position(by_place, by_parameter, f"{name}.")
            if position is None and isinstance(layer, nn.Conv2d) and layer.stride < layer.kernel_size:
                continue  # an ordinary convolution: its patches overlap
            entries = _entries(call, layer, torch.Size(attacked.knowledge.input_shape).numel())
            if entries is None:
                continue
            if position is None and _overlap(entries[0]):
                continue  # an ordinary convolution
            if position is None:
                raise refuse("no_positions")(
                    f"{name} embeds the image's patches and no trained parameter is added to them (frozen, sinusoidal, "
                    "rotary or relative positions, or a normalization in between), so their gradients are not sent",
                    REMEDY,
                )
            return cls(f"{name}.weight", *position, *entries)
        raise refuse("no_patches")(
            "no layer reads the image's pixels patch by patch (the network is no vision transformer, or has a stem of "
            "several convolutions)",
            REMEDY,
        )

    @property
    def scaled_alike(self) -> bool:
        """Whether an entry of a patch has one scale in all patches."""
        return bool(((self.scale - self.scale[0]).abs() <= FLOAT32_ZERO * self.scale[0].abs()).all())

    def equations(self, gradient: Tensors) -> tuple[Tensor, Tensor]:
        """`[P, width]` errors D of the patches' tokens, and `[width, d]` the patch embedding's gradient G = D^T X.

        Raises:
            Inapplicable: Where one of them is zero.
        """
        errors, products = self.errors(gradient), gradient[self.weight].double().cpu().flatten(1)
        if not bool(errors.any()) or not bool(products.any()):
            raise refuse("zero_gradient")(
                "the gradient of the position or the patch embedding is zero (the head is still zero, or they are "
                "frozen or withheld)",
                "look at the update of a later round",
            )
        return errors, products

    def errors(self, gradient: Tensors) -> Tensor:
        """`[P, width]` the gradient of the loss in each patch's token, in float64."""
        return _flat(gradient[self.position].double().cpu(), self.axis)[self.rows]

    def embed(self, image: Tensor) -> Tensor:
        """`[P, d]` what the layer reads of an image `[1, C, H, W]`."""
        return self.linear(image) + self.shift

    def linear(self, image: Tensor) -> Tensor:
        """`embed` without its constant."""
        return image.flatten()[self.pixels.clamp(min=0)] * self.scale * (self.pixels >= 0)

    def adjoint(self, entries: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The transpose of `linear`: entries `[P, d]` of patches, added up to an image `[1, C, H, W]`."""
        used = self.pixels >= 0  # padding belongs to no pixel
        image = torch.zeros(torch.Size(shape).numel(), dtype=entries.dtype)
        return image.index_add(0, self.pixels[used], (entries * self.scale)[used]).reshape(1, *shape)


def _probed(attacked: AttackedRound) -> tuple[dict[str, tuple[LayerCall, Tensor]], Tensors]:
    """One pass of the network over an image of noise, forwards and back.

    Returns:
        For each of the first convolutions and fully connected layers, of those that are called once: its call on images
        of zeros, of ones, and of each value's number, digit by digit; and the gradient in its output. Beside it the
        gradient in each trained parameter.
    """
    model, shape, draw = attacked.model, attacked.knowledge.input_shape, generator(0, "probe")
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    params = {
        name: (p if p.any() else PROBE_STD * torch.randn(p.shape, generator=draw).to(p)).detach().requires_grad_()
        for name, p in attacked.observed.params.items()
    }
    like, buffers = attacked.like(), attacked.observed.buffers
    image = torch.rand((1, *shape), generator=draw).to(like)
    # Each value's number has two digits, so that float32 tells them apart.
    numbers = torch.arange(image.numel()).view_as(image)
    digits = [(numbers // BASE).to(image) / BASE, (numbers % BASE).to(image) / BASE]
    coded_images = torch.cat([torch.zeros_like(image), torch.ones_like(image), *digits])
    with in_mode(model, training=False):
        with torch.enable_grad(), captured_calls(model, names) as calls:
            logits = forward(model, params, image.requires_grad_(), buffers=buffers)
        with torch.no_grad(), captured_calls(model, names) as coded:
            forward(model, params, coded_images, buffers=buffers)
    once = dict(islice(((n, c[0]) for n, c in calls.items() if len(c) == 1), FIRST_LAYERS))
    # Any loss with a gradient in every logit: only which gradients are equal is read from it.
    loss = (logits * torch.randn(logits.shape, generator=draw).to(logits)).sum()
    wanted = [*(call.output for call in once.values()), *params.values()]
    slopes = torch.autograd.grad(loss, wanted, materialize_grads=True)
    by_layer = {name: (coded[name][0], slope) for name, slope in zip(once, slopes, strict=False)}
    return by_layer, dict(zip(params, slopes[len(once) :], strict=True))


def _entries(call: LayerCall, layer: nn.Module, size: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """For each entry `[P, d]` of what a layer reads: its place in the image, its scale and its shift.

    None where it reads anything but scaled and shifted pixels, one by one, in more than one patch.
    """
    patches = _patches(call.input, layer)
    if patches is None:
        return None
    # Entries are affine in one pixel: entry = scale * pixel + shift. An image of zeros shows the shift, one of ones the
    # scale, and the two digits of each pixel's number then which pixel it is. [P, d] each
    zero, one, *digits = patches.double().cpu()
    scale, shift = one - zero, zero
    padding = scale == 0
    # digit / BASE is at most 1 and float32 keeps it to 2^-24: digits of 0 to 2047 are rounded right.
    high, low = (BASE * (digit - shift) / torch.where(padding, 1.0, scale) for digit in digits)
    pixels = BASE * high.round() + low.round()
    whole = all(bool((digit - digit.round()).abs().max() < 0.1) for digit in (high, low))
    if padding.all() or len(pixels) < 2 or not whole or pixels.min() < 0 or pixels.max() >= size:
        return None
    return torch.where(padding, -1.0, pixels).long(), torch.where(padding, 1.0, scale), shift


def _overlap(pixels: Tensor) -> bool:
    """Whether any pixel belongs to several patches."""
    used = pixels[pixels >= 0]
    return len(used.unique()) < len(used)


def _patches(read: Tensor, layer: nn.Module) -> Tensor | None:
    """`[4, P, d]` the vectors that a layer multiplies its weight with, for each of the images."""
    if isinstance(layer, nn.Linear):
        return read.reshape(len(read), -1, read.shape[-1]) if read.ndim > 2 else None
    assert isinstance(layer, nn.Conv2d)
    if layer.groups != 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros" or read.ndim != 4:
        return None
    # A convolution is weight.flatten(1) [width, d] times these columns.
    columns = F.unfold(read, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # [4, d, P]
    return columns.transpose(1, 2)


def _position(tokens: Tensor, by_parameter: Tensors, own: str) -> tuple[str, int, Tensor] | None:
    """The parameter whose gradient has the tokens' as rows: its name, the axis of its width, and `[P]` their rows."""
    for name, gradient in by_parameter.items():
        for axis in range(gradient.ndim - 1, -1, -1):
            rows = None if name.startswith(own) else _matched(tokens, gradient, axis)
            if rows is not None:
                return name, axis, rows
    return None


def _flat(tensor: Tensor, axis: int) -> Tensor:
    """`[rest, size of axis]`."""
    return tensor.movedim(axis, -1).reshape(-1, tensor.shape[axis])


def _matched(tokens: Tensor, gradient: Tensor, axis: int) -> Tensor | None:
    """`[P]` which row of a parameter's gradient each token's is, or None."""
    if gradient.shape[axis] != tokens.shape[1] or gradient.numel() < tokens.numel():
        return None
    return same_rows(tokens, _flat(gradient, axis))
