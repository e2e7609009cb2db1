"""Normalization as the first layer, so that attacks and metrics always see values in [0, 1]."""

from torch import Tensor, nn


class Normalize(nn.Module):
    """`(x - mean) / std`, element by element, with one mean and one std for all channels.

    The default centers [0, 1] images at 0 with a typical photograph's spread. Data-set statistics per channel
    would tell an attacker something about the data; constants do not.
    """

    def __init__(self, mean: float = 0.5, std: float = 0.25) -> None:
        super().__init__()
        self.mean = mean
        self.std = std

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean}, std={self.std}"
