"""Inner activations of every example of a batch, from the last convolutions' weight gradients."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from seepage.attacks.network import AttackedRound
from seepage.attacks.reading.activations.block import Block, InnerActivations, contradiction, slope_of_channels
from seepage.attacks.reading.activations.coupled import CoupledBlock, read_coupled
from seepage.attacks.reading.activations.deconvolution import (
    REMEDY,
    deconvolve,
    negative_share,
    rectified,
    solve_read,
)
from seepage.attacks.reading.head.equations import UNEXPLAINED
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.errors import refuse
from seepage.federation.types import Knowledge, Round

ITERATIONS = 30
"""Iterations of the fixed point that gives each example's factor."""
LOG_SHARES = (math.log(1e-3), math.log(10), 25)
"""Logarithms of the shares of the gradient in the update that are tried: the first, the last, how many."""
MULTIPLE_IF_BELOW = 0.1
"""The update is taken for a multiple of the gradient only if the misfit falls below this share."""
LARGEST_MISFIT = 1e3
"""Larger contradictions count as this one."""


def inner_activations(observed: Round, knowledge: Knowledge) -> InnerActivations:
    """Solve for what the last block of a residual network read, for every example, from two weight gradients.

    1. The last convolution's gradient is taken apart (`deconvolve`): what it read, behind a ReLU, and the gradient D of
       its outputs, up to one factor per example.
    2. Where an output is on, D is the gradient of the loss in a feature times a constant of the channel. The former is
       `A W`, with A the slopes of the loss in the logits: least squares give A up to the factor, and so the label,
       whose entry alone is negative.
    3. D goes back through the last convolution and the ReLU in front of it, whose mask is now known, to the outputs of
       the convolution before, whose weight gradient then gives what that one read (`solve_read`).
    4. The network's tail on these activations has class probabilities, which must be those of A: that gives the
       factors.

    This uses no known labels and needs no fewer examples than classes, only more channels than the batch has positions.

    With batch norm in train mode step 1 is the same. The factors are then those with which the slopes sum to zero over
    the batch, up to one for all, which the gradient of the first norm's bias gives. Steps 2 and 3 go through the norms
    by the gradients of their weights and biases (`batch_norm`); A has its own size, and the scale of what was read
    follows from the bias of the norm in front. In step 4 the class probabilities are a check alone. The blocks in front
    follow in the same way, as long as their gradients determine all positions.

    Args:
        observed: A round whose update is one plain gradient of cross-entropy.
        knowledge: What the attacker knows.

    Returns:
        The activations, examples in the order of their labels, which is not that of the batch.

    Raises:
        Inapplicable: Where the last layer does not read a pooled map, the batch has too many positions for the
            channels, or the solution contradicts the network; with batch norm in train mode also where the last block
            is not convolution, norm, ReLU, convolution and norm, behind another norm and a ReLU.

    Example:
        >>> from seepage import Architecture, Batch, FedSGD, build, record
        >>> model = build(Architecture("resnet", {"width": 8}), (3, 16, 16), 10)
        >>> images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> private = Batch(images, torch.tensor([1, 1, 7]))
        >>> seen = record(model, private, client=FedSGD(mode="eval"))
        >>> found = inner_activations(seen[0], seen.knowledge)
        >>> found.layer, tuple(found.activations.shape), found.labels.tolist()
        ('stages.3.conv1', (3, 32, 4, 4), [1, 1, 7])
    """
    coupled = knowledge.client.batch_coupled(knowledge.model)
    block = (CoupledBlock if coupled else Block).of(AttackedRound(knowledge, observed))
    assert observed.batch_size is not None  # `Block.of` refused it
    read, slopes = deconvolve(
        block.use(block.last), block.attacked.gradient[f"{block.last}.weight"], observed.batch_size
    )
    if isinstance(block, CoupledBlock):
        return read_coupled(block, (read, slopes))
    logits = block.logit_slopes(slopes, block.last)
    return _at_scale_of_probabilities(block, logits, _read_before(block, read, slopes))


def _read_before(
    block: Block, read: Float[Tensor, "n C H W"], slopes: Float[Tensor, "n O h w"]
) -> Float[Tensor, "n C H W"]:
    """What the convolution in front of the last one read, over the examples' factors; the last one `deconvolve`d."""
    after, before = block.use(block.last), block.use(block.before)
    constant = slope_of_channels(block.calls[block.last].input, block.calls[block.before].output)
    # W^T D, through the mask of the ReLU and the constants of the normalization.
    back = after.to_reading(after.weight, slopes)
    slopes = back * (read > 0) * constant[:, None, None]
    solved = solve_read(before, slopes, block.attacked.gradient[f"{block.before}.weight"])
    if solved is None:
        raise refuse("too_many_positions")("the last block reads more positions than its gradient tells", REMEDY)
    read, off = solved
    if not (off < UNEXPLAINED and negative_share(read) < UNEXPLAINED):
        raise refuse("conflict")("the gradients of the last two convolutions contradict each other", REMEDY)
    return rectified(read)


def _at_scale_of_probabilities(
    block: Block, slopes: Float[Tensor, "n C"], read: Float[Tensor, "n C H W"]
) -> InnerActivations:
    """Activations at the scale at which the network has the class probabilities that its gradient says.

    Where they do not agree well, the update may be any multiple of the gradient: the one is looked for at which they
    come nearest. A network whose class probabilities hardly depend on its activations agrees with many, so that it must
    come far nearer.

    Raises:
        Inapplicable: Where they agree nowhere.
    """
    from scipy.optimize import minimize_scalar  # heavy, and only this needs it

    labels = slopes.argmin(1)

    def misfit(log: float) -> float:
        """By how much the class probabilities contradict the slopes at a share `e^log`, at most `LARGEST_MISFIT`."""
        factor, _, probabilities = _factors(block, slopes, read, math.exp(log))
        off = contradiction(probabilities, labels, len(slopes) * factor[:, None] * slopes)
        return float(off.max().nan_to_num(nan=LARGEST_MISFIT, posinf=LARGEST_MISFIT).clamp(max=LARGEST_MISFIT))

    plain, share = misfit(0.0), 1.0
    if not plain < FLOAT32_NETWORK:
        grid = torch.linspace(*LOG_SHARES, dtype=torch.float64)
        misfits = [misfit(float(log)) for log in grid]
        step, best = float(grid[1] - grid[0]), float(grid[torch.tensor(misfits).argmin()])
        found = minimize_scalar(misfit, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-8})
        share = math.exp(found.x) if found.fun < MULTIPLE_IF_BELOW * plain else 1.0
    factor, features, probabilities = _factors(block, slopes, read, share)
    wanted = len(slopes) * factor[:, None] * slopes
    return block.found(read / (share * factor)[:, None, None, None], features, labels, probabilities, wanted, share)


def _factors(
    block: Block, slopes: Float[Tensor, "n C"], read: Float[Tensor, "n C H W"], share: float
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n k"], Float[Tensor, "n C"]]:
    """Each example's factor t, over the share, with features and class probabilities."""
    n, labels = len(slopes), slopes.argmin(1)
    length = -slopes.gather(1, labels[:, None])[:, 0]  # [n] of the label's entry
    chance = torch.full_like(length, 1 / slopes.shape[1])
    for _ in range(ITERATIONS):
        # n A_y = s (P_y - 1) gives the factor t; activations are over it, and give P_y anew.
        factor = (1 - chance) / (n * length)
        features, probabilities = block.tail(read / (share * factor)[:, None, None, None])
        chance = probabilities.gather(1, labels[:, None])[:, 0]
    return factor, features, probabilities
