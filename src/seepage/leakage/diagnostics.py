"""Diagnostics: what a reader must know before believing a number. Printed beside it, never instead of it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from seepage.core.nn import forward, has_batch_norm, has_dropout, in_mode, norm
from seepage.leakage.finding import Finding
from seepage.metrics import lpips_help, lpips_missing
from seepage.privacy.guarantee import DPGuarantee
from seepage.types import Batch, Round, Transcript

MAX_ROUNDING_SHARE = 0.01
"""Relative rounding error of a difference of weights from which it is said."""
CONFIDENT_LOSS = 1e-3
"""Cross-entropy in nats below which the model counts as sure of an example."""


def _note(name: str, message: str, **evidence: Any) -> Finding:
    return Finding(name=name, severity="note", message=message, evidence=evidence)


def _warning(name: str, message: str, **evidence: Any) -> Finding:
    return Finding(name=name, severity="warning", message=message, evidence=evidence)


def model_diagnostics(model: nn.Module, mode: str) -> list[Finding]:
    """Findings about batch norm and dropout."""
    found = []
    if has_batch_norm(model) and mode == "eval":
        words = (
            "The client computed its update with batch norm in eval mode. Real clients train in train mode, which is "
            "harder to attack; set client.mode = 'train' for the realistic case."
        )
        found.append(_warning("batch-norm-eval", words))
    if has_batch_norm(model) and mode == "train":
        words = "Batch norm in train mode couples the examples of a batch; exact micro-batching is off."
        found.append(_note("batch-norm-train", words))
    if has_dropout(model):
        found.append(_note("dropout-off", "The model has dropout; it was switched off for client and attack."))
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
        found.append(_warning("zero-update", words, updates=zero))
    share, name = rounding
    if share > MAX_ROUNDING_SHARE:
        words = (
            f"The client sent a difference of weights, and in {name} the rounding of the weights makes up about "
            f"{100 * share:.0f} % of it: the smaller the local learning rate, the fewer digits are left."
        )
        found.append(_note("rounded-weights", words, tensor=name, share=share))
    confident = sum(loss < CONFIDENT_LOSS for loss in losses)
    if confident:
        words = (
            f"The model is already sure of {confident} of {len(losses)} examples (loss below {CONFIDENT_LOSS:g}). "
            "Their part of the update is next to nothing, so a low score for them says nothing about other examples."
        )
        found.append(_warning("confident-examples", words, examples=confident))
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


def guarantee_diagnostics(guarantee: DPGuarantee | None) -> list[Finding]:
    """Findings about what the defense guarantees for the audited rounds alone; later ones spend more."""
    if guarantee is None:
        return []
    unit = "whether one example was in the batch" if guarantee.unit == "example" else "what one client sent"
    if guarantee.epsilon is None:
        return [_warning("epsilon", f"No epsilon is stated: {guarantee.doubts[0]}.")]
    rounds = "For one round" if guarantee.rounds == 1 else f"Over {guarantee.rounds} rounds"
    stated = f"{rounds} the defense hides {unit} with epsilon = {guarantee.epsilon:.3g} at delta = {guarantee.delta:g}"
    say = _warning if guarantee.doubts else _note
    return [say("epsilon", ". ".join([stated, *map(_sentence, guarantee.doubts)]) + ".", epsilon=guarantee.epsilon)]


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def sample_diagnostics(examples: int, batches: int) -> list[Finding]:
    """Findings about how much the scores rest on."""
    if batches > 1:
        return []
    words = (
        f"All scores rest on one batch of {examples}; the interval covers its examples only, not other batches. "
        "Raise batch.count for more."
    )
    return [_note("one-batch", words, examples=examples)]


def metric_diagnostics(lpips: bool, shape: tuple[int, ...]) -> list[Finding]:
    """A finding where LPIPS was asked for and cannot be measured; a run does not fail for it."""
    missing = lpips_missing(shape) if lpips else None
    return [] if missing is None else [_note("lpips-missing", f"LPIPS was not measured: {missing} {lpips_help()}")]


def attack_diagnostics(row: Mapping[str, Any]) -> list[Finding]:
    """Findings about one attack's result row: failed, diverged, not settled, or led astray by its objective."""
    found, name = [], row["attack"]
    if row["status"] == "error":
        words = f"{name} failed ({row['reason']}); that it has no score is no evidence of safety."
        found.append(_warning("failed", words))
    if row["status"] == "diverged":
        words = f"{name} diverged (NaN or infinite objective); its score is no evidence of safety."
        found.append(_warning("diverged", words))
    if row["status"] == "exhausted":
        words = f"{name} was still improving when its {row['steps']} steps ended"
        if row["steps"] is None:
            words = f"{name} ended before all its guesses fitted to its own measure"
        found.append(_note("not-settled", f"{words}; more steps may recover more."))
    wrong = row.get("false_certificates")
    if wrong:
        words = f"{name} vouches for {wrong} guesses that are not exact: do not rely on what it calls certain here."
        found.append(_warning("false-certificate", words, guesses=wrong))
    found += _objective_diagnostics(row)
    if row["told_extra"]:
        words = f"{name} was told more than the protocol shows: {', '.join(row['told_extra'])}."
        found.append(_note("told", words))
    return found


def _objective_diagnostics(row: Mapping[str, Any]) -> list[Finding]:
    """Whether the objective or the search was the limit of an attack that did not recover everything."""
    name, reached, truth = row["attack"], row.get("objective"), row.get("objective_at_truth")
    if reached is None or truth is None or row.get("recovered"):
        return []
    if reached < truth - 1e-6 * abs(truth):  # beyond rounding
        words = (
            f"{name} found inputs that fit its objective better ({reached:.3g}) than the truth does ({truth:.3g}): "
            "the objective is the limit, not the search."
        )
        return [_warning("objective-limits", words, reached=reached, truth=truth)]
    if reached > truth:
        words = (
            f"{name} stopped at objective {reached:.3g} where the truth has {truth:.3g}: "
            "a better search would see more."
        )
        return [_note("search-limits", words, reached=reached, truth=truth)]
    return []


def outline_diagnostics(row: Mapping[str, Any]) -> list[Finding]:
    """A finding where the eye may see more than PSNR and SSIM count."""
    visible = row.get("visible")
    if not visible:
        return []
    words = (
        f"{visible} of {row['examples']} guesses of {row['attack']} are not counted as recovered and yet follow their "
        "private example closely but for brightness and contrast (correlation over 0.8). Look at them."
    )
    return [_warning("outlines-visible", words, guesses=visible)]


def alignment_diagnostics(alignment: str, name: str) -> list[Finding]:
    """A finding where the score fitted something the method cannot know."""
    if "+" not in alignment:
        return []
    fitted = alignment.partition("+")[2]
    words = f"{name} cannot know {fitted}; the score fitted it with the truth, which an attacker could not."
    return [_warning("fitted", words)]


def example_losses(transcript: Transcript, truth: list[Batch]) -> list[float]:
    """Loss of each private example at the model it was sent, one by one (so eval mode)."""
    losses: list[float] = []
    model = transcript.knowledge.model
    for t, batch in enumerate(truth):
        observed = transcript[t]
        with torch.no_grad(), in_mode(model, training=False):
            logits = forward(model, observed.params, batch.inputs, buffers=observed.buffers)
        losses += transcript.knowledge.client.loss_of(logits, batch.labels, reduction="none").tolist()
    return losses
