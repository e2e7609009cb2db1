"""The account of an update without noise: how many numbers tell of how many, and what no attacker sees."""

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.base.nn import generator
from seepage.measure.bounds.jacobian import UpdateJacobian
from seepage.measure.bounds.van_trees import ROUNDING


@dataclass(frozen=True)
class RankAccount:
    """What an update tells of its batch to first order.

    Attributes:
        sent: Numbers sent.
        private: Private numbers they were made of.
        rank: Independent numbers about the batch among those sent; where `exact` is false a limit of it.
        hidden: `[n]` share of each example's energy that no attacker sees; where `exact` is false a lower limit.
        pixels: `[n, *shape]` share of each value that is hidden, from 0 to 1; where `exact` is false, 1 for the values
            that nothing sent depends on.
        exact: Whether the whole Jacobian was decomposed.
    """

    sent: int
    private: int
    rank: int
    hidden: Tensor
    pixels: Tensor
    exact: bool


def dense_account(gram: Tensor, inputs: Tensor, sent: int) -> RankAccount:
    """From J^T J `[n d, n d]`.

    A singular value below 2^-23 of the largest counts as 0: the rounding of single precision hides it. Example i's
    hidden share is ||N x_i||^2 / ||x_i||^2 with N the projector on the null space and x_i alone in the batch.

    Args:
        gram: Of the update's Jacobian.
        inputs: `[n, *shape]` the private examples.
        sent: Numbers sent.
    """
    values, vectors = torch.linalg.eigh(gram)
    blind = values <= ROUNDING**2 * values[-1].clamp(min=torch.finfo(values.dtype).tiny)
    null = vectors[:, blind]  # [n d, k]
    pixels = null.square().sum(1).reshape(inputs.shape)  # the diagonal of N
    rows = inputs.flatten(1)
    # x_i is 0 outside its block, so N x_i needs only the rows of `null` that belong to it.
    along = torch.einsum("nd,ndk->nk", rows, null.reshape(*rows.shape, -1))
    hidden = along.square().sum(1) / rows.square().sum(1).clamp(min=1e-30)
    rank = int((~blind).sum())
    return RankAccount(sent, len(values), rank, hidden.clamp(0, 1), pixels.clamp(0, 1), exact=True)


def limited_account(jacobian: UpdateJacobian, inputs: Tensor, sent: int, *, seed: int) -> RankAccount:
    """A limit by counting, for batches too large to decompose.

    A value on which nothing sent depends has a zero in J^T v for every v, and any other value has one for a random v
    with chance 0: two products find all of them.
    """
    draw = generator(seed, "values that nothing depends on")
    touched = torch.zeros(jacobian.values, dtype=torch.bool, device=inputs.device)
    for _ in range(2):
        v = torch.randn(jacobian.numbers, generator=draw, dtype=torch.float64).to(inputs)
        touched |= jacobian.backward(v) != 0
    pixels = (~touched).to(inputs).reshape(inputs.shape)
    lost = (inputs.square() * pixels).flatten(1).sum(1) / inputs.square().flatten(1).sum(1).clamp(min=1e-30)
    return RankAccount(sent, jacobian.values, min(sent, int(touched.sum())), lost, pixels, exact=False)
