"""The unit of values that networks are trained towards, which are scaled for training as people scale them."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Units:
    """What a target's scaled values mean: `value = mean + scale * scaled`.

    Attributes:
        mean: `[k]` float64 mean of the examples to train on, which is public: the guess that needs no update.
        scale: `[k]` float64 their standard deviation.

    >>> units = Units.of(torch.tensor([[1.0], [3.0]]))
    >>> units.scaled(torch.tensor([[5.0]]))
    tensor([[3.]])
    """

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, values: Tensor) -> "Units":
        """Those in which values `[m, k]` have mean 0 and standard deviation 1; 1 stands in for a deviation of 0.

        >>> Units.of(torch.full((1000, 1), 0.7)).scale
        tensor([1.], dtype=torch.float64)
        """
        values = values.double()
        deviation = values.std(0, unbiased=False)
        dust = torch.finfo(torch.float64).eps * values.abs().amax(0) * max(1, len(values))  # of adding equal numbers up
        return cls(values.mean(0), torch.where(deviation > dust, deviation, 1.0))

    def scaled(self, values: Tensor) -> Tensor:
        """`[n, k]` values as a network is trained towards them."""
        return ((values.double() - self.mean) / self.scale).to(torch.float32)

    def own(self, scaled: Tensor) -> Tensor:
        """`[n, k]` scaled values in their own unit again."""
        return (self.mean + self.scale * scaled.double()).to(torch.float32)


def in_words(value: float) -> str:
    """A number of somebody's own unit with three digits that count, and without an exponent where that is readable.

    >>> in_words(6412.3), in_words(0.0012345), in_words(2.5e15)
    ('6,410', '0.00123', '2.5e+15')
    """
    return f"{float(f'{value:.3g}'):,.10g}"
