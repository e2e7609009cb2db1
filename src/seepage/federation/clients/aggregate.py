"""Secure aggregation as the server sees it: only the mean of several clients' updates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from seepage.errors import SeepageError
from seepage.federation.clients.base import WrappedRule
from seepage.federation.types import Batch, ClientUpdate, LocalProblem, Tensors, Update


@dataclass(frozen=True)
class Aggregate(WrappedRule):
    """Several clients follow one rule, each on its own part of the batch, and only the mean of their updates shows.

    The batch holds the examples of all clients, one after the other, shared out as evenly as can be. Updates are
    weighted by examples, as in FedAvg. With FedSGD and no coupling layer the mean is the gradient of the pooled batch,
    so that summing hides who sent what and no more.

    Args:
        rule: What each client does.
        clients: How many there are.

    Example:
        >>> from torch import nn
        >>> from seepage.federation.clients import FedSGD
        >>> model = nn.Linear(4, 3)
        >>> params = {name: p.detach() for name, p in model.named_parameters()}
        >>> batch = Batch(torch.rand(6, 4), torch.arange(6) % 3)
        >>> summed = Aggregate(rule=FedSGD(), clients=3)(model, params, batch)
        >>> pooled = FedSGD()(model, params, batch)
        >>> torch.allclose(summed.tensors["weight"], pooled.tensors["weight"], atol=1e-6)
        True
    """

    clients: int

    def __post_init__(self) -> None:
        if self.clients < 2:
            raise SeepageError(f"an aggregate needs at least 2 clients, got {self.clients}; leave out client.clients")

    def parts(self, batch: Batch) -> list[Batch]:
        if len(batch) < self.clients:
            raise SeepageError(
                f"{self.clients} clients need at least one example each and the batch has {len(batch)}; "
                "raise batch.size or lower client.clients"
            )
        indices = [None] * self.clients if batch.indices is None else batch.indices.tensor_split(self.clients)
        split = batch.inputs.tensor_split(self.clients), batch.labels.tensor_split(self.clients), indices
        return [Batch(*part) for part in zip(*split, strict=True)]

    def compute(self, problem: LocalProblem) -> Update:
        parts = self.parts(problem.batch)
        updates = [self.rule.compute(replace(problem, batch=part)) for part in parts]
        return mean_update(updates, [len(part) for part in parts])

    def as_gradient(self, update: Update, examples: int | None = None) -> Tensors:
        # Each client's step count follows from its own examples; the largest client has the most.
        return self.rule.as_gradient(update, None if examples is None else -(-examples // self.clients))

    def max_participations(self, examples: int) -> int:
        return self.rule.max_participations(-(-examples // self.clients))

    @property
    def read_as(self) -> "Aggregate":
        return replace(self, rule=self.rule.read_as)

    def without_decay(self) -> "Aggregate":
        return replace(self, rule=self.rule.without_decay())

    def undecayed(self, update: Update, params: Tensors, examples: int) -> Update:
        return self.rule.undecayed(update, params, -(-examples // self.clients))

    def first_order_rule(self) -> "Aggregate":
        return replace(self, rule=self.rule.first_order_rule())

    def with_per_client(self, rule: ClientUpdate) -> "Aggregate":
        return replace(self, rule=rule)

    @property
    def num_clients(self) -> int:
        return self.clients

    @property
    def per_client(self) -> ClientUpdate:
        return self.rule


def mean_update(updates: Sequence[Update], sizes: Sequence[int]) -> Update:
    """The mean of updates, weighted by their numbers of examples.

    >>> one, two = Update({"w": torch.zeros(1)}), Update({"w": torch.ones(1)})
    >>> mean_update([one, two], [1, 3]).tensors["w"]
    tensor([0.7500])
    """
    if len(updates) == 1:
        return updates[0]
    shares = [size / sum(sizes) for size in sizes]
    names = updates[0].tensors
    mean = {
        name: torch.stack([share * u.tensors[name] for share, u in zip(shares, updates, strict=True)]).sum(0)
        for name in names
    }
    return Update(mean, updates[0].kind)
