"""FedLeak (Fan et al., USENIX Security 2025): as the paper writes it, and as its authors' deposit runs."""

from typing import Literal

from seepage.attacks.matching.adaptive import DefenseAware
from seepage.attacks.matching.directions import Blended, LookAhead, Plain
from seepage.attacks.matching.distances import L1, Cosine, PerTensor
from seepage.attacks.matching.engine import GradientMatching
from seepage.attacks.matching.generator import UntrainedGenerator
from seepage.attacks.matching.labels import LABEL_RULES
from seepage.attacks.matching.layers import ActivationSize
from seepage.attacks.matching.optimizers import Adam, Schedule
from seepage.attacks.matching.parameters import Pixels, Start
from seepage.attacks.matching.partial import TopMagnitude
from seepage.attacks.matching.presets import LabelRule
from seepage.attacks.matching.priors import TotalVariation
from seepage.attacks.matching.problem import Local
from seepage.registry import attacks


@attacks.register(
    "fedleak",
    needs="the batch size; a fully connected last layer, unless labels are told",
    paper="Fan et al. 2025",
    cost="minutes to hours (10,000 Adam steps of two evaluations)",
)
def fedleak(
    *,
    steps: int = 10_000,
    lr: float = 1e-4,
    ratio: float = 0.5,
    by: Literal["global", "tensor"] = "global",
    l1: Literal["mean", "sum"] = "mean",
    sample: int | None = None,
    tv: float = 1e-5,
    activation: float = 1e-4,
    weight: float = 0.7,
    k: float = 1e-3,
    schedule: Schedule = "constant",
    start: Start = "uniform",
    labels: LabelRule = "refined",
    restarts: int = 1,
    microbatch: int | None = None,
    local: Local = "unrolled",
) -> GradientMatching:
    """FedLeak as written (Fan et al., USENIX Security 2025), Algorithm 1: partial matching, regularised gradient.

    L1 distance plus one minus the cosine, over the half of the gradient that is largest in the dummy; total variation
    1e-5, activation penalty 1e-4 (the loss of section 4.4); direction blended from x and x + phi with lambda' 0.7
    (eq. 13); Adam at 1e-4, 10,000 steps, uniform start, values clamped to [0, 1]; labels by the count rule, optimised
    along. Two evaluations per step. Where the attacker is told of the client's defense, the distance follows it
    (`DefenseAware`), which is not of the paper.

    Deviations and readings: entries are chosen by the gradient of the weights (line 5 of Algorithm 1 says of the
    inputs, which cannot index it), over all tensors together; L1 is a mean, as in the paper's own derivation; the
    activation penalty a mean per layer; phi has length 1e-3, for which no number is given; the best iterate is
    returned, not the last. Table 16 has its best result at lambda' 0.5, not at the stated 0.7.
    """
    activations = (ActivationSize(activation),) if activation > 0 else ()
    return GradientMatching(
        distance=DefenseAware(TopMagnitude(inner=L1(l1) + Cosine(), ratio=ratio, by=by, sample=sample)),
        priors=(*((TotalVariation(tv),) if tv > 0 else ()), *activations),
        optimizer=Adam(lr=lr),
        steps=steps,
        schedule=schedule,
        direction=Blended(weight=weight, k=k) if weight > 0 else Plain(),
        labels=LABEL_RULES[labels],
        parameters=Pixels(start_from=start),
        project=True,
        restarts=restarts,
        microbatch=microbatch,
        local=local,
    )


@attacks.register(
    "fedleak_released",
    needs="images; the batch size",
    paper="Fan et al. 2025, the authors' deposit",
    cost="minutes to hours (10,000 AdamW steps of two evaluations)",
)
def fedleak_released(
    *,
    steps: int = 10_000,
    lr: float = 1e-2,
    ratio: float = 0.5,
    tv: float = 1e-5,
    weight: float = 0.3,
    width: int = 32,
    labels: LabelRule = "auto",
    restarts: int = 1,
    microbatch: int | None = None,
) -> GradientMatching:
    """FedLeak as its authors' deposit runs (Zenodo 10.5281/zenodo.15532455): the weights of an untrained generator.

    Another algorithm than the paper's: 128 fixed normal numbers per image go through a generator whose weights are the
    unknowns; per tensor, mean L1 minus cosine over the half that is largest in the dummy; total variation 1e-5, no
    activation penalty; AdamW at 1e-2 with signs of gradients and cosine decay; the direction is blended 0.7 / 0.3 with
    the one after a full optimizer step; 10,000 steps of two evaluations.

    Deviations: read in a public mirror, not in the deposit; the generator's widths are ours and its spectral norm
    exact; the step ahead leaves no trace in AdamW's memory; one minus the cosine; the weight decay is PyTorch's 0.01.
    The deposit is told the labels (here they are inferred unless told), and its figures, 22.0 to 22.9 dB, are for a
    victim with sigmoids and train-mode BatchNorm, 16 images of 128 pixels, after a 5 x 5 median filter, the best guess
    for each original.
    """
    return GradientMatching(
        distance=DefenseAware(PerTensor(TopMagnitude(inner=L1("mean") + Cosine(), ratio=ratio))),
        priors=(TotalVariation(tv),) if tv > 0 else (),
        optimizer=Adam(lr=lr, weight_decay=0.01),
        steps=steps,
        schedule="cosine",
        direction=LookAhead(weight=weight),
        labels=LABEL_RULES[labels],
        parameters=UntrainedGenerator(width=width),
        restarts=restarts,
        microbatch=microbatch,
    )
