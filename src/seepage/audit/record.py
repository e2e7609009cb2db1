"""Record the cases of an audit: train the model, compute the client's updates, write `observed/` and `private/`."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic_core import to_jsonable_python
from torch import Tensor

from seepage.audit.candidates import save_candidates, save_unseen
from seepage.audit.caveats import assumed_update
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.places import is_own, kind_of
from seepage.audit.row import Case, DrawnRounds
from seepage.audit.simulate.setting import MAX_UNSEEN, Setting, SharedParts, Skipped, taken_outputs
from seepage.audit.simulate.training import accuracy
from seepage.base.blocks import Block
from seepage.base.progress import Doing, Phase, ProgressCallback, no_progress
from seepage.base.registry import Spec, models
from seepage.base.schema import parse
from seepage.base.storage import SCHEMA, check_schema, check_space, make_private, read_json, write_json
from seepage.errors import Diverged, Inapplicable, NotFinite, SeepageError
from seepage.federation.clients import OwnStep, make_client
from seepage.federation.data import TableDataset, TextDataset
from seepage.federation.data.columns import places_in_words
from seepage.federation.models.trial import own_faults, sigmoid_words
from seepage.federation.transcript.recorded import save_transcript
from seepage.federation.transcript.simulated import Victim
from seepage.federation.transcript.truth import save_truth
from seepage.federation.transcript.vertical import IndexedVictim
from seepage.federation.types import Batch, Round, Transcript
from seepage.measure.metrics import baselines, is_image, psnr, ssim
from seepage.measure.metrics.rows import column_hits, row_metrics
from seepage.measure.metrics.text import frequent, frequent_share, rouge, tokens_of

FEWEST_TESTED, MOST_NUMBERS = 16, 2_400_000
"""Examples that a network's accuracy is measured on at least, where so many are left, and their numbers at most: of
224 pixels 16 images, of 32 pixels all that were set aside."""


def case_folder(folder: Path, part: str, case: str, cases: int) -> Path:
    """Path of a case's `observed` or `private` in a run folder; a run of a single case has no subfolder per case."""
    return folder / part / case if cases > 1 else folder / part


def case_folders(folder: Path, case: str, cases: int) -> tuple[Path, Path]:
    """Both of a case: `observed` and `private`."""
    return case_folder(folder, "observed", case, cases), case_folder(folder, "private", case, cases)


PIECES = "pieces.json"
COLUMNS = "columns.json"
"""Files in `private/` with what token numbers and a table's columns stand for, for the report."""


def record_cases(recipes: Sequence[Recipe], folder: Path, show: ProgressCallback = no_progress) -> None:
    """Write `observed/` and `private/` of every case that is not recorded yet.

    If one of several cases cannot be recorded, the others are, and its `private/` states the reason.

    Args:
        recipes: The cases.
        folder: The run folder.
        show: Called with progress messages.

    Raises:
        SeepageError: For mistakes in the recipe or the data, and where no case can be recorded.
    """
    shared = SharedParts()
    skipped: list[SeepageError] = []
    for number, recipe in enumerate(recipes):
        observed, private = case_folders(folder, recipe.case, len(recipes))
        if _is_recorded(observed, private):
            continue
        show(number, len(recipes), Doing(recipe.case if len(recipes) > 1 else "", Phase.RECORDING))
        try:
            with own_faults(recipe.model.use):
                later = [
                    one
                    for one in recipes[number + 1 :]
                    if not _is_recorded(*case_folders(folder, one.case, len(recipes)))
                ]
                same = [one for one in later if (one.model, one.data) == (recipe.model, recipe.data)]
                alike = sum((one.batch if one.rounds is None else one.rounds).count for one in same)
                _record_case(recipe, observed, private, shared, folder, show, alike)
        except (Skipped, Inapplicable, Diverged) as error:
            skipped.append(error)
            if len(skipped) == len(recipes):
                raise
            write_json(private / "case.json", named_case(recipe).model_copy(update={"skipped": str(error)}).record())
    for checkpoint in (folder / "private").glob("training-*.safetensors"):  # of no use once every case is recorded
        checkpoint.unlink()


def is_all_recorded(recipes: Sequence[Recipe], folder: Path) -> bool:
    """Whether every case is recorded, or could not be."""
    return all(_is_recorded(*case_folders(folder, recipe.case, len(recipes))) for recipe in recipes)


def _is_recorded(observed: Path, private: Path) -> bool:
    return is_skipped(private) or ((observed / "knowledge.json").exists() and (private / "case.json").exists())


def is_skipped(private: Path) -> bool:
    """Whether a case could not be recorded."""
    path = private / "case.json"
    return path.exists() and "skipped" in read_json(path)


def read_case(private: Path, name: str) -> Case:
    """The facts written when a case was recorded, under the name that it has in this run."""
    path = private / "case.json"
    facts = read_json(path)
    check_schema(facts, path)
    return parse(Case, {**facts, "name": name}, str(path))


def case_of_recording(name: str, transcript: Transcript) -> Case:
    """Facts of a case from a recording made elsewhere."""
    knowledge, first = transcript.knowledge, transcript[0]
    use = knowledge.architecture.use if knowledge.architecture else type(knowledge.model).__name__
    own, step = "" if name == "case" else f"{name}: ", first.update.step
    return Case(
        schema=SCHEMA,
        name=name,
        title=f"{own}{use}, {len(transcript)} recorded update{'s' if len(transcript) > 1 else ''}",
        model=use,
        model_options=dict(knowledge.architecture.options) if knowledge.architecture else {},
        data=None,
        data_source=None,
        batch_size=first.batch_size,
        batches=len(transcript),
        training_steps=None,
        defense=None,
        # What was inverted into a gradient was a step all the same.
        client=repr(knowledge.client) if step is None else f"one step of {step.name}, entries of {step.rate:.3g}",
        rate=first.update.rate,
        decayed=max(first.update.decayed.values(), default=0.0),
        input_shape=list(knowledge.input_shape),
        classes=[str(label) for label in range(knowledge.num_classes)],
        parameters=sum(p.numel() for p in first.params.values()),
        baselines=None,
        accuracy=None,
    )


def _record_case(
    recipe: Recipe,
    observed: Path,
    private: Path,
    shared: SharedParts,
    folder: Path,
    show: ProgressCallback,
    later: int,
) -> None:
    """Write one case; as many updates as `later` of the same size follow, for which there must be space too."""

    def progress(what: str, done: int, total: int) -> None:
        named = what if recipe.case == "case" else f"{what} of {recipe.case}"
        show(done, total, Doing(named, Phase.TRAINING))

    checkpoints = folder / "private"
    setting = Setting.of(recipe, shared, folder=checkpoints, progress=partial(progress, "the model"))
    setting = setting.after_federation(checkpoints, partial(progress, "rounds"))
    victim, truth = setting.victim()
    transcript = victim.transcript()
    first = _first_round(transcript, recipe)
    make_private(private, tighten=True)  # also where a recording is copied out of its run
    save_truth(truth, private)
    if isinstance(setting.dataset, TextDataset):
        write_json(private / PIECES, {"schema": SCHEMA, "pieces": list(setting.dataset.pieces)})
    if isinstance(setting.dataset, TableDataset) and setting.dataset.columns:
        columns = [column.record() for column in setting.dataset.columns]
        write_json(private / COLUMNS, {"schema": SCHEMA, "columns": columns})
    skipped = _record_membership(setting, observed, private)
    save_unseen(setting, private)
    check_space(observed, (len(transcript) + later) * sum(p.nbytes for p in setting.state[0].values()))
    save_transcript(transcript, observed, first=first, inferred=getattr(victim, "inferred", None))
    case = _case(setting, list(truth)).model_copy(update={"read_as": _read_as(victim, transcript)})
    write_json(private / "case.json", case.model_copy(update={"membership_skipped": skipped}).record())


def _read_as(victim: Victim | IndexedVictim, transcript: Transcript) -> str | None:
    """How attacks read what the client did, where that is another rule than its own, and how far off that is."""
    gaps = [victim.gap(t) for t in range(victim.rounds)] if isinstance(victim, Victim) else []
    found = [100 * gap for gap in gaps if gap is not None]
    if not found or not isinstance(victim, Victim):
        return None
    code = victim.rule is not None and isinstance(victim.rule.per_client, OwnStep)
    what = "the client's own code was run" if code else "the client draws or rounds what attacks cannot follow"
    low, high = f"{min(found):.2g}", f"{max(found):.2g}"
    apart = low if low == high else f"{low} to {high}"
    return f"{what}; attacks read it as {assumed_update(transcript)}; difference {apart} % of the update"


def _record_membership(setting: Setting, observed: Path, private: Path) -> str | None:
    """Write the examples of the membership tests, if the recipe has any; returns why there are none."""
    if setting.recipe.membership is None:
        return None
    try:
        save_candidates(setting.membership_parts(), observed, private)
    except Skipped as error:
        return str(error)
    return None


def _first_round(transcript: Transcript, recipe: Recipe) -> Round:
    """Compute the first round, so that an error such as batch norm on a single value becomes one sentence.

    If training overflows, as it may under a strong defense, only this case is skipped.
    """
    try:
        return transcript[0]
    except ValueError as error:
        raise Skipped(
            f"the client cannot compute an update of {recipe.model} on a batch of {recipe.batch.size} ({error}); "
            "use a larger --batch-size, larger images (--set data.size=64), or --set client.mode=eval"
        ) from error
    except NotFinite as error:
        raise Skipped(str(error)) from error


def named_case(recipe: Recipe) -> Case:
    """The name, title and options of a case, without measured facts."""
    rounds = recipe.rounds
    drawn = "" if rounds is None else f" of {rounds.samples}, {rounds.count} rounds ({rounds.design})"
    # A case of the recipe has its own name; cases of a grid may differ by an option of the model.
    words = [
        recipe.model.use if recipe.name == recipe.case else str(recipe.model),
        f"batch {recipe.batch.size}{drawn}",
        _history(recipe),
    ]
    if recipe.client.use != "fedsgd" or recipe.client.options.get("clients", 1) > 1:
        words.append(_client_words(recipe.client))
    elif recipe.client.options.get("mode") == "eval":
        words.append("eval mode")
    # If the cases differ in their defense, the undefended one is named as such.
    undefended = ["no defense"] if "defense" in recipe.varied else []
    words += map(str, recipe.defense) if recipe.defense else undefended
    words += ["its defense known to the attacker"] if recipe.defense and "defense" in recipe.knowledge.known else []
    if recipe.auxiliary is not None:
        use = recipe.auxiliary.use
        source = str(recipe.auxiliary) if use is None or recipe.score.names else kind_of(use)
        words.append(f"auxiliary images of {source}")
    beside: dict[str, Any] = {"control": True} if recipe.control else {}
    beside |= {} if recipe.twin is None else {"undefended": recipe.twin}
    return Case(schema=SCHEMA, name=recipe.case, title=", ".join(words), title_parts=words, baselines=None, **beside)


def _client_words(part: Spec) -> str:
    """Description of the client rule for a title, such as `2 local epochs (lr 0.01, batch size 8)`."""
    options = dict(part.options)
    clients, steps, epochs = options.pop("clients", 1), options.pop("steps", None), options.pop("epochs", 1)
    words = [f"sum of {clients} clients"] if clients > 1 else []
    if make_client(part).per_client.local_steps:
        count, what = (epochs, "local epoch") if steps is None else (steps, "local step")
        words.append(f"{count} {what}{'s' * (count != 1)}")
    rest = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())
    return ", ".join(words) + (f" ({rest})" if rest else "") if words else str(part)


def _history(recipe: Recipe) -> str:
    """Sentence about the initialization and training of the model."""
    plan = recipe.training
    words = [f"weights {Path(plan.weights).name}"] if plan.weights else ["wide start"] if plan.init == "wide" else []
    if not words and models.is_foreign(recipe.model.use):
        words = ["weights it comes with"]  # code of one's own, or a saved network, may bring trained ones
    words += [f"trained {plan.steps} steps"] if plan.steps else []
    if recipe.federation is not None and recipe.federation.rounds:
        words.append(f"{recipe.federation.rounds} rounds of {recipe.federation.clients} clients ({recipe.partition})")
    return ", ".join(words) or "freshly initialized"


def _case(setting: Setting, batches: Sequence[Batch]) -> Case:
    """The facts of a simulated case. Names of private data are left out unless `score.names` asks for them.

    Args:
        setting: The case's model, data and client.
        batches: Its private batches, for the baselines.
    """
    recipe, dataset = setting.recipe, setting.dataset
    # Names of private data and classes are names of files and folders, such as those of patients.
    hidden = is_own(recipe.data.use) and not recipe.score.names
    of_tokens = isinstance(dataset, TextDataset) and dataset.numbers is None
    defense = recipe.make_defense()
    # Examples that were neither trained on nor attacked; a tiny data set may have none left.
    numbers = math.prod(setting.knowledge.input_shape)
    tested = setting.unseen[: min(MAX_UNSEEN, max(FEWEST_TESTED, MOST_NUMBERS // numbers))]
    test = setting.batch(tested) if len(tested) else None
    loss = setting.knowledge.client.loss
    right = None if test is None else round(accuracy(setting.model, setting.state, test, loss), 4)
    facts = {
        "model": recipe.model.use,
        "model_options": to_jsonable_python(dict(recipe.model.options)),
        "data": kind_of(recipe.data.use) if hidden else dataset.name,
        "data_source": f"{len(dataset)} examples of one's own" if hidden else dataset.source,
        "batch_size": recipe.batch.size,
        "batches": recipe.batch.count,
        "rounds": None if recipe.rounds is None else DrawnRounds(**asdict(recipe.rounds)),
        "training_steps": recipe.training.steps,
        "history": _history(recipe),
        "defense": None if defense is None else repr(defense),
        "client": repr(recipe.make_client()),
        # The classes of a next token are the vocabulary, which no report lists.
        # Nor are the numbers of an autoencoder's example classes.
        "classes": []
        if of_tokens or setting.knowledge.client.target == "input"
        else [str(i) if hidden else name for i, name in enumerate(dataset.classes)],
        **({} if setting.knowledge.target == "class" else {"target": setting.knowledge.target}),
        "parameters": sum(p.numel() for p in setting.state[0].values()),
        "baselines": _text_baselines(batches, dataset)
        if isinstance(dataset, TextDataset)
        else _baselines(batches, recipe.seed, getattr(dataset, "typical", None), setting.knowledge.blocks),
        **setting.facts,
        **_inferred(setting),
        "accuracy": right,
        "accuracy_examples": None if test is None else len(test),
    }
    return named_case(recipe).model_copy(update=facts)


def _inferred(setting: Setting) -> dict[str, Any]:
    """Assumptions on a user's model and on the columns of a table, by name."""
    columns = setting.dataset.columns if isinstance(setting.dataset, TableDataset) else ()
    squashed = sigmoid_words(setting.model, setting.dataset.input_shape) if setting.knowledge.client.one_logit else None
    found = {"logits": taken_outputs(setting), "columns": places_in_words(columns), "outputs": squashed}
    said = {name: words for name, words in found.items() if words is not None}
    return {"inferred": said} if said else {}


def _baselines(
    batches: Sequence[Batch], seed: int, typical: Tensor | None, blocks: Sequence[Block]
) -> dict[str, dict[str, float | None]]:
    """Mean scores of guesses made without an attack, computed in the same way as the scores of attacks."""
    found: dict[str, list[dict[str, Tensor]]] = {}
    for batch in batches:
        truth = batch.inputs.cpu()
        for name, guess in baselines(truth, seed=seed, typical=typical).items():
            own = {"psnr": psnr(guess, truth)}
            own |= {"ssim": ssim(guess, truth)} if is_image(tuple(truth.shape[1:])) else {}
            own |= row_metrics(*column_hits(guess, truth, blocks)) if blocks and name == "typical" else {}
            found.setdefault(name, []).append(own)
    means: dict[str, dict[str, float | None]] = {name: {"ssim": None} for name in found}
    for name, parts in found.items():
        for key in parts[0]:
            means[name][key] = round(float(torch.cat([one[key] for one in parts]).mean()), 2 if key == "psnr" else 4)
    return means


def _text_baselines(batches: Sequence[Batch], dataset: TextDataset) -> dict[str, dict[str, float | None]]:
    """The same for text: the most frequent tokens of the texts that are not private."""
    public = dataset.ids[dataset.train]
    found = []
    for batch in batches:
        texts = batch.inputs.cpu()
        guess = frequent(texts, public)
        found.append(
            [[rouge(tokens_of(a), tokens_of(b), n) for n in (1, 2)] for a, b in zip(guess, texts, strict=True)]
        )
    means = torch.tensor([row for part in found for row in part], dtype=torch.float64).mean(0).tolist()
    shares = [frequent_share(batch.inputs.cpu(), public) for batch in batches]
    named = round(sum(shares) / len(shares), 4)
    return {"frequent": {"rouge_1": round(means[0], 4), "rouge_2": round(means[1], 4), "token_recall": named}}
