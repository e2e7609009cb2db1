"""The Cocktail Party Attack: batches unmixed by independent components, and inverted through convolutions."""

from seepage.attacks.cpa.cocktail_party import CocktailParty
from seepage.attacks.cpa.feature_inversion import FeatureInversion, cpa_fia

__all__ = ["CocktailParty", "FeatureInversion", "cpa_fia"]
