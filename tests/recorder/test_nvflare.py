"""NVFlare's filter: called with real contexts and shareables, and in a job of two clients on its simulator."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.federated import CLASSES, LR, NET, SHAPE, batch_of
from tests.helpers.traps import caught, trapped

pytest.importorskip("nvflare", reason="needs seepage[nvflare]")

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants
from safetensors.torch import load_file

import seepage
from seepage import SeepageError, attack, build, open_transcript, score
from seepage.base.storage import append_line
from seepage.measure.privacy.ledger import LedgerEntry, open_entry
from seepage.recorder.nvflare import RecordingFilter
from seepage.recorder.opacus import Ledger
from seepage.recorder.recorder import Recorder

pytestmark = pytest.mark.filterwarnings("default")

Arrays = dict[str, np.ndarray[Any, Any]]


def recorder(folder: Path, **options: Any) -> Recorder:
    rule = seepage.FedAvg(lr=LR, batch_size=64, epochs=3)
    return Recorder(folder, architecture=NET, input_shape=SHAPE, num_classes=CLASSES, client=rule, **options)


def initial() -> Arrays:
    return {name: tensor.numpy().copy() for name, tensor in build(NET, SHAPE, CLASSES).state_dict().items()}


def stepped(arrays: Arrays, client: int, n: int = 1) -> Arrays:
    """Plain PyTorch: one SGD step of a client."""
    model = build(NET, SHAPE, CLASSES)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    batch = batch_of(client, n)
    F.cross_entropy(model(batch.inputs), batch.labels).backward()
    torch.optim.SGD(model.parameters(), lr=LR).step()
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def context(name: str, peer: str) -> FLContext:
    found, other = FLContext(), FLContext()
    found.set_prop("__identity_name__", name, private=False, sticky=False)
    other.set_prop("__identity_name__", peer, private=False, sticky=False)
    found.set_peer_context(other)
    return found


def task(arrays: Arrays, t: int = 3) -> Shareable:
    data = DXO(DataKind.WEIGHTS, data=arrays).to_shareable()
    data.set_header(AppConstants.CURRENT_ROUND, t)
    return data


def reply(kind: str, arrays: dict[str, Any], **meta: Any) -> Shareable:
    return DXO(kind, data=arrays, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1, "examples": 1} | meta).to_shareable()


class Site:
    """What a runner does with a filter: the event when the task's data are there, then the result's filters."""

    def __init__(self, hook: RecordingFilter, *, server: bool = False) -> None:
        self.hook, self.server = hook, server

    def give(self, data: Shareable, client: str = "site-1") -> None:
        own = context("server", client) if self.server else context(client, "server")
        own.set_prop(FLContextKey.TASK_DATA, data, private=True, sticky=False)
        direction = FilterKey.OUT if self.server else FilterKey.IN
        own.set_prop(FLContextKey.FILTER_DIRECTION, direction, private=True, sticky=False)
        self.hook.handle_event(EventType.AFTER_TASK_DATA_FILTER, own)

    def take(self, result: Shareable, client: str = "site-1") -> Shareable:
        own = context("server", client) if self.server else context(client, "server")
        direction = FilterKey.IN if self.server else FilterKey.OUT
        own.set_prop(FLContextKey.FILTER_DIRECTION, direction, private=True, sticky=False)
        return self.hook.process(result, own)


def unchanged(found: Shareable, wanted: Shareable) -> bool:
    own, other = from_shareable(found), from_shareable(wanted)
    same = all(np.array_equal(own.data[name], other.data[name]) for name in other.data)
    return same and own.data.keys() == other.data.keys() and own.meta == other.meta and own.data_kind == other.data_kind


@pytest.mark.parametrize("server", [False, True], ids=["client", "server"])
@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_an_update_is_recorded_and_passed_on_as_it_is(tmp_path: Path, kind: str, server: bool) -> None:
    site = Site(RecordingFilter(recorder(tmp_path), examples="examples"), server=server)
    before = initial()
    after = stepped(before, 1)
    sent = after if kind == DataKind.WEIGHTS else {name: after[name] - before[name] for name in after}
    site.give(task(before))
    kept = {name: array.copy() for name, array in sent.items()}
    out = site.take(reply(kind, sent))
    assert unchanged(out, reply(kind, kept))
    assert all(out["DXO"]["data"][name] is array for name, array in sent.items())
    folder = tmp_path / "000003-client-site-1"
    seen = open_transcript(folder)
    assert (seen[0].batch_size, seen.knowledge.client.steps) == (1, 1)  # the client's word, not the recorder's epochs
    for name, tensor in seen[0].update.tensors.items():
        assert np.array_equal(tensor.numpy(), after[name] - before[name])
        assert np.array_equal(seen[0].params[name].numpy(), before[name])
    assert score(attack(folder, "linear"), batch_of(1)).psnr > 50


def test_a_client_that_trains_in_place_is_recorded_all_the_same(tmp_path: Path) -> None:
    site, arrays = Site(RecordingFilter(recorder(tmp_path))), initial()
    given = {name: array.copy() for name, array in arrays.items()}
    site.give(task(arrays))
    for name, array in stepped(given, 1).items():
        arrays[name][...] = array
    site.take(reply(DataKind.WEIGHTS, arrays))
    update = open_transcript(tmp_path / "000003-client-site-1")[0].update.tensors
    assert all(np.array_equal(update[name].numpy(), arrays[name] - given[name]) for name in update)
    assert any(bool(tensor.any()) for tensor in update.values())


def test_other_numbers_shapes_and_torch_tensors_are_understood(tmp_path: Path) -> None:
    site, before = Site(RecordingFilter(recorder(tmp_path)), server=True), initial()
    after = stepped(before, 2)
    wrapped: dict[str, Any] = {f"module.{name}": torch.from_numpy(array).double() for name, array in after.items()}
    frozen = {name: array.astype(np.float16) for name, array in before.items()}
    for array in frozen.values():
        array.setflags(write=False)
    site.give(task(frozen))
    site.take(reply(DataKind.WEIGHTS, wrapped))
    found = open_transcript(tmp_path / "000003-client-site-1")[0]
    for name, tensor in found.update.tensors.items():
        assert tensor.dtype == torch.float32
        assert np.array_equal(tensor.numpy(), after[name] - before[name].astype(np.float16).astype(np.float32))


def test_the_server_tells_clients_and_rounds_apart(tmp_path: Path) -> None:
    site, before = Site(RecordingFilter(recorder(tmp_path), every=2), server=True), initial()
    for t in (1, 2):
        for client in ("site-1", "../../b"):
            site.give(task(before, t), client)
        for client in ("../../b", "site-1"):
            site.take(reply(DataKind.WEIGHTS, stepped(before, len(client))), client)
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == "000002-client-site-1"
    assert len(list(tmp_path.iterdir())) == 2
    assert not list(tmp_path.parent.glob("*client-b"))


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (lambda after: reply(DataKind.WEIGHTS, {"strange": np.ones(3)}), "does not fit"),
        (lambda after: reply(DataKind.WEIGHTS, after, PROCESSED_ALGORITHM="HE"), "went through 'HE'"),
        (lambda after: reply(DataKind.WEIGHTS, dict.fromkeys(after, b"secret")), "no array of numbers"),
        (lambda after: reply(DataKind.WEIGHTS, after | {"2.bias": after["2.bias"] * np.nan}), "NaN"),
    ],
)
def test_what_cannot_be_read_is_logged_and_passed_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, result: Any, why: str
) -> None:
    for options, blocked in (({}, False), ({"block": 0}, True)):
        site = Site(RecordingFilter(recorder(tmp_path, **options)))
        site.give(task(initial()))
        sent = result(stepped(initial(), 1))
        out = site.take(sent)
        assert (out.get_return_code() != ReturnCode.OK) == blocked
        assert blocked or out is sent
    assert why in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("server", [False, True], ids=["client", "server"])
@pytest.mark.parametrize("step", ["_read", "_look", "_write", "watch"])
def test_no_fault_stops_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, server: bool, step: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(Recorder, step, fails)
    site = Site(RecordingFilter(recorder(tmp_path, audit="inline")), server=server)
    for t in range(5):
        site.give(task(initial(), t))
        sent = reply(DataKind.WEIGHTS, stepped(initial(), 1))
        assert site.take(sent) is sent
    assert caplog.text.count("are not said") == 1


def test_a_model_in_parts_is_recorded_in_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = initial()
    after = stepped(before, 1)
    for t, kind in ((3, DataKind.WEIGHTS), (4, DataKind.WEIGHT_DIFF)):
        site = Site(RecordingFilter(recorder(tmp_path), examples="examples"))
        site.give(task(before, t))
        moved = {name: after[name] - before[name] if kind == DataKind.WEIGHT_DIFF else after[name] for name in after}
        site.take(reply(kind, {name: moved[name] for name in ("2.bias", "2.weight")}))
        found = open_transcript(tmp_path / f"00000{t}-client-site-1")[0].update.tensors
        assert found.keys() == {"2.weight", "2.bias"}
        assert all(np.array_equal(tensor.numpy(), after[name] - before[name]) for name, tensor in found.items())
    assert caplog.text.count("2 trained parameters were not returned ('4.weight', '4.bias')") == 2  # of two recorders


def test_epsilon_is_said_beside_what_leaks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spent = LedgerEntry(epsilon=2.5, delta=1e-5, accountant="rdp", noise=1.0, clip=1.0, sample_rate=0.1, steps=4)
    ledger = Ledger(tmp_path)
    (tmp_path / "ledger").mkdir()
    append_line(tmp_path / "ledger" / "client-site-1.jsonl", {"t": 3, "history": [], **spent.table()})
    hook = RecordingFilter(recorder(tmp_path, audit="inline"), examples="examples", ledger=ledger)
    site = Site(hook)
    with caplog.at_level("INFO"):
        for t in (3, 4):
            site.give(task(initial(), t))
            site.take(reply(DataKind.WEIGHTS, stepped(initial(), 1)))
    lines = [line for line in caplog.text.splitlines() if "reveals 1 of 1 example exactly" in line]
    assert ["epsilon 2.5" in line for line in lines] == [True, False]  # the client wrote no line of round 4
    assert open_entry(tmp_path / "000003-client-site-1") == spent
    assert ledger.rows("site-1")[-1]["examples_given_away"] == 1


def test_what_gives_away_too_much_is_held_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site, before = Site(RecordingFilter(recorder(tmp_path, audit="inline", block=0), examples="examples")), initial()
    site.give(task(before))
    out = site.take(reply(DataKind.WEIGHTS, stepped(before, 1)))
    assert out.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
    assert "DXO" not in out
    assert "was blocked" in caplog.text
    site.give(task(before))
    assert site.take(reply(DataKind.WEIGHTS, stepped(before, 1, 60), examples=60)).get_return_code() == ReturnCode.OK
    # An update whose start was not seen cannot be looked at.
    assert site.take(reply(DataKind.WEIGHTS, before)).get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR


def test_other_messages_pass(tmp_path: Path) -> None:
    site = Site(RecordingFilter(recorder(tmp_path, block=0)))
    for other in (make_reply(ReturnCode.EXECUTION_EXCEPTION), DXO(DataKind.METRICS, data={"a": 1}).to_shareable()):
        site.give(other)
        assert site.take(other) is other
    assert not list(tmp_path.iterdir())


def test_mistakes_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SeepageError, match="every must be"):
        RecordingFilter(recorder(tmp_path), every=0)
    (tmp_path / "nothing_here.py").write_text("recorder = 3")
    monkeypatch.syspath_prepend(tmp_path)
    for required in (False, True):
        hook = RecordingFilter("nothing_here:recorder", required=required)
        panics = list[str]()
        monkeypatch.setattr(hook, "system_panic", lambda reason, fl_ctx, to=panics: to.append(reason))
        hook.handle_event(EventType.START_RUN, context("site-1", "server"))
        assert ["is no Recorder" in why for why in panics] == [True] * required
        site, sent = Site(hook), reply(DataKind.WEIGHTS, initial())
        site.give(task(initial()))
        assert site.take(sent) is sent
        assert len(panics) == required


MINE = """
from pathlib import Path
import torch, torch.nn.functional as F
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg
from safetensors.numpy import save_file
import seepage
from seepage import Architecture, build
from seepage.recorder.recorder import Recorder

SHAPE, CLASSES, LR, NET = (1, 8, 8), 4, 0.1, Architecture("fc2", {"hidden": 16})
PLACE = Path(PLACE)

def recorder_at(side):
    rule = seepage.FedAvg(lr=LR, batch_size=64)
    return Recorder(PLACE / side, architecture=NET, input_shape=SHAPE, num_classes=CLASSES, client=rule)

on_client, on_server = recorder_at("client"), recorder_at("server")

class Trainer(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        data = from_shareable(shareable).data
        number = int(fl_ctx.get_identity_name().rpartition("-")[2])
        model = build(NET, SHAPE, CLASSES)
        model.load_state_dict({name: torch.from_numpy(array) for name, array in data.items()})
        draw = torch.Generator().manual_seed(number)
        inputs, labels = torch.rand(1, *SHAPE, generator=draw), torch.randint(CLASSES, (1,), generator=draw)
        F.cross_entropy(model(inputs), labels).backward()
        torch.optim.SGD(model.parameters(), lr=LR).step()
        moved = {name: tensor.numpy() - data[name] for name, tensor in model.state_dict().items()}
        return DXO(DataKind.WEIGHT_DIFF, data=moved, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1, "n": 1}).to_shareable()

class Server(FedAvg):
    def __init__(self, num_clients=2, num_rounds=2):
        super().__init__(num_clients=num_clients, num_rounds=num_rounds, persistor_id="")
    def load_model(self):
        first = {name: tensor.numpy() for name, tensor in build(NET, SHAPE, CLASSES).state_dict().items()}
        return FLModel(params=first, current_round=0, start_round=0, total_rounds=self.num_rounds)
    def save_model(self, model):
        save_file(dict(model.params), PLACE / "final.safetensors")
"""
JOB = """
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from seepage.recorder.nvflare import RecordingFilter
from mine import Server, Trainer

job = FedJob(name="recorded", min_clients=2)
job.to_server(Server())
result = {"filter_type": FilterType.TASK_RESULT, "tasks": ["train"]}
job.to_server(RecordingFilter("mine:on_server", examples="n"), **result)
for site in ("site-1", "site-2"):
    job.to(Trainer(), site, tasks=["train"])
    job.to(RecordingFilter("mine:on_client", examples="n"), site, **result)
raise SystemExit(job.simulator_run(WORKSPACE, threads=2))
"""


def averaged(rounds: int) -> Arrays:
    """The same federation, without any framework."""
    state = initial()
    for _ in range(rounds):
        parts = [stepped(state, client) for client in (1, 2)]
        state = {name: state[name] + sum(part[name] - state[name] for part in parts) / 2 for name in state}
    return state


def test_two_clients_on_the_simulator(tmp_path: Path) -> None:
    """With `PYTHONSAFEPATH`, as the page says, the processes it starts run nothing of the current folder."""
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    mark = trapped(stranger)
    (tmp_path / "mine.py").write_text(MINE.replace("Path(PLACE)", f"Path({str(tmp_path)!r})"))
    (tmp_path / "job.py").write_text(JOB.replace("WORKSPACE", repr(str(tmp_path / "workspace"))))
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")],
        cwd=stranger,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    logs = ran.stdout[-3000:] + ran.stderr[-3000:]
    assert ran.returncode == 0, logs
    assert caught(mark) == ""
    names = [f"00000{t}-client-site-{number}" for t in (0, 1) for number in (1, 2)]
    for side in ("client", "server"):
        assert sorted(path.name for path in (tmp_path / side).iterdir()) == names, logs
    for name in names:
        own, other = (open_transcript(tmp_path / side / name)[0] for side in ("client", "server"))
        assert all(torch.equal(own.update.tensors[key], tensor) for key, tensor in other.update.tensors.items())
        assert all(torch.equal(own.params[key], tensor) for key, tensor in other.params.items())
        assert score(attack(tmp_path / "server" / name, "linear"), batch_of(int(name[-1]))).psnr > 50
    final, wanted = load_file(tmp_path / "final.safetensors"), averaged(2)
    for key, array in wanted.items():
        torch.testing.assert_close(final[key], torch.from_numpy(array), rtol=1e-5, atol=1e-6)


@pytest.mark.slow  # NVFlare's simulator, with its processes
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_blocked_reply_ends_the_simulation_unless_the_workflow_ignores_it(tmp_path: Path, goes_on: bool) -> None:
    """The example that site-1 reveals is held back; the model is then that of site-2 alone, or the run fails."""
    mine = MINE.replace("Path(PLACE)", f"Path({str(tmp_path)!r})").replace(
        "client=rule)", "client=rule, block=(lambda found: True) if side == 'blocked' else None)"
    )
    mine += "\nblocking = recorder_at('blocked')\n"
    mine = mine.replace('persistor_id="")', f'persistor_id="", ignore_result_error={goes_on})').replace(
        "num_rounds=2", "num_rounds=1"
    )
    job = JOB.replace("WORKSPACE", repr(str(tmp_path / "workspace")))
    job = job.replace('RecordingFilter("mine:on_client"', 'RecordingFilter(f"mine:{NAMES[site]}"')
    job = job.replace("from mine", "NAMES = {'site-1': 'blocking', 'site-2': 'on_client'}\nfrom mine")
    (tmp_path / "mine.py").write_text(mine)
    (tmp_path / "job.py").write_text(job)
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    logs = ran.stdout + ran.stderr
    assert "the update was blocked and does not go on" in logs
    assert ("Aborting current RUN" in logs) is not goes_on
    # `SimEnv` says it in a sentence: "Simulation failed with return code 2".
    assert ran.returncode == (0 if goes_on else 2), logs[-3000:]
    # A run that is aborted still writes a model where site-2 happened to reply first.
    if goes_on:
        final = tmp_path / "final.safetensors"
        assert final.exists(), logs[-3000:]
        for key, array in stepped(initial(), 2).items():
            torch.testing.assert_close(load_file(final)[key], torch.from_numpy(array), rtol=1e-5, atol=1e-6)
