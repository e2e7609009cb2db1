"""Activations behind a pooled head, known exactly: from the head down, layer by layer, each by linear algebra."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from seepage.attacks.network.linearize import ForwardPass, Held, VictimNetwork
from seepage.attacks.reading.decoding import NaturalSpectrum
from seepage.attacks.reading.equations import Structure
from seepage.attacks.reading.head import HeadFeatures
from seepage.attacks.reading.patches import read_patches
from seepage.attacks.reading.readings import Forward, solve_reading
from seepage.base.algebra.derivative import Derivative
from seepage.base.nn import generator
from seepage.base.rounding import FLOAT32_ZERO
from seepage.federation.types import Tensors

DRAWS = 64
"""Random outputs of the last activation that show where pooling can pass a slope on."""
OFF = (12.0, 8.0, 20.0)
"""A ReLU's output below so many standard deviations of its error, which has long tails, is off. Tried in turn."""


@dataclass(eq=False)
class _Peeling:
    """The state of one descent: all activations that are known so far, by their places.

    Attributes:
        signal: `[n, d]` gradient of the mean loss in the input of the head.
        head: Place of the head.
        images: Two made-up batches of n images.
        noise: Error of each known activation's entries, `[n]`.
    """

    network: VictimNetwork
    gradients: Tensors
    signal: Tensor
    head: int
    images: tuple[Tensor, Tensor]
    held: dict[int, Held] = field(default_factory=dict)
    noise: dict[int, Tensor] = field(default_factory=dict)

    def run(self, images: Tensor, held: Mapping[int, Held] | None = None) -> ForwardPass:
        network = replace(self.network, held=self.held if held is None else held)
        return network.run(images.detach().requires_grad_(True))

    def slopes(self, seen: ForwardPass, places: list[int]) -> list[Tensor]:
        """Gradient of the mean loss in the outputs of these layers, as the known activations have it."""
        features = seen.layers[self.head].input.flatten(1)
        outputs = [seen.layers[place].output for place in places]
        found = torch.autograd.grad(features, outputs, self.signal.to(features), allow_unused=True)
        return [torch.zeros_like(out) if one is None else one for one, out in zip(found, outputs, strict=True)]

    def sure(self) -> dict[int, Tensor]:
        """Slopes of those layers whose slopes are the same for other images, by their places."""
        places = list(range(self.head))
        # Two made-up batches: slopes that agree come from known activations alone, whatever the images are.
        # Slopes that two unrelated batches share depend on no image: every mask between them and the head is held.
        first, second = (self.slopes(self.run(images), places) for images in self.images)
        alike = {}
        for place, one, other in zip(places, first, second, strict=True):
            if float(one.norm()) > 0 and float((one - other).norm()) < FLOAT32_ZERO * float(one.norm()):
                alike[place] = one
        return alike

    def descend(self) -> None:
        """Solve for what layers read, as long as there is one whose slopes are known and determine it.

        One unit on the wrong side spoils the slopes of all layers further down, which then do not explain their
        gradients. So where it goes no further, units near zero of the last activation are tried on the other side.
        """
        failed: set[tuple[int, ...]] = set()
        others: list[Tensor] = []
        while True:
            solved = self._next(failed)
            if solved is not None:
                place, value, errors = solved
                first, *rest = (value > times * errors for times in OFF)
                others = [mask for mask in rest if not torch.equal(mask, first)]
                others += [first] if others else []  # the last one tried stays
                self.keep(place, value, first, errors)
            elif others:
                failed.clear()
                self.keep(place, value, others.pop(0), errors)
            else:
                return

    def _next(self, failed: set[tuple[int, ...]]) -> tuple[int, Tensor, Tensor] | None:
        """Place, values and errors of one more activation; layers that leave open what they read join the failed."""
        sure, seen = self.sure(), self.run(self.images[0])
        names = self.network.names(seen)
        readers: dict[int, list[int]] = {}
        for place in sure:
            read = activation_of(seen, seen.layers[place].input)
            # A weight that two layers share has the sum of their gradients, which neither explains alone.
            if read is not None and read not in self.held and names.count(names[place]) == 1:
                readers.setdefault(read, []).append(place)
        for read in sorted(readers, reverse=True):
            if tuple(readers[read]) in failed:
                continue
            uses = [(seen.layers[one], sure[one], self.gradients[names[one]]) for one in readers[read]]
            solved = solve_reading(uses, self.forward(read))
            if solved is not None:
                return read, *solved
            failed.add(tuple(readers[read]))
        return None

    def forward(self, place: int) -> Forward | None:
        """What known activations read straight from one that is not yet known; None where none does."""
        held = {number: replace(one, passes=False) for number, one in self.held.items()}
        like = self.run(self.images[0]).activations[place].output
        # With all masks behind it held, what they read is affine in this activation: value and derivative at 0 give it.
        leaf = torch.zeros_like(like).requires_grad_(True)
        seen = self.run(self.images[0], {**held, place: Held(leaf > 0, leaf, passes=False)})
        inputs = {number: seen.activations[number].input for number in self.noise}
        # What does not depend on the leaf has no gradient in it.
        reads = {
            number: read
            for number, read in inputs.items()
            if read.requires_grad
            and torch.autograd.grad(read.sum(), leaf, retain_graph=True, allow_unused=True)[0] is not None
        }
        if not reads:
            return None
        values = [self.held[number].value for number in reads]
        assert all(value is not None for value in values)
        outputs = list(reads.values())
        return Forward(
            Derivative(outputs, leaf),
            [one.detach() for one in outputs],
            [value for value in values if value is not None],
            [self.held[number].on for number in reads],
        )

    def keep(self, place: int, value: Tensor, on: Tensor, errors: Tensor) -> None:
        self.held[place] = Held(on, (value * on).to(self.images[0]))
        self.noise[place] = errors.flatten(1).square().mean(1).sqrt()  # root mean square of each example. [n]

    def passes_all(self, place: int) -> bool:
        """Whether the logits depend on an image only by way of this activation."""
        # With this activation alone held, two unrelated batches give the same logits only if nothing goes around it.
        held = {place: self.held[place]}
        first, second = (self.run(images, held).layers[self.head].output for images in self.images)
        return bool((first - second).norm() < FLOAT32_ZERO * first.norm())


def activation_of(seen: ForwardPass, read: Tensor) -> int | None:
    """Place of the ReLU whose output a layer reads as it is; None where it reads something else."""
    for place, one in enumerate(seen.activations):
        if one.output is read and one.slope == 0:
            return place
    return None


def peel(
    network: VictimNetwork, head: HeadFeatures, gradients: Tensors, structure: Structure, shape: tuple[int, ...]
) -> tuple[Structure, HeadFeatures, Mapping[int, Held]] | None:
    """Go down from a pooled head as far as activations are known exactly; None where not even the first step works.

    1. The convolution in front of the pooling has slopes of low rank: its weight gradient is a sum of one outer product
       for each position, and `read_patches` takes it apart into the patches that the layer read.
    2. Which outputs were on is then known, and so the gradient at the outputs of each layer further down whose way to
       the head leads through known activations. Its weight gradient then gives what it read (`solve_reading`), the
       next known activation, as long as there are not many more positions than rows.

    Args:
        network: The network.
        head: What the head's gradient says.
        gradients: The observed gradient.
        structure: Where the head's features lie.
        shape: `[C, H, W]` of an image.

    Returns:
        With the deepest known activation through which all of the image passes in the place of the head's features:
        where it lies, with the layers in front of it whose slopes do not depend on the images; its values and the
        gradient of the mean loss in them; and where each known activation is on, by its place.
    """
    n = len(head.labels)
    device = next(iter(network.params.values())).device
    # Small matrices, many of them in float64: on a CPU, wherever the round lies.
    params, buffers, gradients = (
        {k: v.cpu() for k, v in t.items()} for t in (network.params, network.buffers, gradients)
    )
    network = replace(network, params=params, buffers=buffers)
    like = next(iter(params.values()))
    images = NaturalSpectrum(shape).samples(2 * n, generator(0, "probe images")).to(like)
    probe = network.run(images[:1])
    names = network.names(probe)
    if not bool(head.known.all()) or not probe.activations:
        return None
    state = _Peeling(network, gradients, head.signal, structure.head, (images[:n], images[n:]))
    if not _first(state, names):
        return None
    state.descend()
    through = [place for place in sorted(state.held) if place in state.noise and state.passes_all(place)]
    if not through:
        return None
    place, seen = through[0], state.run(images[:n])
    # The gradient of the mean loss in the activation a: (df / da)^T s, from s in the head's features f.
    features = seen.layers[state.head].input.flatten(1)
    (signal,) = torch.autograd.grad(features, seen.activations[place].output, head.signal.to(features))
    value = state.held[place].value
    assert value is not None
    matched, direct = _matched(state, place, names)
    if not matched:
        return None
    weights = tuple(names[one] for one in matched)
    structure = replace(
        structure, activation=place, slope=0.0, direct=direct, fixed=True, matched=matched, names=weights,
        shape=tuple(value.shape[1:]),
    )  # fmt: skip
    flat, signal = value.flatten(1).double(), signal.flatten(1).double()
    head = replace(head, features=flat, signal=signal, noise=state.noise[place])
    return structure, head, {number: Held(one.on.to(device)) for number, one in state.held.items()}


def _first(state: _Peeling, names: list[str]) -> bool:
    """The last activation, behind which outputs are pooled: where it passes slopes on. Whether that was found."""
    seen = state.run(state.images[0])
    last = len(seen.activations) - 1
    read = seen.activations[last].input
    draw = generator(0, "last activation")
    fed = [
        place
        for place, layer in enumerate(seen.layers[: state.head])
        if layer.output.shape == read.shape and layer.geometry and names.count(names[place]) == 1
    ]
    if not fed or seen.activations[last].slope != 0:
        return False
    place = max(fed, key=lambda one: (seen.layers[one].weight[0].numel(), one))
    # Behind a maximum an output passes its slope on in some draws only; its largest slope over the draws is D.
    largest = torch.zeros_like(read)
    for _ in range(DRAWS):
        value = torch.rand(read.shape, generator=draw).to(read)
        held = {last: Held(torch.ones_like(read, dtype=torch.bool), value)}
        slopes = state.slopes(state.run(state.images[0], held), [place])[0]
        if torch.equal(slopes, largest):
            break  # an average, not a maximum
        largest = torch.where(slopes.abs() > largest.abs(), slopes, largest)
    on = read_patches(seen.layers[place], state.gradients[names[place]], largest.detach())
    if on is None:
        return False
    # In the place of values: largest where the slope goes, so that a maximum passes it on to the same output.
    state.held[last] = Held(on, on.to(read))
    return True


def _matched(state: _Peeling, place: int, names: list[str]) -> tuple[tuple[int, ...], int]:
    """Layers in front of an activation whose slopes are known, and how many of them it reads unit by unit.

    These come first, the one with the most weights before the others; then the others, the last one first.
    """
    seen = state.run(state.images[0])
    outputs = [layer.output for layer in seen.layers[: state.head]]
    read, sure = seen.activations[place].input, state.sure()
    # One entry of what is read depends on one entry of a direct layer's output, for each example.
    reached = torch.autograd.grad(read[:, :1, :1, :1].sum(), outputs, allow_unused=True)
    matched: list[int] = []
    direct: list[int] = []
    for number in range(state.head - 1, -1, -1):
        slope = reached[number]
        if slope is not None and number in sure and names.count(names[number]) == 1:
            single = outputs[number].shape == read.shape and int((slope != 0).sum()) <= len(read)
            (direct if single else matched).append(number)
    direct.sort(key=lambda one: -seen.layers[one].weight.numel())
    return (*direct, *matched), len(direct)
