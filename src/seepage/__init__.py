"""How much private data can be read back out of a federated-learning update, and which defense stops that?

The way of the data is drawn at the top of `seepage.federation.types`; the verbs are `record`, `attack` and `score`.
"""

import ast
import importlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `__getattr__` imports these on first use: `seepage --help` needs no PyTorch
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
    )
    from seepage.attacks.exposure import Exposure, exposure
    from seepage.errors import Inapplicable, SeepageError
    from seepage.federation import data
    from seepage.federation.clients import CLIENTS, Aggregate, FedAvg, FedSGD
    from seepage.federation.defenses import DEFENSES, Compose, FakeGradients, GaussianNoise, Sparsify
    from seepage.federation.models import MODELS, build
    from seepage.federation.transcript.recorded import open_transcript, save_transcript
    from seepage.federation.transcript.truth import open_truth, save_truth
    from seepage.federation.types import (
        Architecture,
        Batch,
        ClientUpdate,
        Defense,
        Knowledge,
        Reconstruction,
        Round,
        Transcript,
        Update,
    )
    from seepage.measure.metrics import METRICS, Score, Scores, Yardstick, score

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
    "Yardstick",
    "attack",
    "build",
    "data",
    "exposure",
    "observe",
    "open_transcript",
    "open_truth",
    "record",
    "save_transcript",
    "save_truth",
    "score",
]


@cache
def _homes() -> dict[str, str]:
    """The module that each public name is imported from, as it stands above."""
    (block,) = [node for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    """A public name, or a room of the package, imported on first use."""
    if name in _homes():
        home = importlib.import_module(_homes()[name])
        found = getattr(home, name) if hasattr(home, name) else importlib.import_module(f"{home.__name__}.{name}")
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
