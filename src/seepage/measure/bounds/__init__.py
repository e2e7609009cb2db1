"""Upper bounds for any attacker, on membership and exact copies, from a clip and Gaussian noise.

The auditor holds the batch, and every bound may use it: nothing in here is for an attack.
"""

from seepage.measure.bounds.bound import UpperBounds
from seepage.measure.bounds.chance import blind_chance
from seepage.measure.bounds.tradeoff import gaussian_auc, gaussian_mu, gaussian_tpr
from seepage.measure.bounds.upper import BoundOptions, upper_bounds

__all__ = [
    "BoundOptions",
    "UpperBounds",
    "blind_chance",
    "gaussian_auc",
    "gaussian_mu",
    "gaussian_tpr",
    "upper_bounds",
]
