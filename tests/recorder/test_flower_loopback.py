"""The hooks where they are meant to be: in processes of their own, on a real network, and in Flower's simulation."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests.helpers.federated import CLASSES, LR, NET, SHAPE, batch_of
from tests.helpers.traps import caught
from tests.recorder.conftest import write_app

pytest.importorskip("flwr", reason="needs seepage[flower]")

from seepage import attack, build, open_transcript, score

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("quiet_flower")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
SIZES = (1, 60)

SHARED = """
from pathlib import Path
from seepage import Architecture, FedAvg
from seepage.recorder.recorder import Recorder

PLACE = Path({place!r})
SHAPE, CLASSES, LR, SIZES, NET = (1, 8, 8), 4, 0.1, (1, 60), Architecture("fc2", {{"hidden": 16}})

def recorder(side, **options):
    rule = FedAvg(lr=LR, batch_size=64)
    return Recorder(PLACE / side, architecture=NET, input_shape=SHAPE, num_classes=CLASSES, client=rule, **options)
"""
CLIENT = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hooked import CLASSES, LR, NET, SHAPE, SIZES, recorder
from seepage import build
from seepage.recorder.flower_hooks import recording_mod

app = ClientApp(mods=[recording_mod(recorder("client", audit="inline", block=0))])

@app.train()
def train(message, context):
    number = int(context.node_config["partition-id"])
    draw, n = torch.Generator().manual_seed(number), SIZES[number]
    inputs, labels = torch.rand(n, *SHAPE, generator=draw), torch.randint(CLASSES, (n,), generator=draw)
    model = build(NET, SHAPE, CLASSES)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    torch.optim.SGD(model.parameters(), lr=LR).step()
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": n})}
    return Message(RecordDict(reply), reply_to=message)
"""
SERVER = """
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from hooked import CLASSES, NET, PLACE, SHAPE, recorder
from seepage import build
from seepage.recorder.flower_hooks import AuditedStrategy
from seepage.base.storage import write_tensors

app = ServerApp()

@app.main()
def main(grid, context):
    strategy = AuditedStrategy(FedAvg(fraction_evaluate=0.0), recorder("server"))
    first = ArrayRecord(build(NET, SHAPE, CLASSES).state_dict())
    result = strategy.start(grid, first, num_rounds=1)
    write_tensors(PLACE / "final.safetensors", result.arrays.to_torch_state_dict())
"""


def trained(client: int) -> dict[str, torch.Tensor]:
    """The same step with no framework."""
    model, batch = build(NET, SHAPE, CLASSES), batch_of(client, SIZES[client])
    F.cross_entropy(model(batch.inputs), batch.labels).backward()
    torch.optim.SGD(model.parameters(), lr=LR).step()
    return model.state_dict()


def updates(folder: Path) -> dict[str, list[torch.Tensor]]:
    """Each recording's tensors, by round and by their first values: nodes have other numbers than partitions."""
    found: dict[str, list[torch.Tensor]] = {}
    for path in folder.iterdir():
        tensors = list(open_transcript(path)[0].update.tensors.values())
        found[f"{path.name[:6]} {tensors[0].flatten()[:4].tolist()}"] = tensors
    return found


def assert_sent_is_received(place: Path, rounds: int) -> None:
    sent, received = updates(place / "client"), updates(place / "server")
    assert sent.keys() >= received.keys()
    assert len({name[:6] for name in received}) == rounds
    for name, tensors in received.items():
        assert all(torch.equal(own, other) for own, other in zip(tensors, sent[name], strict=True))


def test_what_leaves_two_nodes_is_what_the_server_gets(tmp_path: Path, loopback: Any) -> None:
    """The client with one example gives it away, so it is held back; the other's update arrives as it left."""
    shared, final = SHARED.format(place=str(tmp_path)), tmp_path / "final.safetensors"
    app = write_app(tmp_path, "hooked", client=CLIENT, server=SERVER, shared=shared)
    loopback.start(nodes=2)
    loopback.run(app, final.exists)
    assert caught(loopback.mark) == ""
    assert_sent_is_received(tmp_path, rounds=1)
    # What is blocked is recorded too, where it stays.
    assert sorted(path.name for path in (tmp_path / "client").iterdir()) == ["000001-client-0", "000001-client-1"]
    assert len(list((tmp_path / "server").iterdir())) == 1
    assert score(attack(tmp_path / "client" / "000001-client-0", "linear"), batch_of(0, SIZES[0])).psnr > 50
    found = load_file(final)
    for name, tensor in trained(1).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-7)


@pytest.mark.skipif(not EXAMPLE.is_dir(), reason="the examples are not here")
def test_the_example_runs_on_the_simulation_engine(
    tmp_path: Path, loopback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECORDINGS", str(tmp_path / "recordings"))
    written = tmp_path / "recordings" / "server"
    loopback.start()
    options = ("--run-config", "rounds=2", "--federation-config", "num-supernodes=2")
    loopback.run(EXAMPLE, lambda: any(written.glob("*/knowledge.json")), *options)
    assert_sent_is_received(tmp_path / "recordings", rounds=1)  # the server keeps every second round
