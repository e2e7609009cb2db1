"""The gradient-matching papers, each as a composition of the engine's parts.

Sources of the constants: the papers, and what their authors' code does beyond them. All candidates live in [0, 1]
and the model normalizes. Constants that were given for normalized images stay as given: `SearchOptions.normalized` has
the unknowns in those units, and priors convert their weights by their `unit`.
"""

from dataclasses import replace
from typing import Literal

from seepage.attacks.search.adaptive import DefenseAware
from seepage.attacks.search.directions import Blended, Langevin, LookAhead, Plain, Sign
from seepage.attacks.search.distances import L1, L2, Cosine, GaussianKernel, PerTensor
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.generator import UntrainedGenerator
from seepage.attacks.search.layers import ActivationSize, BatchNormStatistics
from seepage.attacks.search.optimizers import LBFGS, Adam
from seepage.attacks.search.options import SearchOptions, preset
from seepage.attacks.search.partial import GaussianLikelihood, TopMagnitude
from seepage.attacks.search.priors import GroupConsistency, SquaredNorm, TotalVariation
from seepage.base.registry import attacks


@attacks.register(
    "dlg",
    needs="a network with smooth activations, few examples",
    paper="Zhu et al. 2019",
    cost="seconds (L-BFGS)",
    family="gradient matching",
)
@preset("start", "restarts", "line_search", "microbatch", "local", steps=300, lr=1.0, labels="joint")
def dlg(search: SearchOptions) -> GradientMatching:
    """Deep Leakage from Gradients (Zhu, Liu, Han, NeurIPS 2019), eq. 4 and Algorithm 1.

    Squared L2 distance over all tensors, L-BFGS with learning rate 1 and 20 inner iterations per step, 300 steps,
    inputs and label logits standard normal and optimized together, no projection, no prior.

    The standard normal start lies far outside of any image and saturates sigmoids: on the paper's network at 32 pixels
    a single image takes thousands of the 6,000 evaluations, and without a line search some runs never recover.
    With `start="grey", line_search=True` all images tried were recognizable after 600 (`docs/attacks/dlg.md`).

    Labels that are known are searched for all the same, as in the paper; `labels="given"` takes them.

    Deviations: the best iterate is returned, not the last; L-BFGS runs without its stopping tolerances and stops
    once the gradient is explained to 1e-10 of its square.
    """
    return search.matching(L2(), LBFGS(lr=search.lr, line_search=search.line_search), search.pixels)


@attacks.register(
    "idlg",
    needs="one example; a fully connected last layer",
    paper="Zhao et al. 2020",
    cost="seconds (L-BFGS)",
    family="gradient matching",
)
@preset("start", "restarts", "line_search", steps=300, lr=1.0)
def idlg(search: SearchOptions) -> GradientMatching:
    """Improved DLG (Zhao, Mopuri, Bilen 2020): the label from the last layer's sign, then DLG on the input alone.

    For one example by its own theory; larger batches are refused. Deviations, and what a grey start saves, as in `dlg`.
    """
    signs = replace(search, labels="sign")
    return signs.matching(L2(), LBFGS(lr=search.lr, line_search=search.line_search), search.pixels)


@attacks.register(
    "inverting_gradients",
    needs="the batch size",
    paper="Geiping et al. 2020",
    cost="seconds to hours (24,000 Adam steps)",
    family="gradient matching",
)
@preset("start", "labels", "restarts", "microbatch", "local", steps=24_000, lr=0.1, tv=1e-4, schedule="step")
def inverting_gradients(search: SearchOptions, *, signed: bool = True) -> GradientMatching:
    """Inverting Gradients (Geiping et al., NeurIPS 2020), eq. 4; also the GMA baseline of the Cocktail Party Attack.

    One minus the cosine over all tensors, total variation 1e-4, signed Adam at 0.1 divided by 10 at 3/8, 5/8 and 7/8
    of 24,000 steps, normal start, projection to the value range after each step. The authors' library has a weight of
    0.1 where none is named, which is 2 to 4 dB better on batches of 4 and more, and worse on single images. Where the
    attacker knows of the client's defense, the distance follows it (`DefenseAware`), which is not of the paper.

    Deviations: units are (x - 0.5) / 0.25 for every data set, not its own statistics; the best iterate by the
    objective is returned, not the last; for more than one unknown label the bias count is used where the authors
    optimize label logits (`labels="joint"` does that); the model's mode is the client's, not always eval.

    Args:
        signed: Whether steps follow the sign of the gradient alone.
    """
    direction = Sign() if signed else Plain()
    distance = DefenseAware(Cosine())
    return search.matching(distance, Adam(lr=search.lr), search.normalized, direction=direction, project=True)


@attacks.register(
    "sapag",
    needs="the batch size",
    paper="Wang et al. 2020",
    cost="seconds to minutes (AdamW)",
    family="gradient matching",
)
@preset("start", "labels", "restarts", "microbatch", "local", steps=2_000, lr=0.05, schedule="cosine")
def sapag(search: SearchOptions) -> GradientMatching:
    """SAPAG (Wang et al. 2020, arXiv 2009.06228): a Gaussian kernel per layer, as wide as the layer's gradients vary.

    AdamW, as the paper uses in place of L-BFGS. The CAFE paper uses the same distance as a baseline.

    Deviations: the paper's layer weights are all 1; the kernel's exponent is divided by the tensor's size (see
    `GaussianKernel`), without which it is 0 or 1 for all but tiny layers; learning rate and schedule are ours, the
    paper's are not stated in full; labels are inferred, units are (x - 0.5) / 0.25, candidates are projected.
    """
    optimizer = Adam(lr=search.lr, weight_decay=0.01)
    return search.matching(GaussianKernel(), optimizer, search.normalized, project=True)


@attacks.register(
    "grad_inversion",
    needs="images; BatchNorm with running statistics; labels that all differ, unless known",
    paper="Yin et al. 2021",
    cost="minutes to days (20,000 Adam steps of four restarts)",
    family="gradient matching",
)
@preset("start", steps=20_000, lr=0.1, tv=1e-4, labels="minimum", restarts=4)
def grad_inversion(
    search: SearchOptions,
    *,
    match: float = 1e-4,
    l2: float = 1e-6,
    batch_norm: float = 0.1,
    group: float = 0.01,
    noise: float = 0.2,
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
        l2: Weight of the candidates' squared norm.
        batch_norm: Weight of the distance to the batch-norm statistics, beside a distance of weight 1; 0: without.
        group: Weight of the agreement of the restarts; 0: without.
        noise: Standard deviation of the noise, as a share of the learning rate; 0: without.
    """
    unit = search.normalized.std
    restarts = (GroupConsistency(group, unit=unit),) if group > 0 else ()
    statistics = (BatchNormStatistics(batch_norm),) if batch_norm > 0 else ()
    return replace(search, schedule="warmup_cosine").matching(
        match * PerTensor(L2(root=True)),
        Adam(lr=search.lr),
        search.normalized,
        # breaching's norm of weight `l2` is half the mean square.
        *(SquaredNorm(l2 / 2, unit=unit), *restarts, *statistics),
        direction=Langevin(noise) if noise > 0 else Plain(),
        project=True,
    )


@attacks.register(
    "bayes",
    needs="the batch size; gains where the client's noise or rounding is known",
    paper="Balunovic et al. 2022",
    cost="seconds to minutes (Adam)",
    family="gradient matching",
)
@preset("start", "labels", "restarts", "microbatch", "local", steps=2_000, lr=0.1, tv=1.0, schedule="cosine")
def bayes(search: SearchOptions, *, sigma: float | None = None) -> GradientMatching:
    """BayesAttack (Balunovic et al., ICLR 2022): the likeliest inputs, given the noise that the client adds.

    Maximizes `log p(g | x) + log p(x)`: a Gaussian likelihood, and total variation as minus the log prior. Where the
    attacker knows that the defense is Gaussian noise, its sigma and clip norm are used, else `sigma`, else 0.1. Knowing
    of Laplace noise it takes that likelihood, a sum of absolute differences, and knowing of rounding the intervals and
    signs that can have given what was sent (`RoundingLikelihood`), which are not of the paper.

    Deviations: the paper samples points around x before each step (its code's default is x alone, as here) and tunes
    the prior's weight for every defense; rate 0.1 and weight 1 are its code's defaults, steps and schedule ours; units
    are (x - 0.5) / 0.25, candidates are projected; the likelihood of pruning is not here.

    Args:
        sigma: Standard deviation of the client's noise; none: as known of the defense, else 0.1.
    """
    return search.matching(GaussianLikelihood(sigma=sigma), Adam(lr=search.lr), search.normalized, project=True)


@attacks.register(
    "fedleak",
    needs="the batch size; a fully connected last layer, unless labels are known",
    paper="Fan et al. 2025",
    cost="minutes to hours (10,000 Adam steps of two evaluations)",
    family="gradient matching",
)
@preset(
    "schedule", "restarts", "microbatch", "local", steps=10_000, lr=1e-4, tv=1e-5, start="uniform", labels="refined"
)
def fedleak(
    search: SearchOptions,
    *,
    ratio: float = 0.5,
    by: Literal["global", "tensor"] = "global",
    l1: Literal["mean", "sum"] = "sum",
    variation: Literal["mean", "sum"] = "sum",
    sample: int | None = None,
    activation: float = 1e-4,
    weight: float = 0.7,
    k: float = 1e-3,
) -> GradientMatching:
    """FedLeak as written (Fan et al., USENIX Security 2025), Algorithm 1: partial matching, regularized gradient.

    L1 distance plus one minus the cosine, over the half of the gradient that is largest in the dummy; total variation
    1e-5, activation penalty 1e-4 (the loss of section 4.4); direction blended from x and x + phi with lambda' 0.7
    (eq. 13); Adam at 1e-4, 10,000 steps, uniform start, values clamped to [0, 1]; labels by the count rule, optimized
    along. Two evaluations per step. Where the attacker knows of the client's defense, the distance follows it
    (`DefenseAware`), which is not of the paper.

    Deviations and readings: entries are chosen by the gradient of the weights, as section 4.2 has it (line 5 of
    Algorithm 1 says of the inputs, which masks pixels in each step), over all tensors together, and anew at x + phi
    (line 8 keeps those of x); the labels' gradient is not blended (eq. 9 would); L1 and total variation are sums,
    for which Tables 17 and 19 speak, where the paper's own derivation has a mean (`l1`, `variation`;
    docs/attacks/fedleak.md); the activation penalty a mean per layer; phi has length 1e-3, for which no number is
    given; the best iterate is returned, not the last. Table 16 has its best result at lambda' 0.5, not at the
    stated 0.7. What each of these readings is worth is measured by `experiments/recipes/readings.toml`.

    Args:
        ratio: Share of the entries that are matched, 0 to 1: the largest.
        by: Whether the largest entries are chosen over all tensors together, or in each.
        l1: Whether the absolute distance is a mean or a sum over entries.
        variation: Whether total variation is a mean over neighbors, or a sum over those of an image.
        sample: Entries from which the limit of the largest is estimated; none: from all.
        activation: Weight of the mean activation of each layer; 0: without.
        weight: Weight of the gradient further ahead, 0 to 1, in the blended direction; 0: without.
        k: How far ahead the second gradient is taken, in units of the unknowns.
    """
    return replace(search, tv=0.0).matching(
        DefenseAware(TopMagnitude(inner=L1(l1) + Cosine(), ratio=ratio, by=by, sample=sample)),
        Adam(lr=search.lr),
        search.pixels,
        *((TotalVariation(search.tv, reduce=variation),) if search.tv > 0 else ()),
        *((ActivationSize(activation),) if activation > 0 else ()),
        direction=Blended(weight=weight, k=k) if weight > 0 else Plain(),
        project=True,
    )


@attacks.register(
    "fedleak_released",
    needs="images; the batch size",
    paper="Fan et al. 2025, the authors' deposit",
    cost="minutes to hours (10,000 AdamW steps of two evaluations)",
    family="gradient matching",
)
@preset("labels", "restarts", "microbatch", steps=10_000, lr=1e-2, tv=1e-5)
def fedleak_released(
    search: SearchOptions, *, ratio: float = 0.5, weight: float = 0.3, width: int = 32
) -> GradientMatching:
    """FedLeak as its authors' deposit runs (Zenodo 10.5281/zenodo.15532455): the weights of an untrained generator.

    Another algorithm than the paper's: 128 fixed normal numbers per image go through a generator whose weights are the
    unknowns; per tensor, mean L1 minus cosine over the half that is largest in the dummy; total variation 1e-5, no
    activation penalty; AdamW at 1e-2 with signs of gradients and cosine decay; the direction is blended 0.7 / 0.3 with
    the one after a full optimizer step; 10,000 steps of two evaluations.

    Deviations: read in a public mirror, not in the deposit; the generator is smaller (see `UntrainedGenerator`) and its
    spectral norm exact; the L1 is a mean over the entries that are matched, where the deposit's is over all of a
    tensor, twice as many; the step ahead leaves no trace in AdamW's memory; the best guess is kept, not the last; one
    minus the cosine; the weight decay is PyTorch's 0.01.
    The deposit is given the labels (here they are inferred unless known), and its figures, 22.0 to 22.9 dB, are for a
    victim with sigmoids and train-mode BatchNorm, 16 images of 128 pixels, after a 5 x 5 median filter, the best guess
    for each original.

    Args:
        ratio: Share of the entries that are matched, 0 to 1: the largest.
        weight: Weight of the gradient further ahead, 0 to 1, in the blended direction.
        width: Channels of the generator's last block; its first has four times as many.
    """
    return replace(search, schedule="cosine").matching(
        DefenseAware(PerTensor(TopMagnitude(inner=L1("mean") + Cosine(), ratio=ratio))),
        Adam(lr=search.lr, weight_decay=0.01),
        UntrainedGenerator(width=width),
        direction=LookAhead(weight=weight),
    )
