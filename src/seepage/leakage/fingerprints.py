"""Marks that a defense or a number format leaves on an update: noise, levels, zeros, a round norm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from seepage.attacks.cpa.ica.spectrum import noise_floor
from seepage.types import Tensors

ENOUGH = 32
"""Entries of a tensor below which its values say nothing."""
FLAT = 0.1
"""Relative deviation of a spectrum's tail from that of independent noise up to which it is taken for noise."""
STRONG = 0.01
"""Share of a tensor's root mean square entry from which a floor of noise is named; rounding stays below."""
MANY = 200
"""Entries other than zero from which a lack of small ones is a mark."""
MOST = 2**16
"""Entries of a tensor whose values are compared, at most: the first ones."""
UNTOUCHED = 0.02
"""Share of the noise's deviation below which the sum of the last bias has none on it; 1 in 60 sums fall there."""
CUT = (256, 2048)
"""Rows and columns of a tensor whose spectrum is looked at, at most; a part of independent noise is such noise too."""
TAIL = 24
"""Singular values that a tail must have to be compared with the law of noise."""
PART = 2**16
"""Entries that are turned into float64 at a time."""
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles at which it is compared."""


@dataclass(frozen=True)
class TensorMarks:
    """What one tensor's values look like.

    Attributes:
        name: Of the parameter.
        shape: Its shape.
        zeros: Share of entries that are exactly zero.
        pruned: No small entries are left beside the zeros, as after keeping the largest alone.
        distinct: Number of different values among its first 65,536.
        bits: Fewest bits of evenly spaced levels that hold every entry, 1 to 16; None: no such levels.
        half: `float16` or `bfloat16` where every entry fits that format.
        noise: Standard deviation of independent noise in the tail of its spectrum; None: the tail is no such noise.
        share: The same as a share of the root mean square entry.
    """

    name: str
    shape: tuple[int, ...]
    zeros: float
    pruned: bool
    distinct: int
    bits: int | None
    half: str | None
    noise: float | None
    share: float | None


def marks_of(name: str, tensor: Tensor) -> TensorMarks:
    """The marks on one tensor.

    Example:
        >>> marks_of("w", torch.arange(-31.0, 32.0)).bits
        6
    """
    flat = tensor.detach().flatten()
    live, first = int(flat.count_nonzero()), _first(flat)
    noise = noise_of(tensor)
    size = _length(flat) / math.sqrt(max(1, len(flat)))
    enough = live >= ENOUGH
    return TensorMarks(
        name=name,
        shape=tuple(tensor.shape),
        zeros=1 - live / max(1, len(flat)),
        pruned=_is_pruned(flat, live),
        distinct=_distinct(flat[:MOST]),
        bits=_bits(flat, first) if enough else None,
        half=_half(first) if enough else None,
        noise=noise,
        share=None if noise is None else noise / size,
    )


def _distinct(flat: Tensor) -> int:
    """Different values. NumPy sorts several times faster than torch finds unique values."""
    exact = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    ordered = np.sort(exact.cpu().numpy())
    return int((ordered[1:] != ordered[:-1]).sum()) + (len(ordered) > 0)


def _first(flat: Tensor) -> Tensor:
    """The first `MOST` entries other than zero. Large tensors are gone through in parts, as selecting takes memory."""
    found, count = list[Tensor](), 0
    for part in flat.split(PART) if len(flat) else ():
        found.append(part[part != 0][: MOST - count])
        count += len(found[-1])
        if count == MOST:
            break
    return torch.cat(found) if found else flat


def _is_pruned(flat: Tensor, live: int) -> bool:
    """Of so many entries the smallest would be far below a tenth of the median, were it not for a threshold."""
    if not MANY <= live < 0.95 * len(flat):
        return False
    least = min(float(size[size > 0].min()) for size in map(torch.abs, flat.split(PART)) if bool(size.any()))
    bound = 10 * least * (1 + 1e-6)
    near = sum(int(((size > 0) & (size <= bound)).sum()) for size in map(torch.abs, flat.split(PART)))
    return near > (live - 1) // 2  # so the median is among them


def _bits(flat: Tensor, first: Tensor) -> int | None:
    low, high = flat.aminmax()
    largest, live = torch.maximum(-low, high).double(), first.double()
    if bool((live.abs() >= largest * (1 - 1e-6)).all()):
        return 1
    steps = largest / (2.0 ** torch.arange(1, 16, dtype=torch.float64, device=live.device) - 1)  # of 2 to 16 bits
    fitting = _whole(live[:ENOUGH] / steps[:, None])  # most tensors fail at the first few entries
    return next((int(i) + 2 for i in fitting.nonzero() if bool(_whole(live / steps[i]))), None)


def _whole(places: Tensor) -> Tensor:
    """Which rows are whole numbers."""
    return ((places - places.round()).abs() < 1e-2).all(-1)


def _half(live: Tensor) -> str | None:
    if live.dtype not in (torch.float32, torch.float64):
        return str(live.dtype).removeprefix("torch.")
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(live.to(dtype).to(live), live):
            return str(dtype).removeprefix("torch.")
    return None


def noise_of(tensor: Tensor) -> float | None:
    """Standard deviation of independent noise in a tensor, from the tail of its singular values; None: no such tail.

    The values of a matrix `[m, d]` of independent noise of deviation s lie as Marchenko and Pastur (1967) say, between
    `s (sqrt(d) - sqrt(m))` and `s (sqrt(d) + sqrt(m))`. Gradients without noise fall off much faster. What stands
    above is taken for the signal and left out: up to half of the values, as few as will do.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> signal = torch.rand(40, 2, generator=draw) @ torch.rand(2, 300, generator=draw)
        >>> noisy = signal + 0.05 * torch.randn(40, 300, generator=draw)
        >>> round(noise_of(noisy), 2), noise_of(signal)
        (0.05, None)
    """
    if tensor.ndim < 2:
        return None
    matrix = tensor.detach().flatten(1)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    # At most half as many rows as columns: the smallest values of a square of noise scatter too much to be compared.
    matrix = matrix[: min(CUT[0], matrix.shape[1] // 2), : CUT[1]].double()
    m, d = matrix.shape
    if m < TAIL or bool((matrix == 0).all(0).any()) or bool((matrix == 0).all(1).any()):
        return None  # noise leaves no row or column at zero
    values = torch.linalg.eigvalsh(matrix @ matrix.T).clamp(min=0).sqrt().flip(0)
    least = 1e-6 * float(values[0]) / math.sqrt(d)
    for above in (0, noise_floor(values)[1], *range(1, 33), *range(48, m // 2, 16)):
        if m - above >= TAIL:
            deviation = _fitted(values[above:], d)
            if deviation is not None and deviation > least:
                return deviation
    return None


def _fitted(tail: Tensor, d: int) -> float | None:
    """The deviation whose law the values follow, or None."""
    ratios = torch.quantile(tail, torch.tensor(SHARES, dtype=torch.float64)) / _law(len(tail), d)
    middle = float(ratios[2])
    flat = middle > 0 and float((ratios / middle - 1).abs().max()) < FLAT
    return middle / math.sqrt(d) if flat else None


@lru_cache(maxsize=4096)
def _law(m: int, d: int) -> Tensor:
    """Quantiles `SHARES` of the singular values of a matrix `[m, d]` of unit noise, over `sqrt(d)`, for `m <= d`."""
    beta = m / d
    low, high = 1 - math.sqrt(beta), 1 + math.sqrt(beta)
    s = torch.linspace(low, high, 4001, dtype=torch.float64)
    middle = (s[1:] + s[:-1]) / 2
    density = ((high**2 - middle**2) * (middle**2 - low**2)).clamp(min=0).sqrt() / middle
    total = density.cumsum(0) / density.sum()
    return middle[torch.searchsorted(total, torch.tensor(SHARES, dtype=torch.float64)).clamp(max=len(middle) - 1)]


def looks_like(marks: Sequence[TensorMarks], length: float, last: Tensor | None = None) -> list[str]:
    """Sentences on the whole update; each says what it looks like and proves nothing.

    Args:
        marks: Of every tensor.
        length: Euclidean norm of the update as it was sent.
        last: What was sent for the last bias. Its sum is zero, but for the noise on each of its entries.
    """
    levels = _levels(marks)
    # Rounding to levels leaves errors like noise, and zeros.
    words = [levels] if levels.startswith("looks quantized") else [_noise(marks, last), levels, _zeros(marks)]
    return [word for word in (*words, _clip(length)) if word]


def _noise(marks: Sequence[TensorMarks], last: Tensor | None) -> str:
    """Noise lies on all tensors alike: at least half of those that could show it must, and with one deviation."""
    sides = [(mark.shape[0], math.prod(mark.shape[1:])) for mark in marks if len(mark.shape) > 1]
    could = [pair for pair in sides if min(pair) >= 2 * TAIL]
    strong = sorted(mark.noise for mark in marks if mark.noise and mark.share and mark.share >= STRONG)
    if strong and 2 * len(strong) >= len(could):
        middle = strong[len(strong) // 2]
        if last is not None and abs(float(last.double().sum())) < UNTOUCHED * middle * math.sqrt(len(last)):
            return ""
        alike = [deviation for deviation in strong if 0.5 < deviation / middle < 2]
        if 2 * len(alike) >= len(could):
            return f"looks noised: {len(alike)} tensors end in noise of standard deviation about {middle:.2g}"
    return ""


def _levels(marks: Sequence[TensorMarks]) -> str:
    halves = {mark.half for mark in marks if mark.half}
    large = [mark for mark in marks if math.prod(mark.shape) * (1 - mark.zeros) >= ENOUGH]
    if large and all(mark.bits is not None for mark in large):
        return f"looks quantized: every entry lies on evenly spaced levels of {max(m.bits or 0 for m in large)} bits"
    if large and halves and all(mark.half for mark in large):
        return f"looks rounded to {'/'.join(sorted(half for half in halves if half))}"
    return ""


def _zeros(marks: Sequence[TensorMarks]) -> str:
    pruned = [mark for mark in marks if mark.pruned]
    if not pruned:
        return ""
    share = max(mark.zeros for mark in pruned)
    return f"looks sparsified: {len(pruned)} tensors have no small entries beside their zeros (up to {share:.0%} zeros)"


def length_of(tensors: Tensors) -> float:
    """Euclidean norm over all tensors, in float64: squares of what somebody sends may not fit float32."""
    return math.hypot(*(_length(tensor.detach().flatten()) for tensor in tensors.values()))


def _length(flat: Tensor) -> float:
    # In parts, as torch makes a copy in float64 first.
    parts = flat.split(PART) if len(flat) else ()
    return math.hypot(*(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in parts))


def _clip(length: float) -> str:
    """A norm of one or two digits: chance gives one in a thousand."""
    if not length > 0:
        return ""
    scale = 10.0 ** (math.floor(math.log10(length)) - 1)
    near = round(length / scale) * scale
    if abs(length / near - 1) > 1e-5:
        return ""
    return f"looks clipped: the norm of the update is {near:.2g}, a round number"
