"""What recording costs: time and memory beside a round of a ResNet-18, and flat memory over many rounds.

    python benchmarks/recorder.py resnet18 [--examples 5000]  one client's round, its update recorded, and looked at
    python benchmarks/recorder.py rounds [--rounds 1000]      ten clients per round of a small network, audited

Each row goes to results/loop/recorder.jsonl with its command. Memory is what a call takes at its peak beyond what was
there before it (Linux with glibc: free memory is given back and the peak set back first), in MiB and in copies of the
update. Times are means over `REPEATS` calls, of the processor on one thread and of the clock; the share is that of the
processor's time.
"""

import argparse
import ctypes
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import Spent, memory, reset_peak, spent
from kept import keep_measured
from torch import nn

from seepage import Architecture, FedAvg, build
from seepage.recorder.recorder import Recorder

State = dict[str, torch.Tensor]
REPEATS, CLIENTS, SIZE = 5, 10, 32


def measured(work: Callable[[int], object]) -> dict[str, float]:
    """Mean processor and wall time of a call in seconds, and the most memory it took, after one call to warm up."""
    work(0)
    taken, most = list[Spent](), list[float]()
    for number in range(1, REPEATS + 1):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before would be taken again unseen
        before = memory("VmRSS")
        reset_peak()
        taken.append(spent(lambda number=number: work(number)))
        most.append(memory() - before)
    wall, processor = (sum(times) / REPEATS for times in zip(*taken, strict=True))
    return {"processor_s": round(processor, 3), "wall_s": round(wall, 3), "more_mib": round(max(most), 1)}


def trained(model: nn.Module, shape: tuple[int, ...], examples: int) -> tuple[State, State, dict[str, float]]:
    """Weights before and after a local epoch, and its processor and wall time in seconds."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def epoch() -> None:
        for _ in range(-(-examples // SIZE)):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.rand(SIZE, *shape)), torch.arange(SIZE) % 10).backward()
            optimizer.step()

    wall, processor = spent(epoch)
    after = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return before, after, {"processor_s": round(processor, 3), "wall_s": round(wall, 3)}


def resnet18(folder: Path, examples: int) -> None:
    """Recording beside a local epoch of one client."""
    architecture, shape = Architecture("torchvision:resnet18"), (3, 32, 32)
    before, after, epoch = trained(build(architecture, shape, 10), shape, examples)
    write({"what": "local epoch", "examples": examples, **epoch})
    for audit in ("none", "inline"):
        recorder = Recorder(
            folder / audit, architecture=architecture, input_shape=shape, num_classes=10, audit=audit,
            client=FedAvg(lr=0.01, batch_size=SIZE), most=2**29,
        )  # fmt: skip
        size = sum(p.numel() * p.element_size() for p in build(architecture, shape, 10).parameters()) / 2**20
        found = measured(lambda t, r=recorder: r.record(before, after, t=t, client=0, examples=examples))
        share = {
            "copies": round(found["more_mib"] / size, 2),
            "share_of_round": round(found["processor_s"] / epoch["processor_s"], 4),
        }
        write({"what": "record", "audit": audit, "update_mib": round(size, 1), "examples": examples, **found, **share})


def rounds(folder: Path, count: int) -> None:
    """Ten clients per round, all recorded and looked at, with 16 MiB of disk: a row at each twentieth of the way."""
    architecture, shape = Architecture("fc2", {"hidden": 64}), (1, 8, 8)
    before, after, _ = trained(build(architecture, shape, 10), shape, 8)
    recorder = Recorder(
        folder, architecture=architecture, input_shape=shape, num_classes=10, client=FedAvg(lr=0.01),
        audit="inline", most=2**24,
    )  # fmt: skip
    marks, start = {max(1, count * part // 20) for part in range(1, 21)}, time.process_time()
    for t in range(1, count + 1):
        for client in range(CLIENTS):
            recorder.record(before, after, t=t, client=client, examples=8)
        if t in marks:
            disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
            each = (time.process_time() - start) / t / CLIENTS * 1000
            now = {"rss_mib": round(memory("VmRSS"), 1), "peak_mib": round(memory("VmHWM"), 1)}
            row = {"what": "rounds", "rounds": t, "clients": CLIENTS, "most": recorder.most, **now}
            write({**row, "disk_mib": round(disk, 1), "processor_ms": round(each, 1)})


def write(row: Mapping[str, object]) -> None:
    """One record: the time or the memory that a row is about, and the rest beside it."""
    metric = next(key for key in ("processor_s", "processor_ms") if key in row)
    name = ", ".join(f"{key} {row[key]}" for key in ("what", "rounds", "clients", "audit") if key in row)
    rest = {key: value for key, value in row.items() if key != metric}
    keep_measured("loop/recorder", name, metric, row[metric], **rest)  # type: ignore[arg-type]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["resnet18", "rounds"])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--examples", type=int, default=5000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        resnet18(Path(place), asked.examples) if asked.what == "resnet18" else rounds(
            Path(place) / "seen", asked.rounds
        )
