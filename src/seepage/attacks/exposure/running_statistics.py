"""What the returned running statistics of batch norms reveal: the batch's own means and variances."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.base.nn import as_inputs, calls_in_pass, generator, normalized_layers
from seepage.base.storage import Tensors

STILL = "still batch norms"
"""Name of the fact that the batch norms' statistics were returned as they were sent."""


ACROSS = 0.1
"""Median cosine, times the root of the number of weights, below which layers moved across their weights."""


@dataclass(frozen=True)
class BatchStatistics:
    """The statistics of what one batch norm read, over the batch.

    Attributes:
        norm: Name of the batch norm.
        mean: `[k]` of each channel; over several steps an average that weighs late ones more.
        variance: `[k]` likewise, unbiased: over N - 1 of N values of a channel.
        steps: Forward passes between the two checkpoints, as the norm itself counts them.
    """

    norm: str
    mean: Tensor
    variance: Tensor
    steps: int


def batch_statistics(
    model: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> list[BatchStatistics]:
    """The batch's means and variances at each batch norm, from its running statistics before and after.

    A pass in train mode makes of a running value r and the batch's own v, with the momentum a of the norm,
    `r' = (1 - a) r + a v`, so that `v = (r' - (1 - a) r) / a`: whatever the optimizer made of the gradient, as no
    optimizer touches buffers. After k passes `(r_k - (1 - a)^k r) / (1 - (1 - a)^k)` is their weighted average. Without
    a momentum the norm keeps the plain average over all passes it has counted.

    Args:
        model: With these batch norms.
        before: Its state that was sent out, by name.
        after: What was returned; norms whose statistics it lacks, or that did not move, are left out, and those whose
            counts do not say how many passes lie between the two.

    Returns:
        Norms in the model's order.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
        >>> _ = norm(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
        >>> found = batch_statistics(norm, before, norm.state_dict())[0]
        >>> found.mean.round(decimals=3).tolist(), found.variance.round(decimals=3).tolist(), found.steps
        ([2.0, 4.0], [2.0, 8.0], 1)
    """
    found = []
    for name, norm in model.named_modules():
        place = f"{name}." if name else ""
        keys = [f"{place}running_{what}" for what in ("mean", "var")]
        if not isinstance(norm, nn.modules.batchnorm._BatchNorm) or any(
            key not in state or state[key].shape != (norm.num_features,) for key in keys for state in (before, after)
        ):
            continue
        old, new = (_count(state.get(f"{place}num_batches_tracked")) for state in (before, after))
        if old is None or new is None or new <= old:
            continue
        pairs = [(before[key].double(), after[key].double()) for key in keys]
        if all(torch.equal(*pair) for pair in pairs):
            continue  # eval mode, or averaged away
        steps = new - old
        # The share that is left of what was there before.
        kept = (1 - norm.momentum) ** steps if norm.momentum is not None else old / new
        if not 0 <= kept < 1:
            continue
        mean, variance = ((last - kept * first) / (1 - kept) for first, last in pairs)
        if bool(mean.isfinite().all() & variance.isfinite().all()):
            found.append(BatchStatistics(name, mean, variance, steps))
    return found


def stood_still(model: nn.Module, after: Mapping[str, Tensor]) -> bool:
    """Whether every batch norm was returned as it was sent: a pass in train mode counts, and moves its statistics.

    Args:
        model: At the state that was sent out.
        after: What was returned; False where it lacks the count or the statistics of any.
    """
    names = [
        f"{name}.{what}" if name else what
        for name, norm in model.named_modules()
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.track_running_stats
        for what in ("running_mean", "running_var", "num_batches_tracked")
    ]
    own = dict(model.named_buffers())
    return bool(names) and all(
        name in after
        and after[name].numel() == own[name].numel()
        and torch.equal(own[name].flatten(), after[name].flatten().to(own[name]))
        for name in names
    )


def scale_free(model: nn.Module, moved: Mapping[str, Tensor], input_shape: tuple[int, ...]) -> bool:
    """Whether layers in front of batch norms moved across their weights, channel by channel, as in train mode.

    In train mode a norm takes the length of a channel's weights w back out, so that `<w, dL/dw> = 0`; in eval mode the
    cosine is that of two directions that have nothing to do with each other, about `1 / sqrt(k)` of k weights. The
    median of its size over all channels, times `sqrt(k)`, is 0.67 then.

    Args:
        model: At the weights that were sent out.
        moved: What they moved by, or their gradient, by name.
        input_shape: Shape of one example.
    """
    own: dict[str, Tensor] = dict(model.named_parameters())
    sizes = list[Tensor]()
    for layer in set(normalized_layers(model, own, input_shape).values()):
        name = f"{layer}.weight" if layer else "weight"
        if name in own and name in moved and own[name].ndim > 1 and bool(moved[name].any()):
            weights, change = (one.detach().double().flatten(1) for one in (own[name], moved[name]))
            cosine = torch.nn.functional.cosine_similarity(weights, change, dim=1)
            sizes.append(cosine.abs() * weights.shape[1] ** 0.5)
    return bool(sizes) and float(torch.cat(sizes).median()) < ACROSS


def _count(stored: Tensor | None) -> int | None:
    """How many passes a norm counted; None where it does not say, as in a file that leaves it out."""
    if stored is None or stored.numel() != 1 or not bool(stored.isfinite().all()) or bool((stored < 0).any()):
        return None
    return int(stored)


def statistics_words(found: list[BatchStatistics]) -> str | None:
    """What was read, in words; None where there is nothing.

    >>> statistics_words([BatchStatistics("bn", torch.zeros(8), torch.ones(8), 1)])
    "the batch's mean and variance in 8 channels of 1 batch norm, from the returned running statistics"
    """
    if not found:
        return None
    channels, norms = sum(len(one.mean) for one in found), "batch norm" if len(found) == 1 else "batch norms"
    whose = "the batch's mean and variance" if max(one.steps for one in found) == 1 else "the batches' mean statistics"
    return f"{whose} in {channels} channels of {len(found)} {norms}, from the returned running statistics"


AROUND = 3.0
"""Deviations about the mean of a column within which its numbers are taken to lie."""
ROUNDED = 1e-3
"""What rounding of the running statistics may add."""


def shown_range(
    model: nn.Module, found: list[BatchStatistics], input_shape: tuple[int, ...]
) -> tuple[float, float] | None:
    """Where the input's numbers lie, about, where a norm that reads them shows that they are not from 0 to 1.

    Of numbers in [0, 1] the mean is in it, and the unbiased variance of n is at most `n / (4 (n - 1))`, so 1/2. Else
    the range is of `AROUND` deviations about the means.

    >>> norm = nn.BatchNorm1d(2)
    >>> found = [BatchStatistics("", torch.tensor([2.0, 90.0]), torch.tensor([0.25, 4.0]), 1)]
    >>> shown_range(norm, found, (2,)), shown_range(norm, [BatchStatistics("", *torch.full((2, 2), 0.4), 1)], (2,))
    ((0.0, 96.0), None)
    """
    raw = of_raw_inputs(model, found, input_shape)
    if raw is None:
        return None
    ends = raw.mean.aminmax()
    if float(ends.min) >= -ROUNDED and float(ends.max) <= 1 + ROUNDED and float(raw.variance.max()) <= 0.5 + ROUNDED:
        return None
    spread = AROUND * raw.variance.clamp(min=0).sqrt()
    return min(0.0, float((raw.mean - spread).min())), max(1.0, float((raw.mean + spread).max()))


def of_raw_inputs(
    model: nn.Module,
    found: list[BatchStatistics],
    input_shape: tuple[int, ...],
    params: Tensors | None = None,
    buffers: Tensors | None = None,
) -> BatchStatistics | None:
    """The statistics of a norm that reads the input as it is, of one step; None where there is none.

    Args:
        model: The network.
        found: The statistics of its norms.
        input_shape: Shape of one example.
        params: Its weights; None: its own.
        buffers: Its buffers, likewise.
    """
    own, state = {one.norm: one for one in found if one.steps == 1}, params or dict(model.named_parameters())
    if not own:
        return None
    like = next(iter(state.values()), torch.zeros(()))
    probe = torch.rand((2, *input_shape), generator=generator(0, "probe")).to(like)
    if as_inputs(model, probe) is not probe:
        return None
    with torch.no_grad():
        calls = calls_in_pass(model, own, state, probe, buffers=buffers)
    return next((own[n] for n, made in calls.items() if torch.equal(made[0].input.flatten(), probe.flatten())), None)


def rounding_of(norm: Any, raw: BatchStatistics) -> tuple[Tensor, Tensor]:
    """`[k]` by how much mean and variance may be off.

    A unit e of the last place of what is kept makes `e / momentum`; and in float32 the batch's own sums are off by
    units of the last place of its values, about `|mean| + deviation`. The norm is at the state that was sent out.
    """
    a, unit = norm.momentum or 1 / (float(norm.num_batches_tracked) + 1), torch.finfo(torch.float32).eps
    pairs = (norm.running_mean, raw.mean), (norm.running_var, raw.variance)
    mean, variance = (unit * ((1 - a) * old.detach() + a * own).abs() / a for old, own in pairs)
    deviation = raw.variance.clamp(min=0).sqrt()
    own = 2 * unit * (raw.mean.abs() + deviation)
    return mean + own, variance + 2 * deviation * own


def two_row_errors(norm: Any, raw: BatchStatistics) -> Tensor:
    """`[k]` by how much the values `mean +- (variance / 2)^(1/2)` of two rows may be off.

    Of a variance that is off by e the root is by the smaller of `(e / 2)^(1/2)` and `e / (4 root)`.
    """
    mean, variance = rounding_of(norm, raw)
    root = (raw.variance.clamp(min=0) / 2).sqrt()
    found: Tensor = mean + torch.minimum((variance / 2).sqrt(), variance / (4 * root).clamp(min=1e-30))
    return found
