"""What a client computes from its private batch: one file per FL protocol."""

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from seepage.clients.aggregate import Aggregate, mean_update
from seepage.clients.base import TrainingRule, WrappedRule
from seepage.clients.fedavg import FedAvg
from seepage.clients.fedprox import FedProx
from seepage.clients.fedsgd import FedSGD
from seepage.errors import SeepageError
from seepage.types import ClientUpdate

CLIENTS: dict[str, type[ClientUpdate]] = {"fedavg": FedAvg, "fedprox": FedProx, "fedsgd": FedSGD}

__all__ = [
    "CLIENTS",
    "Aggregate",
    "FedAvg",
    "FedProx",
    "FedSGD",
    "TrainingRule",
    "WrappedRule",
    "client_options",
    "make_client",
    "mean_update",
]


def make_client(use: str, options: Mapping[str, Any]) -> ClientUpdate:
    """A rule by its name and options; `clients` above 1 sums the updates of so many clients.

    >>> make_client("fedsgd", {"clients": 2})
    Aggregate(rule=FedSGD(mode='train'), clients=2)
    """
    own = dict(options)
    clients = own.pop("clients", 1)
    rule = CLIENTS[use](**own)
    return rule if clients == 1 else Aggregate(rule=rule, clients=clients)


def client_options(client: ClientUpdate) -> dict[str, Any]:
    """The reverse: a rule's registry name as `use`, and its options.

    Raises:
        SeepageError: For a rule that has no name here.
    """
    if isinstance(client, Aggregate):
        return {**client_options(client.rule), "clients": client.clients}
    for use, kind in CLIENTS.items():
        if type(client) is kind:
            options = {f.name: getattr(client, f.name) for f in fields(client) if not _quiet(client, f)}  # type: ignore[arg-type]
            return {"use": use, **options}
    raise SeepageError(
        f"{type(client).__name__} is not one of seepage's client rules ({', '.join(CLIENTS)}), so it cannot be written "
        "to a folder; keep the transcript in memory"
    )


def _quiet(client: ClientUpdate, option: Field[Any]) -> bool:
    """Whether an option is left unsaid: folders written before it existed read the same."""
    return "quiet" in option.metadata and getattr(client, option.name) == option.default
