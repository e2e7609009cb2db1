"""Weight decay in a difference of weights: read off the last layer, and taken back out.

SGD with weight decay `wd` and learning rate `lr` moves weights by `-lr (g + wd w)` in a step. The part that holds the
weights themselves says nothing about any example, and attacks that read the difference as a gradient would take it for
one of an example.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.nn import last_linear
from seepage.types import Tensors

LEAST_EXPLAINED = 0.9
"""Share of what all rows of the last layer together moved, as a square, that shrinking them must explain."""
FEWEST_DEVIATIONS = 20
"""Standard errors that the found share must lie above 0."""


@dataclass(frozen=True)
class WeightDecay:
    """What weight decay took off the weights between two checkpoints.

    Attributes:
        share: Of each weight, as a share of it, above 0 and below 1; `lr * wd` of one step.
        vectors: Biases and norms shrank as well, as PyTorch's optimizers have it where nobody names groups.
        where: The weight that told it.
    """

    share: float
    vectors: bool = True
    where: str | None = None

    def shares(self, before: Mapping[str, Tensor]) -> dict[str, float]:
        """The share by name, for those of the weights that shrank.

        >>> WeightDecay(0.1, vectors=False).shares({"weight": torch.ones(2, 2), "bias": torch.ones(2)})
        {'weight': 0.1}
        """
        return {name: self.share for name, tensor in before.items() if self.vectors or tensor.ndim > 1}

    def words(self, lr: float | None) -> str:
        """How much weight decay there was, and what told it.

        Args:
            lr: Learning rate of the one step, if known.
        """
        size = f"{self.share:.3g} of each weight" if lr is None else f"about {self.share / lr:.2g}"
        which = "" if self.vectors else ", none on biases and norms"
        return f"{size}{which}, by what all rows of {self.where} together moved; it was taken out of the update"


def infer_weight_decay(model: nn.Module, before: Tensors, delta: Tensors, num_classes: int) -> WeightDecay | None:
    """Weight decay of SGD from what all rows of the last layer together moved; None where that tells none.

    The softmax does not change when one vector is added to all rows, so that the rows of a gradient of cross-entropy,
    also a smoothed or weighted one, add up to 0: whatever the examples, in each local step. Only weight decay moves the
    sum of the rows, and along itself: by `1 - (1 - lr wd)^steps` of it. Another loss, noise or compression moves it
    elsewhere, and then nothing is said.

    Args:
        model: The architecture.
        before: Weights that were sent out.
        delta: Weights after minus before, of SGD on cross-entropy; momentum may be in it.
        num_classes: Classes of the model.

    >>> layer = nn.Linear(6, 4)
    >>> before = {name: tensor.detach().clone() for name, tensor in layer.named_parameters()}
    >>> loss = nn.functional.cross_entropy(layer(torch.rand(3, 6)), torch.tensor([0, 2, 2]))
    >>> loss.backward()
    >>> torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=0.01).step()
    >>> delta = {name: tensor.detach() - before[name] for name, tensor in layer.named_parameters()}
    >>> found = infer_weight_decay(layer, before, delta, 4)
    >>> round(found.share, 6), found.where
    (0.001, 'weight')
    """
    return decay_of_rows(last_linear(model, num_classes), before, delta)


def decay_of_rows(
    names: tuple[str, str | None] | None, before: Mapping[str, Tensor], delta: Mapping[str, Tensor]
) -> WeightDecay | None:
    """The same from the names of the last layer's weight `[classes, k]` and bias; None where there is no such layer."""
    if names is None or names[0] not in delta or names[0] not in before or len(before[names[0]]) < 2:
        return None
    weight, bias = names
    still, moved = (tensors[weight].double().sum(0) for tensors in (before, delta))
    # Least squares of moved = -a still, with its standard error from what is left.
    size = float(still.square().sum())
    share = -float(still @ moved) / size if size else 0.0
    left = float((moved + share * still).square().sum())
    error = (left / max(len(still) - 1, 1) / size) ** 0.5 if size else 0.0
    explained = left <= (1 - LEAST_EXPLAINED) * float(moved.square().sum())
    if not 0 < share < 1 or not explained or share < FEWEST_DEVIATIONS * error:
        return None
    return WeightDecay(share, _vectors_too(before, delta, bias, share), weight)


def _vectors_too(before: Mapping[str, Tensor], delta: Mapping[str, Tensor], bias: str | None, share: float) -> bool:
    """Whether the last bias shrank as the weight did; yes where its sum is too small to tell."""
    if bias is None or bias not in delta or bias not in before:
        return True
    still, moved = float(before[bias].double().sum()), float(delta[bias].double().sum())
    # Each bias that came back is rounded to half a unit of its last place.
    rounded = float((torch.finfo(before[bias].dtype).eps * before[bias].double()).norm())
    return share * abs(still) < 4 * rounded or abs(moved + share * still) < abs(moved)
