"""Partitions: ways to distribute a data set over clients.

The partitioners of `flwr-datasets` work on Hugging Face `datasets` (with pyarrow), select columns by name and return
views; those here need only labels and a generator, and return indices.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from seepage.base.images import neighbor_differences
from seepage.base.registry import Registry, partitions
from seepage.errors import SeepageError

Inputs = Callable[[Tensor], Tensor]
"""Gives the inputs `[k, *shape]` at places `[k]`; called by partitions by features only."""
TRIES = 1_000
"""Draws of a Dirichlet partition before it gives up."""


class Partition(ABC):
    """A way to share a data set out. A sample goes to one client at most."""

    @abstractmethod
    def __call__(self, labels: Tensor, clients: int, *, generator: Generator, inputs: Inputs) -> list[Tensor]:
        """Places `[n_k]` int64 of the samples of each of `clients` clients, in ascending order.

        Args:
            labels: `[N]` int64 labels of the data set.
            clients: How many clients there are.
            generator: All randomness.
            inputs: Gives the inputs at places `[k]`; called by partitions by features only.

        Raises:
            SeepageError: Where the data cannot be divided this way.
        """

    def check(self, samples: int, clients: int) -> None:
        """Raise where there are fewer samples than clients, or no client."""
        if clients < 1:
            raise SeepageError(f"a data set is shared out among 1 client or more, got {clients}; raise clients")
        if samples < clients:
            raise SeepageError(
                f"{clients} clients cannot share {samples} samples, one each at least; use fewer clients or more data"
            )


@partitions.register("iid")
@dataclass(frozen=True)
class IID(Partition):
    """Every client's samples are drawn from all, evenly.

    >>> parts = IID()(torch.arange(7) % 2, 3, generator=Generator().manual_seed(0), inputs=lambda places: places)
    >>> [len(part) for part in parts]
    [3, 2, 2]
    """

    def __call__(self, labels: Tensor, clients: int, *, generator: Generator, inputs: Inputs) -> list[Tensor]:
        self.check(len(labels), clients)
        return [part.sort().values for part in torch.randperm(len(labels), generator=generator).tensor_split(clients)]


@partitions.register("label_skew")
@dataclass(frozen=True, kw_only=True)
class LabelSkew(Partition):
    """Every client has samples of so many classes only (McMahan et al. 2017; FedLeak, Table 5).

    The classes go round, so that each is held by as many clients as any other, give or take one; the samples of a
    class are shared evenly among its holders. Where all clients together have room for fewer classes than there are,
    the rest is held by nobody.

    Args:
        classes: Classes per client.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise SeepageError(f"label skew needs at least 1 class per client, got {self.classes}; raise classes")

    def __call__(self, labels: Tensor, clients: int, *, generator: Generator, inputs: Inputs) -> list[Tensor]:
        self.check(len(labels), clients)
        known = labels.unique()
        if self.classes > len(known):
            raise SeepageError(f"each client is to hold {self.classes} classes and the data have {len(known)}")
        order = known[torch.randperm(len(known), generator=generator)]
        slots = torch.arange(clients * self.classes) % len(order)
        held = order[slots].reshape(clients, self.classes)  # [clients, classes]; neighbors on a circle, so distinct
        parts: list[list[Tensor]] = [[] for _ in range(clients)]
        for label in known.tolist():
            holders = (held == label).any(1).nonzero().squeeze(1)
            places = (labels == label).nonzero().squeeze(1)
            if not len(holders):
                continue  # with more classes than slots, no client holds this one
            if len(places) < len(holders):
                raise SeepageError(
                    f"class {label} has too few samples ({len(places)}) for {len(holders)} clients; use fewer clients, "
                    "more data or fewer classes per client"
                )
            places = places[torch.randperm(len(places), generator=generator)]
            for holder, share in zip(holders.tolist(), places.tensor_split(len(holders)), strict=True):
                parts[holder].append(share)
        return [torch.cat(part).sort().values for part in parts]


@partitions.register("quantity_skew")
@dataclass(frozen=True, kw_only=True)
class QuantitySkew(Partition):
    """Clients differ in how much they hold: sizes drawn evenly from `low` to `high` (FedLeak: 50 to 250 samples).

    What is left over is held by nobody.

    Args:
        low: Fewest samples of a client.
        high: Most samples of a client.
    """

    low: int = 50
    high: int = 250

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise SeepageError(f"quantity skew needs 1 <= low <= high, got {self.low} and {self.high}; correct them")

    def __call__(self, labels: Tensor, clients: int, *, generator: Generator, inputs: Inputs) -> list[Tensor]:
        self.check(len(labels), clients)
        sizes = torch.randint(self.low, self.high + 1, (clients,), generator=generator)
        total = int(sizes.sum())
        if total > len(labels):
            raise SeepageError(
                f"{clients} clients of {self.low} to {self.high} samples came to {total} and the data have "
                f"{len(labels)}; use fewer clients, more data, or a lower high"
            )
        order = torch.randperm(len(labels), generator=generator)[:total]
        return [part.sort().values for part in order.split(sizes.tolist())]


@partitions.register("feature_skew")
@dataclass(frozen=True, kw_only=True)
class FeatureSkew(Partition):
    """Clients differ in how busy their images are: groups by total variation (FedLeak, Table 5).

    Samples are sorted by their mean total variation and cut into groups of equal size; the clients are dealt to the
    groups in turn, and each group's samples are shared evenly among its clients.

    Args:
        groups: Number of groups.
    """

    groups: int = 5

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise SeepageError(f"feature skew needs at least 1 group, got {self.groups}; raise groups")

    def __call__(self, labels: Tensor, clients: int, *, generator: Generator, inputs: Inputs) -> list[Tensor]:
        self.check(len(labels), clients)
        if clients < self.groups:
            raise SeepageError(f"{self.groups} groups need as many clients and there are {clients}; lower groups")
        busy = torch.cat([_variation(inputs(places)) for places in torch.arange(len(labels)).split(256)])
        parts: list[Tensor | None] = [None] * clients
        for group, places in enumerate(busy.argsort(stable=True).tensor_split(self.groups)):
            members = range(group, clients, self.groups)
            places = places[torch.randperm(len(places), generator=generator)]
            if len(places) < len(members):
                raise SeepageError(
                    f"a group of {len(places)} samples cannot serve {len(members)} clients; lower clients"
                )
            for member, share in zip(members, places.tensor_split(len(members)), strict=True):
                parts[member] = share.sort().values
        return [part for part in parts if part is not None]


def _variation(images: Tensor) -> Tensor:
    """`[k]` mean absolute difference of neighbors, down plus across."""
    if images.ndim != 4:
        raise SeepageError(
            f"feature skew sorts images by total variation and the data have {images.ndim - 1} dimensions; "
            "use another partition for tables"
        )
    down, across = neighbor_differences(images)
    return down.flatten(1).mean(1) + across.flatten(1).mean(1)


@partitions.register("dirichlet")
@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Every class is shared out by proportions drawn from a symmetric Dirichlet (Hsu et al. 2019, by class).

    Proportions are drawn anew, up to a thousand times, until every client has at least `least` samples.

    Args:
        alpha: Concentration: near 0 each class goes to one client, at infinity the split is even.
        least: Fewest samples of a client.
    """

    alpha: float = 0.5
    least: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise SeepageError(f"a Dirichlet partition needs alpha > 0, got {self.alpha}; correct it")
        if self.least < 0:
            raise SeepageError(f"a Dirichlet partition needs least >= 0, got {self.least}")

    def __call__(self, labels: Tensor, clients: int, *, generator: Generator, inputs: Inputs) -> list[Tensor]:
        self.check(len(labels), clients)
        if clients * self.least > len(labels):
            raise SeepageError(
                f"{clients} clients of at least {self.least} samples need more than the {len(labels)} there are; "
                "lower least or clients"
            )
        # NumPy's sampler: PyTorch's draws from the global generator.
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        for _ in range(TRIES):
            parts = self._drawn(labels, clients, draw)
            if min(len(part) for part in parts) >= self.least:
                return parts
        raise SeepageError(
            f"no draw of {TRIES} gave each of {clients} clients {self.least} samples at alpha={self.alpha}; "
            "raise alpha, or lower clients or least"
        )

    def _drawn(self, labels: Tensor, clients: int, draw: np.random.Generator) -> list[Tensor]:
        parts: list[list[Tensor]] = [[] for _ in range(clients)]
        for label in labels.unique():
            places = (labels == label).nonzero().squeeze(1)
            places = places[torch.from_numpy(draw.permutation(len(places)))]
            ends = (draw.dirichlet([self.alpha] * clients).cumsum() * len(places)).round().astype(int)[:-1]
            for part, share in zip(parts, places.tensor_split(ends.tolist()), strict=True):
                part.append(share)
        return [torch.cat(part).sort().values for part in parts]


PARTITIONS: Registry[Partition] = partitions
"""Every partition that has a name."""


def sizes_of(parts: Sequence[Tensor]) -> str:
    """A few words on how uneven a partition is.

    >>> sizes_of([torch.arange(3), torch.arange(10)])
    '2 clients of 3 to 10 samples'
    """
    sizes = [len(part) for part in parts]
    return f"{len(parts)} clients of {min(sizes)} to {max(sizes)} samples"
