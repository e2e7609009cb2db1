"""What recording costs: time and memory for each update of a ResNet-18, and flat memory over many rounds.

python benchmarks/recorder.py resnet18            one update of 45 MB, recorded, and recorded and looked at
python benchmarks/recorder.py rounds --rounds 100 ten clients per round of a small network, audited, disk bounded
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from seepage import Architecture, FedAvg, build
from seepage.integrations.recorder import Recorder

State = dict[str, torch.Tensor]
REPEATS, CLIENTS = 5, 10


def peak() -> float:
    """Largest memory so far, in MiB (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def trained(model: nn.Module, shape: tuple[int, ...], steps: int, size: int) -> tuple[State, State, float]:
    """Weights before and after local training, and its processor time in seconds."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer, start = torch.optim.SGD(model.parameters(), lr=0.01), time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.rand(size, *shape)), torch.arange(size) % 10).backward()
        optimizer.step()
    return before, {name: tensor.clone() for name, tensor in model.state_dict().items()}, time.process_time() - start


def timed(work: Callable[[int], object]) -> dict[str, float]:
    """Mean processor and wall time of a call, in seconds, over `REPEATS`."""
    processor, wall = time.process_time(), time.perf_counter()
    for number in range(REPEATS):
        work(number)
    spent = time.process_time() - processor, time.perf_counter() - wall
    return {"processor_s": round(spent[0] / REPEATS, 3), "wall_s": round(spent[1] / REPEATS, 3)}


def resnet18(folder: Path) -> None:
    """Recording beside a local epoch of 8 batches of 32."""
    architecture, shape = Architecture("torchvision:resnet18"), (3, 32, 32)
    before, after, spent = trained(build(architecture, shape, 10), shape, 8, 32)
    print(json.dumps({"what": "local epoch", "processor_s": round(spent, 3), "peak_mib": round(peak())}))
    for audit in ("none", "inline"):
        recorder = Recorder(
            folder / audit, architecture=architecture, input_shape=shape, num_classes=10, audit=audit,
            client=FedAvg(lr=0.01, batch_size=32), most=2**29,
        )  # fmt: skip
        size = recorder.size / 2 / 2**20
        found = timed(lambda t, r=recorder: r.record(before, after, t=t, client=0, examples=256))
        row = {"what": f"record, audit {audit}", **found, "peak_mib": round(peak()), "update_mib": round(size)}
        print(json.dumps(row))


def rounds(folder: Path, count: int) -> None:
    """Ten clients per round, all recorded and looked at, with 16 MiB of disk."""
    architecture, shape = Architecture("fc2", {"hidden": 64}), (1, 8, 8)
    before, after, _ = trained(build(architecture, shape, 10), shape, 1, 8)
    recorder = Recorder(
        folder, architecture=architecture, input_shape=shape, num_classes=10, client=FedAvg(lr=0.01),
        audit="inline", most=2**24,
    )  # fmt: skip
    marks, start = {count * part // 4 for part in range(1, 5)}, time.process_time()
    for t in range(1, count + 1):
        for client in range(CLIENTS):
            recorder.record(before, after, t=t, client=client, examples=8)
        if t in marks:
            disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
            each = (time.process_time() - start) / t / CLIENTS * 1000
            row = {"rounds": t, "peak_mib": round(peak()), "disk_mib": round(disk, 1), "processor_ms": round(each, 1)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["resnet18", "rounds"])
    parser.add_argument("--rounds", type=int, default=1000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        resnet18(Path(place)) if asked.what == "resnet18" else rounds(Path(place) / "seen", asked.rounds)
