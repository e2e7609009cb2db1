"""Rows of results/cafe: how far guesses are from the truth, and what made them."""

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.cafe import Recovered

OUT = Path("results/cafe")
Row = dict[str, Any]

TABLE_2 = {"dlg": (9.29, 7.96), "cosine": (7.38, 7.84), "sapag": (6.07, 3.86)}  # CIFAR-10, MNIST
TABLE_3 = {10: (30.83, 32.60), 20: (35.70, 39.00), 40: (31.83, 43.15), 80: (36.87, 47.05), 100: (38.94, 47.50)}
TABLE_4 = {"": (31.83, 43.15), "alpha": (33.93, 31.93), "xi": (25.57, 34.51), "beta": (18.25, 31.98)}
TABLE_4["gamma"] = (12.51, 6.34)
TABLE_6 = {4: (31.83, 43.15), 16: (28.39, 39.28)}
TABLE_7 = {1e-4: (31.24, 31.82), 5e-4: (27.62, 28.42), 1e-3: (25.22, 23.60)}
TABLE_11 = {"fake": (2.77, 1.95, 1.38, 0.65, 1.09), "true": (2.77, 1.08, 0.54, 0.23, 0.38)}  # rounds 0, 1000 ... 4000


def _of(table: dict[Any, tuple[float, float]], key: Any, row: Row) -> float | None:
    if row["data"] not in ("cifar10", "mnist") or key not in table:
        return None
    return table[key][row["data"] == "mnist"]


PAPER: dict[str, Callable[[Row], Row]] = {
    "2": lambda row: {"table": 2, "psnr": _of(TABLE_2, row["who"], row)},
    "3": lambda row: {"table": 3, "psnr": _of(TABLE_3, row["batch"], row), "rounds": "8000 to 20000"},
    "4": lambda row: {"table": 4, "samples": 800, "batch": 40, "psnr": _of(TABLE_4, row["without"], row)},
    "5": lambda row: {"table": 5, "samples": 800, "batch": 40, "single loop": 6600, "nested": [8000, 8000, 2468]},
    "6": lambda row: {"table": 6, "psnr": _of(TABLE_6, row["parties"], row), "rounds": "8000 to 20000"},
    "7": lambda row: {"table": 7, "samples": 800, "batch": 40, "psnr": _of(TABLE_7, row["lr"], row)},
    "11": lambda row: {"table": 11, "data": "not stated", "every": 1000} | TABLE_11,
    "faces": lambda row: {"section": "4.5", "data": "Yale 32x32", "psnr": 42},
}
"""The paper's number for a row, by table."""


def relative(guess: Tensor, true: Tensor) -> float:
    """Relative Frobenius error."""
    return float((guess.double() - true.double()).norm() / true.double().norm())


def write(name: str, row: Row) -> None:
    """Add a line to results/cafe/NAME.jsonl and show it."""
    OUT.mkdir(parents=True, exist_ok=True)
    row = {
        **row,
        "command": "python " + " ".join(sys.argv),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    with (OUT / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def rounded(value: float, digits: int = 3) -> float:
    """A number short enough to read."""
    return float(f"{value:.{digits}g}")


def within_cells(guess: Tensor, true: Tensor, group: Tensor) -> Tensor:
    """For each guess the number of the true row it stands for, matched inside its cell only."""
    from scipy.optimize import linear_sum_assignment

    match = torch.arange(len(guess))
    for number in group.unique():
        members = (group == number).nonzero().squeeze(1)
        if len(members) > 1:
            distance = torch.cdist(guess[members].double(), true[members].double())
            rows, columns = linear_sum_assignment(distance.numpy())
            match[members[rows]] = members[columns]
    return match


def errors(found: list[Recovered], true: list[tuple[Tensor, Tensor]]) -> Row:
    """Relative errors of V and H over all parties and samples known at all of them; cells are matched as one.

    A silent part counts as known: its v is zero, and its h is left out.
    """
    ready = torch.stack([one.known | one.silent for one in found]).all(0)
    known = torch.stack([one.known for one in found]).all(0)
    rows = ready.nonzero().squeeze(1)
    heard = [(~one.silent[rows]).double()[:, None] for one in found]
    guess_h = torch.cat([one.h[rows] * live for one, live in zip(found, heard, strict=True)], 1)
    all_h = torch.cat([h[rows].double() * live for (_, h), live in zip(true, heard, strict=True)], 1)
    places = within_cells(guess_h, all_h, found[0].group[rows])
    guess_v = torch.cat([one.v[rows] for one in found], 1)
    true_v = torch.cat([v[rows[places]].double() for v, _ in true], 1)
    true_h = all_h[places]
    worst = (guess_h - true_h).norm(dim=1) / true_h.norm(dim=1).clamp(min=1e-12)
    return {
        "identifiable": int(known.sum()),
        "identifiable_or_silent": int(ready.sum()),
        "silent_parts": int(sum(one.silent.sum() for one in found)),
        "error_v": rounded(relative(guess_v, true_v)),
        "error_h": rounded(relative(guess_h, true_h)),
        "error_h_worst": rounded(float(worst.max())),
        "wrong": int((worst > 1e-2).sum()),
        "swapped_in_cells": int((places != torch.arange(len(rows))).sum()),
    }


def quality(guess: Tensor, true: Tensor) -> Row:
    """Mean over images of their PSNR on [0, 1], clamped, and who is exact."""
    guess = guess.clamp(0, 1)
    psnr = -10 * (guess - true).pow(2).flatten(1).mean(1).clamp(min=1e-15).log10()
    same = ((guess * 255).round() == (true * 255).round()).flatten(1).all(1)
    return {
        "psnr": rounded(float(psnr.mean()), 4),
        "psnr_median": rounded(float(psnr.median()), 4),
        "psnr_min": rounded(float(psnr.min()), 4),
        "exact": rounded(float((psnr > 40).float().mean()), 4),
        "pixel_exact": rounded(float(same.float().mean()), 4),
    }
