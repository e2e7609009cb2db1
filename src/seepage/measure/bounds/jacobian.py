"""The Jacobian of an update by the private inputs, as products with vectors."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from seepage.base.algebra.derivative import Derivative

CHUNK = 32
"""Vectors of one batched product: more save no time on a CPU and take memory."""


class UpdateJacobian:
    """J = d update / d inputs at one point, `[numbers, values]`, never held as a matrix.

    Args:
        function: `[values]` inputs to `[numbers]` that are sent; differentiable twice.
        at: `[values]` the private inputs.

    >>> jacobian = UpdateJacobian(lambda x: torch.stack([x.sum(), x[0] * x[1]]), torch.tensor([2.0, 3.0]))
    >>> jacobian.forward(torch.tensor([1.0, 0.0])), jacobian.backward(torch.tensor([0.0, 1.0]))
    (tensor([1., 3.]), tensor([3., 2.]))
    """

    def __init__(self, function: Callable[[Tensor], Tensor], at: Tensor) -> None:
        with torch.enable_grad():
            self._x = at.detach().clone().requires_grad_()
            y = function(self._x)
            self._derivative = Derivative([y], self._x)
        self.values, self.numbers = self._x.numel(), y.numel()
        self._batched = True

    def forward(self, w: Tensor) -> Tensor:
        """J w: `[values]` to `[numbers]`, or rows of them."""
        return self._product(lambda some, batched: self._derivative.forward(some, batched=batched)[0], w)

    def backward(self, v: Tensor) -> Tensor:
        """J^T v: `[numbers]` to `[values]`, or rows of them."""
        return self._product(lambda some, batched: self._derivative.transposed([some], batched=batched), v)

    def gram(self, w: Tensor) -> Tensor:
        """J^T J w: `[values]`, or rows of them."""
        return self.backward(self.forward(w))

    def dense_gram(self) -> Tensor:
        """J^T J, `[values, values]`: from the rows of J where these are fewer, else column by column."""
        size = min(self.values, self.numbers)
        eye = torch.eye(size, dtype=self._x.dtype, device=self._x.device).split(CHUNK)
        if self.numbers < self.values:
            rows = torch.cat([self.backward(part) for part in eye])
            return rows.T @ rows
        gram = torch.cat([self.gram(part) for part in eye])
        return (gram + gram.T) / 2

    def _product(self, product: Callable[[Tensor, bool], Tensor], vectors: Tensor) -> Tensor:
        if vectors.ndim == 1:
            return product(vectors, False).detach()
        if self._batched:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that a layer's second derivative is not batched, only slower
                    return product(vectors, True).detach()
            except RuntimeError:  # a layer that cannot be batched at all
                self._batched = False
        return torch.stack([product(vector, False).detach() for vector in vectors])
