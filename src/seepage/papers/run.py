"""Run tables and figures of the papers, and store the results beside the paper's numbers."""

import hashlib
import itertools
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seepage.audit import run as audit
from seepage.audit.folder import environment as environment_of
from seepage.audit.recipe.contents import contents, run_text
from seepage.audit.recipe.resolve import resolve_cases, run_name
from seepage.audit.row import NUMBER_NAMES, Case, Row
from seepage.audit.simulate.setting import trainings_kept_in
from seepage.base.executor import Executor
from seepage.base.progress import Doing, ProgressCallback, no_progress
from seepage.base.registry import import_dotted, metrics
from seepage.base.storage import read_json, write_json, write_whole
from seepage.errors import Problems, SeepageError
from seepage.federation.data import DATA, is_packaged
from seepage.papers.items import Item, Size
from seepage.papers.lines import Line
from seepage.papers.records import Record, keep_records, picture_of, read_records
from seepage.report.grid import write_grid


@dataclass(frozen=True, kw_only=True)
class Value:
    """A number that a function of its own made for an item that is no audit.

    Attributes:
        row: Name of the row in `[[expect.rows]]`; empty: the one row of the data.
        column: Number of the column, from 0.
        ours: The number.
        low: Lower end of its interval.
        high: Upper end.
        facts: What else a reader should know.
    """

    row: str
    column: int
    ours: float | None
    low: float | None = None
    high: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One item on one data set with one seed.

    Attributes:
        item: The table or figure.
        paper_data: The data set of the paper; empty: as the recipe says.
        data: What is used in its place: a file, or a packaged set; empty: as the recipe says.
        seed: Seeds everything.
        tables: The recipe at that size, with that data.
    """

    item: Item
    paper_data: str
    data: str
    seed: int
    tables: Mapping[str, Any]

    @property
    def lines(self) -> list[Line]:
        return [line for line in self.item.lines if line.data == self.paper_data]

    def command(self, size: Size) -> str:
        """The command that repeats these numbers, without folders of this machine."""
        words = ["seepage", "reproduce", self.item.id, "--size", size]
        if self.data not in ("", self.paper_data, self.item.stand_in.get(self.paper_data)):
            words += ["--data", f"{self.paper_data}={Path(self.data).name}"]
        words += ["--seed", str(self.seed)] if self.seed else []
        device = self.tables.get("device", "cpu")
        words += ["--device", device] if device != "cpu" or self.item.needs[size].gpu else []
        return shlex.join(words)


def plan(
    items: Sequence[Item],
    size: Size,
    given: Mapping[str, Path],
    seeds: Sequence[int],
    changes: Mapping[str, Any] | None = None,
) -> tuple[list[Job], list[str]]:
    """The jobs to run, and the items skipped because their data are missing.

    Args:
        items: Tables and figures.
        size: `small` or `paper`.
        given: Data sets at hand.
        seeds: Each is a run of its own.
        changes: Values laid over every recipe, such as a device.

    Raises:
        Problems: With every mistake in the recipes.
        SeepageError: Where nothing is left to run.
    """
    jobs, out, problems = [], [], list[str]()
    for item in items:
        for name in item.data:
            used = _find_data(item, name, size, given)
            if used is None:
                out.append(f"{item.id}: {name}")
                continue
            for seed in seeds:
                tables = {**item.at(size, used, seed, name), **(changes or {})}
                try:
                    if not item.expect.by:
                        resolve_cases(tables)
                except Problems as error:
                    problems += [f"{item.id}: {problem}" for problem in error.problems]
                jobs.append(Job(item, name, used, seed, tables))
    if problems:
        raise Problems("the recipes have mistakes:", dict.fromkeys(problems))
    if not jobs:
        missing = sorted({entry.partition(": ")[2] for entry in out})
        raise SeepageError(
            f"nothing can be run without the data {', '.join(missing)}; name them with --data NAME=FILE, or a folder "
            "of such files with --data FOLDER"
        )
    return jobs, out


def _find_data(item: Item, name: str, size: Size, given: Mapping[str, Path]) -> str | None:
    """The data for a row; None where there are none. Packaged data stand in where none of the item's are given."""
    if not name:
        return ""
    if name in given:
        return str(given[name])
    if size == "small" and name in item.stand_in:
        return None if given.keys() & set(item.data) else str(item.stand_in[name])
    return name if name in DATA else None


def run_job(
    job: Job,
    size: Size,
    *,
    out: Path,
    results: Path | None = None,
    jobs: int | None = None,
    on: Executor | None = None,
    show: ProgressCallback = no_progress,
) -> list[Record]:
    """Run one job and return its records; a finished job is read, an interrupted one is continued.

    A network is trained once for all items: `trained/` in `out` keeps it by its data, architecture, training and seed.

    Args:
        job: What to run.
        size: For the records.
        out: Folder for run folders.
        results: Folder for numbers as they come, and for the pictures of a figure that has some, where they are
            packaged ones: those of a user's own data stay in the run folder. None: for neither.
        jobs: Attacks at a time; None: one per core.
        on: Where attacks run; None: on this machine.
        show: Progress.
    """
    # What is expected names functions of this package.
    plain = {key: value for key, value in job.tables.items() if key not in ("expect", "small")}
    named = contents(plain) | contents({"data": {"use": job.data}} if job.data else {})
    used = hashlib.sha256(repr(sorted(set(named.values()))).encode()).hexdigest()[:12]
    with trainings_kept_in(out / "trained" / used):
        if job.item.expect.by:
            values, env = _by_function(job, size, named, out, results, show)
        else:
            values, env = _by_audit(job, size, out, results, jobs, on, show)
    return [_record(job, size, value, env) for value in values]


def _by_audit(
    job: Job,
    size: Size,
    out: Path,
    results: Path | None,
    jobs: int | None,
    on: Executor | None,
    show: ProgressCallback,
) -> tuple[list[Value], dict[str, Any]]:
    """The values of an audit's rows, in a run folder of its own."""
    folder = out / run_name(run_text(job.tables, resolve_cases(job.tables)), f"{job.item.id.replace('/', '-')}-{size}")
    found = audit.run(job.tables, out=folder, jobs=jobs, on=on, show=show, command=job.command(size))
    if results is not None and job.item.expect.kind == "pictures" and is_packaged(job.data):
        write_whole(picture_of(results, job.item.id, size, job.data), write_grid(found.folder).read_bytes())
    return _values(job, found.result.rows, found.result.cases), read_json(found.folder / "env.json")


def _by_function(
    job: Job, size: Size, named: Mapping[str, str], out: Path, results: Path | None, show: ProgressCallback
) -> tuple[list[Value], dict[str, Any]]:
    """The values of an item that is no audit, kept in a file of its own: a second run finds them there.

    Those of a function that makes them one after another are records as they come, where there were none: a killed run
    loses one, and nothing of an earlier one.
    """
    make = import_dotted(job.item.expect.by)
    started, cpu = time.time(), time.process_time()
    known = (job.item.expect.by, job.tables, job.data, job.seed, *([named] if named else []))
    folder = out / run_name(repr(known), f"{job.item.id.replace('/', '-')}-{size}")
    path = folder / "values.json"
    if path.exists():
        kept = read_json(path)
        return [Value(**value) for value in kept["values"]], kept["env"]
    values = []
    for value in make(job.tables, data=job.data, seed=job.seed, show=show):
        values.append(_finite(value))
        fresh = _record(job, size, values[-1], environment(_device(job)))
        if results is not None and fresh.key not in {one.key for one in read_records(results, job.item.id)}:
            keep_records(results, job.item.id, [fresh])
    spent = {"seconds": round(time.time() - started, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    env = {**environment(_device(job)), **spent}
    write_json(path, {"values": [vars(value) for value in values], "env": env})
    return values, env


def _device(job: Job) -> str:
    return str(job.tables.get("device", "cpu"))


def _finite(value: Value) -> Value:
    """The value, with None in place of numbers that JSON cannot represent (NaN or infinity)."""
    if value.ours is None or math.isfinite(value.ours):
        return value
    return replace(value, ours=None, low=None, high=None, facts={**value.facts, "reason": f"it became {value.ours}"})


Place = tuple[Line, int, str, str]
"""A number that a job is to have: its line, column, case, and attack, which is empty for a fact of the case."""


def _places(job: Job) -> Iterator[Place]:
    """Each number that a job is to have."""
    for line in job.lines:
        for column in range(len(job.item.expect.columns)):
            if line.case_at(column) not in ("", "-"):  # others are not part of this size
                yield line, column, line.case_at(column), line.attack_at(column)


def _values(job: Job, result_rows: Sequence[Row], result_cases: Sequence[Case]) -> list[Value]:
    """The numbers of an audit's rows, row by row and column by column."""
    rows = {(row.case, row.attack): row for row in result_rows}
    facts = {case.name: case for case in result_cases}
    return [
        _value(line, column, facts.get(case), rows.get((case, attack)), f"{attack} on {case}")
        for line, column, case, attack in _places(job)
    ]


def _value(line: Line, column: int, case: Case | None, row: Row | None, where: str) -> Value:
    """Our number for one place of a paper's table.

    Args:
        line: The table's row, which names the metric.
        column: The table's column.
        case: The case that was run for it; None: missing.
        row: The result row; None: missing, or the metric is a fact of the case (`case.NAME`).
        where: The place in words, for errors.
    """
    if case is None or (row is None and not line.metric.startswith("case.")):
        raise SeepageError(f"the recipe has no {where}, which [[expect.rows]] {line.name!r} names; correct the recipe")
    if row is None or line.metric.startswith("case."):
        number = getattr(case, line.metric.removeprefix("case."), None)
        return Value(row=line.name, column=column, ours=number, facts={"examples": case.accuracy_examples})
    numbers = row.numbers()
    # A metric that is known and not measured, as where its network's weights are not here, is a number that is missing.
    if line.metric not in (numbers.keys() | set(NUMBER_NAMES) | set(metrics)):
        raise SeepageError(f"a result row has no {line.metric!r}, which [[expect.rows]] {line.name!r} names")
    summary = row.scores.get(line.metric)
    low, high = (None, None) if summary is None else (summary.low, summary.high)
    beside = facts_of(row) | {"client": case.client, "batch_size": case.batch_size}
    return Value(row=line.name, column=column, ours=numbers.get(line.metric), low=low, high=high, facts=beside)


def facts_of(row: Row) -> dict[str, Any]:
    """All of a result row that stands beside its number: the honest scores next to the paper's protocol."""
    nested = {"scores", "baselines", "inner", "certified", "cost"}
    facts = row.model_dump(mode="json", exclude_none=True, exclude=nested)
    facts |= {name: one for name, one in row.numbers().items() if not name.endswith(("_low", "_high", "_n"))}
    ends = {name: (one.low, one.high) for name, one in row.scores.items() if None not in (one.low, one.high)}
    return facts | ({"intervals": ends} if ends else {})


def _record(job: Job, size: Size, value: Value, env: Mapping[str, Any]) -> Record:
    """The record of one measured number of a paper's table, with the paper's own and the environment."""
    line = next((line for line in job.lines if value.row in (line.name, "")), None)
    if line is None:
        raise SeepageError(f"{job.item.expect.by} made a row {value.row!r}, which is not in [[expect.rows]]")
    keys = ("seepage", "python", "torch", "platform", "device", "cores", "threads", "started", "peak_mb")
    return Record(
        item=job.item.id,
        size=size,
        row=line.name,
        column=value.column,
        paper_data=job.paper_data,
        data=data_name(job),
        metric=line.metric,
        paper=line.paper_at(value.column),
        value=value.ours,
        interval=None if value.low is None or value.high is None else (value.low, value.high),
        seeds={str(job.seed): value.ours},
        facts=dict(value.facts),
        made={key: env[key] for key in keys if key in env},
        command=job.command(size),
    )


@dataclass(frozen=True)
class Done:
    """An item that has been run.

    Attributes:
        item: The table or figure.
        records: Its numbers.
        failed: Why some or all are missing, or None.
    """

    item: Item
    records: tuple[Record, ...]
    failed: str | None = None


def reproduce(
    jobs: Sequence[Job],
    size: Size,
    *,
    out: Path,
    results: Path,
    workers: int | None = None,
    on: Executor | None = None,
    show: ProgressCallback = no_progress,
) -> Iterator[Done]:
    """Run jobs and keep each item's records as soon as it is done: a killed run loses one case at most.

    Args:
        jobs: From `plan`.
        size: Which size they have.
        out: Folder for run folders.
        results: Folder for records, and for pictures of packaged data.
        workers: Attacks at a time; None: one per core.
        on: Where attacks run; None: on this machine.
        show: Progress over all jobs.

    Yields:
        Every item, when all of its jobs are done. One that fails does not stop the others, nor its other data sets.
    """
    whole, before = sum(map(_weight, jobs)), 0.0
    for _, group in itertools.groupby(jobs, key=lambda job: job.item.id):
        own = list(group)
        parts: dict[str, list[list[Record]]] = {}
        failures: list[str] = []
        for job in own:

            def step(done: float, total: float, doing: Doing, job: Job = job, before: float = before) -> None:
                named = Doing(f"{job.item.id}: {doing}") if str(doing) else doing
                show(before + _weight(job) * min(1.0, done / total if total else 0.0), whole, named)

            try:
                pictures = results if job.seed == own[0].seed else None
                records = run_job(job, size, out=out, results=pictures, jobs=workers, on=on, show=step)
                parts.setdefault(job.paper_data, []).append(records)
            except SeepageError as error:
                failures.append(str(error))
            before += _weight(job)
        found = [record for seeds in parts.values() for record in over_seeds(seeds)]
        if found:
            keep_records(results, own[0].item.id, found)
        yield Done(own[0].item, tuple(found), "; ".join(dict.fromkeys(failures)) or None)


def _weight(job: Job) -> float:
    """Minutes a job is expected to take, as its share of the progress bar."""
    return max(0.1, job.item.needs["small"].total / max(1, len(job.item.data)))


def data_name(job: Job) -> str:
    """The name of a job's data in its records."""
    if job.data:
        return Path(job.data).name
    # A table of constants and a function without `[data]` use none.
    used = str(job.tables.get("data", {}).get("use", ""))
    return "no data" if job.item.expect.kind == "constants" or not used else used


def environment(device: str) -> dict[str, Any]:
    """Versions and platform for numbers that no finished audit made."""
    found = environment_of("", time.time(), device, 1)
    return {key: value for key, value in found.items() if key not in ("command", "jobs", "schema")}


SCORES = (
    "psnr",
    "psnr_nearest",
    "ssim",
    "recovered",
    "exact",
    "label_accuracy",
    "mean_color_psnr",
    "mean_color_ssim",
    "grey_psnr",
)
"""Facts of which records over several seeds hold the mean, with the seeds' own numbers under `by_seed`."""


def over_seeds(parts: Sequence[Sequence[Record]]) -> list[Record]:
    """Join records of several seeds: `_joined`, number by number."""
    if len(parts) == 1:
        return list(parts[0])
    return [_joined(records) for records in zip(*parts, strict=True)]


def _joined(records: Sequence[Record]) -> Record:
    """One record for the seeds of several: the mean, between the least and the most.

    Scores and baselines beside the number are means as well, `examples` is the sum, and `by_seed` holds each seed's
    own; the other facts are those of the first seed.
    """
    each = {seed: value for record in records for seed, value in record.seeds.items()}
    seeds = dict(sorted(each.items(), key=lambda pair: int(pair[0])))
    first = next(record for record in records if next(iter(seeds)) in record.seeds)
    numbers = [value for value in seeds.values() if value is not None]
    mean = sum(numbers) / len(numbers) if numbers else None
    ends = (min(numbers), max(numbers)) if numbers else None
    command = _over(first.command, [int(seed) for seed in seeds])
    facts = {key: fact for key, fact in first.facts.items() if key != "intervals"} | _facts_over(records, list(seeds))
    changes = {"value": mean, "interval": ends, "seeds": seeds, "command": command, "facts": facts}
    return first.model_copy(update=changes)


def _facts_over(records: Sequence[Record], seeds: Sequence[str]) -> dict[str, Any]:
    """Means of the scores over the seeds, the sum of the examples, and each seed's own scores; none where one lacks."""
    by_seed: dict[str, dict[str, float]] = {}
    for record in records:
        own = {key: record.facts[key] for key in SCORES if record.facts.get(key) is not None}
        by_seed |= record.facts.get("by_seed") or ({next(iter(record.seeds)): own} if len(record.seeds) == 1 else {})
    if not any(by_seed.values()) or set(by_seed) != set(seeds):
        return {}
    joined: dict[str, Any] = {"by_seed": {seed: by_seed[seed] for seed in seeds}}
    for key in SCORES:
        found = [scores[key] for scores in by_seed.values() if key in scores]
        if len(found) == len(seeds):
            joined[key] = round(sum(found) / len(found), 4)
    examples = records[-1].facts.get("examples")
    if isinstance(examples, int):  # every seed has as many
        joined["examples"] = examples // len(records[-1].seeds) * len(seeds)
    return joined


def _over(command: str, seeds: Sequence[int]) -> str:
    """The command of the first seed for all of them."""
    return f"{command.partition(' --seeds ')[0]} --seeds {max(seeds) - min(seeds) + 1}"
