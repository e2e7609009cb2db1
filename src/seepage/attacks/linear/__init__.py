"""The closed-form leak of a fully connected layer that reads the input."""

from seepage.attacks.linear.linear import LinearLeak

__all__ = ["LinearLeak"]
