"""What the blocks of a residual network read where batch norm in train mode ties the examples of a batch together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from seepage.attacks.activations.batch_norm import BatchNorm, CoupledReading, common_factor, factors_of, solve_coupled
from seepage.attacks.activations.block import Block
from seepage.attacks.activations.deconvolution import NEGATIVE, REMEDY, Deconvolved, negative_share, rectified
from seepage.attacks.gauss_newton.linearize import LayerUse
from seepage.errors import Inapplicable

UNEXPLAINED = 1e-2
"""Share of a weight gradient, or of a norm's, that a solution may leave unexplained."""
MULTIPLE = 1e-2
"""Relative difference of the size of softmax minus label from which on the update is a multiple of the gradient."""
SCALINGS = 2
"""Times that a layer is solved: the second time with the scale that the first one told."""


@dataclass(frozen=True, eq=False)
class Inside:
    """What a block read, and what goes back from it.

    Attributes:
        block: The block.
        read: `[n, C, H, W]` float64.
        slopes: `[n, C, H, W]` gradient of the mean loss in it.
        offset_known: `[C]` whether the level of a channel is known.
        features: `[n, k]` float64, what the head reads.
        labels: `[n]`.
        wanted: `[n, classes]` softmax minus label, as the gradient says.
        probabilities: `[n, classes]` of the network behind `read`.
        share: The update is so many times the gradient of the mean loss. `wanted` is over it.
    """

    block: Block
    read: Float[Tensor, "n C H W"]
    slopes: Float[Tensor, "n C H W"]
    offset_known: Bool[Tensor, " C"]
    features: Float[Tensor, "n k"]
    labels: Int[Tensor, " n"]
    wanted: Float[Tensor, "n classes"]
    probabilities: Float[Tensor, "n classes"]
    share: float = 1.0


def read_coupled(block: Block, last: Deconvolved, gradients: Mapping[str, Tensor]) -> Inside:
    """What the deepest block read that can be solved for, from the last one down.

    Args:
        block: The last block.
        last: Its last convolution, taken apart into its examples.
        gradients: The observed gradient, by name.

    Raises:
        Inapplicable: Where the last block is not convolution, norm, ReLU, convolution and norm, behind another norm and
            a ReLU, or its layers contradict each other.
    """
    first, final, _ = block.norms(gradients)
    after = block.use(block.last)
    each = factors_of(last.slopes)[:, None, None, None]
    read, slopes = last.read / each, last.slopes * each
    read, back, size = _between(first, after, read, slopes)
    x, deviation = final.normalized(after.applied(read))
    name = block.normalizes(block.last)
    assert name is not None  # `norms` refused it
    # A W of each example where units behind the norm are on, in its own size: A is softmax minus label over n.
    added = final.slopes_out(slopes * size, x, deviation)
    logits = block.logit_slopes(added, name)
    labels = logits.argmin(1)
    inside = _block_input(block, read, back, added, gradients, labels, len(labels) * logits)
    # All that was solved for so far does not depend on the update's size, but softmax minus label does.
    own = inside.probabilities - F.one_hot(labels, inside.probabilities.shape[1])
    share = float((inside.wanted * own).sum() / own.square().sum())
    share = share if share > 0 and abs(share - 1) > MULTIPLE else 1.0
    inside = replace(inside, wanted=inside.wanted / share)
    gradients = block.observed.over(share).gradient(block.knowledge.client)
    while True:
        try:
            inside = _further_in(inside, gradients)
        except Inapplicable:
            return replace(inside, share=share)


def _between(
    first: BatchNorm, after: LayerUse, read: Float[Tensor, "n C H W"], slopes: Float[Tensor, "n O h w"]
) -> tuple[Float[Tensor, "n C H W"], Float[Tensor, "n C H W"], float]:
    """What the second convolution of a block read, what goes back from it to the norm in front, and a factor f.

    Args:
        first: The norm between the convolutions.
        after: The second convolution.
        read: What it read, times f.
        slopes: Gradients of its outputs, over f.
    """
    # W^T D where the units between the convolutions are on: its sum over the batch is the gradient of beta.
    back = after.to_reading(after.weight, slopes) * (read > 0)
    size, off = common_factor(back.sum((0, 2, 3)), first.bias_gradient)
    if not (off < UNEXPLAINED and size > 0):
        raise Inapplicable("the gradients of the last block's layers contradict each other", REMEDY)
    return read / size, back * size, size


def _block_input(
    block: Block,
    between: Float[Tensor, "n O h w"],
    back: Float[Tensor, "n O h w"],
    added: Float[Tensor, "n O h w"],
    gradients: Mapping[str, Tensor],
    labels: Int[Tensor, " n"],
    wanted: Float[Tensor, "n classes"],
) -> Inside:
    """What a block read.

    Args:
        block: The block.
        between: What its second convolution read.
        back: Gradient of the mean loss in the outputs of the norm in front of that.
        added: The same in the sum of the block's two branches.
        gradients: The observed gradient.
        labels: Of the examples.
        wanted: Softmax minus label.
    """
    first, _, front = block.norms(gradients)
    before = block.use(block.before)
    on = (between > 0) & (first.weight != 0)[:, None, None]
    given = torch.where(on, (between - first.bias[:, None, None]) / first.weight[:, None, None], 0.0)
    reading, scale = None, 1.0
    for _ in range(SCALINGS):
        reading = _solved(block, block.before, first, back, given, on, gradients, scale, reading)
        read = rectified(reading.read)
        # Through a norm, slopes go with one over the scale of what is read; added as it is, they do not.
        scaling = before.to_reading(before.weight, reading.slopes)
        fixed = torch.zeros_like(scaling)
        if block.shortcut is None:
            fixed = added
        else:
            name, behind = block.shortcut
            norm, use = block.norm(behind, gradients), block.use(name)
            x, deviation = norm.normalized(use.applied(read), scale)
            scaling = scaling + use.to_reading(use.weight, norm.slopes_in(added, x, deviation))
        # All that goes back, where units are on, sums to the gradient of the beta in front.
        factor, off = common_factor(
            (scaling * (read > 0)).sum((0, 2, 3)), front.bias_gradient - (fixed * (read > 0)).sum((0, 2, 3))
        )
        if not (off < UNEXPLAINED and factor > 0):
            raise Inapplicable("the solved activations contradict the gradient of the batch norm in front", REMEDY)
        scale = 1 / factor
    assert reading is not None
    features, probabilities, slopes = block.coupled_tail(scale * read, labels)
    return Inside(block, scale * read, slopes, reading.offset_known, features, labels, wanted, probabilities)


def _further_in(inside: Inside, gradients: Mapping[str, Tensor]) -> Inside:
    """What the block in front of this one read.

    Raises:
        Inapplicable: Where there is none, or it cannot be solved for.
    """
    if not bool(inside.offset_known.all()):
        raise Inapplicable("it is not known where units are on", REMEDY)
    block = inside.block.previous()
    first, final, _ = block.norms(gradients)
    after = block.use(block.last)
    slopes = inside.slopes * (inside.read > 0)
    nowhere, nothing = torch.zeros_like(slopes, dtype=torch.bool), torch.zeros_like(slopes)
    reading, scale = None, 1.0
    for _ in range(SCALINGS):
        reading = _solved(block, block.last, final, slopes, nothing, nowhere, gradients, scale, reading)
        read, back, size = _between(first, after, rectified(reading.read), reading.slopes)
        scale = 1 / size
    assert reading is not None
    slopes = torch.where(
        reading.fits[:, None, None], slopes, final.slopes_out(reading.slopes, reading.x, reading.deviation)
    )
    return _block_input(block, read, back, slopes, gradients, inside.labels, inside.wanted)


def _solved(
    block: Block,
    name: str,
    norm: BatchNorm,
    slopes: Float[Tensor, "n O h w"],
    given: Float[Tensor, "n O h w"],
    on: Bool[Tensor, "n O h w"],
    gradients: Mapping[str, Tensor],
    scale: float,
    before: CoupledReading | None,
) -> CoupledReading:
    """`solve_coupled` of a convolution that reads the output of a ReLU, or the reason why it cannot be."""
    gradient = gradients[f"{name}.weight"]
    solved = solve_coupled(block.use(name), norm, slopes, given, on, gradient, scale=scale, before=before)
    if solved is None:
        raise Inapplicable("the last block reads more positions than its gradient tells", REMEDY)
    if not (solved.off < UNEXPLAINED and negative_share(solved.read) < NEGATIVE):
        raise Inapplicable("the gradients of the last two convolutions contradict each other", REMEDY)
    return solved
