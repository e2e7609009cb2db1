"""Attacks by name: closed forms first, then matching. One entry each; a dotted path adds your own."""

from collections.abc import Callable
from dataclasses import dataclass

from seepage.attacks.averaged import Averaged, averaged
from seepage.attacks.base import Attack, Inapplicable
from seepage.attacks.cafe import Cafe
from seepage.attacks.cafe.published import PublishedCafe
from seepage.attacks.cpa.cocktail_party import CocktailParty
from seepage.attacks.cpa.feature_inversion import FeatureInversion, cpa_fia
from seepage.attacks.generative import ggl, gias, rogs
from seepage.attacks.linear import LinearLeak
from seepage.attacks.matching import (
    GradientMatching,
    bayes,
    cpl,
    dlg,
    fedleak,
    fedleak_released,
    grad_inversion,
    idlg,
    inverting_gradients,
    sapag,
)
from seepage.attacks.rgap.rgap import LayerRank, RGap, rank_report
from seepage.attacks.spear.spear import Spear

__all__ = [
    "ATTACKS",
    "Attack",
    "Averaged",
    "Cafe",
    "CocktailParty",
    "Entry",
    "FeatureInversion",
    "GradientMatching",
    "Inapplicable",
    "LayerRank",
    "LinearLeak",
    "PublishedCafe",
    "RGap",
    "Spear",
    "averaged",
    "bayes",
    "cpa_fia",
    "cpl",
    "dlg",
    "fedleak",
    "fedleak_released",
    "ggl",
    "gias",
    "grad_inversion",
    "idlg",
    "inverting_gradients",
    "rank_report",
    "rogs",
    "sapag",
]


@dataclass(frozen=True)
class Entry:
    """A named attack.

    Attributes:
        make: Class or preset; its keyword arguments are the attack's options.
        needs: What must hold for it to apply, in words.
        paper: Where it was published.
        cost: Order of its cost, in words; entries are listed cheapest first.
    """

    make: Callable[..., Attack]
    needs: str
    paper: str
    cost: str


ATTACKS: dict[str, Entry] = {
    "linear": Entry(
        LinearLeak,
        "a fully connected first layer with bias",
        "Phong et al. 2017; Geiping et al. 2020, prop. 3.1",
        "milliseconds (closed form)",
    ),
    "rgap": Entry(
        RGap,
        "one example; a chain of fully connected layers and convolutions without pooling",
        "Zhu and Blaschko 2021",
        "milliseconds to minutes (least squares, layer by layer)",
    ),
    "spear": Entry(
        Spear,
        "a fully connected layer with bias in front of a ReLU, many more neurons than examples (24: 512)",
        "Dimitrov et al. 2024",
        "seconds (linear equations), to minutes (sparse directions of a low-rank matrix)",
    ),
    "cocktail_party": Entry(
        CocktailParty,
        "a fully connected first layer, no more examples than neurons",
        "Kariyappa et al. 2023",
        "seconds (unmixing by independent components)",
    ),
    "cpa_fia": Entry(
        cpa_fia,
        "images; a fully connected layer behind convolutions, no more examples than it has neurons",
        "Kariyappa et al. 2023, section 4",
        "minutes to hours (25,000 Adam steps)",
    ),
    "cafe": Entry(
        Cafe,
        "rounds over one data set with known indices; a fully connected layer with bias at each party",
        "Jin et al. 2021",
        "seconds to minutes (linear algebra, then each sample by itself)",
    ),
    "cafe_published": Entry(
        PublishedCafe,
        "as cafe, and thousands of rounds",
        "Jin et al. 2021, algorithms 3 and 4",
        "hours (8,000 iterations of each step)",
    ),
    "averaged": Entry(
        averaged,
        "rounds of the same examples, known to be that (design = 'whole')",
        "folklore; the noise's own law",
        "that of the inner attack, linear unless another is named",
    ),
    "idlg": Entry(idlg, "one example; a fully connected last layer", "Zhao et al. 2020", "seconds (L-BFGS)"),
    "dlg": Entry(dlg, "a network with smooth activations, few examples", "Zhu et al. 2019", "seconds (L-BFGS)"),
    "cpl": Entry(
        cpl, "a network with smooth activations, few examples", "Wei et al. 2020, ESORICS", "seconds (L-BFGS)"
    ),
    "sapag": Entry(sapag, "the batch size", "Wang et al. 2020", "seconds to minutes (AdamW)"),
    "bayes": Entry(
        bayes,
        "the batch size; gains where the client's Gaussian noise is known",
        "Balunovic et al. 2022",
        "seconds to minutes (Adam)",
    ),
    "inverting_gradients": Entry(
        inverting_gradients, "the batch size", "Geiping et al. 2020", "seconds to hours (24,000 Adam steps)"
    ),
    "fedleak": Entry(
        fedleak,
        "the batch size; a fully connected last layer, unless labels are told",
        "Fan et al. 2025",
        "minutes to hours (10,000 Adam steps of two evaluations)",
    ),
    "fedleak_released": Entry(
        fedleak_released,
        "images; the batch size",
        "Fan et al. 2025, the authors' deposit",
        "minutes to hours (10,000 AdamW steps of two evaluations)",
    ),
    "rogs": Entry(
        rogs,
        "images; auxiliary images, unless enhance is off; the batch size",
        "Yue et al. 2023",
        "seconds to minutes (100 Adam steps, and the training of an enhancer)",
    ),
    "gias": Entry(
        gias,
        "images; auxiliary images or a generator of your own; the batch size",
        "Jeon et al. 2021",
        "minutes to hours (the training of a generator, 5,500 Adam steps)",
    ),
    "ggl": Entry(
        ggl,
        "images; auxiliary images or a generator of your own; the batch size, best 1",
        "Li et al. 2022",
        "minutes to hours (the training of a generator, 25,000 evaluations by CMA-ES)",
    ),
    "grad_inversion": Entry(
        grad_inversion,
        "images; BatchNorm with running statistics; labels that all differ, unless told",
        "Yin et al. 2021",
        "minutes to days (20,000 Adam steps of four restarts)",
    ),
}
