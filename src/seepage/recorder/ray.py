"""Ray: attacks and trainings on a cluster. Needs `seepage[ray]`.

    with cluster("auto") as on:
        seepage.audit.run(tables, on=on)

Nodes need not share a disk. An attack travels with the files of `observed/`, which Ray's object store holds once for
each case, and its outcome travels back; the truth and the recipe stay on the machine that has them. A training of
`seepage frontier` travels with its clients and their data, to processes that are never given an attack. Cases whose
rounds were too many to keep are made anew from the truth, so they are attacked on the machine that has it.
"""

import os
import socket
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from seepage.base.executor import Done, LocalExecutor, LogFollower, Plan, SerializedTask, Work, only_installed_code
from seepage.base.lock import scratch
from seepage.base.storage import write_whole
from seepage.errors import SeepageError, not_installed

try:
    import ray
    from ray.exceptions import RayError, RaySystemError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise not_installed("Ray", "ray") from error

ANSWER_SECONDS = 10.0
"""Seconds in which a cluster must answer."""

POLL_SECONDS = 0.3
"""Seconds between polls of how far the workers are."""

MAX_RETRIES = 5
"""Times that a piece is begun anew after its worker was killed."""

PROGRESS_FILE = "progress.jsonl"


@contextmanager
def cluster(address: str | None = None) -> Iterator["Ray"]:
    """Join a cluster, or start one on this machine that ends with the block. One that is joined already stays so.

    Args:
        address: As in `ray.init`. None: the cluster that `RAY_ADDRESS` names or that runs on this machine, or else a
            new one; `auto`: the same without a new one; `local`: a new one in any case; `HOST:PORT` of a cluster's
            head, from one of its nodes; `ray://HOST:PORT` from anywhere.

    Raises:
        SeepageError: Where no cluster answers, and where one of its nodes has another Python or seepage.
    """
    joined = ray.is_initialized()
    if not joined:
        _join(address)
    try:
        _check_nodes()
        yield Ray()
    finally:
        if not joined:
            ray.shutdown()


@contextmanager
def _environment(address: str | None) -> Iterator[dict[str, Any] | None]:
    """The environment of a job whose workers start in an empty folder, for `ray.init`.

    Ray puts the folder that a job was started in before the installed packages on the path of its workers, where a
    stranger's `pydantic.py` would run in place of the package; it does so unless the job brings a folder of its own.
    None for jobs that go through a client server, which never bring the caller's folder.
    """
    if address is not None and address.startswith("ray://"):
        yield None
        return
    with scratch() as place, only_installed_code():
        empty = place / "empty"
        empty.mkdir()
        yield {"working_dir": str(empty)}


def _join(address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about an audit is sent to anybody
    named = address or os.environ.get("RAY_ADDRESS") or None
    try:
        if named not in (None, "auto", "local"):
            _knock(named)
        place = "local" if named is None and _is_stale() else named
        with warnings.catch_warnings(), _environment(place) as environment:
            warnings.simplefilter("ignore", FutureWarning)  # of what Ray means to change; no user can act on it
            ray.init(
                place, runtime_env=environment, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
            )
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise _unreachable(named, error) from error


def _knock(address: str) -> None:
    """Raise `OSError` where nobody listens: Ray itself waits for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()


def _is_stale() -> bool:
    """Whether the cluster last started on this machine was killed, so that the file with its address still stands."""
    file = Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray", "ray_current_cluster")
    if not file.exists():
        return False
    try:
        _knock(file.read_text().strip())
    except (OSError, ValueError):
        return True
    return False


def _unreachable(address: str | None, error: Exception) -> SeepageError:
    place, said = address or "this machine", " ".join(str(error).split())[:300]
    if "ersion mismatch" in said:
        return SeepageError(
            f"the Ray cluster at {place} runs another Ray or Python ({said}); "
            "start it from the environment that seepage runs in, or one like it"
        )
    if isinstance(error, ValueError | socket.gaierror):
        return SeepageError(
            f"{place} is no address of a Ray cluster ({said}); write --on ray:HOST:PORT or ray://HOST:PORT"
        )
    return SeepageError(
        f"no Ray cluster lets this process in at {place} ({said or type(error).__name__}); start one with `ray start "
        "--head`, or here with --on ray:local, and where it wants a token set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
    )


def _check_nodes() -> None:
    """Raise unless every node has this Python and this seepage."""

    def look() -> tuple[str, str]:
        from importlib.metadata import PackageNotFoundError, version
        from platform import python_version

        try:
            return python_version(), f"seepage {version('seepage')}"
        except PackageNotFoundError:
            return python_version(), "no seepage"

    task = ray.remote(look)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    asked = [
        task.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True)).remote()
        for node in nodes
    ]
    try:
        answers = ray.get(asked, timeout=6 * ANSWER_SECONDS)
    except RayError as error:
        raise SeepageError(
            f"the nodes of the Ray cluster do not answer ({type(error).__name__}); look at `ray status`"
        ) from error
    own = python_version(), f"seepage {version('seepage')}"
    for answer in answers:
        if answer != own:
            raise SeepageError(
                f"a node of the Ray cluster has Python {answer[0]} and {answer[1]}, and here are Python {own[0]} and "
                f"{own[1]}; install the same on all nodes"
            )


@dataclass(frozen=True)
class Ray:
    """A cluster that this process has joined. Each piece takes one CPU, or one GPU where its device is one."""

    def plan(self, jobs: int | None, count: int, device: str) -> Plan:
        """The plan: if `jobs` is None, as many pieces at a time as the cluster has room for; one thread each."""
        if ":" in device:
            raise SeepageError(
                f"on Ray each attack is given a GPU of its own, so {device!r} names none; use --device cuda"
            )
        room = int(ray.cluster_resources().get("CPU" if device == "cpu" else "GPU", 0))
        if not room:
            raise SeepageError(
                f"the Ray cluster has no {'CPU' if device == 'cpu' else 'GPU'} to work with; add a node that has, or "
                "choose another --device"
            )
        return Plan(max(1, min(jobs or room, count)), 1)

    def ready(
        self, jobs: int | None, count: int, device: str, first: Callable[[], None]
    ) -> AbstractContextManager["Ray"]:
        """Ray starts its processes by itself."""
        return nullcontext(self)

    def kept(self, plan: Plan) -> AbstractContextManager["Ray"]:
        """Ray keeps its processes."""
        return nullcontext(self)

    def run(self, works: Sequence[Work], plan: Plan, folder: Path, done: Done) -> None:
        """Do all of it; what must not leave this machine is done here, one after the other, at the end.

        Raises:
            SeepageError: Where a piece raised it, or its worker died again and again.
            KeyboardInterrupt: After Ctrl-C; what is done stays.
        """
        pairs = [(work, work.serialized()) for work in works]
        travelling = [(work, serialized) for work, serialized in pairs if serialized is not None]
        _Dispatch(travelling, plan, folder, done).run()
        LocalExecutor().run(
            [work for work, serialized in pairs if serialized is None], Plan(1, plan.threads), folder, done
        )


@dataclass
class _Answer:
    """What came of a piece: the files it wrote by their paths below the run folder, or what it raised."""

    files: Mapping[str, bytes]
    lines: bytes
    error: SeepageError | None = None


@dataclass
class _Dispatch:
    """Pieces on their way out and back.

    Attributes:
        travelling: Pieces of work, with what travels.
        plan: How many at a time.
        folder: The run folder.
        done: Called with each that is back.
    """

    travelling: Sequence[tuple[Work, SerializedTask]]
    plan: Plan
    folder: Path
    done: Done
    _loaded: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Keep `plan.jobs` pieces out, and write whatever comes back, whole."""
        if not self.travelling:
            return
        lines = _lines()
        waiting, left = list(reversed(self.travelling)), Counter(serialized.key for _, serialized in self.travelling)
        out: dict[Any, tuple[Work, SerializedTask]] = {}
        try:
            while waiting or out:
                while waiting and len(out) < self.plan.jobs:
                    work, serialized = waiting.pop()
                    out[self._send(work, serialized, lines)] = work, serialized
                for ref in ray.wait(list(out), timeout=POLL_SECONDS)[0]:
                    work, serialized = out.pop(ref)
                    self._keep(work, _answer(ref, work))
                    left[serialized.key] -= 1
                    if not left[serialized.key]:
                        del self._loaded[serialized.key]
                self._append(_taken(lines))
        except BaseException:
            for ref in out:
                ray.cancel(ref, force=True)
            raise
        finally:
            ray.kill(lines)

    def _send(self, work: Work, serialized: SerializedTask, lines: Any) -> Any:
        if serialized.key not in self._loaded:
            self._loaded[serialized.key] = ray.put(serialized.load())
        serialized = work.begun().serialized() or serialized
        on_cpu = work.device == "cpu"
        task = ray.remote(_carry_out).options(
            name=work.title,
            num_cpus=1 if on_cpu else 0,
            num_gpus=0 if on_cpu else 1,
            max_retries=MAX_RETRIES,
            # Ray keeps a pool of processes for each environment: none that has held data of clients attacks.
            runtime_env={"env_vars": {"SEEPAGE_WORK": type(serialized).__name__}},
        )
        return task.remote(serialized, self._loaded[serialized.key], self.plan.threads, lines, Path.cwd())

    def _keep(self, work: Work, answer: _Answer) -> None:
        self._append(answer.lines)
        if answer.error is not None:
            raise answer.error
        mark = work.done_file.relative_to(self.folder).as_posix()
        for name in sorted(answer.files, key=lambda name: (name == mark, name)):
            write_whole(self.folder / name, answer.files[name])
        self.done(work)

    def _append(self, lines: bytes) -> None:
        if lines:
            with (self.folder / PROGRESS_FILE).open("ab") as file:
                file.write(lines)


def _answer(ref: Any, work: Work) -> _Answer:
    try:
        answer: _Answer = ray.get(ref)
        return answer
    except RayTaskError as error:
        raise error.cause or error from error
    except RayError as error:
        raise SeepageError(
            f"the worker for {work.title} died {MAX_RETRIES + 1} times ({type(error).__name__}), most likely for want "
            "of memory; take a node with more, or a smaller batch or model"
        ) from error


def _carry_out(serialized: SerializedTask, loaded: Any, threads: int, lines: Any, here: Path) -> _Answer:
    """Do a piece on a worker, in a folder that goes with it; `here` is where the user's own code is looked for."""
    failed = None
    with suppress(OSError):  # a node that shares no disk with the caller has not got the folder
        os.chdir(here)
    with scratch() as place:
        folder = place / "work"
        folder.mkdir()
        follower = LogFollower(folder / PROGRESS_FILE)
        with _reported(follower, lines.add.remote):
            try:
                serialized.run(loaded, folder, threads)
            except SeepageError as error:
                failed = error
        names = [path for path in folder.rglob("*") if path.is_file() and path.name != PROGRESS_FILE]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in names}
        return _Answer({} if failed else files, follower.fresh(), failed)


@contextmanager
def _reported(follower: LogFollower, send: Callable[[bytes], Any]) -> Iterator[None]:
    """Send fresh lines every `POLL_SECONDS` seconds, from a thread, while a block runs."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            fresh = follower.fresh()
            if fresh:
                send(fresh)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _lines() -> Any:
    """An actor that holds progress lines until this process takes them."""

    # Defined in here, Ray sends its code and its process needs no torch.
    class Lines:
        def __init__(self) -> None:
            self.held: list[bytes] = []

        def add(self, lines: bytes) -> None:
            self.held.append(lines)

        def take(self) -> bytes:
            taken, self.held = b"".join(self.held), []
            return taken

    return ray.remote(Lines).options(num_cpus=0, max_restarts=-1).remote()


def _taken(lines: Any) -> bytes:
    """Lines that workers reported; none where their holder is gone with its node, since results come without it."""
    try:
        taken: bytes = ray.get(lines.take.remote(), timeout=ANSWER_SECONDS)
        return taken
    except (RayError, RaySystemError):
        return b""
