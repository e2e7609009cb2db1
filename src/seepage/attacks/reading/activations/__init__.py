"""Inner activations: what late layers read for each example, from the gradients of their weights."""

from seepage.attacks.reading.activations.activations import inner_activations
from seepage.attacks.reading.activations.block import InnerActivations
from seepage.attacks.reading.activations.deconvolution import Deconvolved, deconvolve

__all__ = ["Deconvolved", "InnerActivations", "deconvolve", "inner_activations"]
