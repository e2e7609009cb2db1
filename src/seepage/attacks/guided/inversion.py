"""Images from inner activations that are known exactly: nonlinear least squares, each image on its own equations."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from seepage.attacks.decoding.spectrum import NaturalSpectrum
from seepage.attacks.gauss_newton.equations import Equations, Known, Structure
from seepage.attacks.gauss_newton.linearize import LayerUse, Network
from seepage.attacks.gauss_newton.search import Search
from seepage.errors import Inapplicable
from seepage.types import Knowledge, Round

INNER = 300
"""Iterations of the conjugate gradients in one step, at most."""


class ActivationEquations(Equations):
    """`(h(x) - h) / |h|` for each example, on active units and on others where h(x) > 0; no weight gradient."""

    def _slopes(self, z: Tensor, layers: list[LayerUse]) -> list[Tensor]:
        return []


def invert_activations(
    observed: Round,
    knowledge: Knowledge,
    layer: str,
    activations: Float[Tensor, "n C H W"],
    guess: Float[Tensor, "n c h w"],
    *,
    steps: int,
) -> Float[Tensor, "n c h w"]:
    """Images whose activations are the given ones, by Gauss-Newton (`Search`) from a first guess.

    A positive activation is an equation, a zero one a bound. With more positive ones than an image has values the image
    is determined, and the search ends at it, up to the errors of what is known; with fewer, a prior of natural images
    fills in the rest.

    Args:
        observed: The round.
        knowledge: What is known.
        layer: Name of the convolution that reads the activations, behind a ReLU.
        activations: What it read for each example.
        guess: Images in the value range.
        steps: Steps of Gauss-Newton, at most.

    Raises:
        Inapplicable: Where the layer does not read the output of a ReLU.
    """
    low, high = knowledge.value_range
    network = Network(knowledge.model, observed.params, observed.buffers, low, high - low)
    structure = _structure(network, f"{layer}.weight", guess[:1])
    value = activations.to(guess)
    on, off = value > 0, torch.zeros_like(value, dtype=torch.bool)
    shape: list[Any] = [-1, *[1] * (value.ndim - 1)]
    # The signal only says which images the search waits for: all of them alike.
    known = Known(value, on, off, off, torch.ones_like(value), value.new_ones(len(value)).view(shape), one_sided=True)
    equations = ActivationEquations(network, structure, known, [])
    unit = (guess - low) / (high - low)
    search = Search(equations, NaturalSpectrum(knowledge.input_shape).to(unit), equations.start(unit), INNER)
    for _ in range(steps):
        search.step()
        if search.ended:
            break
    return low + (high - low) * search.point.x.detach().clamp(0, 1)


def _structure(network: Network, weight: str, image: Tensor) -> Structure:
    """Where a layer's input, behind a ReLU, lies in a pass."""
    with torch.no_grad():
        seen = network.run(image)
    names = network.names(seen)
    if names.count(weight) == 1:
        read = seen.layers[names.index(weight)].input
        for place, one in enumerate(seen.activations):
            if one.slope == 0 and one.output.shape == read.shape and torch.equal(one.output, read):
                return Structure(names.index(weight), place, 0.0, 0, True, (), (), tuple(read.shape[1:]))
    raise Inapplicable(f"what {weight} reads is not behind a ReLU", "start from the decoder")
