"""The head: features and class probabilities of every example, solved from the gradient of the last linear layer."""

from seepage.attacks.reading.head.features import HeadFeatures, head_features
from seepage.attacks.reading.head.lone_units import LoneSlopes, lone_slopes

__all__ = ["HeadFeatures", "LoneSlopes", "head_features", "lone_slopes"]
