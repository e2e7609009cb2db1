"""CPU time of the papers' tables and figures at their own size, from a few steps of each search.

    python benchmarks/paper_prices.py --data ../shared/data [--only cafe/table-2 ...] [--limit 900]

Each item runs in a process of its own as `seepage reproduce ITEM --size paper --jobs 1` does, on one data set, but
every search makes `FEW` steps at each of three places of its way, or at one where they are long, every training as
many, and CAFE's server as many rounds; the rest is counted at the time of those. All else (federations before the
attack, closed forms, scoring) runs whole. An estimate: searches that end early are counted to their end; records on
the way are not counted; the peak of memory lacks snapshots of moving weights. One line of results/papers/prices.jsonl
per item and data set: hours of one core. Items that have one are not run again. An item that takes more than `--limit`
processor seconds even so is stopped and has no line.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kept import keep_measured

from seepage.attacks import base
from seepage.audit.simulate import setting
from seepage.audit.simulate.training import Training, TrainingCheckpoint
from seepage.base.checkpoint import Resumable
from seepage.cli.reproducing import data_at_hand
from seepage.errors import SeepageError
from seepage.federation.transcript.vertical import IndexedVictim
from seepage.papers.items import find_item, list_items
from seepage.papers.records import RESULTS, read_file
from seepage.papers.run import data_name, plan, run_job

PRICES = "papers/prices"
"""The study that the prices are kept in."""
NO_CHECKPOINT = TrainingCheckpoint()
FEW = 2
"""Steps of a search that are made at each of `PLACES`; the first may be slower and counts for others only if it is ten
times `LONG`."""
LONG = 1.0
"""Seconds from which a timed step is long enough to stand for all, so that the other places are left out."""
PLACES = (1 / 6, 1 / 2, 5 / 6)
"""Where on its way, as shares of its steps: nested loops of equally many are each seen once."""


class Extrapolated:
    """Processor seconds of the steps that were left out."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.rounds = 0  # of a server that trains, which the steps of a search have counted

    def run_steps(
        self,
        search: Resumable,
        first: int,
        steps: int,
        advance: Callable[[int], float],
        note: Callable[[int, float], None],
        show: Callable[[int, float], None],
        *,
        every: int | None = None,
        ended: Callable[[], bool] = lambda: False,
    ) -> tuple[int, bool]:
        """In place of `seepage.base.checkpoint.run_steps`: the first steps, and what is noted at the last one."""
        del search, every
        value = 0.0
        if steps - first <= 3 * FEW:
            for step in range(first, steps):
                value = advance(step)
        else:
            each = []
            for share in PLACES:
                place = first + round(share * (steps - first))
                begun = time.process_time()
                value = advance(place)
                each.append(time.process_time() - begun)
                if each[-1] < 10 * LONG:  # what a first step takes beside is much of a short one
                    begun = time.process_time()
                    for step in range(place + 1, place + FEW):
                        value = advance(step)
                    each[-1] = (time.process_time() - begun) / (FEW - 1)
                if ended() or each[-1] > LONG:
                    break
            self.seconds += 0.0 if ended() else (steps - first - len(each) * FEW) * sum(each) / len(each)
        self.rounds = max(self.rounds, steps)
        note(steps, value)
        show(steps, value)
        return steps, False

    def train(self, whole: Callable[..., Any]) -> Callable[..., Any]:
        """In place of `train` of a simulated setting: the first steps."""

        def few(model: Any, state: Any, batches: Any, pool: Any, plan: Training, **given: Any) -> Any:
            if plan.steps <= 2 * FEW:
                return whole(model, state, batches, pool, plan, **given)
            given |= {"checkpoint": NO_CHECKPOINT}
            whole(model, state, batches, pool, replace(plan, steps=1), **given)
            begun = time.process_time()
            found = whole(model, state, batches, pool, replace(plan, steps=FEW), **given)
            self.seconds += (plan.steps - FEW) * (time.process_time() - begun) / FEW
            return found

        return few

    def params_at(self, whole: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
        """In place of `IndexedVictim.params_at`: rounds up to `FEW`, and each later one counted when first reached."""
        reached: dict[int, tuple[Any, int, float]] = {}  # holds the victims, so that no id is used twice

        def few(victim: Any, t: int) -> Any:
            if victim.server.optimizer == "none" or t <= FEW:
                return whole(victim, t)
            if id(victim) not in reached:
                whole(victim, 1)
                begun = time.process_time()
                whole(victim, FEW)
                reached[id(victim)] = (victim, FEW, (time.process_time() - begun) / (FEW - 1))
            _, known, each = reached[id(victim)]
            self.seconds += max(0, t - max(known, self.rounds)) * each
            reached[id(victim)] = (victim, max(t, known), each)
            return whole(victim, FEW)

        return few


def price(item: str, name: str, file: str) -> None:
    """Measure and keep the price of one item on one data set, in this process."""
    left_out = Extrapolated()
    setting.train = left_out.train(setting.train)
    base.run_steps = left_out.run_steps
    IndexedVictim.params_at = left_out.params_at(IndexedVictim.params_at)  # type: ignore[method-assign]
    begun = time.process_time()
    jobs, _ = plan([find_item(item)], "paper", given(name, file), [0], {"device": "cpu"})
    (job,) = (job for job in jobs if job.paper_data == name)
    with tempfile.TemporaryDirectory() as folder:
        records = run_job(job, "paper", out=Path(folder), jobs=1)
    failed = [record.facts.get("reason") for record in records if record.facts.get("status") == "failed"]
    if failed:
        raise SystemExit(f"an attack failed, so that the item has no price: {failed[0]}")
    run = time.process_time() - begun
    keep_measured(
        PRICES,
        item,
        "core_hours",
        (run + left_out.seconds) / 3600,
        data=data_name(job),
        command=f"python benchmarks/paper_prices.py --data ../shared/data --only {item}",
        paper_data=name,
        run_hours=run / 3600,
    )


def given(name: str, file: str) -> dict[str, Path]:
    return {name: Path(file)} if file else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--limit", type=int, default=900)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        price(*asked.one)
        return
    files = data_at_hand([str(asked.data)])
    for item in list_items().values():
        if (asked.only and item.id not in asked.only) or item.expect.kind == "constants":
            continue
        for name in item.data:
            file = str(files.get(name, ""))
            known = read_file(RESULTS / f"{PRICES}.jsonl")
            if any((record.row, record.facts["paper_data"]) == (item.id, name) for record in known):
                continue
            try:
                _, missing = plan([item], "paper", given(name, file), [0])
            except SeepageError as error:
                print(f"{item.id}: {error}")
                continue
            if f"{item.id}: {name}" in missing:
                print(f"{item.id}: {name} is not at hand")
                continue
            words = [sys.executable, __file__, "--data", str(asked.data), "--one", item.id, name, file]
            run = subprocess.run(words, preexec_fn=lambda: limit(asked.limit), check=False)
            if run.returncode:
                print(f"{item.id} on {name}: no price, it ended with {run.returncode}", flush=True)


def limit(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))


if __name__ == "__main__":
    main()
