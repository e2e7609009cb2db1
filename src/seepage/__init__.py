"""How much private data can be read back out of a federated-learning update, and which defense stops that?

The way of the data is drawn at the top of `seepage.types`; the verbs are `record`, `attack` and `score`.
"""

from seepage.api import attack, observe, record
from seepage.attacks import (
    ATTACKS,
    Attack,
    Cafe,
    CocktailParty,
    FeatureInversion,
    GradientMatching,
    LinearLeak,
    PublishedCafe,
    bayes,
    cpa_fia,
    cpl,
    dlg,
    fedleak,
    fedleak_released,
    grad_inversion,
    idlg,
    inverting_gradients,
    sapag,
)
from seepage.clients import CLIENTS, Aggregate, FedAvg, FedSGD
from seepage.defenses import DEFENSES, Compose, FakeGradients, GaussianNoise, Sparsify
from seepage.errors import Inapplicable, SeepageError
from seepage.leakage import Exposure, exposure
from seepage.metrics import METRICS, Scores, score
from seepage.models import MODELS, build
from seepage.transcript.recorded import open_transcript, save_transcript
from seepage.transcript.truth import open_truth, save_truth
from seepage.types import (
    Architecture,
    Batch,
    ClientUpdate,
    Defense,
    Knowledge,
    Reconstruction,
    Round,
    Score,
    Transcript,
    Update,
)

__all__ = [
    "ATTACKS",
    "CLIENTS",
    "DEFENSES",
    "METRICS",
    "MODELS",
    "Aggregate",
    "Architecture",
    "Attack",
    "Batch",
    "Cafe",
    "ClientUpdate",
    "CocktailParty",
    "Compose",
    "Defense",
    "Exposure",
    "FakeGradients",
    "FeatureInversion",
    "FedAvg",
    "FedSGD",
    "GaussianNoise",
    "GradientMatching",
    "Inapplicable",
    "Knowledge",
    "LinearLeak",
    "PublishedCafe",
    "Reconstruction",
    "Round",
    "Score",
    "Scores",
    "SeepageError",
    "Sparsify",
    "Transcript",
    "Update",
    "attack",
    "bayes",
    "build",
    "cpa_fia",
    "cpl",
    "dlg",
    "exposure",
    "fedleak",
    "fedleak_released",
    "grad_inversion",
    "idlg",
    "inverting_gradients",
    "observe",
    "open_transcript",
    "open_truth",
    "record",
    "sapag",
    "save_transcript",
    "save_truth",
    "score",
]
