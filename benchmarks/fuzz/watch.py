"""What an input did: an answer, a crash, a hang, or something that no file may cause."""

import io
import os
import re
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mutations import MARKER, SCRIPT, TRACE

import seepage.cli
from seepage.errors import SeepageError

LONGEST_LINE, LONGEST = 1000, 5000
"""Letters of one line of a message, and of a whole one."""
PATIENCE = 20.0
"""Seconds of wall time for one input, after which it counts as a hang."""

PROCESSES = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
)
NETWORK = (
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.sendto",
    "urllib.Request",
)
CHANGES = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.utime",
    "shutil.rmtree",
    "shutil.move",
    "shutil.copyfile",
)


class Fault(Exception):
    """What an answer may not be: too long a message, a tag of a stranger, a wrong exit code."""


class Hang(BaseException):
    """Raised by the alarm; no handler of a library catches it."""


class Watcher:
    """Counts, by Python's audit events, what is done beyond reading and computing. It cannot be removed.

    Args:
        home: The only folder that may be written to.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.on = f"{os.path.realpath(home)}{os.sep}", False
        self.seen: Counter[str] = Counter()
        self.words: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in PROCESSES:
            self._note("processes", event)
        elif event in NETWORK:
            self._note("network", event)
        elif event == "import" and str(arguments[0]).partition(".")[0] == MARKER:
            self._note("code", "import")
        elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(self.home):
            self._note("code", "exec")
        elif event == "open":
            path, mode, flags = arguments
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (
                mode is None and isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            )
            if writes and isinstance(path, str | bytes):
                self._changed(path)
        elif event in CHANGES:
            for path in arguments[:2]:
                if isinstance(path, str | bytes):
                    self._changed(path)

    def _changed(self, path: str | bytes) -> None:
        name = os.fsdecode(path)
        if name.endswith(TRACE):
            self._note("code", "a pickle")
        place = os.path.join(os.path.realpath(os.path.dirname(name) or "."), os.path.basename(name))
        if not f"{place}{os.sep}".startswith(self.home) and name != os.devnull:
            self._note("writes", name)

    def _note(self, what: str, words: str) -> None:
        self.seen[what] += 1
        self.words.append(f"{what}: {words}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count, and end what takes longer than `PATIENCE` seconds."""

        def ring(*_: object) -> None:
            raise Hang

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        self.on = True
        try:
            yield
        finally:
            self.on = False
            signal.setitimer(signal.ITIMER_REAL, 0)


def kind_of(error: BaseException) -> str:
    """The kind of a crash: its class and the innermost function of seepage that it went through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/seepage/" in frame.filename]
    if not frames:
        return f"{type(error).__name__}"
    last = frames[-1]
    return f"{type(error).__name__} in {last.filename.rpartition('/seepage/')[2]}:{last.name}"


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


def answered(call: Callable[[], object]) -> str:
    """Call, as the command line would: a sentence is an answer; anything else that is raised goes on.

    Returns:
        `accepted`, `refused`, or `memory` where the limit of this process was reached and the user is known so.
    """
    try:
        call()
    except SeepageError as error:
        check_message(_shown(error))
        return "refused"
    except OSError as error:
        check_message(f"{error.filename}: {error.strerror}")
        return "refused"
    except (MemoryError, RuntimeError) as error:
        if not seepage.cli._is_out_of_memory(error):
            raise
        return "memory"
    return "accepted"


def _shown(error: SeepageError) -> str:
    """What the command line prints of it."""
    out = io.StringIO()
    with redirect_stderr(out), suppress(SystemExit):
        seepage.cli._fail(str(error))
    return out.getvalue()


def command(*words: str) -> tuple[int, str, str]:
    """Run a command in this process; returns its exit code, what it printed and what it complained about.

    Raises:
        Fault: For an exit code that no command has, and for control characters.
        Exception: What would be a traceback.
    """
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
    if os.environ.get("FUZZ_SHOW"):
        print(err, file=sys.stderr)
    if code == 2 and "memory is used up" in err:
        return "memory"
    return "refused" if code == 2 else "accepted"
