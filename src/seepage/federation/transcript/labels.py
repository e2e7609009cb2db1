"""Whether labels are such as a model can be trained towards: those of a truth, or those that an attacker knows."""

import torch
from torch import Tensor

from seepage.base.nn import NO_TARGET, output_shape, vocabulary_of
from seepage.federation.clients.losses import LOSSES
from seepage.federation.types import Knowledge

MAX_LABELS = 2**28
"""Largest number of entries of one batch's labels."""


def misfit_of_labels(labels: Tensor, knowledge: Knowledge, examples: int | None = None) -> str | None:
    """The reason why labels cannot belong to a transcript, from its verb on; None if they can.

    Args:
        labels: As `Batch.labels`.
        knowledge: What the attacker knows; its `target` says what labels are.
        examples: Number of examples, where it is known.
    """
    if labels.numel() > MAX_LABELS or not labels.ndim or len(labels) != (examples or len(labels)):
        return f"holds labels of shape {tuple(labels.shape)}"
    odd = _misfit_of_values(labels) if knowledge.target == "value" else None
    if odd is None and knowledge.target != "value" and not _are_classes(labels, knowledge):
        odd = f"holds labels that are not among the {knowledge.num_classes} classes"
    return odd or _misfit_of_shape(labels, knowledge)


def _misfit_of_shape(labels: Tensor, knowledge: Knowledge) -> str | None:
    """Why the model's outputs cannot be held against labels of this shape; a user-defined loss may take any."""
    if knowledge.client.loss not in LOSSES or vocabulary_of(knowledge.model) is not None:
        return None
    outputs = output_shape(knowledge.model, dict(knowledge.model.named_parameters()), None, knowledge.input_shape)
    own, values = tuple(labels.shape[1:]), labels.is_floating_point()
    fits = own == outputs[1:]  # one class for an example, or one at each of its places
    if knowledge.target == "value" or (values and knowledge.target == "class"):
        fits = own == (knowledge.num_classes,) if knowledge.client.one_logit else own == outputs
        fits |= own == () and outputs == (1,)
    if fits:
        return None
    return f"holds labels of shape {tuple(labels.shape)}, and the model returns {outputs} for an example"


def _misfit_of_values(labels: Tensor) -> str | None:
    if not labels.is_floating_point():
        return f"holds {str(labels.dtype).removeprefix('torch.')} labels, and the targets are values"
    return None if bool(labels.isfinite().all()) else "holds labels that are NaN or infinite"


def _are_classes(labels: Tensor, knowledge: Knowledge) -> bool:
    # A loss of one's own may be of one logit for two classes, too.
    classes = 2 if knowledge.num_classes == 1 and knowledge.client.loss not in LOSSES else knowledge.num_classes
    per_place = knowledge.target == "map" or vocabulary_of(knowledge.model) is not None
    if knowledge.client.loss not in LOSSES and (labels.ndim > 1 or labels.is_floating_point()):
        return True  # of several outputs, as its own loss takes them
    if labels.is_floating_point():
        return knowledge.target != "map" and labels.shape[1:] == (classes,)
    if labels.dtype != torch.int64 or (labels.ndim != 1 and not per_place):
        return False
    # A class each, or at each place (a token, a pixel), of which some may have none.
    named = (labels >= 0) if labels.ndim == 1 else (labels >= 0) | (labels == NO_TARGET)
    return bool((named & (labels < classes)).all())
