"""Images from inner activations that are known exactly: nonlinear least squares."""

from jaxtyping import Bool, Float
from torch import Tensor

from seepage.attacks.gauss_newton.contrast import with_contrast
from seepage.attacks.gauss_newton.search import Search
from seepage.attacks.network.linearize import VictimNetwork
from seepage.attacks.reading.decoding.spectrum import NaturalSpectrum
from seepage.attacks.reading.equations import Equations, Known, Structure
from seepage.federation.types import Knowledge, Round

INNER = 300
"""Iterations of the conjugate gradients in one step, at most."""


def invert_activations(
    observed: Round,
    knowledge: Knowledge,
    layer: str,
    activations: Float[Tensor, "n C H W"],
    offset_known: Bool[Tensor, " C"],
    guess: Float[Tensor, "n c h w"],
    *,
    steps: int,
) -> Float[Tensor, "n c h w"]:
    """Images whose activations are the given ones, by Gauss-Newton (`Search`) from a first guess.

    A positive activation is an equation, a zero one a bound. With more positive ones than an image has values the image
    is determined, and the search ends at it, up to the errors of what is known; with fewer, a prior of natural images
    fills in the rest. Batch norm in train mode hides the contrast of the batch, which is taken from the range of values
    (`with_contrast`).

    Args:
        observed: The round.
        knowledge: What is known.
        layer: Name of the convolution that reads the activations, behind a ReLU.
        activations: What it read for each example.
        offset_known: Of which channels the level is known; the others are left out.
        guess: Images in the value range.
        steps: Steps of Gauss-Newton, at most.

    Raises:
        Inapplicable: Where the layer does not read the output of a ReLU.
    """
    low, high = knowledge.value_range
    coupled = knowledge.client.batch_coupled(knowledge.model)
    network = VictimNetwork(knowledge.model, observed.params, observed.buffers, low, high - low, training=coupled)
    structure = Structure.reading(network, f"{layer}.weight", guess[: 2 if coupled else 1])
    known = Known.of_reading(activations.to(guess), offset_known)
    equations = Equations(network, structure, known, [])
    unit = (guess - low) / (high - low)
    spectrum, center = NaturalSpectrum(knowledge.input_shape).to(unit), network.zero(unit) if coupled else None
    search = Search(equations, spectrum, equations.start(unit), INNER, center=center)
    for _ in range(steps):
        search.step()
        if search.ended:
            break
    unit = search.point.x.detach()
    return low + (high - low) * (unit.clamp(0, 1) if center is None else with_contrast(unit, center))
