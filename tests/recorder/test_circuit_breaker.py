"""A recorder beside a training: no fault of its own stops that, each kind is said once, and its disk stays bounded."""

import doctest
import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage import Architecture, FedAvg, SeepageError, build, exposure, open_transcript
from seepage.attacks.exposure import Exposure
from seepage.recorder import circuit_breaker, recorder
from seepage.recorder.hook import count_of, named_tensors
from seepage.recorder.recorder import Recorder

SHAPE, CLASSES, LR = (1, 8, 8), 4, 0.1
NET = Architecture("fc2", {"hidden": 24})
State = dict[str, torch.Tensor]
FAULTS = [
    OSError(errno.ENOSPC, "No space left on device"),
    PermissionError(errno.EACCES, "Permission denied"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
    MemoryError(),
    ValueError("a bug of ours"),
    SeepageError("a mistake of the user's; correct it"),
]


@pytest.fixture(scope="module")
def states() -> tuple[State, State]:
    """Weights before and after one SGD step of plain PyTorch on one example."""
    model: nn.Module = build(NET, SHAPE, CLASSES)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(0))
    F.cross_entropy(model(inputs), torch.tensor([2])).backward()
    torch.optim.SGD(model.parameters(), lr=LR).step()
    return before, model.state_dict()


def of(folder: Path, **options: Any) -> Recorder:
    return Recorder(
        folder, architecture=NET, input_shape=SHAPE, num_classes=CLASSES, client=FedAvg(lr=LR), **options
    )  # fmt: skip


def raising(error: Exception) -> Callable[..., Any]:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    return fails


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("step", "inner"), [("read", "_read"), ("look", "exposure"), ("write", "save_update")])
def test_each_fault_is_said_once_and_stays_beside_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: Any, error: Exception, step: str, inner: str
) -> None:
    monkeypatch.setattr(Recorder if step == "read" else recorder, inner, raising(error))
    seen, lines = of(tmp_path, audit="inline"), list[str]()
    for t in range(6):
        found = seen.watch(*states, t=t, client=0, examples=1, say=lines.append)
        assert not found.blocked
        assert (found.folder is None) == (step in ("read", "write"))  # what was not looked at is written all the same
        assert (found.exposure is None) == (step in ("read", "look"))  # and the other way round
    ends = not isinstance(error, SeepageError)
    assert len(lines) == 1 + ends
    assert "round 0, client 0" in lines[0]
    assert "round 2, client 0" in lines[-1] or not ends
    assert all(str(error).split(";")[0] in line for line in lines)
    assert bool(seen.breaker.open) == ends
    with pytest.raises(type(error)):
        seen.record(*states, t=7, client=0, examples=1)


ODD = {
    "no arrays": lambda like: np.array([None, "x"], dtype=object),
    "complex": lambda like: like.to(torch.complex64),
    "meta": lambda like: like.to("meta"),
    "sparse": lambda like: like.to_sparse(),
    "quantized": lambda like: torch.quantize_per_tensor(like, 0.1, 0, torch.qint8),
    "empty": lambda like: torch.empty(0),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", [*ODD, "a bug"])
def test_one_client_blinds_the_recorder_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: Any, kind: str
) -> None:
    """Whatever one client sends, and however often, in a row: the next one's update is recorded and looked at."""
    before, after = states
    seen, read = of(tmp_path, audit="inline"), Recorder._read
    make = ODD.get(kind, lambda like: like)
    odd = named_tensors({name: make(tensor) for name, tensor in after.items()})
    if kind == "a bug":
        monkeypatch.setattr(Recorder, "_read", raising(RuntimeError("a message that our code cannot handle")))
    for t in range(5):
        found = seen.watch(before, odd, t=t, client="bad", examples=1, say=lambda words: None)
        assert (found.folder, found.exposure, found.blocked) == (None, None, False)
    monkeypatch.setattr(Recorder, "_read", read)
    found = seen.watch(before, after, t=5, client="good", examples=1)
    assert found.folder is not None
    assert found.exposure is not None
    assert [circuit for circuit in seen.breaker.open if circuit != ("read", "bad")] == []


@pytest.mark.parametrize("rule", [FedAvg(lr=LR, batch_size=4), FedAvg(lr=LR, epochs=10_000, batch_size=1)], ids=repr)
@pytest.mark.parametrize("number", [10**6, 10**12, 1e300, 10**5000], ids=["million", "billions", "float", "digits"])
def test_a_number_of_examples_holds_no_server_up(tmp_path: Path, states: Any, rule: FedAvg, number: float) -> None:
    """A client may claim any: one that cannot be is a fault of its update, and one that can is read at once."""
    seen = Recorder(tmp_path, architecture=NET, input_shape=SHAPE, num_classes=CLASSES, client=rule, block=0)
    seen.watch(*states, t=0, client=0, examples=1)
    began, lines = time.process_time(), list[str]()
    found = seen.watch(*states, t=1, client=0, examples=count_of(number), say=lines.append)
    assert time.process_time() - began < 1
    assert (found.exposure is None) == (found.folder is None) == (number > 10**6)
    assert found.blocked, "the one example that this update reveals is given away whatever number is claimed"
    assert ["which cannot be" in line and len(line) < 300 for line in lines] == [True] * (number > 10**6)


def test_a_success_between_starts_the_count_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: Any) -> None:
    seen, lines, written = of(tmp_path), list[str](), recorder.save_update
    for t in range(8):
        monkeypatch.setattr(recorder, "save_update", written if t % 3 == 2 else raising(ValueError(f"fault {t}")))
        seen.watch(*states, t=t, client=0, say=lines.append)
    assert len(lines) == 1
    assert seen.breaker.open == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002-client-0", "000005-client-0"]


def test_other_places_and_causes_are_other_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: Any) -> None:
    before, after = states
    seen, lines = of(tmp_path), list[str]()
    seen.watch(before, {"strange": after["2.bias"]}, t=0, client=0, say=lines.append)
    for t in (1, 2):
        seen.watch(before, after | {"2.bias": after["2.bias"] * torch.nan}, t=t, client=t, say=lines.append)
    for number in (errno.ENOSPC, errno.EACCES, errno.EACCES):
        monkeypatch.setattr(recorder, "make_private", raising(OSError(number, "cannot")))
        seen.watch(before, after, t=3, client=0, say=lines.append)
    assert len(lines) == 5  # names, NaN, a full disk, no permission; and that writing was given up
    assert "nothing is written anymore" in lines[-1]


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, states: Any) -> None:
    (tmp_path / "file").write_text("in the way")
    seen, lines = of(tmp_path / "file" / "seen", audit="inline", block=0), list[str]()
    for t in range(5):
        found = seen.watch(*states, t=t, client=0, examples=1, say=lines.append)
        assert found.folder is None
        assert found.exposure is not None
        assert found.blocked  # by what it reveals, not by the disk
    assert len(lines) == 2


def test_a_log_that_fails_stops_nothing(tmp_path: Path, states: Any) -> None:
    before, after = states
    found = of(tmp_path).watch(before, {"x": after["2.bias"]}, t=0, client=0, say=raising(OSError("no terminal")))
    assert found == recorder.Recorded(None, None, blocked=False)


def test_what_a_client_leaves_out_is_said_once_of_each_and_in_plain_letters(tmp_path: Path, states: Any) -> None:
    before, after = states
    seen = of(tmp_path)
    lines: list[str] = []
    for t, dropped in enumerate(list(before)[:3]):
        partial = {name: tensor for name, tensor in after.items() if name != dropped}
        for client in ("a", "b\x1b[2J\n"):
            seen.watch(before, partial, t=t, client=client, say=lines.append)
    assert len(lines) == 2, "not one for each set of names"
    assert all(line.isprintable() for line in lines)


def test_rounds_count_from_zero(tmp_path: Path, states: Any) -> None:
    with pytest.raises(SeepageError, match="number the rounds"):
        of(tmp_path).record(*states, t=-1, client=0)


def own_rule(found: Exposure) -> bool:
    raise ZeroDivisionError


@pytest.mark.parametrize(("on_error", "dropped"), [(None, True), ("drop", True), ("pass", False)])
@pytest.mark.parametrize("fails", ["_read", "_look", "rule", "_write"])
def test_what_becomes_of_an_update_that_cannot_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: Any, on_error: str | None, dropped: bool, fails: str
) -> None:
    options = {} if on_error is None else {"on_error": on_error}
    seen = of(tmp_path, block=own_rule if fails == "rule" else 5, **options)
    if fails != "rule":
        monkeypatch.setattr(Recorder, fails, raising(RuntimeError("out of memory")))
    for t in range(5):  # checks are never given up
        found = seen.watch(*states, t=t, client=0, examples=1, say=lambda words: None)
        assert found.blocked == (dropped and fails != "_write")  # a full disk is no failed check


def test_half_a_recording_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: Any) -> None:
    written = recorder.save_update

    def half(*args: Any, **options: Any) -> None:
        written(*args, **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recorder, "save_update", half)
    of(tmp_path).watch(*states, t=0, client=0, say=lambda words: None)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_cannot_be_run_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SeepageError, match="example of shape"):
        Recorder(
            tmp_path, architecture=Architecture(f"{__name__}:broken"), input_shape=(3,), num_classes=2,
            client=FedAvg(lr=LR),
        )  # fmt: skip


def broken(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Linear(5, num_classes)


@pytest.mark.parametrize("names", [("2.weight", "2.bias"), ("4.weight", "4.bias"), ("4.bias",), ("2.weight",)])
def test_parts_of_a_model_look_the_same_in_memory_and_on_disk(
    tmp_path: Path, states: Any, names: tuple[str, ...]
) -> None:
    before, after = states
    seen = of(tmp_path, audit="inline")
    found = seen.record(before, {name: after[name] for name in names}, t=0, client=0, examples=1)
    assert found.folder is not None
    assert found.exposure is not None
    assert set(found.missing) == set(before) - set(names)
    opened = open_transcript(found.folder)
    assert opened[0].update.tensors.keys() == set(names)
    assert all(torch.equal(tensor, after[name] - before[name]) for name, tensor in opened[0].update.tensors.items())
    assert opened[0].withheld == found.missing
    assert all(torch.equal(opened[0].params[name], before[name]) for name in found.missing)
    assert exposure(found.folder).table() == found.exposure.table()
    assert found.exposure.examples == int(names == ("2.weight", "2.bias"))
    assert found.exposure.sent.withheld == found.missing


def test_what_was_written_last_is_kept(tmp_path: Path, states: Any) -> None:
    seen = of(tmp_path, most=2 * of(tmp_path).size)
    for t in range(4):
        seen.record(*states, t=t, client=1)
    seen.record(*states, t=0, client=9)  # of a run that was started again: what was written last is the newest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000-client-9", "000003-client-1"]
    with pytest.raises(SeepageError, match="on_error"):
        of(tmp_path, on_error="ask")


def test_its_own_examples_hold() -> None:
    """The folder of adapters is left out where doctests are collected."""
    found = doctest.testmod(circuit_breaker)
    assert found.failed == 0
    assert found.attempted > 0
