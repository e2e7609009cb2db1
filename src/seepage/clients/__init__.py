"""What a client computes from its private batch: one file per FL protocol."""

from seepage.clients.fedsgd import FedSGD
from seepage.types import ClientUpdate

CLIENTS: dict[str, type[ClientUpdate]] = {"fedsgd": FedSGD}

__all__ = ["CLIENTS", "FedSGD"]
