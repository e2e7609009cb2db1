"""A membership test that is published: the update's cosine with a candidate's gradient."""

from dataclasses import dataclass

from torch import Tensor

from seepage.attacks.membership.base import Detector, Done, MembershipTest, nothing
from seepage.attacks.membership.gradients import ExampleGradients
from seepage.base.registry import membership_tests
from seepage.federation.types import Batch, Knowledge, Round

ENTRIES = 4096
"""Largest number of entries of each tensor that are used, drawn at random."""


@dataclass(frozen=True)
class _Cosine(Detector):
    gradients: ExampleGradients

    def templates(self, examples: Batch, done: Done = nothing) -> Tensor:
        """`[k, d]` gradients g."""
        return self.gradients.of(examples, done)

    def statistics(self, observed: Round, templates: Tensor) -> Tensor:
        """`[k]` cosines g'u / (|g| |u|)."""
        update = self.gradients.entries_of(observed)
        # The update of one mean gradient is u = sum_i g_i / n: a member's g makes up a part of it, another's does not.
        lengths: Tensor = templates.norm(dim=1) * update.norm()
        cosines: Tensor = (templates @ update) / lengths.clamp_min(1e-30)
        return cosines


@membership_tests.register(
    "gradient_cosine",
    paper="Li et al. 2023 (ICLR), the cosine attack",
    cost="a backward pass for each example",
)
@dataclass(frozen=True, kw_only=True)
class GradientCosine(MembershipTest):
    """The cosine of the update and the candidate's gradient.

    Gradients of different examples are nearly orthogonal in overparameterized networks, so a member's has a positive
    cosine with the update, about 1 / sqrt(n). The paper takes all entries and sets a threshold by hand; here entries
    are drawn, so that hundreds of gradients fit into memory, and the threshold is calibrated.
    """

    def fit(
        self, knowledge: Knowledge, observed: Round, reference: Batch, *, seed: int, done: Done = nothing
    ) -> Detector:
        """A detector by cosines; the reference gives batch norm its statistics. See `MembershipTest.fit`."""
        return _Cosine(ExampleGradients.at(knowledge, observed, reference, entries=ENTRIES, seed=seed))
