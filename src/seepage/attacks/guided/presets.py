"""This package's own preset of gradient matching."""

from typing import Any, Literal

from seepage.attacks.guided.matching import GuidedMatching
from seepage.attacks.search.adaptive import DefenseAware
from seepage.attacks.search.directions import Sign
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.labels import LABEL_RULES
from seepage.attacks.search.optimizers import Adam
from seepage.attacks.search.options import SearchOptions, preset
from seepage.attacks.search.presets import fedleak
from seepage.attacks.search.priors import ColorVariation
from seepage.base.registry import attacks


@attacks.register(
    "gradient_matching",
    needs="the batch size; gains where the last layer is fully connected and its classes outnumber the batch",
    paper="folklore; its parts are named in the docs",
    cost="seconds to minutes (300 evaluations and 512 forward passes)",
    family="gradient matching",
)
@preset(steps=300, lr=0.05, labels="auto")
def gradient_matching(
    search: SearchOptions, *, tv: float = 0.05, first_tv: float = 0.4, features: float = 1.0
) -> GuidedMatching:
    """The strongest gradient matching here: from a decoded start, held to the last layer's features.

    One minus the cosine over all tensors; color variation 0.4 that falls to 0.05 over the steps; signed Adam at 0.05
    with a cosine schedule and projection to the value range. On networks that are smooth: L-BFGS with a line search,
    as many steps as make `steps` evaluations, color variation 0.1 that falls to 0.005. Constants were chosen on images
    of CIFAR-10 that are apart from those it is measured on (docs/attacks/matching.md).

    Args:
        tv: Weight of color variation at the last step, on inputs scaled to a range of 1; 0: without. On smooth networks
            a tenth of it counts.
        first_tv: Its weight at the first step. On smooth networks a quarter of it counts.
        features: Weight of the features' relative squared distance.
    """
    smooth = (ColorVariation(weight=tv, first=max(first_tv, tv)),) if tv > 0 else ()
    matching = GradientMatching(
        distance=DefenseAware(Cosine()),
        optimizer=Adam(lr=search.lr),
        steps=search.steps,
        priors=smooth,
        labels=LABEL_RULES[search.labels],
        direction=Sign(),
        schedule="cosine",
        project=True,
    )
    return GuidedMatching(search=matching, weight=features)


@attacks.register(
    "fedleak_guided",
    needs="the batch size; a pooled residual network, or fewer examples than classes",
    paper="Fan et al. 2025, started and held by what the last layers' gradients say",
    cost="minutes (300 Adam steps of two evaluations)",
    family="gradient matching",
)
@preset("schedule", steps=300, lr=4e-3, tv=1e-5)
def fedleak_guided(
    search: SearchOptions,
    *,
    known: Literal["features", "activations"] = "activations",
    start: Literal["decoder", "inversion", "own"] = "inversion",
    hold: float = 1.0,
) -> GuidedMatching:
    """FedLeak's search (`fedleak`) from images of what late layers read, and held to it.

    FedLeak's distance, priors, blended direction, Adam and projection are as the paper has them. New are where it
    starts, in place of uniform noise, a term of its objective, `|f(x) - f|^2 / |f|^2` with f what is known of each
    example, and the labels, which are solved with it. In place of 10,000 steps at 1e-4 there are fewer and longer ones.

    With `known="activations"` f is what the last block of a residual network reads, solved from the gradients of its
    two convolutions (`seepage.attacks.reading.activations`), for batches of any number of classes; with `features` what
    the head reads, solved from its gradient (`seepage.attacks.reading.head`). Where neither can be had it is FedLeak
    from its own start, and a note says why. Measured part by part in `docs/attacks/fedleak_guided.md`.

    Args:
        known: What is solved for: activations of the last block, or features of the last layer.
        start: Where the search starts: a ridge decoder's images of it, their refinement by least squares (of
            activations), or FedLeak's own uniform noise.
        hold: Weight of its relative squared distance in the objective; 0: without.
    """
    # Means: the weights beside them, and the rate, were chosen for those.
    how: dict[str, Any] = {"l1": "mean", "variation": "mean", "labels": "auto"}
    own = fedleak(steps=search.steps, lr=search.lr, tv=search.tv, schedule=search.schedule, **how)
    return GuidedMatching(search=own, weight=hold, source=known, start=start, keeps=True)
