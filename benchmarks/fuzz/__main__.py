"""Fuzzing of everything that reads a stranger's files: whatever is in them, a result or one sentence comes out.

    python benchmarks/fuzz                                    500 inputs for each reader, as in the tests
    python benchmarks/fuzz --inputs 20000 --keep FOLDER       goes on where it was ended; --jobs 2: two at a time
    python benchmarks/fuzz run scored --seed 3                some of them, other inputs
    python benchmarks/fuzz run --seed 3 --only 117            one input again, with its traceback
    python benchmarks/fuzz --inputs 20000 --keep FOLDER --rows    a row for each reader to results/safety/fuzz.jsonl

Inputs are made by seeded damage to good files. A reader runs in a process of its own with limits on memory and time,
and Python's audit events are counted: code, processes, network, writes outside of the sandbox. The exit code is 1
where anything was found.
"""

import argparse
import os
import shutil
import sys
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
warnings.simplefilter("ignore")
os.environ.setdefault("COLUMNS", "120")

import sandbox  # noqa: E402
from of_runs import make_goods  # noqa: E402
from readers import READERS  # noqa: E402

from seepage.papers.records import keep_measured  # noqa: E402


def show(one: sandbox.Counts) -> None:
    """One line for a reader, and one for each kind of crash."""
    faults = f"{one.crashes} crashes of {len(one.kinds)} kinds, {one.hangs} hangs, {one.deaths} deaths"
    rest = f"code {one.code}, processes {one.processes}, network {one.network}, writes {one.writes}"
    answers = f"{one.accepted} accepted, {one.refused} refused, {one.memory} memory"
    print(
        f"{one.reader}: {one.inputs} inputs ({answers}): {faults}; {rest}; {one.seconds:.0f} s, {one.peak_mb} MB",
        flush=True,
    )
    for kind, number in sorted(one.first.items(), key=lambda pair: pair[1]):
        print(f"    {one.kinds.get(kind, 1)} x {kind}; the first is --only {number}", flush=True)


def rows(found: list[sandbox.Counts]) -> None:
    """Keep the counts, for docs/safety.md: with one command for all readers that had as many inputs."""
    for one in found:
        names = " ".join(other.reader for other in found if other.inputs == one.inputs)
        facts = asdict(one)
        del facts["reader"], facts["kinds"], facts["first"]
        seed = facts.pop("seed")
        facts |= {"crashes": one.crashes, "crash_kinds": sorted(one.kinds), "about": READERS[one.reader].about}
        command = f"python benchmarks/fuzz {names} --inputs {one.inputs} --seed {seed}"
        keep_measured("safety/fuzz", one.reader, "bad", one.bad, seed=seed, command=command, **facts)


def main() -> int:
    """Run the readers; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=", ".join(READERS))
    parser.add_argument("--inputs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder of the counts, to go on later; default: a new one")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, help="read this input alone and show its traceback")
    parser.add_argument("--rows", action="store_true")
    asked = parser.parse_args()
    names = asked.names or list(READERS)
    shared = Path(tempfile.mkdtemp(prefix="seepage-fuzz-"))
    kept = (asked.keep or shared / "kept").resolve()
    kept.mkdir(parents=True, exist_ok=True)
    here = Path.cwd()
    try:
        make_goods(shared)
        if asked.only is not None:
            sandbox.show_one(names[0], asked.seed, asked.only, shared)
            return 0
        found = sandbox.fuzz_all(names, asked.seed, asked.inputs, kept, shared, asked.jobs, show)
    finally:
        os.chdir(here)
        if asked.only is None:
            shutil.rmtree(shared, ignore_errors=True)
    sums = sandbox.total(found)
    print(
        ", ".join(
            f"{key} {sums[key]}"
            for key in ("inputs", "crashes", "hangs", "deaths", "code", "processes", "network", "writes")
        )
    )
    if asked.rows:
        rows(found)
    return int(any(one.bad for one in found))


if __name__ == "__main__":
    sys.exit(main())
