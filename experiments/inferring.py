"""How well local steps and batch sizes are inferred from a difference of weights, on networks fresh and trained.

python experiments/inferring.py            a record for each network and number of steps; two minutes of one core
"""

from collections import Counter

import torch
from common import Row, command, descend, draws, keep
from torch import nn

from seepage import Architecture, FedAvg, build, data, record
from seepage.attacks.exposure import UpdateAnalysis
from seepage.attacks.exposure.inference import infer_size, infer_steps

SIZES, RATES, STEPS, LOCAL = (1, 4, 8, 16), (0.01, 0.1), (1, 2, 5, 20), 8


def trained(model: nn.Module, album: data.Dataset, steps: int) -> nn.Module:
    """The model after some steps of SGD at 0.05 on batches of 16."""
    batches = draws(album.batch(album.train), steps, 16, torch.Generator().manual_seed(0))
    descend(model, torch.optim.SGD(model.parameters(), lr=0.05), batches)
    return model


def main(*, models: tuple[str, ...] = ("fc2", "mlp3", "convnet")) -> None:
    """Keep what was found, by network, training and true number of steps."""
    album = data.load("album")
    shape, classes = album.input_shape, len(album.classes)
    print(f"album, {classes} classes; batches of {SIZES} at rates {RATES}, local batches of {LOCAL}")
    for use in models:
        for before in (0, 100):
            model = trained(build(Architecture(use), shape, classes), album, before)
            for k in STEPS:
                steps: Counter[str] = Counter()
                right: Counter[str] = Counter()
                for n, lr in ((n, lr) for n in SIZES for lr in RATES):
                    seen = record(
                        model, album.batch(album.private[:n]), client=FedAvg(lr=lr, steps=k, batch_size=LOCAL)
                    )
                    found = infer_steps(model, seen[0].update.tensors, shape, classes, lr=lr, steps=None)
                    known = found is not None and "nothing" not in found.said["local steps"]
                    steps[str(found.steps) if found is not None and known else "not inferred"] += 1
                    size, _ = infer_size(UpdateAnalysis(seen))
                    right["right" if size == min(n, LOCAL * k) else "not inferred" if size is None else "wrong"] += 1
                row: Row = {"network": use, "trained_steps": before, "local_steps": k, "found_steps": dict(steps)}
                row |= {"sizes": dict(right), "right_batch_sizes": float(right["right"]), "seed": 0, "data": "album"}
                keep("captured/inferring", f"{use}, trained {before}, {k} local", "right_batch_sizes", row)


if __name__ == "__main__":
    command(main)
