"""Flower over a network on loopback: a link and its nodes as processes that are ended after the test."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.helpers.traps import trapped

# Workers of pytest-xdist look for modules in the current folder, as `python -c` does; an installed program does not.
sys.path[:] = [entry for entry in sys.path if entry]

CONNECTIONS = """
[superlink]
default = "loopback"

[superlink.loopback]
address = "127.0.0.1:{port}"
insecure = true
"""
PROJECT = """
[project]
name = "{name}"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "seepage"

[tool.flwr.app.components]
serverapp = "{name}.server:app"
clientapp = "{name}.client:app"

[tool.flwr.app.config]
"""


def write_app(folder: Path, name: str, *, client: str, server: str, shared: str = "") -> Path:
    """A Flower app below a folder: the texts of its modules, and the project that names them."""
    package = folder / "app" / name
    package.mkdir(parents=True)
    for module, text in (("__init__", shared), ("client", client), ("server", server)):
        (package / f"{module}.py").write_text(text)
    (package.parent / "pyproject.toml").write_text(PROJECT.format(name=name))
    return package.parent


@dataclass
class Loopback:
    """A `flower-superlink` and `flower-supernode`s, each a process that writes its log below `folder`.

    They are started in a stranger's folder; `mark` is there once one of them ran a file of it.
    """

    folder: Path
    port: int = 0
    mark: Path = field(init=False)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        stranger = self.folder / "stranger"
        stranger.mkdir()
        self.mark = trapped(stranger)

    def start(self, nodes: int = 0) -> None:
        """Start the link, wait for it, start nodes with their own partition-id; without any it simulates them."""
        self.port, *ports = _free_ports(1 + nodes)
        simulated = [] if nodes else ["--simulation"]
        where = ["--insecure", "--host=127.0.0.1", f"--port={self.port}"]
        if simulated:  # Ray puts the folder on the path of its workers: start it in a folder of your own
            shutil.rmtree(self.mark.parent)
            self.mark.parent.mkdir()
        self._process("superlink", "flower-superlink", *where, *simulated)
        _wait_for(self.port)
        for number, port in enumerate(ports):
            self._process(
                f"supernode-{number}",
                "flower-supernode",
                "--insecure",
                f"--superlink=127.0.0.1:{self.port}",
                "--host=127.0.0.1",
                f"--port={port}",
                f"--node-config=partition-id={number} num-partitions={nodes}",
            )

    def run(self, app: Path, done: Callable[[], bool], *options: str) -> None:
        """`flwr run` an app and wait until it is done."""
        home = Path(os.environ["FLWR_HOME"])
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(CONNECTIONS.format(port=self.port))
        command = ["flwr", "run", str(app), "loopback", *options]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=self.folder, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        end = time.monotonic() + 300
        while not done() and time.monotonic() < end:
            time.sleep(0.5)
        assert done(), self.logs()

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self.folder.glob("*.log"))

    def stop(self) -> None:
        """End what was started."""
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def _process(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            # Flower starts `python -m uv`, which looks for modules in the current folder first.
            environment, here = os.environ | {"PYTHONSAFEPATH": "1"}, self.mark.parent
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=here))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_for(port: int, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"nothing listens on port {port}")


@pytest.fixture
def quiet_flower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Flower's files below the test's folder, nothing sent anywhere, one thread."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr-home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_ADDRESS", "local")  # or the simulation would join whatever cluster runs on this machine
    # The link starts further programs of Flower by their names.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def loopback(tmp_path: Path, quiet_flower: None) -> Iterator[Loopback]:
    """A network that is ended after the test, whatever happens."""
    found = Loopback(tmp_path)
    yield found
    found.stop()
