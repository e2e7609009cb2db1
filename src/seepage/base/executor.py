"""Work in pieces that do not wait for one another, run side by side: in processes of this machine, or elsewhere.

Whoever has the pieces gives them to an `Executor`: `LocalExecutor` is this machine, `seepage.recorder.ray` a
cluster.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from seepage.errors import SeepageError


class SerializedTask(Protocol):
    """A piece of work as it travels to another machine. It is pickled, and holds nothing the work must not know."""

    @property
    def key(self) -> str:
        """Tasks of one key share what they load."""

    def load(self) -> Any:
        """Everything the work reads from this machine's disk; called on this machine, once for each key."""

    def run(self, loaded: Any, folder: Path, threads: int) -> None:
        """Do the work on the other machine; writes below `folder` what belongs below the run folder."""


class Work(Protocol):
    """One piece. It can be pickled."""

    @property
    def title(self) -> str:
        """For messages, such as `dlg on fc2`."""

    @property
    def device(self) -> str:
        """Where its tensors are."""

    @property
    def done_file(self) -> Path:
        """The file that it writes last: with it the work is done."""

    def begun(self) -> "Work":
        """This piece as it is handed out, called just before: where it has a share of what time is left then."""

    def run(self, threads: int) -> None:
        """Do it in this process."""

    def serialized(self) -> SerializedTask | None:
        """The same work for another machine; None: it must be done on this one."""


SAFE_PATH = "PYTHONSAFEPATH"
"""What keeps the current folder off `sys.path` of a Python that is started with it."""

Done = Callable[[Work], None]
"""Called with each piece when it is done, from any thread."""


@dataclass(frozen=True)
class Plan:
    """How many pieces run at a time, and how many threads each has."""

    jobs: int
    threads: int


class Executor(Protocol):
    """Where work is done."""

    def plan(self, jobs: int | None, count: int, device: str) -> Plan:
        """The plan for `count` pieces of work: how many run at a time, and how; `jobs` None: not stated."""

    def ready(
        self, jobs: int | None, count: int, device: str, first: Callable[[], None]
    ) -> AbstractContextManager["Executor"]:
        """Get ready, while the pieces are still being made, for at most `count` of them; gives who runs them.

        Args:
            jobs: As for `plan`.
            count: Most pieces that there will be.
            device: Where their tensors are.
            first: Called in each process that is started for them, to import what they need. It can be pickled.
        """

    def kept(self, plan: Plan) -> AbstractContextManager["Executor"]:
        """Who runs several batches of pieces, one batch after the other, in the same processes."""

    def run(self, works: Sequence[Work], plan: Plan, folder: Path, done: Done) -> None:
        """Do all of it; everything is written below the run folder.

        Raises:
            SeepageError: Where a piece raised it, or could not be done at all.
            KeyboardInterrupt: After Ctrl-C; what is done stays.
        """


@dataclass(frozen=True)
class LocalExecutor:
    """This machine: this process and others beside it.

    Attributes:
        workers: Processes that were started ahead; None: `run` starts its own.

    >>> LocalExecutor().plan(8, 3, "cuda")
    Plan(jobs=3, threads=1)
    """

    workers: ProcessPoolExecutor | None = None

    def plan(self, jobs: int | None, count: int, device: str) -> Plan:
        """The plan: if `jobs` is None, one piece per core on a CPU, and one at a time on a GPU."""
        cores = os.cpu_count() or 1
        workers = max(1, min(jobs or (cores if device == "cpu" else 1), count))
        return Plan(workers, threads_for(workers, device))

    @contextmanager
    def ready(self, jobs: int | None, count: int, device: str, first: Callable[[], None]) -> Iterator[Self]:
        """Start the workers now: until they have imported torch and what it imports in turn, seconds go by.

        They end with the block.
        """
        wanted = self.plan(jobs, count, device).jobs - 1
        if not wanted:
            yield self
            return
        with _pool(wanted) as workers:
            for _ in range(wanted):
                _submit(workers, first)
            yield replace(self, workers=workers)

    @contextmanager
    def kept(self, plan: Plan) -> Iterator[Self]:
        """Workers that start with the first pieces that run side by side, and end with the block."""
        if plan.jobs < 2 or self.workers is not None:
            yield self
            return
        with _pool(plan.jobs - 1) as workers:
            yield replace(self, workers=workers)

    def run(self, works: Sequence[Work], plan: Plan, folder: Path, done: Done) -> None:
        """Do all of it.

        Raises:
            SeepageError: Where a piece raised it, or a worker died (out of memory, most likely).
            KeyboardInterrupt: After Ctrl-C; what is done stays.
        """
        before = torch.get_num_threads()
        try:
            if min(plan.jobs, len(works)) > 1:
                with _pool(plan.jobs - 1) if self.workers is None else nullcontext(self.workers) as workers:
                    _run_in_workers(workers, works, plan, done)
            else:
                for work in works:
                    work.begun().run(plan.threads)
                    done(work)
        finally:
            torch.set_num_threads(before)


def threads_for(jobs: int, device: str) -> int:
    """Threads per piece, so that all together use once the cores that torch may use (`OMP_NUM_THREADS`)."""
    return max(1, torch.get_num_threads() // jobs) if device == "cpu" else 1


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes beside this one, which start with the first piece; killed where the block raises.

    This is the standard library's pool and not `loky`'s: workers of `loky` hear Ctrl-C and SIGTERM with their group,
    print tracebacks of their own, and a busy one outlives a parent that was killed.
    """
    # spawn, not fork: torch's thread pools do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with only_installed_code():  # whose queues start the tracker
        pool = ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def _submit(pool: ProcessPoolExecutor, call: Callable[..., None], *given: object) -> "Future[None]":
    """Give the workers something to call, and start them where it is the first."""
    with only_installed_code(), _signals_held_back():
        return pool.submit(call, *given)


def _run_in_workers(pool: ProcessPoolExecutor, works: Sequence[Work], plan: Plan, done: Done) -> None:
    """Run in a pool and in this process: torch alone takes half a gigabyte in each.

    All take from the front, a worker's next piece when its last one is done: the pool's own queue would hold pieces
    back from this process.
    """
    waiting, given, one_at_a_time = deque(works), list[tuple[Future[None], Work]](), threading.Lock()

    def give(submit: Callable[..., "Future[None]"]) -> None:
        with one_at_a_time:
            if not waiting:
                return
            future = submit(waiting[0].begun().run, plan.threads)  # where this raises, the piece still waits
            work = waiting.popleft()
            given.append((future, work))
        future.add_done_callback(partial(_report_done, done, work))
        future.add_done_callback(give_next)

    def give_next(before: "Future[None]") -> None:
        # Of a pool that broke this process takes over what still waits.
        if not before.cancelled() and not isinstance(before.exception(), BrokenProcessPool):
            with suppress(RuntimeError):
                give(pool.submit)

    for work in works[: plan.jobs - 1]:
        with _blamed_on_memory(work):
            give(partial(_submit, pool))
    while True:
        with one_at_a_time:
            if not waiting:
                break
            work = waiting.popleft()
        work.begun().run(plan.threads)
        done(work)
    for future, work in given:
        with _blamed_on_memory(work):
            future.result()


@contextmanager
def only_installed_code() -> Iterator[None]:
    """Start Python processes that do not look for modules in the current folder, which may be untrusted.

    `python -c`, with which workers and their tracker are started, would run a `_posixshmem.py` that lies there. What
    this process can import its workers can, since they take over its `sys.path` before they read any work.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Start workers that never hear Ctrl-C or SIGTERM, which may reach a whole group: this process ends them itself.

    They inherit what is held back here meanwhile. Ignoring it instead would lose what arrives just then.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows, which has no groups of this kind
        yield
        return
    resource_tracker.ensure_running()  # whose start, with the first worker, would let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Make this worker end once its parent is gone: a killed parent cannot tell it, and it would wait forever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _report_done(done: Done, work: Work, future: "Future[None]") -> None:
    if not future.cancelled() and future.exception() is None:
        done(work)


@contextmanager
def _blamed_on_memory(work: Work) -> Iterator[None]:
    """Say of a worker that died what was most likely the reason."""
    try:
        yield
    except BrokenProcessPool as error:
        raise SeepageError(
            f"a worker died during {work.title}, most likely for want of memory; "
            "run the same command again with --jobs 1, or a smaller batch or model"
        ) from error


@dataclass
class LogFollower:
    """The whole lines that others append to a file.

    Attributes:
        path: The file; it need not be there yet.
        offset: Bytes read so far.
    """

    path: Path
    offset: int = 0

    def fresh(self) -> bytes:
        """Lines that came since the last call, each with its end; a line cut short waits for its rest."""
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole
