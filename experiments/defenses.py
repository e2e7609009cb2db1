"""What attacks that know of no defense recover behind each, at a small budget.

    python experiments/defenses.py [--batches 4] [--steps 200] [--only NAME]

Fresh networks on the packaged faces (16 pixels) are attacked: fc2 with batches of 8 by `linear` and `cocktail_party`,
convnet with batches of 1 by `inverting_gradients`, which knows the labels. One row of results/defenses/leakage.jsonl
per case, defense and attack: the median PSNR over all examples of all batches, in dB. Rows that are there are skipped.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch
from common import keep

from seepage import Architecture, attack, build, record, score
from seepage.base.nn import generator
from seepage.errors import SeepageError
from seepage.federation.data import load
from seepage.federation.defenses import DEFENSES, Compose
from seepage.federation.types import Batch, Defense
from seepage.measure.metrics.scores import Scores
from seepage.papers.records import RESULTS, read_file

STUDY = "defenses/leakage"
Parts = list[dict[str, Any]]

GRID: list[Parts] = [
    [],
    *[[{"use": "gaussian_noise", "sigma": s, "clip": 1.0}] for s in (1e-3, 1e-2)],
    *[[{"use": "soteria", "ratio": r}] for r in (0.5, 0.9)],
    *[[{"use": "outpost", "prune": p}] for p in (0.1, 0.9)],
    *[[{"use": "jacobian_damping", "beta": b}] for b in (10.0, 1000.0)],
    *[[{"use": "quantize", "bits": b}] for b in (8, 1)],
    *[[{"use": "sparsify", "keep": k}] for k in (0.5, 0.1)],
    *[[{"use": "dp_sgd", "sigma": s, "clip": 1.0}] for s in (0.01, 0.1)],
    *[[{"use": "partial_access", "share": s, "which": "lowest"}] for s in (0.8, 0.2)],
    [{"use": "dp_sgd", "sigma": 0.01, "clip": 1.0}, {"use": "soteria", "ratio": 0.5}],
    *[[{"use": "unit_norm_noise", "sigma": s}] for s in (1e-4, 1e-2)],
    *[[{"use": "laplace_noise", "scale": s}] for s in (1e-4, 1e-3)],
    *[[{"use": "selective_encryption", "share": s}] for s in (0.2, 0.8)],
    *[[{"use": "zero_sum_noise", "sigma": s}] for s in (1e-3, 1e-2)],
    *[[{"use": "zero_sum_noise", "sigma": s, "proportional": True}] for s in (0.1, 1.0)],
    [{"use": "fake_gradients"}],
]
CASES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "fc2, batch 8": ("fc2", 8, ("linear", "cocktail_party")),
    "convnet, batch 1": ("convnet", 1, ("inverting_gradients",)),
}


def make(parts: Parts) -> Defense | None:
    made = [DEFENSES[part["use"]](**{k: v for k, v in part.items() if k != "use"}) for part in parts]
    return Compose(tuple(made)) if made else None


def words(parts: Parts) -> str:
    named = []
    for part in parts:
        said = {k: v for k, v in part.items() if k != "use"}
        options = [v if isinstance(v, str) else k if v is True else f"{k} {v:g}" for k, v in said.items()]
        named.append(", ".join([part["use"], *options]))
    return " then ".join(named) or "none"


def truth(case: str, count: int) -> Iterator[Batch]:
    size = CASES[case][1]
    data = load("faces", size=16)
    places = data.private[torch.randperm(len(data.private), generator=generator(0, "benchmark"))]
    for i in range(count):
        yield data.batch(places[i * size : (i + 1) * size])


def measure(case: str, parts: Parts, use: str, batches: int, steps: int) -> dict[str, Any]:
    """One line: the attack on so many batches behind one defense."""
    model = build(Architecture(CASES[case][0]), (1, 16, 16), 2, seed=0)
    options = {"steps": steps} if use == "inverting_gradients" else {}
    begin, parts_scored = time.process_time(), []
    for i, batch in enumerate(truth(case, batches)):
        known = ["labels"] if use == "inverting_gradients" else []
        transcript = record(model, batch, defense=make(parts), known=known, seed=i)
        parts_scored.append(score(attack(transcript, use, seed=i, options=options), batch))
    found = Scores.concatenate(parts_scored)
    return {
        "psnr_median": found.psnr_median,
        "ssim": found.ssim,
        "recovered": found.recovered,
        "mean_color_psnr": found.mean_color_psnr,
        "random_psnr": found.random_psnr,
        "examples": found.examples,
        "processor_seconds": round(time.process_time() - begin, 1),
    }


def run(batches: int, steps: int, only: str | None) -> None:
    known = {
        (row["case"], row["defense"], row["attack"], row["batches"], row["steps"])
        for row in (record.facts for record in read_file(RESULTS / f"{STUDY}.jsonl"))
    }
    for parts, (case, (_, _, attacks)) in itertools.product(GRID, CASES.items()):
        name = words(parts)
        for use in attacks:
            if (case, name, use, batches, steps) in known or (only and only not in name):
                continue
            row: dict[str, Any] = {"case": case, "defense": name, "attack": use, "batches": batches, "steps": steps}
            try:
                row |= measure(case, parts, use, batches, steps)
            except SeepageError as refusal:
                row |= {"refused": str(refusal)}
            keep(STUDY, f"{name}, {use}, {case}", "psnr_median", row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", help="only defenses with this in their name")
    given = parser.parse_args()
    run(given.batches, given.steps, given.only)


if __name__ == "__main__":
    main()
