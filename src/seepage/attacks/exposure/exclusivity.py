"""How many neurons of each layer fire for one example of a batch alone: what a batch exposes by itself."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.base.nn import calls_in_pass
from seepage.errors import Inapplicable
from seepage.federation.types import Batch, Tensors


@dataclass(frozen=True, eq=False)
class Exclusivity:
    """One fully connected layer in front of a ReLU.

    Attributes:
        name: Module name of the fully connected layer.
        neurons: How many it has.
        counts: `[n]` int64 neurons that fire for this example and for no other.
    """

    name: str
    neurons: int
    counts: Tensor

    def having(self, at_least: int) -> int:
        """How many examples have at least so many neurons to themselves."""
        return int((self.counts >= at_least).sum())


def exclusivity(model: nn.Module, params: Tensors, batch: Batch) -> tuple[Exclusivity, ...]:
    """Exclusively activated neurons of each example, layer by layer, for data of your own.

    Pan et al. (USENIX Security 2022) draw the line between batches that can and cannot be reconstructed there: two such
    neurons in the last hidden layer determine an example's label and its slopes at the outputs, and with one at each
    layer before that the path of the example can be followed to the input. One in the first layer gives the example by
    division, as the attack `linear` does; `linear_equations` needs one in any layer, once those found are taken away.

    Deviation from the paper: neurons are counted over the whole batch as it is, where the paper also changes batches.

    Args:
        model: The architecture, put in eval mode for this.
        params: Its weights.
        batch: The examples; the private ones, so this is for those who own them.

    Raises:
        Inapplicable: Where no fully connected layer is followed by a ReLU.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> params = {name: p.detach() for name, p in model.named_parameters()}
    >>> params |= {"0.weight": torch.tensor([[1.0, 0], [0, 1], [1, 1]]), "0.bias": torch.zeros(3)}
    >>> found = exclusivity(model, params, Batch(torch.eye(2), torch.tensor([0, 1])))
    >>> found[0].counts.tolist(), found[0].having(1), found[0].having(2)
    ([1, 1], 2, 0)
    """
    names = _before_relu(model)
    if not names:
        raise Inapplicable(
            "no fully connected layer of the model is followed by a ReLU",
            "exclusive neurons are those of a ReLU; use another probe",
        )
    with torch.no_grad():
        calls = calls_in_pass(model, names, params, batch.inputs)
    return tuple(_counted(name, calls[name][-1].output) for name in names)


def _counted(name: str, outputs: Tensor) -> Exclusivity:
    on = outputs > 0  # [n, m]
    alone = on.sum(0) == 1  # [m]
    return Exclusivity(name, on.shape[1], (on & alone).sum(1))


def _before_relu(model: nn.Module) -> list[str]:
    """Names of fully connected layers with a ReLU right behind, in the order they were registered."""
    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    pairs = itertools.pairwise(leaves)
    return [
        name for (name, module), (_, after) in pairs if isinstance(module, nn.Linear) and isinstance(after, nn.ReLU)
    ]
