"""Flower: hooks for an existing app. Needs `seepage[flower]`.

    app = ClientApp(mods=[recording_mod(recorder), LocalDpMod(...)])    # on the client: what really leaves it
    strategy = AuditedStrategy(FedAvg(), recorder, every=10)             # on the server: what it sees

The first mod of the list is the outermost: it sees a reply after all others have changed it.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from seepage.base.nn import generator
from seepage.errors import SeepageError, not_installed, short
from seepage.federation.clients import FedSGD
from seepage.federation.clients.step import Client
from seepage.federation.types import Batch, ClientView, Defense, Tensors, Update
from seepage.recorder.circuit_breaker import CircuitBreaker
from seepage.recorder.hook import NOT_LOOKED_AT, Hook, count_of, named_tensors
from seepage.recorder.opacus import Ledger
from seepage.recorder.recorder import Recorded, Recorder

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
except ImportError as error:
    raise not_installed("Flower", "flower") from error

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Last parts of the names of batch norm's statistics, which no defense changes."""
BLOCKED = 451
"""Code of the error that goes out in place of a blocked reply."""
STATE = "seepage.recorder"
"""Where a client's state holds which faults were said."""
log = logging.getLogger("flwr")
T = TypeVar("T")

Next = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Next], Message]


def recording_mod(
    recorder: Recorder, *, every: int = 1, examples: str = "num-examples", ledger: Ledger | None = None
) -> Mod:
    """A mod that keeps what really leaves the client. Put it first in the list, so that it sees the reply last.

    The reply goes out as it came in, unless the recorder blocks it: then an error goes out in its place. Whatever fails
    in recording is one line in the log for each kind of fault, and the training continues; `Recorder(on_error=…)` says
    what becomes of a reply that `block` could not analyze.

    Args:
        recorder: Writes the `observed/` folders, on the client's disk.
        every: Keep every so many rounds; a recorder that blocks analyzes all.
        examples: Key of the reply's metrics that holds the number of examples.
        ledger: The client's own, with a line for this round: its epsilon is then said beside what the update gives
            away, and stated in the recording.

    Raises:
        SeepageError: For `every` below 1.
    """
    hook = Hook(recorder, every, ledger)

    def look(before: Mapping[str, Any] | None, message: Message, reply: Message, context: Context) -> Recorded:
        t, client = round_of(message), client_of(context)
        keep = hook.keeps(t)
        if not _has_arrays(reply, before) or not hook.looks(keep=keep):
            return NOT_LOOKED_AT
        found = _recorded(recorder, before, reply, examples, t, client, keep=keep)
        words = hook.summary(found, t, client, _warn)
        if words:
            log.info("seepage: round %d, client %d: %s", t, client, words)
        return found

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        guarded = partial(hook.guarded, where=_where(message), say=_warn)
        guarded(lambda: _recall(recorder.breaker, context))
        before = guarded(lambda: _arrays(message))
        reply = call_next(message, context)
        if not is_train(message) or reply.has_error():
            return reply
        found = guarded(lambda: look(before, message, reply, context))
        guarded(lambda: _remember(recorder.breaker, context))
        if not hook.passes(found):
            _warn(f"{_where(message)}: the reply was blocked and does not leave the client")
            return Message(Error(BLOCKED, "the update reveals too much and was blocked"), reply_to=message)
        return reply

    return mod


def defense_mod(defense: Defense, *, seed: int | None = None) -> Mod:
    """A mod that applies a defense of this package to the client's difference of weights.

    Batch norm's statistics and whole numbers go out as they are. A reply of training with other arrays, which the
    defense cannot be applied to, does not go out: the mod raises `SeepageError`, of which Flower makes an error.

    Args:
        defense: One that needs only the update, or a `Compose` of such.
        seed: Seeds its randomness, together with round and client, for trials that are to be repeated. None: from
            the system, as secrets are.

    Raises:
        SeepageError: For a defense that needs the examples.
    """
    for stage in defense.stages():
        if stage.reads_examples or stage.acts_on != "update":
            raise SeepageError(
                f"{type(stage).__name__} needs more than the update; as a Flower mod use a defense that changes each "
                "update by itself, such as gaussian_noise, quantize or sparsify"
            )

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        before = _arrays(message)
        reply = call_next(message, context)
        if not is_train(message) or reply.has_error() or not reply.content.array_records:
            return reply
        after = _arrays(reply)
        if before is None or after is None:
            raise SeepageError(
                "the message and the reply must each carry one record of arrays for a defense to be applied to their "
                "difference, so the reply is held back; send the weights in one ArrayRecord, both ways"
            )
        t, secret = round_of(message), secrets.randbits(63) if seed is None else seed
        client = Client(FedSGD(), defense, secret, f"defense of {client_of(context)}")
        changed = _defended(client, dict(_tensors(before)), dict(_tensors(after)), t)
        key = next(iter(reply.content.array_records))
        reply.content[key] = ArrayRecord({name: Array(tensor.numpy()) for name, tensor in changed.items()})
        return reply

    return mod


def _defended(client: Client, before: Tensors, after: Tensors, t: int) -> Tensors:
    names = [
        name
        for name, tensor in after.items()
        if tensor.is_floating_point() and name.rpartition(".")[2] not in STATISTICS
    ]
    strange = [name for name in names if name not in before]
    if strange:
        raise SeepageError(
            f"the reply holds {', '.join(map(short, strange[:3]))}, which was not sent out, so there is no difference "
            "to defend and the reply is held back; leave it out of the reply, or send it out too"
        )
    start = {name: before[name] for name in names}
    nobody = Batch(torch.empty(0), torch.empty(0, dtype=torch.int64))
    view = ClientView(nn.Identity(), start, nobody, client.rule, t=t)
    update = Update({name: after[name] - start[name] for name in names}, kind="delta")
    sent = client.defended(update, view, t).tensors
    return after | {name: (start[name] + sent[name]).contiguous() for name in names}


class AuditedStrategy(Strategy):
    """Any strategy of Flower's, with a record of what the server sees. The training continues bit by bit as without.

    Args:
        strategy: The strategy that trains.
        recorder: Writes the `observed/` folders, on the server's disk.
        every: Record every so many rounds.
        clients: Clients recorded in such a round, drawn from `seed` and the round; None: all.
        examples: Key of the replies' metrics that holds the number of examples.
        seed: Seeds who is recorded. Python's and NumPy's generators, which strategies draw from, are left alone.

    Where the recorder blocks, every reply of every round is analyzed, and a blocked one is left out of what the
    strategy aggregates. Whatever fails in recording is one line in the log for each kind of fault, and the training
    goes on; `Recorder(on_error=…)` says what becomes of a reply that `block` could not analyze.

    Raises:
        SeepageError: For `every` or `clients` below 1.
    """

    def __init__(
        self,
        strategy: Strategy,
        recorder: Recorder,
        *,
        every: int = 1,
        clients: int | None = None,
        examples: str = "num-examples",
        seed: int = 0,
    ) -> None:
        self.hook = Hook(recorder, every)
        if clients is not None and clients < 1:
            raise SeepageError(f"clients must be 1 or more, got {clients}; leave it out to record all")
        self.strategy, self.recorder = strategy, recorder
        self.every, self.clients, self.examples, self.seed = every, clients, examples, seed
        self._sent: dict[int, Mapping[str, Any]] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's messages; the weights sent to each client are kept until its reply arrives."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._sent = self._tried(server_round, lambda: self._held(server_round, messages)) or {}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The strategy's aggregate of the replies that are not blocked, in their order; replies are recorded before.

        A fault in recording never stops the aggregation (see `Hook.guarded`).

        Args:
            server_round: Index of the round.
            replies: One per client that answered.
        """
        received = list(replies)
        recorded_nodes = self._tried(server_round, lambda: self._sampled(server_round)) or set()
        exposures: dict[int, str] = {}  # node to what its update reveals, filled by `_passes`
        passed = [reply for reply in received if self._passes(reply, server_round, recorded_nodes, exposures)]
        if exposures:
            lines = " | ".join(f"node {node}: {line}" for node, line in exposures.items())
            log.info("seepage: round %d: %s", server_round, lines)
        self._sent = {}  # weights that were sent out are needed only until the round's replies are there
        aggregated: tuple[ArrayRecord | None, MetricRecord | None]
        aggregated = self.strategy.aggregate_train(server_round, passed)
        return aggregated

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the strategy's summary, and a line on what is recorded."""
        self.strategy.summary()
        log.info("seepage: every %d rounds, %s clients, to %s", self.every, self.clients or "all", self.recorder.folder)

    def _tried(self, t: int, work: Callable[[], T]) -> T | None:
        return self.hook.guarded(work, f"round {t}", _warn)

    def _held(self, t: int, messages: Iterable[Message]) -> dict[int, Mapping[str, Any]]:
        """Node to the arrays that it is sent; empty in a round in which no update is recorded or analyzed."""
        if not self.hook.looks(keep=self.hook.keeps(t)):
            return {}
        found = {message.metadata.dst_node_id: _arrays(message) for message in messages}
        return {node: sent for node, sent in found.items() if sent is not None}

    def _sampled(self, t: int) -> set[int]:
        """The nodes that are recorded in this round."""
        nodes = sorted(self._sent) if self.hook.keeps(t) else []
        if self.clients is None:
            return set(nodes)
        order = torch.randperm(len(nodes), generator=generator(self.seed, "recorded clients", t))
        return {nodes[place] for place in order[: self.clients].tolist()}

    def _passes(self, reply: Message, t: int, kept: Collection[int], lines: dict[int, str]) -> bool:
        """Whether a reply is not blocked; it is recorded too, if its node is to be.

        Args:
            reply: The reply.
            t: Index of the round.
            kept: Nodes whose updates are written.
            lines: Node to what its update reveals, in words; the reply's is added.
        """
        if reply.has_error():
            return True

        def look() -> Recorded:
            node = reply.metadata.src_node_id
            found = self._look(reply, t, node, keep=node in kept)
            if found.exposure is not None:
                lines[node] = found.exposure.line
            if found.blocked:
                log.warning("seepage: round %d: the reply of node %d was blocked and left out", t, node)
            return found

        return self.hook.passes(self._tried(t, look))

    def _look(self, reply: Message, t: int, node: int, *, keep: bool) -> Recorded:
        before = self._sent.get(node)
        if not _has_arrays(reply, before) or not self.hook.looks(keep=keep):
            return NOT_LOOKED_AT
        return _recorded(self.recorder, before, reply, self.examples, t, node, keep=keep)


def _warn(words: str) -> None:
    log.warning("seepage: %s", words)


def _recall(breaker: CircuitBreaker, context: Context) -> None:
    """Take faults as said that the client's state names: Flower may start a process for each of its rounds."""
    if STATE in context.state.config_records:
        breaker.said.update(map(str, context.state.config_records[STATE]["said"]))


def _remember(breaker: CircuitBreaker, context: Context) -> None:
    """Keep in the client's state which faults were said. Without any it is left as it is."""
    if breaker.said:
        context.state[STATE] = ConfigRecord({"said": sorted(breaker.said)})


def _recorded(
    recorder: Recorder,
    before: Mapping[str, Any] | None,
    reply: Message,
    examples: str,
    t: int,
    client: int,
    *,
    keep: bool,
) -> Recorded:
    """The recorder's result for a reply."""
    after = _arrays(reply)
    if after is None or before is None:
        what = "the reply carries" if after is None else "the server's message carries"
        why = f"{what} no single record of arrays; under secure aggregation they leave masked, as bytes"
        recorder.breaker.once(f"round {t}, client {client}: not recorded: {why}", what, _warn)
        return Recorded(None, None, recorder.blocks(None))
    return recorder.watch(
        _tensors(before),
        _tensors(after),
        t=t,
        client=client,
        examples=_count(reply, examples),
        keep=keep,
        say=_warn,
    )


def _where(message: Message) -> str:
    return f"message to node {message.metadata.dst_node_id}"


def is_train(message: Message) -> bool:
    return str(message.metadata.message_type).partition(".")[0] == "train"


def _has_arrays(reply: Message, before: Mapping[str, Any] | None) -> bool:
    """Whether weights were sent out or returned."""
    return before is not None or bool(reply.content.array_records)


def _arrays(message: Message) -> Mapping[str, Any] | None:
    """The arrays of a message's only record of such, held and not copied; None where there is not just one of any."""
    records = list(message.content.array_records.values()) if message.has_content() else []
    return dict(records[0]) if len(records) == 1 and records[0] else None


def _tensors(arrays: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """Flower's arrays as tensors; each is read from its bytes when it is asked for."""
    return named_tensors(arrays, lambda array: array.numpy())


def _count(reply: Message, key: str) -> int | None:
    counts = (count_of(metrics.get(key)) for metrics in reply.content.metric_records.values())
    return next((count for count in counts if count is not None), None)


def round_of(message: Message) -> int:
    """The round that the server names in its config, as Flower's strategies do; 0 where it names none."""
    for config in message.content.config_records.values():
        if "server-round" in config:
            return int(config["server-round"])
    return 0


def client_of(context: Context) -> int:
    """The node's partition, as simulations and examples name it, or else its own number."""
    return int(context.node_config.get("partition-id", context.node_id))
