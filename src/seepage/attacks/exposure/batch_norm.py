"""What the gradient of a network with batch norm reveals by itself: the client's mode, and the batch's variances."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.exposure.finding import ClosedForm
from seepage.attacks.network.evidence import READ
from seepage.base.nn import normalized_layers
from seepage.base.rounding import FLOAT32_NETWORK, ROUNDINGS
from seepage.base.words import plural
from seepage.errors import refuse
from seepage.federation.types import Knowledge, Round, Tensors

MOST_LISTED = 4
"""Batch norms up to which each has a line of its own."""
MIN_BETWEEN, FEWEST_CHANNELS = 0.9, 16
"""Where variances are so small that epsilon counts: the share of at least so many channels whose <w, g> lies between 0
and gamma g_gamma, as batch statistics have it, and a random sign does in half of them at most."""


@dataclass(frozen=True)
class BatchNormLeak:
    """What one batch norm and the layer before it reveal.

    Attributes:
        layer: Name of the layer whose outputs are normalized.
        norm: Name of the batch norm.
        alignment: `[k]` |cos(w, g)| of each filter's weights and gradient. A filter's scale has no effect under batch
            statistics, so the gradient is orthogonal to the weights but for epsilon; under running ones it is not.
        residual: `[k]` by how much <w, g> misses what running statistics would make it, as a share of |w| |g|.
        mode: What alignment and residual say of the client's batch norm.
        variance: `[k]` the batch's variance of each channel before the norm (biased, as the norm uses it); NaN in eval
            mode and for channels that got no gradient.
        error: `[k]` estimate of each variance's relative error by the rounding of the update; 1 or more where nothing
            is left of it.
    """

    layer: str
    norm: str
    alignment: Tensor
    residual: Tensor
    mode: Literal["train", "eval", "unclear"]
    variance: Tensor
    error: Tensor

    @property
    def read(self) -> int:
        """Channels whose variance over the batch can be read to within 10 %."""
        known: Tensor = self.variance.isfinite() & (self.variance > 0) & (self.error < READ)
        return int(known.sum()) if self.mode == "train" else 0


def batch_norm_leaks(observed: Round, knowledge: Knowledge) -> list[BatchNormLeak]:
    r"""The mode and variances of each batch norm that follows a convolution or a fully connected layer.

    With `y = gamma xhat + beta` and batch statistics, scaling a filter changes the output through epsilon alone, so
    `<w, g_w> = gamma g_gamma eps / (var + eps)` and `var = eps (gamma g_gamma / <w, g_w> - 1)`. The identity is exact;
    the inner product is a small difference of large numbers, so single precision leaves a digit or two and half
    precision, noise or rounding leave none. `error` says which. The update must be one plain gradient.

    Raises:
        Inapplicable: For a model without such a pair.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("convnet", {"width": 4, "batch_norm": True}), (1, 8, 8), 3)
        >>> private = Batch(torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 3)
        >>> seen = record(model, private)
        >>> [leak.mode for leak in batch_norm_leaks(seen[0], seen.knowledge)]
        ['train', 'train', 'train']
    """
    gradient = observed.gradient(knowledge.client)
    pairs, states = _pairs(observed, knowledge), {**observed.buffers, **observed.params}
    if not pairs:
        raise refuse("no_batch_norm")(
            "the model has no batch norm right after a trained convolution or fully connected layer",
            "use a model with batch norm, or another probe",
        )
    return [_leak(layer, norm, epsilon, states, gradient) for layer, norm, epsilon in pairs]


def batch_norm_findings(leaks: Sequence[BatchNormLeak]) -> list[ClosedForm]:
    """The mode of all batch norms, and of each the variances that can be read, which its weight reveals."""
    if not leaks:
        return []
    modes = sorted({one.mode for one in leaks})
    read, channels = sum(one.read for one in leaks), sum(len(one.variance) for one in leaks)
    telling, found = [one for one in leaks if one.read], []
    # Of a deep network one line for all norms that tell something.
    for some in [telling] if len(telling) > MOST_LISTED else [[one] for one in leaks]:
        own, all_of = sum(one.read for one in some), sum(len(one.variance) for one in some)
        of = f" of {plural(len(some), 'batch norm')}" * (len(some) > 1)
        named = {"norms": [one.norm for one in some], "mode": some[0].mode, "variances": own, "channels": all_of}
        found.append(
            ClosedForm(
                name="batch-variance",
                message=f"the batch's variance in {own} of {all_of} channels{of}, by the gradient alone",
                evidence=named,
                limit="It is the whole batch's; of single examples it says nothing by itself.",
                tensors=tuple(f"{one.norm}.weight" for one in some if one.read),
            )
        )
    words = f"{' and '.join(modes)} mode; {read} of {channels} variances of the batch can be read"
    evidence = {"modes": modes, "variances": read, "channels": channels}
    return [ClosedForm(name="batch-norm", message=words, evidence=evidence, lines=(f"batch norm: {words}",)), *found]


def _leak(layer: str, norm: str, epsilon: float, states: Tensors, gradient: Tensors) -> BatchNormLeak:
    rounding = torch.finfo(gradient[f"{layer}.weight"].dtype).eps
    # Each filter as a row: w, g [k, d]; <w, g> [k] is zero under batch statistics but for epsilon.
    w, g = (tensors[f"{layer}.weight"].double().flatten(1) for tensors in (states, gradient))
    gamma, g_gamma = (tensors[f"{norm}.weight"].double() for tensors in (states, gradient))
    inner, lengths = (w * g).sum(1), w.norm(dim=1) * g.norm(dim=1)
    alive = lengths > 0
    alignment = torch.where(alive, inner.abs() / lengths, torch.nan)
    residual = torch.where(
        alive, (inner - _with_running(layer, norm, epsilon, states, gradient)).abs() / lengths, torch.nan
    )
    between = (inner * gamma * g_gamma >= 0) & (inner.abs() <= (gamma * g_gamma).abs())
    mode = _mode(alignment, residual, between[alive])
    known = alive & (inner != 0) & (mode != "eval")
    scaled = epsilon * gamma * g_gamma / inner  # var + eps
    variance = torch.where(known, scaled - epsilon, torch.nan)
    # An entry of g is a long sum and carries several roundings; their share in the small inner product is the error.
    error = ROUNDINGS * rounding * lengths / inner.abs() * (scaled / (scaled - epsilon)).abs()
    return BatchNormLeak(layer, norm, alignment, residual, mode, variance, torch.where(known, error, torch.nan))


def _with_running(layer: str, norm: str, epsilon: float, states: Tensors, gradient: Tensors) -> Tensor:
    """`[k]` what <w, g_w> is under running statistics m and v; NaN where these were not sent.

    There y = gamma (z - m) / s + beta with s = sqrt(v + eps) fixed, and z = <w, patch> + b, so that scaling a filter
    moves z - b alone: <w, g_w> = gamma (g_gamma + (m - b) / s g_beta).
    """
    gamma, g_gamma = (tensors[f"{norm}.weight"].double() for tensors in (states, gradient))
    mean, spread = (states.get(f"{norm}.running_{what}") for what in ("mean", "var"))
    g_beta = gradient.get(f"{norm}.bias")
    if mean is None or spread is None or g_beta is None:
        return torch.full_like(gamma, torch.nan)
    b = states.get(f"{layer}.bias", torch.zeros_like(mean)).double()
    return gamma * (g_gamma + (mean.double() - b) / (spread.double() + epsilon).sqrt() * g_beta.double())


def _mode(alignment: Tensor, residual: Tensor, between: Tensor) -> Literal["train", "eval", "unclear"]:
    """Which of the two identities holds; noise, rounding to few bits, or a dead layer leave neither."""
    if alignment.nanmedian().item() <= FLOAT32_NETWORK:
        return "train"
    if residual.nanmedian().item() <= FLOAT32_NETWORK:
        return "eval"
    small_variances = len(between) >= FEWEST_CHANNELS and between.double().mean().item() >= MIN_BETWEEN
    return "train" if small_variances else "unclear"


def _pairs(observed: Round, knowledge: Knowledge) -> list[tuple[str, str, float]]:
    """(layer, the batch norm that reads its output unchanged, its epsilon), for pairs whose weights were both sent."""
    pairs = normalized_layers(knowledge.model, observed.params, knowledge.input_shape, buffers=observed.buffers)
    modules = dict(knowledge.model.named_modules())
    return [
        (layer, norm, modules[norm].eps)
        for norm, layer in pairs.items()
        if {f"{layer}.weight", f"{norm}.weight"} <= set(observed.update.tensors)
    ]
