"""Blind source separation, pure maths: fields, unmixing, sparse rows, the published objective."""

from seepage.attacks.cpa.ica.fields import balanced, difference_fields, opponent
from seepage.attacks.cpa.ica.published import EMBEDDINGS, IMAGES, Objective, Unmixing
from seepage.attacks.cpa.ica.sparse import sparsest, unmix_sparse, zero_share
from seepage.attacks.cpa.ica.unmix import fast_ica, maximum_likelihood, unmix, unmix_rest, whitener

__all__ = [
    "EMBEDDINGS",
    "IMAGES",
    "Objective",
    "Unmixing",
    "balanced",
    "difference_fields",
    "fast_ica",
    "maximum_likelihood",
    "opponent",
    "sparsest",
    "unmix",
    "unmix_rest",
    "unmix_sparse",
    "whitener",
    "zero_share",
]
