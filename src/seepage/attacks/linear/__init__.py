"""The closed-form leak of a fully connected layer that reads the input."""

from seepage.attacks.linear.linear import LinearLeak
from seepage.attacks.linear.ranges import shown_range

__all__ = ["LinearLeak", "shown_range"]
