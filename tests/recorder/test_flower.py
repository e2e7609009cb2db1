"""One recipe, three engines, one model: in this process, in Flower's simulation, and over a network on loopback."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.helpers.traps import caught, trapped
from tests.recorder.conftest import write_app

pytest.importorskip("flwr", reason="needs seepage[flower]")

from seepage import SeepageError
from seepage.audit.simulate.federation import FederationState, federate
from seepage.recorder.flower import FederationStart, simulate, start_of

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("quiet_flower")]

RECIPE = """
[data]
use = "digits"
[model]
use = "convnet"
width = 4
batch_norm = true
[federation]
clients = 2
rounds = 3
share = 1.0
examples = 24
[client]
use = "fedavg"
lr = 0.1
batch_size = 8
[[defense]]
use = "gaussian_noise"
sigma = 0.001
clip = 1.0
[[attack]]
use = "linear"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "federation.toml"
    path.write_text(RECIPE)
    return path


def here(start: FederationStart) -> FederationState:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return federate(start.clients, start.state, start.plan)
    finally:
        torch.set_num_threads(threads)


def assert_same(found: dict[str, torch.Tensor], stage: FederationState) -> None:
    for name, tensor in (stage.params | stage.buffers).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_simulation_engine_gives_the_same_model(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers, which Ray starts, find the recipe in the current folder and run nothing else that lies there."""
    mark = trapped(recipe.parent)
    monkeypatch.chdir(recipe.parent)
    found = simulate(recipe.name)
    assert caught(mark) == ""
    assert found.t == 3
    assert_same(found.params | found.buffers, here(start_of(str(recipe))))


def test_a_recipe_without_a_federation_is_refused(recipe: Path) -> None:
    recipe.write_text('[[attack]]\nuse = "linear"\n')
    with pytest.raises(SeepageError, match="has no"):
        start_of(str(recipe))


CLIENT = """
from seepage.recorder.flower import client_app
app = client_app({recipe!r})
"""
SERVER = """
from seepage.recorder.flower import server_app
app = server_app({recipe!r}, {out!r})
"""


def test_a_server_and_two_nodes_on_loopback_give_the_same_model(tmp_path: Path, recipe: Path, loopback: Any) -> None:
    out = tmp_path / "final.safetensors"
    client, server = CLIENT.format(recipe=str(recipe)), SERVER.format(recipe=str(recipe), out=str(out))
    app = write_app(tmp_path, "federated", client=client, server=server)
    loopback.start(nodes=2)
    loopback.run(app, out.exists)
    assert caught(loopback.mark) == ""
    assert_same(load_file(out), here(start_of(str(recipe))))
