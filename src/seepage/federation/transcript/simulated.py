"""Transcripts simulated from private batches: each round is recomputed whenever it is accessed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from seepage.base.nn import norm, sorted_labels
from seepage.federation.clients import FedAvg, OwnStep, gradient_behind, gradient_rule, mean_update
from seepage.federation.clients.step import Client
from seepage.federation.measured import Step
from seepage.federation.types import (
    Batch,
    ClientUpdate,
    Defense,
    Knowledge,
    Round,
    Tensors,
    Transcript,
    Update,
    in_short,
)


@dataclass(frozen=True)
class SimulatedTranscript:
    """Rounds recomputed from `(seed, t)` at each access. It holds a function that computes a round, not the batches."""

    knowledge: Knowledge
    make_round: Callable[[int], Round]
    length: int

    __repr__ = in_short

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
        rule: What the client does, where that is not what attackers read it as: its own code, or weight decay, which
            the server undoes. None: the attacker's rule.
        inferred: Name of each fact that the attacker's rule has from the update itself, to its source.
        step: The one local step whose optimizer divides each entry by a size of its own, which the server inverts: what
            attacks see is the gradient behind it, with its errors. None: they see what was sent.
        shares: The share of each weight that a decay beside this step took off, by name.
    """

    knowledge: Knowledge
    params: Tensors
    batches: Callable[[int], Batch]
    rounds: int
    buffers: Tensors
    defense: Defense | None = None
    seed: int = 0
    rule: ClientUpdate | None = None
    inferred: Mapping[str, str] = field(default_factory=dict)
    step: Step | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, knowledge: Knowledge, params: Tensors, batches: Sequence[Batch], buffers: Tensors, defense: Defense | None,
        seed: int,
    ) -> "Victim":  # fmt: skip
        """A client as attackers read it."""
        own, read = knowledge.client, cls.knowing(knowledge, defense)
        victim = cls(read, params, batches.__getitem__, len(batches), buffers, defense, seed, own)
        stated = own.rule if isinstance(own, OwnStep) and own.stated else own
        # Whoever knows of a defense repeats it on what the client sent.
        if not isinstance(stated, FedAvg) or stated.linear_in_gradient or "defense" in knowledge.known:
            return victim
        steps = {stated.first_step(len(batch)) for batch in batches}
        one = steps.pop() if len(steps) == 1 else None
        return victim if one is None else victim.by_one_step(one[0], dict.fromkeys(params, one[1]))

    @staticmethod
    def knowing(knowledge: Knowledge, defense: Defense | None) -> Knowledge:
        """The attacker's knowledge of a client whose own rule is `knowledge.client`: with the rule that it is read by.

        A server undoes weight decay that it knows of, unless a defense came in between.
        """
        read = knowledge.client.read_as
        return replace(knowledge, client=read if defense is not None else read.without_decay())

    def by_one_step(self, step: Step, shares: Mapping[str, float]) -> "Victim":
        """The same client, whose only local step the server inverts; arguments as the attributes."""
        read = replace(self.knowledge, client=gradient_rule(self.knowledge.client))
        return replace(self, knowledge=read, step=step, shares=shares)

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

    def gap(self, t: int) -> float | None:
        """Relative distance of the undefended update from that of the rule by which attackers read it.

        It is measured on the private examples, and for reports alone. None: that rule is the client's own.
        """
        own = self.rule
        if own is None or own.read_as == own:
            return None
        plain = replace(self, defense=None)
        with torch.enable_grad():
            read_by = replace(plain, rule=own.read_as)
            sent, read = self._undecayed(plain.update(t), t), read_by._undecayed(read_by.update(t), t)
        apart = {name: tensor - read.tensors[name] for name, tensor in sent.tensors.items()}
        return float(norm(apart) / norm(sent.tensors))

    def _undecayed(self, update: Update, t: int) -> Update:
        if self.rule is None or self.defense is not None:
            return update
        return self.rule.undecayed(update, self.params, len(self.batches(t)))

    def _round(self, t: int) -> Round:
        batch = self.batches(t)
        known, update = self.knowledge.known, self.update(t)
        if self.step is None:
            update = self._undecayed(update, t)
        else:
            update, _ = gradient_behind(self.params, update, self.step, self.shares)
        return Round(
            t=t,
            params=self.params,
            update=update,
            buffers=self.buffers,
            batch_size=len(batch),
            labels=sorted_labels(batch.labels) if "labels" in known else None,
            indices=batch.indices if "indices" in known else None,
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
