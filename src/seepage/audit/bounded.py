"""Upper bounds for any attacker, for the cases of a run: found by the audit, which holds the truth, beside the attacks.

private/[CASE/]bounds.json    the bounds of each batch, and why others do not hold
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seepage.audit.attack import Source
from seepage.audit.candidates import open_unseen
from seepage.audit.row import BoundRow
from seepage.base.progress import Doing, Phase, ProgressCallback, no_progress
from seepage.base.storage import SCHEMA, check_schema, read_json, write_json
from seepage.errors import SeepageError
from seepage.federation.transcript.truth import open_truth
from seepage.measure.bounds import BoundOptions, UpperBounds, upper_bounds

FILE = "bounds.json"
MOST_BATCHES = 4
"""Batches of a case that are bounded; one takes seconds."""


def bound_cases(sources: Sequence[Source], show: ProgressCallback = no_progress) -> None:
    """Find the bounds of every case that asks for them and has none yet."""
    todo = [
        source
        for source in sources
        if source.recipe.bounded and not source.skipped and source.private and not (source.private / FILE).exists()
    ]
    for number, source in enumerate(todo):
        show(number, len(todo), Doing(f"upper bounds on {source.name}", Phase.MEASURING))
        assert source.private is not None
        batches, reasons = _bounds(source)
        table = {"schema": SCHEMA, "batches": [found.table() for found in batches], "reasons": reasons}
        write_json(source.private / FILE, table)


def _bounds(source: Source) -> tuple[list[UpperBounds], list[str]]:
    """The bounds of each batch, and reasons why a case has none at all."""
    recipe = source.recipe
    plan = recipe.bounds
    assert plan is not None
    assert source.private is not None
    if recipe.rounds is not None:
        return [], ["its rounds draw from one data set, and bounds are of single batches; leave [rounds] out"]
    defense = recipe.make_defense()
    if defense is not None and defense.follows_training and recipe.federation is not None:
        return [], ["its noise follows the training, and bounds are of the noise that the recipe states"]
    transcript, truth = source.open("cpu"), open_truth(source.private)
    options = BoundOptions(
        public=open_unseen(source.private),
        candidates=plan.candidates,
        level=plan.level,
        exact_db=recipe.score.exact_db,
        value_range=transcript.knowledge.value_range,
    )
    found = []
    for t in range(min(len(transcript), MOST_BATCHES)):
        found.append(
            upper_bounds(
                truth.of_round(t),
                client=recipe.make_client(),
                defense=defense,
                options=replace(options, t=t),
            )
        )
    return found, []


def bound_rows(source: Source) -> list[BoundRow]:
    """The rows of a case: for each kind of bound the loosest over its batches, and why others do not hold.

    Raises:
        SeepageError: For a damaged file.
    """
    if not source.recipe.bounded or source.private is None or not (source.private / FILE).exists():
        return []
    path = source.private / FILE
    facts: Mapping[str, Any] = read_json(path)
    check_schema(facts, path)
    try:
        found = [one for batch in facts["batches"] for one in batch["bounds"]]
        reasons = [*facts["reasons"], *(why for batch in facts["batches"] for why in batch["reasons"])]
        rows = []
        for measure in dict.fromkeys(one["measure"] for one in found):
            alike = [one for one in found if one["measure"] == measure]
            rows.append(_row(source.name, max(alike, key=lambda one: float(one["value"])), len(alike)))
        return [*rows, *(BoundRow(case=source.name, reason=why) for why in dict.fromkeys(reasons))]
    except (KeyError, TypeError, ValueError) as error:
        raise SeepageError(f"{path} is damaged ({type(error).__name__}: {error}); delete it and run again") from error


def _row(case: str, one: Mapping[str, Any], batches: int) -> BoundRow:
    """The result row of a bound, given as JSON, over so many batches; numbers rounded to 4 decimals."""
    low, high = one["interval"]
    return BoundRow(
        case=case,
        measure=one["measure"],
        method=one["method"],
        value=round(float(one["value"]), 4),
        low=round(float(low), 4),
        high=round(float(high), 4),
        at=one["at"],
        words=one["line"],
        assumption=one["assumption"],
        binds=one["binds"],
        batches=batches,
    )
