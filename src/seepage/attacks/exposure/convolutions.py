"""How many equations a convolutional network's gradient holds about each image, against how many pixels there are."""

import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.exposure.finding import ClosedForm
from seepage.attacks.network import LARGEST_MATRIX
from seepage.attacks.network.linearize import VictimNetwork
from seepage.attacks.reading.decoding import NaturalSpectrum
from seepage.attacks.reading.equations import EquationWhitening, Structure, slope_matrix
from seepage.base.algebra.derivative import Derivative
from seepage.base.algebra.lowrank import INDEPENDENT
from seepage.base.nn import generator, last_linear
from seepage.errors import Inapplicable
from seepage.federation.types import Knowledge, Round

PROBES = 8
"""Made-up images over which the active features of an example are averaged."""
QUICK = 1024
"""Pixel values of an image up to which the rank is computed in under a second, so that it always is."""
THOROUGH = 4096
"""Pixel values of an image up to which the rank is computed on request: ten seconds of a core at 3,072, growing with
the cube."""
AT_ONCE = 32
"""Columns of the Jacobian made at a time."""
SPARE = 1.25
"""So many times more rows than columns are kept of a Jacobian that has many more."""


@dataclass(frozen=True)
class EquationCount:
    """Equations that the head and the last layer in front of it give about a batch, against its pixels.

    For n images there are `n active + channels min(rows, n rank)` equations for `n unknowns`. The images are made up,
    so nothing private is behind these numbers; those of other images differ a little.

    Attributes:
        layers: Names of the head's weight and of the weight whose gradient is used.
        active: Equations of one image's own, from its features: behind a ReLU the active ones.
        shared: Independent equations that the weight's gradient adds at this batch size, for all images together.
        unknowns: Pixel values of one image.
        batch_size: n.
        overdetermined: Whether there are at least as many equations as unknowns, and fewer examples than classes.
        largest_batch: Largest batch of which that holds; 0 where it holds of none.
        ended_by: What a larger batch lacks: `equations`, or `classes` to separate its examples.
        rank: Rank of the Jacobian for one image; None where it was counted, not computed.
    """

    layers: tuple[str, str]
    active: int
    shared: int
    unknowns: int
    batch_size: int
    overdetermined: bool
    largest_batch: int
    ended_by: Literal["equations", "classes"]
    rank: int | None

    @property
    def equations(self) -> int:
        """Equations about the whole batch."""
        return self.batch_size * self.active + self.shared

    @property
    def readable(self) -> bool:
        """Overdetermined, and not short of rank where that was computed."""
        return self.overdetermined and self.rank in (None, self.unknowns)

    @property
    def line(self) -> str:
        """The count, up to which batch size it suffices and why not beyond, and how it was found, in one line."""
        n = self.batch_size
        whose = "the one example" if n == 1 else f"{n} of {n} examples"
        words = [f"{self.equations:,} equations for the {n * self.unknowns:,} pixel values of {whose}"]
        if self.largest_batch:
            lack = "larger ones have too few equations"
            if self.ended_by == "classes":
                lack = "with as many examples as classes the head's gradient no longer shows their features"
            words.append(f"by this count batches of up to {self.largest_batch} are overdetermined ({lack})")
        else:
            words.append("no batch size is overdetermined")
        if self.rank is None:
            words.append("this is a count, the rank was not computed")
        else:
            words.append(
                f"for one image the rank was computed: {self.rank:,} of {self.unknowns:,} values are determined"
            )
        return "; ".join(words)


def equation_count(observed: Round, knowledge: Knowledge, *, thorough: bool = False) -> EquationCount:
    """Count equations against unknowns.

    Args:
        observed: A round: its weights and the size of its batch count, its update does not.
        knowledge: What the attacker knows.
        thorough: Whether to compute the rank for images of up to 4,096 values, which takes about ten seconds of a core;
            else only for those of up to 1,024, and beyond them count.

    Raises:
        Inapplicable: Where no convolution of all its input's channels is the last layer before a head, units are pooled
            in front of it, examples mix in batch norm, inputs are no images, or the batch size is unknown.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("convnet", {"width": 8}), (1, 8, 8), 4)
        >>> seen = record(model, Batch(torch.rand(2, 1, 8, 8), torch.tensor([0, 1])))
        >>> count = equation_count(seen[0], seen.knowledge)
        >>> count.unknowns, count.rank, count.largest_batch, count.ended_by, count.readable
        (64, 64, 3, 'classes', True)
    """
    head, size = _countable(observed, knowledge)
    unknowns = math.prod(knowledge.input_shape)
    computed = unknowns <= (THOROUGH if thorough else QUICK)
    # In float64, so that the rank is that of the network and not of its rounding; float32 where that takes too long.
    precise = torch.float64 if unknowns <= QUICK or not computed else torch.float32
    params = {name: tensor.to("cpu", precise) for name, tensor in observed.params.items()}
    buffers = {
        name: tensor.to("cpu", precise) if tensor.is_floating_point() else tensor.cpu()
        for name, tensor in observed.buffers.items()
    }
    low, high = knowledge.value_range
    network = VictimNetwork(knowledge.model, params, buffers, low, high - low)
    images = NaturalSpectrum(knowledge.input_shape).samples(PROBES, generator(0, "probe images")).to(precise)
    structure = Structure.of(network, head, images[:1], 1)
    with torch.no_grad():
        seen = network.run(images)
    # Only a convolution of all its input channels: M is then the same for each of them.
    if structure is None or seen.layers[structure.matched[0]].geometry[3:] != (1,):
        raise Inapplicable(
            "the last layer in front of the head is no convolution that reads all channels of its input",
            "use another probe",
        )
    if structure.activation is None and seen.activations and seen.activations[-1].slope == 0:
        # A count of the pooled features alone would say that images are safe which the attack reads exactly.
        raise Inapplicable(
            "units are pooled in front of the head: gauss_newton reads activations layer by layer there, and how far "
            "it comes is not counted",
            "run gauss_newton",
        )
    jacobian = Jacobian(network, structure, images[:1])
    known = structure.known(seen)
    one_sided = structure.activation is not None and structure.slope == 0
    active = int((known > 0).sum()) // PROBES if one_sided else known[0].numel()
    channels = jacobian.weight.shape[1]

    def shared(n: int) -> int:
        return channels * min(jacobian.rows, n * jacobian.slopes_rank)

    # The surplus n active + shared(n) - n unknowns is concave in n and 0 at n = 0: it is lost once and for all.
    most = knowledge.num_classes - 1
    enough = [n for n in range(1, most + 1) if n * active + shared(n) >= n * unknowns]
    return EquationCount(
        layers=(head, structure.names[0]),
        active=active,
        shared=shared(size),
        unknowns=unknowns,
        batch_size=size,
        overdetermined=size in enough,
        largest_batch=max(enough, default=0),
        ended_by="classes" if most in enough else "equations",
        rank=jacobian.rank() if computed else None,
    )


def _countable(observed: Round, knowledge: Knowledge) -> tuple[str, int]:
    """Name of the head's weight, and the batch size."""
    names = last_linear(knowledge.model, knowledge.num_outputs)
    if len(knowledge.input_shape) != 3:
        raise Inapplicable("pixels are counted, and inputs are no images", "use another probe")
    if names is None:
        raise Inapplicable("the model has no fully connected layer with one output per class", "use another probe")
    if knowledge.client.batch_coupled(knowledge.model):
        raise Inapplicable(
            "batch norm in train mode ties the examples of a batch together, so that how far gauss_newton comes is not "
            "known before it has run",
            "run gauss_newton",
        )
    if observed.batch_size is None:
        raise Inapplicable("the batch size is unknown", "name it with --batch-size")
    return names[0], observed.batch_size


class Jacobian:
    """The derivative of the equations in one image.

    Args:
        network: The network, in float64.
        structure: Where the known quantities lie.
        image: `[1, C, H, W]`.
    """

    def __init__(self, network: VictimNetwork, structure: Structure, image: Tensor) -> None:
        self.network, self.structure, self.image = network, structure, image
        x = image.detach().requires_grad_(True)
        seen = network.run(x)
        z, layer, head = structure.known(seen), seen.layers[structure.matched[0]], seen.layers[structure.head]
        # The signal (p - y) W of label 0, as it leaves the activation: 0 where that is off.
        chances = head.output.softmax(1)
        signal = ((chances - F.one_hot(torch.zeros(1, dtype=torch.long), chances.shape[1])) @ head.weight).view_as(z)
        if structure.activation is not None:
            signal = torch.where(z > 0, signal, structure.slope * signal)
        self.on = torch.ones_like(z, dtype=torch.bool)
        if structure.activation is not None and structure.slope == 0:
            self.on = z > 0
        (slopes,) = torch.autograd.grad(z, layer.output, signal.detach())
        self.weight, self.moved = layer.weight, None
        kernel = layer.weight[0, 0].numel() if layer.geometry else 1
        places = layer.input.shape[2:].numel() if layer.geometry else 1
        self.rows = len(layer.weight) * kernel
        self.slopes_rank = min(self.rows, layer.output[0, 0].numel() if layer.geometry else 1)
        if self.rows * places <= LARGEST_MATRIX:
            # 0 where all units are off, so that the gradient is zero whatever the image is.
            self.slopes_rank = EquationWhitening(layer, slopes).rank
            self.moved = slope_matrix(layer, slopes)  # M [O k k, positions]

    def columns(self) -> Tensor:
        """`[d, m]` the Jacobian's columns, one for each pixel value: active features, then the weight's gradient.

        Where the gradient alone has many more rows than there are pixel values, random mixtures of its input channels
        stand for all of them: as long as rows are more than columns, these have the same rank but for bad luck, and
        never a higher one.
        """
        d, parts = self.image.numel(), []
        assert self.moved is not None
        _, _, basis = torch.linalg.svd(self.moved, full_matrices=False)
        basis = basis[: self.slopes_rank]  # V^T: the gradient in orthonormal rows, as the attack has it
        channels = self.weight.shape[1]
        kept = min(channels, math.ceil(SPARE * d / max(self.slopes_rank, 1)))
        mixtures = torch.eye(channels)
        if kept < channels:
            mixtures = torch.randn((kept, channels), generator=generator(0, "mixtures")) / channels**0.5
        mixtures = mixtures.to(self.image)
        # Column j is J e_j, for many unit images at once: copies of the image share one pass. [b, active + C' r]
        for units in torch.eye(d, dtype=self.image.dtype).split(AT_ONCE):
            copies = self.image.expand(len(units), -1, -1, -1).detach().requires_grad_(True)
            seen = self.network.run(copies)
            outputs = [self.structure.known(seen), seen.layers[self.structure.matched[0]].input]
            z, reading = Derivative(outputs, copies).forward(units.view(copies.shape))
            gradient = mixtures @ reading.reshape(len(units), channels, -1) @ basis.T  # [b, C', r]
            parts.append(torch.cat([z[:, self.on[0]], gradient.flatten(1)], 1))
        return torch.cat(parts)

    def rank(self) -> int | None:
        """Directions of the image that change the equations; None where the slopes are too many."""
        if self.moved is None:
            return None
        columns = self.columns().double()
        if not columns.any():
            return 0
        # Small side first: the eigenvalues of J J^T are the squares of the singular values.
        gram = columns @ columns.T if len(columns) <= columns.shape[1] else columns.T @ columns
        # float32 resolves singular values down to its epsilon; its squares are summed in float64.
        least = max(INDEPENDENT, 8 * torch.finfo(self.image.dtype).eps)
        # Positive definite less a share of its norm, which is at least its largest eigenvalue: full rank. This costs a
        # tenth of all eigenvalues.
        shift = least**2 * float(gram.norm())
        if not torch.linalg.cholesky_ex(gram - shift * torch.eye(len(gram), dtype=gram.dtype)).info:
            return len(gram)
        values = torch.linalg.eigvalsh(gram)
        return int((values > least**2 * values[-1]).sum())


def convolution_findings(count: EquationCount) -> list[ClosedForm]:
    """The count of equations; it is of tensors where the batch is overdetermined."""
    short = "repeating equations" if count.overdetermined else "too few equations"
    name, message = "equations", f"{short} for an exact solution: {count.line}"
    if count.readable:
        name = "overdetermined"
        message = f"{count.line}: gauss_newton may read them exactly; withhold or noise the head or this layer"
    limit = "Made-up images stand for the private ones; where it was counted, equations may repeat one another."
    tensors = count.layers if count.readable else ()
    return [ClosedForm(name=name, message=message, evidence=asdict(count), limit=limit, tensors=tensors)]
