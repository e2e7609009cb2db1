"""What the clients train on, how they train, and the truth beside: two states of weights from a seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
import upstream_networks as networks
from torch import Tensor, nn

from seepage.base.nn import derived_seed
from seepage.federation import data

MASKS = derived_seed(0, "masks")
"""Seed of what training draws: that of a simulated client before it draws its own."""
Part = tuple[Tensor, Tensor]
Step = Callable[[Any, Sequence[Part]], object]


@dataclass(frozen=True, kw_only=True)
class Client:
    """One upstream client: its network, its examples and its own training step, and what is true of them.

    Attributes:
        name: Of the case.
        network: Name of a factory in `networks`.
        shape: Of one example.
        classes: How many there are; None: as the network has.
        size: Examples behind the update.
        known: Options of `seepage.audit.captured.Capture` that a user would give.
        make: Trains; returns the states sent out and back, inputs and labels.
        signs: No single step explains what the optimizer leaves, so that signs alone are read.
        bent: One step of an optimizer that bends it, such as Adam, which is inverted.
        looks: Names of fingerprints that are there.
        level: The verdict's level.
        decay: Largest share of a weight that weight decay took off, if any.
        spared: Weights that it spared.
        asks: Names of what must be questioned, where no attack explains the update.
        nameless: The last bias names no classes, or none that can be believed.
        counted: Counts of labels are proved.
        sized: The batch size is found or told.
        near: PSNR of the one image that comes back, in dB, at the least; None: none does.
        lacking: Weights of the network are in no file.
    """

    name: str
    network: str
    shape: tuple[int, ...]
    size: int
    make: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any], Tensor, Tensor]]
    classes: int | None = 10
    known: Mapping[str, Any] = field(default_factory=dict)
    signs: bool = False
    bent: bool = False
    looks: frozenset[str] = frozenset()
    level: str = "unscored"
    decay: float | None = None
    spared: tuple[str, ...] = ()
    asks: frozenset[str] = frozenset()
    nameless: bool = False
    counted: bool = False
    sized: bool = False
    near: float | None = None
    lacking: bool = False

    @property
    def hides(self) -> frozenset[str]:
        """What keeps the last layer from telling of weight decay."""
        return frozenset({"signsgd"} if self.signs or self.bent else ()) | self.asks & {"noise", "low precision"}


@cache
def pictures(use: str, size: int, channels: int) -> data.Dataset:
    return data.load(use, size=size, channels=channels, split=1.0)


def drawn(count: int, shape: tuple[int, ...], classes: int, seed: int, use: str = "album") -> Part:
    """Pictures that ship with packages, with random classes: upstream's own would be downloads."""
    draw = np.random.default_rng(seed)
    kept = pictures(use, shape[-1], shape[0])
    places = torch.from_numpy(draw.choice(len(kept), count, replace=count > len(kept)))
    return kept.batch(places).inputs, torch.from_numpy(draw.integers(0, classes, count))


def state(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def train(
    network: str, step: Step, parts: Sequence[Part], *, keep: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The states before and after a client's steps on the parts of its examples."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = getattr(networks, network)()
        torch.manual_seed(MASKS)
        before = state(net)
        net.train()
        step(net, parts)
        after = state(net)
    return tuple({name: t for name, t in one.items() if keep(name)} for one in (before, after))  # type: ignore[return-value]


def each(step: Callable[[Any, Part], object]) -> Step:
    """A step that takes one batch, on each of them."""
    return lambda net, parts: [step(net, part) for part in parts]


def split(batch: Part, count: int) -> list[Part]:
    return list(zip(batch[0].chunk(count), batch[1].chunk(count), strict=True))
