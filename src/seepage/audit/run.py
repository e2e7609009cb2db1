"""Run a recipe into a run folder. The only place that wires data, models, clients, attacks and metrics together.

RUN/  recipe.toml  env.json                fully resolved: `seepage audit RUN/recipe.toml` repeats the run
observed/[CELL/]                     all an attacker may read
private/[CELL/]                      the truth and what only the audit knows
attacks/[CELL/]ATTACK/000000.*       raw outcomes; a run resumes from what exists
reconstructions/[CELL/]ATTACK.*      aligned with the truth, for the report
tune/                                with [tune]: a run of its own, on batches that are not scored
progress.jsonl  scores.jsonl  flags.json  exposure.json  result.json
"""

import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from seepage.attacks import ATTACKS
from seepage.audit.attack import Source, attack_cells, attack_names, own_source
from seepage.audit.bounded import bound_cells
from seepage.audit.measured import measure_cells
from seepage.audit.record import record_cells
from seepage.audit.row import Cell, Result, Row, TunedRow
from seepage.audit.summary import summarize, summarize_attack
from seepage.audit.tune import TUNING, chosen_options, tuning_tables, with_options
from seepage.core.executor import Executor, threads_for
from seepage.core.lock import LOCK, locked
from seepage.core.manifest import refuse_changed
from seepage.core.progress import ProgressCallback, no_progress
from seepage.core.schema import parse
from seepage.core.storage import (
    LARGEST_JSON,
    SCHEMA,
    TEMPORARY,
    check_regular,
    check_schema,
    check_space,
    check_whole,
    read_json,
    refuse_links,
    sweep,
    write_json,
    write_whole,
)
from seepage.errors import SeepageError
from seepage.recipe.case import Recipe, Scoring
from seepage.recipe.contents import MARK, contents, run_text, split_text
from seepage.recipe.overrides import change
from seepage.recipe.parts import seed_problems
from seepage.recipe.places import kind_of
from seepage.recipe.resolve import cells, run_name
from seepage.recipe.trust import refuse_code
from seepage.registry import Spec
from seepage.signatures import bind
from seepage.transcript.foreign import read_facts
from seepage.transcript.recorded import list_transcripts, open_transcript
from seepage.types import Architecture, Transcript

MIN_FREE_BYTES = 64 * 2**20
"""Bytes that must be free before a run starts."""

STALE_SECONDS = 3600.0
"""Age at which a file under a temporary name is of a killed writer, where the run is finished and pages are written."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: The run folder.
        result: What it found: the content of `result.json`.
        fresh: Whether this call computed it; False: the folder held the finished run already.
    """

    folder: Path
    result: Result
    fresh: bool


def run(
    tables: Mapping[str, Any],
    *,
    out: Path | None = None,
    jobs: int | None = None,
    on: Executor | None = None,
    show: ProgressCallback = no_progress,
    command: str = "",
    retry_failed: bool = False,
) -> Run:
    """Audit: record every cell of a recipe, run every attack on it, score, and write the run folder.

    Args:
        tables: A recipe's tables (see `recipe`).
        out: The run folder; None: `runs/NAME-HASH`. A finished run of the same recipe there is returned unchanged,
            an unfinished one is continued.
        jobs: Number of attacks that run in parallel; None: one per core.
        on: Executor that runs the attacks, such as `seepage.integrations.ray.cluster()`; None: on this machine.
        show: Called with progress messages.
        command: The command line, stored with the run.
        retry_failed: Whether what failed in a finished run is run again.

    Raises:
        SeepageError: For mistakes in the recipe or the data, and where the folder holds another run.
    """
    recipes = cells(tables)
    text = run_text(tables, recipes)
    folder = out or Path("runs") / run_name(text, _name_of(recipes[0]))
    if claim(folder, "recipe.toml", text) and not (retry_failed and _failures(folder)):
        return Run(folder, _read_result(folder), fresh=False)
    sweep_tables = None if recipes[0].tune is None else tuning_tables(tables, recipes)
    if sweep_tables is not None:
        cells(sweep_tables)  # a value that an attack does not take is said before anything is written
    for device in {recipe.device for recipe in recipes}:
        check_device(device)
    started = time.time()
    check_space(folder, MIN_FREE_BYTES)
    with locked(folder) as made:
        finished = claim(folder, "recipe.toml", text, sweeps=True)  # by another process, meanwhile
        if finished and not (retry_failed and forget_failures(folder)):
            return Run(folder, _read_result(folder), fresh=False)
        with undone_on_mistake(made):
            write_whole(folder / "recipe.toml", text)
            tuned: list[TunedRow] = []
            if sweep_tables is not None:
                tried = run(sweep_tables, out=folder / TUNING, jobs=jobs, on=on, show=show, command=command)
                tuned = chosen_options(tables, recipes, tried.result)
                recipes = cells(with_options(tables, tuned))
            record_cells(recipes, folder, show)
        sources = [own_source(recipe, recipes, folder) for recipe in recipes]
        plan = attack_cells(sources, recipes, folder, jobs, show, on=on)
        bound_cells(sources, recipes, show)
        measure_cells(sources, recipes, folder, show)
        found = environment(command, started, recipes[0].device, plan.jobs)
        write_json(folder / "env.json", found | {"threads": plan.threads})
        return Run(folder, summarize(sources, recipes, folder, show, tuned), fresh=True)


def run_attack(
    tables: Mapping[str, Any],
    cell: str,
    attack: str,
    *,
    out: Path,
    show: ProgressCallback = no_progress,
) -> tuple[Cell, Row]:
    """Run one attack on one cell of a recipe, in the folder of the whole run, which `run` ends later.

    Everything it needs is recorded first. Interrupted, it goes on from its checkpoint when called again.

    Args:
        tables: A recipe's tables.
        cell: Name of the cell.
        attack: Name of the attack (see `attack_names`).
        out: The run folder.
        show: Called with progress messages.

    Returns:
        The cell's facts and the attack's row.

    Raises:
        SeepageError: For mistakes in the recipe or the data, where the folder holds another run, and for a cell or an
            attack that the recipe does not have.
        KeyboardInterrupt: After Ctrl-C.
    """
    recipes = cells(tables)
    recipe = next((recipe for recipe in recipes if recipe.cell == cell), None)
    if recipe is None or attack not in attack_names(recipe.attack):
        raise SeepageError(f"the recipe has no {attack} on {cell}; name an attack and a cell that it has")
    if recipe.tune is not None:
        raise SeepageError("a recipe with [tune] is run whole; use seepage audit, or name the options it chose")
    text = run_text(tables, recipes)
    if claim(out, "recipe.toml", text):
        result = _read_result(out)
        facts = next(one for one in result.cells if one.name == cell)
        return facts, next(row for row in result.rows if (row.cell, row.attack) == (cell, attack))
    check_device(recipe.device)
    check_space(out, MIN_FREE_BYTES)
    with locked(out) as made:
        claim(out, "recipe.toml", text, sweeps=True)
        with undone_on_mistake(made):
            write_whole(out / "recipe.toml", text)
            record_cells(recipes, out, show)
        source = own_source(recipe, recipes, out)
        attack_cells([source], [recipe], out, 1, show, only=attack)
        return summarize_attack(source, recipe, out, attack)


def forget_failures(folder: Path) -> int:
    """Remove what failed in a finished run, and its result, so that only that is run again; returns how much failed.

    Failed are attacks and membership tests that ended in an error, and cells that could not be recorded. Whatever does
    not apply stays: it would not apply again.
    """
    failed = _failures(folder)
    if failed:
        # First the result: a run that is killed in between is an unfinished one, and goes on.
        (folder / "result.json").unlink()
        for path in failed:
            path.with_suffix(".safetensors").unlink(missing_ok=True)
            path.unlink()
    return len(failed)


def _failures(folder: Path) -> list[Path]:
    refuse_changed(folder)
    failed = [path for path in _outcomes(folder) if read_json(path).get("status") in ("error", "interrupted")]
    return failed + [path for path in folder.glob("private/**/cell.json") if "skipped" in read_json(path)]


def _outcomes(folder: Path) -> list[Path]:
    return [path for part in ("attacks", "membership") for path in sorted(folder.glob(f"{part}/**/*.json"))]


def _name_of(recipe: Recipe) -> str:
    """The name of a run: that of its recipe, and the data set where it is not the packaged album."""
    data = recipe.data.use
    return (
        recipe.name if data == "album" else f"{recipe.name}-{Path(data).stem if recipe.score.names else kind_of(data)}"
    )


def claim(folder: Path, name: str, text: str, beside: Collection[str] = (), *, sweeps: bool = False) -> bool:
    """Check that a folder is free for a run, or belongs to it already; returns whether the run there is finished.

    Args:
        folder: The run folder.
        name: Name of the file that identifies the run, such as `recipe.toml`.
        text: Content that the file must have.
        beside: Further entries that are allowed in a folder without that file.
        sweeps: Whether to remove what a killed writer left; only while the folder is `locked`.

    Raises:
        SeepageError: Where the folder holds something else, or a link that leads out of it.
    """
    if folder.exists() and not folder.is_dir():
        raise SeepageError(f"{folder} is a file; choose another folder with --out")
    refuse_links(folder)
    finished = (folder / "result.json").exists()
    if (folder / name).exists():
        found = (folder / name).read_text(encoding="utf-8", errors="replace")
        if found != text:
            state = "a finished" if finished else "an unfinished"
            raise SeepageError(f"{folder} holds {state} run of {_other(found, text)}; choose another folder with --out")
        if sweeps or finished:
            sweep(folder, older=STALE_SECONDS if finished else 0.0)
        return finished
    found_names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if {one for one in found_names if not one.startswith((TEMPORARY, LOCK))} - set(beside):
        raise SeepageError(f"{folder} is not empty and holds no run of this; choose another folder with --out")
    if sweeps:  # what was killed in its very first write
        sweep(folder)
    return False


def _other(found: str, text: str) -> str:
    """What else a folder holds a run of: another recipe, or the same one on things that have changed since."""
    (before, said), (now, says) = split_text(found), split_text(text)
    if before != now:
        return "something else"
    changed = sorted({line.removeprefix(MARK).rpartition(": ")[0] for line in set(said) ^ set(says)})
    return f"the same recipe, made when {' and '.join(changed)[:200]} had other content"


@contextmanager
def undone_on_mistake(made: Path | None) -> Iterator[None]:
    """Remove a folder that was made for a run, as `locked` says, if the `with` block raises. None: nothing was."""
    try:
        yield
    except SeepageError:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        raise


def check_device(device: str) -> None:
    """Raise unless torch can use the device here."""
    try:
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SeepageError(f"the device {device!r} cannot be used here ({reason}); use --device cpu") from error


def environment(command: str, started: float, device: str, jobs: int) -> dict[str, Any]:
    """Versions, platform, device and command of a run."""
    return {
        "schema": SCHEMA,
        "seepage": version("seepage"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device,
        "cores": os.cpu_count(),
        "jobs": jobs,
        "threads": threads_for(jobs, device),
        "command": command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 1),
    }


# --- the parts by themselves -------------------------------------------------------------------------------------


def record_only(tables: Mapping[str, Any], *, out: Path | None = None, show: ProgressCallback = no_progress) -> Path:
    """Write `observed/` and `private/` of a recipe and nothing more; returns the folder."""
    recipes = cells(tables)
    text = run_text(tables, recipes)
    folder = out or Path("runs") / run_name(text, f"{_name_of(recipes[0])}-recorded")
    claim(folder, "recipe.toml", text)
    for device in {recipe.device for recipe in recipes}:
        check_device(device)
    check_space(folder, MIN_FREE_BYTES)
    with locked(folder) as made:
        claim(folder, "recipe.toml", text, sweeps=True)
        with undone_on_mistake(made):
            write_whole(folder / "recipe.toml", text)
            record_cells(recipes, folder, show, keep=sys.maxsize)
    return folder


@dataclass(frozen=True, kw_only=True)
class AttackRequest:
    """The attacks to run on recorded or captured updates, and where to write the run.

    Attributes:
        attacks: Attack tables, each with `use` and options.
        seed: Seeds the attacks.
        device: Where to attack.
        out: Run folder; None: `runs/attack-HASH`.
        jobs: Number of attacks that run in parallel; None: one per core.
        on: Executor that runs the attacks; None: on this machine.
        show: Called with progress messages.
        command: The command line, stored with the run.
        trust: Whether to execute model code that the folder names; only for folders from a trusted source.
        tell: Called with what to know before the attacks begin.
    """

    attacks: Sequence[Mapping[str, Any]]
    seed: int = 0
    device: str = "cpu"
    out: Path | None = None
    jobs: int | None = None
    on: Executor | None = None
    show: ProgressCallback = no_progress
    command: str = ""
    trust: bool = False
    tell: Callable[[str], None] = lambda _: None

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The attacks."""
        return tuple(map(Spec.of, self.attacks))

    def check(self) -> None:
        """Raise `SeepageError` for a device that cannot be used, unknown attacks and options that do not fit them."""
        check_device(self.device)
        for problem in seed_problems(self.seed, "--seed"):
            raise SeepageError(f"{problem}; give a smaller one")
        for spec in self.specs:
            ATTACKS.build(spec)


def attack_only(
    observed: Path,
    request: AttackRequest,
    *,
    model: Architecture | None = None,
    batch_size: int | None = None,
    beside: Collection[str] = (),
    sizes: Mapping[str, tuple[int, str]] | None = None,
) -> Run:
    """Attack recorded updates without a truth.

    Args:
        observed: An `observed/` folder or one with several below it.
        request: The attacks.
        model: Use this model instead of the recorded one.
        batch_size: Batch size to use where the recording states none.
        beside: Entries that the run folder may contain before the run.
        sizes: Inferred batch sizes, each with its source, by the name of the folder that has none.

    Raises:
        SeepageError: For unknown attacks, a folder that is damaged anywhere, and where `out` holds another run.
    """
    started = time.time()
    request.check()
    recorded = RecordedRequest(
        observed=str(observed),
        content="",
        attacks=[dict(table) for table in request.attacks],
        seed=request.seed,
        model=None if model is None else {"use": model.use, "options": dict(model.options)},
        batch_size=batch_size,
        sizes={name: list(size) for name, size in (sizes or {}).items()} or None,
        contents=request_contents(request, model, observed) or None,
    )
    sources = _foreign_sources(recorded, trust=request.trust)
    for source in sources:
        # A damaged folder is refused before anything is written, and a file of absurd size before it is hashed.
        _read_through(source.open("cpu"))
    recorded = replace(recorded, content=fingerprint([source.observed for source in sources]))
    text = recorded.text
    folder = request.out or Path("runs") / run_name(text, "attack")
    if claim(folder, "attack.json", text, beside):
        return Run(folder, _read_result(folder), fresh=False)
    check_space(folder, MIN_FREE_BYTES)
    recipes = [
        Recipe(name="attack", seed=request.seed, device=request.device, attack=request.specs, cell=source.name)
        for source in sources
    ]
    with locked(folder):
        if claim(folder, "attack.json", text, beside, sweeps=True):  # by another process, meanwhile
            return Run(folder, _read_result(folder), fresh=False)
        write_whole(folder / "attack.json", text)
        plan = attack_cells(sources, recipes, folder, request.jobs, request.show, on=request.on)
        found = environment(request.command, started, request.device, plan.jobs)
        write_json(folder / "env.json", found | {"threads": plan.threads})
        return Run(folder, summarize(sources, recipes, folder, request.show), fresh=True)


@dataclass(frozen=True, kw_only=True)
class RecordedRequest:
    """The arguments of `attack_only`, as stored in `attack.json`."""

    observed: str
    content: str
    attacks: list[dict[str, Any]]
    seed: int
    model: dict[str, Any] | None
    batch_size: int | None
    sizes: dict[str, Any] | None = None
    contents: dict[str, str] | None = None

    @property
    def text(self) -> str:
        """As JSON without default values, so that names of runs do not change when an argument is added."""
        table = {name: value for name, value in asdict(self).items() if name not in ("sizes", "contents") or value}
        return json.dumps({"schema": SCHEMA, **table}, indent=2) + "\n"

    def size_of(self, folder: str) -> tuple[int | None, str | None]:
        """The batch size of a folder that states none, and the source of an inferred one."""
        found = (self.sizes or {}).get(folder) if self.batch_size is None else None
        if isinstance(found, list) and len(found) == 2 and type(found[0]) is int and isinstance(found[1], str):
            return found[0], found[1]
        return self.batch_size, None

    def parts(self) -> tuple[Spec, ...]:
        return tuple(map(Spec.of, self.attacks))

    def architecture(self) -> Architecture | None:
        return None if self.model is None else Architecture(str(self.model.get("use")), self.model.get("options", {}))


def _read_request(path: Path, trust: bool) -> RecordedRequest:
    """Read `attack.json`. Code that it names is executed only if `trust` is set, since the file may be foreign."""
    record = read_json(path)
    check_schema(record, path)
    known = {name: record[name] for name in RecordedRequest.__dataclass_fields__ if name in record}
    bind(RecordedRequest, known, str(path))
    for problem in seed_problems(known["seed"], "its seed"):
        raise SeepageError(f"{path} is damaged: {problem}; attack again")
    if not trust:
        refuse_code({"attack": known.get("attacks"), "model": known.get("model")}, str(path))
    return RecordedRequest(**known)


def _foreign_sources(recorded: RecordedRequest, truth: Path | None = None, *, trust: bool) -> list[Source]:
    found = list_transcripts(Path(recorded.observed))
    names = [folder.name for folder in found]
    if len(found) == 1:
        own = found[0].resolve().name
        names = ["cell" if own in ("", "observed") else own]
    sizes = [recorded.size_of(place.name) for place in found]
    return [
        Source(name, place, _truth_of(name, truth), recorded.architecture(), size, trust, inferred=said)
        for name, place, (size, said) in zip(names, found, sizes, strict=True)
    ]


def _truth_of(name: str, truth: Path | None) -> Path | None:
    if truth is None or (truth / "truth.safetensors").exists():
        return truth
    # A run of several cells has one folder per cell; anything else is a data file or a folder of images.
    return truth / name if (truth / name).is_dir() or not truth.exists() else truth


def score_run(folder: Path, truth: Path | None, settings: Sequence[str], *, trust: bool = False) -> Run:
    """Score a run of `attack_only` against the truth, or show an audit's scores.

    Args:
        folder: The run folder.
        truth: A `private/` folder, with one folder per cell where the run has several; None shows existing scores.
        settings: `score.KEY=VALUE` thresholds.
        trust: Whether to execute code that the run folder names; only for folders from a trusted source.

    Raises:
        SeepageError: For an audit's folder, which is scored already, and a truth that does not belong to the run.
    """
    refuse_links(folder)
    result = _read_result(folder)
    if truth is None:
        if settings:
            raise SeepageError("--set changes thresholds only together with --truth FOLDER; add it")
        return Run(folder, result, fresh=False)
    if not (folder / "attack.json").exists():
        raise SeepageError(f"{folder} is a finished audit and is never rewritten; audit again with other --set score.…")
    recorded = _read_request(folder / "attack.json", trust)
    if not all(setting.strip().startswith("score.") for setting in settings):
        raise SeepageError("scoring takes --set score.KEY=VALUE only, such as --set score.exact_db=45")
    chosen = change({}, settings).get("score", {})
    bind(Scoring, chosen, "[score]")
    scoring, parts = Scoring(**chosen), recorded.parts()
    sources = _foreign_sources(recorded, truth, trust=trust)
    if fingerprint([source.observed for source in sources]) != recorded.content:
        raise SeepageError(f"{recorded.observed} has changed since {folder} was made; attack it again")
    recipes = [
        Recipe(name="attack", seed=recorded.seed, attack=parts, cell=source.name, score=scoring) for source in sources
    ]
    refuse_changed(folder)  # a new manifest must not vouch for what somebody else wrote
    return Run(folder, summarize(sources, recipes, folder), fresh=True)


def request_contents(
    request: AttackRequest, model: Architecture | None, observed: Path | None = None
) -> dict[str, str]:
    """A digest of each file and module that a request names: weights of attacks, code of models.

    Args:
        request: The request.
        model: The model that it names.
        observed: The recording, whose models count where none is named and its code is trusted.
    """
    models = [] if model is None else [model]
    if model is None and observed is not None and request.trust:
        models = [read_facts(place).named for place in list_transcripts(observed)]
    own = [{"use": one.use, **one.options} for one in models]
    return contents({"attack": [dict(table) for table in request.attacks], "model": own})


def fingerprint(folders: Sequence[Path]) -> str:
    """A digest of the content of recorded folders, so that changed files count as another recording.

    Files that no recording has, which are not read either, do not count: a stranger's may be terabytes of nothing.

    Raises:
        SeepageError: For tensors that are less, or more, than their file's head says.
    """
    digest = hashlib.sha256()
    for folder in folders:
        for file in _files_of(folder):
            digest.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def _files_of(folder: Path) -> list[Path]:
    """The files of a recording, as far as they are there; those of a damaged description are the description."""
    named = [folder / "knowledge.json"]
    check_regular(named[0], LARGEST_JSON)
    with suppress(SeepageError):
        facts = read_facts(folder)
        rounds = sorted((folder / "rounds").glob("*.safetensors"))
        own = [file for file in rounds if file.stem.isdecimal() and int(file.stem) < facts.rounds]
        named += [folder / "auxiliary.safetensors", folder / "model.safetensors", *own]
    found = [file for file in named if file.is_file()]
    for file in found[1:]:
        check_whole(file)
    return found


def _read_through(transcript: Transcript) -> None:
    """Read every round's update once, so that damaged files are found before any attack runs."""
    for t in range(len(transcript)):
        transcript[t].gradient(transcript.knowledge.client)


def _read_result(folder: Path) -> Result:
    path = folder / "result.json"
    refuse_changed(folder, path.name)
    found = read_json(path)
    check_schema(found, path)
    return parse(Result, found, str(path))


def validate_folder(folder: Path) -> list[str]:
    """Read all rounds of every transcript at or below a folder; returns one line per transcript."""
    lines = []
    for place in list_transcripts(folder):
        transcript = open_transcript(place)
        _read_through(transcript)
        use = transcript.knowledge.architecture.use if transcript.knowledge.architecture else "?"
        lines.append(f"ok: {place}: {len(transcript)} rounds of {use}, inputs {transcript.knowledge.input_shape}")
    return lines
