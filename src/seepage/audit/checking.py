"""A check before attacking, in seconds: what is known of a client, and what its update reveals in closed form.

No attack runs, and no attack reads this.

files, a folder or a recipe --> observed/ --> facts, closed forms              (nothing is kept on disk)
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seepage.attacks.exposure import Exposure, UpdateAnalysis
from seepage.attacks.exposure.inference import infer_sizes
from seepage.audit.attack import Source, own_source
from seepage.audit.capture import Capture
from seepage.audit.facts import Fact, facts_of, keys_fact
from seepage.audit.observe import observe_files
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import named_case
from seepage.audit.recorded import read_through
from seepage.audit.run import record_only
from seepage.base.lock import scratch
from seepage.base.progress import ProgressCallback, no_progress
from seepage.base.storage import read_json
from seepage.errors import SeepageError
from seepage.federation.models.trial import own_faults
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.transcript.recorded import list_transcripts
from seepage.federation.types import Architecture


@dataclass(frozen=True, kw_only=True)
class Check:
    """The check of one recorded update.

    Attributes:
        case: Name of the case.
        title: Its title for readers.
        facts: Facts on the client; empty for a recipe, which states them.
        exposure: What the update reveals in closed form.
        rounds: Rounds of the recording; one of them was checked.
    """

    case: str
    title: str
    facts: tuple[Fact, ...]
    exposure: Exposure
    rounds: int = 1

    def table(self) -> dict[str, Any]:
        """The check as JSON."""
        return {
            "case": self.case,
            "title": self.title,
            "facts": [one.model_dump(mode="json") for one in self.facts],
            "exposure": self.exposure.table(),
        }


@dataclass(frozen=True, kw_only=True)
class Checks:
    """The checks of all updates of a folder or a recipe.

    Attributes:
        cases: One per recorded case.
        skipped: Title of each case that could not be recorded, to the reason.
    """

    cases: tuple[Check, ...]
    skipped: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Look:
    """Options of a check.

    Attributes:
        t: Index of the round, from 0.
        show: Called with progress messages.
    """

    t: int = 0
    show: ProgressCallback = no_progress


def check_capture(capture: Capture, look: Look, *, named: bool = True) -> Checks:
    """Check one update captured as files. This runs the user's own code where the capture names it as the model.

    Args:
        capture: The files and what the user stated of them.
        look: Options of the check.
        named: Whether the user named the model, so that it counts as stated.

    Returns:
        The check of the one update; it holds facts on the client, among them which parameters the files contain.

    Raises:
        SeepageError: For files that contradict the model or the stated facts.
    """
    with scratch() as place, own_faults(capture.architecture.use):
        observe_files(capture, place / "observed", needs_rate=False)
        known = capture.known | ({"model"} if named else set())
        source = Source("case", place / "observed", None, trust=True)
        seen = source.open("cpu")
        keys = keys_fact(capture.before, seen.knowledge.model, seen[0].update.tensors)
        return _looked_at([source], look, known=known, keys=keys)


def check_folder(
    folder: Path,
    look: Look,
    *,
    trust: bool = False,
    model: Architecture | None = None,
    batch_size: int | None = None,
) -> Checks:
    """Check recorded updates.

    Args:
        folder: An `observed/` folder, one with several below it, or a run folder.
        look: Options of the check.
        trust: Whether code that the folder names may run.
        model: Use this model instead of the recorded one.
        batch_size: Batch size to use where the recording states none; None: infer it.

    Raises:
        SeepageError: For a damaged folder, or a round that is not there.
    """
    sizes = infer_sizes(folder, model) if batch_size is None else {}
    found = []
    for place in list_transcripts(folder):
        size, words = sizes.get(place.name, (batch_size, None))
        found.append(Source(place.name, place, None, model, size, trust=trust, inferred=words))
        read_through(found[-1].open("cpu"))
    return _looked_at(found, look)


def check_recipe(tables: Mapping[str, Any], look: Look) -> Checks:
    """Check the updates that a recipe's clients compute, as in an audit; nothing is kept on disk.

    Args:
        tables: The recipe's tables.
        look: Options of the check.

    Raises:
        SeepageError: For mistakes in the recipe or the data.
    """
    with scratch() as place:
        run, recipes = record_only(tables, out=place / "run", show=look.show), resolve_cases(tables)
        return _looked_at([own_source(recipe, recipes, run) for recipe in recipes], look)


def _looked_at(
    sources: Sequence[Source], look: Look, *, known: Collection[str] | None = None, keys: Fact | None = None
) -> Checks:
    """The checks of all sources that were recorded.

    Args:
        sources: The recordings.
        look: Options of the check.
        known: Names of the facts that the user stated of captured files; None: not captured files.
        keys: Which of the model's parameters captured files contain; None: not captured files.
    """
    found = [_check(source, look, known, keys) for source in sources if not source.skipped]
    skipped = {named_case(source.recipe).title: _why_skipped(source) for source in sources if source.skipped}
    return Checks(cases=tuple(found), skipped=skipped)


def _why_skipped(source: Source) -> str:
    return "" if source.private is None else str(read_json(source.private / "case.json")["skipped"])


def _check(source: Source, look: Look, known: Collection[str] | None, keys: Fact | None) -> Check:
    """The check of one recorded update; arguments as in `_looked_at`."""
    seen = source.open(source.recipe.device)
    if not 0 <= look.t < len(seen):
        last = len(seen) - 1
        raise SeepageError(f"there is no round {look.t}: the recording has {last + 1}; name one from 0 to {last}")
    said = dict(read_facts(source.observed).said)
    if source.inferred is not None:
        said["batch size"] = source.inferred
    analysis = UpdateAnalysis(seen, look.t, said)
    exposure = analysis.exposure
    facts = [] if source.simulated else facts_of(analysis, exposure, said, known)
    if keys is not None:
        facts.insert(1, keys)
    title = named_case(source.recipe).title if source.simulated else source.name
    if known is not None:  # two files
        title = "the update"
    return Check(case=source.name, title=title, facts=tuple(facts), exposure=exposure, rounds=len(seen))
