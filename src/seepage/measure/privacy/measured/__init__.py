"""The epsilon of the filter that really runs: measured by calling it, beside what is stated and what is computed."""

from seepage.measure.privacy.measured.canaries import SHAPES, Batched, Filter, InRounds, OfClients, Pair, pairs_of
from seepage.measure.privacy.measured.defended import filter_of, measure_defense
from seepage.measure.privacy.measured.gaussian import GaussianFit
from seepage.measure.privacy.measured.measure import (
    CALLS,
    MeasuredEpsilon,
    Measurement,
    Verdict,
)

__all__ = [
    "CALLS",
    "SHAPES",
    "Batched",
    "Filter",
    "GaussianFit",
    "InRounds",
    "MeasuredEpsilon",
    "Measurement",
    "OfClients",
    "Pair",
    "Verdict",
    "filter_of",
    "measure_defense",
    "pairs_of",
]
