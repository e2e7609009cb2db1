"""Ask ahead, in seconds, whether gradient matching has a way to the truth: the landscape probe on a recipe's cells.

The auditor holds the batch, and the probe starts beside it. No attack runs, and nothing here reaches one.
"""

import time
from collections.abc import Mapping
from typing import Any

from seepage.attacks.matching.distances import Cosine
from seepage.attacks.matching.problem import Problem
from seepage.audit.folder import check_device
from seepage.audit.record import named_cell
from seepage.core.lock import scratch
from seepage.core.progress import Doing, Phase, ProgressCallback, no_progress
from seepage.core.schema import JsonRecord
from seepage.errors import Diverged, Inapplicable, NotFinite
from seepage.leakage import batch_norm_leaks, landscape
from seepage.leakage.batch_norm import BatchNormSummary
from seepage.leakage.landscape import PROBE_NOISE, Outlook, outlook
from seepage.models.vertical import VerticalModel
from seepage.recipe.case import Recipe
from seepage.recipe.resolve import cells
from seepage.simulate.setting import Setting, SharedParts, Skipped
from seepage.transcript.truth import Truth
from seepage.types import Knowledge, Round, Transcript

DRAWS = 6
"""Noises drawn at each size."""


class NoiseCosine(JsonRecord):
    """The probe at one noise.

    Attributes:
        noise: Standard deviation of the noise on the true inputs, in their own units.
        cosine: Mean cosine between descent and the way back to the truth.
        low: Lower end of Student's 95 % interval over the draws of noise.
        high: Its upper end.
    """

    noise: float
    cosine: float
    low: float
    high: float


class Probe(JsonRecord):
    """What the probe says of one cell.

    Attributes:
        cell: Name of the cell.
        title: For readers.
        outlook: `expected`: cosines like this one came with images that matching brought back; `not expected`: with
            hardly any; `open`: with both. None where the cell could not be probed.
        cosines: One for each noise.
        chance: Standard deviation of the cosine of a direction that knows nothing: one over the root of the batch's
            numbers.
        batch_norm: `train`, `eval`, `train and eval` or `unclear`, by the gradient; None where no batch norm was read.
        variances: Channels whose variance over the batch can be read to within 10 %.
        channels: Channels of all these batch norms.
        seconds: What the probe took, without training and recording.
        reason: Why the cell could not be probed.
    """

    cell: str
    title: str
    outlook: Outlook | None = None
    cosines: tuple[NoiseCosine, ...] = ()
    chance: float | None = None
    batch_norm: str | None = None
    variances: int = 0
    channels: int = 0
    seconds: float = 0.0
    reason: str | None = None


def probe_cells(tables: Mapping[str, Any], *, show: ProgressCallback = no_progress) -> list[Probe]:
    """Probe every cell of a recipe; nothing is kept on disk.

    The client computes its update as in an audit, with the recipe's training, rounds and defense. Labels are told to
    the probe, and the first recorded round is looked at.

    Args:
        tables: A recipe's tables.
        show: Called with progress messages.

    Raises:
        SeepageError: For mistakes in the recipe or the data.
    """
    recipes, shared = cells(tables), SharedParts()
    for device in {recipe.device for recipe in recipes}:
        check_device(device)
    found = []
    for number, recipe in enumerate(recipes):
        show(number, len(recipes), Doing(recipe.cell if len(recipes) > 1 else "", Phase.RECORDING))
        found.append(_probe(recipe, shared))
    return found


def _probe(recipe: Recipe, shared: SharedParts) -> Probe:
    title = named_cell(recipe).title
    try:
        with scratch() as place:
            setting = Setting.of(recipe, shared).after_federation(place)
        victim, truth = setting.victim()
        return _look(recipe.cell, title, victim.transcript(), truth, recipe.seed)
    except (Skipped, Inapplicable, Diverged, NotFinite) as error:
        return Probe(cell=recipe.cell, title=title, reason=str(error))
    except ValueError as error:  # such as batch norm on a single value
        return Probe(cell=recipe.cell, title=title, reason=str(error).partition("\n")[0])


def _look(cell: str, title: str, transcript: Transcript, truth: Truth, seed: int) -> Probe:
    """The probe and the batch norms of the first round."""
    batch, knowledge, seen = truth.of_round(0), transcript.knowledge, transcript[0]
    if not batch.inputs.is_floating_point():
        raise Inapplicable("its inputs are tokens, which no slope moves", "probe a model of images or of tables")
    if isinstance(knowledge.model, VerticalModel):
        raise Inapplicable(
            "its parties hold parts of an example each, and share no gradient of one network",
            "audit it with cafe, which needs no such slope",
        )
    started = time.perf_counter()
    problem = Problem.of(seen, knowledge, Cosine(), None)
    found = landscape(problem, batch.inputs, batch.labels, draws=DRAWS, seed=seed)
    seconds = time.perf_counter() - started
    near = found.means[found.noises.index(PROBE_NOISE)]
    norms = _batch_norms(seen, knowledge)
    modes = sorted({norm.mode for norm in norms})
    return Probe(
        cell=cell,
        title=title,
        outlook=outlook(near),
        cosines=tuple(
            NoiseCosine(noise=noise, cosine=round(mean, 4), low=round(low, 4), high=round(high, 4))
            for noise, mean, (low, high) in zip(found.noises, found.means, found.intervals(), strict=True)
        ),
        chance=round(batch.inputs.numel() ** -0.5, 4),
        batch_norm=" and ".join(modes) or None,
        variances=sum(norm.variances for norm in norms),
        channels=sum(norm.channels for norm in norms),
        seconds=round(seconds, 2),
    )


def _batch_norms(seen: Round, knowledge: Knowledge) -> list[BatchNormSummary]:
    """What the batch norms say; none where there are none, and of a difference of weights, whose steps blur them."""
    if seen.update.kind != "gradient":
        return []
    try:
        return [leak.summary for leak in batch_norm_leaks(seen, knowledge)]
    except Inapplicable:
        return []
