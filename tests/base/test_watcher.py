"""The watcher of hostile inputs notices what no file may cause, and a sandbox counts what its inputs did."""

import importlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import watcher as watch
from hypothesis import strategies as st
from strategies import MARKER, TRACE
from watcher import Fault, Sandbox, answered, check_markdown, check_message, check_page, check_terminal, ran

from seepage.errors import SeepageError


def connect() -> None:
    with socket.socket() as one:
        one.connect_ex(("127.0.0.1", 9))


def run_a_file() -> None:
    Path("planted.py").write_text("1")
    exec(compile("1", str(Path("planted.py").resolve()), "exec"))


def import_the_marker() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(MARKER)


def say(text: str) -> Callable[[], None]:
    def raises() -> None:
        raise SeepageError(text)

    return raises


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        (lambda: subprocess.run([sys.executable, "-S", "-c", "0"], check=True), "a process: subprocess.Popen"),
        (connect, "the network: socket.connect"),
        (lambda: Path("inside.txt").write_text("here"), "a file here: inside.txt"),
        (lambda: Path("../outside.txt").write_text("here"), "a file elsewhere: ../outside.txt"),
        (lambda: Path("..", TRACE).mkdir(), "code: a pickle; a file elsewhere"),
        (import_the_marker, "code: import"),
        (run_a_file, "code: exec"),
        (lambda: time.sleep(30), "a hang"),
        (lambda: check_page("<p onclick='pwned()'>x</p>"), "an injection into a page: p onclick"),
        (lambda: check_page("<p>x</p><script>1</script>"), "an injection into a page: script"),
        (lambda: check_markdown("a <b>tag</b>"), "an injection into Markdown"),
        (lambda: check_terminal("\x1b[2J"), "a control character"),
        (lambda: check_message("x" * 1001), "a message too long"),
    ],
)
def test_each_fault_is_seen(
    sandbox: Sandbox, planted: Callable[[], object], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 0.3)

    def spoiled(files: object = None) -> str:
        return "accepted" if files is None else answered(planted)

    with pytest.raises(Fault, match=fault):
        sandbox.fuzz(st.just(({}, "spoiled")), spoiled, most=1)
    assert not sandbox.done


def test_a_sentence_is_an_answer_and_a_traceback_is_none(sandbox: Sandbox) -> None:
    answers: list[Callable[[], object]] = [
        lambda: None, say("a sentence"), say("long " * 9000), Path("none").read_text, lambda: {}["missing"]
    ]  # fmt: skip

    def answer(number: int = 0) -> str:
        return answered(answers[number])

    sandbox.fuzz(st.integers(0, 3).map(lambda number: ({}, number)), answer, most=40)
    assert sandbox.counts == {"accepted": 1, "refused": 3}, "hypothesis tries no input twice"
    with pytest.raises(KeyError):
        sandbox.fuzz(st.just(({}, 4)), answer, most=1)


def test_what_an_input_changed_is_brought_back(sandbox: Sandbox) -> None:
    sandbox.keep({"a": "1", "b/c": "2"})

    def answer() -> str:
        found = {name: path.read_text() for name, path in sandbox.files().items()}
        assert found in ({"a": "1", "b/c": "2"}, {"a": "1", "d": "4"})
        (sandbox.home / "a").write_text("9")
        (sandbox.home / "e").write_text("5")
        Path("beside").mkdir()
        return "accepted"

    sandbox.fuzz(st.sampled_from([{"b/c": None, "d": "4"}, {}]), answer, most=9, writes=True)
    assert sandbox.counts == {"accepted": 2}


@pytest.mark.parametrize("code", [0, 1, 2, 3, "words"])
def test_a_command_may_end_with_three_codes_only(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, code: int | str
) -> None:
    monkeypatch.setattr("seepage.cli.main", lambda: sys.exit(code))
    if code in (0, 1, 2):
        assert ran("list") == ("refused" if code == 2 else "accepted")
        return
    with pytest.raises(Fault, match="the exit code"):
        ran("list")
