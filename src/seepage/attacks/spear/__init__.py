"""SPEAR: small batches in front of a ReLU, by the low rank and the zeros of a gradient."""

from seepage.attacks.spear.spear import Spear

__all__ = ["Spear"]
