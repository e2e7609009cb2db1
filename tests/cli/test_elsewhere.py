"""Started in other ways, and on other systems: as a module, from a shell that completes, without POSIX."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seepage.cli.completing import names_of, recipe_names

Cli = Callable[..., Any]


def seepage(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "seepage", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_the_package_can_be_run_as_a_module(home: Path) -> None:
    found = seepage("--version")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("seepage ")
    wrong = seepage("audit", "--data", "nowhere")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("seepage aud", {"audit"}),
        ("seepage audit --attack inverting", {"inverting_gradients"}),
        ("seepage audit --defense spars", {"sparsify"}),
        ("seepage attack --attack cock", {"cocktail_party"}),
        ("seepage audit cafe/ex", {"cafe/exact"}),
    ],
)
def test_a_shell_completes_commands_and_names(typed: str, offered: set[str]) -> None:
    words = typed.split(" ")
    asked = {"_SEEPAGE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    program = "import sys; sys.argv = ['seepage']; from seepage.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | asked, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0
    assert set(found.stdout.split()) >= offered
    assert "torch" not in found.stderr


def test_what_is_completed_is_what_is_registered() -> None:
    assert names_of("data")("brea") == ["breast_cancer"]
    assert "gaussian_noise" in names_of("defenses")("")
    assert "default" in recipe_names("")
    assert recipe_names("no such") == []


WITHOUT_POSIX = """
import builtins, os, signal, sys
import torch, matplotlib.pyplot, filelock  # these bring what they need on each system
POSIX = set("fcntl resource pwd grp termios tty pty syslog crypt spwd nis readline posix".split())
real = builtins.__import__
def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    who = (globals or {}).get("__name__", "")
    if who.partition(".")[0] == "seepage" and name.partition(".")[0] in POSIX:
        raise ImportError(f"No module named {name!r}, which {who} wants")
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = guarded
for module, names in ((os, "getuid geteuid getgid fork killpg setsid sysconf getloadavg O_NOFOLLOW mkfifo uname"),
                      (signal, "SIGKILL SIGALRM SIGHUP SIGUSR1 SIGPIPE setitimer pthread_sigmask alarm")):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
import importlib, pkgutil, seepage
for found in pkgutil.walk_packages(seepage.__path__, "seepage."):
    if not found.name.startswith("seepage.recorder.") and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
if __name__ == "__main__":
    from seepage.cli import main
    sys.argv = ["seepage", *sys.argv[1:]]
    main()
"""


@pytest.mark.full  # imports everything
def test_nothing_at_start_up_or_in_an_audit_is_posix_only(home: Path) -> None:
    (home / "elsewhere.py").write_text(WITHOUT_POSIX)
    arguments = ["audit", "tiny.toml", "--attack", "linear", "--jobs", "1", "--json", "--out", "run"]
    found = subprocess.run(
        [sys.executable, "elsewhere.py", *arguments],
        cwd=home,
        env=os.environ | {"USERNAME": "me"},  # which Windows has, and PyTorch asks for
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["rows"][0]["status"] == "ok"
    assert (home / "run" / "report.html").stat().st_size
