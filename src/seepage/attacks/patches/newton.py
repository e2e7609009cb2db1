"""Patches that are nearly known, made exact by the network itself: Gauss-Newton on the position embedding's gradient.

    S(A) = sum_i D_i(X_i + A_i R)        X_i [P, d]: image i's patches        R [m, d]: what they may be off by

D_i is the gradient in the tokens of image i, which the network gives by a backward pass. That of a token depends most
on the token itself: the derivative of row p of S in `A_1p, ..., A_np` is nearly all there is, a block of `[width, n m]`
that is well conditioned. Its inverses, block by block, precondition the conjugate gradients.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from seepage.attacks.network import AttackedRound
from seepage.attacks.patches.tokens import PatchTokens
from seepage.base.algebra.derivative import Derivative
from seepage.base.nn import forward, generator, in_mode
from seepage.base.second_derivatives import twice_differentiable
from seepage.base.solvers import conjugate_gradients

ITERATIONS = 40
"""Conjugate gradients of one step; the derivative itself changes by more than another ten would gain."""
SHARED_WEIGHT = 0.05
"""Weight of the rows of tokens that are no patches, as the class token's: one row, nine tenths of the derivative."""
HELD = 0.01
"""Added to the blocks before they are inverted, as a share of their mean diagonal entry."""
MOST_ORDERS = 24
"""Orders of the labels that are tried, each by a backward pass: those of four images."""


@dataclass(frozen=True, eq=False)
class SummedTokens:
    """The gradient in the position embedding, S, as a function of the images' patches.

    Attributes:
        attacked: The round.
        tokens: Where patches and positions are.
        order: `[P]` for each patch, in reading order, which of the tokens' it is.
        pixels: `[P, d]` which value of the flattened image each entry of a patch is.
    """

    attacked: AttackedRound
    tokens: PatchTokens
    order: Tensor
    pixels: Tensor

    def images(self, patches: Tensor) -> Tensor:
        """Images `[n, *shape]` of patches `[n, P, d]`, with their graph."""
        flat = patches.new_zeros(len(patches), self.pixels.numel())
        flat = flat.index_copy(1, self.pixels.flatten().to(patches.device), patches.flatten(1))
        return flat.view(-1, *self.attacked.knowledge.input_shape)

    def __call__(self, patches: Tensor, labels: Tensor, *, create_graph: bool = False) -> Tensor:
        """S `[tokens, width]` of the mean loss at these patches, with its graph where it is to be differentiated."""
        attacked, name = self.attacked, self.tokens.position
        position = attacked.observed.params[name].detach().clone().requires_grad_()
        params = {**attacked.observed.params, name: position}
        with in_mode(attacked.model, training=False), torch.enable_grad(), twice_differentiable(attacked.model):
            logits = forward(attacked.model, params, self.images(patches), buffers=attacked.observed.buffers)
            loss = attacked.knowledge.client.loss_of(logits, labels)
            (gradient,) = torch.autograd.grad(loss, position, create_graph=create_graph)
        return self.rows(gradient)

    @property
    def observed(self) -> Tensor:
        """S `[tokens, width]` as the client sent it."""
        return self.rows(self.attacked.gradient[self.tokens.position])

    def rows(self, gradient: Tensor) -> Tensor:
        """`[tokens, width]`; first the patches in reading order, then the tokens that are none."""
        rows = gradient.movedim(self.tokens.axis, -1).flatten(0, -2)
        patches = self.tokens.rows[self.order].to(rows.device)
        others = torch.ones(len(rows), dtype=torch.bool, device=rows.device).index_fill(0, patches, False)
        return torch.cat([rows[patches], rows[others]])

    def in_order(self, patches: Tensor, labels: Tensor) -> Tensor | None:
        """The labels in the order of the images, by which S is nearest; None where too many orders would be tried."""
        if math.factorial(len(labels)) > MOST_ORDERS:
            return None
        known = labels.tolist()
        orders = [torch.tensor(order, device=labels.device) for order in permutations(known)]
        return min(orders, key=lambda order: float((self(patches, order) - self.observed).norm()))


def sharpened(summed: SummedTokens, patches: Tensor, span: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Patches `[n, P, d]` after each step of Gauss-Newton, and by which share of its length S was off before it.

    Args:
        summed: S as a function.
        patches: `[n, P, d]` the first guess.
        span: `[m, d]` R, orthonormal.
        labels: `[n]` in the order of the images.
    """
    n, count, m = len(patches), patches.shape[1], len(span)
    observed, span, precondition = summed.observed, span.to(patches), None
    size = observed.norm()
    weight = torch.full((len(observed), 1), SHARED_WEIGHT, device=patches.device)
    weight[:count] = 1
    while True:
        step = torch.zeros(n, count, m, device=patches.device, requires_grad=True)  # A
        with torch.enable_grad():
            found = summed(patches + step @ span, labels, create_graph=True)
            slope = Derivative([found / size * weight], step)
        rest = ((observed - found.detach()) / size) * weight
        yield patches, float((observed - found.detach()).norm() / size)
        precondition = precondition or _by_blocks(slope, count, (n, count, m))
        # J^T J A = J^T (S observed - S(0)), both sides weighted.
        normal = _normal(slope)
        moved = conjugate_gradients(
            normal, slope.transposed([rest]), precondition, steps=ITERATIONS, tolerance=1e-9, preconditioned=True
        )
        patches = (patches + moved @ span).detach()


def _normal(slope: Derivative) -> Callable[[Tensor], Tensor]:
    return lambda v: slope.transposed(slope.forward(v))


def _by_blocks(slope: Derivative, count: int, shape: tuple[int, int, int]) -> Callable[[Tensor], Tensor]:
    """The inverses of J^T J's blocks, one for each patch, as a map of `[n, P, m]`.

    All patches of an image are moved along one direction at a time, each with a random sign: row p of what comes of
    it, times the sign of p, is the column of block p, and what the others add to it has any sign.
    """
    n, _, m = shape
    draw, like = generator(0, "blocks"), slope.x
    blocks = torch.zeros(count, slope.outputs[0].shape[1], n * m, device=like.device)  # [P, width, n m]
    for column in range(n * m):
        signs = (2.0 * torch.randint(0, 2, (count,), generator=draw) - 1).to(like)
        probe = torch.zeros(shape, device=like.device)
        probe[column // m, :, column % m] = signs
        (moved,) = slope.forward(probe)
        blocks[:, :, column] = moved[:count] * signs[:, None]
    normal = blocks.transpose(1, 2) @ blocks  # [P, n m, n m]
    held = HELD * normal.diagonal(dim1=1, dim2=2).mean(1)
    inverse = torch.linalg.inv(normal + held[:, None, None] * torch.eye(n * m, device=like.device))

    def applied(rest: Tensor) -> Tensor:
        flat = rest.transpose(0, 1).reshape(count, n * m, 1)
        moved: Tensor = (inverse @ flat).view(count, n, m).transpose(0, 1)
        return moved

    return applied
