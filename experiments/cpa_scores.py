"""Score a Cocktail Party Attack and write the row, with versions and the command that made it."""

import json
import platform
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from seepage.api import record
from seepage.attacks import Attack
from seepage.metrics import align_guess
from seepage.metrics.image import correlation, is_image, psnr, ssim
from seepage.transcript.simulated import OneRound
from seepage.types import Batch, Reconstruction

OUT = Path("results/cpa")
SHOWN = ("data", "n", "seed", "method", "sigma", "cosine", "over_0.999", "psnr", "exact", "certified",
         "false_certificates", "cpu_s")  # fmt: skip


def measure(found: Reconstruction, batch: Batch) -> dict[str, Any]:
    """Scores after Hungarian matching; sign and scale are fitted only where the method leaves them open."""
    matched = align_guess(found, batch, (0.0, 1.0))
    guesses, there = matched.guesses, matched.matched
    similar = F.cosine_similarity(guesses.flatten(1) - 0.5, batch.inputs.flatten(1) - 0.5).where(there, torch.zeros(()))
    quality = psnr(guesses, batch.inputs)
    row: dict[str, Any] = {
        "cosine": float(similar.mean()),
        "cosine_median": float(similar.median()),
        "psnr": float(quality.mean()),
        "correlation": float(correlation(guesses, batch.inputs).mean()),
        "exact": float(((quality > 40) & there).double().mean()),
        "alignment": matched.name,
    }
    if is_image(tuple(batch.inputs.shape[1:])):
        row["ssim"] = float(ssim(guesses, batch.inputs).mean())
    if found.certified is not None and len(found):
        # Against the nearest example, not the matched one: a matching of least total error gives a right guess
        # away where that serves two wrong ones.
        nearest = torch.stack([psnr(guess.expand_as(batch.inputs), batch.inputs).max() for guess in found.inputs])
        row["certified"] = int(found.certified.sum()) / len(batch)
        row["false_certificates"] = int((found.certified & (nearest <= 40)).sum())
        row["certified_psnr_min"] = float(nearest[found.certified].min()) if found.certified.any() else None
    return row


def one(kind: str, attack: Attack, model: nn.Module, batch: Batch, facts: Mapping[str, Any], **how: Any) -> None:
    """Record, attack, measure, write."""
    seen = OneRound(record(model, batch, **how), 0)
    wall, cpu = time.perf_counter(), time.process_time()
    found = attack(seen, seed=0)
    seconds = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    write(kind, {**facts, **measure(found, batch), **seconds, "attack": repr(attack), "notes": list(found.notes)})


def write(name: str, row: Mapping[str, Any]) -> None:
    """Add a line to results/cpa/NAME.jsonl and show it."""
    OUT.mkdir(parents=True, exist_ok=True)
    short = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}
    made = {
        "command": "python " + " ".join(sys.argv),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    with (OUT / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps({"case": name, **short, **made}) + "\n")
    print(name, {key: short[key] for key in SHOWN if key in short}, flush=True)
