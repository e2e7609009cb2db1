"""The epsilon of the filter that really runs: measured by calling it, beside what is stated and what is computed."""

from seepage.measure.privacy.measured.canaries import SHAPES, Batched, OfClients, Pair
from seepage.measure.privacy.measured.defended import measure_defense
from seepage.measure.privacy.measured.measure import (
    CALLS,
    MeasuredEpsilon,
    Measurement,
)

__all__ = [
    "CALLS",
    "SHAPES",
    "Batched",
    "MeasuredEpsilon",
    "Measurement",
    "OfClients",
    "Pair",
    "measure_defense",
]
