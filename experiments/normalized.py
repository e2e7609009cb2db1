"""What `seepage attack` finds of a normalization that nobody stated, in two checkpoints around one step of SGD at 0.1.

python experiments/normalized.py           a record for each network, normalization and batch size; ten minutes
"""

import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Row, command, keep
from torch import Tensor

from seepage import Architecture, build, data
from seepage.audit.capture import NORMALIZATION, VALUES, Capture
from seepage.audit.observe import observe_files
from seepage.audit.values import searched_values
from seepage.base.nn import generator
from seepage.federation.models.normalize import statistics_of
from seepage.federation.transcript.foreign import read_facts

HOW = {"none": "0,1", "imagenet": "imagenet", "one half": "0.5", "of nobody": "0.37,0.21"}
SECONDS = 60.0


def told(model: str, inputs: Tensor, labels: Tensor, folder: Path) -> str:
    """What is inferred: the normalization by name, the range, or nothing."""
    shape = tuple(inputs.shape[1:])
    net = build(Architecture(model), shape, 10)
    torch.save(net.state_dict(), folder / "before.pt")
    F.cross_entropy(net(inputs), labels).backward()
    torch.optim.SGD(net.parameters(), 0.1).step()
    torch.save(net.state_dict(), folder / "after.pt")
    capture = Capture(
        before=folder / "before.pt", after=folder / "after.pt", architecture=Architecture(model), lr=0.1,
        input_shape=shape, batch_size=len(inputs),
    )  # fmt: skip
    observe_files(capture, folder / "observed", search=partial(searched_values, seconds=SECONDS))
    said = read_facts(folder / "observed").said
    return said[NORMALIZATION].partition(",")[0] if NORMALIZATION in said else "range" if VALUES in said else "nothing"


def main(*, models: tuple[str, ...] = ("fc2", "convnet"), sizes: tuple[int, ...] = (1, 4), batches: int = 10) -> None:
    """Keep how often each is told, and how often what is told is false."""
    album = data.load("album")
    examples = album.batch(album.private)
    for model in models:
        for name, statistics in HOW.items():
            mean, std = (torch.tensor(part)[:, None, None] for part in statistics_of(statistics))
            for n in sizes:
                order, found = generator(0, "normalized"), Counter[str]()
                for _ in range(batches):
                    places = torch.randperm(len(examples), generator=order)[:n]
                    with tempfile.TemporaryDirectory() as folder:
                        inputs = (examples.inputs[places] - mean) / std
                        found[told(model, inputs, examples.labels[places] % 10, Path(folder))] += 1
                right = {"none": "nothing", "one half": "0.5", "of nobody": "range"}.get(name, name)
                false = batches - found[right] - (0 if name == "none" else found["nothing"] + found["range"])
                row: Row = {"network": model, "normalization": name, "batch": n, "batches": batches}
                row |= {"right": found[right], "range": found["range"], "nothing": found["nothing"]}
                row |= {"false": max(0, false), "seed": 0, "data": "album"}
                keep("captured/normalized", f"{model}, {name}, batch of {n}", "right", row)
                print(row, dict(found))


if __name__ == "__main__":
    command(main)
