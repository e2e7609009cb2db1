"""What a convolution read and the gradient of its outputs, example by example, from the gradient of its weight alone.

The gradient is `G[o, c, k] = sum_{i, p} D[i, o, p] h[i, c, p + k]`: each example's output gradient D convolved with
what the layer read, h. With few positions and many channels neither has to be known: this is blind deconvolution of
many channels, and its subspace method (Moulines, Duhamel, Cardoso and Mayrargue, IEEE Trans. Signal Processing 1995)
applies.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from seepage.attacks.network.linearize import LayerUse
from seepage.attacks.reading.equations import columns_of, slope_matrix
from seepage.attacks.reading.head.equations import ROUNDING, UNEXPLAINED
from seepage.attacks.reading.head.sparse import unmix
from seepage.base.algebra.lowrank import ZERO_GAP
from seepage.base.nn import generator
from seepage.base.rounding import FLOAT32_ZERO
from seepage.errors import refuse

SPARE = 2.0
"""Rows of the compressed gradient, over the directions that the batch takes up."""
FEWEST_OUTPUTS = 64
"""Outputs that the gradient is compressed to at least, where it has as many."""
SURE = 2.0
"""A unit behind a ReLU counts as on above so many times the largest error that shows as a negative value."""
OUTLYING = 4.0
"""An output whose equations are off by so many times the median has a unit whose side was mistaken."""
TRIMMINGS = 8
"""Times that outlying outputs are left out, at most."""
REMEDY = "use gradient_matching, or look at the update of a smaller batch"


Deconvolved = tuple[Float[Tensor, "n C H W"], Float[Tensor, "n O h w"]]
"""What a convolution read, over t_i, and the gradient of the loss in its outputs, times t_i, in float64: each known up
to a positive factor t_i of the example that no gradient of the layer shows."""


def deconvolve(layer: LayerUse, gradient: Float[Tensor, "O C k l"], examples: int) -> Deconvolved:
    """Take a convolution's weight gradient apart into its examples. No other layer and no label is asked.

    With M(D) the matrix of slopes moved by each entry of the kernel, `G = M(D) h`, where the rows of G are the pairs of
    an output and an entry of the kernel, and its columns the channels.

    1. The column space of G is that of M(D), of one dimension for each position of each example: fewer than channels.
    2. M(D) is linear in D. So the D that fit are those with `(1 - U U^T) M(D) = 0`, U a basis of that column space; a
       homogeneous linear system, whose solutions are the examples' own D and their mixtures: n dimensions.
    3. With any basis of these, least squares gives mixtures of the examples' h, the same at all positions. Behind a
       ReLU the unmixed ones are those that are never negative and most often zero (`unmix`).
    4. With h known, D follows by least squares.

    Args:
        layer: A call of the convolution: stride 1, one group. Only shapes are looked at.
        gradient: The observed gradient of its weight.
        examples: Number of examples n.

    Raises:
        Inapplicable: With as many positions as channels or more, with errors above the gap, and where what was read is
            no output of a ReLU.
    """
    n, outputs, channels = examples, len(gradient), gradient.shape[1]
    positions = layer.input[0, 0].numel()
    if n * positions >= channels:
        raise refuse("too_many_positions")(
            f"the last convolution reads {n} x {positions} positions, and its {channels} channels tell fewer apart",
            REMEDY,
        )
    # The strongest combinations of outputs are enough; they make no difference to what was read.
    rank = n * positions
    entries = gradient[0, 0].numel()
    whole = gradient.double().cpu()
    left, _, _ = torch.linalg.svd(whole.flatten(1), full_matrices=False)  # [O, O]
    kept = min(outputs, max(FEWEST_OUTPUTS, int(SPARE * rank / entries) + 16))
    small = torch.einsum("ok,ocab->kcab", left[:, :kept], whole)
    rows = columns_of(small)  # [K k l, C]
    directions, singular, _ = torch.linalg.svd(rows, full_matrices=False)  # U [K k l, r]
    if len(singular) <= rank or not singular[rank] < ZERO_GAP * singular[rank - 1]:
        raise refuse("examples_missing")(
            f"the gradient of the last convolution does not show {n} examples of {positions} positions each: "
            "some left no trace in it, or its errors hide them",
            REMEDY,
        )
    values, vectors = torch.linalg.eigh(_contradiction(layer, directions[:, :rank], kept))
    # Errors add up in squares: values are squared lengths.
    error = float((values[n - 1].clamp(min=0) / values[n]).sqrt())
    if not error < ZERO_GAP:
        raise refuse("unsolved")("the gradient of the last convolution cannot be taken apart into its examples", REMEDY)
    # Any n independent D of the null space: mixtures of the examples' own.
    mixed = vectors[:, :n].T.reshape(n, kept, *layer.output.shape[2:])  # [n, K, h, w]
    read = torch.linalg.lstsq(slope_matrix(layer, mixed), rows).solution  # [n positions, C]
    read = _unmixed(read.reshape(n, -1), max(error, ROUNDING * torch.finfo(gradient.dtype).eps))
    read = layer.maps(read.view(-1, channels))
    return read, solve_slopes(layer, read, whole)


def solve_slopes(
    layer: LayerUse, read: Float[Tensor, "n C H W"], gradient: Float[Tensor, "O C k l"]
) -> Float[Tensor, "n O h w"]:
    """Gradients of a convolution's outputs from what it read: `G = D H`, with H the patches `[n positions, C k l]`."""
    patches = layer.patches(read).transpose(1, 2).flatten(0, 1)
    slopes: Tensor = torch.linalg.lstsq(patches.T, gradient.flatten(1).T).solution  # [n positions, O]
    height, width = layer.output.shape[2:]
    return slopes.view(len(read), height, width, -1).permute(0, 3, 1, 2).contiguous()


def solve_read(
    layer: LayerUse, slopes: Float[Tensor, "n O h w"], gradient: Float[Tensor, "O C k l"]
) -> tuple[Float[Tensor, "n C H W"], float] | None:
    """What a convolution read from the gradients of its outputs, `G = M(D) h`, and the share of G left unexplained.

    A slope that is wrong (a unit taken for off) spoils the rows of its output alone. Outputs whose rows are off by far
    more than those of most are left out, and it is solved again.

    None where there are more positions than equations, or these do not determine all positions.
    """
    outputs, entries = len(gradient), gradient[0, 0].numel()
    matrix, rows = slope_matrix(layer, slopes), columns_of(gradient.double().cpu())
    sizes = rows.view(outputs, -1).norm(dim=1).clamp(min=1e-300)  # [O]
    kept = torch.ones(outputs, dtype=torch.bool)
    for _ in range(TRIMMINGS):
        chosen = kept.repeat_interleave(entries)
        if int(chosen.sum()) < matrix.shape[1]:
            return None
        # M^T M h = M^T G, in float64: its pivots are squares of what each position adds to the others.
        part = matrix[chosen]
        factor, failed = torch.linalg.cholesky_ex(part.T @ part)
        pivots = factor.diagonal()
        if int(failed) or not float(pivots.min() / pivots.max()) > FLOAT32_ZERO:
            return None
        solution = torch.cholesky_solve(part.T @ rows[chosen], factor)
        off = (matrix @ solution - rows).view(outputs, -1).norm(dim=1) / sizes  # [O]
        trusted = off <= max(OUTLYING * float(off.median()), torch.finfo(gradient.dtype).eps)
        if bool((trusted == kept).all()):
            break
        kept = trusted
    return layer.maps(solution), float(off[kept].max())


def negative_share(read: Tensor) -> float:
    """Length of the negative part over that of the whole: 0 behind a ReLU.

    >>> negative_share(torch.tensor([3.0, -4.0]))
    0.800000011920929
    """
    return float(read.clamp(max=0).norm() / read.norm())


def rectified(read: Tensor) -> Tensor:
    """What a ReLU gave, from it with errors: a value is zero unless larger than all negative ones, which are errors.

    >>> rectified(torch.tensor([[1.0, -1e-3, 1e-3, 1.0]]))
    tensor([[1., 0., 0., 1.]])
    """
    limit = SURE * -read.flatten(1).amin(1).clamp(max=0)
    return torch.where(read > limit.view(-1, *(1,) * (read.ndim - 1)), read, torch.zeros_like(read))


def _contradiction(layer: LayerUse, directions: Float[Tensor, "rows r"], outputs: int) -> Float[Tensor, "d d"]:
    """The quadratic form `|(1 - U U^T) M(D)|^2` in D `[outputs, positions]`, a matrix.

    Column q of M(D) holds D at the positions that read q, each in the rows of the entry of the kernel it reads q with.
    """
    reads = layer.places()  # [k l, positions]
    entries, places = reads.shape
    basis = directions.view(outputs, entries, -1)
    form = torch.zeros(outputs, places, outputs, places, dtype=directions.dtype)
    for q in range(1, layer.input[0, 0].numel() + 1):
        entry, place = (reads == q).nonzero(as_tuple=True)
        rows = basis[:, entry].flatten(0, 1)  # [outputs pairs, r]
        # |v|^2 - |U^T v|^2 for the column v that D makes.
        block = (torch.eye(len(rows), dtype=rows.dtype) - rows @ rows.T).view(outputs, len(entry), outputs, len(entry))
        for a, one in enumerate(place.tolist()):
            for b, other in enumerate(place.tolist()):
                form[:, one, :, other] += block[:, a, :, b]
    return form.view(outputs * places, -1)


def _unmixed(mixed: Float[Tensor, "n k"], error: float) -> Float[Tensor, "n k"]:
    """The examples' own rows, each up to a positive factor, from a mixture of them."""
    n, size = mixed.shape
    rows = torch.linalg.qr(mixed.T).Q.T  # [n, k] orthonormal, of the same span: the search is blind to the mixture
    # Orthonormal rows have entries of 1 / sqrt(k) on average.
    found = unmix(rows, error / size**0.5, None, generator(0, "deconvolution"))
    if found is None or found[1] < n:
        raise refuse("no_relu")(
            "what the last convolution read has too few zeros to tell the examples apart: it is not behind a ReLU",
            REMEDY,
        )
    read = found[0] @ rows
    if not negative_share(read) < UNEXPLAINED:
        raise refuse("no_relu")("what the last convolution read is negative in places: it is not behind a ReLU", REMEDY)
    return rectified(read)
