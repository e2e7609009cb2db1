"""What a gradient says about the images behind it: known features, and a weight gradient linear in its input."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from seepage.attacks.network.linearize import ForwardPass, LayerUse, VictimNetwork
from seepage.base.algebra.derivative import Derivative
from seepage.base.algebra.lowrank import CLEAR, INDEPENDENT
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.errors import refuse

ROUNDED_FLOOR = 5e-3
"""Floor of the whitening where the update was rounded: its errors are then about as large as those of the features.

A gradient of 40,000 entries that is rounded to a share e has errors of `e / 200` in a whitened equation, times
`S_max / s`; 4,000 features of an example that are known to 20 e have errors of `e / 3` each.
"""


@dataclass(frozen=True)
class Structure:
    """Where the known quantities lie in a network's forward pass.

    Attributes:
        head: Place of the last fully connected layer among the layers of a pass.
        activation: Place of the activation that gives the features, where the slope of that activation is known from
            them; else None, as behind pooling or a curved activation.
        slope: Slope of that activation below zero.
        direct: How many of the matched layers, the first ones, give what that activation reads, unit by unit: one in a
            chain, two where a residual block adds them up.
        fixed: Whether the slopes of all matched layers follow from what is known, whatever the images are.
        matched: Places of the layers whose weight gradients are used, the last one first.
        names: Names of their weights.
        shape: `[c, h, w]` or `[d]` of the quantity that is known, for one example.
    """

    head: int
    activation: int | None
    slope: float
    direct: int
    fixed: bool
    matched: tuple[int, ...]
    names: tuple[str, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, network: VictimNetwork, head: str, unit: Float[Tensor, "1 C H W"], layers: int) -> "Structure | None":
        """Read off one pass on an image; None where there is no convolution in front of it, or positions are mixed.

        Args:
            network: The network.
            head: Name of the head's weight.
            unit: An image in [0, 1].
            layers: Use the weight gradients of so many layers in front of the head.
        """
        with torch.no_grad():
            seen = network.run(unit)
        names = network.names(seen)
        if head not in names:
            return None
        place = names.index(head)
        features = seen.layers[place].input.flatten(1)
        last = None
        for number, one in enumerate(seen.activations):
            if one.output.numel() == features.numel() and torch.equal(one.output.flatten(1), features):
                last = number
        # A layer that is called twice has one gradient for both calls, so neither is known.
        useful = [i for i in range(place) if names[i] and names.count(names[i]) == 1]
        if not useful or not any(seen.layers[i].geometry for i in range(place)):
            return None
        # A fully connected layer that reads each token or position: a transformer, a mixer, or ConvNeXt.
        if any(not layer.geometry and layer.input.ndim != 2 for layer in seen.layers[: place + 1]):
            return None
        matched = tuple(useful[::-1][:layers])
        weights = tuple(names[i] for i in matched)
        if last is None:
            return cls(place, None, 1.0, 0, not matched, matched, weights, _feature_shape(seen, features))
        read = seen.activations[last].input
        direct = int(bool(matched) and read.shape == seen.layers[matched[0]].output.shape)
        slope, fixed = seen.activations[last].slope, len(matched) == direct
        return cls(place, last, slope, direct, fixed, matched, weights, tuple(read.shape[1:]))

    @classmethod
    def reading(cls, network: VictimNetwork, weight: str, unit: Float[Tensor, "n C H W"]) -> "Structure":
        """What a layer reads, behind a ReLU, as the known quantity, without any weight gradient.

        Args:
            network: The network.
            weight: Name of the layer's weight.
            unit: Images in [0, 1], two or more where batch norm is in train mode.

        Raises:
            Inapplicable: Where the layer does not read the output of a ReLU.
        """
        with torch.no_grad():
            seen = network.run(unit)
        names = network.names(seen)
        if names.count(weight) == 1:
            read = seen.layers[names.index(weight)].input
            for place, one in enumerate(seen.activations):
                if one.slope == 0 and one.output.shape == read.shape and torch.equal(one.output, read):
                    return cls(names.index(weight), place, 0.0, 0, True, (), (), tuple(read.shape[1:]))
        raise refuse("no_relu")(f"what {weight} reads is not behind a ReLU", "use gradient_matching")

    def known(self, seen: ForwardPass) -> Tensor:
        """`[n, *shape]` the quantity whose value is known: what the last activation reads, or the features."""
        if self.activation is not None:
            return seen.activations[self.activation].input
        return self.output(seen)

    def output(self, seen: ForwardPass) -> Tensor:
        """`[n, *shape]` the features: what the known activation gives, or what the head reads."""
        given = seen.layers[self.head].input if self.activation is None else seen.activations[self.activation].output
        return given.flatten(1).view(len(given), *self.shape)


def _feature_shape(seen: ForwardPass, features: Tensor) -> tuple[int, ...]:
    """`[c, h, w]` of flattened features, by the last convolution's number of channels; `[c, 1, 1]` where none fits."""
    for layer in reversed(seen.layers):
        if layer.geometry and features.shape[1] % layer.output.shape[1] == 0:
            channels, (height, width) = layer.output.shape[1], layer.output.shape[2:]
            positions = features.shape[1] // channels
            for cut in range(1, height + 1):
                if (height // cut) * (width // cut) == positions:
                    return channels, height // cut, width // cut
    return features.shape[1], 1, 1


@dataclass(frozen=True, eq=False)
class Known:
    """What the head's gradient reveals about each example.

    Attributes:
        value: `[n, *shape]` the known quantity.
        on: `[n, *shape]` where it is known as an equation: everywhere, but for a ReLU only where it is active.
        open: `[n, *shape]` units within rounding of the kink, whose side is not known.
        near: `[n, *shape]` units that may turn out to be open: not on, and within rounding of the kink.
        signal: `[n, *shape]` gradient of the mean loss in the known quantity, 0 where a unit is off or open.
        weight: `[n, 1, ...]` weight of an example's equations, 0 where its features are not known; or of each of its
            channels `[n, C, ...]`.
        one_sided: Whether a unit that is not on must not be positive, as behind a ReLU.
    """

    value: Tensor
    on: Bool[Tensor, "..."]
    open: Bool[Tensor, "..."]
    near: Bool[Tensor, "..."]
    signal: Tensor
    weight: Tensor
    one_sided: bool

    @classmethod
    def of_reading(cls, value: Float[Tensor, "n C H W"], offset_known: Bool[Tensor, " C"]) -> "Known":
        """What a layer read, behind a ReLU, in the channels whose level is known.

        A value that is next to nothing may be an error of a unit that is off: it is a bound then, as zeros are. As an
        equation it would ask for zero where the network reads a negative number of any size.
        """
        off = torch.zeros_like(value, dtype=torch.bool)
        on = value > FLOAT32_NETWORK * value.amax((1, 2, 3), keepdim=True)
        weight = offset_known.to(value)[:, None, None].expand(len(value), -1, 1, 1)
        # The signal only says which images the search waits for: all of them alike.
        return cls(value, on, off, off, torch.ones_like(value), weight, one_sided=True)


def _per_example(numbers: Float[Tensor, " n"], like: Tensor) -> Tensor:
    """`[n, 1, ...]` with as many dimensions as `like`."""
    return numbers.view(-1, *(1,) * (like.ndim - 1))


class EquationWhitening:
    """Makes the equations of a weight gradient independent of one another.

    A weight gradient is `G[(o, k), c] = sum_q M[(o, k), q] h[q, c]`, where h is what the layer reads at all positions q
    of all examples, and M holds the slopes of its outputs, moved by k; it is the same for each input channel c. With
    `M = U S V^T` the equations are turned into `S^-1 U^T G = V^T h`, whose rows are orthonormal: directions in which
    the slopes are small count as much as the others. This is what lets the search converge in tens of steps.

    The outputs of a grouped convolution read channels of their group alone, so h differs between groups, and each
    group's rows of M are whitened by themselves.

    Attributes:
        matrix: `[r, O k k]` the whitening `S^-1 U^T`, with small S held up; block-diagonal with a block for each group.
            Without rows where all slopes are zero: the gradient is then zero whatever was read, and says nothing.
        largest: Largest singular value of M.
    """

    def __init__(self, layer: LayerUse, slopes: Tensor, floor: float = FLOAT32_NETWORK) -> None:
        slopes = slopes.detach()
        rows = slope_matrix(layer, slopes).double()  # M [O k k, n positions]
        # The rows of a group's outputs are one block of O / groups k k rows, since o is the slower index of a row.
        groups = layer.geometry[3] if layer.geometry else 1
        parts = [_singular(part) for part in rows.chunk(groups)]
        self.largest = max(float(singular.max()) for _, singular in parts)
        # Where all is zero, nothing is larger than the threshold, 0: no row is left.
        kept = [
            (left[:, some], singular[some])
            for left, singular in parts
            for some in [singular > INDEPENDENT * self.largest]
        ]
        # 1 / sqrt(s^2 + floor^2): rounding of the update in the weakest directions is not blown up.
        held_up = floor * self.largest
        blocks = [(left / (singular.square() + held_up**2).sqrt()).T for left, singular in kept]
        self.matrix = torch.block_diag(*blocks).to(slopes.dtype)

    def __call__(self, gradient: Tensor) -> Float[Tensor, "r C"]:
        """Whiten something shaped like the weight."""
        rows: Tensor = self.matrix @ columns_of(gradient)
        return rows

    def transposed(self, rows: Float[Tensor, "r C"], like: Tensor) -> Tensor:
        """The transpose of the whitening: back to the shape of the weight."""
        back: Tensor = self.matrix.T @ rows
        if like.ndim == 2:
            return back
        out, channels, *kernel = like.shape
        return back.view(out, *kernel, channels).permute(0, 3, 1, 2).contiguous()


def _singular(rows: Float[Tensor, "m q"]) -> tuple[Float[Tensor, "m k"], Float[Tensor, " k"]]:
    """Left singular vectors and singular values, by the smaller of the two Gram matrices."""
    wide = len(rows) <= rows.shape[1]
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    singular = values.clamp(min=0).sqrt()
    # M v / s is the left vector of v; those of s = 0 are never used.
    left = vectors if wide else rows @ vectors / singular.clamp(min=1e-300)
    return left, singular


def columns_of(gradient: Tensor) -> Tensor:
    """`[O k k, C]` of a convolution's weight gradient `[O, C, k, k]`; a fully connected layer's as it is."""
    return gradient if gradient.ndim == 2 else gradient.permute(0, 2, 3, 1).reshape(-1, gradient.shape[1])


def slope_matrix(layer: LayerUse, slopes: Tensor) -> Tensor:
    """The matrix M of `EquationWhitening`, `[O k k, n positions]`; `[O, n]` for a fully connected layer."""
    if not layer.geometry:
        return slopes.T
    places = layer.places().to(slopes.device)  # [k k, p]
    n, outputs = slopes.shape[:2]
    flat = slopes.flatten(2).transpose(0, 1)  # [O, n, p]
    # moved[o, k, i, q]: the slope of the output that reads input position q with entry k; q = 0 is the border.
    moved = flat.new_zeros(outputs, len(places), n, layer.input[0, 0].numel() + 1)
    for k, place in enumerate(places):
        moved[:, k, :, place] = flat
    return moved[..., 1:].reshape(outputs * len(places), -1)


@dataclass(eq=False)
class MatchedLayer:
    """One layer's weight gradient as equations at a guess of the images: `r = S^-1 U^T (D * h - G) / c`.

    Attributes:
        layer: Its call, which read h.
        slopes: D, the gradient of its outputs.
        wanted: G, the observed gradient of its weight.
        whitening: `S^-1 U^T` of D.
        outputs: `[m]` of each open unit.
        patches: `[m, C k k]` what each open unit reads, times what its slope is in; None for a layer without them.
    """

    layer: LayerUse
    slopes: Tensor
    wanted: Tensor
    whitening: EquationWhitening
    outputs: Tensor
    patches: Tensor | None = None

    def __post_init__(self) -> None:
        # 1 / c = S_max / |G|: a whitened gradient then has about the size that a feature's residual has.
        self.gain = self.whitening.largest / max(float(self.wanted.norm()), 1e-30)

    def residual(self) -> Float[Tensor, "r C"]:
        """`[r, C]` what the layer's gradient misses at this guess, whitened."""
        return self._whitened(self.layer.weight_gradient(self.layer.input.detach(), self.slopes) - self.wanted)

    def forward(self, change: Tensor, free: Float[Tensor, " m"]) -> Float[Tensor, "r C"]:
        """What a change of h and of open slopes does to r."""
        gradient = self.layer.weight_gradient(change, self.slopes)
        if self.patches is not None:
            # A free slope adds its unit's patch to the row of its output.
            rows = gradient.flatten(1).index_add(0, self.outputs, self.patches * free[:, None])  # [O, C k k]
            gradient = rows.view_as(gradient)
        return self._whitened(gradient)

    def transposed(self, part: Float[Tensor, "r C"]) -> tuple[Tensor, Float[Tensor, " m"]]:
        """The adjoint of `forward`."""
        matrix = self.whitening.transposed(part * self.gain, self.wanted)
        free = part.new_zeros(len(self.outputs))
        if self.patches is not None:
            free = (self.patches * matrix.flatten(1)[self.outputs]).sum(1)
        return self.layer.to_reading(matrix, self.slopes), free

    def open_columns(self) -> Float[Tensor, " m"]:
        """Squared length of what each open slope does to r, taking the whitening as its mean gain."""
        if self.patches is None:
            return self.slopes.new_zeros(len(self.outputs))
        kernel, outputs = self.patches.shape[1] // self.wanted.shape[1], len(self.wanted)
        # Column of unit j: sum over k of W[:, (o, k)] patch[:, k]; its mean square over directions (o, k).
        mean: Tensor = self.whitening.matrix.square().sum(0).view(outputs, kernel)[self.outputs].mean(1)
        return mean * self.patches.square().sum(1) * self.gain**2

    def _whitened(self, gradient: Tensor) -> Float[Tensor, "r C"]:
        return self.whitening(gradient) * self.gain


@dataclass(eq=False)
class EquationsAt:
    """The equations at one guess of the images: residuals, and what their derivative needs.

    Attributes:
        x: `[n, C, H, W]` images in [0, 1].
        free: `[m]` the slopes of open units, which are unknowns.
        mask: `[n, *shape]` weight of each feature's equation; 0 where there is none.
        matched: The matched layers.
        residuals: Of the features `[n, *shape]`, then of each matched layer `[r, C]`.
        derivative: Of the known quantity and of what the matched layers read; None where it is not asked for.
    """

    x: Tensor
    free: Tensor
    mask: Tensor
    matched: list[MatchedLayer]
    residuals: list[Tensor]
    derivative: Derivative | None = None

    @property
    def square(self) -> float:
        """Sum of the squared residuals."""
        return sum(float(part.double().square().sum()) for part in self.residuals)


class Equations:
    """The residuals of a batch of images, and their derivative.

    For images x, with z(x) what is known of each example, h(x) what a matched layer reads and D its outputs' slopes:

        r_1 = (z(x) - z) / |z|      for each example, on active units, and on others where z(x) > 0
        r_2 = S^-1 U^T (D * h(x) - G) / c      whitened, c = |G| / S_max

    D follows from the known signal: by way of the known mask of the last activation it does not depend on x. Behind
    pooling or a curved activation it does, and is held at its last value within a step. Units within rounding of the
    kink spoil a row of G each; their slopes are unknowns of their own.

    Args:
        network: The network.
        structure: Where the quantities lie.
        known: What is known.
        gradients: The observed gradient of each matched layer's weight.
        floor: Singular values of a layer's slopes below this share of the largest are not amplified further.
    """

    def __init__(
        self,
        network: VictimNetwork,
        structure: Structure,
        known: Known,
        gradients: Sequence[Tensor],
        *,
        floor: float = FLOAT32_NETWORK,
    ) -> None:
        self.network, self.structure, self.known, self.gradients = network, structure, known, list(gradients)
        self.floor = floor
        self.size = _per_example(known.value.flatten(1).norm(dim=1).clamp(min=1e-30), known.value)
        self.open = known.open.nonzero()  # [m, 4] or [m, 2]: example, output, position
        # Open units are unknown in units of the signal's mean size.
        self.unit = float(known.signal.abs().mean()) + 1e-30

    @property
    def count(self) -> int:
        """Number of equations."""
        features = int((self.known.on & (self.known.weight > 0)).sum())
        return features + sum(gradient.numel() for gradient in self.gradients)

    def reopened(self, point: EquationsAt) -> tuple["Equations", Tensor] | None:
        """The equations with more open units, and their slopes so far; None where there are no more.

        Rounding can hide that a unit is on: its feature is then taken for one of the many zeros, and its slope is
        missing in a row of G. Near the solution the images say which of these zeros lie so close to the kink that this
        may have happened: as close as the features of active units are off.
        """
        with torch.no_grad():
            z = self.structure.known(self.network.run(point.x))
        # Root mean square error of the active features of each example, `[n]`.
        off = ((z - self.known.value) * self.known.on).flatten(1).norm(dim=1)
        off = off / self.known.on.flatten(1).sum(1).clamp(min=1).sqrt()
        more = self.known.near & (z.abs() < CLEAR * _per_example(off, z))
        if not bool((more & ~self.known.open).any()):
            return None
        slopes = torch.zeros_like(self.known.value)
        slopes[self.known.open] = point.free
        opened = self.known.open | more
        return self.opened(opened, self.floor), slopes[opened]

    def of_rounded(self) -> "Equations":
        """The same with weights that suit a gradient of which the last digits are missing."""
        return self.opened(self.known.open, ROUNDED_FLOOR)

    def opened(self, units: Bool[Tensor, "n *shape"], floor: float) -> "Equations":
        """The same with these units open, and another floor."""
        known = replace(self.known, open=units)
        return Equations(self.network, self.structure, known, self.gradients, floor=floor)

    def start(self, x: Tensor) -> EquationsAt:
        """The equations at a first guess."""
        return self.at(x, x.new_zeros(len(self.open)))

    def at(self, x: Tensor, free: Tensor, before: EquationsAt | None = None) -> EquationsAt:
        """The equations and their derivative; whitenings of slopes that do not depend on x are taken from `before`."""
        x = x.detach().requires_grad_(True)
        seen = self.network.run(x)
        z = self.structure.known(seen)
        layers = [seen.layers[place] for place in self.structure.matched]
        slopes = self._slopes(z, layers)
        if before is not None and self.structure.fixed:
            whitenings = [one.whitening for one in before.matched]
        else:
            whitenings = [EquationWhitening(*pair, self.floor) for pair in zip(layers, slopes, strict=True)]
        point = self._point(x, free, z, layers, slopes, whitenings)
        point.derivative = Derivative([z, *(layer.input for layer in layers)], x)
        if len(self.open):
            direct = point.matched[: self.structure.direct]
            for one, share in zip(direct, self._shares([each.slopes for each in point.matched]), strict=True):
                one.patches = self._patches(one.layer) * share[:, None]
        return point

    def moved(self, x: Tensor, free: Tensor, before: EquationsAt) -> EquationsAt:
        """The equations elsewhere with the slopes of `before`, without their derivative."""
        with torch.no_grad():
            seen = self.network.run(x)
        layers = [seen.layers[place] for place in self.structure.matched]
        slopes, whitenings = [one.slopes for one in before.matched], [one.whitening for one in before.matched]
        return self._point(x, free, self.structure.known(seen), layers, slopes, whitenings)

    def _point(
        self,
        x: Tensor,
        free: Tensor,
        z: Tensor,
        layers: list[LayerUse],
        slopes: list[Tensor],
        whitenings: list[EquationWhitening],
    ) -> EquationsAt:
        slopes = self._with_free(slopes, free) if len(self.open) else slopes
        several = zip(layers, slopes, self.gradients, whitenings, strict=True)
        matched = [MatchedLayer(*parts, self.open[:, 1]) for parts in several]
        z = z.detach()
        # Where a ReLU was off, z <= 0 is an inequality: it counts only while the guess breaks it.
        active = self.known.on | (z > 0) if self.known.one_sided else self.known.on
        mask = active.to(z) * self.known.weight / self.size
        residuals = [(z - self.known.value) * mask, *(one.residual() for one in matched)]
        return EquationsAt(x, free, mask, matched, residuals)

    def _slopes(self, z: Tensor, layers: list[LayerUse]) -> list[Tensor]:
        """Gradient of the mean loss in each matched layer's outputs, by the known signal; 0 for open units."""
        outputs = [layer.output for layer in layers]
        if not outputs:
            return []
        # D = (dz / d outputs)^T signal, through the activations' masks at this guess.
        return [slope.detach() for slope in torch.autograd.grad(z, outputs, self.known.signal, retain_graph=True)]

    def _shares(self, slopes: list[Tensor]) -> list[Tensor]:
        """`[m]` for each direct layer, what a free slope of 1 is in its outputs: batch norms differ between layers."""
        first, channels = slopes[0], self.open[:, 1]
        size = first.square().sum((0, *range(2, first.ndim))).clamp(min=1e-30)
        shares = []
        for other in slopes[: self.structure.direct]:
            # Each channel's slopes are those of the first layer times one number.
            ratio = (first * other).sum((0, *range(2, first.ndim))) / size
            shares.append(self.unit * ratio[channels])
        return shares

    def _with_free(self, slopes: list[Tensor], free: Tensor) -> list[Tensor]:
        """The slopes with those of open units, which are unknowns, in their places."""
        shares, slopes, places = self._shares(slopes), list(slopes), tuple(self.open.T)
        for i, share in enumerate(shares):
            slopes[i] = slopes[i].clone()
            slopes[i][places] = free * share
        return slopes

    def _patches(self, layer: LayerUse) -> Tensor:
        """`[m, C k k]` what each open unit reads: its slope enters its output's row of G times this."""
        example, reading = self.open[:, 0], layer.input.detach()
        if not layer.geometry:
            return reading[example]
        place = self.open[:, 2] * layer.output.shape[3] + self.open[:, 3]
        return layer.patches(reading)[example, :, place]

    def forward(self, point: EquationsAt, v: Tensor, free: Tensor) -> list[Tensor]:
        """`J (v, free)`: what a change of images and open slopes does to the residuals."""
        assert point.derivative is not None
        known, *readings = point.derivative.forward(v)
        several = zip(point.matched, readings, strict=True)
        return [known * point.mask, *(one.forward(change, free) for one, change in several)]

    def transposed(self, point: EquationsAt, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """`J^T r`, for the images and for the open slopes."""
        assert point.derivative is not None
        # J stacks the features' rows, times the mask, on the matched layers'; the transpose sums over both.
        pairs = [one.transposed(part) for one, part in zip(point.matched, parts[1:], strict=True)]
        pulled = point.derivative.transposed([parts[0] * point.mask, *(reading for reading, _ in pairs)])
        return pulled, sum((free for _, free in pairs), torch.zeros_like(point.free))
