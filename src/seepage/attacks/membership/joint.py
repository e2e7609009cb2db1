"""The span test and the matched filter as one test: each is far ahead where the other is weak."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.membership.base import Detector, Done, MembershipTest, held_out, in_deviations, nothing
from seepage.attacks.membership.matched_filter import MatchedFilter
from seepage.attacks.membership.span import LayerSpan
from seepage.base.registry import membership_tests
from seepage.errors import Inapplicable
from seepage.federation.types import Batch, Knowledge, Round


@dataclass(frozen=True)
class _Joint(Detector):
    """Detectors, and for each the templates `[s, e]` of the same reference examples."""

    parts: Sequence[Detector]
    standards: Sequence[Tensor]

    def templates(self, examples: Batch, done: Done = nothing) -> Tensor:
        """`[k, e]` the templates of all detectors, side by side."""
        own = [part.templates(examples, nothing if place else done) for place, part in enumerate(self.parts)]
        return torch.cat(own, 1)

    def statistics(self, observed: Round, templates: Tensor) -> Tensor:
        """`[k]` the largest of the detectors' statistics, in deviations of the reference examples."""
        found, refused = [], list[Inapplicable]()
        shares = templates.split([known.shape[1] for known in self.standards], 1)
        for part, known, own in zip(self.parts, self.standards, shares, strict=True):
            try:
                seen = part.statistics(observed, torch.cat([known, own]))
            except Inapplicable as error:
                refused.append(error)
            else:
                found.append(in_deviations(seen[:, None], len(known)))
        if not found:
            raise refused[0]
        return torch.cat(found, 1).nan_to_num(-torch.inf).amax(1)


@membership_tests.register(
    "span_or_filter",
    paper="none; the larger of layer_span and matched_filter",
    cost="a forward and a backward pass for each example",
)
@dataclass(frozen=True, kw_only=True)
class SpanOrFilter(MembershipTest):
    """The larger of two statistics, each in deviations of public examples: `layer_span`'s and `matched_filter`'s.

    The span is exact while a layer read fewer vectors than it is wide, whatever labels and loss; the filter weighs
    whole gradients where spans hold mixtures. Where one of them does not apply this is the other. The calibration is
    that of the larger one, so nothing is lost by looking twice but what a level of half the size would lose.
    """

    def fit(
        self, knowledge: Knowledge, observed: Round, reference: Batch, *, seed: int, done: Done = nothing
    ) -> Detector:
        """Detectors of those tests that apply. See `MembershipTest.fit`."""
        apart, parts, refused = held_out(reference), list[Detector](), list[Inapplicable]()
        standards, taught = (
            Batch(reference.inputs[places], reference.labels[places])
            for places in (slice(apart or 1), slice(apart, None))
        )
        for test in (MatchedFilter(), LayerSpan()):
            try:
                parts.append(test.fit(knowledge, observed, taught, seed=seed, done=nothing if parts else done))
            except Inapplicable as error:
                refused.append(error)
        if not parts:
            raise refused[0]
        return _Joint(
            parts, [part.templates(standards, nothing if place else done) for place, part in enumerate(parts)]
        )

    def adapts(self, knowledge: Knowledge) -> bool:
        """Whether one of the two makes anything of it."""
        return MatchedFilter().adapts(knowledge)
