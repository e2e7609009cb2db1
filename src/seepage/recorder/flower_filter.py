"""Flower: a client's mods, or a server's strategy, whose epsilon can be measured. Needs `seepage[flower]`.

    filter = mod_filter(LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=5.0, delta=1e-5))
    print(Measurement(delta=1e-5, stated=5.0).epsilon(filter).line)

The mods are called with real messages: weights go out as zeros, the client's reply holds them moved by the canary, and
what the mods let through, less what went out, is what is measured. Numbers in the reply's metrics are measured too.

    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, num_sampled_clients=10)
    server = OfClients(strategy_aggregate(private), weights=(1000.0, *9 * [10.0]))
    print(Measurement(delta=1e-5, stated=4.4).epsilon(server).line)
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, cast

import torch

from seepage.errors import SeepageError, not_installed, short
from seepage.federation.types import Tensors

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as error:
    raise not_installed("Flower", "flower") from error

ClientApp: TypeAlias = Callable[[Message, Context], Message]
Mod: TypeAlias = Callable[[Message, Context, ClientApp], Message]
Setting: TypeAlias = str | int | float | bool


def mod_filter(*mods: Mod, config: Mapping[str, Setting] | None = None) -> Callable[[Tensors], Tensors]:
    """The filter that a list of mods makes of an update.

    Args:
        mods: In the order of `ClientApp(mods=[...])`: the first is the outermost.
        config: What the server's message says besides, such as `{"clipping_norm": 1.0}` for Flower's own clipping mods.

    Returns:
        A filter. It raises `SeepageError` where a mod answers with an error or holds back the weights, as secure
        aggregation does, which needs the other clients.
    """
    settings = {"server-round": 1, **(config or {})}
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})
    known: dict[bytes, dict[str, Array]] = {}

    def arrays_of(tensors: Tensors) -> ArrayRecord:
        # Arrays cannot be changed, so those of the few canaries are made once; each message has a record of its own.
        key = b"".join(tensor.numpy().tobytes() for tensor in tensors.values())
        if key not in known:
            known[key] = {name: Array(tensor.numpy()) for name, tensor in tensors.items()}
        return ArrayRecord(known[key])

    def client(message: Message, context: Context, *, update: Tensors) -> Message:
        content = RecordDict({"arrays": arrays_of(update), "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    def call(update: Tensors) -> Tensors:
        sent_out = arrays_of({name: torch.zeros_like(tensor) for name, tensor in update.items()})
        app: ClientApp = partial(client, update=update)
        for mod in reversed(mods):
            app = partial(_through, mod, app)
        with _engine():
            content = RecordDict({"arrays": sent_out, "config": ConfigRecord(dict(settings))})
            return _sent(app(Message(content, dst_node_id=1, message_type="train"), context))

    return call


def strategy_aggregate(
    strategy: Strategy,
) -> Callable[[Sequence[Tensors], Sequence[float]], Tensors]:
    """What a strategy makes of its clients' updates, over weights of zero.

    Args:
        strategy: It is asked to configure a round of training of all clients, and to aggregate their replies, whose
            weights are their `num-examples`.

    Returns:
        `f(updates, weights)`. It raises `SeepageError` where the strategy aggregates nothing. Clips of clients, as for
        strategies with clipping on their side, are the caller's: `lambda u, w: f([sent(one) for one in u], w)`.
    """

    def call(updates: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        def arrays(tensors: Tensors) -> ArrayRecord:
            return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in tensors.items()})

        with _engine():
            sent_out = arrays({name: torch.zeros_like(tensor) for name, tensor in updates[0].items()})
            asked = strategy.configure_train(1, sent_out, ConfigRecord(), cast(Grid, _Nodes(len(updates))))
            replies = [
                Message(
                    RecordDict({"arrays": arrays(u), "metrics": MetricRecord({"num-examples": w})}), reply_to=message
                )
                for message, u, w in zip(asked, updates, weights, strict=True)
            ]
            found, _ = strategy.aggregate_train(1, replies)
        if found is None:
            raise SeepageError("the strategy aggregates nothing of such replies; give as many --weights as it expects")
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in found.items()}

    return call


@dataclass(frozen=True)
class _Nodes:
    """A grid of so many clients, of which a strategy asks only which there are."""

    count: int

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.count + 1))


def _through(mod: Mod, app: ClientApp, message: Message, context: Context) -> Message:
    return mod(message, context, app)


def _sent(reply: Message) -> Tensors:
    """The numbers of a reply behind the mods: the difference of weights by name, and metrics as `metric NAME`.

    Raises:
        SeepageError: Where a mod answered with an error, or not with exactly one record of weights.
    """
    if reply.has_error():
        raise SeepageError(
            f"the mod answers with an error: {short(reply.error.reason)}; give what it needs of the server's message "
            "by config={...}"
        )
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise SeepageError(
            "the mod lets no single record of weights through, so nothing can be measured; secure aggregation needs "
            "the other clients, leave it out"
        )
    # The weights that were sent out are zeros, so the reply's weights are the difference itself.
    found: Tensors = {name: torch.from_numpy(array.numpy().copy()) for name, array in records[0].items()}
    for record in reply.content.metric_records.values():
        found |= {f"metric {name}": torch.tensor(value, dtype=torch.float64) for name, value in record.items()}
    return found


@contextmanager
def _engine() -> Iterator[None]:
    """Set the sender's identity, as Flower's messages require and its engine does, and turn off its log.

    Mods write a line into the log for each call.
    """
    log = logging.getLogger("flwr")
    was, log.disabled = log.disabled, True  # setting a level instead would clear a cache, which takes longer
    before = (TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = (1 if part is None else part for part in before)
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before
        log.disabled = was
