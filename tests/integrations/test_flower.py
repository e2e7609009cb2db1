"""One recipe, three engines, one model: in this process, in Flower's simulation, and over a network on loopback."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="needs seepage[flower]")

from seepage import SeepageError
from seepage.federation import Stage, federate
from seepage.integrations.flower import Scene, scene_of, simulate

pytestmark = pytest.mark.filterwarnings("default")

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


@pytest.fixture(autouse=True)
def quiet_flower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr-home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # The link starts further programs of Flower by their names.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def here(scene: Scene) -> Stage:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return federate(scene.clients, scene.state, scene.plan)
    finally:
        torch.set_num_threads(threads)


def assert_same(found: dict[str, torch.Tensor], stage: Stage) -> None:
    for name, tensor in (stage.params | stage.buffers).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_simulation_engine_gives_the_same_model(recipe: Path) -> None:
    found = simulate(str(recipe))
    assert found.t == 3
    assert_same(found.params | found.buffers, here(scene_of(str(recipe))))


def test_a_recipe_without_a_federation_is_refused(recipe: Path) -> None:
    recipe.write_text('[[attack]]\nuse = "linear"\n')
    with pytest.raises(SeepageError, match="has no"):
        scene_of(str(recipe))


APP = """
[project]
name = "same-model"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "seepage"

[tool.flwr.app.components]
serverapp = "same_model.server:app"
clientapp = "same_model.client:app"

[tool.flwr.app.config]
"""
CONNECTION = """
[superlink]
default = "loopback"

[superlink.loopback]
address = "127.0.0.1:{port}"
insecure = true
"""
CLIENT = """
from seepage.integrations.flower import client_app
app = client_app({recipe!r})
"""
SERVER = """
from seepage.integrations.flower import server_app
app = server_app({recipe!r}, {out!r})
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(port: int, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"nothing listens on port {port}")


def write_app(folder: Path, recipe: Path, out: Path, port: int) -> Path:
    package = folder / "app" / "same_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "client.py").write_text(CLIENT.format(recipe=str(recipe)))
    (package / "server.py").write_text(SERVER.format(recipe=str(recipe), out=str(out)))
    (package.parent / "pyproject.toml").write_text(APP)
    home = Path(os.environ["FLWR_HOME"])
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(CONNECTION.format(port=port))
    return package.parent


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended after the test, whatever happens."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in reversed(processes):
        process.terminate()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def start(processes: list[subprocess.Popen[bytes]], log: Path, command: str, *arguments: str) -> None:
    with log.open("wb") as file:
        processes.append(subprocess.Popen([command, *arguments], stdout=file, stderr=file, env=dict(os.environ)))


def test_a_server_and_two_nodes_on_loopback_give_the_same_model(
    tmp_path: Path, recipe: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    link, *nodes = free_ports(3)
    out = tmp_path / "final.safetensors"
    app = write_app(tmp_path, recipe, out, link)
    start(
        started,
        tmp_path / "superlink.log",
        "flower-superlink",
        "--insecure",
        "--host=127.0.0.1",
        f"--port={link}",
    )
    wait_for(link)
    for number in range(2):
        start(
            started,
            tmp_path / f"supernode-{number}.log",
            "flower-supernode",
            "--insecure",
            f"--superlink=127.0.0.1:{link}",
            "--host=127.0.0.1",
            f"--port={nodes[number]}",
            f"--node-config=partition-id={number} num-partitions=2",
        )
    ran = subprocess.run(
        ["flwr", "run", str(app), "loopback"], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    end = time.monotonic() + 150
    while not out.exists() and time.monotonic() < end:
        time.sleep(0.5)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in tmp_path.glob("*.log"))
    assert out.exists(), logs
    assert_same(load_file(out), here(scene_of(str(recipe))))
