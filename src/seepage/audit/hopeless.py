"""Gradient matching that has no way back to the data, seen in seconds before it takes hours.

The auditor holds the batch, so an audit may look beside it (`seepage.leakage.landscape`); no attack sees what it finds.
Only the lowest cosines count, below which no measured attack brought an image back: those that `seepage probe` calls
`not expected` were wrong 3 times.
"""

from seepage.attacks import Attack, GradientMatching, GuidedMatching
from seepage.attacks.matching.distances import Cosine
from seepage.attacks.matching.problem import Problem
from seepage.audit.decided import ALL_ATTACKS
from seepage.errors import Diverged, Inapplicable, NotFinite
from seepage.leakage.landscape import PROBE_NOISE, landscape
from seepage.models.vertical import VerticalModel
from seepage.recipe.case import Recipe
from seepage.registry import is_dotted
from seepage.transcript.truth import Truth
from seepage.types import Transcript

HOPELESS_BELOW = 0.05
"""Cosine at `PROBE_NOISE` below which none of 24 attacks succeeded; the lowest of one that did was 0.077.

Of docs/landscape.md, each attack counted once: 0 of 24 is a rate of at most 14 %.
"""
MEASURED = 24
DRAWS = 6
"""Noises that are drawn."""


def is_own(recipe: Recipe) -> bool:
    """Whether an audit is of somebody's own network or weights, and not of what this package trains in a moment."""
    return is_dotted(recipe.model.use) or ":" in recipe.model.use or recipe.training.weights is not None


def searches_blindly(attack: Attack, transcript: Transcript) -> bool:
    """Whether an attack descends on the difference of gradients alone, as those that were measured did.

    One that also knows features of the examples has another slope, unless there are none to know.
    """
    if not isinstance(attack, GuidedMatching):
        return isinstance(attack, GradientMatching)
    try:
        attack.started(transcript.knowledge, transcript[0])
    except Inapplicable:
        return True
    return False


def no_way_back(transcript: Transcript, truth: Truth, seed: int) -> str | None:
    """The reason for which gradient matching is not run, by the first round; None where it may bring examples back.

    Args:
        transcript: The cell's rounds.
        truth: Its private examples.
        seed: Seed of the noise.
    """
    batch, knowledge = truth.of_round(0), transcript.knowledge
    if not batch.inputs.is_floating_point() or isinstance(knowledge.model, VerticalModel):
        return None
    try:
        problem = Problem.of(transcript[0], knowledge, Cosine(), None)
        found = landscape(problem, batch.inputs, batch.labels, noises=(PROBE_NOISE,), draws=DRAWS, seed=seed)
    except (Inapplicable, Diverged, NotFinite, ValueError):
        return None
    cosine = found.means[0]
    if not cosine < HOPELESS_BELOW:
        return None
    return (
        f"beside the private examples descent does not lead back to them (cosine {cosine:.2f}; below "
        f"{HOPELESS_BELOW:g} none of {MEASURED} measured attacks brought an image back); {ALL_ATTACKS}"
    )
