"""Examples of which an update's layers tell what a layer reads."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class KnownInputs:
    """Examples known at one layer.

    Attributes:
        layer: Counted from the network's first.
        readings: `[k, d]` what the layer reads of each.
        labels: `[k]`.
        mismatch: `[k]` how far each was from its group of units when it was found.
        error: `[k]` relative error to expect of each reading: rounding, and errors of those taken away before.
    """

    layer: int
    readings: Float[Tensor, "k d"]
    labels: Int[Tensor, " k"]
    mismatch: Float[Tensor, " k"]
    error: Float[Tensor, " k"]

    def joined(self, other: "KnownInputs") -> "KnownInputs":
        return KnownInputs(
            self.layer,
            torch.cat([self.readings, other.readings]),
            torch.cat([self.labels, other.labels]),
            torch.cat([self.mismatch, other.mismatch]),
            torch.cat([self.error, other.error]),
        )

    def at(self, places: slice | Tensor) -> "KnownInputs":
        parts = (part[places] for part in (self.readings, self.labels, self.mismatch, self.error))
        return KnownInputs(self.layer, *parts)

    def has(self, reading: Tensor) -> bool:
        """Whether an example is among them already."""
        # One example read off two groups of units agrees to the error of both, two examples differ by far more.
        apart = (self.readings - reading).norm(dim=1)
        return bool((apart < 1e-3 * reading.norm()).any())
