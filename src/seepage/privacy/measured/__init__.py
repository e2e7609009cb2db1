"""The epsilon of the filter that really runs: measured by calling it, beside what is stated and what is computed."""

from seepage.privacy.measured.canaries import SHAPES, Batched, Filter, InRounds, Pair, pairs_of
from seepage.privacy.measured.defended import filter_of, measure_defense
from seepage.privacy.measured.gaussian import GaussianFit
from seepage.privacy.measured.measure import CALLS, Claim, MeasuredEpsilon, Verdict, measure_epsilon, measure_pairs
from seepage.privacy.measured.samples import measure_outputs

__all__ = [
    "CALLS",
    "SHAPES",
    "Batched",
    "Claim",
    "Filter",
    "GaussianFit",
    "InRounds",
    "MeasuredEpsilon",
    "Pair",
    "Verdict",
    "filter_of",
    "measure_defense",
    "measure_epsilon",
    "measure_outputs",
    "measure_pairs",
    "pairs_of",
]
