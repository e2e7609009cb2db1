"""Federated training over simulated clients: yields the model of any round, as a real server would send it out.

It runs in one process and is reproducible to the bit.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.audit.recipe.plans import Federation
from seepage.audit.simulate.training import accuracy
from seepage.base.nn import called, forward, generator, has_batch_norm, in_mode
from seepage.base.schema import Guarantee
from seepage.base.storage import read_json, read_tensors, write_json, write_tensors
from seepage.errors import Diverged, SeepageError
from seepage.federation.clients import mean_update
from seepage.federation.clients.step import Client
from seepage.federation.sent_tensors import check_fits
from seepage.federation.types import Batch, ClientUpdate, Defense, Tensors, Update
from seepage.measure.privacy.guarantee import guarantee_of

Lookup = Callable[[Tensor], Batch]
"""Maps indices into the data set to a batch."""
MIN_CHECKPOINTS = 20
"""Least number of checkpoints and accuracies per federation: there is one every `rounds / MIN_CHECKPOINTS` rounds."""


@dataclass(frozen=True)
class FederationState:
    """The federation between two rounds.

    Attributes:
        t: Number of completed rounds.
        params: Trainable parameters.
        buffers: The model's buffers.
        accuracies: `(round, accuracy)` on examples that no client holds.
        losses: The loss on these of each model that was sent out, where a defense follows it; else empty.
        memories: What clients keep for their next round, by their number (`Defense.remember`).
    """

    t: int
    params: Tensors
    buffers: Tensors
    accuracies: tuple[tuple[int, float], ...] = ()
    losses: tuple[float, ...] = ()
    memories: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """The reply of one client to the server.

    Attributes:
        update: The update, after the defense.
        buffers: The batch-norm running statistics after the client's batch.
        examples: Number of examples that the client trained on.
        memory: What the client keeps for its next round; it is not sent.
    """

    update: Update
    buffers: Tensors
    examples: int
    memory: float | None = None


@dataclass(frozen=True)
class Clients:
    """All clients of a federation.

    Attributes:
        model: The architecture.
        rule: The client rule that each follows.
        parts: For each client the indices of its examples in the data set.
        lookup: Maps indices to a batch.
        defense: The defense that each applies to its update.
        test: Examples that no client holds, for measuring the accuracy.
        seed: Seeds the choice of participants and of their examples, and the defense's noise.
    """

    model: nn.Module
    rule: ClientUpdate
    parts: Sequence[Tensor]
    lookup: Lookup
    defense: Defense | None = None
    test: Batch | None = None
    seed: int = 0

    def chosen(self, t: int, plan: Federation) -> list[int]:
        """The participants of round `t`. Clients without examples never take part."""
        able = [client for client, places in enumerate(self.parts) if len(places)]
        order = torch.randperm(len(able), generator=generator(self.seed, "participants", t))
        return sorted(able[place] for place in order[: plan.per_round].tolist())

    def promise(self, plan: Federation) -> Guarantee | None:
        """What the defense guarantees to the client that took part in most of the plan's rounds, by all of them.

        None where it states no mechanism, or follows the training.
        """
        if self.defense is None or self.defense.follows_training or not plan.rounds:
            return None
        chosen = [self.chosen(t, plan) for t in range(plan.rounds)]
        busiest = max(range(len(self.parts)), key=Counter(chain(*chosen)).__getitem__)
        held = min(plan.examples or len(self.parts[busiest]), len(self.parts[busiest]))
        taken = [t for t, those in enumerate(chosen) if busiest in those]
        return guarantee_of(self.defense, taken, participations=self.rule.max_participations(held))

    def batch(self, client: int, t: int, plan: Federation) -> Batch:
        """The examples with which a client takes part in round `t`."""
        places = self.parts[client]
        if plan.examples is not None and plan.examples < len(places):
            draw = generator(self.seed, f"examples of {client}", t)
            places = places[torch.randperm(len(places), generator=draw)[: plan.examples]]
        return self.lookup(places)

    def reply(self, stage: FederationState, client: int, plan: Federation, number: int = 0, of: int = 1) -> Reply:
        """The reply of client `client` to the server's state, as participant `number` of `of`."""
        neighbor = None
        if self.defense is not None and self.defense.needs_neighbor and of > 1:
            before = self.chosen(stage.t, plan)[number - 1]
            neighbor = replace(self, defense=None).reply(stage, before, plan, (number - 1) % of, of).update
        batch = self.batch(client, stage.t, plan)
        defense = None if self.defense is None else self.defense.begin(stage.losses, stage.memories.get(client))
        sender = Client(self.rule, defense, self.seed, "client defense")
        update = sender.send(
            self.model,
            stage.params,
            batch,
            buffers=stage.buffers,
            t=stage.t,
            number=number,
            clients=of,
            draw=stage.t * len(self.parts) + client,
            neighbor=neighbor,
        )
        memory = None if defense is None else defense.remember(update)
        return Reply(update, self._statistics(stage, batch), len(batch), memory)

    def _statistics(self, stage: FederationState, batch: Batch) -> Tensors:
        """Running statistics after one pass over the batch in train mode."""
        if not has_batch_norm(self.model) or self.rule.mode != "train":
            return stage.buffers
        buffers = {name: tensor.clone() for name, tensor in stage.buffers.items()}
        with torch.no_grad(), in_mode(self.model, training=True):
            called(self.model, {**stage.params, **buffers}, batch.inputs)
        return buffers


@dataclass(frozen=True)
class CheckpointFolder:
    """Checkpoints of a federation in a folder: the latest one, and those of requested rounds.

    Attributes:
        folder: The folder; None: nothing is written.
    """

    folder: Path | None = None

    def latest(self, t: int, like: FederationState) -> tuple[FederationState, bool]:
        """The latest checkpoint at or before round `t`, and whether its round was requested.

        The initial state `like` if there is none. What a killed federation left behind of earlier rounds is removed.
        """
        rounds = [int(path.stem) for path in self.folder.glob("*.safetensors")] if self.folder else []
        usable = [done for done in rounds if done <= t]
        if not usable or self.folder is None:
            return like, True
        path = self.folder / f"{max(usable):06d}.safetensors"
        tensors = read_tensors(path)
        params, buffers = (
            {name.removeprefix(f"{part}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{part}/")}
            for part in ("params", "buffers")
        )
        check_fits(params, like.params, f"the checkpoint {path}", "the model")
        check_fits(buffers, like.buffers, f"the checkpoint {path}", "the model")
        facts = read_json(path.with_suffix(".json"))
        for done in usable:
            if done < max(usable) and not self._requested(done):
                self._remove(done)
        # In the model's own order, so that sums over tensors round exactly as in an uninterrupted run.
        found = FederationState(
            max(usable),
            {name: params[name].to(like.params[name].device) for name in like.params},
            {name: buffers[name].to(like.buffers[name].device) for name in like.buffers},
            tuple((done, share) for done, share in facts["accuracies"]),
            tuple(facts.get("losses", ())),
            {int(client): memory for client, memory in facts.get("memories", {}).items()},
        )
        return found, self._requested(found.t)

    def _requested(self, t: int) -> bool:
        """Whether the checkpoint of round `t` is there for other cases; it says so itself."""
        facts = read_json((self.folder or Path()) / f"{t:06d}.json")
        return not isinstance(facts, dict) or facts.get("passing") is not True

    def _remove(self, t: int) -> None:
        for suffix in (".safetensors", ".json"):
            ((self.folder or Path()) / f"{t:06d}{suffix}").unlink(missing_ok=True)

    def keep(self, stage: FederationState, before: FederationState | None, *, requested: bool) -> None:
        """Write a checkpoint, and remove the previous one, `before`, which was not requested.

        Args:
            stage: The state to keep.
            before: The checkpoint that it replaces.
            requested: Whether the round was asked for, so that it stays.
        """
        if self.folder is None:
            return
        tensors = {f"params/{name}": tensor for name, tensor in stage.params.items()}
        tensors |= {f"buffers/{name}": tensor for name, tensor in stage.buffers.items()}
        path = self.folder / f"{stage.t:06d}.safetensors"
        facts: dict[str, Any] = {"accuracies": [list(pair) for pair in stage.accuracies]}
        if stage.losses or stage.memories:
            memories = {str(client): memory for client, memory in stage.memories.items()}
            facts |= {"losses": list(stage.losses), "memories": memories}
        if not requested:
            facts |= {"passing": True}
        write_json(path.with_suffix(".json"), facts)
        write_tensors(path, tensors)
        if before is not None and before.t != stage.t:
            self._remove(before.t)


def federate(
    clients: Clients,
    state: tuple[Tensors, Tensors],
    plan: Federation,
    *,
    checkpoints: CheckpointFolder = CheckpointFolder(),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FederationState:
    """Train from `state` for `plan.rounds` rounds; the model object is not changed.

    Each round draws its clients and their examples from `(seed, round)` alone, so an interrupted run continues from
    its last checkpoint with bitwise the same result, and a later round can start from an earlier checkpoint.

    Batch norm's running statistics are the mean over the round's clients, each from one pass over its batch in train
    mode at the weights it received.

    Args:
        clients: All clients of the federation.
        state: `(params, buffers)` of the fresh model.
        plan: Rounds, share and learning rate.
        checkpoints: The folder of checkpoints.
        progress: Called with (done, total) rounds.

    Raises:
        SeepageError: If the weights stop being finite, or no client holds any example.
    """
    follows = clients.defense is not None and clients.defense.follows_training
    if follows and clients.test is None:
        raise SeepageError(
            f"{clients.defense} follows the loss on examples that no client holds, and there are none; use more data"
        )
    stage, requested = checkpoints.latest(plan.rounds, _validated(clients, FederationState(0, *state)))
    # The checkpoint that was not requested is replaced by the next one.
    last, every = None if requested else stage, max(1, plan.rounds // MIN_CHECKPOINTS)
    while stage.t < plan.rounds:
        stage = _validated(clients, _round(clients, stage, plan))
        if stage.t % every == 0 or stage.t == plan.rounds:
            stage = _measured(clients, stage)
            checkpoints.keep(stage, last, requested=stage.t == plan.rounds)
            last = stage
        progress(stage.t, plan.rounds)
    return stage


def _round(clients: Clients, stage: FederationState, plan: Federation) -> FederationState:
    """The federation's state after one round: `p <- p + lr * mean delta`, or `p <- p - lr * mean gradient`.

    Args:
        clients: The clients.
        stage: The state before.
        plan: Who takes part, and the server's learning rate.

    Raises:
        SeepageError: Where no client holds any example.
        Diverged: Where the weights are not finite afterwards.
    """
    chosen = clients.chosen(stage.t, plan)
    if not chosen:
        raise SeepageError("no client of the federation holds any example; use fewer clients or more data")
    replies = [clients.reply(stage, client, plan, place, len(chosen)) for place, client in enumerate(chosen)]
    sizes = [reply.examples for reply in replies]
    update = mean_update([reply.update for reply in replies], sizes)
    step = plan.lr or (1.0 if update.kind == "delta" else 0.1)
    if update.kind == "gradient":
        step = -step
    moved = update.tensors  # what no client sent stays as it was
    params = {name: p + step * moved[name] if name in moved else p for name, p in stage.params.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in params.values()):
        raise Diverged(
            f"the weights of the federation are not finite after {stage.t + 1} rounds; lower client.lr or federation.lr"
        )
    kept = {client: reply.memory for client, reply in zip(chosen, replies, strict=True) if reply.memory is not None}
    memories = {**stage.memories, **kept}
    return replace(stage, t=stage.t + 1, params=params, buffers=_mean_buffers(stage, replies, sizes), memories=memories)


def _validated(clients: Clients, stage: FederationState) -> FederationState:
    """The stage with the loss of its model on examples that no client holds, where a defense follows that."""
    if clients.defense is None or not clients.defense.follows_training or clients.test is None:
        return stage
    with torch.no_grad(), in_mode(clients.model, training=False):
        logits = forward(clients.model, stage.params, clients.test.inputs, buffers=stage.buffers)
        loss = float(clients.rule.loss_of(logits, clients.test.labels))
    return replace(stage, losses=(*stage.losses, loss))


def _mean_buffers(stage: FederationState, replies: Sequence[Reply], sizes: Sequence[int]) -> Tensors:
    if all(reply.buffers is stage.buffers for reply in replies):
        return stage.buffers
    own = [Update({name: tensor.double() for name, tensor in reply.buffers.items()}) for reply in replies]
    mean = mean_update(own, sizes)
    # Batch norm's counters of batches are integers: the mean is converted back to each buffer's type.
    return {name: mean.tensors[name].to(tensor.dtype) for name, tensor in stage.buffers.items()}


def _measured(clients: Clients, stage: FederationState) -> FederationState:
    if clients.test is None:
        return stage
    share = accuracy(clients.model, (stage.params, stage.buffers), clients.test, clients.rule.loss)
    return replace(stage, accuracies=(*stage.accuracies, (stage.t, round(share, 4))))
