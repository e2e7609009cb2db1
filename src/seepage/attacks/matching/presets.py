"""The gradient-matching papers, each as a composition of the engine's parts.

Sources of the constants: the papers, and what their authors' code does beyond them. All candidates live in [0, 1]
and the model normalises; `Pixels(mean=0.5, std=0.25)` keeps constants that were given for normalised images.
"""

from typing import Literal

from seepage.attacks.matching.adaptive import DefenseAware
from seepage.attacks.matching.directions import Langevin, Plain, Sign
from seepage.attacks.matching.distances import L2, Cosine, GaussianKernel, PerTensor
from seepage.attacks.matching.engine import GradientMatching
from seepage.attacks.matching.labels import LABEL_RULES, SignOfLastBias
from seepage.attacks.matching.layers import BatchNormStatistics, LabelLoss, LayerPrior
from seepage.attacks.matching.optimizers import LBFGS, Adam, Schedule
from seepage.attacks.matching.parameters import Pixels, Start
from seepage.attacks.matching.partial import GaussianLikelihood
from seepage.attacks.matching.priors import GroupConsistency, Prior, SquaredNorm, TotalVariation
from seepage.attacks.matching.problem import Local
from seepage.registry import attacks

LabelRule = Literal["auto", "bias", "count", "given", "joint", "minimum", "refined", "sign"]


@attacks.register(
    "dlg",
    needs="a network with smooth activations, few examples",
    paper="Zhu et al. 2019",
    cost="seconds (L-BFGS)",
)
def dlg(
    *,
    steps: int = 300,
    lr: float = 1.0,
    start: Start = "normal",
    labels: LabelRule = "joint",
    restarts: int = 1,
    line_search: bool = False,
    microbatch: int | None = None,
    local: Local = "unrolled",
) -> GradientMatching:
    """Deep Leakage from Gradients (Zhu, Liu, Han, NeurIPS 2019), eq. 4 and Algorithm 1.

    Squared L2 distance over all tensors, L-BFGS with learning rate 1 and 20 inner iterations per step, 300 steps,
    inputs and label logits standard normal and optimised together, no projection, no prior.

    Deviations: the best iterate is returned, not the last; L-BFGS runs without its stopping tolerances and stops
    once the gradient is explained to 1e-10 of its square.
    """
    return GradientMatching(
        distance=L2(),
        optimizer=LBFGS(lr=lr, line_search=line_search),
        steps=steps,
        labels=LABEL_RULES[labels],
        parameters=Pixels(start_from=start),
        restarts=restarts,
        microbatch=microbatch,
        local=local,
    )


@attacks.register(
    "idlg",
    needs="one example; a fully connected last layer",
    paper="Zhao et al. 2020",
    cost="seconds (L-BFGS)",
)
def idlg(
    *,
    steps: int = 300,
    lr: float = 1.0,
    start: Start = "normal",
    restarts: int = 1,
    line_search: bool = False,
) -> GradientMatching:
    """Improved DLG (Zhao, Mopuri, Bilen 2020): the label from the last layer's sign, then DLG on the input alone.

    For one example by its own theory; larger batches are refused. Deviations as in `dlg`.
    """
    return GradientMatching(
        distance=L2(),
        optimizer=LBFGS(lr=lr, line_search=line_search),
        steps=steps,
        labels=SignOfLastBias(),
        parameters=Pixels(start_from=start),
        restarts=restarts,
    )


@attacks.register(
    "inverting_gradients",
    needs="the batch size",
    paper="Geiping et al. 2020",
    cost="seconds to hours (24,000 Adam steps)",
)
def inverting_gradients(
    *,
    steps: int = 24_000,
    lr: float = 0.1,
    tv: float = 1e-4,
    signed: bool = True,
    schedule: Schedule = "step",
    start: Start = "normal",
    labels: LabelRule = "auto",
    restarts: int = 1,
    microbatch: int | None = None,
    local: Local = "unrolled",
) -> GradientMatching:
    """Inverting Gradients (Geiping et al., NeurIPS 2020), eq. 4; also the GMA baseline of the Cocktail Party Attack.

    One minus the cosine over all tensors, total variation 1e-4, signed Adam at 0.1 divided by 10 at 3/8, 5/8 and 7/8
    of 24,000 steps, normal start, projection to the value range after each step. Where the attacker is told of the
    client's defense, the distance follows it (`DefenseAware`), which is not of the paper.

    Deviations: units are (x - 0.5) / 0.25 for every data set, not its own statistics; the best iterate by the
    objective is returned, not the last; for more than one unknown label the bias count is used where the authors
    optimise label logits (`labels="joint"` does that); the model's mode is the client's, not always eval.

    Args:
        signed: Whether steps follow the sign of the gradient alone.
    """
    return GradientMatching(
        distance=DefenseAware(Cosine()),
        priors=(TotalVariation(tv),) if tv > 0 else (),
        optimizer=Adam(lr=lr),
        steps=steps,
        schedule=schedule,
        direction=Sign() if signed else Plain(),
        labels=LABEL_RULES[labels],
        parameters=Pixels(start_from=start, mean=0.5, std=0.25),
        project=True,
        restarts=restarts,
        microbatch=microbatch,
        local=local,
    )


@attacks.register(
    "sapag",
    needs="the batch size",
    paper="Wang et al. 2020",
    cost="seconds to minutes (AdamW)",
)
def sapag(
    *,
    steps: int = 2_000,
    lr: float = 0.05,
    schedule: Schedule = "cosine",
    start: Start = "normal",
    labels: LabelRule = "auto",
    restarts: int = 1,
    microbatch: int | None = None,
    local: Local = "unrolled",
) -> GradientMatching:
    """SAPAG (Wang et al. 2020, arXiv 2009.06228): a Gaussian kernel per layer, as wide as the layer's gradients vary.

    AdamW, as the paper uses in place of L-BFGS. The CAFE paper uses the same distance as a baseline.

    Deviations: the paper's layer weights are all 1; the kernel's exponent is divided by the tensor's size (see
    `GaussianKernel`), without which it is 0 or 1 for all but tiny layers; learning rate and schedule are ours, the
    paper's are not stated in full; labels are inferred, units are (x - 0.5) / 0.25, candidates are projected.
    """
    return GradientMatching(
        distance=GaussianKernel(),
        optimizer=Adam(lr=lr, weight_decay=0.01),
        steps=steps,
        schedule=schedule,
        labels=LABEL_RULES[labels],
        parameters=Pixels(start_from=start, mean=0.5, std=0.25),
        project=True,
        restarts=restarts,
        microbatch=microbatch,
        local=local,
    )


@attacks.register(
    "grad_inversion",
    needs="images; BatchNorm with running statistics; labels that all differ, unless told",
    paper="Yin et al. 2021",
    cost="minutes to days (20,000 Adam steps of four restarts)",
)
def grad_inversion(
    *,
    steps: int = 20_000,
    lr: float = 0.1,
    match: float = 1e-4,
    tv: float = 1e-4,
    l2: float = 1e-6,
    batch_norm: float = 0.1,
    group: float = 0.01,
    noise: float = 0.2,
    start: Start = "normal",
    labels: LabelRule = "minimum",
    restarts: int = 4,
) -> GradientMatching:
    """GradInversion (Yin et al., CVPR 2021): BatchNorm statistics and agreement of restarts as priors, eq. 2 to 11.

    Euclidean distance of each tensor, summed, at `match`; total variation 1e-4, L2 norm 1e-6, BatchNorm statistics
    0.1, group consistency 0.01 over the restarts; Adam at 0.1 with 50 steps of warm-up and cosine decay, 20,000 steps,
    Langevin noise 0.2; labels by the minimum rule, for classes that all differ.

    Deviations: no code was published. `match`, `l2` and the schedule are breaching's (whose noise is 0.01), four
    restarts and the group's weight LeakPro's; registration is a shift, not RANSAC flow; units are (x - 0.5) / 0.25;
    variances and norms as in `BatchNormStatistics`, `SquaredNorm` and `GroupConsistency`. Inapplicable to models
    without BatchNorm unless `batch_norm=0`.

    Args:
        match: Weight of the distance between gradients.
    """
    statistics: tuple[LayerPrior, ...] = (BatchNormStatistics(batch_norm),) if batch_norm > 0 else ()
    priors: tuple[Prior, ...] = (TotalVariation(tv), SquaredNorm(l2))
    return GradientMatching(
        distance=match * PerTensor(L2(root=True)),
        priors=(*priors, *((GroupConsistency(group),) if group > 0 else ()), *statistics),
        optimizer=Adam(lr=lr),
        steps=steps,
        schedule="warmup_cosine",
        direction=Langevin(noise) if noise > 0 else Plain(),
        labels=LABEL_RULES[labels],
        parameters=Pixels(start_from=start, mean=0.5, std=0.25),
        project=True,
        restarts=restarts,
    )


@attacks.register(
    "bayes",
    needs="the batch size; gains where the client's Gaussian noise is known",
    paper="Balunovic et al. 2022",
    cost="seconds to minutes (Adam)",
)
def bayes(
    *,
    steps: int = 2_000,
    lr: float = 0.1,
    sigma: float | None = None,
    tv: float = 1.0,
    schedule: Schedule = "cosine",
    start: Start = "normal",
    labels: LabelRule = "auto",
    restarts: int = 1,
    microbatch: int | None = None,
    local: Local = "unrolled",
) -> GradientMatching:
    """BayesAttack (Balunovic et al., ICLR 2022): the likeliest inputs, given the noise that the client adds.

    Maximises `log p(g | x) + log p(x)`: a Gaussian likelihood, and total variation as minus the log prior. Where the
    attacker is told that the defense is Gaussian noise, its sigma and clip norm are used, else `sigma`, else 0.1.

    Deviations: the paper samples points around x before each step (its code's default is x alone, as here) and tunes
    the prior's weight for every defense; rate 0.1 and weight 1 are its code's defaults, steps and schedule ours; units
    are (x - 0.5) / 0.25, candidates are projected; likelihoods of pruning and other defenses are not here.
    """
    return GradientMatching(
        distance=GaussianLikelihood(sigma=sigma),
        priors=(TotalVariation(tv),) if tv > 0 else (),
        optimizer=Adam(lr=lr),
        steps=steps,
        schedule=schedule,
        labels=LABEL_RULES[labels],
        parameters=Pixels(start_from=start, mean=0.5, std=0.25),
        project=True,
        restarts=restarts,
        microbatch=microbatch,
        local=local,
    )


@attacks.register(
    "cpl",
    needs="a network with smooth activations, few examples",
    paper="Wei et al. 2020, ESORICS",
    cost="seconds (L-BFGS)",
)
def cpl(
    *,
    steps: int = 300,
    lr: float = 1.0,
    label_weight: float = 1.0,
    start: Start = "patterned",
    labels: LabelRule = "auto",
    restarts: int = 1,
    line_search: bool = False,
) -> GradientMatching:
    """Client Privacy Leakage (Wei et al., ESORICS 2020): DLG from a patterned start, with a term for the labels.

    Squared L2 distance plus the squared distance of the prediction to the label, L-BFGS with learning rate 1, 300
    steps; the start is a small random patch repeated over the image; the label comes from the last layer.

    Deviations: the weight of the label term is breaching's 1, and its patch of a quarter of each side; candidates are
    not clipped; otherwise as in `dlg`.
    """
    return GradientMatching(
        distance=L2(),
        priors=(LabelLoss(label_weight),) if label_weight > 0 else (),
        optimizer=LBFGS(lr=lr, line_search=line_search),
        steps=steps,
        labels=LABEL_RULES[labels],
        parameters=Pixels(start_from=start),
        restarts=restarts,
    )
