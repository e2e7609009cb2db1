r"""Whose face is it? Top-1 identification from reconstructions, beside their PSNR.

python experiments/identification.py noise --data ../shared/data/faces_orl_32.npz
python experiments/identification.py search --data ../shared/data/faces_orl_32.npz

`noise`: a fully connected network, single faces, clip 1 and Gaussian noise of rising strength, the closed form.
`search`: a convolutional network, gradient matching with few to many steps. The scorer's gallery holds the true image
and 99 others that nobody attacked; that of persons one other picture of each person. Nothing is fitted, so nothing is
tuned on what is scored. One row of results/identification/faces.jsonl per setting, metric and seed.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seepage.audit import run as audit
from seepage.papers.records import RESULTS, keep_measured, read_file

METRICS = ("identified", "identified_ssim", "identified_features", "person", "person_features")
WEIGHTS = "../shared/data/weights/squeezenet1_1_caffe_imagenet.safetensors"
NOISE = (0.0, 0.001, 0.002, 0.003, 0.005, 0.01, 0.03)
STEPS = (20, 100, 400)


def settings(what: str) -> dict[str, dict[str, Any]]:
    """Name of a setting to the tables that it changes."""
    if what == "noise":
        return {
            f"fc2, clip 1, noise {sigma:g}": {
                "model": {"use": "fc2"},
                "defense": [{"use": "gaussian_noise", "clip": 1.0, "sigma": sigma}],
                "attack": [{"use": "linear", "tolerance": 1e9}],
            }
            for sigma in NOISE
        }
    return {
        f"convnet, {steps} steps": {
            "model": {"use": "convnet"},
            "attack": [{"use": "inverting_gradients", "steps": steps}],
        }
        for steps in STEPS
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["noise", "search"])
    parser.add_argument("--data", default="../shared/data/faces_orl_32.npz")
    parser.add_argument("--features", default=WEIGHTS)
    parser.add_argument("--count", type=int, default=40, help="faces, one in each batch")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    file = given.data.rsplit("/", 1)[-1]
    rows = RESULTS / "identification" / "faces.jsonl"
    done = {(record.row, record.data, seed) for record in read_file(rows) for seed in record.seeds}
    for seed in range(given.seeds):
        for name, changed in settings(given.what).items():
            if (name, file, str(seed)) in done:
                continue
            tables: dict[str, Any] = {
                "name": "whose",
                "seed": seed,
                "data": {"use": given.data},
                "batch": {"size": 1, "count": given.count},
                "score": {"metrics": list(METRICS), "features": given.features},
                **changed,
            }
            with tempfile.TemporaryDirectory() as folder:
                row = audit.run(tables, out=Path(folder, "run"), jobs=1).result.rows[0]
            facts: dict[str, Any] = {"psnr": row.median("psnr"), "gain_db": row.mean("gain_db"), "faces": given.count}
            facts |= {"recovered": row.mean("recovered"), "seconds": row.cost.cpu_seconds}
            for metric in METRICS[1:]:
                facts[metric] = row.mean(metric)
            for base in ("chance", "mean_color"):
                facts |= {f"{base}_{metric}": row.baselines[base][metric] for metric in METRICS}
            found = row.scores["identified"]
            ends = (found.low or 0.0, found.high or 1.0)
            keep_measured(
                "identification/faces", name, "identified", found.mean, seed=seed, interval=ends, data=file, **facts
            )


if __name__ == "__main__":
    main()
