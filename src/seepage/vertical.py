"""Rounds over one fixed set of samples with known indices: vertical FL, or horizontal FL with public batches.

The server says which samples each batch holds (`Design`); the clients answer with the gradient of that batch.
Rounds are made anew from `(seed, t)` whenever they are asked for, with weights frozen or trained meanwhile.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.errors import SeepageError, unknown
from seepage.functional import forward, generator, in_mode, unordered
from seepage.types import Batch, ClientUpdate, ClientView, Defense, Knowledge, Round, Tensors, Update

# --- which samples a batch holds -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Design(ABC):
    """Which samples are drawn in round `t`: a pure function of `t`.

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
        """Batches that hold every sample once."""
        return -(-self.samples // self.batch_size)

    @abstractmethod
    def indices(self, t: int) -> Tensor:
        """`[K]` int64, the samples of round `t`."""

    def busiest(self, rounds: int) -> list[int]:
        """The rounds of the sample that takes part in most of so many: what an accountant counts."""
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
    """Up to three partitions chosen so that few samples share all their batches: a server that wants to know.

    With B batches per partition, sample `n = a K + c` is in batch `a` of the first partition. The second cuts the
    samples into runs of K after sorting by `(c, a)`, the third after sorting by `((a + c) mod B, c)`. For N = 800 and
    K = 40 two partitions leave cells of two samples, three tell all samples apart.

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
    """A design by its name in `DESIGNS`; `seed` is for those that draw.

    Raises:
        SeepageError: For an unknown name, and a batch that is not smaller than the data set, or not all of it.
    """
    if use not in DESIGNS:
        raise unknown("design of rounds", use, DESIGNS)
    if use == "partitions":
        return Partitions(samples=samples, batch_size=batch_size)
    if use == "whole":
        return WholeBatch(samples=samples, batch_size=batch_size)
    return (RandomDraws if use == "random" else ShuffledEpochs)(samples=samples, batch_size=batch_size, seed=seed)


# --- the weights while rounds go on --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ServerStep:
    """How the server changes the weights after each round.

    Args:
        optimizer: `none` leaves them frozen, the setting of the paper's main tables.
        lr: Learning rate.
    """

    optimizer: Literal["none", "sgd", "adam"] = "none"
    lr: float = 1e-4

    def __post_init__(self) -> None:
        if self.optimizer not in ("none", "sgd", "adam") or not self.lr > 0:
            raise SeepageError(f"the server's step must be none, sgd or adam with lr > 0, got {self}; correct it")


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Rounds over one data set with known indices, in place of independent batches: the `[rounds]` of a recipe.

    Args:
        design: `random` draws (the paper's protocol), shuffled `epochs`, the server's own `partitions`, or the `whole`
            data set in every round, as a client's full batch.
        count: Number of rounds.
        samples: N, examples that all parties hold.
        optimizer: How the server changes the weights meanwhile; `none` leaves them frozen.
        lr: Its learning rate.
    """

    design: str = "random"
    count: int = 60
    samples: int = 800
    optimizer: Literal["none", "sgd", "adam"] = "none"
    lr: float = 1e-4

    def __post_init__(self) -> None:
        least = 1 if self.design == "whole" else 2
        if self.count < 1 or self.samples < least:
            raise SeepageError(
                f"rounds.count must be at least 1 and rounds.samples at least {least}, got {self.count} and "
                f"{self.samples}"
            )
        if self.design not in DESIGNS:
            raise unknown("design of rounds", self.design, DESIGNS)
        _ = self.server

    @property
    def server(self) -> ServerStep:
        return ServerStep(optimizer=self.optimizer, lr=self.lr)

    def drawn(self, batch_size: int, seed: int) -> Design:
        """Which samples each round holds.

        Raises:
            SeepageError: Where the batches do not fit the data set, or the rounds would only repeat themselves.
        """
        design = make_design(self.design, self.samples, batch_size, seed)
        for problem in check_rounds(design, self.count):
            raise SeepageError(f"{problem}; lower rounds.count")
        return design


@dataclass(frozen=True)
class _State:
    """Weights after `t` rounds, with Adam's moments (empty for the others)."""

    t: int
    params: Tensors
    first: Tensors = field(default_factory=dict)
    second: Tensors = field(default_factory=dict)


def _stepped(state: _State, gradient: Tensors, plan: ServerStep) -> _State:
    params = state.params
    if plan.optimizer == "sgd":
        return _State(state.t + 1, {name: p - plan.lr * gradient[name] for name, p in params.items()})
    t = state.t + 1
    zeros = {name: torch.zeros_like(p) for name, p in params.items()}
    first, second = state.first or zeros, state.second or zeros
    first = {name: 0.9 * first[name] + 0.1 * gradient[name] for name in params}
    second = {name: 0.999 * second[name] + 0.001 * gradient[name] ** 2 for name in params}
    one, two = 1 - 0.9**t, 1 - 0.999**t
    moved = {name: p - plan.lr * first[name] / one / ((second[name] / two).sqrt() + 1e-7) for name, p in params.items()}
    return _State(t, moved, first, second)


# --- the parties, and what the server sees -------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexedVictim:
    """The parties' joint data and the protocol; only simulations, metrics and audits hold one.

    Args:
        knowledge: What the attacker is told; `told` should hold `indices`.
        params: Trainable parameters of round 0.
        data: All N samples, `[N, *shape]`, and their labels.
        design: Which samples each round holds.
        rounds: Number of rounds.
        buffers: The model's buffers.
        defense: What the parties do to their update.
        seed: Seeds the defence, together with `t`.
        server: How the weights move.
        keep: A snapshot of moving weights is kept every so many rounds, to start from when an earlier round is
            asked for again.
    """

    knowledge: Knowledge
    params: Tensors
    data: Batch
    design: Design
    rounds: int
    buffers: Tensors = field(default_factory=dict)
    defense: Defense | None = None
    seed: int = 0
    server: ServerStep = ServerStep()
    keep: int = 64
    _states: dict[int, _State] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.data) != self.design.samples:
            raise SeepageError(
                f"the design draws from {self.design.samples} samples and there are {len(self.data)}; "
                "make the design for the data at hand"
            )
        if self.knowledge.client.alone is not self.knowledge.client:
            raise SeepageError(
                "rounds over one data set hold one update of all parties, and this client rule sums several clients' "
                "updates; leave out client.clients"
            )

    def batch(self, t: int) -> Batch:
        """The private batch of round `t`."""
        chosen = self.design.indices(t).to(self.data.inputs.device)
        return Batch(self.data.inputs[chosen], self.data.labels[chosen], chosen)

    def params_at(self, t: int) -> Tensors:
        """The weights that the server sends in round `t`."""
        if self.server.optimizer == "none":
            return self.params
        best = max((known for known in self._states if known <= t), default=0)
        state = self._states.get(best) or _State(0, self.params)
        while state.t < t:
            update = self._update(state.t, state.params)
            state = _stepped(
                state, self.knowledge.client.as_gradient(update, len(self.design.indices(state.t))), self.server
            )
            if state.t % self.keep == 0:
                self._states[state.t] = state
        # The last state asked for is kept beside the snapshots, so that going through the rounds takes one step each.
        for known in [known for known in self._states if known % self.keep]:
            del self._states[known]
        self._states[t] = state
        return state.params

    def update(self, t: int) -> Update:
        """What leaves the parties in round `t`."""
        return self._update(t, self.params_at(t))

    def _update(self, t: int, params: Tensors) -> Update:
        knowledge, batch = self.knowledge, self.batch(t)
        update = self._rule(t)(knowledge.model, params, batch, buffers=self.buffers)
        return self._defended(update, params, batch, t)

    def _rule(self, t: int) -> ClientUpdate:
        return self.knowledge.client.for_round(self.seed, t)

    def _defended(self, update: Update, params: Tensors, batch: Batch, t: int) -> Update:
        if self.defense is None:
            return update
        view = ClientView(self.knowledge.model, params, batch, self._rule(t), self.buffers, t)
        return self.defense(update, view, generator=generator(self.seed, "defense", t))

    def gradients(self, t: int, names: Collection[str]) -> Tensors:
        """Some tensors of round `t` alone, equal to those of the whole round, without the work for the others."""
        params, batch = self.params_at(t), self.batch(t)
        tensorwise = self.defense is None or self.defense.tensorwise
        # Another client rule may do more than one gradient, and another defence may look at all tensors together.
        if type(self.knowledge.client).__name__ != "FedSGD" or not tensorwise:
            whole = self.knowledge.client.as_gradient(self._update(t, params), len(batch))
            return {name: whole[name] for name in names}
        mode = getattr(self.knowledge.client, "mode", "train")
        leaves = {name: params[name].detach().requires_grad_() for name in params if name in names}
        model = self.knowledge.model
        with in_mode(model, training=mode == "train"):
            outputs = forward(model, params | leaves, batch.inputs, buffers=self.buffers)
        found = torch.autograd.grad(F.cross_entropy(outputs, batch.labels), list(leaves.values()))
        update = Update(dict(zip(leaves, found, strict=True)))
        return self._defended(update, params, batch, t).tensors

    def transcript(self) -> "IndexedTranscript":
        """What the server sees."""
        return IndexedTranscript(self.knowledge, self)


@dataclass(frozen=True)
class IndexedTranscript:
    """A transcript whose rounds are made when asked for; single tensors of a round can be had for less.

    Attributes:
        knowledge: What the attacker is told.
    """

    knowledge: Knowledge
    _victim: IndexedVictim = field(repr=False)

    def __len__(self) -> int:
        return self._victim.rounds

    def __getitem__(self, t: int) -> Round:
        if not 0 <= t < len(self):
            raise IndexError(t)
        victim, told = self._victim, self.knowledge.told
        labels = victim.data.labels[victim.design.indices(t)]
        with torch.inference_mode(False), torch.enable_grad():
            update = victim.update(t)
        return Round(
            t=t,
            params=victim.params_at(t),
            update=update,
            buffers=victim.buffers,
            batch_size=len(labels),
            labels=unordered(labels) if "labels" in told else None,
            indices=self.indices(t),
        )

    def indices(self, t: int) -> Tensor | None:
        """The samples of round `t`, without making the round; None where the attacker is not told."""
        return self._victim.design.indices(t) if "indices" in self.knowledge.told else None

    def select(self, t: int, names: Collection[str]) -> Tensors:
        """The gradients of round `t` of these tensors alone."""
        return self._victim.gradients(t, names)

    def params(self, t: int) -> Tensors:
        """The weights of round `t`, without making the round."""
        return self._victim.params_at(t)


def check_rounds(design: Design, rounds: int) -> list[str]:
    """What is wrong with asking a design for so many rounds; empty where nothing is.

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


def membership(batches: Sequence[Tensor], samples: int) -> Tensor:
    """`[T, N]` bool: which sample is in which round."""
    table = torch.zeros(len(batches), samples, dtype=torch.bool)
    for t, chosen in enumerate(batches):
        table[t, chosen] = True
    return table
