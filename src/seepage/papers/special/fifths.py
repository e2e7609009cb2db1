"""Clients that all hold images of one fifth by total variation (FedLeak, Table 5, feature skew)."""

from dataclasses import dataclass

from torch import Generator, Tensor

from seepage.audit.simulate.partition import IID, FeatureSkew, Inputs, Partition
from seepage.errors import SeepageError


@dataclass(frozen=True, kw_only=True)
class Fifth(Partition):
    """Only the images of one group by total variation are distributed, evenly; no client holds the others.

    `FeatureSkew` has a client for every group, and an audit takes any of them; here the group is chosen.

    Args:
        group: From 0, the simplest, up.
        groups: Number of groups.

    >>> import torch
    >>> images = torch.arange(10).reshape(10, 1, 1, 1) * torch.tensor([0.0, 1.0])  # ever busier
    >>> draw = Generator().manual_seed(0)
    >>> Fifth(group=4)(torch.zeros(10), 1, generator=draw, inputs=lambda places: images[places])
    [tensor([8, 9])]
    """

    group: int
    groups: int = 5

    def __post_init__(self) -> None:
        if not 0 <= self.group < self.groups:
            raise SeepageError(f"group must be from 0 to {self.groups - 1}, got {self.group}; correct the recipe")

    def __call__(self, labels: Tensor, clients: int, *, generator: Generator, inputs: Inputs) -> list[Tensor]:
        skew = FeatureSkew(groups=self.groups)
        held = skew(labels, self.groups, generator=generator, inputs=inputs)[self.group]
        return [held[part] for part in IID()(labels[held], clients, generator=generator, inputs=inputs)]
