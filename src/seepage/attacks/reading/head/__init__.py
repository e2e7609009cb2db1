"""The head: features and class probabilities of every example, solved from the gradient of the last linear layer."""

from seepage.attacks.reading.head.features import HeadFeatures, head_features

__all__ = ["HeadFeatures", "head_features"]
