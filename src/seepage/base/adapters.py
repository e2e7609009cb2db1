"""Low-rank adapters (LoRA) in a model: which layers have one, and what its two gradients say together.

An adapted layer computes `y = W x + s B A x` with A `[r, d]` and B `[m, r]`; W is frozen. With the errors `delta_t` in
its outputs, over all examples and positions t, and the gradient `G = sum_t delta_t x_t^T` that W would have:

    grad A = s B^T G      [r, d]  rows in the span of the inputs x_t; zero while B is zero, as in the first round
    grad B = s G A^T      [m, r]  rows in the span of A x_t, an r-dimensional shadow of the inputs

Both are sketches of G, which the server can undo where G has rank N <= r: `G = (G A^T) (B^T G A^T)^+ (B^T G)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class AdaptedLayer:
    """One layer with a low-rank adapter, as `peft` builds it.

    Attributes:
        name: Name of the adapted layer; its output is that of base and adapter together.
        base: Name of the frozen weight `[m, d]`; None where the base is no plain fully connected layer.
        down: Name of A `[r, d]`.
        up: Name of B `[m, r]`.
        scale: s.
    """

    name: str
    base: str | None
    down: str
    up: str
    scale: float


def adapted_layers(model: nn.Module) -> list[AdaptedLayer]:
    """The layers of a model that have a low-rank adapter, in the model's order.

    A layer counts whose `lora_A` and `lora_B` hold bias-free fully connected layers under the same names, and whose
    `scaling` tells the factor. Adapters that also change the length of the weight (DoRA) are left out.
    """
    return [found for name, module in model.named_modules() for found in _adapters(name, module)]


def _adapters(name: str, module: nn.Module) -> list[AdaptedLayer]:
    """The plain low-rank adapters `scale * B A` of a PEFT module; empty for any other module.

    Args:
        name: Name of the module in the network.
        module: The module.
    """
    down, up = getattr(module, "lora_A", None), getattr(module, "lora_B", None)
    scales: Any = getattr(module, "scaling", {})
    if not isinstance(down, nn.ModuleDict) or not isinstance(up, nn.ModuleDict) or not isinstance(scales, Mapping):
        return []
    base, prefix = getattr(module, "base_layer", None), f"{name}." if name else ""
    longer = getattr(module, "lora_magnitude_vector", {})
    return [
        AdaptedLayer(
            name,
            f"{prefix}base_layer.weight" if isinstance(base, nn.Linear) else None,
            f"{prefix}lora_A.{key}.weight",
            f"{prefix}lora_B.{key}.weight",
            float(scales[key]),
        )
        for key in down
        if key in up and key in scales and key not in longer and _plain(down[key]) and _plain(up[key])
    ]


def _plain(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and module.bias is None


def inside_adapters(model: nn.Module) -> set[str]:
    """Names of the fully connected layers that are an adapter's own A and B, which are no layers of the network."""
    own = adapted_layers(model)
    return {name.removesuffix(".weight") for layer in own for name in (layer.down, layer.up)}


def lifted(down: Tensor, up: Tensor, a: Tensor, b: Tensor, scale: float, rank: int) -> tuple[Tensor, float]:
    """The gradient G `[m, d]` of the adapted weight, of rank N <= r, and how far the two sketches differ.

    Both give the core `C = B^T G A^T`, which is what is inverted: the generalized Nystrom formula.

    Args:
        down: `[r, d]` gradient of A.
        up: `[m, r]` gradient of B.
        a: `[r, d]` A.
        b: `[m, r]` B.
        scale: s.
        rank: N.

    Returns:
        G, and the relative difference of the core as the one sketch and as the other has it: rounding in one
        gradient, more where the update was changed or the weights moved on the way.

    >>> draw = torch.Generator().manual_seed(0)
    >>> g = torch.randn(5, 2, generator=draw).double() @ torch.randn(2, 7, generator=draw).double()
    >>> a, b = torch.randn(3, 7, generator=draw).double(), torch.randn(5, 3, generator=draw).double()
    >>> found, off = lifted(2 * b.T @ g, 2 * g @ a.T, a, b, 2.0, 2)
    >>> torch.allclose(found, g), off < 1e-12
    (True, True)
    """
    left, right = up.double() / scale, down.double() / scale  # G A^T [m, r], B^T G [r, d]
    one, other = b.double().T @ left, right @ a.double().T  # C [r, r], twice
    u, s, vt = torch.linalg.svd((one + other) / 2)
    # C^+ cut to rank N: what is behind its first N singular values is rounding.
    inverse = vt[:rank].T @ (u[:, :rank] / s[:rank]).T
    size = max(float(one.norm()), float(other.norm()), 1e-300)
    return left @ inverse @ right, float((one - other).norm()) / size
