"""Runs that are killed again and again: they go on from what is finished, and end with the numbers of a run in peace.

    python benchmarks/kills.py --kills 100             audit, federation and reproduce in turn, until so many kills
    python benchmarks/kills.py --kills 12 audit        one of them
    python benchmarks/kills.py --kills 100 --rows      rows to results/safety/kills.jsonl

Each run uses two workers (`--jobs 2`). A kill is SIGKILL at a random time, to the whole process group (a machine that
goes down), to the main process alone (out of memory), or to one worker. The same command is given again until it ends.
Then every file is compared with those of a run that nobody disturbed, with times left out. A run that was killed
`MOST` times is left in peace.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kept import keep_measured
from processes import below, group_lives, processes

MOST = 12
"""Kills of one run."""
PATIENCE = 300.0
"""Seconds that one start may take; more is a hang."""

AUDIT = """
name = "killed"
[data]
use = "digits"
size = 8
[model]
use = "fc2"
hidden = 16
[batch]
size = 2
count = 2
[[attack]]
use = "linear"
[[attack]]
use = "dlg"
steps = 12
[[attack]]
use = "inverting_gradients"
steps = 40
[grid]
"model.hidden" = [12, 16]
"""
FEDERATION = """
name = "killed"
[data]
use = "digits"
[model]
use = "fc2"
hidden = 24
[federation]
clients = 10
share = 0.3
[client]
use = "fedavg"
lr = 0.1
batch_size = 8
[batch]
size = 4
count = 2
[[attack]]
use = "linear"
[[attack]]
use = "inverting_gradients"
steps = 30
[grid]
"federation.rounds" = [0, 10, 30]
"""
COMMANDS = {
    "audit": ("audit", "audit.toml", "--out", "run", "--jobs", "2", "--quiet"),
    "federation": ("audit", "federation.toml", "--out", "run", "--jobs", "2", "--quiet"),
    "reproduce": ("reproduce", "cafe/figure-8", "--out", "run", "--results", "run-results", "--jobs", "2", "--quiet"),
}
TIMES = {"seconds", "cpu_seconds", "started", "made", "command", "run", "cores", "jobs", "threads", "cpu_s", "wall_s"}
"""Keys of times and places, which no two runs have in common."""
APART = {"progress.jsonl", "env.json", "report.html", ".lock", "manifest.json", "manifest.key"}
"""Files of times, and of digests of such files."""


@dataclass
class Seen:
    """What became of the runs of one command.

    Attributes:
        kills: Kills by what was killed.
        runs: Runs that were killed at least once.
        starts: Times that the command was given.
        identical: Runs whose files are those of a run in peace.
        half: JSON files that were cut short at a kill.
        left: Temporary files in finished runs.
        tracebacks: Starts that ended in a traceback.
        other: Further findings in words.
        lost_s: Processor seconds beyond those of a run in peace, over all runs.
    """

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    starts: int = 0
    identical: int = 0
    half: int = 0
    left: int = 0
    tracebacks: int = 0
    other: list[str] = field(default_factory=list)
    lost_s: float = 0.0


def plain(value: Any) -> Any:
    """JSON without times."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in TIMES}
    return [plain(item) for item in value] if isinstance(value, list) else value


def digests(folder: Path) -> dict[str, str]:
    """The content of every file of a run, times left out, by its path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name in APART:
            continue
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.dumps(plain(json.loads(content))).encode()
        elif path.suffix == ".jsonl":
            content = json.dumps([plain(json.loads(line)) for line in content.splitlines()]).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def start(place: Path, command: tuple[str, ...]) -> subprocess.Popen[str]:
    """Begin a command in a process group of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "seepage.cli", *command],
        cwd=place,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def prepared(shared: Path, name: str) -> Path:
    """An empty folder with the recipes."""
    place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=shared))
    (place / "audit.toml").write_text(AUDIT)
    (place / "federation.toml").write_text(FEDERATION)
    return place


def in_peace(place: Path, command: tuple[str, ...]) -> tuple[float, float]:
    """Run a command to its end; returns the seconds until its folder appears, and those from there to the end."""
    begun, appeared = time.monotonic(), 0.0
    process = start(place, command)
    while process.poll() is None:
        if not appeared and (place / "run").exists():
            appeared = time.monotonic()
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} does not end in peace: {process.communicate()[1][-2000:]}")
    return appeared - begun, time.monotonic() - appeared


def killed(process: subprocess.Popen[str], how: str, rng: random.Random) -> str | None:
    """Kill a running command, or a part of it; returns what was killed."""
    started = below(process.pid, processes())
    if how == "worker" and started:
        os.kill(rng.choice(started), signal.SIGKILL)
        return "worker"
    if how == "main":
        os.kill(process.pid, signal.SIGKILL)
        return "main"
    os.killpg(process.pid, signal.SIGKILL)
    return "group"


def one_run(
    name: str, place: Path, span: tuple[float, float], rng: random.Random, seen: Seen, room: int
) -> dict[str, str] | None:
    """Let a command run, kill it now and then, and give it again until it ends; returns its files' digests."""
    kills = 0
    while True:
        process = start(place, COMMANDS[name])
        seen.starts += 1
        spare = kills >= min(MOST, room)
        # From the first write on: before it there is nothing to lose.
        until = time.monotonic() + (PATIENCE if spare else span[0] * 0.9 + rng.random() * span[1])
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        hurt = None
        if process.poll() is None:
            if spare:
                seen.other.append("a start that did not end")
                os.killpg(process.pid, signal.SIGKILL)
                return None
            hurt = killed(process, rng.choice(("group", "main", "worker")), rng)
            seen.kills[hurt or ""] += 1
            kills += 1
        error = ended(process, seen)
        check_whole(place, seen)
        if process.returncode == 0:
            return digests(place)
        if "Traceback" in error:
            seen.tracebacks += 1
            seen.other.append(error.strip().splitlines()[-1][:150])
        if hurt is None:
            seen.other.append(f"exit code {process.returncode} unhurt: {error.strip()[-150:]}")
            if len(seen.other) > 20:
                return None


def ended(process: subprocess.Popen[str], seen: Seen) -> str:
    """Wait until a command and all that it started have ended; returns what it complained about."""
    try:
        _, error = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        seen.other.append("hangs after a worker was killed")
        os.killpg(process.pid, signal.SIGKILL)
        _, error = process.communicate()
    until = time.monotonic() + 20
    while time.monotonic() < until and group_lives(process.pid):
        time.sleep(0.05)
    if group_lives(process.pid):
        seen.other.append("workers outlive the main process by 20 s")
        os.killpg(process.pid, signal.SIGKILL)
    return error


def check_whole(place: Path, seen: Seen) -> None:
    """Count JSON files that are cut short. Lines may be: their last one is dropped when they are read."""
    for path in place.rglob("*.json"):
        try:
            json.loads(path.read_bytes())
        except ValueError:
            seen.half += 1


def kill_runs(name: str, kills: int, seed: int, shared: Path) -> Seen:
    """Kill a command's runs until there were so many kills."""
    rng, seen = random.Random(f"{name}/{seed}"), Seen()
    peace = prepared(shared, name)
    span = in_peace(peace, COMMANDS[name])
    wanted = digests(peace)
    print(
        f"{name}: {span[0]:.1f} s until its folder is there, {span[1]:.1f} s from there; {len(wanted)} files",
        flush=True,
    )
    while sum(seen.kills.values()) < kills:
        place, before = prepared(shared, name), sum(seen.kills.values())
        found = one_run(name, place, span, rng, seen, kills - before)
        seen.runs += sum(seen.kills.values()) > before
        if found is not None:
            temporary = [path for path in found if ".writing-" in path or "-checkpoint" in path]
            seen.left += len(temporary)
            same = found == wanted
            seen.identical += same and sum(seen.kills.values()) > before
            if not same:
                odd = sorted({path for path in {*found, *wanted} if found.get(path) != wanted.get(path)})
                seen.other.append(f"differs in {', '.join(odd[:20])}")
        shutil.rmtree(place, ignore_errors=True)
        total = sum(seen.kills.values())
        print(f"{name}: {total} kills {dict(seen.kills)} in {seen.runs} runs, {seen.identical} identical", flush=True)
    return seen


def main() -> int:
    """Returns 1 where a run did not come back as it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=", ".join(COMMANDS))
    parser.add_argument("--kills", type=int, default=100, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", action="store_true")
    asked = parser.parse_args()
    names = asked.names or list(COMMANDS)
    shared, bad = Path(tempfile.mkdtemp(prefix="seepage-kills-")), False
    try:
        for place, name in enumerate(names):
            kills = asked.kills // len(names) + (place < asked.kills % len(names))
            seen = kill_runs(name, kills, asked.seed, shared)
            wrong = seen.runs - seen.identical + seen.half + seen.left + seen.tracebacks + len(seen.other)
            bad = bad or wrong > 0
            for words, times in Counter(seen.other).items():
                print(f"    {times} x {words}", flush=True)
            facts = {
                "kills": sum(seen.kills.values()),
                **{f"of_{how}": seen.kills[how] for how in ("group", "main", "worker")},
            }
            facts |= {
                "runs": seen.runs,
                "starts": seen.starts,
                "half": seen.half,
                "left": seen.left,
                "tracebacks": seen.tracebacks,
            }
            if asked.rows:
                keep_measured(
                    "safety/kills",
                    name,
                    "identical",
                    seen.identical,
                    seed=asked.seed,
                    command=" ".join(
                        [f"python benchmarks/kills.py --kills {asked.kills} --seed {asked.seed}", *asked.names]
                    ),
                    findings=sorted(set(seen.other)),
                    **facts,
                )
    finally:
        shutil.rmtree(shared, ignore_errors=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
