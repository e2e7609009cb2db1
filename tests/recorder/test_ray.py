"""`--on ray`: the same files as on one machine, from a cluster with two workers that the tests start on loopback."""

import json
import os
import pickle
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.helpers.traps import caught, trapped

pytest.importorskip("ray", reason="needs seepage[ray]")

from ray import cloudpickle

from seepage import SeepageError
from seepage.audit import run as audit
from seepage.audit.attack import Task, own_source
from seepage.audit.recipe.files import find_recipe, read_recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import record_cases
from seepage.base.registry import Spec
from seepage.report.frontier import run_frontier
from seepage.report.frontier.sweep import sweep_of
from seepage.report.frontier.utility import EntryTraining

pytestmark = pytest.mark.filterwarnings("default")

RECIPE = """
name = "tiny"
data = { use = "digits", size = 8 }
model = { use = "fc2", hidden = 8 }
batch = { size = 2, count = 2 }
attack = [{ use = "linear" }, { use = "inverting_gradients", steps = 20 }, { use = "idlg" }, { use = "broken:Broken" }]
[grid]
"training.steps" = [0, 3]
"""
BROKEN = """
from dataclasses import dataclass
from seepage.attacks import Attack

@dataclass(frozen=True, kw_only=True)
class Broken(Attack):
    def run(self, transcript, *, seed, progress):
        raise ZeroDivisionError("planted")
"""
LONG = """
name = "long"
data = { use = "digits", size = 8 }
model = { use = "fc2", hidden = 8 }
batch = { size = 2, count = 1 }
attack = [{ use = "linear" }, { use = "inverting_gradients", steps = 4000 }]
"""
FRONTIER = """
name = "swept"
data = { use = "pictures" }
model = { use = "fc2", hidden = 8 }
batch = { size = 2 }
training = { steps = 2 }
federation = { clients = 3, share = 1.0 }
utility = { rounds = 3 }
attack = [{ use = "linear" }]
frontier = [{ use = "gaussian_noise", clip = 1.0, sigma = 0.1 }, { use = "selective_encryption", share = 0.2 }]
"""


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Variables of a cluster that only these tests can enter, with a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place:
        yield os.environ | {
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_TMPDIR": place,
            "RAY_USAGE_STATS_ENABLED": "0",
        }


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str]) -> Iterator[str]:
    """The address of a running cluster with two workers."""
    port, client = free_port(), free_port()
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", "2"),
        *("--node-ip-address", "127.0.0.1", "--port", str(port), "--ray-client-server-port", str(client)),
        *("--include-dashboard", "false", "--disable-usage-stats", "--object-store-memory", str(2**27)),
    ]
    log = Path(environment["RAY_TMPDIR"], "head.log")
    with log.open("w") as file:
        head = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        until(lambda: "--block" in log.read_text(), lambda: head.poll() is None or log.read_text())
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        head.wait(timeout=30)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def until(condition: Callable[[], bool], alive: Callable[[], object] = lambda: True) -> None:
    ends = time.monotonic() + 180
    while not condition():
        assert alive() is True
        assert time.monotonic() < ends, "took too long"
        time.sleep(0.05)


def start(home: Path, environment: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    command = [sys.executable, "-P", "-m", "seepage.cli", *arguments]
    return subprocess.Popen(command, cwd=home, env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(child: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
    out, err = child.communicate(timeout=200)
    assert child.returncode == code, err
    return out, err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("tiny", RECIPE), ("long", LONG), ("swept", FRONTIER)):
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def timeless(value: Any) -> Any:
    """Without seconds, and where the run lies."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if "seconds" not in key and key != "run"}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def contents(folder: Path) -> dict[str, Any]:
    """All files of a run, but for what tells how and when it was made."""
    aside = {"env.json", "progress.jsonl", "report.html", "grid.png", "frontier.html"}
    aside |= {"manifest.json", "manifest.key", "owner.mac"}  # with a key of each run's own
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name in aside:
            continue
        content = path.read_bytes()
        if path.suffix == ".json":
            found[path.relative_to(folder).as_posix()] = timeless(json.loads(content))
        elif path.suffix == ".jsonl":
            found[path.relative_to(folder).as_posix()] = [timeless(json.loads(line)) for line in content.splitlines()]
        else:
            found[path.relative_to(folder).as_posix()] = content
    return found


def test_an_audit_leaves_the_same_files(home: Path, cluster: str, environment: dict[str, str]) -> None:
    child = start(home, environment | {"RAY_ADDRESS": cluster}, "audit", "tiny.toml", "--out", "far", "--on", "ray")
    finish(child)
    near, far = contents(local(home, "tiny.toml")), contents(home / "far")
    assert near.keys() == far.keys()
    assert [name for name in near if near[name] != far[name]] == []
    statuses = {row["status"] for row in near["result.json"]["rows"]}
    assert statuses >= {"inapplicable", "error"}, "a refusal and a fault of the attack are results, too"
    facts = json.loads((home / "far/env.json").read_text())
    assert (facts["jobs"], facts["threads"]) == (2, 1)
    assert {event["attack"] for event in log_of(home / "far")} == {"inverting_gradients"}


def local(home: Path, recipe: str) -> Path:
    """A run of the same recipe in this process."""
    return audit.run(read_recipe(find_recipe(recipe)), out=home / "near", jobs=1).folder


def test_a_killed_worker_loses_only_its_case(home: Path, cluster: str, environment: dict[str, str]) -> None:
    child = start(home, environment, "audit", "long.toml", "--out", "far", "--on", f"ray:{cluster}")
    until(lambda: log_of(home / "far") != [], lambda: child.poll() is None)
    (worker,) = workers(environment, "ray::inverting_gradients")
    os.kill(worker, signal.SIGKILL)
    finish(child)
    steps = [event["done"] for event in log_of(home / "far")]
    assert steps.count(steps[0]) == 2, "it was begun twice"
    assert steps.count(4000) == 1
    near, far = contents(local(home, "long.toml")), contents(home / "far")
    assert [name for name in near | far if near.get(name) != far.get(name)] == []


def log_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "progress.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def workers(environment: dict[str, str], title: str) -> list[int]:
    """Processes of this cluster by the name of what they do."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            named = (place / "cmdline").read_bytes().startswith(title.encode())
            if named and environment["RAY_TMPDIR"].encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("sent", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_run_that_is_stopped_keeps_what_is_done(
    sent: int, code: int, word: str, home: Path, cluster: str, environment: dict[str, str]
) -> None:
    (home / "long.toml").write_text(LONG.replace("4000", "200000"))
    child = start(home, environment, "audit", "long.toml", "--out", "far", "--on", f"ray:{cluster}")
    done = home / "far/attacks/case/linear/000000.json"
    until(lambda: done.exists() and log_of(home / "far") != [], lambda: child.poll() is None)
    child.send_signal(sent)
    _, err = finish(child, code)
    assert f"{word}; what is finished is kept" in err
    assert "Traceback" not in err
    assert done.exists()
    until(lambda: not workers(environment, "ray::inverting_gradients"))


def test_a_frontier_leaves_the_same_files(home: Path, cluster: str, environment: dict[str, str]) -> None:
    pictures(home / "pictures")
    finish(start(home, environment, "frontier", "swept.toml", "--out", "far", "--on", f"ray:{cluster}"))
    run_frontier(read_recipe(find_recipe("swept.toml")), out=home / "near", jobs=1)
    near, far = contents(home / "near"), contents(home / "far")
    assert near.keys() == far.keys()
    assert [name for name in near if near[name] != far[name]] == []
    assert sum(name.startswith("utility/") for name in near) == 3


def pictures(folder: Path) -> None:
    """A data set in files: two classes of eight grey pictures."""
    draw = np.random.default_rng(0)
    for word in ("left", "right"):
        (folder / word).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(draw.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / word / f"{number}.png")


def test_without_a_cluster_one_is_started_and_ended(home: Path, environment: dict[str, str]) -> None:
    """Nor does it run a file of the current folder, which Ray puts on the path of its workers."""
    mark = trapped(home)
    run = ("audit", "tiny.toml", "--attack", "linear", "--out", "far", "--on", "ray:local", "--jobs", "1", "--quiet")
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place:
        own = environment | {"RAY_TMPDIR": place}
        out, err = finish(start(home, own, *run))
        until(lambda: not workers(own, "ray::"))
    assert out.startswith("LEAKS")
    assert err == ""
    assert len(list(home.glob("far/attacks/*/linear/*.safetensors"))) == 4
    assert caught(mark) == ""


# --- what travels -------------------------------------------------------------------------------------------------


def test_an_attack_travels_without_truth_and_recipe(home: Path) -> None:
    task = task_of(home)
    parcel = task.serialized()
    sent = pickle.dumps((parcel, parcel.load()))
    task.run(1)
    near = task.outcome.with_suffix(".safetensors").read_bytes()
    truth = (home / "run/private/truth.safetensors").read_bytes()
    assert not any(piece in sent for piece in (truth[-256:], b"Recipe", b"digits"))
    shutil.rmtree(home / "run")
    there, loaded = pickle.loads(sent)
    there.run(loaded, home / "there", 1)
    (far,) = home.glob("there/attacks/*/*/*.safetensors")
    assert far.read_bytes() == near


def task_of(home: Path, recipe: str = "tiny.toml") -> Task:
    recipes = resolve_cases(read_recipe(find_recipe(recipe)))[:1]
    record_cases(recipes, home / "run")
    source = own_source(recipes[0], recipes, home / "run")
    assert source.recipe is not None  # Whose seed would draw the truth again.
    return Task(
        case="case",
        name="linear",
        part=Spec("linear"),
        t=0,
        seed=0,
        device="cpu",
        source=source.for_attack(),
        folder=home / "run",
    )


def test_a_training_travels_with_its_data(home: Path) -> None:
    pictures(home / "pictures")
    sweep = sweep_of(read_recipe(find_recipe("swept.toml")))
    entry = sweep.entries[1]
    training = EntryTraining(entry.name, entry.recipe, sweep.utility, home / "near")
    training.run(1)
    parcel = training.serialized()
    sent = cloudpickle.dumps((parcel, parcel.load()))
    shutil.rmtree(home / "pictures")
    there, loaded = cloudpickle.loads(sent)
    there.run(loaded, home / "far", 1)
    assert contents(home / "far") == contents(home / "near")
    assert json.loads(training.done_file.read_text())["accuracy"] is not None


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("dask", "--on takes ray"),
        ("ray:nowhere", "is no address of a Ray cluster"),
        ("ray:127.0.0.1:PORT", "no Ray cluster lets this process in at 127.0.0.1:"),
        ("ray://127.0.0.1:PORT", "no Ray cluster lets this process in at ray://127.0.0.1:"),
    ],
)
def test_a_mistake_is_one_sentence_within_seconds(on: str, words: str) -> None:
    # Not above: the typer that Flower wants warns of the newest click, and a warning up there is an error.
    from seepage.cli.options import running_on

    begun = time.monotonic()
    with pytest.raises(SeepageError, match=words), running_on(on.replace("PORT", str(free_port()))):
        pass
    assert time.monotonic() - begun < 15


CHECKED = """
import sys
import seepage.recorder.ray as adapter
from seepage.errors import SeepageError

real = adapter.version, adapter.python_version
for adapter.version, adapter.python_version in ((lambda _: "0.0.1", real[1]), (real[0], lambda: "3.9.1")):
    try:
        with adapter.cluster(sys.argv[1]):
            print("in")
    except SeepageError as error:
        print(error)
adapter.version, adapter.python_version = real
with adapter.cluster(sys.argv[1]) as on:
    try:
        on.plan(None, 3, "cuda")
    except SeepageError as error:
        print(error)
    print(on.plan(None, 3, "cpu"), on.plan(None, 1, "cpu"), on.plan(1, 3, "cpu"))
"""


def test_another_version_on_a_node_is_refused(cluster: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", CHECKED, cluster]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    old, python, gpu, plans = done.stdout.splitlines()
    assert "and seepage 0.0.1; install the same on all nodes" in old
    assert "here are Python 3.9.1" in python
    assert "has no GPU" in gpu
    assert plans.split(") ") == ["Plan(jobs=2, threads=1", "Plan(jobs=1, threads=1", "Plan(jobs=1, threads=1)"]
