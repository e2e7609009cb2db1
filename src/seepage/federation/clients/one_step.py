"""One local step as the server inverts it: the gradient behind it, and the rule of a client that sends that."""

from collections.abc import Mapping

from torch import Tensor

from seepage.federation.clients.fedsgd import FedSGD
from seepage.federation.measured import Measured, Step, format_told, read_update
from seepage.federation.types import ClientUpdate, Update

KEPT = ("mode", "loss", "target", "label_smoothing", "class_weights")
"""Options of a rule of local steps that say what each gradient is of."""


def gradient_rule(rule: ClientUpdate) -> FedSGD:
    """The rule of a client that sends the gradient of the same loss.

    >>> from seepage.federation.clients import FedAvg
    >>> gradient_rule(FedAvg(lr=1e-3, optimizer="adam", steps=1, mode="eval"))
    FedSGD(mode='eval')
    """
    return FedSGD(**{name: getattr(rule, name) for name in KEPT if hasattr(rule, name)})


def gradient_behind(
    before: Mapping[str, Tensor], update: Update, step: Step, shares: Mapping[str, float]
) -> tuple[Update, Measured]:
    """The gradient behind one step, as the update of a client that sends gradients, and its errors.

    Args:
        before: The weights that were sent out, by name.
        update: Weights after minus before.
        step: The client's step. Its errors follow from it and the weights wherever the update goes.
        shares: As of `read_update`.
    """
    most = max(update.tensors, key=lambda name: update.tensors[name].numel())
    told = format_told(-update.tensors[most], before[most], Step.sgd(), 0.0)
    found = read_update(before, update.tensors, step, told, shares=shares)
    own = {name: value.to(before[name]) for name, value in found.value.items()}
    return Update(
        own, decayed={name: share for name, share in shares.items() if share and name in own}, step=step
    ), found
