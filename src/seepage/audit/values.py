"""Between which numbers the values of examples lie, and how pictures were normalized, by examples that are proven.

A certificate holds an example against the network's own backward pass; the range is one more condition, which was only
assumed, so that a proven example outside of it speaks against the range. Of 8-bit pictures `x = k / 255` a network
reads `v = (x - m) / s`: under the right m and s all `255 (s v + m)` are whole numbers, and under others spread evenly.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.base import Attack
from seepage.attacks.gauss_newton import GaussNewton
from seepage.attacks.linear import LinearLeak
from seepage.base.clock import Limit, OutOfTime, limited
from seepage.base.rounding import outward
from seepage.errors import SeepageError
from seepage.federation.models.normalize import statistics_of
from seepage.federation.types import Transcript

REACHES = (4.0, 32.0, 256.0)
"""Largest sizes of a value that are tried: standardized, scaled by hand, pixels of eight bits."""
LOOKED = 30.0
"""Seconds after which rows of wide layers, which take minutes where all examples are solved for, show no range."""
BEYOND = 0.02
"""Root mean square, as a share of the range, up to which examples that rows prove are outside of [0, 1] by errors:
twice the most that one is certified with."""
SLACK = 0.01
"""How far proven values may lie outside of [0, 1] by their errors."""
MARGIN = 0.25
"""Share of their width by which the range reaches beyond the values that were seen: other examples may lie there."""
NORMALIZATIONS = (
    "0,0.00392156862745098", "0.5", "imagenet", "0.1307,0.3081", "0.286,0.353", "0.2860,0.3205",
    "0.4914,0.4822,0.4465,0.247,0.2435,0.2616", "0.4914,0.4822,0.4465,0.247,0.243,0.261",
    "0.4914,0.4822,0.4465,0.2023,0.1994,0.201", "0.5071,0.4867,0.4408,0.2675,0.2565,0.2761",
    "0.5071,0.4865,0.4409,0.2673,0.2564,0.2762", "0.4377,0.4438,0.4728,0.198,0.201,0.197",
    "0.4802,0.4481,0.3975,0.2302,0.2265,0.2262", "0.4802,0.4481,0.3975,0.277,0.2691,0.2821",
    "0.48145466,0.4578275,0.40821073,0.26862954,0.26130258,0.27577711",
)  # fmt: skip
"""Means and deviations that public code states: of pixels up to 255, one half, ImageNet, MNIST, Fashion-MNIST (two),
CIFAR-10 (three), CIFAR-100 (two), SVHN, Tiny-ImageNet (two) and CLIP."""
WHOLE = 0.1
"""Root mean square distance from whole numbers of what are whole numbers but for errors; of any others it is 0.29."""
LEVELS = 16
"""Distinct values from which on that says something: any others are so near by a chance below 1e-6."""

Range = tuple[float, float]


@dataclass(frozen=True, eq=False)
class ValuesShown:
    """What proven examples show.

    Attributes:
        range: Between which numbers they lie, with a margin.
        examples: `[k, *shape]` as the network reads them.
        normalize: One of `NORMALIZATIONS` under which they are 8-bit pictures; None: none, or they are no pictures.
    """

    range: Range
    examples: Tensor
    normalize: str | None


def shown_values(within: Callable[[Range], Transcript]) -> ValuesShown | None:
    """What `linear` proves of more examples in another range than in [0, 1]; None where it does not, or not in time.

    Errors count as shares of the range, hence the examples are proven once more in the one that is returned.

    Args:
        within: The transcript with inputs of a range.
    """
    with suppress(OutOfTime), limited(LOOKED) as limit:
        return _shown_by_rows(within, limit)
    return None


def _shown_by_rows(within: Callable[[Range], Transcript], limit: Limit) -> ValuesShown | None:
    stated, attack = within((0.0, 1.0)), LinearLeak()
    size, base = stated[0].batch_size, _proven(stated, attack, limit)
    if size is None or (base is not None and len(base) == size):
        return None
    count = 0 if base is None else len(base)
    found = [one for reach in REACHES if (one := _proven(within((-reach, reach)), attack, limit)) is not None]
    seen = max(found, key=len, default=None)  # of equally many the narrowest
    if seen is None or len(seen) <= count:
        return None
    fits = _around(seen)
    again = _proven(within(fits), attack, limit)
    if again is None or len(again) <= count:
        return None
    # A wider range forgives larger errors, so that more examples of [0, 1] are proven in it, too: off by those errors.
    beyond = (again - again.clamp(0, 1)).flatten(1).square().mean(1).sqrt()
    if float(beyond.max()) <= BEYOND * (fits[1] - fits[0]):
        return None
    return ValuesShown(fits, again, normalization_of(again))


def searched_values(within: Callable[[Range], Transcript], seconds: float) -> ValuesShown | None:
    """The same by `gauss_newton`, of pictures behind convolutions, in so many seconds at most; None within [0, 1], too.

    Args:
        within: The transcript with inputs of a range.
        seconds: Within which nothing found is no finding.
    """
    until = time.monotonic() + seconds
    for reach in (REACHES[0], REACHES[-1]):
        found = None
        with suppress(OutOfTime), limited(until - time.monotonic()) as limit:
            found = _proven(within((-reach, reach)), GaussNewton(rounding=False), limit)
        if found is not None:
            beyond = bool((found < -SLACK).any() or (found > 1 + SLACK).any())
            return ValuesShown(_around(found), found, normalization_of(found)) if beyond else None
    return None


def _around(examples: Tensor) -> Range:
    low, high = (float(end) for end in examples.aminmax())
    room = MARGIN * (high - low)
    return outward(min(0.0, low - room), max(1.0, high + room))


def _proven(transcript: Transcript, attack: Attack, limit: Limit | None = None) -> Tensor | None:
    """Examples `[k, *shape]` that an attack certifies, as the network reads them; None where there are none.

    Raises:
        KeyboardInterrupt: Where somebody stopped it, and not the clock.
    """
    with suppress(SeepageError):  # Inapplicable, or a network that takes no example alone
        found = attack(transcript, seed=0)
        if found.status == "interrupted" and not (limit is not None and limit.over):
            raise KeyboardInterrupt
        if found.certified is not None and bool(found.certified.any()):
            return found.inputs[found.certified]
    return None


def normalization_of(examples: Tensor) -> str | None:
    """The stated statistics under which examples `[k, C, H, W]` are 8-bit pictures; None: under none of them.

    >>> pictures = torch.arange(192.0).reshape(1, 3, 8, 8) / 255
    >>> normalization_of((pictures - 0.5) / 0.5)
    '0.5'
    """
    if examples.ndim != 4:
        return None
    best, name = WHOLE, None
    for one in NORMALIZATIONS:
        mean, std = (torch.tensor(part, dtype=torch.float64)[:, None, None] for part in statistics_of(one))
        if len(mean) not in (1, examples.shape[1]):
            continue
        levels = (255 * (examples.double() * std + mean)).flatten()
        if levels.min() < -0.5 or levels.max() > 255.5:
            continue
        # Of one background, however large, the distance counts once: by each whole number the mean of its values.
        _, place, count = levels.round().unique(return_inverse=True, return_counts=True)
        square = torch.zeros(len(count), dtype=torch.float64).index_add(0, place, (levels - levels.round()).square())
        off = float((square / count).mean().sqrt())
        best, name = (off, one) if len(count) >= LEVELS and off < best else (best, name)
    return name
