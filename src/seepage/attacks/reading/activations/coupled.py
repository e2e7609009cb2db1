"""What the blocks of a residual network read where batch norm in train mode ties the examples of a batch together.

All that only train mode needs of a network is here; its algebra is in `batch_norm`.
"""

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seepage.attacks.network.linearize import LayerUse
from seepage.attacks.reading.activations.batch_norm import (
    BatchNorm,
    CoupledReading,
    common_factor,
    factors_of,
    solve_coupled,
)
from seepage.attacks.reading.activations.block import Block, InnerActivations, feeds, is_plain
from seepage.attacks.reading.activations.deconvolution import (
    REMEDY,
    Deconvolved,
    negative_share,
    rectified,
)
from seepage.attacks.reading.head.equations import UNEXPLAINED
from seepage.errors import Inapplicable, refuse

RESCALED = 1e-2
"""Relative difference of the size of softmax minus label from which on the update is a multiple of the gradient."""
SCALINGS = 2
"""Times that a layer is solved: the second time with the scale that the first one gave."""


class CoupledBlock(Block):
    """A block with batch norms in train mode: one behind each convolution, and one in front of both."""

    def previous(self) -> Self:
        """The block whose output this one reads: two convolutions, each with a batch norm behind it.

        Raises:
            Inapplicable: Where there is none.
        """
        given = self.calls[self.source].output
        for last in reversed(self.convolutions[: self.convolutions.index(self.before)]):
            norm = self.normalizes(last)
            if norm is None or not is_plain(self.attacked.model.get_submodule(last)):
                continue
            if feeds(self.calls[norm], given):
                return self._ending_in(last, self.attacked, self.head, self.calls, self.convolutions)
        raise refuse("network")("in front of it is no block of two convolutions", REMEDY)

    @cached_property
    def _norms(self) -> list[str]:
        return [name for name in self.calls if isinstance(self.attacked.model.get_submodule(name), nn.BatchNorm2d)]

    def normalizes(self, layer: str) -> str | None:
        """Name of the batch norm that reads a layer's outputs."""
        return next((name for name in self._norms if self.calls[name].input is self.calls[layer].output), None)

    @cached_property
    def shortcut(self) -> tuple[str, str] | None:
        """Names of the convolution and the batch norm on the shortcut; None where what was read is added as it is.

        Raises:
            Inapplicable: Where it is neither.
        """
        final, read = self.normalizes(self.last), self.calls[self.before].input
        assert final is not None  # `norms` refused it
        behind = self._normalized(final)
        # What the block gives: its second norm's outputs, and the shortcut's, behind a ReLU.
        given = next((call.output for call in self.calls.values() if feeds(self.calls[final], call.output)), None)
        if given is not None:
            if read.shape == behind.shape and torch.allclose((behind + read).relu(), given):
                return None
            for name in (one for one in self.convolutions if self.calls[one].input is read):
                norm = self.normalizes(name)
                if norm and norm != final and torch.allclose((behind + self._normalized(norm)).relu(), given):
                    return name, norm
        raise refuse("network")("the last block adds up something else than its input or one convolution of it", REMEDY)

    def _normalized(self, name: str) -> Tensor:
        """What a batch norm gave for the random images, before anything was added to it in place."""
        params, buffers = self.attacked.observed.params, self.attacked.observed.buffers
        layer = self.attacked.model.get_submodule(name)
        assert isinstance(layer, nn.BatchNorm2d)
        running = (buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"])
        weights = (params[f"{name}.weight"], params[f"{name}.bias"])
        return F.batch_norm(self.calls[name].input, *running, *weights, training=False, eps=layer.eps)

    @cached_property
    def norms(self) -> tuple[BatchNorm, BatchNorm, BatchNorm]:
        """The batch norms behind the convolution before, behind the last one, and in front of both.

        Raises:
            Inapplicable: Where one of them is missing, or its gradients.
        """
        read = self.calls[self.source].output
        front = next((name for name in reversed(self._norms) if feeds(self.calls[name], read)), None)
        names = [self.normalizes(self.before), self.normalizes(self.last), front]
        found = [self.norm(name) for name in names if name is not None]
        if len(found) < len(names):
            raise refuse("network")("the last block is not made of convolutions with batch norms behind them", REMEDY)
        return found[0], found[1], found[2]

    def norm(self, name: str) -> BatchNorm:
        """A batch norm and its gradients."""
        return BatchNorm.of(self.attacked.model, name, self.attacked.observed.params, self.attacked.gradient)

    def coupled_tail(
        self, read: Float[Tensor, "n C H W"], labels: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n C"], Float[Tensor, "n C H W"]]:
        """`tail` in train mode, and the gradient of the mean loss in what the last block reads, in float64."""
        leaf = read.clone().requires_grad_()
        params, buffers = ({name: one.cpu() for name, one in tensors.items()} for tensors in self.attacked.exact)
        features, logits = self._behind(leaf, params, buffers, training=True)
        (slopes,) = torch.autograd.grad(F.cross_entropy(logits, labels), leaf)
        return features.detach(), logits.detach().softmax(1), slopes


class _Inside(NamedTuple):
    """What a block read, and what goes back from it, in float64."""

    block: CoupledBlock
    read: Float[Tensor, "n C H W"]
    slopes: Float[Tensor, "n C H W"]
    """Gradient of the mean loss in what was read."""
    offset_known: Bool[Tensor, " C"]
    features: Float[Tensor, "n k"]
    probabilities: Float[Tensor, "n classes"]
    """Of the network behind `read`, as the features are."""


def read_coupled(block: CoupledBlock, last: Deconvolved) -> InnerActivations:
    """What the deepest block read that can be solved for, from the last one down.

    Args:
        block: The last block.
        last: Its last convolution, taken apart into its examples.

    Raises:
        Inapplicable: Where the last block is not convolution, norm, ReLU, convolution and norm, behind another norm and
            a ReLU, or its layers contradict each other.
    """
    first, final, _ = block.norms
    after = block.use(block.last)
    read, slopes = last
    each = factors_of(slopes)[:, None, None, None]
    slopes = slopes * each
    read, back, size = _between(first, after, read / each, slopes)
    x, deviation = final.normalized(after.applied(read))
    name = block.normalizes(block.last)
    assert name is not None  # `norms` refused it
    # A W of each example where units behind the norm are on, in its own size: A is softmax minus label over n.
    added = final.slopes_out(slopes * size, x, deviation)
    logits = block.logit_slopes(added, name)
    labels, wanted = logits.argmin(1), len(logits) * logits
    inside = _block_input(block, read, back, added, labels)
    # All that was solved for so far does not depend on the update's size, but softmax minus label does.
    # min over s of |wanted - s (P - Y)|^2, over the whole batch.
    own = inside.probabilities - F.one_hot(labels, inside.probabilities.shape[1])
    share = float((wanted * own).sum() / own.square().sum())
    share = share if share > 0 and abs(share - 1) > RESCALED else 1.0
    inside = inside._replace(block=replace(block, attacked=block.attacked.over(share)))
    while True:
        try:
            inside = _further_in(inside, labels)
        except Inapplicable:
            return inside.block.found(
                inside.read, inside.features, labels, inside.probabilities, wanted / share, share, inside.offset_known
            )


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
        raise refuse("conflict")("the gradients of the last block's layers contradict each other", REMEDY)
    return read / size, back * size, size


def _block_input(
    block: CoupledBlock,
    between: Float[Tensor, "n O h w"],
    back: Float[Tensor, "n O h w"],
    added: Float[Tensor, "n O h w"],
    labels: Int[Tensor, " n"],
) -> _Inside:
    """What a block read.

    Args:
        block: The block.
        between: What its second convolution read.
        back: Gradient of the mean loss in the outputs of the norm in front of that.
        added: The same in the sum of the block's two branches.
        labels: Of the examples.
    """
    first, _, front = block.norms
    before = block.use(block.before)
    # Behind the norm y = gamma x + beta, so x is known where the ReLU passed y on.
    on = (between > 0) & (first.weight != 0)[:, None, None]
    given = torch.where(on, (between - first.bias[:, None, None]) / first.weight[:, None, None], 0.0)
    reading, scale = None, 1.0
    for _ in range(SCALINGS):
        reading = _solved(block, block.before, first, back, given, on, scale, reading)
        read = rectified(reading.read)
        # Through a norm, slopes go with one over the scale of what is read; added as it is, they do not.
        scaling, fixed = before.to_reading(before.weight, reading.slopes), torch.zeros_like(read)
        if block.shortcut is None:
            fixed = added
        else:
            name, behind = block.shortcut
            norm, use = block.norm(behind), block.use(name)
            x, deviation = norm.normalized(use.applied(read), scale)
            scaling = scaling + use.to_reading(use.weight, norm.slopes_in(added, x, deviation))
        # All that goes back, where units are on, sums to the gradient of the beta in front.
        factor, off = common_factor(
            (scaling * (read > 0)).sum((0, 2, 3)), front.bias_gradient - (fixed * (read > 0)).sum((0, 2, 3))
        )
        if not (off < UNEXPLAINED and factor > 0):
            raise refuse("conflict")(
                "the solved activations contradict the gradient of the batch norm in front", REMEDY
            )
        # f scaling + fixed = g_beta, with f = 1 / scale: of what is `scale` times as large the norm passes 1 / scale
        # on.
        scale = 1 / factor
    assert reading is not None
    features, probabilities, slopes = block.coupled_tail(scale * read, labels)
    return _Inside(block, scale * read, slopes, reading.offset_known, features, probabilities)


def _further_in(inside: _Inside, labels: Int[Tensor, " n"]) -> _Inside:
    """What the block in front of this one read.

    Raises:
        Inapplicable: Where there is none, or it cannot be solved for.
    """
    if not bool(inside.offset_known.all()):
        raise refuse("units_unknown")("it is not known where units are on", REMEDY)
    block = inside.block.previous()
    before = block.use(block.before)
    # `solve_coupled` would refuse its first convolution, but only after the second one, which takes long, is solved.
    if before.weight[:, 0].numel() < len(inside.read) * before.input[0, 0].numel():
        raise refuse("too_many_positions")("the block in front reads more positions than its gradient tells", REMEDY)
    first, final, _ = block.norms
    after = block.use(block.last)
    slopes = inside.slopes * (inside.read > 0)
    nowhere, nothing = torch.zeros_like(slopes, dtype=torch.bool), torch.zeros_like(slopes)
    reading, scale = None, 1.0
    for _ in range(SCALINGS):
        reading = _solved(block, block.last, final, slopes, nothing, nowhere, scale, reading)
        read, back, size = _between(first, after, rectified(reading.read), reading.slopes)
        scale = 1 / size
    assert reading is not None
    # Where a unit's side was mistaken, the channel's slopes are those that its weight gradient gives.
    slopes = torch.where(
        reading.fits[:, None, None], slopes, final.slopes_out(reading.slopes, reading.x, reading.deviation)
    )
    return _block_input(block, read, back, slopes, labels)


def _solved(
    block: CoupledBlock,
    name: str,
    norm: BatchNorm,
    slopes: Float[Tensor, "n O h w"],
    given: Float[Tensor, "n O h w"],
    on: Bool[Tensor, "n O h w"],
    scale: float,
    before: CoupledReading | None,
) -> CoupledReading:
    """`solve_coupled` of a convolution that reads the output of a ReLU, or the reason why it cannot be."""
    gradient = block.attacked.gradient[f"{name}.weight"]
    solved = solve_coupled(block.use(name), norm, slopes, given, on, gradient, scale=scale, before=before)
    if solved is None:
        raise refuse("too_many_positions")("the last block reads more positions than its gradient tells", REMEDY)
    if not (solved.off < UNEXPLAINED and negative_share(solved.read) < UNEXPLAINED):
        raise refuse("conflict")("the gradients of the last two convolutions contradict each other", REMEDY)
    return solved
