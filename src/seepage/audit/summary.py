"""Score the outcomes of a run, raise its diagnostics, and write its results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from pydantic_core import to_jsonable_python

from seepage.attacks import Attack
from seepage.attacks.exposure import Exposure, exposure
from seepage.attacks.exposure.fingerprints import CHANGES_VALUES
from seepage.attacks.network import in_range
from seepage.audit import diagnostics
from seepage.audit.attack import Source, attack_names, judgment_path
from seepage.audit.attempt import Attempt, open_attempt
from seepage.audit.bounded import bound_rows
from seepage.audit.candidates import FILE, open_members
from seepage.audit.case import Kind
from seepage.audit.caveats import (
    alignment_diagnostics,
    assumed_update,
    attack_diagnostics,
    caveats,
    compared_to_sent,
    contradiction_flags,
    contradicts,
    normalization_of_truth,
    refusals,
    up_to_a_factor,
    weak_claims,
)
from seepage.audit.measured import epsilon_row, rounds_taken
from seepage.audit.membership import make_membership_row, open_judgment
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.places import paths_in, without_places
from seepage.audit.recipe.trust import own_code
from seepage.audit.record import case_of_recording, read_case
from seepage.audit.row import Case, MembershipRow, Result, Row, Thresholds
from seepage.audit.score import make_row, metrics_for, scores_of, skipped_row
from seepage.audit.verdict import with_verdict
from seepage.base.manifest import JudgedFile, write_manifest
from seepage.base.nn import Table, output_shape, vocabulary_of
from seepage.base.progress import Doing, Phase, ProgressCallback, no_progress
from seepage.base.schema import Finding, Guarantee
from seepage.base.storage import SCHEMA, json_text, write_json, write_lines, write_tensors, write_whole
from seepage.base.vouching import staying_own
from seepage.errors import SeepageError
from seepage.federation import data
from seepage.federation.clients.losses import LOSSES, with_inputs
from seepage.federation.data.npz import load_shaped, load_tokens
from seepage.federation.models.normalize import statistics_of
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.transcript.simulated import OneRound
from seepage.federation.transcript.truth import Truth, misfit, open_truth
from seepage.federation.types import Batch, Knowledge, Tensors, Transcript
from seepage.measure.metrics import Alignment, Scores, Yardstick, is_image
from seepage.measure.metrics.text import TextAlignment
from seepage.measure.privacy.guarantee import guarantee_of

Look = tuple[Exposure | None, dict[str, Any]]
"""What the first round's update reveals without an attack, where that could be looked at; and as JSON."""
RULE = {"learning rate", "local steps", "optimizer", "loss"}
"""Facts that make a client's rule: where one was not stated, nobody knew the rule."""
CaseSummary = tuple[Case, list[Row], list[Finding], list[dict[str, Any]], dict[str, Any] | None]
"""A case's facts, one row per attack, warnings and notes about the numbers, one line per example and metric for
`scores.jsonl`, and what the first round's update reveals without an attack, as JSON; None if no update was made."""


def summarize(
    sources: Sequence[Source],
    folder: Path,
    show: ProgressCallback = no_progress,
    files: Sequence[JudgedFile] = (),
    env: Mapping[str, Any] | None = None,
    looks: Mapping[str, Look] = MappingProxyType({}),
) -> Result:
    """Score all attempts, raise diagnostics, and write `scores.jsonl`, `flags.json`, the manifest and, last,
    `result.json`.

    Args:
        sources: The cases.
        folder: The run folder.
        show: Called with progress messages.
        files: What was judged, of recorded or captured updates.
        env: The new content of `env.json`, which is written once all attempts are scored; None: it stays.
        looks: What is to be said of each case's update without an attack, as far as it was looked at before.
    """
    found = list[CaseSummary]()
    for i, source in enumerate(sources):
        show(i, len(sources), Doing(source.name if len(sources) > 1 else "", Phase.SCORING))
        if source.skipped:
            found.append(_skipped_case(source))
        else:
            found.append(_summarize_case(source, folder, looks.get(source.name)))
    places = _places(sources, folder)
    if env is not None:
        write_json(folder / "env.json", env)
    write_lines(folder / "scores.jsonl", [line for *_, lines, _ in found for line in lines])
    exposures = [look for *_, look in found if look is not None]
    write_json(folder / "exposure.json", {"schema": SCHEMA, "cases": without_places(exposures, places)})
    epsilons = [row for source in sources if (row := epsilon_row(source, folder)) is not None]
    flags = [*(flag for _, _, own, *_ in found for flag in own), *weak_claims(epsilons)]
    said_of = without_places([flag.model_dump(mode="json") for flag in flags], places)
    write_json(folder / "flags.json", {"schema": SCHEMA, "flags": said_of})
    scoring, recipes = sources[0].recipe.score, [source.recipe for source in sources]
    result = with_verdict(
        Result(
            run=folder.name if folder.is_absolute() else str(folder),
            verdict="",
            verdict_level="unscored",
            rows=[row for _, rows, *_ in found for row in rows],
            cases=[_with_files(case, files) for case, *_ in found],
            thresholds=Thresholds(**(asdict(scoring) | {"metrics": list(scoring.metrics)})),
            membership=[row for source in sources for row in membership_rows(source, folder)],
            bounds=[row for source in sources for row in bound_rows(source)],
            epsilons=epsilons,
            warnings=[flag for flag in flags if flag.severity == "warning"],
        ),
        own_code=_takes_own_code(sources),
        asked={part for one in recipes for part in ("membership", "epsilon") if getattr(one, part) is not None},
        captured=not any(source.simulated for source in sources),
    )
    # By its result a run counts as finished, so that is written last: the manifest tells what it will be.
    text = json_text(without_places(result.record(), places))
    with staying_own(folder):
        write_manifest(folder, {"result.json": text})
        write_whole(folder / "result.json", text)
    return result


def _with_files(case: Case, files: Sequence[JudgedFile]) -> Case:
    own = {one.what: one.sha256 for one in files if one.case == case.name}
    return case.model_copy(update={"files": own}) if own else case


def _places(sources: Sequence[Source], folder: Path) -> list[str]:
    """The paths that a run reads and writes, which messages may repeat and results do not."""
    named = [path for one in sources for path in paths_in(to_jsonable_python(one.recipe, fallback=str))]
    return list(dict.fromkeys([*named, *(str(source.observed) for source in sources), str(folder.absolute())]))


def _kind(knowledge: Knowledge) -> Kind:
    """Kind of the examples, by their shape."""
    if vocabulary_of(knowledge.model) is not None:
        return "texts"
    return "pictures" if is_image(knowledge.input_shape) else "records"


def membership_rows(source: Source, folder: Path) -> list[MembershipRow]:
    """The rows of a case's membership tests; none where they were not asked for or could not be made."""
    plan = source.recipe.membership
    if plan is None or source.private is None or not (source.private / FILE).exists():
        return []
    members = open_members(source.private)
    rows = []
    for use in plan.tests:
        judgment = open_judgment(judgment_path(folder, source.name, use))
        name = use.replace(":", ".")
        rows.append(make_membership_row(source.name, name, judgment, members, plan.level, seed=source.recipe.seed))
    return rows


def _skipped_case(source: Source) -> CaseSummary:
    """The summary of a case that could not be recorded: one row per attack with the reason."""
    assert source.private is not None
    case, recipe = read_case(source.private, source.name), source.recipe
    known, reason = sorted(recipe.knowledge.known), str(case.skipped)
    rows = [skipped_row(recipe, source.name, name, attack, known, reason) for name, attack in _named_attacks(recipe)]
    return case, rows, [], [], None


def _named_attacks(recipe: Recipe) -> list[tuple[str, Attack]]:
    return list(zip(attack_names(recipe.attack), map(recipe.make_attack, recipe.attack), strict=True))


def _summarize_case(source: Source, folder: Path, looked: Look | None) -> CaseSummary:
    """Everything that a report says of one case: its facts, rows of its attacks, diagnostics and score lines.

    Args:
        source: The case's recording.
        folder: The run folder.
        looked: What is to be said of the update without an attack; None: it is looked at here.
    """
    transcript = source.open("cpu")
    truth = None if source.private is None else _truth_for(transcript, source)
    said, (seen, look) = _said(source), looked or _look(source, transcript)
    recipe, promise = source.recipe, _guarantee(source.recipe) if source.simulated else None
    case = _case_of(source, transcript)
    said = {**(case.inferred or {}), **said}
    guessed = bool(RULE & said.keys())
    known = {
        "inferred": said,
        "client": f"{case.client} (inferred or assumed, not stated)" if guessed else case.client,
        "exposure": look.get("line"),
        "promise": promise,
        "assumed_update": assumed_update(transcript),
    }
    refused = refusals(transcript, {part.use for part in recipe.attack})
    changed = seen is not None and any(one.name in CHANGES_VALUES for one in seen.defenses)  # equal rows prove less
    known["exposed_examples"] = None if seen is None else 0 if changed else seen.examples
    known["exposed_of"] = None if seen is None else seen.batch_size or seen.at_least
    case = case.model_copy(update={**known, "kind": _kind(transcript.knowledge), "refusals": refused})
    flags = [one.of(source.name) for one in _case_diagnostics(source, transcript, truth)]
    rows, lines = [], []
    compares = not source.simulated and transcript.knowledge.client.linear_in_gradient
    brought = truth.of_round(0) if truth is not None and compares else None
    off = None if brought is None else up_to_a_factor(_of_own_loss(compared_to_sent, transcript, brought), said)
    under = normalization_of_truth(transcript, brought) if brought is not None and contradicts(off) else None
    flags += [one.of(source.name) for one in contradiction_flags(transcript, off, said)]
    yardstick = _yardstick(source, transcript, truth)
    for name, attack in _named_attacks(recipe):
        row, scores = _score_attack(source.name, name, attack, folder, transcript, truth, yardstick)
        unknown = {*said, *["client rule"] * guessed}
        row = row.model_copy(update={"known": [item for item in row.known if item not in unknown]})
        rows.append(row)
        findings = [*attack_diagnostics(row, contradicted=contradicts(off)), *alignment_diagnostics(row)]
        flags += [one.of(source.name, name) for one in findings]
        lines += _score_lines(source.name, name, scores, truth) if scores else []
    if any(row.certified is not None and row.certified.wrong for row in rows):
        case = case.model_copy(update={"exposed_examples": None})  # a certificate was wrong: equal rows prove nothing
    if not source.simulated:
        at_once = None if seen is None else seen.at_once
        case = case.model_copy(update={"caveats": caveats(transcript, rows, at_once, said, off, under)})
    return case, rows, flags, lines, look


T = TypeVar("T")


def _of_own_loss(measure: Callable[[Transcript, Any], T], transcript: Transcript, truth: Any) -> T | None:
    """What a loss gives on the truth; None of a user's own that takes more than logits, as of several outputs."""
    try:
        return measure(transcript, truth)
    except SeepageError:
        if transcript.knowledge.client.loss in LOSSES:
            raise
        return None


def _takes_own_code(sources: Sequence[Source]) -> bool:
    """Whether an attack or the model is third-party code, which scoring a run later executes only if trusted."""
    models = [source.architecture for source in sources if source.architecture is not None]
    attacks = [part.table() for source in sources for part in source.recipe.attack]
    return bool(own_code({"attack": attacks, "model": [{"use": m.use, "options": dict(m.options)} for m in models]}))


def _said(source: Source) -> dict[str, str]:
    """Name of each fact that the attacker inferred instead of stated, to its source."""
    said = read_facts(source.observed).said
    if source.batch_size is not None:
        said.pop("batch size", None)
    return said | ({"batch size": source.inferred} if source.inferred else {})


def looks_of(sources: Sequence[Source], show: ProgressCallback = no_progress) -> dict[str, Look]:
    """What each case's update reveals without an attack: before attacks, whose deadline then leaves nothing but scores.

    Args:
        sources: The cases.
        show: Called with progress messages.
    """
    found = dict[str, Look]()
    for i, source in enumerate(sources):
        show(i, len(sources), Doing(source.name if len(sources) > 1 else "", Phase.LOOKING))
        if not source.skipped:
            found[source.name] = _look(source, source.open("cpu"))
    return found


def _look(source: Source, transcript: Transcript) -> Look:
    try:
        found = exposure(transcript)
        table = {key: value for key, value in found.table().items() if key != "marks"}  # long, and no report shows it
        return found, {"case": source.name, "line": found.line, **table}
    except SeepageError as error:
        return None, {"case": source.name, "failed": str(error)}


def _case_of(source: Source, transcript: Transcript) -> Case:
    """The case's facts; for a recording made elsewhere, those that its transcript states."""
    if source.private is not None and (source.private / "case.json").exists():
        return read_case(source.private, source.name)
    return case_of_recording(source.name, transcript)


def _truth_for(transcript: Transcript, source: Source) -> Truth:
    """The truth, after a check that it belongs to this transcript."""
    assert source.private is not None
    truth = _opened(source.private, transcript.knowledge)
    # Rounds over one data set may number thousands, and reading or recomputing each is slow: check the first only.
    looked = 1 if truth.draws is not None else len(transcript)
    problem = misfit(truth, len(transcript), [transcript[t].batch_size for t in range(looked)], transcript.knowledge)
    if problem is not None:
        remedy, counts = "name the private/ folder that belongs to this recording", (truth.of_round(0), transcript[0])
        if source.private.is_file() and len(counts[0]) != (counts[1].batch_size or len(counts[0])):
            remedy = (
                f"give the batch of this update; if this is all of it, attack it with --batch-size {len(counts[0])}"
            )
        raise SeepageError(f"the truth in {source.private} {problem}; {remedy}")
    return truth


def _opened(place: Path, knowledge: Knowledge) -> Truth:
    """The truth of a `private/` folder, or one batch of all examples of a data file or image folder."""
    if (place / "truth.safetensors").exists() or not place.exists():
        return open_truth(place)
    shape, vocabulary = knowledge.input_shape, vocabulary_of(knowledge.model)
    if vocabulary is not None and place.suffix.lower() == ".npz":
        # Fields may have tables of unlike length.
        rows = [one.num_embeddings for one in knowledge.model.modules() if isinstance(one, Table)]
        return Truth((_numbered(load_tokens(place, max([vocabulary, *rows])), knowledge),))
    pictures = len(shape) == 3 and shape[0] in (1, 3)
    if place.suffix.lower() == ".npz":
        own = load_shaped(place, shape)
        known = own if own is None else _before_network(own, knowledge)
        # Pictures and rows of a table in [0, 1] are read below, with the names of their columns.
        other = knowledge.value_range != (0.0, 1.0) or (own is not None and not in_range(own.inputs, (0.0, 1.0)).all())
        as_it_is = other or (len(shape) > 1 and not pictures) or getattr(knowledge.client, "target", "") == "input"
        as_it_is |= knowledge.client.loss not in LOSSES  # whose labels may be anything, as of several heads
        if known is not None and (known is not own or as_it_is):
            return Truth((_numbered(known, knowledge),))
    channels, size = (shape[0], shape[-1]) if len(shape) == 3 else (None, None)
    dataset = data.load(str(place), size=size, channels=channels, split=1.0)
    whole, units = dataset.batch(torch.arange(len(dataset))), getattr(dataset, "units", None)
    # How a client scaled its targets is not known here: they are taken as they stand in the file.
    whole = whole if units is None else replace(whole, labels=units.own(whole.labels))
    return Truth((_numbered(whole, knowledge),))


def _numbered(whole: Batch, knowledge: Knowledge) -> Batch:
    """The batch with whole numbers for classes 0. and 1., as a loss of one logit takes them.

    Of an autoencoder its labels are its inputs, whatever the file has.
    """
    if getattr(knowledge.client, "target", "labels") == "input":
        outputs = output_shape(knowledge.model, dict(knowledge.model.named_parameters()), None, knowledge.input_shape)
        return with_inputs(whole, outputs)
    numbers = whole.labels.reshape(-1)
    if knowledge.target == "map" and whole.labels.ndim == 1:  # one place, as of `[n, classes, 1]`
        outputs = output_shape(knowledge.model, dict(knowledge.model.named_parameters()), None, knowledge.input_shape)
        return replace(whole, labels=numbers.reshape(-1, *outputs[1:])) if set(outputs[1:]) == {1} else whole
    if knowledge.target == "class" and len(numbers) == len(whole) and bool((numbers == numbers.round()).all()):
        return replace(whole, labels=numbers.long())
    return whole


def _before_network(batch: Batch, knowledge: Knowledge) -> Batch:
    """Inputs that a file holds as the network reads them, out of the range of guesses, by the run's normalization."""
    how = {} if knowledge.architecture is None else knowledge.architecture.options
    if "normalize" not in how or in_range(batch.inputs, knowledge.value_range).all():
        return batch
    ends = (torch.tensor(part).reshape(-1, *[1] * (batch.inputs.ndim - 2)) for part in statistics_of(how["normalize"]))
    mean, std = ends
    return replace(batch, inputs=batch.inputs * std + mean)


def _guarantee(recipe: Recipe) -> Guarantee | None:
    defense = recipe.make_defense()
    if guarantee_of(defense) is None:  # checked before thousands of rounds are read
        return None
    most = recipe.make_client().max_participations(recipe.batch.size)
    return guarantee_of(defense, rounds_taken(recipe), participations=most)


def _case_diagnostics(source: Source, transcript: Transcript, truth: Truth | None) -> list[Finding]:
    """Findings on one case apart from its attacks: its model, updates, guarantee, number of examples and metrics.

    Args:
        source: The case's recording.
        transcript: The same, opened.
        truth: The private batches; None: not at hand, so that nothing is said of samples and metrics.
    """
    knowledge = transcript.knowledge
    rule = source.recipe.make_client() if source.simulated else knowledge.client
    # Attacks follow the client's rule exactly only where it has no dropout masks or rounding of its own; of one that
    # was captured nobody knows.
    followed = source.simulated and rule.read_as == rule
    found = diagnostics.model_diagnostics(knowledge.model, rule.mode, followed=followed)
    losses = _of_own_loss(diagnostics.example_losses, transcript, list(truth)) if truth is not None else []
    # Rounds over one data set, whose indices are known, may number thousands: only the first is opened.
    opened = 1 if "indices" in knowledge.known else len(transcript)
    found += diagnostics.update_diagnostics(transcript, opened, losses or [])
    found += diagnostics.guarantee_diagnostics(_guarantee(source.recipe) if source.simulated else None)
    if truth is not None:
        scored, indexed = sum(len(batch) for batch in truth), "indices" in knowledge.known
        found += diagnostics.sample_diagnostics(scored, len(truth), indexed=indexed)
        asked = source.recipe.score.lpips or "lpips" in source.recipe.score.metrics
        found += diagnostics.metric_diagnostics(asked, knowledge.input_shape)
    return found


def _attempts(place: Path) -> dict[int, Attempt]:
    """Round to attempt of one attack on one case; an attack on all rounds together has one attempt, at round 0."""
    found = {int(path.stem): path for path in sorted(place.glob("*.json")) if path.stem.isdigit()}
    if not found:
        raise SeepageError(f"{place} has no outcome, so the run was cut short; run the same command again to go on")
    return {t: open_attempt(path.with_suffix("")) for t, path in found.items()}


def _yardstick(source: Source, transcript: Transcript, truth: Truth | None) -> Yardstick:
    """What the guesses on a case are measured with; nothing, without a truth."""
    knowledge, scoring = transcript.knowledge, source.recipe.score
    if truth is None:
        return Yardstick(value_range=knowledge.value_range)
    return Yardstick(
        metrics=metrics_for(scoring, knowledge.input_shape),
        limits=scoring.limits,
        value_range=knowledge.value_range,
        units=truth.units,
        typical=truth.typical,
        target=knowledge.target,
        blocks=knowledge.blocks,
        seed=source.recipe.seed,
    )


def _score_attack(
    case: str, name: str, attack: Attack, folder: Path, transcript: Transcript, truth: Truth | None, by: Yardstick
) -> tuple[Row, Scores | None]:
    """Score an attack on a case, and write its guesses, aligned with the truth, for the report."""
    attempts = _attempts(folder / "attacks" / case / name)
    everything, found = attack.rounds == "all", list(attempts.values())
    views = [transcript if everything else OneRound(transcript, t) for t in attempts]
    batches, scored, tensors = None, None, dict[str, torch.Tensor]()
    if truth is None:
        for t, attempt in attempts.items():
            tensors |= _as_found(t, attempt, by.value_range)
    else:
        batches = [truth.whole if everything else truth.of_round(t) for t in attempts]
        scored = scores_of(found, batches, by)
        for t, place, attempt in zip(attempts, () if scored is None else scored.alignments, found, strict=False):
            tensors |= _aligned_round(t, place, truth, whole=everything) if attempt.reconstruction else {}
    if tensors:
        write_tensors(folder / "reconstructions" / case / f"{name}.safetensors", tensors)
    row = make_row(case, name, found, views, batches, scored, attack)
    return row, None if scored is None else scored.scores


def _as_found(t: int, attempt: Attempt, value_range: tuple[float, float]) -> Tensors:
    """The guesses for the report in the attack's own order, for runs without a truth."""
    found = attempt.reconstruction
    if found is None or found.space != "input":
        return {}
    matched = torch.ones(len(found), dtype=torch.bool)
    inputs = found.inputs.clamp(*value_range) if found.inputs.is_floating_point() else found.inputs
    sure = {} if found.certified is None else {f"{t:06d}/certified": found.certified}
    return {f"{t:06d}/inputs": inputs, f"{t:06d}/matched": matched, **sure}


def _aligned_round(t: int, place: Alignment | TextAlignment, truth: Truth, *, whole: bool) -> Tensors:
    """The guesses for the report in the order of the truth: that of the round, or of the shared data set."""
    guesses, matched = place.guesses, place.matched
    guesses = guesses.float() if guesses.is_floating_point() else guesses  # text stays whole numbers
    if truth.draws is not None and not whole:
        drawn = truth.of_round(t).indices
        spread = torch.full((len(truth[0]), *guesses.shape[1:]), 0.5)
        known = torch.zeros(len(truth[0]), dtype=torch.bool)
        spread[drawn], known[drawn] = guesses, matched
        t, guesses, matched = 0, spread, known
    return {f"{t:06d}/inputs": guesses, f"{t:06d}/matched": matched}


def _score_lines(case: str, attack: str, scores: Scores, truth: Truth | None) -> list[dict[str, Any]]:
    """One line per example and metric; with a shared data set, `example` is the index in it and the round is 0."""
    per_example = len(scores.metrics)
    rounds = [int(b) for b in scores.batches for _ in range(per_example)]
    lines = []
    for t, row in zip(rounds, scores.rows, strict=True):
        facts = asdict(row)
        if truth is not None and truth.draws is not None and scores.examples != len(truth[0]):
            facts["example"] = int(truth.draws[t][row.example])
            t = 0
        lines.append({"schema": SCHEMA, "case": case, "attack": attack, "round": t, **facts})
    return lines
