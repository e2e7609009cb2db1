"""`benchmarks/fuzz`: readers answer spoiled files with a result or a sentence, and the sandbox sees what it must."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz"

PLANTED = """
import os, socket, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import sandbox, watch
from base import Reader
watch.PATIENCE = 0.5
outside = Path(sys.argv[2]) / "outside.txt"

class Planted(Reader):
    name = "planted"
    def prepare(self):
        self.put("x", "good")
        self.number = None
    def spoil(self, rng):
        self.number = getattr(self, "count", 0)
        self.count = self.number + 1
    def restore(self):
        self.number = None
        super().restore()
    def read(self):
        match self.number:
            case 1: {}["missing"]
            case 2: time.sleep(30)
            case 3: raise watch.SeepageError("x" * 6000 + "\\n" + "a longer story " * 900)
            case 4: subprocess.run([sys.executable, "-c", "0"], check=True)
            case 5: outside.write_text("here")
            case 6:
                try: import fuzz_marker
                except ModuleNotFoundError: pass
            case 7: watch.check_page("<p onclick='pwned()'>x</p>")
            case 8: watch.check_markdown("a <b>tag</b>")
            case 9: watch.check_terminal("\\x1b[2J")
            case 10:
                with socket.socket() as one: one.connect_ex(("127.0.0.1", 9))
            case 11: raise watch.SeepageError("a sentence")

sandbox.READERS["planted"] = Planted
shared = Path(sys.argv[2])
found = sandbox.fuzz("planted", 0, 13, shared, shared)
print(found.inputs, found.accepted, found.refused, sorted(found.kinds.values()), found.hangs)
print(bool(found.processes), found.writes, bool(found.code), bool(found.network))
print(sorted(kind.split(" in ")[0] for kind in found.kinds))
"""


@pytest.mark.slow
def test_the_sandbox_sees_what_is_planted(tmp_path: Path) -> None:
    """Each fault once: a crash, a hang, a process, a file elsewhere, code, three injections, the network.

    It starts a process that imports PyTorch, which takes seconds.
    """
    done = subprocess.run(
        [sys.executable, "-c", PLANTED, str(FUZZ), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    counted, watched, kinds = done.stdout.splitlines()
    # Of thirteen inputs four crash and one hangs; a long message is cut by the command line, so it is refused.
    assert counted == "13 6 2 [1, 1, 1, 1] 1", done.stderr[-2000:]
    assert watched == "True 1 True True"
    assert "KeyError" in kinds
    assert "an injection into Markdown" in kinds


@pytest.mark.slow
def test_every_reader_answers_forty_spoiled_inputs() -> None:
    """A minute of two cores: 26 readers in a process each. `python benchmarks/fuzz --inputs 20000` takes hours."""
    done = subprocess.run(
        [sys.executable, str(FUZZ), "--inputs", "40", "--jobs", "2"],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-6000:]}{done.stderr[-3000:]}"
    assert "inputs 1040, crashes 0, hangs 0, deaths 0, code 0, processes 0, network 0, writes 0" in done.stdout
