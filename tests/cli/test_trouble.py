"""A full disk, no rights, a kill, Ctrl-C, faulty code: what is finished is kept, and nothing is half."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seepage.attacks.search import engine
from seepage.audit import record
from seepage.audit import run as audit
from seepage.base import storage
from seepage.cli.stopping import answer_by_interrupt

Cli = Callable[..., Any]
Refused = Callable[..., str]


class FullDisk:
    """`os.fsync` of a disk that is full after so many files."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, descriptor: int) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("room", [0, 1, 3, 5])
def test_a_disk_that_fills_up_while_recording_leaves_nothing(
    room: int, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.os, "fsync", FullDisk(room))
    message = refused("audit", "tiny.toml", "--jobs", 1)
    assert "No space left on device" in message
    assert "free some space" in message


@pytest.mark.full
@pytest.mark.parametrize("room", [7, 10, 14, 17, 19, 22])
def test_a_disk_that_fills_up_later_leaves_whole_files_and_the_run_goes_on(
    room: int, cli: Cli, audited: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(storage.os, "fsync", FullDisk(room))
        found = cli("audit", "tiny.toml", "--jobs", 1, "--out", "run", "--json", code=2)
    assert not found.out
    assert "No space left on device" in found.err
    whole = files_of(audited) | {"report.html", "grid.png"}
    left = files_of(home / "run")
    assert {path for path in left if "-checkpoint" not in path and not path.endswith("progress.jsonl")} <= whole
    for path in (home / "run").rglob("*.json"):
        json.loads(path.read_text())
    cli("audit", "tiny.toml", "--jobs", 1, "--out", "run")
    assert files_of(home / "run") >= whole
    assert not [path for path in files_of(home / "run") if "checkpoint" in path or ".writing" in path]


def test_too_little_space_is_said_before_anything_is_done(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = storage.shutil.disk_usage("/")
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    assert "has 1 MiB free" in refused("audit", "tiny.toml", "--jobs", 1)


def test_space_is_counted_for_all_cases_before_the_first_is_recorded(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = list[int]()
    monkeypatch.setattr(record, "check_space", lambda folder, most: needed.append(most))
    recipe = (home / "tiny.toml").read_text()
    (home / "two.toml").write_text(recipe + "[[case]]\nname = 'b'\nbatch.count = 3\n")
    cli("audit", "two.toml", "--jobs", 1)
    first, second = needed
    assert second > 0
    assert first * 3 == second * 5  # two updates and the three that follow, then three


def test_a_folder_without_rights_is_a_sentence(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    (home / "locked").mkdir()
    monkeypatch.setattr(Path, "iterdir", denied)
    found = cli("audit", "tiny.toml", "--jobs", 1, "--out", "locked", code=2)
    assert not found.out
    assert found.err == "error: locked: Permission denied; check the path, its permissions and the space on the disk\n"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_used_up_memory_is_a_sentence(error: Exception, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("seepage.audit.simulate.setting.train", train)
    found = cli("audit", "tiny.toml", "--jobs", 1, code=2)
    assert not found.out
    assert found.err == "error: the memory is used up; use a smaller batch, model or image size, or --jobs 1\n"


@pytest.mark.parametrize(
    "solve", [lambda: torch.linalg.cholesky(-torch.eye(2)), lambda: np.linalg.inv(np.zeros((2, 2)))]
)
def test_a_matrix_that_cannot_be_decomposed_is_a_sentence(
    solve: Callable[[], object], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seepage.audit.simulate.setting.train", lambda *arguments, **options: solve())
    found = cli("audit", "tiny.toml", "--jobs", 1, code=2)
    assert not found.out
    assert found.err.startswith("error: a matrix of these numbers cannot be decomposed (")
    assert found.err.count("\n") == 1


def test_a_fault_of_our_own_shows_where_it_is(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*arguments: object, **options: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("seepage.audit.simulate.setting.train", train)
    found = cli("audit", "tiny.toml", "--jobs", 1, code=2)
    assert "in train\n" in found.err
    assert "RuntimeError: a fault" in found.err
    assert found.err.endswith("please report it\n")


OWN = """
from dataclasses import dataclass
import torch
from seepage import Attack, Inapplicable, Reconstruction

@dataclass(frozen=True, kw_only=True)
class Bad(Attack):
    how: str = "raise"
    def run(self, transcript, *, seed, progress):
        shape = transcript.knowledge.input_shape
        if self.how == "raise":
            return {}["nothing"]
        if self.how == "inapplicable":
            raise Inapplicable("sunday", "it is Sunday", "come back on Monday")
        return {
            "nothing": None,
            "not_finite": Reconstruction(torch.full((1, *shape), torch.nan)),
            "shape": Reconstruction(torch.ones(1, 3)),
            "none": Reconstruction(torch.ones(0, *shape)),
            "many": Reconstruction(torch.ones(9, *shape)),
            "huge": Reconstruction(torch.full((1, *shape), 1e30)),
        }[self.how]
"""


@pytest.fixture
def own(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (home / "own.py").write_text(OWN)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    return "own:Bad"


FAULTS = {
    "raise": ("error", "KeyError: 'nothing' (own.py line 12)"),
    "nothing": ("error", "returned a NoneType"),
    "not_finite": ("error", "NaN"),
    "shape": ("error", "shape (3,)"),
    "inapplicable": ("inapplicable", "sunday"),
    "none": ("ok", None),
    "many": ("ok", None),
    "huge": ("ok", None),
}


@pytest.mark.full
@pytest.mark.parametrize("how", FAULTS)
def test_an_attack_that_fails_is_a_row_and_the_others_go_on(how: str, own: str, cli: Cli) -> None:
    status, reason = FAULTS[how]
    arguments = ("--attack", own, "--attack", "linear", "--set", f"attack.how={how}", "--jobs", 1, "--json")
    found = cli("audit", "tiny.toml", *arguments, "--out", "run")
    bad, linear = found.json["rows"]
    assert (bad["attack"], bad["status"], linear["scores"]["exact"]["mean"]) == ("own.Bad", status, 1)
    if reason is not None:
        assert reason in bad["refusal" if how == "inapplicable" else "reason"]
        assert not bad["scores"]
    flags = {flag["name"] for flag in json.loads(Path("run/flags.json").read_text())["flags"]}
    assert ("failed" in flags) == (status == "error")


def test_a_run_in_which_nothing_works_does_not_call_itself_safe(own: str, cli: Cli) -> None:
    result = cli("audit", "tiny.toml", "--attack", own, "--jobs", 1, "--json").json
    assert result["verdict_level"] == "certified"
    assert "1 of 1 examples exactly [2 %, 100 %], as the network was given them, in closed form" in result["verdict"], (
        "whatever attack fails"
    )
    assert "no attack gave a result" in result["verdict"]
    noise = ("--defense=gaussian_noise:sigma=1,clip=1", "--no-undefended", "--out=noisy")
    noisy = cli("audit", "tiny.toml", "--attack", own, *noise, "--jobs", 1, "--json", code=2)
    assert noisy.json["verdict_level"] == "unscored"
    assert noisy.json["verdict"].startswith("NO RESULT")
    assert "no proof of safety" in noisy.json["verdict"]
    cli("audit", "tiny.toml", "--attack", own, "--jobs", 1, "--fail-if", "psnr>20", code=2)


NOISE = ("--attack", "linear", "--defense", "gaussian_noise", "--set", "defense.sigma=10.0", "--jobs", 1)


@pytest.mark.parametrize("known", [(), ("--known", "defense")])
def test_terminal_and_report_say_that_attackers_did_not_know_of_the_defense(cli: Cli, known: tuple[str, ...]) -> None:
    found = cli("audit", "tiny.toml", *NOISE, *known, "--out", "run")
    for shown in (found.out, Path("run/report.html").read_text()):
        words = " ".join(shown.split())
        assert ("The attackers did not know of the defense." in words) is (not known)
        assert re.search(
            r"[Ww]ithout the defense(</dt><dd>| )2 of 2 examples exactly \[16 %, 100 %\], by linear", words
        )
        assert "NOTHING RECOGNIZABLE" in words


def test_a_defended_case_runs_beside_the_undefended_one(cli: Cli) -> None:
    """It runs beside the defended one by default, and reddens no gate: what it gives back is no finding."""
    found = cli("audit", "tiny.toml", *NOISE, "--out", "both", "--fail-if", "recovered>0", "--json")
    assert [(case["name"], case.get("control", False)) for case in found.json["cases"]] == [
        ("case", False), ("case_undefended", True)
    ]  # fmt: skip
    assert [row["scores"]["recovered"]["mean"] for row in found.json["rows"]] == [0.0, 1.0]
    assert found.json["summary"][0]["words"].startswith("0 of 2 examples")


@pytest.mark.full
def test_the_case_beside_a_defended_one_is_in_no_comparison_and_no_evidence(cli: Cli) -> None:
    found = cli("audit", "tiny.toml", *NOISE, "--out", "both", "--fail-if", "recovered>0", "--json")
    again = cli("audit", "both/recipe.toml", "--out", "again", "--json").json
    assert [row["scores"]["psnr"]["mean"] for row in again["rows"]] == [
        row["scores"]["psnr"]["mean"] for row in found.json["rows"]
    ]
    alone = cli("audit", "tiny.toml", *NOISE, "--out", "alone", "--fail-if", "recovered>0", "--no-undefended", code=2)
    assert "--allow-inconclusive" in alone.err
    assert alone.out.startswith("INCONCLUSIVE. Nothing in this run shows that these attacks work here")
    cli("compare", "alone", "both")
    cli("evidence", "pack", "both", "--out", "pack")
    evidence = json.loads(Path("pack/evidence.json").read_text())
    assert evidence["maximum_risk"]["hits"] == evidence["average_risk"]["hits"] == 0
    assert "leaks" not in [one["state"] for one in evidence["findings"]]
    assert 'failures="0" errors="0"' in Path("pack/junit.xml").read_text()
    cli("evidence", "pack", "alone", "--out", "other")
    assert 'failures="0" errors="1"' in Path("other/junit.xml").read_text()
    assert "<strong>INCONCLUSIVE.</strong>" in Path("other/annex.html").read_text()


def test_ctrl_c_is_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(audit, "run", interrupted)
    found = cli("audit", "tiny.toml", code=130)
    assert not found.out
    assert "the same command goes on from there" in found.err


LONG = ("tiny.toml", "--all", "--set", "attack.steps=400", "--json", "--out")


@pytest.mark.full
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_stopped_by_ctrl_c_goes_on_from_its_checkpoint(jobs: int, cli: Cli, home: Path) -> None:
    child = start(home, "audit", *LONG, "run", "--jobs", str(jobs))
    until(lambda: any(home.glob("run/attacks/*/*/*-checkpoint.json")), child)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, "")
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not (home / "run/result.json").exists()
    kept = saved(home)
    resumed = cli("audit", *LONG, "run", "--jobs", 1).json
    assert resumed["finished_earlier"] is False
    for t in kept:
        assert steps(home / "run", t).count(4) == 1, "it went on, and did not begin anew"
    whole = cli("audit", *LONG, "whole", "--jobs", 1).json
    assert [row["scores"]["psnr"]["mean"] for row in resumed["rows"]] == [
        row["scores"]["psnr"]["mean"] for row in whole["rows"]
    ]


@pytest.fixture
def hearing() -> Iterator[None]:
    """Hear Ctrl-C, also where the tests run as a shell's background job, which does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


STOPPED = pytest.mark.parametrize(
    ("sent", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)


@STOPPED
@pytest.mark.usefixtures("hearing")
@pytest.mark.parametrize("command", ["audit", "frontier", "attack", "reproduce"])
def test_a_signal_stops_every_long_command(
    command: str, sent: int, code: int, word: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: object, **options: object) -> None:
        os.kill(os.getpid(), sent)
        raise AssertionError("it went on")

    before = signal.getsignal(sent)
    monkeypatch.setattr("seepage.cli.terminal.progress_bar", stopped)  # with which the work begins
    given = {"audit": "tiny.toml", "frontier": "frontier", "attack": ".", "reproduce": "cafe/table-3"}[command]
    found = cli(command, given, "--quiet", code=code)
    assert not found.out
    assert found.err == f"{word}; what is finished is kept, and the same command goes on from there\n"
    assert signal.getsignal(sent) is before


@STOPPED
@pytest.mark.usefixtures("hearing")
def test_a_number_of_an_attack_cut_short_is_no_result(
    sent: int, code: int, word: str, cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine returns what it has after a `KeyboardInterrupt`, which a function of a figure took for all there is."""

    def stopped(*arguments: object) -> None:
        os.kill(os.getpid(), sent)

    monkeypatch.setattr(engine._MatchingRun, "advance", stopped)
    found = cli("reproduce", "fedleak/figure-6", "--quiet", code=code)
    assert found.err.partition(";")[0] == word
    assert files_of(home) == {"tiny.toml"}


def test_sigterm_that_came_as_ctrl_c_is_143_all_the_same(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Ray, which makes exit code 1 of anything else."""

    def terminated(*arguments: object, **options: object) -> None:
        answer_by_interrupt()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # which is not heard anymore
        raise KeyboardInterrupt

    monkeypatch.setattr(audit, "run", terminated)
    found = cli("audit", "tiny.toml", code=143)
    assert found.err.partition(";")[0] == "terminated"


@pytest.mark.full
@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["the process alone", "its whole group"])
def test_a_run_stopped_by_sigterm_ends_its_workers_and_goes_on_later(
    kill: Callable[[int, int], None], cli: Cli, home: Path
) -> None:
    child = start(home, "audit", *LONG, "run", "--jobs", "2")
    until(lambda: any(home.glob("run/attacks/*/*/*-checkpoint.json")) and group(child.pid) != [], child)
    kill(child.pid, signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (143, "")
    assert err.endswith("terminated; what is finished is kept, and the same command goes on from there\n")
    assert "Traceback" not in err
    assert group(child.pid) == []
    assert not (home / "run/result.json").exists()
    kept = saved(home)
    assert cli("audit", *LONG, "run", "--jobs", 1).json["finished_earlier"] is False
    for t in kept:
        assert steps(home / "run", t).count(4) == 1, "it went on, and did not begin anew"


@pytest.mark.full
def test_no_worker_outlives_a_killed_run(home: Path) -> None:
    child = start(home, "audit", *LONG, "run", "--jobs", "2", "--set", "attack.steps=20000")
    until(lambda: any(home.glob("run/attacks/*/*/*-checkpoint.json")) and group(child.pid) != [], child)
    child.kill()
    child.communicate(timeout=30)  # ends when the last process that holds the pipe has ended
    assert group(child.pid) == []


def saved(home: Path) -> list[int]:
    """Rounds with a checkpoint or an end; another may have been stopped between its report and its checkpoint."""
    found = [t for t in range(2) if any(home.glob(f"run/attacks/*/*/{t:06d}*.json"))]
    assert found != []
    return found


def start(home: Path, *arguments: str) -> "subprocess.Popen[str]":
    """The program itself, in a process group of its own, which hears Ctrl-C even where the tests do not."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "seepage.cli", *arguments]
    # A signal that is ignored here, as in a job that a shell put into the background, would be ignored there too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, cwd=home, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, before)


def until(condition: Callable[[], bool], child: "subprocess.Popen[str]") -> None:
    ends = time.monotonic() + 100
    while not condition():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < ends, "took too long"
        time.sleep(0.02)


def group(leader: int) -> list[int]:
    """Python processes of a process group that are alive."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == leader and fields[0] != "Z" and b"spawn_main" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def steps(run: Path, t: int) -> list[int]:
    """How far the attack on round `t` said it was, line by line."""
    events = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    return [event["done"] for event in events if event["round"] == t and event["attack"] == "inverting_gradients"]


def test_a_progress_line_cut_short_does_not_stop_a_run(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(path: Path, record: object) -> None:
        with path.open("a") as file:
            file.write('{"case": "case", "att\n[3]\n{"case": 1}\n')

    monkeypatch.setattr("seepage.audit.attempt.append_line", damaged)
    found = cli("audit", "tiny.toml", "--out", "run", "--jobs", 1, "--all")
    assert "Traceback" not in found.err
    assert (home / "run/progress.jsonl").stat().st_size


def test_no_attack_changes_the_number_of_threads(cli: Cli) -> None:
    before = torch.get_num_threads()
    cli("audit", "tiny.toml", "--attack", "linear", "--jobs", 1)
    assert torch.get_num_threads() == before


SEEPAGE = [sys.executable, "-c", "import sys; sys.argv[0] = 'seepage'; from seepage.cli import main; main()"]


@pytest.mark.parametrize("arguments", [["list"], ["list", "attacks"]])
@pytest.mark.full
def test_a_pipe_that_nobody_reads_is_not_the_gate_s_code(arguments: list[str]) -> None:
    """Also where all that is printed fits into the buffer, and is written at the very end only."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run([*SEEPAGE, *arguments], stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.full
def test_a_closed_stdout_leaves_the_exit_code_alone() -> None:
    words = " ".join(f"'{word}'" for word in SEEPAGE[:2]) + f' "{SEEPAGE[2]}"'
    for arguments, code in (("list", 0), ("report nosuch", 2)):
        done = subprocess.run(f"{words} {arguments} >&-", shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
