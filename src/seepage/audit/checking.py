"""Look before attacking, in seconds: what of a client is known, what its update gives away by itself, whether gradient
matching has a way to its examples, and how long the attacks would take. No attack runs, and nothing here reaches one.

files, a folder or a recipe --> observed/ --> facts, closed forms, outlook, time        (nothing is kept on disk)
                                private/  --> outlook beside the truth; where there is none, beside a made-up batch
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from seepage.attacks.exposure import Exposure, UpdateAnalysis, landscape
from seepage.attacks.exposure.inference import infer_sizes
from seepage.attacks.exposure.landscape import DEFAULT_NOISES, PROBE_NOISE, Outlook, outlook
from seepage.attacks.reading.decoding import NaturalSpectrum
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.problem import Problem
from seepage.audit.attack import Source, estimate, own_source
from seepage.audit.budget import PASS, Estimate, update_seconds
from seepage.audit.captured import Capture
from seepage.audit.facts import Fact, facts_of, keys_fact
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import named_case
from seepage.audit.recorded import AttackRequest, read_through, recipe_of
from seepage.audit.run import record_only
from seepage.base.lock import scratch
from seepage.base.nn import generator, vocabulary_of
from seepage.base.progress import ProgressCallback, no_progress
from seepage.base.schema import JsonRecord
from seepage.base.storage import read_json
from seepage.errors import Inapplicable, SeepageError
from seepage.federation.models.trial import own_faults
from seepage.federation.models.vertical import VerticalModel
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.transcript.recorded import list_transcripts
from seepage.federation.transcript.truth import open_truth
from seepage.federation.types import Architecture, Batch, Knowledge, Update

DRAWS, MADE_UP_DRAWS = 6, 3
"""Noises drawn at each size beside the truth, and at `PROBE_NOISE` alone beside a made-up batch."""
MOST_SECONDS = 5.0
"""What the look at a made-up batch may take, by the time of one update."""


class NoiseCosine(JsonRecord):
    """Where descent goes from inputs with noise of one size.

    Attributes:
        noise: Standard deviation of the noise on the inputs, in their own units.
        cosine: Mean cosine between descent and the way back.
        low: Lower end of Student's 95 % interval over the draws of noise.
        high: Its upper end.
    """

    noise: float
    cosine: float
    low: float
    high: float


class Matching(JsonRecord):
    """Whether gradient matching has a way back.

    Attributes:
        outlook: `expected`: cosines like this one came with images that matching brought back; `not expected`: with
            hardly any; `open`: with both. None where that cannot be told.
        cosines: One for each noise.
        chance: Standard deviation of the cosine of a direction that knows nothing: one over the root of the batch's
            numbers.
        made_up: Whether the batch was made up, as the client's own is not at hand.
        reason: Why there is no outlook.
    """

    outlook: Outlook | None = None
    cosines: tuple[NoiseCosine, ...] = ()
    chance: float | None = None
    made_up: bool = False
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Check:
    """What a look at one recorded update says.

    Attributes:
        case: Its name.
        title: For readers.
        facts: Of the client.
        exposure: What the update gives away in closed form.
        matching: The outlook of gradient matching.
        rounds: Rounds of the recording, of which one was looked at.
    """

    case: str
    title: str
    facts: tuple[Fact, ...]
    exposure: Exposure
    matching: Matching
    rounds: int = 1

    def table(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "case": self.case,
            "title": self.title,
            "facts": [one.model_dump(mode="json") for one in self.facts],
            "gives_away": self.exposure.table(),
            "matching": self.matching.model_dump(mode="json"),
        }


@dataclass(frozen=True, kw_only=True)
class Checks:
    """The looks at all updates of a folder or a recipe.

    Attributes:
        cases: One for each; none of a case that could not be recorded.
        estimate: How long attacks on all of them would take; None: not asked for.
        skipped: Why cases could not be recorded, by their titles.
    """

    cases: tuple[Check, ...]
    estimate: Estimate | None
    skipped: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Look:
    """How to look.

    Attributes:
        t: The round.
        thorough: As in `seepage.exposure`.
        timed: Whether the attacks' searches are timed.
        show: Called with progress messages.
    """

    t: int = 0
    thorough: bool = False
    timed: bool = True
    show: ProgressCallback = no_progress


def check_capture(capture: Capture, request: AttackRequest, look: Look, *, named: bool = True) -> Checks:
    """Look at captured files; the user's own code that they name is run.

    Args:
        capture: The files and what is known.
        request: The attacks whose time is asked for.
        look: How.
        named: Whether the user named the model.

    Raises:
        SeepageError: For files that contradict the model or the stated facts.
    """
    with scratch() as place, own_faults(capture.architecture.use):
        capture.observe(place / "observed", needs_rate=False)
        told = capture.told | ({"model"} if named else set())
        source = Source("case", place / "observed", None, trust=True)
        keys = keys_fact(capture.files.before, source.open("cpu").knowledge.model)
        return _looked_at([source], _recipes([source], request), look, told=told, keys=keys)


def check_folder(
    folder: Path,
    request: AttackRequest,
    look: Look,
    *,
    model: Architecture | None = None,
    batch_size: int | None = None,
) -> Checks:
    """Look at recorded updates; where a run's `private/` lies beside them, the outlook is that of its own batch.

    Args:
        folder: An `observed/` folder, one with several below it, or a run folder.
        request: The attacks whose time is asked for, and whether code that the folder names is run.
        look: How.
        model: Use this model instead of the recorded one.
        batch_size: Batch size to use where the recording states none; None: infer it.

    Raises:
        SeepageError: For a damaged folder, or a round that is not there.
    """
    sizes = infer_sizes(folder, model) if batch_size is None else {}
    found = []
    for place in list_transcripts(folder):
        size, words = sizes.get(place.name, (batch_size, None))
        private = folder / "private" / place.relative_to(folder).relative_to("observed") if _is_run(folder) else None
        truth = private if private is not None and (private / "truth.safetensors").exists() else None
        found.append(Source(place.name, place, truth, model, size, trust=request.trust, inferred=words))
        read_through(found[-1].open("cpu"))
    return _looked_at(found, _recipes(found, request), look)


def _recipes(sources: Sequence[Source], request: AttackRequest) -> list[Recipe]:
    """The attacks on each, by which their time is told."""
    if all(vocabulary_of(source.open("cpu").knowledge.model) is not None for source in sources):
        request = request.of_texts()
    return [recipe_of(source, request) for source in sources]


def _is_run(folder: Path) -> bool:
    return not (folder / "knowledge.json").exists() and (folder / "observed").is_dir()


def check_recipe(tables: Mapping[str, Any], look: Look) -> Checks:
    """Let a recipe's clients compute their updates, as in an audit, and look at these; nothing is kept on disk.

    Raises:
        SeepageError: For mistakes in the recipe or the data.
    """
    with scratch() as place:
        run, recipes = record_only(tables, out=place / "run", show=look.show), resolve_cases(tables)
        sources = [own_source(recipe, recipes, run) for recipe in recipes]
        return _looked_at(sources, recipes, look)


def _looked_at(
    sources: Sequence[Source],
    recipes: Sequence[Recipe],
    look: Look,
    *,
    told: Collection[str] | None = None,
    keys: Fact | None = None,
) -> Checks:
    pairs = list(zip(sources, recipes, strict=True))
    there = [(source, recipe) for source, recipe in pairs if not source.skipped]
    found = [_check(source, recipe, look, told, keys) for source, recipe in there]
    time_of = estimate(sources, recipes) if look.timed and there else None
    skipped = {named_case(recipe).title: _why_skipped(source) for source, recipe in pairs if source.skipped}
    return Checks(cases=tuple(found), estimate=time_of, skipped=skipped)


def _why_skipped(source: Source) -> str:
    return "" if source.private is None else str(read_json(source.private / "case.json")["skipped"])


def _check(source: Source, recipe: Recipe, look: Look, told: Collection[str] | None, keys: Fact | None) -> Check:
    seen = source.open(recipe.device)
    if not 0 <= look.t < len(seen):
        last = len(seen) - 1
        raise SeepageError(f"there is no round {look.t}: the recording has {last + 1}; name one from 0 to {last}")
    said = dict(read_facts(source.observed).said)
    if source.inferred is not None:
        said["batch size"] = source.inferred
    analysis = UpdateAnalysis(seen, look.t, look.thorough, said)
    exposure = analysis.exposure
    facts = [] if source.recipe is not None else facts_of(analysis, exposure, said, told)
    if keys is not None:
        facts.insert(1, keys)
    title = source.name if source.recipe is None else named_case(recipe).title
    if told is not None:  # two files
        title = "the update"
    truth = None if source.private is None else open_truth(source.private).of_round(look.t)
    return Check(
        case=source.name,
        title=title,
        facts=tuple(facts),
        exposure=exposure,
        matching=_matching(analysis, exposure, truth, recipe.seed),
        rounds=len(seen),
    )


def _matching(look: UpdateAnalysis, exposure: Exposure, truth: Batch | None, seed: int) -> Matching:
    knowledge, seen = look.knowledge, look.observed
    try:
        if isinstance(knowledge.model, VerticalModel):
            raise Inapplicable(
                "its parties hold parts of an example each, and share no gradient of one network",
                "audit it with cafe, which needs no such slope",
            )
        if vocabulary_of(knowledge.model) is not None or (truth is not None and not truth.inputs.is_floating_point()):
            raise Inapplicable("its inputs are tokens, which no slope moves", "look at images or tables")
        if truth is None:
            batch = _made_up(look, exposure)
            sent = knowledge.client(knowledge.model, seen.params, batch, buffers=seen.buffers)
            own = {name: sent.tensors[name] for name in seen.update.tensors}
            seen = replace(seen, update=Update(own, sent.kind))
        else:
            batch = truth
        noises = DEFAULT_NOISES if truth is not None else (PROBE_NOISE,)
        problem = Problem.of(seen, knowledge, Cosine(), None)
        draws = MADE_UP_DRAWS if truth is None else DRAWS
        found = landscape(problem, batch.inputs, batch.labels, noises=noises, draws=draws, seed=seed)
    except SeepageError as error:
        return Matching(reason=error.reason if isinstance(error, Inapplicable) else str(error), made_up=truth is None)
    except (ValueError, RuntimeError) as error:  # such as batch norm on a single value, or somebody's own network
        return Matching(reason=str(error).partition("\n")[0], made_up=truth is None)
    return Matching(
        outlook=outlook(found.means[found.noises.index(PROBE_NOISE)]),
        cosines=tuple(
            NoiseCosine(noise=noise, cosine=round(mean, 4), low=round(low, 4), high=round(high, 4))
            for noise, mean, (low, high) in zip(found.noises, found.means, found.intervals(), strict=True)
        ),
        chance=round(batch.inputs.numel() ** -0.5, 4),
        made_up=truth is None,
    )


def _made_up(look: UpdateAnalysis, exposure: Exposure) -> Batch:
    """As many made-up examples as are behind the update, with classes that it names, or others.

    Raises:
        Inapplicable: Where the update is none of the client's rule as it was told, or that would take long.
    """
    knowledge, seen = look.knowledge, look.observed
    remedy = "run the attacks"
    if look.signs:
        raise Inapplicable(
            "of the gradient hardly more than the sign of each entry is left, which has no slope", remedy
        )
    if look.changed:
        raise Inapplicable(f"{look.changed}, and matching takes it for the client's rule alone", remedy)
    if seen.batch_size is None:
        raise Inapplicable("the batch size is not known", remedy)
    if knowledge.target != "class" or look.makes_examples:
        raise Inapplicable("targets other than classes are not made up", remedy)
    seconds = PASS * MADE_UP_DRAWS * update_seconds(look.seen)
    if seconds > MOST_SECONDS:
        raise Inapplicable(f"that would take {seconds:.0f} s, as one update of the client takes that long", remedy)
    like, size = next(iter(seen.params.values())), seen.batch_size
    present = exposure.labels.present if exposure.labels is not None and exposure.labels.believed else ()
    classes = torch.tensor(present or range(knowledge.num_classes), device=like.device)
    inputs = _examples(knowledge, size).to(like)
    return Batch(inputs, classes[torch.arange(size, device=like.device) % len(classes)])


def _examples(knowledge: Knowledge, size: int) -> torch.Tensor:
    draw, (low, high) = generator(0, "made-up examples"), knowledge.value_range
    shape = knowledge.input_shape
    unit = NaturalSpectrum(shape).samples(size, draw) if len(shape) == 3 else torch.rand(size, *shape, generator=draw)
    return low + (high - low) * unit
