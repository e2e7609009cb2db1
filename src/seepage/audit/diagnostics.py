"""Diagnostics: what a reader must know before believing a number. Printed beside it, never instead of it."""

import torch
from torch import nn

from seepage.attacks.exposure.finding import note, warning
from seepage.attacks.exposure.fingerprints import MIN_NOISE_SHARE
from seepage.base.nn import NO_TARGET, forward, has_batch_norm, has_dropout, in_mode, norm
from seepage.base.schema import Finding, Guarantee
from seepage.federation.types import Batch, Round, Transcript
from seepage.measure.metrics import lpips_missing

CONFIDENT_LOSS = 1e-3
"""Cross-entropy in nats below which the model counts as sure of an example."""


def model_diagnostics(model: nn.Module, mode: str, *, followed: bool = True) -> list[Finding]:
    """Findings about batch norm and dropout.

    Args:
        model: The architecture.
        mode: Of the client's batch norm.
        followed: Whether attacks read the client as what it is, so that its dropout is off.
    """
    found = []
    if has_batch_norm(model) and mode == "eval":
        words = (
            "The client computed its update with batch norm in eval mode. Real clients train in train mode, which is "
            "harder to attack; set client.mode = 'train' for the realistic case."
        )
        found.append(warning("batch-norm-eval", words))
    if has_batch_norm(model) and mode == "train":
        words = "Batch norm in train mode couples the examples of a batch; exact micro-batching is off."
        found.append(note("batch-norm-train", words))
    if has_dropout(model) and followed:
        found.append(note("dropout-off", "The model has dropout; it was switched off for client and attack."))
    return found


def update_diagnostics(transcript: Transcript, rounds: int, losses: list[float]) -> list[Finding]:
    """Findings about the updates themselves, and about examples with next to no loss.

    Args:
        transcript: The victim's rounds.
        rounds: How many of the first ones to open.
        losses: Loss of each private example at the model sent.
    """
    found, zero, rounding = [], 0, (0.0, "")
    for t in range(rounds):
        observed = transcript[t]
        zero += not norm(observed.update.tensors) > 0
        if observed.update.kind == "delta":
            rounding = max(rounding, worst_rounding(observed))
    if zero:
        words = "At least one update is zero everywhere and can leak nothing."
        found.append(warning("zero-update", words, updates=zero))
    share, name = rounding
    if share > MIN_NOISE_SHARE:
        words = (
            f"The client sent a difference of weights, and in {name} the rounding of the weights makes up about "
            f"{100 * share:.0f} % of it: the smaller the local learning rate, the fewer digits are left."
        )
        found.append(note("rounded-weights", words, tensor=name, share=share))
    confident = sum(loss < CONFIDENT_LOSS for loss in losses)
    if confident:
        words = (
            f"The model is already sure of {confident} of {len(losses)} examples (loss below {CONFIDENT_LOSS:g}). "
            "Their part of the update is next to nothing, so a low score for them says nothing about other examples."
        )
        found.append(warning("confident-examples", words, examples=confident))
    return found


def worst_rounding(observed: Round) -> tuple[float, str]:
    """The tensor of a weight difference that rounding spoils most, and its relative error.

    A weight is stored to the nearest step of its number format, so each entry of a difference is off by up to half
    a step, evenly spread: by 1/sqrt(12) of a step in the root mean square.
    """
    worst = 0.0, ""
    for name, delta in observed.update.tensors.items():
        after = (observed.params[name] + delta).abs().double()
        step = torch.finfo(delta.dtype).eps * torch.exp2(after.clamp(min=1e-30).log2().floor())
        size = float(delta.double().norm())
        if size > 0:
            worst = max(worst, (float(step.norm()) / 12**0.5 / size, name))
    return worst


def guarantee_diagnostics(guarantee: Guarantee | None) -> list[Finding]:
    """Findings about what the defense guarantees for the audited rounds alone; later ones spend more."""
    if guarantee is None:
        return []
    unit = "whether one example was in the batch" if guarantee.unit == "example" else "what one client sent"
    if guarantee.epsilon is None:
        return [warning("epsilon", f"No epsilon is stated: {guarantee.caveats[0]}.")]
    rounds = "For one round" if guarantee.rounds == 1 else f"Over {guarantee.rounds} rounds"
    stated = f"{rounds} the defense hides {unit} with epsilon = {guarantee.epsilon:.3g} at delta = {guarantee.delta:g}"
    say = warning if guarantee.caveats else note
    return [say("epsilon", ". ".join([stated, *map(_sentence, guarantee.caveats)]) + ".", epsilon=guarantee.epsilon)]


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def sample_diagnostics(examples: int, batches: int, *, indexed: bool = False) -> list[Finding]:
    """Findings about how much the scores rest on; `indexed`: rounds drawn from one data set, scored together."""
    if batches > 1:
        return []
    words = (
        f"All scores rest on one data set of {examples}; the interval covers its examples only, not other data."
        if indexed
        else f"All scores rest on one batch of {examples}; the interval covers its examples only, not other batches. "
        "Raise batch.count for more."
    )
    return [note("one-batch", words, examples=examples)]


def metric_diagnostics(lpips: bool, shape: tuple[int, ...]) -> list[Finding]:
    """A finding where LPIPS was asked for and cannot be measured; a run does not fail for it.

    Args:
        lpips: Whether LPIPS was asked for.
        shape: Of one example.
    """
    missing = lpips_missing(shape) if lpips else None
    return [] if missing is None else [note("lpips-missing", f"LPIPS was not measured: {missing}")]


def example_losses(transcript: Transcript, truth: list[Batch]) -> list[float]:
    """Loss of each private example at the model it was sent, one by one (so eval mode)."""
    losses: list[float] = []
    model = transcript.knowledge.model
    for t, batch in enumerate(truth):
        observed = transcript[t]
        with torch.no_grad(), in_mode(model, training=False):
            logits = forward(model, observed.params, batch.inputs, buffers=observed.buffers)
        each = transcript.knowledge.client.loss_of(logits, batch.labels, reduction="none")
        if each.ndim > 1:  # of each token or pixel: the mean of those that have a target
            each = each.flatten(1).sum(1) / (batch.labels != NO_TARGET).flatten(1).sum(1).clamp(min=1)
        losses += each.tolist()
    return losses
