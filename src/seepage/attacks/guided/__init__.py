"""Gradient matching that starts from, and holds on to, what the last layer's gradient says of every example."""

from seepage.attacks.guided.matching import GuidedMatching
from seepage.attacks.guided.presets import gradient_matching

__all__ = ["GuidedMatching", "gradient_matching"]
