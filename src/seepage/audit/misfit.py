"""Whether guesses without a truth at hand at least give the update that was sent."""

import math
from collections.abc import Sequence

import torch

from seepage.attacks.network import Case, vouch
from seepage.audit.attempt import Attempt
from seepage.types import Batch, Reconstruction, Transcript

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
    labels = guess.labels
    if view.knowledge.client.target == "input":
        labels = torch.zeros(len(guess), dtype=torch.long)  # which no such rule reads
    if guess.space != "input" or labels is None:
        return None
    found = compared_to_sent(view, Batch(guess.inputs, labels))
    return None if found is None else found[0]


def compared_to_sent(view: Transcript, batch: Batch) -> tuple[float, float] | None:
    """`vouch` of the update that was sent and these examples, by the client's rule as it was told.

    None where it matters which examples are in which local step, and where that takes too long.
    """
    observed, knowledge = view[0], view.knowledge
    if len(view) > 1 or observed.personal or not len(batch) or len(batch) != observed.batch_size:
        return None
    steps = knowledge.client.batches(len(batch))
    if len(steps) > MOST_STEPS or any(len(step) < len(batch) for step in steps):
        return None
    return vouch(Case(knowledge, observed), batch.inputs, batch.labels, any_multiple=True)
