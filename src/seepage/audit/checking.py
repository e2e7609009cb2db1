"""A check before attacking, in seconds: what is known of a client, what its update reveals in closed form, and whether
gradient matching is likely to succeed. No attack runs, and no attack reads this.

files, a folder or a recipe --> observed/ --> facts, closed forms, outlook              (nothing is kept on disk)
                                private/  --> outlook beside the truth; where there is none, beside a made-up batch
"""

import math
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
from seepage.audit.attack import Source, own_source
from seepage.audit.captured import Capture
from seepage.audit.facts import Fact, facts_of, keys_fact
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import named_case
from seepage.audit.recorded import read_through
from seepage.audit.run import record_only
from seepage.base.clock import OutOfTime, limited
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
"""Draws of noise per noise size around the true batch, and at `PROBE_NOISE` alone around a made-up batch.

Fewer for a made-up batch, since its outlook is an estimate in any case.
"""
MOST_SECONDS = 5.0
"""Time in seconds that the outlook at a made-up batch may take: a check is to end in seconds."""


class NoiseCosine(JsonRecord):
    """Alignment of descent with the direction back to the inputs, at one size of noise on them.

    Attributes:
        noise: Standard deviation of the noise on the inputs, in their own units.
        cosine: Mean cosine in [-1, 1] between the descent direction and the direction back to the inputs.
        low: Lower end of Student's 95 % interval over the draws of noise.
        high: Its upper end.
    """

    noise: float
    cosine: float
    low: float
    high: float


class Matching(JsonRecord):
    """The outlook of gradient matching, by the slope of its objective near the examples.

    Attributes:
        outlook: `expected`: at cosines like this one matching recovered the images; `not expected`: hardly any;
            `open`: some. None where there is no estimate.
        cosines: One for each noise.
        chance: Standard deviation of the cosine of a random direction: `1 / sqrt(numbers in the batch)`.
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
    """The check of one recorded update.

    Attributes:
        case: Name of the case.
        title: Its title for readers.
        facts: Facts on the client; empty for a recipe, which states them.
        exposure: What the update reveals in closed form.
        matching: The outlook of gradient matching.
        rounds: Rounds of the recording; one of them was checked.
    """

    case: str
    title: str
    facts: tuple[Fact, ...]
    exposure: Exposure
    matching: Matching
    rounds: int = 1

    def table(self) -> dict[str, Any]:
        """The check as JSON."""
        return {
            "case": self.case,
            "title": self.title,
            "facts": [one.model_dump(mode="json") for one in self.facts],
            "exposure": self.exposure.table(),
            "matching": self.matching.model_dump(mode="json"),
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
        thorough: As in `seepage.exposure`.
        show: Called with progress messages.
    """

    t: int = 0
    thorough: bool = False
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
        capture.observe(place / "observed", needs_rate=False)
        known = capture.known | ({"model"} if named else set())
        source = Source("case", place / "observed", None, trust=True)
        keys = keys_fact(capture.files.before, source.open("cpu").knowledge.model)
        return _looked_at([source], _recipes([source]), look, known=known, keys=keys)


def check_folder(
    folder: Path,
    look: Look,
    *,
    trust: bool = False,
    model: Architecture | None = None,
    batch_size: int | None = None,
) -> Checks:
    """Check recorded updates. The outlook is at the true batch in a run folder with the truth, else at a made-up one.

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
        private = folder / "private" / place.relative_to(folder).relative_to("observed") if _is_run(folder) else None
        truth = private if private is not None and (private / "truth.safetensors").exists() else None
        found.append(Source(place.name, place, truth, model, size, trust=trust, inferred=words))
        read_through(found[-1].open("cpu"))
    return _looked_at(found, _recipes(found), look)


def _recipes(sources: Sequence[Source]) -> list[Recipe]:
    return [Recipe(name="check", case=source.name) for source in sources]


def _is_run(folder: Path) -> bool:
    return not (folder / "knowledge.json").exists() and (folder / "observed").is_dir()


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
        sources = [own_source(recipe, recipes, run) for recipe in recipes]
        return _looked_at(sources, recipes, look)


def _looked_at(
    sources: Sequence[Source],
    recipes: Sequence[Recipe],
    look: Look,
    *,
    known: Collection[str] | None = None,
    keys: Fact | None = None,
) -> Checks:
    """The checks of all sources that were recorded.

    Args:
        sources: The recordings.
        recipes: One for each source, in the same order.
        look: Options of the check.
        known: Names of the facts that the user stated of captured files; None: not captured files.
        keys: Which of the model's parameters captured files contain; None: not captured files.
    """
    pairs = list(zip(sources, recipes, strict=True))
    there = [(source, recipe) for source, recipe in pairs if not source.skipped]
    found = [_check(source, recipe, look, known, keys) for source, recipe in there]
    skipped = {named_case(recipe).title: _why_skipped(source) for source, recipe in pairs if source.skipped}
    return Checks(cases=tuple(found), skipped=skipped)


def _why_skipped(source: Source) -> str:
    return "" if source.private is None else str(read_json(source.private / "case.json")["skipped"])


def _check(source: Source, recipe: Recipe, look: Look, known: Collection[str] | None, keys: Fact | None) -> Check:
    """The check of one recorded update; arguments as in `_looked_at`."""
    seen = source.open(recipe.device)
    if not 0 <= look.t < len(seen):
        last = len(seen) - 1
        raise SeepageError(f"there is no round {look.t}: the recording has {last + 1}; name one from 0 to {last}")
    said = dict(read_facts(source.observed).said)
    if source.inferred is not None:
        said["batch size"] = source.inferred
    analysis = UpdateAnalysis(seen, look.t, look.thorough, said)
    exposure = analysis.exposure
    facts = [] if source.recipe is not None else facts_of(analysis, exposure, said, known)
    if keys is not None:
        facts.insert(1, keys)
    title = source.name if source.recipe is None else named_case(recipe).title
    if known is not None:  # two files
        title = "the update"
    truth = None if source.private is None else open_truth(source.private).of_round(look.t)
    return Check(
        case=source.name,
        title=title,
        facts=tuple(facts),
        exposure=exposure,
        matching=_matching(analysis, truth, recipe.seed),
        rounds=len(seen),
    )


def _matching(look: UpdateAnalysis, truth: Batch | None, seed: int) -> Matching:
    """The outlook of gradient matching on one update.

    Args:
        look: The update and what was found in it; a made-up batch takes over its labels.
        truth: The client's batch; None: a made-up batch takes its place, with the update that it gives.
        seed: Seed of the noise.
    """
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
            batch = _made_up(look)
            sent = knowledge.client(knowledge.model, seen.params, batch, buffers=seen.buffers)
            own = {name: sent.tensors[name] for name in seen.update.tensors}
            seen = replace(seen, update=Update(own, sent.kind))
        else:
            batch = truth
        noises = DEFAULT_NOISES if truth is not None else (PROBE_NOISE,)
        problem = Problem.of(seen, knowledge, Cosine(), None)
        draws = MADE_UP_DRAWS if truth is None else DRAWS
        with limited(MOST_SECONDS if truth is None else math.inf):
            found = landscape(problem, batch.inputs, batch.labels, noises=noises, draws=draws, seed=seed)
    except OutOfTime:
        return Matching(reason=f"it takes more than {MOST_SECONDS:g} s: one update of the client is slow", made_up=True)
    except SeepageError as error:
        return Matching(reason=error.reason if isinstance(error, Inapplicable) else str(error), made_up=truth is None)
    except (ValueError, RuntimeError) as error:  # such as batch norm on a single value, or a user's network
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


def _made_up(look: UpdateAnalysis) -> Batch:
    """A made-up batch of the client's size, with the classes that the update names, else all classes in turn.

    Raises:
        Inapplicable: Where the update does not fit the stated client rule.
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
    like, size = next(iter(seen.params.values())), seen.batch_size
    present = look.labels.present if look.labels is not None and look.labels.believed else ()
    classes = torch.tensor(present or range(knowledge.num_classes), device=like.device)
    inputs = _examples(knowledge, size).to(like)
    return Batch(inputs, classes[torch.arange(size, device=like.device) % len(classes)])


def _examples(knowledge: Knowledge, size: int) -> torch.Tensor:
    draw, (low, high) = generator(0, "made-up examples"), knowledge.value_range
    shape = knowledge.input_shape
    unit = NaturalSpectrum(shape).samples(size, draw) if len(shape) == 3 else torch.rand(size, *shape, generator=draw)
    return low + (high - low) * unit
