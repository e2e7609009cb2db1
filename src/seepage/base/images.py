"""Work on images that several packages share."""

import io
from base64 import b64encode

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGEST_SIDE = 128
"""Pictures with more pixels along a side are reduced, since a page may contain hundreds of them."""


def neighbor_differences(images: Tensor) -> tuple[Tensor, Tensor]:
    """Absolute differences of neighboring pixels, whose means or sums are an anisotropic total variation.

    Each paper reduces them in its own way, so the reduction is the caller's: a mean for each direction (whose counts
    differ by a row), or a sum. `torchmetrics` has a sum over both directions alone.

    Args:
        images: `[..., H, W]`.

    Returns:
        Down `[..., H - 1, W]` and across `[..., H, W - 1]`.

    >>> import torch
    >>> down, across = neighbor_differences(torch.tensor([[0.0, 1.0], [3.0, 3.0]]))
    >>> down.tolist(), across.tolist()
    ([[3.0, 2.0]], [[1.0], [0.0]])
    """
    return (images[..., 1:, :] - images[..., :-1, :]).abs(), (images[..., 1:] - images[..., :-1]).abs()


def pixels(picture: Tensor, largest: int = LARGEST_SIDE) -> NDArray[np.uint8]:
    """A picture `[C, H, W]` in [0, 1] as `[H, W, 3]` bytes, reduced to `largest` pixels along a side.

    >>> pixels(torch.full((1, 2, 2), 0.5))[0, 0].tolist()
    [128, 128, 128]
    """
    from PIL import Image  # slow to load, and pages alone need it

    bounded = picture.detach().float().cpu().nan_to_num(nan=0.5, posinf=1.0, neginf=0.0).clamp(0, 1)
    levels = (bounded * 255).round().to(torch.uint8).expand(3, -1, -1).permute(1, 2, 0)
    image = Image.fromarray(levels.contiguous().numpy())
    image.thumbnail((largest, largest), Image.Resampling.LANCZOS)
    return np.asarray(image)


def data_uri(picture: Tensor, largest: int = LARGEST_SIDE) -> str:
    """A picture `[C, H, W]` in [0, 1] as a PNG inside a `data:` address."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels(picture, largest)).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()


SHOWN = 16
"""Examples that a notebook shows."""


def shown(inputs: Tensor, labels: Tensor | None) -> str:
    """Shape, labels and pictures of the first examples `[n, ...]`, as HTML for a notebook.

    >>> shown(torch.zeros(2, 5), torch.tensor([1, 0]))
    '<p>shape 5; labels [1, 0]</p>'
    """
    named = "" if labels is None or labels.ndim > 1 else f"; labels {labels[:SHOWN].tolist()}"
    drawn = inputs.ndim == 4 and inputs.shape[1] in (1, 3) and inputs.is_floating_point()
    strip = (
        f'<img src="{data_uri(one)}" width="96" alt="example {i}" style="image-rendering: pixelated"> '
        for i, one in enumerate(inputs[: SHOWN if drawn else 0], 1)
    )
    shape = " x ".join(map(str, inputs.shape[1:]))
    return f"<p>shape {shape}{named}</p>{''.join(strip)}"
