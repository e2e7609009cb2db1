"""Flower's own secure aggregation, SecAgg+, run in one process: what a recorder sees outside and inside of it."""

import copy
import logging
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.federated import CLASSES, LR, NET, SHAPE, batch_of, without_engine

pytest.importorskip("flwr", reason="needs seepage[flower]")

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

import seepage
from seepage import attack, build, score
from seepage.recorder.flower_hooks import recording_mod
from seepage.recorder.recorder import Recorder

pytestmark = pytest.mark.filterwarnings("default")

identity = pytest.fixture(autouse=True)(without_engine)
CLIENTS, RANGE = 3, 8.0
Arrays = list[np.ndarray[Any, Any]]


def stepped(parameters: Arrays, client: int) -> Arrays:
    model, batch = build(NET, SHAPE, CLASSES), batch_of(client)
    names = list(model.state_dict())
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in zip(names, parameters, strict=True)})
    F.cross_entropy(model(batch.inputs), batch.labels).backward()
    torch.optim.SGD(model.parameters(), lr=LR).step()
    return [tensor.numpy() for tensor in model.state_dict().values()]


class Client(NumPyClient):
    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        return stepped(parameters, self.number), 1, {}


def client_of(context: Context) -> Any:
    return Client(int(context.node_config["partition-id"])).to_client()


def context_of(client: int) -> Context:
    return Context(1, 1000 + client, {"partition-id": client}, RecordDict(), {})


class Nodes:
    """A grid with clients in this process, and what they sent."""

    run = SimpleNamespace(run_id=1)

    def __init__(self, app: ClientApp) -> None:
        self.app, self.sent = app, list[Message]()
        self.contexts = {1000 + client: context_of(client) for client in range(CLIENTS)}

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            # Over a network each client gets its own copy; the mod takes things out of it.
            reply = self.app(copy.deepcopy(message), self.contexts[node])
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        self.sent += replies
        return replies


def test_outside_of_secure_aggregation_there_is_nothing_to_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").propagate = True
    rule = seepage.FedAvg(lr=LR)
    outer, inner = (
        Recorder(tmp_path / side, architecture=NET, input_shape=SHAPE, num_classes=CLASSES, client=rule)
        for side in ("outer", "inner")
    )
    outside, inside = (recording_mod(recorder, examples="num_examples") for recorder in (outer, inner))
    nodes = Nodes(ClientApp(client_fn=client_of, mods=[outside, secaggplus_mod, inside]))
    first = [tensor.numpy() for tensor in build(NET, SHAPE, CLASSES).state_dict().values()]
    strategy = FedAvg(initial_parameters=ndarrays_to_parameters(first), fraction_evaluate=0.0)
    whole: list[Arrays] = []

    def kept(t: int, results: Any, failures: Any) -> Any:
        whole.append(parameters_to_ndarrays(results[0][1].parameters))
        return results[0][1].parameters, {}

    strategy.aggregate_fit = kept
    context = LegacyContext(context=context_of(9), config=ServerConfig(num_rounds=1), strategy=strategy)
    secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=2, clipping_range=RANGE)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        DefaultWorkflow(fit_workflow=secure)(nodes, context)

    assert not (tmp_path / "outer").exists()
    assert caplog.text.count("under secure aggregation they leave masked") == 1  # once, and not for each round
    for client in range(CLIENTS):  # the plain update is there only before the mod
        folder = tmp_path / "inner" / f"000000-client-{client}"
        assert score(attack(folder, "linear"), batch_of(client)).psnr > 50
    configs = [reply.content.config_records["secaggplus_configs"] for reply in nodes.sent]
    masked = [config["masked_params"] for config in configs if "masked_params" in config]
    assert len(masked) == CLIENTS
    # Masked numbers lie evenly over their whole range, whatever the weights are.
    for vectors in masked:
        shares = np.concatenate([bytes_to_ndarray(vector).ravel() for vector in vectors]) / 2**32
        assert abs(shares.mean() - 0.5) < 0.05
        assert abs(shares.std() - 12**-0.5) < 0.03
    # The server's sum is that of the clients, up to rounding to levels.
    mean = [sum(parts) / CLIENTS for parts in zip(*(stepped(first, c) for c in range(CLIENTS)), strict=True)]
    for found, wanted in zip(whole[0], mean, strict=True):
        assert np.abs(found - wanted).max() < 1e-4
