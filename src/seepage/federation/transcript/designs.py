"""Designs: which samples of a fixed set, with known indices, each round uses."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.base.nn import generator
from seepage.errors import SeepageError, unknown


@dataclass(frozen=True, kw_only=True)
class Design(ABC):
    """The indices of the samples drawn in round `t`, as a pure function of `t`.

    Args:
        samples: N, the number of samples that all parties hold.
        batch_size: K; the last batch of an epoch or partition is smaller where K does not divide N.
    """

    samples: int
    batch_size: int

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size < self.samples:
            raise SeepageError(
                f"batches of {self.batch_size} from {self.samples} samples: a batch must be smaller than the data set, "
                "else every round is the same; lower the batch size, or use the design 'whole'"
            )

    @property
    def per_epoch(self) -> int:
        """Number of batches in an epoch, in which every sample occurs once."""
        return -(-self.samples // self.batch_size)

    @abstractmethod
    def indices(self, t: int) -> Tensor:
        """`[K]` int64, the samples of round `t`."""

    def busiest(self, rounds: int) -> list[int]:
        """The rounds of the sample that occurs in most of the first `rounds`; they determine its privacy loss."""
        drawn = [self.indices(t) for t in range(rounds)]
        most = torch.cat(drawn).bincount(minlength=self.samples).argmax()
        return [t for t, chosen in enumerate(drawn) if bool((chosen == most).any())]


@dataclass(frozen=True, kw_only=True)
class RandomDraws(Design):
    """A fresh draw each round, without repeats inside a batch: the paper's protocol.

    >>> RandomDraws(samples=6, batch_size=3, seed=1).indices(4).tolist()
    [2, 0, 4]
    """

    seed: int = 0

    def indices(self, t: int) -> Tensor:
        return torch.randperm(self.samples, generator=generator(self.seed, "draw", t))[: self.batch_size]


@dataclass(frozen=True, kw_only=True)
class ShuffledEpochs(Design):
    """Every sample once per epoch, in an order shuffled anew: what data loaders do."""

    seed: int = 0

    def indices(self, t: int) -> Tensor:
        epoch, place = divmod(t, self.per_epoch)
        order = torch.randperm(self.samples, generator=generator(self.seed, "epoch", epoch))
        return order[place * self.batch_size : (place + 1) * self.batch_size]


@dataclass(frozen=True, kw_only=True)
class Partitions(Design):
    """Up to three partitions in which few samples share all their batches, as a curious server would choose them.

    With B batches per partition, sample `n = a K + c` is in batch `a` of the first partition. The second cuts the
    samples into runs of K after sorting by `(c, a)`, the third after sorting by `((a + c) mod B, c)`. For N = 800 and
    K = 40 two partitions leave cohorts of two samples, three tell all samples apart.

    >>> design = Partitions(samples=800, batch_size=40)
    >>> codes = {tuple(t for t in range(60) if n in design.indices(t)) for n in (0, 20, 41)}
    >>> sorted(codes)
    [(0, 20, 40), (0, 30, 40), (1, 20, 42)]
    """

    def indices(self, t: int) -> Tensor:
        which, place = divmod(t, self.per_epoch)
        a = torch.arange(self.samples) // self.batch_size
        c = torch.arange(self.samples) % self.batch_size
        size = self.samples + self.batch_size
        keys = (a * size + c, c * size + a, ((a + c) % self.per_epoch) * size + c)
        order = keys[which % 3].argsort()
        return order[place * self.batch_size : (place + 1) * self.batch_size]


@dataclass(frozen=True, kw_only=True)
class WholeBatch(Design):
    """All samples in every round: a client whose data fit one batch. What differs is noise, and weights that move.

    >>> WholeBatch(samples=3, batch_size=3).indices(7).tolist()
    [0, 1, 2]
    """

    def __post_init__(self) -> None:
        if self.batch_size != self.samples:
            raise SeepageError(
                f"the design 'whole' puts all {self.samples} samples into each round, and the batch size is "
                f"{self.batch_size}; set batch.size and rounds.samples alike"
            )

    def indices(self, t: int) -> Tensor:
        return torch.arange(self.samples)


@dataclass(frozen=True, kw_only=True)
class Listed(Design):
    """Batches given one by one, e.g. by a server's own plan."""

    batches: tuple[tuple[int, ...], ...]

    def indices(self, t: int) -> Tensor:
        return torch.tensor(self.batches[t], dtype=torch.int64)


DESIGNS: dict[str, type[Design]] = {
    "random": RandomDraws,
    "epochs": ShuffledEpochs,
    "partitions": Partitions,
    "whole": WholeBatch,
}


def make_design(use: str, samples: int, batch_size: int, seed: int) -> Design:
    """A design by its name in `DESIGNS`; `seed` is used by random designs.

    Raises:
        SeepageError: For an unknown name, and for a batch size that the design does not allow.
    """
    if use not in DESIGNS:
        raise unknown("design of rounds", use, DESIGNS)
    if use == "partitions":
        return Partitions(samples=samples, batch_size=batch_size)
    if use == "whole":
        return WholeBatch(samples=samples, batch_size=batch_size)
    return (RandomDraws if use == "random" else ShuffledEpochs)(samples=samples, batch_size=batch_size, seed=seed)


def check_rounds(design: Design, rounds: int) -> list[str]:
    """The reason why a design cannot give this number of rounds; empty if it can.

    >>> check_rounds(Partitions(samples=8, batch_size=2), 20)
    ['3 partitions of 4 batches make 12 different rounds and 20 were asked for; the rest only repeat them']
    """
    most = 3 * design.per_epoch
    if isinstance(design, Partitions) and rounds > most:
        return [
            f"3 partitions of {design.per_epoch} batches make {most} different rounds and {rounds} were asked for; "
            "the rest only repeat them"
        ]
    return []
