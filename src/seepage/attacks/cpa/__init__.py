"""The Cocktail Party Attack: batches unmixed by independent components, and inverted through convolutions."""

from seepage.attacks.cpa.cocktail_party import CocktailParty

__all__ = [
    "CocktailParty",
]
