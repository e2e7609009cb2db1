"""Entries that are held to one size, tensor after tensor: what adaptive optimizers and clipping by value leave."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.exposure.finding import Finding
from seepage.attacks.exposure.fingerprints import MIN_ENTRIES
from seepage.base.algebra.rows import LEAST_ALIKE

MIN_SIZED_ENTRIES, MANY_ENTRIES = 8, 200
"""Live entries of a tensor from which its sizes are looked at in a network without two tensors of `MIN_ENTRIES`, and
from which the largest of a gradient's entries is far above most of them."""
SAME_SIZE = 0.02
"""Relative deviation from the ceiling up to which an entry counts as at it."""
NEAR = 0.1
"""Relative deviation of a tensor's largest entry from the ceiling: Adadelta comes near its ceiling and reaches it
nowhere."""
ROUNDED_CEILING = 1e-3
"""Relative deviation of clipped entries from the ceiling, which is rounding alone."""
LIVE = 0.01
"""Share of the ceiling below which an entry has next to no gradient."""
AT_CEILING = 0.5
"""Share of a tensor's live entries at the ceiling from which it is one of signs. A gradient has a few there."""
LARGE_SHARE = 0.3
"""Share of `MANY_ENTRIES` that are above half of the largest from which they were held down. Of 200 normal numbers 15 %
are, and of a gradient's, whose tails are heavier, fewer."""
MORE_WITHOUT_DECAY = 1.5
"""By how much more entries must be at the ceiling, but for rounding, once a decay is taken out, to take it out."""


@dataclass(frozen=True)
class _Sizes:
    """What one tensor's live entries look like beside a ceiling.

    Attributes:
        module: Name of the module that holds it.
        live: Number of live entries.
        top: The largest entry, as a share of the ceiling.
        at: Share of the live entries at the ceiling.
        large: Share of them above half of the tensor's own largest.
        clipped: Number of entries at the ceiling but for rounding.
    """

    module: str
    live: int
    top: float
    at: float
    large: float
    clipped: int


def adaptive_step(
    moved: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None = None, rate: float = 1.0
) -> Finding | None:
    """That all tensors moved by one size at the most, which no step along a gradient does; None where they did not.

    A first step of Adam is `-lr g / (|g| + eps)`, as its averages are still of one gradient: m = g and v = g^2 once
    corrected for their start. RMSprop's is 1/sqrt(1 - alpha) times as large. Both are `-s sign(g)` but for eps. Those
    of Adadelta, `-s g / sqrt(g^2 + c^2)`, and those of a gradient that was clipped by value, `-s clamp(g / c, -1, 1)`,
    come near a ceiling s, and reach it where the gradient is large. What sets them all apart from a gradient is a ratio
    over tensors: their largest entries are one size, where those of a gradient's tensors lie far apart. Entries
    without a gradient stay where they are: those of tokens and neurons that no example reached.

    AdamW also takes `a w` off each weight, whose share a is fitted at the ceiling, where `|D| = s - a w sign(D)`, and
    taken out first.

    Args:
        moved: By how much each tensor changed, or a multiple.
        weights: What was sent out, by name; None: no decay is looked for.
        rate: What one unit of the tensors changed in a weight.
    """
    every = {name: tensor for name, tensor in moved.items() if tensor.numel() >= MIN_SIZED_ENTRIES}
    tops = {name: float(tensor.abs().max()) for name, tensor in every.items()}
    most = max(tops.values(), default=0.0)
    if not most > 0 or not math.isfinite(most):
        return None
    reaching = sorted(top for top in tops.values() if top > (1 - NEAR) * most)
    ceiling = reaching[len(reaching) // 2]
    ceiling, share = _decayed(every, weights or {}, ceiling)
    found = [one for name in every if (one := _sizes(name, every[name], weights or {}, ceiling, share)) is not None]
    if any(one.top > 1 + NEAR for one in found):
        return None
    signs, held = _are_signs(found), _are_held(found)
    if not signs and not held:
        return None
    size = rate * ceiling
    if signs:
        message = (
            "looks like one step of Adam, AdamW or RMSprop from a fresh state, or of sign descent: nearly every "
            f"entry changed by {size:.2g}; a gradient's sizes are gone, so only its signs can be read"
        )
    else:
        message = (
            f"looks held to one size: in tensor after tensor the largest entries changed by {size:.2g} and none by "
            "more, as after several steps of Adam or AdamW, steps of Adadelta, or a gradient that was clipped by "
            "value; a gradient's sizes are gone, so only its signs can be read"
        )
    return Finding(
        name="adaptive",
        message=message,
        evidence={"size": size, "tensors": len(found), "sign_only": signs, "decay": abs(share)},
        limit="Later steps of such an optimizer, and several at once, need not have such a mark.",
    )


def _decayed(moved: Mapping[str, Tensor], weights: Mapping[str, Tensor], ceiling: float) -> tuple[float, float]:
    """The ceiling s and the share a of decay, from least squares of `|D| = s - a w sign(D)` at the entries near it."""
    rows = list[Tensor]()
    for name, tensor in moved.items():
        if name in weights:
            near = (tensor.abs() / ceiling - 1).abs() <= NEAR
            d, w = tensor[near].double(), weights[name][near].double()
            rows.append(torch.stack([d.abs(), -w * d.sign()], 1)[: 2**16])
    pairs = torch.cat(rows) if rows else torch.zeros(0, 2)
    if len(pairs) < MIN_ENTRIES:
        return ceiling, 0.0
    # Regression of |D| on -w sign(D) with an intercept s: centered, the slope is a = <sizes, pulls> / |pulls|^2.
    sizes, pulls = (pairs - pairs.mean(0)).T
    share = float(sizes @ pulls) / max(float(pulls.square().sum()), 1e-300)
    freed = pairs[:, 0] - share * pairs[:, 1]
    # Entries with small gradients fall short of the ceiling, so most say where it is, and not their mean.
    levels = [(one / one.median() - 1).abs() <= ROUNDED_CEILING for one in (pairs[:, 0], freed)]
    if int(levels[1].sum()) < MORE_WITHOUT_DECAY * int(levels[0].sum()):
        return ceiling, 0.0
    return float(freed.median()), share


def _sizes(name: str, moved: Tensor, weights: Mapping[str, Tensor], ceiling: float, share: float) -> _Sizes | None:
    """What one tensor's live entries look like; None where it has none."""
    freed = moved + share * weights[name] if share and name in weights else moved
    sizes = freed.detach().abs().flatten()
    sizes = sizes[sizes > LIVE * ceiling] / ceiling
    if not len(sizes):
        return None
    top = float(sizes.max())
    at, large = ((sizes - 1).abs() <= SAME_SIZE).float().mean(), (sizes > top / 2).float().mean()
    clipped = int(((sizes - 1).abs() <= ROUNDED_CEILING).sum())
    return _Sizes(name.rpartition(".")[0], len(sizes), top, float(at), float(large), clipped)


def _are_signs(found: Sequence[_Sizes]) -> bool:
    """Most tensors are multiples of signs. Levels of one bit have a size for each tensor, and fewer agree."""
    large = [one for one in found if one.live >= MIN_ENTRIES]
    if len(large) < 2:  # a small network, or one with much at zero: its short tensors have to agree too
        large = [one for one in found if one.live >= MIN_SIZED_ENTRIES]
        return len(large) > 1 and all(one.at >= AT_CEILING for one in large)
    alike = [one for one in large if one.at >= AT_CEILING]
    return len(alike) > 1 and 2 * len(alike) > len(large)


def _are_held(found: Sequence[_Sizes]) -> bool:
    """The largest entries of most tensors, or clipped ones of several, are at one ceiling, in more than one module.

    A feature that is one in all examples gives two tensors of one layer the same entries, so one layer proves nothing.
    """
    sized = [one for one in found if one.live >= MIN_SIZED_ENTRIES]
    clipped = [one for one in sized if one.clipped >= LEAST_ALIKE]
    reach = [one for one in sized if one.top > 1 - NEAR]
    flat = [one for one in reach if one.live >= MANY_ENTRIES and one.large >= LARGE_SHARE]
    if len(clipped) >= LEAST_ALIKE and len({one.module for one in clipped}) > 1:
        return True
    enough = len(reach) >= max(LEAST_ALIKE, len(sized) / 2)
    return enough and len({one.module for one in flat}) > 1
