"""What a client minimizes: each loss by its name, of the model's `[n, classes]` outputs and the labels."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.errors import SeepageError, unknown
from seepage.types import Reduction

LossName = Literal["cross_entropy", "mse", "bce"]
LOSSES: dict[str, str] = {
    "cross_entropy": "of the softmax of the outputs, against class numbers or probabilities",
    "mse": "squared difference of outputs and one-hot labels, mean over the classes (Hui and Belkin 2021)",
    "bce": "binary cross-entropy of each class by itself, mean over the classes",
}


def check_loss(name: str, label_smoothing: float) -> None:
    """Raise `SeepageError` for an unknown loss, or a smoothing of labels that the loss does not have."""
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    if not 0 <= label_smoothing < 1 or (label_smoothing and name != "cross_entropy"):
        raise SeepageError(
            f"client.label_smoothing must be from 0 to below 1, and only cross_entropy has it, got {label_smoothing} "
            f"with {name}; correct the recipe's [client]"
        )


def loss_of(
    name: str, logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, reduction: Reduction = "mean"
) -> Tensor:
    """A loss by its name: a number, or `[n]`, one for each example, where `reduction` is `none`.

    Args:
        name: One of `LOSSES`.
        logits: `[n, classes]` outputs of the model.
        labels: `[n]` class numbers, or `[n, classes]` probabilities.
        label_smoothing: Share of each label that is spread evenly over all classes (Szegedy et al. 2016).
        reduction: `mean` or `sum` over the examples, or `none`.

    >>> logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> loss_of("mse", logits, labels), loss_of("mse", logits, labels, reduction="none")
    (tensor(0.2500), tensor([0.5000, 0.0000]))
    """
    if name == "cross_entropy":
        return F.cross_entropy(logits, labels, reduction=reduction, label_smoothing=label_smoothing)
    targets = _probabilities(labels, logits)
    if name == "mse":
        entries = (logits - targets).square()  # [n, classes]
    else:
        entries = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")  # [n, classes]
    each = entries.mean(1)
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


def _probabilities(labels: Tensor, logits: Tensor) -> Tensor:
    """`[n, classes]` one-hot rows of class numbers; probabilities as they are."""
    if labels.is_floating_point():
        return labels
    # `F.one_hot` looks at the values, which `vmap` over examples does not allow.
    return (labels[:, None] == torch.arange(logits.shape[1], device=logits.device)).to(logits)
