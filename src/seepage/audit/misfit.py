"""Whether guesses without a truth at hand at least give the update that was sent."""

import math
from collections.abc import Sequence

from seepage.attacks.agreement import disagreement
from seepage.audit.attempt import Attempt
from seepage.types import Reconstruction, Transcript

MOST_STEPS = 100
"""Local steps up to which an update is computed again: an attack on it took many times as long."""


def misfit(views: Sequence[Transcript], attempts: Sequence[Attempt]) -> float | None:
    """Relative difference between the update that guesses give and the one that was sent, the mean over batches.

    Up to the update's size, which clipping to a norm or a rate that was told wrongly changes.
    Norm over all tensors that were sent, as a share of the sent update's: 0 where the guesses give just that update,
    which others may too. None where no batch has as many guesses of examples as there were, with their labels, or where
    it matters which examples are in which local step.

    Args:
        views: What each attempt observed.
        attempts: One per batch.
    """
    found = [
        _misfit(view, attempt.reconstruction)
        for view, attempt in zip(views, attempts, strict=True)
        if attempt.reconstruction is not None
    ]
    known = [value for value in found if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _misfit(view: Transcript, guess: Reconstruction) -> float | None:
    observed, knowledge = view[0], view.knowledge
    if len(view) > 1 or guess.space != "input" or guess.labels is None or observed.personal:
        return None
    if not len(guess) or len(guess) != observed.batch_size:
        return None
    steps = knowledge.client.batches(len(guess))
    if len(steps) > MOST_STEPS or any(len(step) < len(guess) for step in steps):
        return None
    return disagreement(observed, knowledge, guess.inputs, guess.labels, up_to_size=True)
