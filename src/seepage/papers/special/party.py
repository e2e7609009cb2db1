"""The Cocktail Party Attack: its ablation, and what it recovers of embeddings (Kariyappa et al., ICML 2023)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks import Attack, CocktailParty
from seepage.attacks.cpa.feature_distance import Embedding
from seepage.attacks.cpa.ica import IMAGES
from seepage.attacks.network.mixing_layer import find_layer
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import case_folders
from seepage.audit.run import record_only
from seepage.base.lock import scratch
from seepage.base.progress import Doing, ProgressCallback
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.transcript.simulated import OneRound
from seepage.federation.transcript.truth import open_truth
from seepage.papers.run import Value

Term = Literal["none", "negentropy", "tv", "independence"]

CLOSE = 0.99
"""Cosine from which an embedding counts as recovered."""


def without(*, term: Term = "none", steps: int = 25_000) -> CocktailParty:
    """The published attack without one term of its objective (eq. 13, Table 4); the other weights stay.

    The paper sweeps them anew for each column, with the truth at hand.

    >>> without(term="tv", steps=9).objective.tv
    0.0
    """
    change = {} if term == "none" else {term: 0.0}
    return CocktailParty(mode="published", steps=steps, objective=replace(IMAGES, **change))


def embeddings(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> list[Value]:
    """Figure 7: how the cosines of recovered and true embeddings are distributed, a column for each case.

    Rows: their median, their lowest tenth, and the share of at least `CLOSE`. The embedding is the input of the first
    fully connected layer; of each true one the recovered one of largest cosine counts, and recovered vectors have no
    sign.
    """
    recipes, values = resolve_cases(tables), []
    with scratch() as place:
        folder = record_only(tables, out=place / "recorded")
        for column, recipe in enumerate(recipes):
            observed, private = case_folders(folder, recipe.case, len(recipes))
            found = cosines(recipe.make_attack(recipe.attack[0]), observed, private, seed)
            numbers = {
                "median": float(found.median()),
                "lowest tenth": float(found.quantile(0.1)),
                f"share from {CLOSE}": float((found >= CLOSE).float().mean()),
            }
            facts = {"examples": len(found), "batch_size": recipe.batch.size}
            values += [
                Value(row=row, column=column, ours=round(number, 4), facts=facts) for row, number in numbers.items()
            ]
            show(column + 1, len(recipes), Doing(f"batches of {recipe.batch.size}"))
    return values


def cosines(attack: Attack, observed: Path, private: Path, seed: int) -> Tensor:
    """`[n]` cosine of each true embedding of a recorded case with the recovered one that is most like it."""
    transcript, found = open_transcript(observed, trust=True), []
    for t, batch in enumerate(open_truth(private)):
        layer = find_layer(transcript.knowledge, transcript[t], None)
        network = Embedding(transcript.knowledge.model, layer.name, transcript[t].params, transcript[t].buffers)
        with torch.no_grad():
            true = network(batch.inputs)
        guess = attack(OneRound(transcript, t), seed=seed).inputs
        found.append((F.normalize(true, dim=1) @ F.normalize(guess, dim=1).T).abs().amax(1))
    return torch.cat(found)
