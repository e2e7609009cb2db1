"""The gradient-matching family: an engine, its parts, and a page of named methods."""

from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.presets import (
    bayes,
    dlg,
    fedleak,
    fedleak_released,
    grad_inversion,
    idlg,
    inverting_gradients,
    sapag,
)

__all__ = [
    "GradientMatching",
    "bayes",
    "dlg",
    "fedleak",
    "fedleak_released",
    "grad_inversion",
    "idlg",
    "inverting_gradients",
    "sapag",
]
