"""The derivative of some quantities by one tensor, as products with vectors."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Derivative:
    """The derivative J of some quantities `o(x)` at a point, with its transpose, each at the price of one pass.

    `J^T w` is a backward pass. For `J v` the map `u -> J^T u`, which is linear, is differentiated in turn (with any
    u): `d/du (v . J^T u) = J v`. So no layer needs a rule of its own. Both graphs are built once and kept. Through ReLU
    and max pooling the derivative is that of the linear piece that x lies in: it exists almost everywhere.

    Args:
        outputs: The quantities, with their graph.
        x: A leaf that they depend on, differentiably twice.

    >>> x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    >>> slope = Derivative([torch.relu(x) * 3], x)
    >>> slope.forward(torch.ones(1, 2)), slope.transposed([torch.ones(1, 2)])
    ([tensor([[3., 0.]])], tensor([[3., 0.]]))
    """

    def __init__(self, outputs: Sequence[Tensor], x: Tensor) -> None:
        self.outputs, self.x = list(outputs), x
        self.dual = [torch.zeros_like(output).requires_grad_(True) for output in self.outputs]  # u
        (self.pulled,) = torch.autograd.grad(self.outputs, x, self.dual, create_graph=True, materialize_grads=True)

    def forward(self, v: Tensor) -> list[Tensor]:
        """`J v`, one tensor for each quantity."""
        if not self.pulled.requires_grad:  # nothing depends on x
            return [torch.zeros_like(output) for output in self.outputs]
        return list(_pulled([self.pulled], self.dual, [v]))

    def transposed(self, w: Sequence[Tensor]) -> Tensor:
        """`J^T w`, shaped like `x`."""
        return _pulled(self.outputs, [self.x], w)[0]


def _pulled(of: Sequence[Tensor], by: Sequence[Tensor], along: Sequence[Tensor]) -> Sequence[Tensor]:
    return torch.autograd.grad(of, by, along, retain_graph=True, materialize_grads=True)
