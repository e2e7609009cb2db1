"""Attacks with a learned idea of what images look like: GGL, ROGS, and a decoder of features.

What they know beyond the update is declared: `Knowledge.auxiliary`, images that are not private.
"""

from seepage.attacks.generative.features import FeatureDecoder
from seepage.attacks.generative.latent import Latent, LowResolution
from seepage.attacks.generative.presets import ggl, rogs
from seepage.attacks.generative.prior import ImagePrior
from seepage.attacks.generative.search import LatentSearch

__all__ = [
    "FeatureDecoder",
    "ImagePrior",
    "Latent",
    "LatentSearch",
    "LowResolution",
    "ggl",
    "rogs",
]
