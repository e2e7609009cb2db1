"""What real inputs look like, as penalties on the candidates."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from seepage.errors import Inapplicable
from seepage.types import Knowledge


class Prior(ABC):
    """A penalty on candidates `[restarts, batch, *shape]`, one number for each restart."""

    @abstractmethod
    def __call__(self, candidates: Float[Tensor, "restarts batch *shape"]) -> Float[Tensor, " restarts"]:
        """Penalties `[restarts]`."""

    def check(self, knowledge: Knowledge) -> None:
        """Raise `Inapplicable` where the prior makes no sense, e.g. total variation on a table."""
        return


@dataclass(frozen=True)
class TotalVariation(Prior):
    """Anisotropic total variation: mean absolute difference of neighbours, down plus across, times `weight`.

    Zero for inputs that are no images: columns of a table have no neighbours.

    Args:
        weight: Weight against the gradient distance.
    """

    weight: float

    def __call__(self, candidates: Float[Tensor, "restarts batch *shape"]) -> Float[Tensor, " restarts"]:
        if candidates.ndim != 5:
            return (candidates * 0).flatten(1).sum(1)  # zero, and differentiable
        down = candidates.diff(dim=-2).abs().flatten(1).mean(1)
        across = candidates.diff(dim=-1).abs().flatten(1).mean(1)
        return self.weight * (down + across)

    def check(self, knowledge: Knowledge) -> None:
        if len(knowledge.input_shape) == 3 and min(knowledge.input_shape[1:]) < 2:
            raise Inapplicable(
                f"total variation needs neighbours and images here are {knowledge.input_shape[1:]} pixels",
                "set the attack's tv to 0",
            )
