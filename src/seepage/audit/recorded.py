"""Attack, score and validate updates that were recorded or captured, without a recipe: the run folder of `attack`."""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seepage.attacks import ATTACKS
from seepage.audit.attack import Source, attack_cases
from seepage.audit.folder import MIN_FREE_BYTES, Run, check_device, claim, read_result, take, write_environment
from seepage.audit.recipe.case import Recipe, Scoring
from seepage.audit.recipe.contents import contents
from seepage.audit.recipe.files import OF_TEXT
from seepage.audit.recipe.overrides import change
from seepage.audit.recipe.parts import seed_problems
from seepage.audit.recipe.resolve import run_name
from seepage.audit.recipe.trust import refuse_code
from seepage.audit.retry import reopened, unfinished
from seepage.audit.summary import looks_of, summarize
from seepage.base.adapters import adapted_layers
from seepage.base.clock import check_minutes, deadline
from seepage.base.executor import Executor
from seepage.base.hashing import Hasher
from seepage.base.lock import held, locked
from seepage.base.manifest import RECORDED_FILES, JudgedFile, digest_of, refuse_changed
from seepage.base.nn import vocabulary_of
from seepage.base.progress import ProgressCallback, no_progress
from seepage.base.registry import Spec
from seepage.base.schema import JsonRecord, parse, parse_all
from seepage.base.signatures import bind
from seepage.base.storage import (
    LARGEST_JSON,
    SCHEMA,
    check_regular,
    check_schema,
    check_space,
    read_json,
    refuse_links,
    tensor_names,
)
from seepage.errors import SeepageError
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.transcript.recorded import list_transcripts
from seepage.federation.types import Architecture, Transcript

SCORED_WITH = "private examples that the guesses were scored with"
"""What a file is that `report --truth` was given, in the list of files that a run judged."""


@dataclass(frozen=True, kw_only=True)
class AttackRequest:
    """The attacks to run on recorded or captured updates, and where to write the run.

    Attributes:
        attacks: Attack tables, each with `use` and options.
        default: Whether these are what is run where nobody chose, so that text has those of its own.
        seed: Seeds the attacks.
        device: Where to attack.
        out: Run folder; None: `runs/attack-HASH`.
        jobs: Number of attacks that run in parallel; None: one per core.
        on: Executor that runs the attacks; None: on this machine.
        show: Called with progress messages.
        command: The command line, stored with the run.
        trust: Whether to execute model code that the folder names; only for folders from a trusted source.
        tell: Called with what to know before the attacks begin.
        all_attacks: Whether attacks also run where all examples are certified already.
        minutes: What the whole may take, from `began`; None: no limit.
        began: When the command began, by `time.monotonic`; None: with the attacks.
        reuse: Whether a run in the folder that this user's seepage did not make is returned, or resumed.
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
    tell: Callable[[str], None] | None = None
    default: bool = False
    all_attacks: bool = False
    minutes: float | None = None
    began: float | None = None
    reuse: bool = True

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The attacks."""
        return tuple(map(Spec.of, self.attacks))

    def check(self) -> None:
        """Raise `SeepageError` for a device that cannot be used, unknown attacks and options that do not fit them."""
        check_device(self.device)
        check_minutes(self.minutes)
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
    files: Sequence[JudgedFile] = (),
) -> Run:
    """Attack recorded updates without a truth.

    Args:
        observed: An `observed/` folder or one with several below it.
        request: The attacks.
        model: Use this model instead of the recorded one.
        batch_size: Batch size to use where the recording states none.
        beside: Entries that the run folder may contain before the run.
        sizes: Inferred batch sizes, each with its source, by the name of the folder that has none.
        files: What the recording was made of; none: it is judged as it is.

    Raises:
        SeepageError: For unknown attacks, a folder that is damaged anywhere, and where `out` holds another run.
    """
    started, until = time.time(), deadline(request.minutes, request.began)
    request.check()
    recorded = RecordedRequest(
        observed=str(observed),
        content="",
        attacks=[dict(table) for table in request.attacks],
        seed=request.seed,
        model=None if model is None else {"use": model.use, "options": dict(model.options)},
        batch_size=batch_size,
        sizes=dict(sizes or {}) or None,
        contents=request_contents(request, model, observed) or None,
        all_attacks=request.all_attacks,
    )
    sources = _foreign_sources(recorded, trust=request.trust)
    texts, adapters = True, False
    for source in sources:
        # A damaged folder is refused before anything is written, and a file of absurd size before it is hashed.
        transcript = source.open("cpu")
        read_through(transcript)
        texts = texts and vocabulary_of(transcript.knowledge.model) is not None
        adapters = adapters or bool(adapted_layers(transcript.knowledge.model))
    if request.default:
        own = [{"use": name} for name in OF_TEXT] if texts else [*[{"use": "lora"}] * adapters, *request.attacks]
        request = replace(request, attacks=own)
    content = fingerprint([source.observed for source in sources])
    recorded = recorded.model_copy(update={"attacks": list(map(dict, request.attacks)), "content": content})
    text = recorded.text
    folder = request.out or Path("runs") / run_name(text, "attack")
    goes_on = request.minutes is not None
    if claim(folder, "attack.json", text, beside, reuse=request.reuse) and not (goes_on and unfinished(folder)):
        return Run(folder, read_result(folder), fresh=False)
    check_space(folder, MIN_FREE_BYTES)
    recipe = Recipe(
        name="attack", seed=request.seed, device=request.device, all_attacks=request.all_attacks, attack=request.specs
    )
    sources = [replace(source, recipe=replace(recipe, case=source.name)) for source in sources]
    with locked(folder):
        finished = claim(folder, "attack.json", text, beside, sweeps=True, reuse=request.reuse)
        if finished and not (goes_on and reopened(folder)):  # by another process, meanwhile
            return Run(folder, read_result(folder), fresh=False)
        take(folder, "attack.json", text)
        looks = looks_of(sources, request.show)
        plan = attack_cases(sources, folder, request.jobs, request.show, on=request.on, until=until)
        judged = files or judged_files({one.name: one.observed for one in sources})
        noted = [one.model_dump() for one in judged]
        more = {"threads": plan.threads, "files": noted}
        write_environment(folder, request.command, started, request.device, plan.jobs, **more)
        return Run(folder, summarize(sources, folder, request.show, files=judged, looks=looks), fresh=True)


class RecordedRequest(JsonRecord):
    """The arguments of `attack_only`, as stored in `attack.json`."""

    observed: str
    content: str
    attacks: list[dict[str, Any]]
    seed: int
    model: dict[str, Any] | None
    batch_size: int | None
    sizes: dict[str, tuple[int, str]] | None = None
    contents: dict[str, str] | None = None
    all_attacks: bool = False

    @property
    def text(self) -> str:
        """The request as JSON."""
        return json.dumps({"schema": SCHEMA, **self.model_dump(mode="json")}, indent=2) + "\n"

    def size_of(self, folder: str) -> tuple[int | None, str | None]:
        """The batch size of a folder that states none, and the source of an inferred one."""
        found = (self.sizes or {}).get(folder) if self.batch_size is None else None
        return (self.batch_size, None) if found is None else found

    def architecture(self) -> Architecture | None:
        return None if self.model is None else Architecture(str(self.model.get("use")), self.model.get("options", {}))


def _read_request(path: Path, trust: bool) -> RecordedRequest:
    """Read `attack.json`. Code that it names is executed only if `trust` is set, since the file may be foreign."""
    record = read_json(path)
    check_schema(record, path)
    found = parse(RecordedRequest, record, str(path))
    for problem in seed_problems(found.seed, "its seed"):
        raise SeepageError(f"{path} is damaged: {problem}; attack again")
    if not trust:
        refuse_code({"attack": found.attacks, "model": found.model}, str(path))
    return found


def _foreign_sources(recorded: RecordedRequest, truth: Path | None = None, *, trust: bool) -> list[Source]:
    found = list_transcripts(Path(recorded.observed))
    names = [folder.name for folder in found]
    if len(found) == 1:
        own = found[0].resolve().name
        names = ["case" if own in ("", "observed") else own]
    sizes = [recorded.size_of(place.name) for place in found]
    return [
        Source(name, place, _truth_of(name, truth), recorded.architecture(), size, trust, inferred=said)
        for name, place, (size, said) in zip(names, found, sizes, strict=True)
    ]


def _truth_of(name: str, truth: Path | None) -> Path | None:
    if truth is None or (truth / "truth.safetensors").exists():
        return truth
    # A run of several cases has one folder per case; anything else is a data file or a folder of images.
    return truth / name if (truth / name).is_dir() or not truth.exists() else truth


def score_run(folder: Path, truth: Path | None, settings: Sequence[str], *, trust: bool = False) -> Run:
    """Score a run of `attack_only` against the truth, or show an audit's scores.

    Args:
        folder: The run folder.
        truth: A `private/` folder, with one folder per case where the run has several; None shows existing scores.
        settings: `score.KEY=VALUE` thresholds.
        trust: Whether to execute code that the run folder names; only for folders from a trusted source.

    Raises:
        SeepageError: For an audit's folder, which is scored already, a truth that does not belong to the run, and while
            another process writes to it.
    """
    refuse_links(folder)
    result = read_result(folder)
    if truth is None:
        if settings:
            raise SeepageError("--set changes thresholds only together with --truth FILE; add it")
        return Run(folder, result, fresh=False)
    if not (folder / "attack.json").exists():
        raise SeepageError(f"{folder} is a finished audit and is never rewritten; audit again with other --set score.…")
    recorded = _read_request(folder / "attack.json", trust)
    if not all(setting.strip().startswith("score.") for setting in settings):
        raise SeepageError("scoring takes --set score.KEY=VALUE only, such as --set score.exact_db=45")
    chosen = change({}, settings).get("score", {})
    bind(Scoring, chosen, "[score]")
    scoring, parts = Scoring(**chosen), tuple(map(Spec.of, recorded.attacks))
    sources = _foreign_sources(recorded, truth, trust=trust)
    if fingerprint([source.observed for source in sources]) != recorded.content:
        raise SeepageError(f"{recorded.observed} has changed since {folder} was made; attack it again")
    recipe = Recipe(name="attack", seed=recorded.seed, attack=parts, score=scoring)
    sources = [replace(source, recipe=replace(recipe, case=source.name)) for source in sources]
    with held(folder):
        refuse_changed(folder)  # a new manifest must not vouch for foreign files
        env = folder / "env.json"
        facts = read_json(env)
        listed = parse_all(JudgedFile, facts.get("files", []), str(env))
        judged = [file for file in listed if file.what != SCORED_WITH]
        noted = [file.model_dump() for file in [*judged, *_truth_files(sources)]]
        return Run(folder, summarize(sources, folder, files=judged, env=facts | {"files": noted}), fresh=True)


def _truth_files(sources: Sequence[Source]) -> list[JudgedFile]:
    """The file that each case was scored with; a folder of images has no digest that `sha256sum` prints."""
    places = {source.name: source.private for source in sources if source.private is not None}
    files = {name: place / "truth.safetensors" if place.is_dir() else place for name, place in places.items()}
    return [
        JudgedFile(case=name, what=SCORED_WITH, name="--truth", sha256=digest_of(file))
        for name, file in files.items()
        if file.is_file()
    ]


def request_contents(
    request: AttackRequest, model: Architecture | None, observed: Path | None = None, client: Spec | None = None
) -> dict[str, str]:
    """A digest of each file and module that a request names: weights of attacks, code of models.

    Args:
        request: The request.
        model: The model that it names.
        observed: The recording, whose models and rules count where its code is trusted.
        client: The client's rule, where it is named: it may have a user-defined loss.
    """
    models, rules = ([] if model is None else [model]), ([] if client is None else [client.table()])
    if observed is not None and request.trust:
        recordings = [read_facts(place) for place in list_transcripts(observed)]
        models = models or [one.named for one in recordings]
        rules += [one.client for one in recordings]
    own = [{"use": one.use, **one.options} for one in models]
    return contents({"attack": [dict(table) for table in request.attacks], "model": own, "client": rules})


def fingerprint(folders: Sequence[Path]) -> str:
    """A digest of the content of recorded folders, so that changed files count as another recording.

    Files that no recording has, which are not read either, do not count: an untrusted one may be terabytes of nothing.

    Raises:
        SeepageError: For tensors that are less, or more, than their file's head says.
    """
    digest, hasher = hashlib.sha256(), Hasher()
    for folder in folders:
        for file in _files_of(folder):
            digest.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
            digest.update(bytes.fromhex(hasher.digest(file)))
    return digest.hexdigest()[:16]


def judged_files(places: Mapping[str, Path]) -> list[JudgedFile]:
    """The model and the first update of recordings that lie outside of the run, which its manifest does not list.

    Args:
        places: Name of each case to its `observed/` folder.
    """
    return [
        JudgedFile(case=name, what=what, name=path, sha256=digest_of(place / path))
        for name, place in places.items()
        for path, what in RECORDED_FILES.items()
        if (place / path).is_file()
    ]


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
        tensor_names(file)  # refuses what is not whole
    return found


def read_through(transcript: Transcript) -> None:
    """Read every round's update once, so that damaged files are found before any attack runs."""
    for t in range(len(transcript)):
        transcript[t].gradient(transcript.knowledge.client)
