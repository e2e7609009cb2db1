"""Client rules: the update that a client computes from its private batch, one file per FL protocol."""

from typing import Any

from seepage.base.registry import Registry, Spec, clients
from seepage.errors import SeepageError
from seepage.federation.clients.aggregate import Aggregate, mean_update
from seepage.federation.clients.base import TrainingRule, WrappedRule
from seepage.federation.clients.fedavg import FedAvg
from seepage.federation.clients.fedprox import FedProx
from seepage.federation.clients.fedsgd import FedSGD
from seepage.federation.clients.one_step import gradient_behind, gradient_rule
from seepage.federation.clients.own_step import OwnStep, own_step
from seepage.federation.types import ClientUpdate

CLIENTS: Registry[ClientUpdate] = clients
"""Every client rule that has a name."""

__all__ = [
    "CLIENTS",
    "Aggregate",
    "FedAvg",
    "FedProx",
    "FedSGD",
    "OwnStep",
    "TrainingRule",
    "WrappedRule",
    "client_options",
    "gradient_behind",
    "gradient_rule",
    "make_client",
    "mean_update",
]


def make_client(spec: Spec) -> ClientUpdate:
    """A rule by its name and options, or a training step; `clients` above 1 sums the updates of so many clients.

    >>> make_client(Spec("fedsgd", {"clients": 2}))
    Aggregate(rule=FedSGD(mode='train'), clients=2)
    """
    rule, number = alone(spec)
    made = own_step(rule) or clients.build(rule)
    return made if number == 1 else Aggregate(rule=made, clients=number)


def alone(spec: Spec) -> tuple[Spec, int]:
    """The rule of a single client, and the number of clients whose updates are averaged."""
    own = dict(spec.options)
    number = own.pop("clients", 1)
    return Spec(spec.use, own), number


def client_options(client: ClientUpdate) -> dict[str, Any]:
    """The reverse of `make_client`: a rule's name as `use`, and its options.

    Raises:
        SeepageError: For a rule that cannot be named.
    """
    if isinstance(client, Aggregate):
        return {**client_options(client.rule), "clients": client.clients}
    try:
        return clients.spec_of(client).table()
    except SeepageError as error:
        raise SeepageError(f"{error}; keep the transcript in memory") from error
