"""Transcripts simulated from private batches: each round is recomputed whenever it is accessed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from seepage.clients import mean_update
from seepage.clients.step import Client
from seepage.core.nn import sorted_labels
from seepage.types import (
    Batch,
    ClientUpdate,
    Defense,
    Knowledge,
    Round,
    Tensors,
    Transcript,
    Update,
)


@dataclass(frozen=True)
class SimulatedTranscript:
    """Rounds recomputed from `(seed, t)` at each access. It holds a function that computes a round, not the batches."""

    knowledge: Knowledge
    make_round: Callable[[int], Round]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, t: int) -> Round:
        if not 0 <= t < self.length:
            raise IndexError(t)
        # The client's own backward pass needs gradients even if the caller has disabled them.
        with torch.inference_mode(False), torch.enable_grad():
            return self.make_round(t)


@dataclass(frozen=True)
class Victim:
    """A client with private batches; only simulations, metrics and audits hold one.

    Args:
        knowledge: The attacker's knowledge.
        params: Trainable parameters that the server sends, the same in each round.
        batches: The private batch of round `t`, for `t` in `range(rounds)`.
        rounds: Number of rounds.
        buffers: The model's buffers.
        defense: The defense that the client applies to its update.
        seed: Seeds the client's randomness, together with `t`.
        rule: What the client does, where the server undoes its weight decay: the attacker's rule has none then. None:
            the attacker's rule.
    """

    knowledge: Knowledge
    params: Tensors
    batches: Callable[[int], Batch]
    rounds: int
    buffers: Tensors
    defense: Defense | None = None
    seed: int = 0
    rule: ClientUpdate | None = None

    @classmethod
    def of(
        cls, knowledge: Knowledge, params: Tensors, batches: Sequence[Batch], buffers: Tensors, defense: Defense | None,
        seed: int,
    ) -> "Victim":  # fmt: skip
        """A client whose weight decay the server undoes, since it knows the rule, unless a defense came in between."""
        rule = knowledge.client
        if defense is None:
            knowledge = replace(knowledge, client=rule.without_decay())
        return cls(knowledge, params, batches.__getitem__, len(batches), buffers, defense, seed, rule)

    def transcript(self) -> SimulatedTranscript:
        """The transcript that the server observes of this client."""
        return SimulatedTranscript(self.knowledge, self._round, self.rounds)

    def update(self, t: int) -> Update:
        """The update that the client sends in round `t`."""
        rule = self.rule or self.knowledge.client
        parts = rule.parts(self.batches(t))
        client = Client(rule.per_client, self.defense, self.seed)

        def send(by: Client, number: int, neighbor: Update | None = None) -> Update:
            return by.send(
                self.knowledge.model,
                self.params,
                parts[number],
                buffers=self.buffers,
                t=t,
                number=number,
                clients=len(parts),
                neighbor=neighbor,
            )

        plain: list[Update | None] = [None] * len(parts)
        if client.needs_neighbor and len(parts) > 1:
            plain = [send(client.undefended, number) for number in range(len(parts))]
        sent = [send(client, number, plain[number - 1]) for number in range(len(parts))]
        return mean_update(sent, [len(part) for part in parts])

    def _round(self, t: int) -> Round:
        batch = self.batches(t)
        told, update = self.knowledge.told, self.update(t)
        if self.rule is not None and self.defense is None:
            update = self.rule.undecayed(update, self.params, len(batch))
        return Round(
            t=t,
            params=self.params,
            update=update,
            buffers=self.buffers,
            batch_size=len(batch),
            labels=sorted_labels(batch.labels) if "labels" in told else None,
            indices=batch.indices if "indices" in told else None,
        )


@dataclass(frozen=True)
class OneRound:
    """A transcript of a single round of another one, for attacks with `rounds = "one"`."""

    whole: Transcript
    t: int

    @property
    def knowledge(self) -> Knowledge:
        return self.whole.knowledge

    def __len__(self) -> int:
        return 1

    def __getitem__(self, t: int) -> Round:
        if t != 0:
            raise IndexError(t)
        return self.whole[self.t]
