"""The epsilon of each case's defense, measured by calling it: `epsilon/CASE.json` in a run folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seepage.audit.attack import Source
from seepage.audit.recipe.case import Recipe
from seepage.audit.row import EpsilonRow
from seepage.base.progress import Doing, Phase, ProgressCallback, no_progress
from seepage.base.schema import parse
from seepage.base.storage import SCHEMA, check_schema, read_json, write_json
from seepage.errors import Inapplicable
from seepage.measure.privacy.guarantee import guarantee_of
from seepage.measure.privacy.measured import MeasuredEpsilon, Measurement, measure_defense


def rounds_taken(recipe: Recipe) -> Sequence[int]:
    """The rounds whose privacy adds up, for what the defense protects: those that it takes part in.

    Args:
        recipe: One case.
    """
    defense, rounds = recipe.make_defense(), recipe.rounds
    once = guarantee_of(defense)
    if rounds is not None and once is not None and once.unit == "example":
        # Every round sends an update, but an example takes part in some.
        return rounds.drawn(recipe.batch.size, recipe.seed).busiest(rounds.count)
    if defense is not None and defense.follows_training and recipe.federation is not None:
        return range(recipe.federation.rounds, recipe.federation.rounds + 1)  # the audited one has had time to decay
    return range(1 if rounds is None else rounds.count)


def measure_cases(sources: Sequence[Source], folder: Path, show: ProgressCallback = no_progress) -> None:
    """Measure the defense of every case that asks for it and was not measured yet; each kind of defense once."""
    todo = [
        (source.name, source.recipe)
        for source in sources
        if source.recipe.epsilon is not None and source.recipe.defense and not _path(folder, source.name).exists()
    ]
    known: dict[str, EpsilonRow] = {}
    for number, (name, recipe) in enumerate(todo):
        key = repr((recipe.defense, recipe.epsilon, recipe.seed, recipe.client, recipe.batch.size, recipe.rounds))
        if key not in known:

            def step(done: float, total: float, number: int = number, case: str = name) -> None:
                words = f"the epsilon of {case}'s defense"
                show(number + min(1.0, done / max(1.0, total)), len(todo), Doing(words, Phase.MEASURING))

            step(0.0, 1.0)
            known[key] = _measured(name, recipe, step)
        row = known[key].model_copy(update={"case": name})
        write_json(_path(folder, name), {"schema": SCHEMA, **row.model_dump(mode="json")})


def _path(folder: Path, case: str) -> Path:
    return folder / "epsilon" / f"{case}.json"


def _measured(case: str, recipe: Recipe, progress: Any) -> EpsilonRow:
    plan, defense = recipe.epsilon, recipe.make_defense()
    assert plan is not None
    assert defense is not None
    row = EpsilonRow(case=case, defense=repr(defense), delta=plan.delta, stated=plan.stated)
    try:
        how = Measurement(
            delta=plan.delta,
            rounds=len(rounds_taken(recipe)),
            stated=plan.stated,
            calls=plan.calls,
            seconds=plan.seconds,
            progress=progress,
        )
        participations = recipe.make_client().per_client.max_participations(recipe.batch.size)
        found = measure_defense(defense, how, participations=participations, seed=recipe.seed)
    except Inapplicable as error:
        return row.model_copy(update={"reason": str(error)})
    return row.model_copy(update=_facts(found))


def _facts(found: MeasuredEpsilon) -> dict[str, Any]:
    """The fields of a row."""
    fit = found.fit if found.fit is not None and found.fit.plausible and not found.deterministic else None
    low, fitted, high = (None, None, None) if fit is None else (round(end, 4) for end in fit.epsilon)
    claims = (("stated", found.stated, found.stated_verdict), ("computed", found.computed, found.computed_verdict))
    against = [
        f"the {name} epsilon of {claimed:.3g} is {verdict}"
        for name, claimed, verdict in claims
        if claimed is not None and verdict not in (None, "not contradicted")
    ]
    return {
        "rounds": found.rounds,
        "unit": found.unit,
        "computed": None if found.computed is None else round(found.computed, 4),
        "measured": round(found.low, 4),
        "ceiling": round(found.ceiling, 4),
        "fitted": fitted,
        "fitted_low": low,
        "fitted_high": high,
        "contradicted": against,
        "calls": found.calls,
        "seconds": round(found.seconds, 2),
        "words": found.line,
    }


def epsilon_row(source: Source, folder: Path) -> EpsilonRow | None:
    """The row of the epsilon measured on a case's defense; None where none was requested.

    Raises:
        SeepageError: For a damaged file.
    """
    path = _path(folder, source.name)
    if source.recipe.epsilon is None or not path.exists():
        return None
    facts = read_json(path)
    check_schema(facts, path)
    return parse(EpsilonRow, facts, str(path))
