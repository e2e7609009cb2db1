"""Attacks. Each is registered in its own file; `ATTACKS` holds them by name."""

from seepage.attacks.adapters import LoraLeak
from seepage.attacks.averaged import Averaged, averaged
from seepage.attacks.base import Attack, Inapplicable
from seepage.attacks.cafe import Cafe
from seepage.attacks.cafe.published import PublishedCafe
from seepage.attacks.cpa.cocktail_party import CocktailParty
from seepage.attacks.cpa.feature_inversion import FeatureInversion, cpa_fia
from seepage.attacks.gauss_newton import GaussNewton, LocalSteps
from seepage.attacks.generative import FeatureDecoder, ggl, rogs
from seepage.attacks.guided import GuidedMatching, fedleak_guided, gradient_matching
from seepage.attacks.linear import LinearLeak
from seepage.attacks.patches import PatchEmbedding, PatchUnmixing
from seepage.attacks.rgap.rgap import RGap
from seepage.attacks.search import (
    GradientMatching,
    bayes,
    dlg,
    fedleak,
    fedleak_released,
    grad_inversion,
    idlg,
    inverting_gradients,
    sapag,
)
from seepage.attacks.spear.spear import Spear
from seepage.attacks.text import TokenSequences, TokenSet
from seepage.base.registry import Registry, attacks

__all__ = [
    "ATTACKS",
    "Attack",
    "Averaged",
    "Cafe",
    "CocktailParty",
    "FeatureDecoder",
    "FeatureInversion",
    "GaussNewton",
    "GradientMatching",
    "GuidedMatching",
    "Inapplicable",
    "LinearLeak",
    "LocalSteps",
    "LoraLeak",
    "PatchEmbedding",
    "PatchUnmixing",
    "PublishedCafe",
    "RGap",
    "Spear",
    "TokenSequences",
    "TokenSet",
    "averaged",
    "bayes",
    "cpa_fia",
    "dlg",
    "fedleak",
    "fedleak_guided",
    "fedleak_released",
    "ggl",
    "grad_inversion",
    "gradient_matching",
    "idlg",
    "inverting_gradients",
    "rogs",
    "sapag",
]


ATTACKS: Registry[Attack] = attacks
"""Every attack that has a name, cheapest first."""
