"""FedMIA: the cosine test with all other clients' updates of the round as its null distribution."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks.membership.base import Detector, Done, MembershipTest, nothing
from seepage.attacks.membership.gradients import ExampleGradients
from seepage.base.registry import membership_tests
from seepage.errors import Inapplicable
from seepage.federation.types import Batch, Knowledge, Round

LEAST = 2
"""Updates of other clients that a mean and a deviation need."""


@dataclass(frozen=True)
class _AllForOne(Detector):
    gradients: ExampleGradients
    others: Tensor | None = None  # [o, d] entries of the other clients' updates

    reads_others: ClassVar[bool] = True

    def templates(self, examples: Batch, done: Done = nothing) -> Tensor:
        """`[k, d]` gradients g, of norm 1."""
        rows = self.gradients.of(examples, done)
        lengths: Tensor = rows.norm(dim=1, keepdim=True)
        return rows / lengths.clamp_min(1e-30)

    def beside(self, others: Sequence[Round]) -> Detector:
        """The same with the updates of other clients."""
        return replace(self, others=torch.stack([self.gradients.entries_of(one) for one in others]) if others else None)

    def statistics(self, observed: Round, templates: Tensor) -> Tensor:
        """`[k]` how many deviations the cosine lies above that of the same example with the others' updates."""
        if self.others is None or len(self.others) < LEAST:
            raise Inapplicable(
                f"FedMIA compares an update with those of other clients at the same weights, and there are "
                f"{0 if self.others is None else len(self.others)}",
                f"record {LEAST + 1} updates or more of one round (batch.count), or use gradient_cosine",
            )
        updates = torch.cat([self.gradients.entries_of(observed)[None], self.others])
        cosines = templates @ (updates / updates.norm(dim=1, keepdim=True).clamp_min(1e-30)).T  # [k, 1 + o]
        own, rest = cosines[:, 0], cosines[:, 1:]
        # One-tailed test against the Gaussian of the others: z = (s - mu_out) / sigma_out, of which the paper takes
        # the distribution function, which rises with z and so leaves every rank as it is.
        deviations: Tensor = rest.std(1).clamp_min(1e-12)
        found: Tensor = (own - rest.mean(1)) / deviations
        return found


@membership_tests.register(
    "fedmia",
    paper="Zhu et al. 2025 (CVPR), FedMIA-II",
    cost="a backward pass for each example",
)
@dataclass(frozen=True, kw_only=True)
class FedMIA(MembershipTest):
    """The cosine of update and gradient, standardized by the same example's cosines with other clients' updates.

    Clients hold different data, so the other clients' updates of a round are draws from what an update looks like that
    did not see the candidate. Their cosines give the mean and deviation of a Gaussian for each candidate, and the
    target's cosine is tested against it, one-tailed. Other clients are the other updates of the transcript at the same
    weights. Several rounds: `seepage.attacks.membership.combined` adds standardized statistics. Deviations from the
    paper: entries are drawn; p-values come from calibration examples, not from the Gaussian; others are not screened
    for outliers.

    Args:
        entries: Largest number of entries of each tensor that are used, drawn at random.
    """

    entries: int = 4096

    def fit(
        self, knowledge: Knowledge, observed: Round, reference: Batch, *, seed: int, done: Done = nothing
    ) -> Detector:
        """A detector by standardized cosines. See `MembershipTest.fit`."""
        return _AllForOne(ExampleGradients.at(knowledge, observed, reference, entries=self.entries, seed=seed))
