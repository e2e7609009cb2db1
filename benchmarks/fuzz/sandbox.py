"""One reader in one process with limits, begun again where an input ends it; counts are kept in a file."""

import gc
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

from readers import READERS, Reader
from watch import Fault, Hang, Watcher, kind_of

MEMORY = 6 * 2**30
"""Bytes that a reader may map beyond what its process has when it starts."""
STUCK = 90.0
"""Seconds without an input done, after which the process is ended from outside: compiled code hears no alarm."""
UNABLE = 4
"""Exit code of a child that could not begin."""
KEPT_EVERY = 100
"""Inputs between two writes of the counts."""


@dataclass
class Counts:
    """What a reader's inputs did.

    Attributes:
        reader: Its name.
        seed: Of all inputs.
        inputs: How many were read.
        accepted: Of these, how many gave a result.
        refused: How many gave a sentence.
        memory: How many met the limit of memory and were stated so.
        kinds: Each kind of crash, with its count.
        first: Each kind with the number of the first input of that kind.
        hangs: Inputs that took longer than the limit.
        deaths: Inputs that ended the process, such as by a signal.
        code: Foreign code that was run.
        processes: Processes that were started.
        network: Calls of the network.
        writes: Files written outside of the sandbox.
        seconds: Wall time.
        peak_mb: Peak of the resident memory.
    """

    reader: str
    seed: int
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    memory: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    hangs: int = 0
    deaths: int = 0
    code: int = 0
    processes: int = 0
    network: int = 0
    writes: int = 0
    seconds: float = 0.0
    peak_mb: int = 0

    @property
    def crashes(self) -> int:
        """Inputs that ended in a traceback, or in an answer that no file may cause."""
        return sum(self.kinds.values())

    @property
    def bad(self) -> int:
        """All that should be zero."""
        return self.crashes + self.hangs + self.deaths + self.code + self.processes + self.network + self.writes

    def note(self, kind: str, number: int) -> None:
        """Count a crash."""
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.first.setdefault(kind, number)

    def save(self, path: Path) -> None:
        """Write the counts, whole."""
        path.with_suffix(".new").write_text(json.dumps(asdict(self)))
        path.with_suffix(".new").replace(path)

    @classmethod
    def open(cls, path: Path, reader: str, seed: int) -> "Counts":
        """The counts so far, of the same seed."""
        found = json.loads(path.read_text()) if path.exists() else {}
        return cls(**found) if found.get("seed") == seed else cls(reader, seed)


def randomness(reader: str, seed: int, number: int) -> Random:
    """The generator of one input: the same input comes of the same three facts."""
    return Random(f"{reader}/{seed}/{number}")


def fuzz(name: str, seed: int, last: int, kept: Path, shared: Path) -> Counts:
    """Let a reader read inputs up to number `last`, in child processes; returns the counts."""
    path, current = kept / f"{name}-{seed}.json", kept / f"{name}-{seed}.at"
    counts = Counts.open(path, name, seed)
    while counts.inputs < last:
        current.write_bytes((counts.inputs).to_bytes(8, "little"))
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _child(name, counts, last, path, current, shared)
        status = _wait(child, current)
        counts = Counts.open(path, name, seed)
        if status == UNABLE:
            raise SystemExit(f"{name} cannot begin; see above")
        if status:  # the input that was being read ended the process: counted here, as the child cannot
            at = int.from_bytes(current.read_bytes(), "little")
            kind = f"ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
            counts.inputs = at + 1
            counts.hangs += status == -signal.SIGKILL
            counts.deaths += status != -signal.SIGKILL
            counts.first.setdefault(kind, at)
            counts.save(path)
    current.unlink(missing_ok=True)
    return counts


def fuzz_all(
    names: list[str], seed: int, last: int, kept: Path, shared: Path, jobs: int, show: Callable[[Counts], None]
) -> list[Counts]:
    """Let all readers read, so many at a time."""
    with ThreadPoolExecutor(1 if jobs < 2 else jobs) as pool:
        running = [pool.submit(fuzz, name, seed, last, kept, shared) for name in names]
        found = []
        for one in running:
            found.append(one.result())
            show(found[-1])
    return found


def _wait(child: int, current: Path) -> int:
    """Wait for a child, or end it where it is stuck; returns its exit code, of a signal its negative number."""
    before, since = b"", time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        now = current.read_bytes()
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > STUCK:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)


def _child(name: str, counts: Counts, last: int, path: Path, current: Path, shared: Path) -> None:
    """Read the inputs. Ends this process."""
    code = UNABLE
    try:
        place = Path(mkdtemp(prefix=f"{name}-", dir=shared))
        os.environ["TMPDIR"] = os.environ["HOME"] = str(place)
        os.chdir(place)
        reader = READERS[name](place, shared)
        _limit()
        watcher = Watcher(place)
        _warm(reader)
        at = os.open(current, os.O_WRONLY)
        code = 3
        since, started = counts.seconds, time.monotonic()
        for number in range(counts.inputs, last):
            os.pwrite(at, number.to_bytes(8, "little"), 0)
            _one(reader, watcher, counts, number)
            counts.inputs = number + 1
            counts.seconds = round(since + time.monotonic() - started, 1)
            counts.peak_mb = max(counts.peak_mb, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
            if counts.inputs % KEPT_EVERY == 0 or counts.inputs == last:
                for what, times in watcher.seen.items():
                    setattr(counts, what, getattr(counts, what) + times)
                watcher.seen.clear()
                counts.save(path)
                gc.collect()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _limit() -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _warm(reader: Reader) -> None:
    """Read a good input unwatched: libraries are imported, and compile what they compile, once."""
    reader.restore()
    reader.read()  # shows what is wrong, where something is
    reader.restore()
    if reader.outcome() != "accepted":
        raise AssertionError(f"{reader.name}: the good input is not accepted")


def _one(reader: Reader, watcher: Watcher, counts: Counts, number: int) -> None:
    reader.restore()
    reader.spoil(randomness(reader.name, counts.seed, number))
    try:
        with watcher.watching():
            outcome = reader.outcome()
        setattr(counts, outcome, getattr(counts, outcome) + 1)
        for words in watcher.words:
            counts.first.setdefault(words, number)
        watcher.words.clear()
    except Hang:
        counts.hangs += 1
        counts.first.setdefault("hang", number)
    except Fault as fault:
        counts.note(str(fault), number)
    except Exception as error:
        counts.note(kind_of(error), number)


def show_one(name: str, seed: int, number: int, shared: Path) -> None:
    """Read one input again, in this process, and show what becomes of it."""
    place = Path(mkdtemp(prefix=f"{name}-", dir=shared))
    os.chdir(place)
    reader: Any = READERS[name](place, shared)
    reader.restore()
    reader.spoil(randomness(name, seed, number))
    print(f"the input lies in {place}", flush=True)
    try:
        print(reader.outcome())
    except Exception:
        traceback.print_exc()


def total(all_counts: list[Counts]) -> Counter[str]:
    """The sums over readers."""
    found: Counter[str] = Counter()
    for one in all_counts:
        found.update({key: value for key, value in asdict(one).items() if isinstance(value, int) and key != "seed"})
        found["crashes"] += one.crashes
    return found
