"""A fully connected ReLU network in float64, run from any of its layers on, forward and backward."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seepage.attacks.base import Inapplicable
from seepage.attacks.rgap.chain import Chain, LinearMap
from seepage.types import Tensors

PATTERN = 1e-3
"""Share of a reading's largest entry below which a unit may be off, and its value rounding."""
INSTEAD = "use cocktail_party or a matching attack such as inverting_gradients"


@dataclass(frozen=True, eq=False)
class Pass:
    """What examples make of the layers from one layer on.

    Attributes:
        first: The layer whose readings were given, counted from 0.
        readings: What each layer reads from `first` on, `[k, in]` each.
        logits: Outputs of the last layer.
    """

    first: int
    readings: tuple[Float[Tensor, "k _"], ...]
    logits: Float[Tensor, "k C"]

    def reading(self, layer: int) -> Float[Tensor, "k d"]:
        """What a layer reads, counted from the network's first."""
        return self.readings[layer - self.first]


@dataclass(frozen=True, eq=False)
class ReluNetwork:
    """Fully connected layers with a ReLU between each two.

    Attributes:
        names: Module name of each layer.
        weights: `[out, in]` of each layer, float64.
        biases: `[out]` of each layer; zeros where it has none.
        biased: Whether each layer has a bias.
        chain: The same network with what stands in front of its first layer.
    """

    names: tuple[str, ...]
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    biased: tuple[bool, ...]
    chain: Chain

    @classmethod
    def of(cls, model: nn.Module, params: Tensors, input_shape: tuple[int, ...]) -> "ReluNetwork":
        """Read a model.

        Raises:
            Inapplicable: For anything but fully connected layers one after the other with a ReLU between each two.
        """
        chain = Chain.of(model, params, input_shape)
        for layer in chain.maps:
            if not isinstance(layer.module, nn.Linear):
                raise Inapplicable(
                    f"layer {layer.name!r} is a convolution, in which one row of the gradient sums over all places",
                    INSTEAD,
                )
        for layer in chain.maps[:-1]:
            if not _is_relu(layer):
                raise Inapplicable(
                    f"no ReLU follows layer {layer.name!r}, so no unit is on for one example alone", INSTEAD
                )
        return cls(
            tuple(layer.name for layer in chain.maps),
            tuple(layer.weight for layer in chain.maps),
            tuple(layer.spread_bias(len(layer.weight)) for layer in chain.maps),
            tuple(layer.bias is not None for layer in chain.maps),
            chain,
        )

    def __len__(self) -> int:
        return len(self.weights)

    def run(self, first: int, reading: Float[Tensor, "k d"]) -> Pass:
        """Forward from what layer `first` reads."""
        readings = [reading]
        for layer in range(first, len(self) - 1):
            readings.append(torch.relu(readings[-1] @ self.weights[layer].T + self.biases[layer]))
        return Pass(first, tuple(readings), readings[-1] @ self.weights[-1].T + self.biases[-1])

    def slopes(self, passed: Pass, labels: Int[Tensor, " k"]) -> dict[int, Float[Tensor, "k _"]]:
        """Gradient of each example's own cross-entropy in the outputs of each layer from `passed.first` on.

        slope of the last layer = softmax(logits) - onehot(label)
        slope of layer l        = [reading of layer l + 1 > 0] * (slope of layer l + 1 @ W of layer l + 1)
        """
        last = len(self) - 1
        slopes = {last: passed.logits.softmax(1) - F.one_hot(labels, passed.logits.shape[1])}
        for layer in range(last - 1, passed.first - 1, -1):
            on = passed.reading(layer + 1) > 0
            slopes[layer] = self.through(layer + 1, slopes[layer + 1], on)
        return slopes

    def through(self, layer: int, slope: Float[Tensor, "k out"], on: Bool[Tensor, "k d"]) -> Float[Tensor, "k d"]:
        """Back through the weights of a layer and the ReLU in front of it, at units that are on."""
        return on * (slope @ self.weights[layer])

    def before(self, layer: int, reading: Float[Tensor, " out"]) -> Float[Tensor, " d"] | None:
        """What layer `layer` read where `reading` came out of its ReLU; None where the weights do not determine it.

        At units that are on, `W x + b` is known: as many equations as such units. Units that are on faintly may be
        off, and their value rounding; they are left out, and the solution is tried on all units.
        """
        on = reading > PATTERN * reading.max()
        weight = self.weights[layer][on]
        if len(weight) < weight.shape[1]:
            return None
        # gelsd decomposes by singular values and says the rank; fewer than the unknowns leave some of them open.
        solved = torch.linalg.lstsq(
            weight.cpu(), (reading - self.biases[layer])[on, None].cpu(), rcond=1e-4, driver="gelsd"
        )
        before = solved.solution[:, 0].to(reading)
        again = torch.relu(self.weights[layer] @ before + self.biases[layer])
        sound = int(solved.rank) == weight.shape[1] and (again - reading).norm() < PATTERN * reading.norm()
        return before if sound else None

    def to_inputs(self, readings: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
        """From what the first layer reads to flattened inputs, before any normalization."""
        inputs: Tensor = (readings - self.chain.shift) / self.chain.scale
        return inputs


def _is_relu(layer: LinearMap) -> bool:
    probe = torch.tensor([-1.0, 2.0], dtype=torch.float64)
    return torch.equal(layer.after.forward(probe), torch.relu(probe))
