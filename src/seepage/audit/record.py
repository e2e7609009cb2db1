"""Record the cells of an audit: train the model, let the client compute its updates, write both sides to disk."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seepage import data
from seepage.core.nn import generator, state_of
from seepage.core.progress import ProgressCallback, no_progress
from seepage.core.storage import SCHEMA, check_space, read_json, write_json
from seepage.errors import Diverged, Inapplicable, SeepageError
from seepage.metrics import baselines, psnr, ssim
from seepage.models import build
from seepage.recipe.auxiliary import auxiliary_images
from seepage.recipe.case import Recipe
from seepage.registry import Spec
from seepage.simulate.shares import UNSEEN, Held, clients_of, train_federation
from seepage.simulate.training import accuracy, begin, train
from seepage.transcript.recorded import open_knowledge, save_transcript
from seepage.transcript.simulated import Victim
from seepage.transcript.truth import Truth, open_truth, save_truth
from seepage.transcript.vertical import IndexedTranscript, IndexedVictim
from seepage.types import Batch, Knowledge, Tensors, check_finite


def place_of(folder: Path, part: str, recipe: Recipe, recipes: Sequence[Recipe]) -> Path:
    """`folder/part`, with a folder per cell where there are several."""
    return folder / part / recipe.cell if len(recipes) > 1 else folder / part


KEPT = 2**28
"""Bytes of rounds that are written beside their data; more of them are made anew whenever they are read."""


class Skipped(SeepageError):
    """This cell cannot be recorded, and the others may."""


def record_cells(
    recipes: Sequence[Recipe], folder: Path, show: ProgressCallback = no_progress, *, keep: int = KEPT
) -> None:
    """Write `observed/` and `private/` of every cell that does not have them yet.

    A cell of several that cannot be recorded is left out: its `private/` says why.

    Args:
        recipes: The cells.
        folder: The run folder.
        show: Progress.
        keep: Bytes of rounds over one data set that are written; more are made anew whenever they are read.

    Raises:
        SeepageError: For mistakes in the recipe or the data, and where no cell at all can be recorded.
    """
    sets: dict[str, data.Dataset] = {}
    trained: dict[str, tuple[Tensors, Tensors]] = {}
    skipped: list[SeepageError] = []
    for number, recipe in enumerate(recipes):
        observed, private = (place_of(folder, part, recipe, recipes) for part in ("observed", "private"))
        if is_skipped(private) or ((observed / "knowledge.json").exists() and (private / "cell.json").exists()):
            continue
        show(number, len(recipes), f"recording {recipe.cell}" if len(recipes) > 1 else "recording")
        try:
            _record_cell(recipe, observed, private, sets, trained, keep, folder, show)
        except (Skipped, Inapplicable, Diverged) as error:
            skipped.append(error)
            if len(skipped) == len(recipes):
                raise
            write_json(private / "cell.json", {**_names(recipe), "skipped": str(error)})


def is_skipped(private: Path) -> bool:
    """Whether a cell was left out."""
    path = private / "cell.json"
    return path.exists() and "skipped" in read_json(path)


def _record_cell(
    recipe: Recipe,
    observed: Path,
    private: Path,
    sets: dict[str, data.Dataset],
    trained: dict[str, tuple[Tensors, Tensors]],
    keep: int,
    folder: Path,
    show: ProgressCallback,
) -> None:
    dataset = open_data(recipe, sets)
    model = built_model(recipe, dataset)

    def batch_of(indices: Tensor) -> Batch:
        return dataset.batch(indices).to(recipe.device)

    key = f"{recipe.data}/{recipe.seed}/{recipe.model}/{recipe.training}"
    if key not in trained:
        trained[key] = train(model, state_of(model), batch_of, dataset.train, recipe.training, seed=recipe.seed)
    state, parts, unseen, federation = _scene(recipe, dataset, model, trained[key], folder, show)
    batches = [batch_of(part) for part in parts]
    auxiliary = _auxiliary(recipe, dataset, batches)
    knowledge = Knowledge(
        model=model,
        client=recipe.make_client(),
        input_shape=dataset.input_shape,
        num_classes=len(dataset.classes),
        told=frozenset(recipe.knowledge.told) | ({"auxiliary"} if auxiliary is not None else set()),  # type: ignore[arg-type]
        defense=recipe.make_defense() if "defense" in recipe.knowledge.told else None,
        auxiliary=auxiliary,
        architecture=recipe.architecture,
    )
    victim, truth = _victim(recipe, knowledge, state, batches)
    _check_computes(victim, recipe)
    save_truth(truth, private)
    # Unseen examples that are not attacked either; a tiny data set may have none left.
    test = batch_of(unseen[:UNSEEN]) if len(unseen) else None
    facts = _cell_facts(recipe, dataset, list(truth), sum(p.numel() for p in state[0].values())) | federation
    facts["accuracy"] = None if test is None else round(accuracy(model, state, test), 4)
    facts["accuracy_examples"] = None if test is None else len(test)
    size = sum(p.nbytes for p in state[0].values())
    kept = recipe.rounds is None or recipe.rounds.count * size <= keep
    check_space(observed, size * (len(victim.transcript()) if kept else 1))
    save_transcript(victim.transcript(), observed, rounds=kept)
    write_json(private / "cell.json", facts)


def _auxiliary(recipe: Recipe, dataset: data.Dataset, batches: Sequence[Batch]) -> Tensor | None:
    """The attacker's own images, if the recipe gives any."""
    if recipe.auxiliary is None:
        return None
    attacked = [batch.inputs for batch in batches]
    return auxiliary_images(recipe.auxiliary, dataset, attacked, recipe.seed).to(recipe.device)


def open_data(recipe: Recipe, sets: dict[str, data.Dataset]) -> data.Dataset:
    """The recipe's data, loaded once for all recipes that share `sets`."""
    key = f"{recipe.data}/{recipe.seed}"
    if key not in sets:
        options = {"seed": recipe.seed, **recipe.data.options}
        if "root" in options:
            options["root"] = Path(options["root"])
        sets[key] = data.load(recipe.data.use, **options)
    _check_enough(recipe, sets[key])
    return sets[key]


def _scene(
    recipe: Recipe,
    dataset: data.Dataset,
    model: torch.nn.Module,
    state: tuple[Tensors, Tensors],
    folder: Path,
    show: ProgressCallback,
) -> tuple[tuple[Tensors, Tensors], Sequence[Tensor], Tensor, dict[str, Any]]:
    """The audited state, the places of each audited batch, those of unseen examples, and facts of the federation."""
    if recipe.federation is None:
        order = torch.randperm(len(dataset.private), generator=generator(recipe.seed, "victims"))
        chosen, rest = (dataset.private[part] for part in order.tensor_split([_examples(recipe)]))
        return state, _parts(recipe, chosen), rest, {}
    held = Held.of(recipe, dataset)
    victims = held.victims(recipe)

    def progress(done: int, total: int) -> None:
        show(done, total, "training: rounds" if recipe.cell == "cell" else f"training: rounds of {recipe.cell}")

    clients = clients_of(recipe, dataset, held, model)
    stage = train_federation(recipe, clients, state, folder / "private", progress)
    return (stage.params, stage.buffers), victims, held.test, {"federation": held.facts(stage)}


def _examples(recipe: Recipe) -> int:
    """Private examples that are attacked."""
    return recipe.batch.size * recipe.batch.count if recipe.rounds is None else recipe.rounds.samples


def _parts(recipe: Recipe, chosen: Tensor) -> Sequence[Tensor]:
    return chosen.split(recipe.batch.size) if recipe.rounds is None else [chosen]


def _victim(
    recipe: Recipe, knowledge: Knowledge, state: tuple[Tensors, Tensors], batches: Sequence[Batch]
) -> tuple[Victim | IndexedVictim, Truth]:
    """The client or clients, and what they hold."""
    (params, buffers), defense = state, recipe.make_defense()
    if recipe.rounds is None:
        victim = Victim(knowledge, params, batches.__getitem__, len(batches), buffers, defense, recipe.seed)
        return victim, Truth(tuple(batches))
    rounds, whole = recipe.rounds, batches[0]
    held = Batch(whole.inputs, whole.labels, torch.arange(len(whole)))
    design = rounds.drawn(recipe.batch.size, recipe.seed)
    indexed = IndexedVictim(knowledge, params, held, design, rounds.count, buffers, defense, recipe.seed, rounds.server)
    draws = pad_sequence([design.indices(t) for t in range(rounds.count)], batch_first=True, padding_value=-1)
    return indexed, Truth((held,), draws)


def made_anew(recipe: Recipe, observed: Path, private: Path, device: str) -> IndexedTranscript:
    """The transcript of a cell whose rounds are too many to keep, from its private data."""
    knowledge, state = open_knowledge(observed, device=device)
    victim, _ = _victim(recipe, knowledge, state, [open_truth(private).whole.to(device)])
    transcript = victim.transcript()
    assert isinstance(transcript, IndexedTranscript)  # its rounds are drawn from one data set, else they were kept
    return transcript


def built_model(recipe: Recipe, dataset: data.Dataset) -> torch.nn.Module:
    """The recipe's fresh model, on its device."""
    try:
        model = build(recipe.architecture, dataset.input_shape, len(dataset.classes), seed=recipe.seed)
    except SeepageError as error:
        raise Skipped(str(error)) from error
    begin(model, recipe.training, recipe.architecture, len(dataset.classes), seed=recipe.seed)
    model = model.to(recipe.device)
    _check_takes(model, recipe, dataset)
    return model


def _check_enough(recipe: Recipe, dataset: data.Dataset) -> None:
    if len(dataset.classes) < 2:
        raise Skipped(
            f"{dataset.name} has one class only, and a classifier of one class has no loss to send a gradient of; "
            "give the examples labels"
        )
    needed = _examples(recipe)
    if needed > len(dataset.private) and recipe.rounds is not None:
        raise Skipped(
            f"the rounds draw from {needed} private examples and {dataset.name} has {len(dataset.private)}; "
            "lower rounds.samples"
        )
    if needed > len(dataset.private):
        raise Skipped(
            f"{recipe.batch.count} batches of {recipe.batch.size} need {needed} private examples and {dataset.name} "
            f"has {len(dataset.private)}; lower batch.size or batch.count, or raise data.split"
        )
    if recipe.training.steps and not len(dataset.train):
        raise SeepageError(f"{dataset.name} has no examples to train on; lower data.split or set training.steps=0")


def _check_takes(model: torch.nn.Module, recipe: Recipe, dataset: data.Dataset) -> None:
    """Try the model on two examples, so that a misfit is one sentence and not a traceback."""
    probe = torch.zeros(2, *dataset.input_shape, device=recipe.device)
    try:
        with torch.no_grad():
            output = model.eval()(probe)
    except Exception as error:  # whatever a stranger's forward may raise
        raise Skipped(
            f"the model {recipe.model.use!r} cannot take inputs of shape {dataset.input_shape} ({error}); "
            "choose another model, or change the data with --set data.size=… or data.channels=…"
        ) from error
    finally:
        model.train()
    if not isinstance(output, torch.Tensor) or output.shape != (2, len(dataset.classes)):
        found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise SeepageError(
            f"the model {recipe.model.use!r} returns {found} for 2 examples and {len(dataset.classes)} classes; "
            f"it must return logits of shape (2, {len(dataset.classes)})"
        )


def _check_computes(victim: Victim | IndexedVictim, recipe: Recipe) -> None:
    """Compute one update, so that batch norm on a single value is one sentence and not a traceback.

    Training that overflows, as under a strong defense, leaves out its cell and no other.
    """
    try:
        sent = victim.update(0)
    except ValueError as error:
        raise Skipped(
            f"the client cannot compute an update of {recipe.model} on a batch of {recipe.batch.size} ({error}); "
            "use a larger --batch-size, larger images (--set data.size=64), or --set client.mode=eval"
        ) from error
    try:
        check_finite(sent.tensors, 0)
    except SeepageError as error:
        raise Skipped(str(error)) from error


def _names(recipe: Recipe) -> dict[str, Any]:
    """What a cell is called."""
    rounds = recipe.rounds
    drawn = "" if rounds is None else f" of {rounds.samples}, {rounds.count} rounds ({rounds.design})"
    # A case has a name of its own; other cells may differ by an option of the model.
    words = [
        recipe.model.use if recipe.name == recipe.cell else str(recipe.model),
        f"batch {recipe.batch.size}{drawn}",
        _history(recipe),
    ]
    if recipe.client.use != "fedsgd" or recipe.client.options.get("clients", 1) > 1:
        words.append(_client_words(recipe.client))
    # Where cells differ by their defense, the one without says so.
    undefended = ["no defense"] if "defense-none" in recipe.cell else []
    words += map(str, recipe.defense) if recipe.defense else undefended
    words += ["which the attacker knows"] if recipe.defense and "defense" in recipe.knowledge.told else []
    words += [f"auxiliary images of {recipe.auxiliary}"] if recipe.auxiliary is not None else []
    title = ", ".join(words)
    return {"schema": SCHEMA, "name": recipe.cell, "title": title, "baselines": None}


def _client_words(part: Spec) -> str:
    """What clients do, for a title: `2 local epochs (lr 0.01, batch size 8)`."""
    options = dict(part.options)
    clients, steps, epochs = options.pop("clients", 1), options.pop("steps", None), options.pop("epochs", 1)
    words = [f"sum of {clients} clients"] if clients > 1 else []
    if part.use == "fedavg":
        count, what = (epochs, "local epoch") if steps is None else (steps, "local step")
        words.append(f"{count} {what}{'s' * (count != 1)}")
    rest = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())
    return ", ".join(words) + (f" ({rest})" if rest else "") if words else str(part)


def _history(recipe: Recipe) -> str:
    """How the model got where it is, in words."""
    plan = recipe.training
    words = [f"weights {Path(plan.weights).name}"] if plan.weights else ["wide start"] if plan.init == "wide" else []
    words += [f"trained {plan.steps} steps"] if plan.steps else []
    if recipe.federation is not None and recipe.federation.rounds:
        words.append(f"{recipe.federation.rounds} rounds of {recipe.federation.clients} clients ({recipe.partition})")
    return ", ".join(words) or "freshly initialized"


def _cell_facts(recipe: Recipe, dataset: data.Dataset, batches: Sequence[Batch], parameters: int) -> dict[str, Any]:
    defense = recipe.make_defense()
    return {
        **_names(recipe),
        "model": recipe.model.use,
        "model_options": dict(recipe.model.options),
        "data": dataset.name,
        "data_source": dataset.source,
        "batch_size": recipe.batch.size,
        "batches": recipe.batch.count,
        "rounds": None if recipe.rounds is None else asdict(recipe.rounds),
        "training_steps": recipe.training.steps,
        "history": _history(recipe),
        "defense": None if defense is None else repr(defense),
        "client": repr(recipe.make_client()),
        "classes": list(dataset.classes),
        "parameters": parameters,
        "baselines": _baselines(batches, recipe.seed),
    }


def _baselines(batches: Sequence[Batch], seed: int) -> dict[str, dict[str, float | None]]:
    truth = torch.cat([batch.inputs for batch in batches]).cpu()
    image = truth.ndim == 4
    return {
        name: {
            "psnr": round(float(psnr(guess, truth).mean()), 2),
            "ssim": round(float(ssim(guess, truth).mean()), 4) if image else None,
        }
        for name, guess in baselines(truth, seed=seed).items()
    }
