"""The Jacobian of an update by the private inputs, as products with vectors."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

CHUNK = 32
"""Vectors of one batched product: more save no time on a CPU and take memory."""


class UpdateJacobian:
    """J = d update / d inputs at one point, `[numbers, values]`, never held as a matrix.

    With y = f(x): J^T v is one backward pass. g(v) = J^T v is linear in v, so a backward pass through it gives J w
    (the double-backward trick). Both graphs are built once and kept. Through ReLU and max pooling the derivative is
    that of the linear piece that x lies in: it exists almost everywhere.

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
            self._y = function(self._x)
            self._v = torch.zeros_like(self._y, requires_grad=True)
            (self._g,) = torch.autograd.grad(self._y, self._x, self._v, create_graph=True, materialize_grads=True)
        self.values, self.numbers = self._x.numel(), self._y.numel()
        self._batched = True

    def forward(self, w: Tensor) -> Tensor:
        """J w: `[values]` to `[numbers]`, or rows of them."""
        return self._product(self._g, self._v, w)

    def backward(self, v: Tensor) -> Tensor:
        """J^T v: `[numbers]` to `[values]`, or rows of them."""
        return self._product(self._y, self._x, v)

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

    def _product(self, output: Tensor, leaf: Tensor, vectors: Tensor) -> Tensor:
        if not output.requires_grad:
            return leaf.new_zeros(*vectors.shape[:-1], leaf.numel())
        if vectors.ndim == 1:
            return _backward(output, leaf, vectors, batched=False)
        if self._batched:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that a layer's second derivative is not batched, only slower
                    return _backward(output, leaf, vectors, batched=True)
            except RuntimeError:  # a layer that cannot be batched at all
                self._batched = False
        return torch.stack([_backward(output, leaf, vector, batched=False) for vector in vectors])


def _backward(output: Tensor, leaf: Tensor, vector: Tensor, *, batched: bool) -> Tensor:
    (found,) = torch.autograd.grad(
        output, leaf, vector, retain_graph=True, is_grads_batched=batched, materialize_grads=True
    )
    return found.detach()
