"""Gradient matching that starts from, and holds on to, what the last layer's gradient says of every example."""

from seepage.attacks.guided.matching import GuidedMatching
from seepage.attacks.guided.presets import fedleak_guided, gradient_matching

__all__ = ["GuidedMatching", "fedleak_guided", "gradient_matching"]
