"""Fingerprints that a defense or a number format leaves on an update: noise, levels, zeros, a round norm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from seepage.base.algebra.lowrank import noise_floor
from seepage.base.number_formats import SIGNIFICANT_BITS
from seepage.base.rounding import FLOAT32_SUM, ROUNDINGS
from seepage.base.schema import Finding
from seepage.base.words import plural
from seepage.federation.measured import EVEN, GLANCE, Measured
from seepage.federation.types import Tensors

MIN_ENTRIES = 32
"""Entries of a tensor below which its values say nothing."""
NOISE_FIT_TOLERANCE = 0.1
"""Relative deviation of a spectrum's tail from that of independent noise up to which it is taken for noise."""
MIN_NOISE_SHARE = 0.01
"""Share of a size from which noise on it is reported: of a tensor's entries, whose own rounding stays below, or of a
difference of weights."""
CHUNK_ENTRIES = 2**16
"""Entries that are turned into float64 at a time."""
MIN_PRUNED_ENTRIES = 200
"""Entries other than zero from which a lack of small ones is reported."""
AT_THRESHOLD = 0.02
"""Share of the entries that lie within a tenth above a threshold: of normal numbers 2 % where 80 % are kept, and more
where fewer are."""
NOISELESS_BIAS_SHARE = 0.02
"""Share of the noise's deviation below which the sum of the last bias has none on it; 1 in 60 sums fall there."""
MAX_SPECTRUM_SIDES = (256, 2048)
"""Rows and columns of a tensor whose spectrum is looked at, at most; a part of independent noise is such noise too."""
MIN_TAIL_VALUES = 24
"""Singular values that a tail must have to be compared with the law of noise."""
NOISE_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles at which a tail of singular values is compared with the law of noise."""
ROUND_NORM = 1e-5
"""Relative distance below a round norm up to which an update was clipped to it, at most."""
ROUND_DIGITS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
"""First digits of norms that people clip to: their windows are 3e-5 of the norms between 0.001 and 100."""
CENTERED = 1e-3
"""Share of a row's absolute entries that their sum must stay below to be zero; a row of d signs has about d^-1/2."""
FEWEST_ROWS = 4
"""Rows that moved, and entries of each, from which a weight tells that."""
FEWEST_CENTERED = 3
"""Weights whose rows must all sum to zero: a layer that reads centered values has such rows, and seldom all have."""
CHANGES_VALUES = frozenset({"noised", "quantized", "sparsified", "adaptive"})
"""Fingerprints of defenses that change an update in more than its length."""
FORMAT_OR_DEFENSE = "A number format to save bytes looks the same as a defense."
"""Limit of every finding of rounding."""


@dataclass(frozen=True)
class Fingerprint:
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
        centered: Whether each row that moved sums to zero; None of vectors, and where rounding or few rows hide it.
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
    centered: bool | None = None


def fingerprint(name: str, tensor: Tensor, unit: float = 0.0) -> Fingerprint:
    """The fingerprint of one tensor.

    Args:
        name: Of the parameter.
        tensor: What was sent.
        unit: Its entries are whole multiples of this, or of parts of it, in any case: of a difference of weights the
            last place of the largest weight. Levels and gaps of this size say nothing.

    Example:
        >>> fingerprint("w", torch.arange(-31.0, 32.0)).bits
        6
    """
    flat = tensor.detach().flatten()
    live, first = int(flat.count_nonzero()), _first(flat)
    noise = noise_of(tensor)
    noise = None if noise is None or noise < ROUNDINGS * unit else noise
    size = _norm_of(flat) / math.sqrt(max(1, len(flat)))
    enough = live >= MIN_ENTRIES
    return Fingerprint(
        name=name,
        shape=tuple(tensor.shape),
        zeros=1 - live / max(1, len(flat)),
        pruned=_is_pruned(tensor.detach(), unit),
        distinct=_distinct(flat[:GLANCE]),
        bits=_bits(flat, first, unit) if enough else None,
        half=_half(first, unit) if enough else None,
        noise=noise,
        share=None if noise is None else noise / size,
        centered=_is_centered(tensor.detach(), unit),
    )


def _is_centered(tensor: Tensor, unit: float) -> bool | None:
    """Whether the rows of a weight's gradient sum to zero: `sum_j g_ij = 0` for each row i that moved."""
    rows = tensor.flatten(1) if tensor.ndim > 1 else tensor[None]
    if min(rows.shape) < FEWEST_ROWS:
        return None
    size = rows.abs().sum(1, dtype=torch.float64)
    # Rounding leaves a sum of d entries about unit d^1/2.
    live = size > max(CENTERED * float(size.max()), unit * math.sqrt(rows.shape[1]) / CENTERED)
    if int(live.sum()) < FEWEST_ROWS:
        return None
    return bool((rows.sum(1, dtype=torch.float64)[live].abs() < CENTERED * size[live]).all())


def _distinct(flat: Tensor) -> int:
    """Different values. NumPy sorts several times faster than torch finds unique values."""
    exact = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    ordered = np.sort(exact.cpu().numpy())
    return int((ordered[1:] != ordered[:-1]).sum()) + (len(ordered) > 0)


def _first(flat: Tensor) -> Tensor:
    """The first `GLANCE` entries other than zero, found in parts, as selecting takes memory."""
    found, count = list[Tensor](), 0
    for part in flat.split(CHUNK_ENTRIES) if len(flat) else ():
        found.append(part[part != 0][: GLANCE - count])
        count += len(found[-1])
        if count == GLANCE:
            break
    return torch.cat(found) if found else flat


def _is_pruned(tensor: Tensor, unit: float) -> bool:
    """Of so many entries the smallest would be far below a tenth of the median, were it not for a threshold.

    Rows and columns of zeros are left out: dead neurons, and inputs that are zero, are no defense. What is left has its
    smallest entries at the threshold, where entries are densest.
    """
    if tensor.ndim < 2:
        return False
    matrix = tensor.flatten(1)
    if not matrix.numel() or int(matrix.count_nonzero()) >= 0.95 * matrix.numel():
        return False
    rows, columns = ((matrix.amax(axis) != 0) | (matrix.amin(axis) != 0) for axis in (1, 0))
    flat = (matrix if bool(rows.all() and columns.all()) else matrix[rows][:, columns]).flatten()
    live = int(flat.count_nonzero())
    if not MIN_PRUNED_ENTRIES <= live < 0.95 * len(flat):
        return False
    least = min(float(size[size > 0].min()) for size in map(torch.abs, flat.split(CHUNK_ENTRIES)) if bool(size.any()))
    if least < ROUNDINGS * unit:
        return False  # zeros are changes that were rounded away
    near, densest = (
        sum(int(((size > 0) & (size <= times * least)).sum()) for size in map(torch.abs, flat.split(CHUNK_ENTRIES)))
        for times in (10 * (1 + 1e-6), 1.1)
    )
    # So the median is among them. Entries of one size, as a step of Adam leaves them, are at no threshold.
    return near > (live - 1) // 2 and AT_THRESHOLD * live <= densest < live


def _bits(flat: Tensor, first: Tensor, unit: float) -> int | None:
    low, high = flat.aminmax()
    largest, live = torch.maximum(-low, high).double(), first.double()
    if bool((live.abs() >= largest * (1 - FLOAT32_SUM) - unit).all()):
        return 1
    # b bits have levels k * step with |k| <= 2**(b - 1) - 1, and the largest entry lies on the outermost.
    steps = largest / (2.0 ** torch.arange(1, 16, dtype=torch.float64, device=live.device) - 1)  # of 2 to 16 bits
    steps = steps[steps > ROUNDINGS * unit]
    fitting = _whole(live[:MIN_ENTRIES], steps[:, None], unit)  # most tensors fail at the first few entries
    found = next((int(i) + 2 for i in fitting.nonzero() if bool(_whole(live, steps[i], unit))), None)
    if found is None:
        return None
    # Two sizes whose ratio is that of small numbers, such as 9 of 0.9 and 0.1, lie on levels of some bits too.
    return found if 8 * _distinct(live.abs()) >= min(2 ** (found - 1) - 1, len(live)) else None


def _whole(live: Tensor, step: Tensor, unit: float) -> Tensor:
    """Which rows are whole multiples of a step, none of them zero, up to float32 and a unit."""
    places = live / step
    room = FLOAT32_SUM * places.abs() + unit / step
    return (((places - places.round()).abs() <= room) & (places.abs() > 0.5)).all(-1)


def _half(live: Tensor, unit: float) -> str | None:
    if live.dtype not in (torch.float32, torch.float64):
        return str(live.dtype).removeprefix("torch.")
    for dtype in (torch.bfloat16, torch.float16):
        # Fewer units than a significand counts fit any format.
        own = live[live.abs() >= 2.0 ** SIGNIFICANT_BITS[str(dtype).removeprefix("torch.")] * unit]
        if len(own) >= MIN_ENTRIES and torch.equal(own.to(dtype).to(own), own):
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
    matrix = matrix[: min(MAX_SPECTRUM_SIDES[0], matrix.shape[1] // 2), : MAX_SPECTRUM_SIDES[1]].double()
    m, d = matrix.shape
    if m < MIN_TAIL_VALUES or bool((matrix == 0).all(0).any()) or bool((matrix == 0).all(1).any()):
        return None  # noise leaves no row or column at zero
    # The singular values of [m, d] are the roots of the eigenvalues of [m, m], which is much smaller; largest first.
    values = torch.linalg.eigvalsh(matrix @ matrix.T).clamp(min=0).sqrt().flip(0)
    least = 1e-6 * float(values[0]) / math.sqrt(d)
    # How many values are signal: none, as many as the knee of the spectrum says, then whatever fits first.
    for above in (0, noise_floor(values)[1], *range(1, 33), *range(48, m // 2, 16)):
        if m - above >= MIN_TAIL_VALUES:
            deviation = _fitted(values[above:], d)
            if deviation is not None and deviation > least:
                return deviation
    return None


def _fitted(tail: Tensor, d: int) -> float | None:
    """The deviation whose law the values follow, or None."""
    ratios = torch.quantile(tail, torch.tensor(NOISE_QUANTILES, dtype=torch.float64)) / _law(len(tail), d)
    middle = float(ratios[2])
    flat = middle > 0 and float((ratios / middle - 1).abs().max()) < NOISE_FIT_TOLERANCE
    return middle / math.sqrt(d) if flat else None


@lru_cache(maxsize=4096)
def _law(m: int, d: int) -> Tensor:
    """`NOISE_QUANTILES` of the singular values of a matrix `[m, d]` of unit noise, over `sqrt(d)`, for `m <= d`."""
    beta = m / d
    # Density of s = sigma / sqrt(d): sqrt((high^2 - s^2) (s^2 - low^2)) / (pi beta s), with the edges 1 -+ sqrt(beta).
    low, high = 1 - math.sqrt(beta), 1 + math.sqrt(beta)
    s = torch.linspace(low, high, 4001, dtype=torch.float64)
    middle = (s[1:] + s[:-1]) / 2
    density = ((high**2 - middle**2) * (middle**2 - low**2)).clamp(min=0).sqrt() / middle
    total = density.cumsum(0) / density.sum()  # the distribution function on the grid
    places = torch.searchsorted(total, torch.tensor(NOISE_QUANTILES, dtype=torch.float64))
    return middle[places.clamp(max=len(middle) - 1)]


def defense_findings(
    fingerprints: Sequence[Fingerprint], norm: float, last_bias: Tensor | None = None
) -> list[Finding]:
    """What the whole update looks like; each finding is a likeness and proves nothing.

    Args:
        fingerprints: Of every tensor.
        norm: Euclidean norm of the update as it was sent.
        last_bias: What was sent for the last bias. Its sum is zero, but for the noise on each of its entries.

    Returns:
        Findings named `noised`, `quantized`, `rounded`, `sparsified`, `centered` or `clipped`.
    """
    levels = _levels(fingerprints)
    # Rounding to levels leaves errors like noise, and zeros.
    quantized = levels is not None and levels.name == "quantized"
    found = [levels] if quantized else [_noised(fingerprints, last_bias), levels, _sparsified(fingerprints)]
    return [finding for finding in (*found, _centered(fingerprints), clipped(norm)) if finding is not None]


def _noised(fingerprints: Sequence[Fingerprint], last_bias: Tensor | None) -> Finding | None:
    """Noise lies on all tensors alike: at least half of those that could show it must, and with one deviation."""
    sides = [(one.shape[0], math.prod(one.shape[1:])) for one in fingerprints if len(one.shape) > 1]
    could = [pair for pair in sides if min(pair) >= 2 * MIN_TAIL_VALUES]
    strong = sorted(one.noise for one in fingerprints if one.noise and one.share and one.share >= MIN_NOISE_SHARE)
    if not strong or 2 * len(strong) < len(could):
        return None
    middle = strong[len(strong) // 2]
    if last_bias is not None:
        # The sum of c entries of noise of deviation s has deviation s sqrt(c).
        expected = middle * math.sqrt(len(last_bias))
        if abs(float(last_bias.double().sum())) < NOISELESS_BIAS_SHARE * expected:
            return None
    alike = [deviation for deviation in strong if 0.5 < deviation / middle < 2]
    if 2 * len(alike) < len(could):
        return None
    end = "1 tensor ends" if len(alike) == 1 else f"{len(alike)} tensors end"
    return Finding(
        name="noised",
        message=f"looks noised: {end} in noise of standard deviation about {middle:.2g}",
        evidence={"tensors": len(alike), "deviation": middle},
        limit="Any independent noise looks so; whether a defense added it, and which, is not known.",
    )


def _levels(fingerprints: Sequence[Fingerprint]) -> Finding | None:
    halves = {one.half for one in fingerprints if one.half}
    large = [one for one in fingerprints if math.prod(one.shape) * (1 - one.zeros) >= MIN_ENTRIES]
    if large and all(one.bits is not None for one in large):
        bits = max(one.bits or 0 for one in large)
        return Finding(
            name="quantized",
            message=f"looks quantized: every entry lies on evenly spaced levels of {plural(bits, 'bit')}"
            + ", as steps of signs leave them, too" * (bits <= 3),
            evidence={"bits": bits},
            limit="Levels that are not evenly spaced are not looked for.",
        )
    if large and halves and all(one.half for one in large):
        formats = sorted(half for half in halves if half)
        return Finding(
            name="rounded",
            message=f"looks rounded to {'/'.join(formats)}",
            evidence={"formats": formats},
            limit=FORMAT_OR_DEFENSE,
        )
    return None


def rounded_finding(measured: Measured) -> Finding:
    """What the rounding of weights, or of a gradient behind them, costs a tensor.

    Args:
        measured: The largest tensor, of an update in a coarse format.
    """
    ((name, value),), error = measured.value.items(), measured.error
    assert measured.formats is not None  # as it is coarse
    form = measured.formats.coarse
    what = "the returned weights are" if measured.formats.gradient == "float32" else "the gradient is made of"
    share = float(error[name].norm() / EVEN / value.norm().clamp_min(1e-30))
    return Finding(
        name="rounded",
        message=f"looks rounded: {what} {form} numbers, whose rounding is {share:.2g} times as large as what is left "
        "of the gradient",
        evidence={"formats": [form], "share": share},
        limit=FORMAT_OR_DEFENSE,
    )


def rounded_weights(form: str) -> Finding:
    """That the returned weights were rounded, where no gradient can be read beside which to say how much.

    Args:
        form: Name of their number format.
    """
    return Finding(
        name="rounded",
        message=f"looks rounded: the returned weights are {form} numbers",
        evidence={"formats": [form]},
        limit=FORMAT_OR_DEFENSE,
    )


def _sparsified(fingerprints: Sequence[Fingerprint]) -> Finding | None:
    pruned = [one for one in fingerprints if one.pruned]
    if not pruned:
        return None
    share = max(one.zeros for one in pruned)
    return Finding(
        name="sparsified",
        message=f"looks sparsified: {len(pruned)} tensor{' has' if len(pruned) == 1 else 's have'} no small entries "
        f"beside the zeros (up to {share:.0%} zeros)",
        evidence={"tensors": len(pruned), "zeros": share},
        limit="Entries that were dropped by chance and not for their size are not distinguished from dead neurons.",
    )


def _centered(fingerprints: Sequence[Fingerprint]) -> Finding | None:
    """The mean of each row was taken away, as gradient centralization does, and with it that of what the layer read."""
    told = [one for one in fingerprints if one.centered is not None]
    if len(told) < FEWEST_CENTERED or not all(one.centered for one in told):
        return None
    return Finding(
        name="centered",
        message=f"looks centered: each row of {len(told)} weights sums to zero: rows are of examples less their mean",
        evidence={"tensors": len(told)},
        limit="Layers that read values of mean zero leave such rows, too.",
    )


def euclidean_norm(tensors: Tensors) -> float:
    """Euclidean norm over all tensors, in float64: squares of what somebody sends may not fit float32."""
    return math.hypot(*(_norm_of(tensor.detach().flatten()) for tensor in tensors.values()))


def _norm_of(flat: Tensor) -> float:
    # In parts, as torch makes a copy in float64 first.
    parts = flat.split(CHUNK_ENTRIES) if len(flat) else ()
    return math.hypot(*(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in parts))


def clipped(norm: float) -> Finding | None:
    """A norm as people choose.

    Clipping to C divides by `norm / C`, or multiplies by `C / (norm + 1e-6)` with a norm above C, so that it leaves C
    or less by at most `1e-6 / C` of it.
    """
    if not norm > 0:
        return None
    scale = 10.0 ** math.floor(math.log10(norm * (1 + ROUND_NORM)))
    near = scale * min(ROUND_DIGITS, key=lambda digit: abs(norm / scale - digit))
    if not -min(ROUND_NORM, 1e-6 / near) - FLOAT32_SUM < norm / near - 1 < FLOAT32_SUM:
        return None
    return Finding(
        name="clipped",
        message=f"looks clipped: the norm of the update is {near:.2g}, a round number, if nothing else made it so",
        evidence={"norm": near},
        limit="Chance gives one update in thirty thousand such a norm.",
    )
