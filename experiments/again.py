"""Are recorded numbers still made by their commands? Runs commands of results/ again and compares every row.

    python experiments/again.py --data ../shared/data --limit 300 --out again.jsonl
    python experiments/again.py --data ../shared/data --only head.py targets.py --out again.jsonl

Each command whose script and subcommand are still in the tree (`finished.toml` has the others) is run by itself, in
an empty folder that links to this checkout; files of data are looked for in the folder of `--data`. A row is the same
if its number agrees to a thousandth, or to half a dB where it is a PSNR, or if both are errors of rounding; times are
not compared. One line for each command goes to `--out`: rows that are the same, and those that differ with both
numbers. Commands in that file are not run again. A command that takes more than `--limit` seconds of a processor in
one process is stopped, and its rows until then are compared.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from common import command

from seepage.base.storage import append_line, read_lines
from seepage.papers.records import RESULTS, Record, read_file

ROOT = Path(__file__).resolve().parents[1]
TIMES = ("cpu_s", "seconds", "cpu_seconds", "ms", "solving_s", "steps_per_second")
"""Metrics that are times of a machine, and no results."""
KILLED = (152, -24)
"""Exit codes of a command that is stopped at its limit of processor time."""
CLOSE = 1e-3
"""Relative difference up to which two numbers are the same: rows keep four digits."""
CLOSE_DB = 0.5
"""The same for a PSNR or a gain in dB, which moves with the last bits of a search."""
ROUNDING = 1e-4
"""A relative error below this is rounding, whose size is that of the processor's last bits."""


def recorded(only: tuple[str, ...]) -> dict[str, list[Record]]:
    """All records of studies by their command, where its script is here (or one of `only`)."""
    finished = tomllib.loads((ROOT / "experiments" / "finished.toml").read_text("utf-8"))["commands"]
    found: dict[str, list[Record]] = defaultdict(list)
    for path in sorted((ROOT / RESULTS).glob("*/*.jsonl")):
        for record in read_file(path) if path.parent.name != "reproduce" else ():
            words = shlex.split(record.command)
            script = Path(words[1]).name if words[:1] == ["python"] and len(words) > 1 else ""
            ended = any(f"{record.command} ".startswith(f"python experiments/{one} ") for one in finished)
            here = script and not ended and (ROOT / "experiments" / script).exists()
            if here and (not only or script in only):
                found[record.command].append(record)
    return found


def keyed(records: list[Record]) -> dict[tuple[object, ...], Record]:
    """Each record by study, row, metric, seed, and how many such stood before it."""
    seen: Counter[tuple[object, ...]] = Counter()
    named = {}
    for record in records:
        key = (record.item, record.row, record.metric, *record.seeds)
        named[(*key, seen[key])] = record
        seen[key] += 1
    return named


def same(metric: str, old: float | None, new: float | None) -> bool:
    """Whether two numbers of a metric are the same."""
    if old is None or new is None:
        return old is new
    if metric == "error" and max(abs(old), abs(new)) < ROUNDING:
        return True
    close = CLOSE_DB if "psnr" in metric or metric.endswith("db") else CLOSE * max(abs(old), abs(new))
    return abs(old - new) <= close


def run_again(text: str, data: Path, limit: int) -> tuple[list[Record], str]:
    """The records that a command makes now, and the last line it printed where it fails."""
    files = {path.name: path for path in data.iterdir()}
    words = [sys.executable, *shlex.split(text)[1:]]
    words = [str(files.get(Path(word).name, word)) for word in words]
    words = [str(data) if word.endswith("shared/data") else word for word in words]
    with tempfile.TemporaryDirectory(prefix="seepage-again-") as folder:
        for name in ("experiments", "src", "tests"):
            (Path(folder) / name).symlink_to(ROOT / name)
        (Path(folder) / RESULTS).mkdir()
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        problem = ""
        try:
            subprocess.run(
                ["bash", "-c", f"ulimit -St {limit}; {shlex.join(words)}"],
                cwd=folder, env=env, capture_output=True, text=True, check=True,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1][:200]
            problem = f"over {limit} s" if error.returncode in KILLED else last
        found = [record for path in sorted((Path(folder) / RESULTS).rglob("*.jsonl")) for record in read_file(path)]
        return found, problem


def differences(old: list[Record], new: list[Record]) -> Iterator[tuple[str, str, float | None, float | None]]:
    """Row, metric and both numbers of each recorded row that is made anew and is not the same."""
    fresh = keyed(new)
    for key, record in keyed(old).items():
        if key in fresh and record.metric not in TIMES and not same(record.metric, record.value, fresh[key].value):
            yield record.row, record.metric, record.value, fresh[key].value


def main(*, data: Path, out: Path, limit: int = 300, only: tuple[str, ...] = ()) -> None:
    done = {line["command"] for line in read_lines(out)}
    for text, old in sorted(recorded(only).items()):
        if text in done:
            continue
        started = time.monotonic()
        new, problem = run_again(text, data.resolve(), limit)
        compared = keyed([record for record in old if record.metric not in TIMES])
        here = compared.keys() & keyed(new).keys()
        differing = list(differences(old, new))
        line = {"command": text, "rows": len(old), "again": len(here), "same": len(here) - len(differing)}
        append_line(out, {**line, "differ": differing, "problem": problem, "s": round(time.monotonic() - started)})
        print(json.dumps({**line, "problem": problem}), flush=True)


if __name__ == "__main__":
    command(main)
