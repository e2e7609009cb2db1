"""What an input did: an answer, a crash, a hang, or something that no file may cause; and where it is read."""

import faulthandler
import io
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from strategies import MARKER, SCRIPT, TRACE

LONGEST_LINE, LONGEST = 1000, 5000
"""Letters of one line of a message, and of a whole one."""
PATIENCE = 60.0
"""Seconds of wall time for one input, after which it counts as a hang."""
STUCK = 90.0
"""Seconds after which the process is ended: compiled code hears no alarm. The input is then left in its folder."""
STDERR = 2
"""Where that is said: not where pytest keeps what a test prints."""
MEMORY = 6 * 2**30
"""Bytes that may be mapped beyond what the process has when it begins to read."""

PROCESSES = (
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile",
)  # fmt: skip
NETWORK = (
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request",
)  # fmt: skip
CHANGES = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate",
    "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile",
)  # fmt: skip
"""Python's audit events, by what they are."""


class Fault(Exception):
    """What an answer may not be: too long a message, a tag of a stranger, a wrong exit code, a file elsewhere."""


class Hang(BaseException):
    """Raised by the alarm; no handler of a library catches it."""


class Watcher:
    """Notes, by Python's audit events, what is done beyond reading and computing. It cannot be removed, only be off."""

    def __init__(self) -> None:
        self.home, self.writes, self.on = os.sep, False, False
        self.words: list[str] = []
        sys.addaudithook(self._hook)
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, *_: object) -> None:
        """Note that the marker is asked for; `importlib.import_module` makes no audit event of it."""
        if self.on and name.partition(".")[0] == MARKER:
            self.words.append("code: import")

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in PROCESSES:
            self.words.append(f"a process: {event}")
        elif event in NETWORK:
            self.words.append(f"the network: {event}")
        elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(self.home):
            self.words.append("code: exec")
        elif event == "open":
            path, mode, flags = arguments
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (
                mode is None and isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            )
            if writes:
                self._changed(path)
        elif event in CHANGES:
            for path in arguments[:2]:
                self._changed(path)

    def _changed(self, path: object) -> None:
        if not isinstance(path, str | bytes):
            return
        name = os.fsdecode(path)
        if name.endswith(TRACE):
            self.words.append("code: a pickle")
        place = os.path.join(os.path.realpath(os.path.dirname(name) or "."), os.path.basename(name))
        inside = f"{place}{os.sep}".startswith(self.home)
        if not (inside and self.writes) and name != os.devnull:
            self.words.append(f"a file {'here' if inside else 'elsewhere'}: {name}")

    @contextmanager
    def watching(self, home: Path, *, writes: bool) -> Iterator[None]:
        """Raise `Fault` for a hang, and for whatever no file may cause; a write below `home` only with `writes`."""

        def ring(*_: object) -> None:
            raise Hang

        self.home, self.writes, self.words = f"{os.path.realpath(home)}{os.sep}", writes, []
        before, deepest = signal.signal(signal.SIGALRM, ring), sys.getrecursionlimit()
        sys.setrecursionlimit(sum(1 for _ in traceback.walk_stack(None)) + 1000)  # hypothesis has raised it
        faulthandler.dump_traceback_later(STUCK, exit=True, file=STDERR)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        self.on = True
        try:
            yield
        except Hang:
            raise Fault(f"a hang: no answer after {PATIENCE:g} s") from None
        finally:
            self.on = False
            sys.setrecursionlimit(deepest)
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGALRM, before)
        if self.words:
            raise Fault("; ".join(self.words))


# --- what an answer may hold -------------------------------------------------------------------------------------


def check_message(text: str) -> None:
    """Raise for a message that is too long, or that would move a terminal's cursor."""
    if len(text) > LONGEST or any(len(line) > LONGEST_LINE for line in text.split("\n")):
        raise Fault("a message too long")
    check_terminal(text)


def check_terminal(text: str) -> None:
    """Raise for control characters: what seepage prints to a file or a pipe has none but line ends."""
    if any(not (letter.isprintable() or letter == "\n") for letter in text):
        raise Fault("a control character in the terminal")


class _Tags(HTMLParser):
    """What a stranger's words have become part of: tags, attributes' names, links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            scheme = (value or "").strip().lower().startswith(("javascript:", "vbscript:", "data:text"))
            loads = name in ("src", "href", "data", "action", "srcset") and SCRIPT in (value or "")
            if name.startswith("on") or SCRIPT in name or scheme or loads:
                self.found.append(f"{tag} {name}")
        if tag in ("script", "iframe", "object", "embed", "svg", "base", "form", "link"):
            self.found.append(tag)

    handle_startendtag = handle_starttag


def check_page(text: str) -> None:
    """Raise for a page in which a stranger's words are more than words. The page's own must hold no script."""
    tags = _Tags()
    tags.feed(text)
    tags.close()
    if tags.found:
        raise Fault(f"an injection into a page: {tags.found[0][:60]}")


_SPAN = re.compile(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_RAW = re.compile(r"(?<!\\)<(?=[a-zA-Z/!?])")
_LINK = re.compile(rf"(?<!\\)\]\([^)]*{SCRIPT}", re.DOTALL)


def check_markdown(text: str) -> None:
    """Raise for raw HTML, or a stranger's link, in Markdown outside of code; with Python-Markdown, in its page."""
    for paragraph in text.split("\n\n"):
        left = _SPAN.sub("", paragraph)
        if _RAW.search(left) or _LINK.search(left):
            raise Fault("an injection into Markdown")
    try:
        import markdown
    except ModuleNotFoundError:  # of the extra `docs`
        return
    check_page(markdown.markdown(text, extensions=["tables"]))


# --- answers -----------------------------------------------------------------------------------------------------


def answered(call: Callable[[], object]) -> str:
    """Call, as the command line would: a sentence is an answer; anything else that is raised goes on.

    Returns:
        `accepted`, `refused`, or `memory` where the limit of this process was reached and the user is known so.
    """
    import seepage.cli
    from seepage.errors import SeepageError

    try:
        call()
    except SeepageError as error:
        shown = io.StringIO()
        with redirect_stderr(shown), suppress(SystemExit):
            seepage.cli._fail(str(error))
        check_message(shown.getvalue())
        return "refused"
    except OSError as error:
        check_message(f"{error.filename}: {error.strerror}")
        return "refused"
    except (MemoryError, RuntimeError) as error:
        if not seepage.cli._is_out_of_memory(error):
            raise
        return "memory"
    return "accepted"


def command(*words: str) -> tuple[int, str, str]:
    """Run a command in this process; returns its exit code, what it printed and what it complained about.

    Raises:
        Fault: For an exit code that no command has, and for control characters.
        Exception: What would be a traceback.
    """
    import seepage.cli

    out, err = io.StringIO(), io.StringIO()
    before, fault, code = sys.argv, seepage.cli._fault, 0

    def show() -> None:
        raise

    sys.argv, seepage.cli._fault = ["seepage", *words], show  # type: ignore[assignment]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            seepage.cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 99
    finally:
        sys.argv, seepage.cli._fault = before, fault
    if code not in (0, 1, 2):
        raise Fault(f"the exit code {code}")
    if code == 2:
        check_message(err.getvalue())
    check_terminal(out.getvalue())
    return code, out.getvalue(), err.getvalue()


def ran(*words: str) -> str:
    """As `answered`, of a command. One that ends with a sentence was refused."""
    code, _, err = command(*words)
    if code == 2 and "memory is used up" in err:
        return "memory"
    return "refused" if code == 2 else "accepted"


# --- where inputs are read ---------------------------------------------------------------------------------------

Files = Mapping[str, "bytes | str | None"]
"""Content by the name of a file below the reader's folder; None: the file is removed."""


@contextmanager
def limited_memory() -> Iterator[None]:
    """Let this process map `MEMORY` more bytes than it has now, where the system says what that is."""
    statm = Path("/proc/self/statm")
    before = resource.getrlimit(resource.RLIMIT_AS)
    if statm.exists():
        now = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Sandbox:
    """A working folder with good files in it, which are spoiled and read again and again.

    Args:
        place: The working folder, which alone may be written to.
        watcher: That of this process.
        name: Of the test, under which hypothesis keeps what failed.

    Attributes:
        home: The folder of the good files.
        counts: How many inputs were `accepted`, `refused`, or met the limit of `memory`.
        seconds: What all of them took.
        done: Whether all were answered.
    """

    def __init__(self, place: Path, watcher: Watcher, name: str) -> None:
        self.place, self.home, self.watcher, self.name = place, place / "in", watcher, name
        self.good: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()
        self.seconds, self.done = 0.0, False

    def files(self) -> dict[str, Path]:
        """All files of the folder by their names in it."""
        paths = sorted(self.home.rglob("*"))
        return {str(path.relative_to(self.home)): path for path in paths if path.is_file() and not path.is_symlink()}

    def keep(self, files: Files | None = None) -> dict[str, bytes]:
        """Write files; all that then lie in the folder are the good ones, which are returned."""
        self.put(files or {})
        self.good = {name: path.read_bytes() for name, path in self.files().items()}
        return self.good

    def restore(self) -> None:
        """Bring back the good files, and remove all others. A library may have mapped the old ones."""
        there = self.files()
        for name, path in there.items():
            if name not in self.good:
                path.unlink()
        self.put({name: one for name, one in self.good.items() if name not in there or there[name].read_bytes() != one})
        for other in self.place.iterdir():
            if other != self.home:
                shutil.rmtree(other, ignore_errors=True) if other.is_dir() else other.unlink()

    def put(self, files: Files) -> None:
        """Write files anew, or remove them."""
        for name, content in files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content.encode(errors="surrogatepass") if isinstance(content, str) else content)

    def fuzz(
        self, inputs: st.SearchStrategy[Any], answer: Callable[..., str], *, most: int = 25, writes: bool = False
    ) -> None:
        """Let the good files and then many spoiled ones be read: each is answered, and nothing else is done.

        Args:
            inputs: Of the files that differ from the good ones, or of tuples: these, and what `answer` is called with.
            answer: Reads the files of `home`; returns `accepted`, `refused` or `memory`. Its defaults fit good files.
            most: How many inputs, where no profile of hypothesis was named, such as by `--hypothesis-profile=long`.
            writes: Whether it may write, in the sandbox only.
        """
        self.restore()
        assert answer() == "accepted", "the good input"  # unwatched: libraries are imported, and compile, once

        def once(found: Any) -> None:
            files, *more = found if isinstance(found, tuple) else (found,)
            self.restore()
            self.put(files)
            began = time.monotonic()
            with self.watcher.watching(self.place, writes=writes):
                outcome = answer(*more)
            self.seconds += time.monotonic() - began
            self.counts[outcome] += 1
            event(outcome)

        once.__name__ = once.__qualname__ = re.sub(r"\W", "_", self.name)
        named = settings.get_current_profile_name() != "seepage"
        limits = settings(
            max_examples=settings().max_examples if named else most,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        )
        with limited_memory():
            run(limits(given(inputs)(once)))
        self.done = True


def run(test: Callable[[], None]) -> None:
    """Let hypothesis choose the inputs. `benchmarks/fuzz_files.py` puts a search by coverage in its place."""
    test()


# --- fixtures ----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-inputs", action="store_true", help="count what was read in results/safety/fuzz.jsonl")


def pytest_configure() -> None:
    global STDERR
    STDERR = os.dup(2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each input has a clock of its own, and there may be many thousands of them."""
    for item in items:
        if "sandbox" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(0))
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def sandbox(
    tmp_path: Path, watcher: Watcher, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Sandbox]:
    """The working folder of a test, which alone may be written to: also what is temporary, and the user's own."""
    place = tmp_path / "sandbox"
    (place / "in").mkdir(parents=True)
    monkeypatch.chdir(place)
    for name in ("TMPDIR", "HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(place))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    found = Sandbox(place, watcher, request.node.name)
    yield found
    if request.config.getoption("--keep-inputs") and found.done:
        _keep(found, request)


def _keep(found: Sandbox, request: pytest.FixtureRequest) -> None:
    """A row of docs/safety.md, of a test that has passed."""
    from scripts import script

    facts = {one: found.counts[one] for one in ("accepted", "refused", "memory")}
    script("keeping").keep_measured(
        "safety/fuzz", found.name.removeprefix("test_"), "inputs", found.counts.total(), about=request.function.__doc__,
        command=shlex.join(["python", "-m", "pytest", *request.config.invocation_params.args]),
        seconds=round(found.seconds, 1), results=request.config.rootpath / "results", **facts,
    )  # fmt: skip
