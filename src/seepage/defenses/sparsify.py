"""Send only the largest entries of the update."""

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from seepage.errors import SeepageError
from seepage.types import ClientView, Defense, Update


@dataclass(frozen=True, kw_only=True)
class Sparsify(Defense):
    """Keep the largest entries by magnitude of each tensor and set the others to zero (gradient pruning).

    Args:
        keep: Share of entries kept in each tensor, in (0, 1]; at least one entry is kept.
    """

    keep: float

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise SeepageError(f"Sparsify keeps a share in (0, 1], got keep={self.keep}; correct the recipe")

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        return replace(update, tensors={name: self._prune(t) for name, t in update.tensors.items()})

    def _prune(self, tensor: Tensor) -> Tensor:
        flat = tensor.flatten()
        kept = flat.abs().topk(max(1, round(self.keep * flat.numel()))).indices
        pruned = torch.zeros_like(flat)
        pruned[kept] = flat[kept]
        return pruned.reshape(tensor.shape)
