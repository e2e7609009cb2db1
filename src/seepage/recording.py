"""Record the cells of an audit: train the model, let the client compute its updates, write both sides to disk."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from seepage import data
from seepage.errors import SeepageError
from seepage.federation import accuracy, train
from seepage.functional import generator, state_of
from seepage.metrics import baselines, psnr, ssim
from seepage.models import build
from seepage.recipe import Recipe
from seepage.storage import SCHEMA, write_json
from seepage.transcript import Victim, save_transcript, save_truth
from seepage.types import Batch, Knowledge, Tensors

Show = Callable[[float, float, str], None]
"""Called with (done, total, what) while a run goes on."""


def quiet(done: float, total: float, what: str) -> None:
    """Show nothing."""


def place_of(folder: Path, part: str, recipe: Recipe, recipes: Sequence[Recipe]) -> Path:
    """`folder/part`, with a folder per cell where there are several."""
    return folder / part / recipe.cell if len(recipes) > 1 else folder / part


def record_cells(recipes: Sequence[Recipe], folder: Path, show: Show = quiet) -> None:
    """Write `observed/` and `private/` of every cell that does not have them yet."""
    sets: dict[str, data.Dataset] = {}
    trained: dict[str, tuple[Tensors, Tensors]] = {}
    for number, recipe in enumerate(recipes):
        observed, private = (place_of(folder, part, recipe, recipes) for part in ("observed", "private"))
        if (observed / "knowledge.json").exists() and (private / "cell.json").exists():
            continue
        show(number, len(recipes), f"recording {recipe.cell}")
        _record_cell(recipe, observed, private, sets, trained)


def _record_cell(
    recipe: Recipe,
    observed: Path,
    private: Path,
    sets: dict[str, data.Dataset],
    trained: dict[str, tuple[Tensors, Tensors]],
) -> None:
    key = f"{recipe.data}/{recipe.seed}"
    if key not in sets:
        options = {"seed": recipe.seed, **recipe.data.options}
        if "root" in options:
            options["root"] = Path(options["root"])
        sets[key] = data.load(recipe.data.use, **options)
    dataset = sets[key]
    _check_enough(recipe, dataset)
    classes = len(dataset.classes)
    model = build(recipe.architecture, dataset.input_shape, classes, seed=recipe.seed).to(recipe.device)
    _check_takes(model, recipe, dataset)

    def batch_of(indices: torch.Tensor) -> Batch:
        return dataset.batch(indices).to(recipe.device)

    key = f"{key}/{recipe.model}/{recipe.training}"
    if key not in trained:
        trained[key] = train(model, state_of(model), batch_of, dataset.train, recipe.training, seed=recipe.seed)
    params, buffers = trained[key]
    order = torch.randperm(len(dataset.private), generator=generator(recipe.seed, "victims"))
    drawn = dataset.private[order[: recipe.batch.size * recipe.batch.count]].split(recipe.batch.size)
    batches = [batch_of(indices) for indices in drawn]
    knowledge = Knowledge(
        model=model,
        client=recipe.make_client(),
        input_shape=dataset.input_shape,
        num_classes=classes,
        told=frozenset(recipe.knowledge.told),  # type: ignore[arg-type]
        architecture=recipe.architecture,
    )
    defense = recipe.make_defense()
    victim = Victim(knowledge, params, batches.__getitem__, len(batches), buffers, defense, recipe.seed)
    _check_computes(victim, recipe)
    save_truth(batches, private)
    facts = _cell_facts(recipe, dataset, batches, sum(p.numel() for p in params.values()))
    rest = order[len(drawn) * recipe.batch.size :][:256]
    # Unseen examples that are not attacked either; a tiny data set may have none left.
    test = batch_of(dataset.private[rest]) if len(rest) else None
    facts["accuracy"] = None if test is None else round(accuracy(model, (params, buffers), test), 4)
    save_transcript(victim.transcript(), observed)
    write_json(private / "cell.json", facts)


def _check_enough(recipe: Recipe, dataset: data.Dataset) -> None:
    needed = recipe.batch.size * recipe.batch.count
    if needed > len(dataset.private):
        raise SeepageError(
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
        raise SeepageError(
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


def _check_computes(victim: Victim, recipe: Recipe) -> None:
    """Compute one update, so that batch norm on a single value is one sentence and not a traceback."""
    try:
        victim.update(0)
    except ValueError as error:
        raise SeepageError(
            f"the client cannot compute an update of {recipe.model} on a batch of {recipe.batch.size} ({error}); "
            "use a larger --batch-size, larger images (--set data.size=64), or --set client.mode=eval"
        ) from error


def _cell_facts(recipe: Recipe, dataset: data.Dataset, batches: Sequence[Batch], parameters: int) -> dict[str, Any]:
    defense = recipe.make_defense()
    words = [
        str(recipe.model),
        f"batch {recipe.batch.size}",
        f"trained {recipe.training.steps} rounds" if recipe.training.steps else "freshly initialized",
    ]
    return {
        "schema": SCHEMA,
        "name": recipe.cell,
        "title": ", ".join([*words, *(str(part) for part in recipe.defense)]),
        "model": recipe.model.use,
        "model_options": dict(recipe.model.options),
        "data": dataset.name,
        "data_source": dataset.source,
        "batch_size": recipe.batch.size,
        "batches": recipe.batch.count,
        "training_steps": recipe.training.steps,
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
