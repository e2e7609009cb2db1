"""The gradient-matching family: an engine, its parts, and a page of named methods."""

from seepage.attacks.matching.engine import GradientMatching
from seepage.attacks.matching.presets import dlg, idlg, inverting_gradients, sapag

__all__ = ["GradientMatching", "dlg", "idlg", "inverting_gradients", "sapag"]
