"""This package's own preset of gradient matching."""

from seepage.attacks.guided.matching import GuidedMatching
from seepage.attacks.matching.adaptive import DefenseAware
from seepage.attacks.matching.directions import Sign
from seepage.attacks.matching.distances import Cosine
from seepage.attacks.matching.engine import GradientMatching
from seepage.attacks.matching.labels import LABEL_RULES
from seepage.attacks.matching.optimizers import Adam
from seepage.attacks.matching.options import SearchOptions, preset
from seepage.attacks.matching.priors import ColorVariation
from seepage.registry import attacks


@attacks.register(
    "gradient_matching",
    needs="the batch size; gains where the last layer is fully connected and its classes outnumber the batch",
    paper="folklore; its parts are named in the docs",
    cost="seconds to minutes (300 evaluations and 512 forward passes)",
)
@preset(steps=300, lr=0.05, labels="auto")
def gradient_matching(
    search: SearchOptions, *, tv: float = 0.05, first_tv: float = 0.4, features: float = 1.0
) -> GuidedMatching:
    """The strongest gradient matching here: from a decoded start, held to the last layer's features.

    One minus the cosine over all tensors; color variation 0.4 that falls to 0.05 over the steps; signed Adam at 0.05
    with a cosine schedule and projection to the value range. On networks that are smooth: L-BFGS with a line search,
    as many steps as make `steps` evaluations, color variation 0.1 that falls to 0.005. Constants were chosen on images
    of CIFAR-10 that are apart from those it is measured on (docs/matching.md).

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
