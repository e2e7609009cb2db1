"""Membership inference: was this example in the batch behind that update?

    weights of a Round + Knowledge        public examples: reference [r], calibration [c]
              |                                    |                  |
              +------> MembershipTest.fit <--------+                  |
                              |                                       |
                          Detector.templates <------ candidates [k] --+      one row for each example
                              |
    update of the Round -> Detector.statistics                              k + c numbers, larger for likelier members
                              |
                       p-value of each candidate: its rank among the calibration examples

The template of a candidate is made as that of a calibration example is, so the p-values hold whatever the statistic
is: of candidates that were in no batch and come from where the public examples come from, at most a share `p` has a
p-value of `p` or less.
"""

from seepage.attacks.membership.base import (
    Detector,
    Membership,
    MembershipInference,
    MembershipTest,
    combined,
    infer_membership,
    p_values,
    whose,
)
from seepage.attacks.membership.cosine import GradientCosine
from seepage.attacks.membership.joint import SpanOrFilter
from seepage.attacks.membership.matched_filter import MatchedFilter
from seepage.attacks.membership.span import LayerSpan
from seepage.base.registry import Registry, membership_tests

MEMBERSHIP_TESTS: Registry[MembershipTest] = membership_tests
"""Every membership test that has a name."""

__all__ = [
    "MEMBERSHIP_TESTS",
    "Detector",
    "LayerSpan",
    "GradientCosine",
    "MatchedFilter",
    "Membership",
    "MembershipInference",
    "MembershipTest",
    "SpanOrFilter",
    "combined",
    "infer_membership",
    "p_values",
    "whose",
]
