"""Record which side of each non-smooth point a network takes (ReLU, max pooling), and take the same sides again."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

ActivationPattern = Tensor
"""What one call decided: a piecewise linear function's output, or the places of the largest entries."""
Options = dict[str, Any]

aten = torch.ops.aten


class RecordedPattern(TorchFunctionMode):
    """Inside this block, note the sides that `relu`, `leaky_relu`, `hardtanh`, `relu6` and max pooling take.

    Attributes:
        patterns: One entry per call, in order.

    >>> with RecordedPattern() as taken:
    ...     _ = torch.tensor([-1.0, 2.0]).relu()
    >>> with FrozenPattern(taken.patterns):  # at another point, the same sides
    ...     there = torch.tensor([1.0, -3.0]).relu()
    >>> there
    tensor([ 0., -3.])
    """

    def __init__(self) -> None:
        super().__init__()
        self.patterns: list[ActivationPattern] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Options | None = None
    ) -> Any:
        options = kwargs or {}
        if func in _POOLS:
            largest, places = _POOLS[func][0](*args, **{**options, "return_indices": True})
            self.patterns.append(places)
            return largest
        output = func(*args, **options)
        if func in _PIECEWISE:
            self.patterns.append(output.detach())
        return output


class FrozenPattern(TorchFunctionMode):
    """Inside this block, the recorded calls take the recorded sides, whatever their inputs are.

    Every function then is smooth, and equals the network near the recorded point.
    A call that changes its input in place returns a new tensor here.
    """

    def __init__(self, patterns: Iterable[ActivationPattern]) -> None:
        super().__init__()
        self._patterns = iter(patterns)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Options | None = None
    ) -> Any:
        if func in _POOLS:
            places, dims = next(self._patterns), _POOLS[func][1]  # flat ones, in the last `dims` sides
            return args[0].flatten(-dims).gather(-1, places.flatten(-dims)).view(places.shape)
        if func in _PIECEWISE:
            return _PIECEWISE[func](next(self._patterns), *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _relu(taken: Tensor, inputs: Tensor, inplace: bool = False) -> Tensor:
    # PyTorch's kernel of the ReLU's derivative is the frozen ReLU, and several times faster than a mask.
    return aten.threshold_backward(inputs, taken, 0)  # type: ignore[no-any-return]


def _leaky_relu(taken: Tensor, inputs: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return aten.leaky_relu_backward(inputs, taken, negative_slope, True)  # type: ignore[no-any-return]


def _hardtanh(
    taken: Tensor, inputs: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    clamped = taken - aten.hardtanh_backward(taken, taken, min_val, max_val)
    return aten.hardtanh_backward(inputs, taken, min_val, max_val) + clamped  # type: ignore[no-any-return]


def _relu6(taken: Tensor, inputs: Tensor, inplace: bool = False) -> Tensor:
    return _hardtanh(taken, inputs, 0.0, 6.0)


_PIECEWISE: dict[Callable[..., Any], Callable[..., Tensor]] = {
    **dict.fromkeys((F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), _relu),
    **dict.fromkeys((F.leaky_relu, F.leaky_relu_), _leaky_relu),
    **dict.fromkeys((F.hardtanh, F.hardtanh_), _hardtanh),
    F.relu6: _relu6,
}
_POOLS: dict[Callable[..., Any], tuple[Callable[..., Any], int]] = {
    F.max_pool1d: (F.max_pool1d, 1),
    F.max_pool2d: (F.max_pool2d, 2),
    F.max_pool3d: (F.max_pool3d, 3),
    F.adaptive_max_pool2d: (F.adaptive_max_pool2d, 2),
    torch.max_pool2d: (F.max_pool2d, 2),
}
