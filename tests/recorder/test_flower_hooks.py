"""The Flower hooks, called with hand-made messages and a grid of our own: no engine runs."""

import logging
import random
import sys
import tempfile
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.federated import CLASSES, LR, NET, SHAPE, batch_of, without_engine

pytest.importorskip("flwr", reason="needs seepage[flower]")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Strategy

import seepage
from seepage import SeepageError, attack, build, open_transcript, score
from seepage.base.storage import append_line
from seepage.federation.defenses import Compose, GaussianNoise, Quantize, Soteria, Sparsify
from seepage.measure.privacy.ledger import LedgerEntry, open_entry
from seepage.recorder.flower_hooks import AuditedStrategy, defense_mod, recording_mod
from seepage.recorder.opacus import Ledger
from seepage.recorder.recorder import Recorder

pytestmark = pytest.mark.filterwarnings("default")


identity = pytest.fixture(autouse=True)(without_engine)


def recorder(folder: Path, **options: Any) -> Recorder:
    rule = seepage.FedAvg(lr=LR, batch_size=64)
    return Recorder(folder, architecture=NET, input_shape=SHAPE, num_classes=CLASSES, client=rule, **options)


def record_of(state: dict[str, torch.Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in state.items()})


def state_of(record: ArrayRecord) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def initial() -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in build(NET, SHAPE, CLASSES).state_dict().items()}


def train(message: Message, context: Context, n: int = 1) -> Message:
    """A client of plain PyTorch: one SGD step."""
    model = build(NET, SHAPE, CLASSES)
    model.load_state_dict(state_of(message.content["arrays"]))
    batch = batch_of(int(context.node_config["partition-id"]), n)
    F.cross_entropy(model(batch.inputs), batch.labels).backward()
    torch.optim.SGD(model.parameters(), lr=LR).step()
    content = {"arrays": record_of(dict(model.state_dict())), "metrics": MetricRecord({"num-examples": n})}
    return Message(RecordDict(content), reply_to=message)


def context_of(client: int) -> Context:
    return Context(1, 1000 + client, {"partition-id": client}, RecordDict(), {})


def question(kind: str = "train", t: int = 3, client: int = 0) -> Message:
    content = {"arrays": record_of(initial()), "config": ConfigRecord({"server-round": t})}
    return Message(RecordDict(content), dst_node_id=1000 + client, message_type=kind)


def doubled(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod like those of differential privacy: what goes on from here is not what the client computed."""
    reply = call_next(message, context)
    before, after = state_of(message.content["arrays"]), state_of(reply.content["arrays"])
    reply.content["arrays"] = record_of({name: before[name] + 2 * (after[name] - before[name]) for name in after})
    return reply


def sent(folder: Path) -> dict[str, torch.Tensor]:
    return open_transcript(folder)[0].update.tensors


def difference(message: Message, reply: Message) -> dict[str, torch.Tensor]:
    before, after = state_of(message.content["arrays"]), state_of(reply.content["arrays"])
    return {name: after[name] - before[name] for name in after}


@pytest.mark.parametrize("outermost", [True, False])
def test_the_first_mod_sees_what_leaves_the_client(tmp_path: Path, outermost: bool) -> None:
    hook = recording_mod(recorder(tmp_path))
    app = ClientApp(mods=[hook, doubled] if outermost else [doubled, hook])
    app.train()(train)
    message = question()
    reply = app(message, context_of(0))
    kept = sent(tmp_path / "000003-client-0")
    left = difference(message, reply)
    factor = 1 if outermost else 2  # put last it would keep what the client computed, and not what it sent
    assert kept.keys() == left.keys()
    for name in kept:
        torch.testing.assert_close(factor * kept[name], left[name], rtol=1e-6, atol=1e-7)
        assert torch.equal(kept[name], left[name]) or not outermost


def test_a_recording_of_the_mod_is_attacked(tmp_path: Path) -> None:
    reply = recording_mod(recorder(tmp_path))(question(client=5), context_of(5), train)
    plain = train(question(client=5), context_of(5))
    assert reply.content["arrays"] == plain.content["arrays"]
    assert score(attack(tmp_path / "000003-client-5", "linear"), batch_of(5)).psnr > 60


def test_the_mod_keeps_training_messages_of_its_rounds_alone(tmp_path: Path) -> None:
    hook = recording_mod(recorder(tmp_path), every=2)
    for kind, t in (("evaluate", 2), ("train", 3), ("train", 4), ("train.other", 6)):
        hook(question(kind, t), context_of(0), train)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000004-client-0", "000006-client-0"]


def test_the_mod_passes_errors_on(tmp_path: Path) -> None:
    def fails(message: Message, context: Context) -> Message:
        return Message(Error(1, "no data"), reply_to=message)

    assert recording_mod(recorder(tmp_path))(question(), context_of(0), fails).error.reason == "no data"
    assert not list(tmp_path.iterdir())


def test_the_mod_blocks_and_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    hook = recording_mod(recorder(tmp_path, audit="inline", block=0))
    with caplog.at_level(logging.INFO, logger="flwr"):
        reply = hook(question(), context_of(0), train)
    assert reply.has_error()
    assert "blocked" in reply.error.reason
    assert "reveals 1 of 1 example exactly" in caplog.text
    many = hook(question(), context_of(0), lambda message, context: train(message, context, 60))
    assert many.has_content()


def test_what_does_not_fit_is_logged_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True

    def other(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": record_of({"strange": torch.ones(3)})}), reply_to=message)

    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert recording_mod(recorder(tmp_path))(question(), context_of(0), other).has_content()
    assert "not recorded" in caplog.text
    assert recording_mod(recorder(tmp_path, block=0))(question(), context_of(0), other).has_error()


FAULTS = [OSError(28, "No space left on device"), RuntimeError("can't allocate memory"), ValueError("a bug of ours")]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("step", ["_read", "_look", "_write", "watch"])
def test_no_fault_stops_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, step: str, fault: Exception
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise fault

    logging.getLogger("flwr").propagate = True
    monkeypatch.setattr(Recorder, step, fails)
    context = context_of(0)
    for t in range(5):
        hook = recording_mod(recorder(tmp_path, audit="inline"))  # as in a process of its own for each round
        reply = hook(question(t=t), context, train)
        assert reply.content["arrays"] == train(question(t=t), context_of(0)).content["arrays"]
    assert caplog.text.count("are not said") == 1


@pytest.mark.parametrize(("options", "dropped"), [({}, True), ({"on_error": "pass"}, False)])
@pytest.mark.parametrize("step", ["_read", "_look", "_write", "watch"])
def test_what_a_failed_check_drops_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], dropped: bool, step: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Recorder, step, fails)
    checked = step == "_write"  # a full disk is no failed check
    hook = recording_mod(recorder(tmp_path, block=60, **options))
    audited = AuditedStrategy(FedAvg(fraction_evaluate=0.0), recorder(tmp_path, block=60, **options))
    for t in range(4):
        reply = hook(question(t=t), context_of(0), train)
        assert reply.has_error() == (dropped and not checked)
        list(audited.configure_train(t, record_of(initial()), ConfigRecord(), Nodes()))
        messages = [question(client=client) for client in range(3)]
        replies = [train(one, context_of(one.metadata.dst_node_id - 1000)) for one in messages]
        found, _ = audited.aggregate_train(t, replies)
        assert (found is None) == (dropped and not checked)


def test_no_fault_stops_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logging.getLogger("flwr").propagate = True
    without = trained(strategy("avg"))
    for owner, name in ((AuditedStrategy, "_held"), (AuditedStrategy, "_sampled"), (AuditedStrategy, "_look")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_, **__: {}["a bug of ours"])
            found = trained(AuditedStrategy(strategy("avg"), recorder(tmp_path, audit="inline")))
        assert all(torch.equal(found[key], tensor) for key, tensor in without.items())
    assert caplog.text.count("are not said") == 3


def test_strange_messages_stop_nothing(tmp_path: Path) -> None:
    message = question()
    message.content["config"] = ConfigRecord({"server-round": "third"})
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    assert recording_mod(recorder(tmp_path))(message, context, train).has_content()
    assert recording_mod(recorder(tmp_path, block=60))(message, context, train).has_error()
    assert recording_mod(recorder(tmp_path, block=60, on_error="pass"))(message, context, train).has_content()


def test_epsilon_is_said_beside_what_leaks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    spent = LedgerEntry(epsilon=2.5, delta=1e-5, accountant="rdp", noise=1.0, clip=1.0, sample_rate=0.1, steps=4)
    ledger = Ledger(tmp_path)

    def private(message: Message, context: Context) -> Message:
        (tmp_path / "ledger").mkdir(exist_ok=True)
        append_line(tmp_path / "ledger" / "client-7.jsonl", {"t": 3, "history": [], **spent.table()})
        return train(message, context)

    with caplog.at_level(logging.INFO, logger="flwr"):
        recording_mod(recorder(tmp_path, audit="inline"), ledger=ledger)(question(client=7), context_of(7), private)
    line = next(line for line in caplog.text.splitlines() if "reveals 1 of 1 example exactly" in line)
    assert "epsilon 2.5 (delta 1e-05; 4 steps by rdp" in line
    assert open_entry(tmp_path / "000003-client-7") == spent
    assert ledger.rows(7)[-1]["recording"] == "000003-client-7"


class Nodes:
    """A grid with clients in this process."""

    def get_node_ids(self) -> list[int]:
        return [1000, 1001, 1002]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [train(one, context_of(one.metadata.dst_node_id - 1000)) for one in messages if _is_train(one)]


def _is_train(message: Message) -> bool:
    return message.metadata.message_type == "train"


def strategy(kind: str) -> Strategy:
    options: dict[str, Any] = {"fraction_evaluate": 0.0, "min_train_nodes": 2, "fraction_train": 0.7}
    return {"avg": FedAvg, "avgm": FedAvgM, "adam": FedAdam}[kind](**options)


def trained(chosen: Strategy) -> dict[str, torch.Tensor]:
    random.seed(7)
    np.random.seed(7)
    return state_of(chosen.start(Nodes(), record_of(initial()), num_rounds=4).arrays)


@pytest.mark.parametrize("kind", ["avg", "avgm", "adam"])
def test_training_is_the_same_bit_by_bit(tmp_path: Path, kind: str) -> None:
    seen = recorder(tmp_path, audit="inline", block=lambda found: False)
    with_it = trained(AuditedStrategy(strategy(kind), seen, every=2, clients=1))
    without = trained(strategy(kind))
    assert with_it.keys() == without.keys()
    assert all(torch.equal(with_it[name], without[name]) for name in without)
    rounds = sorted(path.name[:6] for path in tmp_path.iterdir())
    assert rounds == ["000002", "000004"]  # every other round, one client of two each


def test_the_strategy_records_what_each_client_sent(tmp_path: Path) -> None:
    trained(AuditedStrategy(strategy("avg"), recorder(tmp_path)))
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 8  # 4 rounds, 2 of 3 clients
    for folder in (folders[0], folders[-1]):
        node = int(folder.name.rpartition("-")[2])
        assert score(attack(folder, "linear"), batch_of(node - 1000)).psnr > 50


def npy(content: Any, **options: Any) -> bytes:
    with BytesIO() as file:
        np.save(file, content, **options)
        return file.getvalue()


def spoiled(data: bytes, stype: str = "numpy.ndarray") -> ArrayRecord:
    """The arrays of a client that writes what it likes where Flower has the bytes of an array."""
    like = initial()
    return ArrayRecord(
        {n: Array(dtype="float32", shape=tuple(t.shape), stype=stype, data=data) for n, t in like.items()}
    )


HUGE = (
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(117)
    + b"\n"
)
HOSTILE: dict[str, Callable[[], ArrayRecord]] = {
    "a pickle": lambda: spoiled(npy(np.array([print], dtype=object), allow_pickle=True)),
    "no array": lambda: spoiled(b"\x80\x04cos\nsystem\n"),
    "empty": lambda: spoiled(b""),
    "eight terabytes": lambda: spoiled(HUGE),
    "of another kind": lambda: spoiled(npy(np.zeros(3)), "torch.tensor"),
    "text": lambda: spoiled(npy(np.array(["x" * 99]))),
    "complex": lambda: record_of({name: tensor.to(torch.complex64) for name, tensor in initial().items()}),
    "NaN": lambda: record_of({name: tensor * torch.nan for name, tensor in initial().items()}),
    "3e38": lambda: record_of({name: torch.full_like(tensor, 3e38) for name, tensor in initial().items()}),
    "other names": lambda: record_of({f"../{name}\x1b": tensor for name, tensor in initial().items()}),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("block", [None, lambda found: False], ids=["records", "blocks"])
def test_a_hostile_reply_hides_no_honest_one(tmp_path: Path, kind: str, block: Any) -> None:
    """Round after round of it: the honest client is recorded and let through, and what blocks drops the other."""
    audited = AuditedStrategy(FedAvg(fraction_evaluate=0.0), recorder(tmp_path, audit="inline", block=block))
    passed: list[int] = []
    audited.strategy.aggregate_train = lambda t, replies: (passed.extend(r.metadata.src_node_id for r in replies), None)
    for t in range(1, 6):
        messages = [question(t=t, client=client) for client in (0, 1)]
        audited._sent = {1000 + client: dict(record_of(initial())) for client in (0, 1)}
        bad, good = (train(one, context_of(one.metadata.dst_node_id - 1000)) for one in messages)
        bad.content["arrays"] = HOSTILE[kind]()
        bad.content["metrics"] = MetricRecord({"num-examples": 10**15})
        audited.aggregate_train(t, [bad, bad, bad, good])
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        f"{t:06d}-client-1001" for t in range(1, 6)
    ]
    assert passed.count(1001) == 5
    assert passed.count(1000) == (15 if block is None else 0)


def test_a_blocked_reply_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Blocking one of the clients gives the mean of the others."""
    logging.getLogger("flwr").propagate = True
    looked: list[int] = []

    def second(found: object) -> bool:
        looked.append(1)
        return len(looked) == 2

    audited = AuditedStrategy(FedAvg(fraction_evaluate=0.0), recorder(tmp_path, block=second))
    messages = [question(client=client) for client in range(3)]
    random.seed(1)
    chosen = list(audited.configure_train(3, record_of(initial()), ConfigRecord(), Nodes()))
    assert {one.metadata.dst_node_id for one in chosen} == {1000, 1001, 1002}
    replies = [train(one, context_of(one.metadata.dst_node_id - 1000)) for one in messages]
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found, _ = audited.aggregate_train(3, replies)
    assert "node 1001 was blocked" in caplog.text
    alone, _ = FedAvg().aggregate_train(3, [replies[0], replies[2]])
    assert found == alone


def test_a_defense_changes_the_difference(tmp_path: Path) -> None:
    message = question()
    plain, exact = train(message, context_of(0)), difference(message, train(message, context_of(0)))
    reply = defense_mod(Sparsify(keep=0.25))(message, context_of(0), train)
    left = difference(message, reply)
    for name, tensor in left.items():
        kept = tensor.abs() > 1e-6
        assert int(kept.sum()) <= max(1, round(0.25 * tensor.numel()))
        torch.testing.assert_close(tensor[kept], exact[name][kept], rtol=1e-4, atol=1e-6)
    assert reply.content["metrics"] == plain.content["metrics"]


@pytest.mark.parametrize("case", ["two records", "none sent out", "another name"])
def test_what_cannot_be_defended_does_not_leave(case: str) -> None:
    message = question()
    if case == "none sent out":
        del message.content["arrays"]

    def client(message: Message, context: Context) -> Message:
        reply = train(question(), context)
        if case == "two records":
            reply.content["more"] = record_of(initial())
        if case == "another name":
            reply.content["arrays"] = record_of(initial() | {"adapter.weight": torch.ones(2)})
        return reply

    with pytest.raises(SeepageError, match="held back"):
        defense_mod(Sparsify(keep=0.25))(message, context_of(0), client)


@pytest.mark.parametrize("kind", ["evaluate", "train"])
def test_replies_without_arrays_pass_a_defense(kind: str) -> None:
    message = question(kind)
    reply = Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)
    assert defense_mod(Sparsify(keep=0.25))(message, context_of(0), lambda *_: reply) is reply
    error = Message(Error(1, "no data"), reply_to=message)
    assert defense_mod(Sparsify(keep=0.25))(message, context_of(0), lambda *_: error) is error


def test_a_defense_draws_anew_unless_it_is_seeded() -> None:
    def left(seed: int | None, t: int = 3) -> torch.Tensor:
        hook = defense_mod(Compose((GaussianNoise(sigma=0.1), Quantize(bits=16))), seed=seed)
        return difference(question(t=t), hook(question(t=t), context_of(0), train))["2.weight"]

    assert torch.equal(left(1), left(1))
    assert not torch.equal(left(1), left(1, t=4))
    assert not torch.equal(left(None), left(None))
    assert 0.05 < float(left(1).std()) < 0.2


def test_statistics_of_batch_norm_go_out_as_they_are() -> None:
    state = {"bn.weight": torch.ones(4), "bn.running_mean": torch.ones(4), "bn.num_batches_tracked": torch.tensor(3)}

    def client(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": record_of(state)}), reply_to=message)

    start = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    message = Message(RecordDict({"arrays": record_of(start)}), dst_node_id=1, message_type="train")
    found = state_of(defense_mod(GaussianNoise(sigma=1.0), seed=0)(message, context_of(0), client).content["arrays"])
    assert not torch.equal(found["bn.weight"], state["bn.weight"])
    assert torch.equal(found["bn.running_mean"], state["bn.running_mean"])
    assert int(found["bn.num_batches_tracked"]) == 3


def test_mistakes_are_said(tmp_path: Path) -> None:
    with pytest.raises(SeepageError, match="needs more than the update"):
        defense_mod(Compose((GaussianNoise(sigma=1.0), Soteria(ratio=0.5))))
    with pytest.raises(SeepageError, match="every must be"):
        recording_mod(recorder(tmp_path), every=0)
    with pytest.raises(SeepageError, match="clients must be"):
        AuditedStrategy(FedAvg(), recorder(tmp_path), clients=0)


def test_the_example_client_records_what_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "examples" / "flower"
    if not folder.is_dir():
        pytest.skip("the examples are not here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(folder)
    from recorded import CLASSES as classes
    from recorded import NET as net
    from recorded import SHAPE as shape
    from recorded.client import app

    content = {"arrays": record_of(dict(build(net, shape, classes).state_dict()))}
    message = Message(RecordDict(content), dst_node_id=5, message_type="train")
    assert app(message, context_of(1)).has_content()
    kept = open_transcript(tmp_path / "seepage-flower" / "client" / "000000-client-1")
    assert kept[0].batch_size == 4
