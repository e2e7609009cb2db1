"""A recipe's federation over a data set: who holds what, the model of the audited round, whose update is attacked."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.nn import generator
from seepage.data import Dataset
from seepage.errors import SeepageError
from seepage.recipe.case import Recipe
from seepage.recipe.plans import Federation
from seepage.simulate.federation import Checkpoints, Clients, Stage, federate
from seepage.simulate.partition import sizes_of
from seepage.types import Batch, Tensors

UNSEEN = 256
"""Examples on which the accuracy is measured, at most."""


@dataclass(frozen=True)
class Held:
    """A data set shared out.

    Attributes:
        holdings: Places of the data set that each client holds.
        test: Places that nobody holds.
    """

    holdings: tuple[Tensor, ...]
    test: Tensor

    @classmethod
    def of(cls, recipe: Recipe, dataset: Dataset) -> "Held":
        """Set a fifth of the private part aside, `UNSEEN` at most, and share out everything else.

        Raises:
            SeepageError: Where the data cannot be shared out so.
        """
        assert recipe.federation is not None
        order = torch.randperm(len(dataset.private), generator=generator(recipe.seed, "unseen"))
        test, rest = dataset.private[order].tensor_split([min(UNSEEN, len(dataset.private) // 5)])
        pool = torch.cat([dataset.train, rest]).sort().values
        parts = recipe.make_partition()(
            dataset.labels[pool],
            recipe.federation.clients,
            generator=generator(recipe.seed, "partition"),
            inputs=lambda places: dataset.batch(pool[places]).inputs,
        )
        return cls(tuple(pool[part] for part in parts), test)

    def victims(self, recipe: Recipe) -> list[Tensor]:
        """Places `[batch.size]` of each audited batch, each of another client that holds enough.

        Raises:
            SeepageError: Where too few clients do.
        """
        size, count = recipe.batch.size, recipe.batch.count
        able = [part for part in self.holdings if len(part) >= size]
        if len(able) < count:
            raise SeepageError(
                f"{count} clients with at least {size} examples are to be audited and {len(able)} of "
                f"{sizes_of(self.holdings)} have them; lower batch.size, batch.count or federation.clients"
            )
        draw = generator(recipe.seed, "victims")
        chosen = torch.randperm(len(able), generator=draw)[:count].tolist()
        return [able[place][torch.randperm(len(able[place]), generator=draw)[:size]] for place in chosen]

    def facts(self, stage: Stage) -> dict[str, Any]:
        """For the report: how even the holdings are, and how the training went."""
        return {"holdings": sizes_of(self.holdings), "accuracies": [list(pair) for pair in stage.accuracies]}


def clients_of(recipe: Recipe, dataset: Dataset, held: Held, model: nn.Module) -> Clients:
    """All clients of a recipe's federation."""

    def lookup(places: Tensor) -> Batch:
        return dataset.batch(places).to(recipe.device)

    test = lookup(held.test) if len(held.test) else None
    rule, defense = recipe.make_client().per_client, recipe.make_defense()
    return Clients(model, rule, held.holdings, lookup, defense, test, recipe.seed)


def train_federation(
    recipe: Recipe, clients: Clients, state: tuple[Tensors, Tensors], folder: Path, progress: Callable[[int, int], None]
) -> Stage:
    """Bring the model from `state` to the audited round, going on from what lies below `folder`.

    Raises:
        SeepageError: Where the training fails.
    """
    plan = recipe.federation
    assert plan is not None
    checkpoints = Checkpoints(folder / f"federation-{_key(recipe, plan)}")
    try:
        return federate(clients, state, plan, checkpoints=checkpoints, progress=progress)
    except ValueError as error:
        raise SeepageError(
            f"a client of the federation cannot train {recipe.model} ({error}); use larger client batches or "
            "--set client.mode=eval"
        ) from error


def _key(recipe: Recipe, plan: Federation) -> str:
    """Names everything that the stages depend on but the number of rounds, so that later stages go on from earlier."""
    parts = (recipe.data, recipe.seed, recipe.model, recipe.training, recipe.client, recipe.defense, recipe.partition)
    return hashlib.sha256(repr((*parts, replace(plan, rounds=0), recipe.device)).encode()).hexdigest()[:10]
