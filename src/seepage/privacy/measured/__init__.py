"""The epsilon of the filter that really runs: measured by calling it, beside what is stated and what is computed."""

from seepage.privacy.measured.canaries import SHAPES, Batched, Filter, InRounds, Pair, pairs_of
from seepage.privacy.measured.defended import filter_of, measure_defense
from seepage.privacy.measured.gaussian import GaussianFit
from seepage.privacy.measured.measure import (
    CALLS,
    Claim,
    EpsilonClaims,
    MeasuredEpsilon,
    Measurement,
    Verdict,
)
from seepage.privacy.measured.samples import measure_outputs

__all__ = [
    "CALLS",
    "SHAPES",
    "Batched",
    "Claim",
    "EpsilonClaims",
    "Filter",
    "GaussianFit",
    "InRounds",
    "MeasuredEpsilon",
    "Measurement",
    "Pair",
    "Verdict",
    "filter_of",
    "measure_defense",
    "measure_outputs",
    "pairs_of",
]
