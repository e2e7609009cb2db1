"""How many equations a convolutional network's gradient holds about each image, against how many pixels there are."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.gauss_newton.equations import Structure, Whitening, slope_matrix
from seepage.attacks.gauss_newton.linearize import Derivative, Network
from seepage.attacks.gauss_newton.spectrum import NaturalSpectrum
from seepage.core.nn import generator, last_linear
from seepage.leakage.finding import Finding
from seepage.types import Knowledge, Round

PROBES = 8
"""Made-up images over which the active features of an example are averaged."""
MAX_COMPUTED = 1024
"""Pixel values of an image up to which the Jacobian is formed and its rank computed; more takes longer than seconds."""
MAX_SLOPES = 2**25
"""Entries of the matrix of slopes above which its rank is counted as full."""
AT_ONCE = 64
"""Columns of the Jacobian made at a time."""
SINGULAR = 1e-6
"""Singular values of the Jacobian below this share of the largest do not count."""


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
        rank: Rank of the Jacobian for one image; None where it was counted, not computed.
    """

    layers: tuple[str, str]
    active: int
    shared: int
    unknowns: int
    batch_size: int
    overdetermined: bool
    largest_batch: int
    rank: int | None

    @property
    def readable(self) -> bool:
        """Overdetermined, and not short of rank where that was computed."""
        return self.overdetermined and self.rank in (None, self.unknowns)


def equation_count(observed: Round, knowledge: Knowledge) -> EquationCount | None:
    """Count equations against unknowns; None where no convolution is the last layer before a head.

    Args:
        observed: A round: its weights and the size of its batch count, its update does not.
        knowledge: What the attacker knows.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("convnet", {"width": 8}), (1, 8, 8), 4)
        >>> seen = record(model, Batch(torch.rand(2, 1, 8, 8), torch.tensor([0, 1])))
        >>> count = equation_count(seen[0], seen.knowledge)
        >>> count.unknowns, count.rank, count.largest_batch, count.readable
        (64, 64, 3, True)
    """
    size, names = observed.batch_size, last_linear(knowledge.model, knowledge.num_classes)
    coupled = knowledge.client.batch_coupled(knowledge.model)
    if size is None or names is None or coupled or len(knowledge.input_shape) != 3:
        return None
    low, high = knowledge.value_range
    # In float64, so that the rank is that of the network and not of its rounding.
    params = {name: tensor.double().cpu() for name, tensor in observed.params.items()}
    buffers = {
        name: tensor.double().cpu() if tensor.is_floating_point() else tensor.cpu()
        for name, tensor in observed.buffers.items()
    }
    network = Network(knowledge.model, params, buffers, low, high - low)
    images = NaturalSpectrum(knowledge.input_shape).samples(PROBES, generator(0, "probe images")).double()
    structure = Structure.of(network, names[0], images[:1], 1)
    with torch.no_grad():
        seen = network.run(images)
    # Only a convolution of all its input channels: M is then the same for each of them.
    if structure is None or seen.layers[structure.matched[0]].geometry[3:] != (1,):
        return None
    jacobian = Jacobian(network, structure, images[:1])
    known = structure.known(seen)
    one_sided = structure.activation is not None and structure.slope == 0
    active = int((known > 0).sum()) // PROBES if one_sided else known[0].numel()
    unknowns, channels = images[0].numel(), jacobian.weight.shape[1]

    def shared(n: int) -> int:
        return channels * min(jacobian.rows, n * jacobian.slopes_rank)

    enough = [n for n in range(1, knowledge.num_classes) if n * active + shared(n) >= n * unknowns]
    return EquationCount(
        layers=(names[0], structure.names[0]),
        active=active,
        shared=shared(size),
        unknowns=unknowns,
        batch_size=size,
        overdetermined=size in enough,
        largest_batch=max(enough, default=0),
        rank=jacobian.rank() if unknowns <= MAX_COMPUTED else None,
    )


class Jacobian:
    """The derivative of the equations in one image.

    Args:
        network: The network, in float64.
        structure: Where the known quantities lie.
        image: `[1, C, H, W]`.
    """

    def __init__(self, network: Network, structure: Structure, image: Tensor) -> None:
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
        if self.rows * places <= MAX_SLOPES:
            self.slopes_rank = Whitening(layer, slopes).rank  # 0 where all units are off: the gradient says nothing
            self.moved = slope_matrix(layer, slopes)  # M [O k k, positions]

    def columns(self) -> Tensor:
        """`[d, m]` the Jacobian's columns, one for each pixel value: active features, then the weight's gradient."""
        d, parts = self.image.numel(), []
        assert self.moved is not None
        _, _, basis = torch.linalg.svd(self.moved, full_matrices=False)
        basis = basis[: self.slopes_rank]  # V^T: the gradient in orthonormal rows, as the attack has it
        for units in torch.eye(d, dtype=torch.float64).split(AT_ONCE):
            copies = self.image.expand(len(units), -1, -1, -1).detach().requires_grad_(True)
            seen = self.network.run(copies)
            outputs = [self.structure.known(seen), seen.layers[self.structure.matched[0]].input]
            z, reading = Derivative(outputs, copies).forward(units.view(copies.shape))
            gradient = reading.reshape(len(units), self.weight.shape[1], -1) @ basis.T  # [b, C, r]
            parts.append(torch.cat([z[:, self.on[0]], gradient.flatten(1)], 1))
        return torch.cat(parts)

    def rank(self) -> int | None:
        """Directions of the image that change the equations; None where the slopes are too many."""
        if self.moved is None:
            return None
        columns = self.columns()
        if not columns.any():
            return 0
        # Small side first: the eigenvalues of J J^T are the squares of the singular values.
        gram = columns @ columns.T if len(columns) <= columns.shape[1] else columns.T @ columns
        values = torch.linalg.eigvalsh(gram)
        return int((values > SINGULAR**2 * values[-1]).sum())


def convolution_findings(count: EquationCount | None) -> list[Finding]:
    """That the batch is overdetermined, where it is."""
    if count is None or not count.readable:
        return []
    n = count.batch_size
    equations = n * count.active + count.shared
    message = (
        f"{equations:,} equations for the {n * count.unknowns:,} pixel values of {n} of {n} examples: batches of up to "
        f"{count.largest_batch} are overdetermined, so gauss_newton may read them exactly; withhold or noise "
        "the head or this layer"
    )
    limit = "Counted on made-up images, not computed: equations may repeat one another."
    if count.rank is not None:
        limit = (
            f"The rank was computed for one made-up image ({count.rank:,} of {count.unknowns:,}), beyond it counted."
        )
    evidence = {
        "active": count.active,
        "shared": count.shared,
        "unknowns": count.unknowns,
        "largest_batch": count.largest_batch,
        "rank": count.rank,
    }
    return [Finding(name="overdetermined", message=message, evidence=evidence, limit=limit, tensors=count.layers)]
