"""Flower: a federation of this package on Flower's engines, its own or across machines. Needs `seepage[flower]`.

Clients, their data, defenses and randomness are those of `seepage.audit.simulate.federation`; Flower carries weights
out and updates back. So the same recipe gives the same model in one process, in Flower's simulation and over a network.

In an app for `flwr run`, each of the two modules is two lines. Flower runs apps from a folder of its own, so paths in
them must be absolute:

    from seepage.recorder.flower import client_app
    app = client_app("/path/to/federation.toml")

    from seepage.recorder.flower import server_app
    app = server_app("/path/to/federation.toml", "/path/to/final.safetensors")
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.audit.recipe.files import find_recipe, read_recipe
from seepage.audit.recipe.plans import Federation
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.simulate.federation import Clients, FederationState, Reply, federate
from seepage.audit.simulate.setting import Setting, State
from seepage.base.storage import write_tensors
from seepage.errors import SeepageError, not_installed
from seepage.federation.types import Tensors, Update

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise not_installed("Flower", "flower") from error

POLL = 0.2
"""Seconds between two polls of the list of connected nodes: short beside their start, and no load."""
REPLY_TIMEOUT = 600.0
"""Seconds that the server waits for the replies of a round."""


@dataclass(frozen=True)
class FederationStart:
    """A federation ready to run: what every process of it makes for itself, from the recipe alone."""

    clients: Clients
    state: State
    plan: Federation


@cache
def start_of(recipe: str) -> FederationStart:
    """The federation of a recipe's first case, made once in each process.

    Args:
        recipe: A file, or the name of a built-in recipe.

    Raises:
        SeepageError: For a recipe without `[federation]`.
    """
    case = resolve_cases(read_recipe(find_recipe(recipe)))[0]
    if case.federation is None:
        raise SeepageError(f"the recipe {recipe} has no [federation]; add that table")
    setting = Setting.of(case)
    return FederationStart(setting.clients(), setting.state, case.federation)


def client_app(recipe: str) -> ClientApp:
    """The app that runs where the data are. A node's `partition-id` says which client it is.

    Args:
        recipe: A file, or the name of a built-in recipe.
    """
    return _client_app(recipe, None)


def _client_app(recipe: str, here: Path | None) -> ClientApp:
    """The same, whose processes go to this folder first: where paths of the recipe, and named code, are looked for."""
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return Message(RecordDict({"client": MetricRecord({"client": _client(context)})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if here is not None:
            os.chdir(here)
        own, sent = start_of(recipe), message.content
        stage = FederationState(int(sent["config"]["t"]), *_state(sent))
        number, of = int(sent["config"]["number"]), int(sent["config"]["of"])
        reply = own.clients.reply(stage, _client(context), own.plan, number, of)
        return Message(_packed_reply(reply), reply_to=message)

    return app


def _client(context: Context) -> int:
    return int(context.node_config["partition-id"])


def server_app(recipe: str, out: str | Path | Callable[[FederationState], None]) -> ServerApp:
    """The app that runs on the server. It uses the start's model and test examples, and nobody's data.

    Args:
        recipe: A file, or the name of a built-in recipe; the same as the clients'.
        out: A file for the last stage's weights, or what to do with that stage.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = start_of(recipe)
        nodes = _nodes(grid, len(start.clients.parts))

        def ask(stage: FederationState, chosen: Sequence[int]) -> list[Reply]:
            return _ask(grid, nodes, stage, chosen)

        stage = federate(start.clients, start.state, start.plan, ask=ask)
        if callable(out):
            out(stage)
        else:
            write_tensors(Path(out), {**stage.params, **stage.buffers})

    return app


def simulate(recipe: str, *, cpus: int = 1) -> FederationState:
    """Run a federation on Flower's simulation engine (on Ray) in this machine.

    Args:
        recipe: A file, or the name of a built-in recipe.
        cpus: Cores for each client that runs at a time.

    Raises:
        SeepageError: Where the run ends without a result.
    """
    import ray
    from flwr.simulation import run_simulation

    from seepage.recorder.ray import empty_folder

    found: list[FederationState] = []
    clients = len(start_of(recipe).clients.parts)
    with empty_folder() as environment:
        if not ray.is_initialized():  # or Flower would, whose workers would run code of the current folder
            paths = os.pathsep.join(filter(None, sys.path))
            ray.init(runtime_env={**environment, "env_vars": {"PYTHONPATH": paths}}, include_dashboard=False)
        run_simulation(
            server_app(recipe, found.append),
            _client_app(recipe, Path.cwd()),
            clients,
            backend_config={"client_resources": {"num_cpus": cpus, "num_gpus": 0.0}},
        )
    if not found:
        raise SeepageError("Flower's simulation ended without a model; its log above says why")
    return found[0]


def _nodes(grid: Grid, clients: int) -> dict[int, int]:
    """Client number to node identifier, by asking every node once; waits until all nodes are connected.

    Args:
        grid: Flower's connection to the nodes.
        clients: Number of clients of the federation.

    Raises:
        SeepageError: Where nodes or client numbers are missing after `REPLY_TIMEOUT` seconds.
    """
    import time

    end = time.monotonic() + REPLY_TIMEOUT
    while len(nodes := list(grid.get_node_ids())) < clients:
        if time.monotonic() > end:
            raise SeepageError(
                f"{len(nodes)} of {clients} Flower nodes are there after {REPLY_TIMEOUT:g} s; start the others"
            )
        time.sleep(POLL)
    questions = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    answers = _replies(grid.send_and_receive(questions, timeout=REPLY_TIMEOUT))
    found = {int(answer.content["client"]["client"]): answer.metadata.src_node_id for answer in answers}
    missing = set(range(clients)) - set(found)
    if missing:
        raise SeepageError(f"no Flower node is client {min(missing)}; give each node its own partition-id")
    return found


def _ask(grid: Grid, nodes: dict[int, int], stage: FederationState, chosen: Sequence[int]) -> list[Reply]:
    """Send the stage to the chosen clients and collect their replies, in that order."""
    messages = [
        Message(_packed_stage(stage, number, len(chosen)), dst_node_id=nodes[client], message_type="train")
        for number, client in enumerate(chosen)
    ]
    answers = {
        answer.metadata.src_node_id: answer
        for answer in _replies(grid.send_and_receive(messages, timeout=REPLY_TIMEOUT))
    }
    lost = [client for client in chosen if nodes[client] not in answers]
    if lost:
        raise SeepageError(
            f"client {lost[0]} did not answer within {REPLY_TIMEOUT:g} s in round {stage.t}; look at its log"
        )
    return [_unpacked_reply(answers[nodes[client]].content, stage) for client in chosen]


def _replies(answers: Iterable[Message]) -> list[Message]:
    found = list(answers)
    for answer in found:
        if answer.has_error():
            raise SeepageError(f"a Flower client failed: {answer.error.reason.strip().splitlines()[-1]}")
    return found


def _packed_stage(stage: FederationState, number: int, of: int) -> RecordDict:
    records: dict[str, Any] = {
        "params": _packed(stage.params),
        "buffers": _packed(stage.buffers),
        "config": ConfigRecord({"t": stage.t, "number": number, "of": of}),
    }
    return RecordDict(records)


def _state(content: RecordDict) -> tuple[Tensors, Tensors]:
    return _unpacked(content["params"]), _unpacked(content["buffers"])


def _packed_reply(reply: Reply) -> RecordDict:
    records: dict[str, Any] = {
        "update": _packed(reply.update.tensors),
        "buffers": _packed(reply.buffers),
        "config": ConfigRecord({"kind": reply.update.kind}),
        "metrics": MetricRecord({"num-examples": reply.examples}),
    }
    return RecordDict(records)


def _unpacked_reply(content: RecordDict, stage: FederationState) -> Reply:
    kind = content["config"]["kind"]
    update = Update(_like(_unpacked(content["update"]), stage.params), "delta" if kind == "delta" else "gradient")
    buffers = _like(_unpacked(content["buffers"]), stage.buffers)
    # Unchanged statistics are the very same objects.
    same = all(torch.equal(buffers[name], tensor) for name, tensor in stage.buffers.items())
    return Reply(update, stage.buffers if same else buffers, int(content["metrics"]["num-examples"]))


def _packed(tensors: Tensors) -> ArrayRecord:
    # Flower's arrays have a shape of their own for single numbers; NumPy's copy keeps them contiguous.
    return ArrayRecord({name: Array(np.ascontiguousarray(t.detach().cpu().numpy())) for name, t in tensors.items()})


def _unpacked(record: Any) -> Tensors:
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def _like(tensors: Tensors, like: Tensors) -> Tensors:
    """In the model's order, shapes and devices: sums over tensors must round as they do in one process."""

    def one(name: str, wanted: Tensor) -> Tensor:
        return tensors[name].reshape(wanted.shape).to(wanted)

    return {name: one(name, wanted) for name, wanted in like.items()}
