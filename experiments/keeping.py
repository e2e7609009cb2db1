"""How a script of `experiments/` or `benchmarks/`, or a test that counts, keeps a number under `results/`."""

import math
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seepage.base.storage import append_line
from seepage.papers.records import RESULTS, Record


def keep_measured(
    study: str,
    row: str,
    metric: str,
    value: float | None,
    *,
    seed: int | None = None,
    interval: Sequence[float] | None = None,
    data: str = "",
    results: Path = RESULTS,
    command: str | None = None,
    **facts: Any,
) -> Record:
    """Add one line to a study's file and show it: how every script of `experiments/` and `benchmarks/` keeps a number.

    Args:
        study: `cpa/unmix`; the line goes to `RESULTS/cpa/unmix.jsonl`.
        row: What was measured.
        metric: What the number is.
        value: The number, or None.
        seed: The seed it is of, where chance is in it.
        interval: Its lower and upper end.
        data: The data set that was used.
        results: The folder of all results.
        command: What made it; None: the command of this process.
        facts: What stands beside the number. Numbers are kept to four digits.
    """
    value, rounded = _short(value), {key: _short(fact) for key, fact in facts.items()}
    made = {"torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads()}
    # KiB on Linux: the peak of the process so far, which is what a machine must have.
    made["peak_mb"] = peak_mb()
    record = Record(
        item=study,
        row=row,
        metric=metric,
        value=value,
        interval=None if interval is None else (interval[0], interval[1]),
        seeds={} if seed is None else {str(seed): value},
        facts=rounded,
        data=data,
        command=command or own_command(),
        made=made,
    )
    path = results / f"{study}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, record.line())
    print(f"{study}: {row}: {metric} {value}", flush=True)
    return record


def _short(fact: Any) -> Any:
    """A number with four significant digits; None if JSON cannot represent it (NaN or infinity).

    >>> _short(0.123456), _short(12), _short([1.00001, "x", float("inf")])
    (0.1235, 12, [1.0, 'x', None])
    """
    if isinstance(fact, float):
        return float(f"{fact:.4g}") if math.isfinite(fact) else None
    return [_short(one) for one in fact] if isinstance(fact, list) else fact


def own_command() -> str:
    """The command of this process, quoted for a shell, without folders of this machine."""
    script = Path(sys.argv[0])
    words = [f"{script.parent.name}/{script.name}", *sys.argv[1:]]
    return shlex.join(["python", *(Path(word).name if word.startswith("/") else word for word in words)])


def peak_mb() -> int | None:
    """The most memory that this process had so far, in MiB; None where the system does not say (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB, on macOS in bytes
    return int(most) // (2**20 if sys.platform == "darwin" else 2**10)
