"""Rounds over one fixed set of samples with known indices: vertical FL, or horizontal FL with public batches.

The server chooses the samples of each batch (`Design`); the clients answer with the gradient of that batch. Rounds
are recomputed from `(seed, t)` at each access; the weights are frozen, or trained from round to round.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from seepage.base.nn import sorted_labels
from seepage.errors import SeepageError
from seepage.federation.clients import TrainingRule
from seepage.federation.clients.base import leaves_of
from seepage.federation.clients.step import Client
from seepage.federation.transcript.designs import Design
from seepage.federation.types import Batch, ClientView, Defense, Knowledge, LocalProblem, Round, Tensors, Update

MOST_SNAPSHOTS = 64
"""Snapshots of the weights that are held in memory; with Adam each has three times their size."""

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


@dataclass(frozen=True)
class _State:
    """Weights after `t` rounds, with Adam's moments (empty for the others)."""

    t: int
    params: Tensors
    first: Tensors = field(default_factory=dict)
    second: Tensors = field(default_factory=dict)


def _stepped(state: _State, gradient: Tensors, plan: ServerStep) -> _State:
    """The state after one step of the server's optimizer, plain SGD or Adam.

    A pure function, unlike the client's optimizers, so that rounds can be recomputed from any stored state. Adam:
    `m <- b1 m + (1 - b1) g`, `v <- b2 v + (1 - b2) g^2`, `p <- p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)`.

    Args:
        state: Weights and moments before.
        gradient: Gradient by parameter name.
        plan: Optimizer and learning rate.
    """
    params = state.params
    if plan.optimizer == "sgd":
        return _State(state.t + 1, {name: p - plan.lr * gradient[name] for name, p in params.items()})
    t = state.t + 1
    zeros = {name: torch.zeros_like(p) for name, p in params.items()}
    first, second = state.first or zeros, state.second or zeros
    # b1 = 0.9, b2 = 0.999 and eps = 1e-7, Keras's constants. `1 - b` is written out: 1 - 0.9 is not 0.1 in float64.
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
        knowledge: What the attacker knows; `known` should hold `indices`.
        params: Trainable parameters of round 0.
        data: All N samples, `[N, *shape]`, and their labels.
        design: Which samples each round holds.
        rounds: Number of rounds.
        buffers: The model's buffers.
        defense: What the parties do to their update.
        seed: Seeds the defense, together with `t`.
        server: How the server updates the weights.
        keep: Least number of rounds between two snapshots of the weights, from which earlier rounds are recomputed;
            more where there would be over `MOST_SNAPSHOTS`.
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
    _latest: dict[int, Update] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.data) != self.design.samples:
            raise SeepageError(
                f"the design draws from {self.design.samples} samples and there are {len(self.data)}; "
                "make the design for the data at hand"
            )
        if self.knowledge.client.per_client is not self.knowledge.client:
            raise SeepageError(
                "rounds over one data set hold one update of all parties, and this client rule sums several clients' "
                "updates; leave out client.clients"
            )
        if self.knowledge.client.read_as != self.knowledge.client:
            raise SeepageError(
                "rounds over one data set are made anew from the rule that the attacker knows, and this client does "
                "something else; use fedsgd, or fedavg without dropout"
            )

    def batch(self, t: int) -> Batch:
        """The private batch of round `t`."""
        chosen = self.design.indices(t).to(self.data.inputs.device)
        return Batch(self.data.inputs[chosen], self.data.labels[chosen], chosen)

    def params_at(self, t: int) -> Tensors:
        """The weights that the server sends in round `t`."""
        if self.server.optimizer == "none":
            return self.params
        every = max(self.keep, ceil(self.rounds / MOST_SNAPSHOTS))
        best = max((known for known in self._states if known <= t), default=0)
        state = self._states.get(best) or _State(0, self.params)
        while state.t < t:
            update = self._update(state.t, state.params)
            state = _stepped(
                state, self.knowledge.client.as_gradient(update, len(self.design.indices(state.t))), self.server
            )
            if state.t % every == 0:
                self._states[state.t] = state
        # The last state asked for is kept beside the snapshots, so that going through the rounds takes one step each.
        for known in [known for known in self._states if known % every]:
            del self._states[known]
        self._states[t] = state
        return state.params

    def update(self, t: int) -> Update:
        """The update that the parties send in round `t`."""
        return self._update(t, self.params_at(t))

    def _update(self, t: int, params: Tensors) -> Update:
        # The server's step asks for the update that the round has just shown, so the last one is kept.
        if t not in self._latest:
            self._latest.clear()
            self._latest[t] = self._client.send(self.knowledge.model, params, self.batch(t), buffers=self.buffers, t=t)
        return self._latest[t]

    @property
    def _client(self) -> Client:
        return Client(self.knowledge.client, self.defense, self.seed)

    def gradients(self, t: int, names: Collection[str]) -> Tensors:
        """Some tensors of round `t`, equal to those of the whole round; without the others where weights are frozen."""
        params, batch, rule = self.params_at(t), self.batch(t), self.knowledge.client
        tensorwise = self.defense is None or self.defense.tensorwise
        # Another client rule may do more than one gradient, and another defense may look at all tensors together. Where
        # the server trains, its step asks for the whole update in any case.
        trained = self.server.optimizer != "none"
        if trained or not isinstance(rule, TrainingRule) or not rule.single_gradient or not tensorwise:
            whole = rule.as_gradient(self._update(t, params), len(batch))
            return {name: whole[name] for name in names}
        model = self.knowledge.model
        leaves = leaves_of({name: params[name] for name in params if name in names})
        problem = LocalProblem(model, params, batch, self.buffers)
        update = Update(rule.gradient(problem, params | leaves))
        view = ClientView(model, params, batch, rule, self.buffers, t)
        return self._client.defended(update, view, t).tensors

    def transcript(self) -> "IndexedTranscript":
        """The transcript that the server observes."""
        return IndexedTranscript(self.knowledge, self)


@dataclass(frozen=True)
class IndexedTranscript:
    """A transcript whose rounds are computed at access; where weights are frozen, single tensors of one alone.

    Attributes:
        knowledge: What the attacker knows.
    """

    knowledge: Knowledge
    _victim: IndexedVictim = field(repr=False)

    def __len__(self) -> int:
        return self._victim.rounds

    def __getitem__(self, t: int) -> Round:
        if not 0 <= t < len(self):
            raise IndexError(t)
        victim, known = self._victim, self.knowledge.known
        labels = victim.data.labels[victim.design.indices(t)]
        with torch.inference_mode(False), torch.enable_grad():
            update = victim.update(t)
        return Round(
            t=t,
            params=victim.params_at(t),
            update=update,
            buffers=victim.buffers,
            batch_size=len(labels),
            labels=sorted_labels(labels) if "labels" in known else None,
            indices=self.indices(t),
        )

    def indices(self, t: int) -> Tensor | None:
        """`[K]` indices of the samples of round `t`, without computing it; None if the attacker lacks them."""
        return self._victim.design.indices(t) if "indices" in self.knowledge.known else None

    def select(self, t: int, names: Collection[str]) -> Tensors:
        """The gradients of these tensors in round `t`."""
        return self._victim.gradients(t, names)

    def params(self, t: int) -> Tensors:
        """The weights of round `t`, without computing its update."""
        return self._victim.params_at(t)
