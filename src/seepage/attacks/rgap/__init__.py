"""R-GAP: one example, read layer by layer in closed form."""

from seepage.attacks.rgap.rgap import LayerRank, RGap, rank_report

__all__ = ["LayerRank", "RGap", "rank_report"]
