"""The range of values that rows of the first layer show, where nobody states one."""

from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

from seepage.attacks.linear.linear import LinearLeak
from seepage.base.rounding import outward
from seepage.errors import SeepageError
from seepage.federation.types import Transcript

REACHES = (4.0, 32.0, 256.0)
"""Largest sizes of a value that are tried: standardized, scaled by hand, pixels of eight bits."""
MARGIN = 0.25
"""Share of their width by which the range reaches beyond the values that were seen: other examples may lie there."""

Range = tuple[float, float]


def shown_range(within: Callable[[Range], Transcript]) -> tuple[Range, Tensor] | None:
    """The range that `linear` proves more examples in than in [0, 1], and these examples `[k, *shape]`; None otherwise.

    A certificate holds an example against the network's own backward pass; the range is one more condition. So a
    proven example outside of an assumed range speaks against the range. Errors count as shares of it, hence the
    examples are proven once more in the range that is returned, which is as wide as they are and a margin.

    Args:
        within: The transcript with inputs of a range.
    """
    stated = within((0.0, 1.0))
    size, base = stated[0].batch_size, _proven(stated)
    if size is None or (base is not None and len(base) == size):
        return None
    count = 0 if base is None else len(base)
    found = [one for reach in REACHES if (one := _proven(within((-reach, reach)))) is not None]
    seen = max(found, key=len, default=None)  # of equally many the narrowest
    if seen is None or len(seen) <= count:
        return None
    low, high = (float(end) for end in seen.aminmax())
    room = MARGIN * (high - low)
    fits = outward(min(0.0, low - room), max(1.0, high + room))
    again = _proven(within(fits))
    return None if again is None or len(again) <= count else (fits, again)


def _proven(transcript: Transcript) -> Tensor | None:
    """Examples `[k, *shape]` that `linear` certifies, as they were divided; None where there are none."""
    with suppress(SeepageError):  # Inapplicable, or a network that takes no example alone
        found = LinearLeak()(transcript, seed=0)
        if found.certified is not None and bool(found.certified.any()):
            return found.inputs[found.certified]
    return None
