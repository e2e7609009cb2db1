"""R-GAP: one example, read layer by layer in closed form."""

from seepage.attacks.rgap.rgap import RGap

__all__ = ["RGap"]
