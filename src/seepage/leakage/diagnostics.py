"""Diagnostics: what a reader must know before believing a number. Printed beside it, never instead of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from seepage.core.nn import forward, has_batch_norm, has_dropout, in_mode, norm
from seepage.metrics import lpips_help, lpips_missing
from seepage.privacy.guarantee import DPGuarantee
from seepage.types import Batch, Round, Transcript

Severity = Literal["note", "warning"]


@dataclass(frozen=True)
class Flag:
    """One caution.

    Attributes:
        name: Stable short name, e.g. `objective-limits`.
        severity: `warning`: the number may mislead. `note`: good to know.
        message: What was seen and what it means, for a reader who knows FL but not attacks.
    """

    name: str
    severity: Severity
    message: str


def model_diagnostics(model: nn.Module, mode: str) -> list[Flag]:
    """Flags about batch norm and dropout."""
    flags = []
    if has_batch_norm(model) and mode == "eval":
        flags.append(
            Flag(
                "batch-norm-eval",
                "warning",
                "The client computed its update with batch norm in eval mode. Real clients train in train mode, "
                "which is harder to attack; set client.mode = 'train' for the realistic case.",
            )
        )
    if has_batch_norm(model) and mode == "train":
        flags.append(
            Flag(
                "batch-norm-train",
                "note",
                "Batch norm in train mode couples the examples of a batch; exact micro-batching is off.",
            )
        )
    if has_dropout(model):
        flags.append(Flag("dropout-off", "note", "The model has dropout; it was switched off for client and attack."))
    return flags


def update_diagnostics(transcript: Transcript, rounds: int, losses: list[float]) -> list[Flag]:
    """Flags about the updates themselves, and about examples with next to no loss.

    Args:
        transcript: The victim's rounds.
        rounds: How many of the first ones to look at.
        losses: Loss of each private example at the model sent.
    """
    flags = []
    if any(not norm(transcript[t].update.tensors) > 0 for t in range(rounds)):
        flags.append(Flag("zero-update", "warning", "At least one update is zero everywhere and can leak nothing."))
    lost = [worst_rounding(transcript[t]) for t in range(rounds) if transcript[t].update.kind == "delta"]
    if lost and max(lost)[0] > 0.01:
        share, name = max(lost)
        flags.append(
            Flag(
                "rounded-weights",
                "note",
                f"The client sent a difference of weights, and in {name} the rounding of the weights makes up about "
                f"{100 * share:.0f} % of it: the smaller the local learning rate, the fewer digits are left.",
            )
        )
    silent = sum(loss < 1e-3 for loss in losses)
    if silent:
        flags.append(
            Flag(
                "confident-examples",
                "warning",
                f"The model is already sure of {silent} of {len(losses)} examples (loss below 0.001). Their part of "
                "the update is next to nothing, so a low score for them says nothing about other examples.",
            )
        )
    return flags


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


def guarantee_diagnostics(guarantee: DPGuarantee | None) -> list[Flag]:
    """Flags about what the defense promises for the audited rounds alone; later ones spend more."""
    if guarantee is None:
        return []
    unit = "whether one example was in the batch" if guarantee.unit == "example" else "what one client sent"
    if guarantee.epsilon is None:
        return [Flag("epsilon", "warning", f"No epsilon is stated: {guarantee.doubts[0]}.")]
    rounds = "For one round" if guarantee.rounds == 1 else f"Over {guarantee.rounds} rounds"
    stated = f"{rounds} the defense hides {unit} with epsilon = {guarantee.epsilon:.3g} at delta = {guarantee.delta:g}"
    severity: Severity = "warning" if guarantee.doubts else "note"
    return [Flag("epsilon", severity, ". ".join([stated, *map(_sentence, guarantee.doubts)]) + ".")]


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def sample_diagnostics(examples: int, batches: int) -> list[Flag]:
    """Flags about how much the scores rest on."""
    if batches > 1:
        return []
    return [
        Flag(
            "one-batch",
            "note",
            f"All scores rest on one batch of {examples}; the interval covers its examples only, not other batches. "
            "Raise batch.count for more.",
        )
    ]


def metric_diagnostics(lpips: bool, shape: tuple[int, ...]) -> list[Flag]:
    """A flag where LPIPS was asked for and cannot be measured; a run does not fail for it."""
    missing = lpips_missing(shape) if lpips else None
    if missing is None:
        return []
    return [Flag("lpips-missing", "note", f"LPIPS was not measured: {missing} {lpips_help()}")]


def attack_diagnostics(row: Mapping[str, Any]) -> list[Flag]:
    """Flags about one attack's result row: failed, diverged, not settled, or led astray by its objective."""
    flags = []
    name = row["attack"]
    if row["status"] == "error":
        flags.append(
            Flag(
                "failed",
                "warning",
                f"{name} failed ({row['reason']}); that it has no score is no evidence of safety.",
            )
        )
    if row["status"] == "diverged":
        flags.append(
            Flag(
                "diverged",
                "warning",
                f"{name} diverged (NaN or infinite objective); its score is no evidence of safety.",
            )
        )
    if row["status"] == "exhausted":
        flags.append(
            Flag(
                "not-settled",
                "note",
                f"{name} was still improving when its {row['steps']} steps ended; more steps may recover more."
                if row["steps"] is not None
                else f"{name} ended before all its guesses fitted to its own measure; more steps may recover more.",
            )
        )
    if row.get("false_certificates"):
        flags.append(
            Flag(
                "false-certificate",
                "warning",
                f"{name} vouches for {row['false_certificates']} guesses that are not exact: do not rely on what it "
                "calls certain here.",
            )
        )
    reached, truth = row.get("objective"), row.get("objective_at_truth")
    if reached is not None and truth is not None and not row.get("recovered"):
        if reached < truth - 1e-6 * abs(truth):
            flags.append(
                Flag(
                    "objective-limits",
                    "warning",
                    f"{name} found inputs that fit its objective better ({reached:.3g}) than the truth does "
                    f"({truth:.3g}): the objective is the limit, not the search.",
                )
            )
        elif reached > truth:
            flags.append(
                Flag(
                    "search-limits",
                    "note",
                    f"{name} stopped at objective {reached:.3g} where the truth has {truth:.3g}: "
                    "a better search would see more.",
                )
            )
    if row["told_extra"]:
        flags.append(
            Flag(
                "told",
                "note",
                f"{name} was told more than the protocol shows: {', '.join(row['told_extra'])}.",
            )
        )
    return flags


def outline_diagnostics(row: Mapping[str, Any]) -> list[Flag]:
    """A flag where the eye may see more than PSNR and SSIM count."""
    visible = row.get("visible")
    if not visible:
        return []
    return [
        Flag(
            "outlines-visible",
            "warning",
            f"{visible} of {row['examples']} guesses of {row['attack']} are not counted as recovered and yet follow "
            "their private example closely but for brightness and contrast (correlation over 0.8). Look at them.",
        )
    ]


def alignment_diagnostics(alignment: str, name: str) -> list[Flag]:
    """A flag where the score fitted something the method cannot know."""
    if "+" not in alignment:
        return []
    return [
        Flag(
            "fitted",
            "warning",
            f"{name} cannot know {alignment.partition('+')[2]}; the score fitted it with the truth, "
            "which an attacker could not.",
        )
    ]


def example_losses(transcript: Transcript, truth: list[Batch]) -> list[float]:
    """Loss of each private example at the model it was sent, one by one (so eval mode)."""
    losses: list[float] = []
    model = transcript.knowledge.model
    for t, batch in enumerate(truth):
        observed = transcript[t]
        with torch.no_grad(), in_mode(model, training=False):
            logits = forward(model, observed.params, batch.inputs, buffers=observed.buffers)
        losses += F.cross_entropy(logits, batch.labels, reduction="none").tolist()
    return losses
