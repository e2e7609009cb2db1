"""Low-rank adapters written out, for tests without `peft`: its names, its arithmetic, nothing else of it."""

import torch
from torch import Tensor, nn


class Adapted(nn.Module):
    """y = W x + b + s B A x, with W and b frozen."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, deviation: float) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        nn.init.normal_(self.lora_B["default"].weight, std=deviation) if deviation else nn.init.zeros_(
            self.lora_B["default"].weight
        )
        self.scaling = {"default": scale}

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x) + self.scaling["default"] * self.lora_B["default"](self.lora_A["default"](x))
        return out


def network(
    input_shape: tuple[int, ...], num_classes: int, rank: int = 4, scale: float = 2.0, deviation: float = 0.1,
    hidden: int = 64,
) -> nn.Module:  # fmt: skip
    """Two layers with an adapter on the first; the second is frozen. A deviation of 0 is that of the first round."""
    size = int(torch.Size(input_shape).numel())
    first = Adapted(nn.Linear(size, hidden), rank, scale, deviation)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(hidden, num_classes).requires_grad_(False))


class Block(nn.Module):
    """A transformer's first block over patches of 4 pixels, with adapters on query and value; mean over tokens."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, rank: int, width: int) -> None:
        super().__init__()
        channels, height, _ = input_shape
        self.embed = nn.Conv2d(channels, width, 4, 4).requires_grad_(False)
        self.position = nn.Parameter(torch.randn(1, (height // 4) ** 2, width), requires_grad=False)
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.query, self.value = (Adapted(nn.Linear(width, width), rank, 1.0, 0.1) for _ in range(2))
        self.key = nn.Linear(width, width).requires_grad_(False)
        self.head = nn.Linear(width, num_classes).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        z = self.embed(x).flatten(2).transpose(1, 2) + self.position
        h = self.norm(z)
        weights = (self.query(h) @ self.key(h).transpose(1, 2) / 2).softmax(-1)
        logits: Tensor = self.head((z + (weights @ self.value(h)).tanh()).mean(1))
        return logits


def block(input_shape: tuple[int, ...], num_classes: int, rank: int = 4, width: int = 48) -> nn.Module:
    return Block(input_shape, num_classes, rank, width)
