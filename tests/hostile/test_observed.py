"""Updates that somebody recorded or captured, weights, and what a client states of its privacy."""

import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from small import ARCHITECTURE, CLASSES, SHAPE, small_batch, small_model, small_state, write_observed
from strategies import (
    TRACE,
    Draw,
    chance,
    choose,
    damaged,
    json_lines,
    odd,
    safetensors,
    spoiled_json,
    spoiled_lines,
    spoiled_tensors,
    tensor_file,
    words,
)
from watcher import Sandbox, answered, ran

from seepage import SeepageError, exposure, open_transcript, record
from seepage.attacks import ATTACKS
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.audit.recorded import read_through
from seepage.base.registry import Spec
from seepage.base.storage import read_tensors
from seepage.federation.models.weights import load_weights, read_state
from seepage.federation.transcript.recorded import kind_tensor
from seepage.federation.transcript.simulated import OneRound
from seepage.measure.privacy.ledger import open_entry

ROUND = "rounds/000000.safetensors"


class _Payload:
    """A pickle that makes a folder, were it run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (TRACE,)


def saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def strange() -> tuple[Any, ...]:
    return (
        torch.ones(2, 3).to_sparse(), torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.ones(2, dtype=torch.complex64).conj(), torch.ones(1).expand(2**20), torch.empty(3, device="meta"),
        torch.ones(3, requires_grad=True), torch.nn.Parameter(torch.ones(2)), torch.ones(4)[::2],
        {"inner": torch.ones(2)}, [torch.ones(2)], torch.ones(()), torch.ones(0, 3),
        torch.nn.Linear(2, 2).state_dict(), 3.5, None,
    )  # fmt: skip


@st.composite
def states(draw: Draw) -> dict[str, bytes]:
    """What torch.save wrote: damaged, of strange tensors, or with a pickle that would run."""
    good, kind = small_state(), draw(st.integers(0, 9))
    if kind < 3:
        content = draw(damaged(saved(good)))
    elif kind < 8:
        tensors: dict[object, object] = dict(draw(spoiled_tensors(good)))
        odd_ones = (*strange(), draw(odd))
        one = odd_ones[draw(st.integers(0, len(odd_ones) - 1))]
        if chance(draw, 70):
            tensors[choose(draw, *map(str, tensors), "extra", 3, ("a", "b"), draw(words))] = one
        wholes = (tensors, tensors, tensors, {"state_dict": tensors}, {"model": tensors}, [tensors], one)
        content = saved(wholes[draw(st.integers(0, len(wholes) - 1))])
    else:
        payload = {"w": _Payload()}
        content = choose(draw, pickle.dumps(_Payload()), pickle.dumps(payload), saved(payload))
        content = draw(damaged(content)) if chance(draw, 30) else content
    return {"x.pt": content}


def test_state(sandbox: Sandbox) -> None:
    """state_dict of torch.save"""
    path = sandbox.home / "x.pt"
    sandbox.keep({"x.pt": saved(small_state())})
    sandbox.fuzz(
        states(), lambda: answered(lambda: load_weights(small_model(), read_state(path), CLASSES, "x")), most=60
    )


def test_tensors(sandbox: Sandbox) -> None:
    """safetensors file"""
    path = sandbox.home / "x.safetensors"

    def read() -> None:
        read_tensors(path, ["0.weight", "1.weight"])
        load_weights(small_model(), read_state(path), CLASSES, "x")

    sandbox.keep({"x.safetensors": safetensors(small_state())})
    inputs = tensor_file(small_state()).map(lambda content: {"x.safetensors": content})
    sandbox.fuzz(inputs, lambda: answered(read), most=60)


# --- recorded folders --------------------------------------------------------------------------------------------

CLIENTS = (
    {"use": "fedavg", "lr": 0.1, "epochs": 3, "batch_size": 1}, {"use": "fedavg", "lr": 0.1, "steps": 2},
    {"use": "fedavg", "lr": 1e-320, "steps": 2}, {"use": "fedavg", "lr": 1e30, "steps": 2},
    {"use": "fedprox", "lr": 0.1, "epochs": 1, "mu": 1}, {"use": "fedsgd", "clients": 3},
)  # fmt: skip
DEFENSES = (
    {"use": "gaussian_noise", "sigma": 0.1}, {"use": "laplace_noise", "scale": 0.1}, {"use": "sparsify", "keep": 0.5},
    {"use": "quantize", "bits": 4}, {"use": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0}, {"use": "os:system"},
)  # fmt: skip


def read_all(folder: Path) -> None:
    """Everything that reads a recorded folder: its rounds, what each layer exposes, an attack."""
    seen = open_transcript(folder)
    read_through(seen)
    json.dumps(exposure(seen).table(), allow_nan=False)
    ATTACKS.build(Spec("linear"))(OneRound(seen, 0), seed=0)


@st.composite
def knowledge(draw: Draw, facts: dict[str, Any]) -> dict[str, bytes]:
    facts = dict(facts)
    if chance(draw, 50):
        facts["known"] = choose(draw, *[["defense"]] * 5, ["labels"], [draw(words)], ["defense", "labels"])
    if chance(draw, 30):
        facts["client"] = choose(draw, *CLIENTS)
    if chance(draw, 30):
        facts["defense"] = [choose(draw, *DEFENSES)]
    if chance(draw, 10):
        facts["blocks"] = choose(draw, [[0, 2]], [[0, 2, 3]], [["a", 1]], [[5, 10**9]], [[-1, 1]], [[]])
    # Options and sizes are spoiled more often than the names that all else hangs on.
    keep = ("use", "architecture", "known", "schema", "rounds") if chance(draw, 60) else ()
    return {"knowledge.json": json.dumps(facts).encode() if chance(draw, 10) else draw(spoiled_json(facts, keep))}


def test_facts(sandbox: Sandbox) -> None:
    """knowledge.json: validate, exposure, an attack"""
    write_observed(sandbox.home)
    facts = json.loads(sandbox.keep()["knowledge.json"])
    sandbox.fuzz(knowledge(facts), lambda: answered(lambda: read_all(sandbox.home)), most=60)


@st.composite
def observed(draw: Draw, facts: dict[str, Any], model: dict[str, Any], sent: dict[str, Any]) -> dict[str, bytes]:
    known = draw(st.lists(st.sampled_from(["labels", "indices", "auxiliary"]), max_size=2, unique=True))
    facts, tensors, auxiliary = facts | {"known": known}, dict(sent), {"inputs": torch.rand(3, *SHAPE)}
    if "labels" in known:
        tensors["labels"] = torch.tensor([0, 2])
    if "indices" in known:
        tensors["indices"] = torch.tensor([4, 1])
    if chance(draw, 30):  # weights and their difference, of which a quotient is taken
        facts["client"], tensors = choose(draw, *CLIENTS[:4]), tensors | {"kind": kind_tensor("delta")}
    files = {ROUND: safetensors(tensors)}
    if "auxiliary" in known:
        files["auxiliary.safetensors"] = safetensors(auxiliary)
    kind = draw(st.integers(0, 9))
    if kind < 3:
        files["model.safetensors"] = draw(tensor_file(model))
    elif kind < 5 and "auxiliary" in known:
        files["auxiliary.safetensors"] = draw(tensor_file(auxiliary))
    if kind > 1:
        files[ROUND] = draw(tensor_file(tensors))
    return {**files, "knowledge.json": json.dumps(facts).encode()}


@pytest.mark.full
def test_rounds(sandbox: Sandbox) -> None:
    """tensors of a recorded folder: validate, exposure, an attack"""
    write_observed(sandbox.home)
    facts = json.loads(sandbox.keep()["knowledge.json"])
    model, sent = (read_tensors(sandbox.home / name) for name in ("model.safetensors", ROUND))
    sandbox.fuzz(observed(facts, model, sent), lambda: answered(lambda: read_all(sandbox.home)), most=40)


@pytest.mark.parametrize("kind", ["update", "params"])
def test_the_largest_value_is_named(tmp_path: Path, kind: str) -> None:
    folder = write_observed(tmp_path)
    file = folder / ("model.safetensors" if kind == "params" else ROUND)
    tensors = {name: tensor.clone() for name, tensor in read_tensors(file).items()}
    file.write_bytes(safetensors(tensors | {f"{kind}/2.bias": tensors[f"{kind}/2.bias"] - 1e31}))
    with pytest.raises(SeepageError, match=r"1e\+31 in '2.bias'"):
        open_transcript(folder)[0]


# --- captured files ----------------------------------------------------------------------------------------------


@st.composite
def captures(draw: Draw, good: dict[str, dict[str, Any]]) -> tuple[dict[str, bytes], bool, dict[str, Any]]:
    """Mostly of the right names and shapes, so that they are looked at."""
    by_gradient, how = chance(draw, 40), {"input_shape": SHAPE}
    named = st.lists(st.sampled_from(["before", "gradient" if by_gradient else "after"]), max_size=2, unique=True)
    files = {f"{name}.safetensors": draw(tensor_file(good[name])) for name in draw(named)}
    more = {
        "input_shape": ((9,), (3, 3), (1, 3, 3), (0,), (-1, 3), (2**40, 2), (1,) * 9),
        "num_classes": (CLASSES, 2, 0, -1, 10**9, 10**30),
        "batch_size": (2, 1, 0, -5, 10**6, 10**12, 10**30),
        **({} if by_gradient else {"steps": (1, 2, 7, 0, -1, 10**6, 10**30)}),
    }
    return files, by_gradient, how | {key: choose(draw, *values) for key, values in more.items() if chance(draw, 45)}


def test_captured(sandbox: Sandbox) -> None:
    """captured checkpoints and gradients"""
    model = small_model()
    gradient = dict(record(model, small_batch())[0].update.tensors)
    before = small_state()
    after = {name: tensor - 0.1 * gradient.get(name, torch.zeros(())) for name, tensor in before.items()}
    good = {"before": before, "after": after, "gradient": gradient}
    sandbox.keep({f"{name}.safetensors": safetensors(tensors) for name, tensors in good.items()})
    paths = {name: sandbox.home / f"{name}.safetensors" for name in good}

    def read(by_gradient: bool = False, how: dict[str, Any] = {"input_shape": SHAPE}) -> None:  # noqa: B006
        sent = {"gradient": paths["gradient"]} if by_gradient else {"after": paths["after"], "lr": 0.1}
        out = sandbox.place / "observed"
        observe_files(Capture(before=paths["before"], **sent, architecture=ARCHITECTURE, **how), out)
        exposure(open_transcript(out)).table()

    sandbox.fuzz(captures(good), lambda *given: answered(lambda: read(*given)), writes=True)


# --- what a client states of its privacy -------------------------------------------------------------------------

ENTRY: dict[str, Any] = {
    "schema": 1, "t": 3, "client": "a", "epsilon": 1.5, "delta": 1e-5, "accountant": "rdp", "noise": 1.1, "clip": 1.0,
    "sample_rate": 0.1, "steps": 12, "caveats": ["the sampling is not Poisson"],
}  # fmt: skip


def test_privacy(sandbox: Sandbox) -> None:
    """privacy.json of a recorded folder"""

    def read() -> None:
        if entry := open_entry(sandbox.home):
            entry.line, entry.table()

    sandbox.keep({"privacy.json": json.dumps(ENTRY)})
    sandbox.fuzz(spoiled_json(ENTRY).map(lambda text: {"privacy.json": text}), lambda: answered(read))


@st.composite
def ledgers(draw: Draw) -> tuple[dict[str, bytes], tuple[str, ...]]:
    content = draw(spoiled_lines([ENTRY, ENTRY | {"t": 4}]))
    files = {"ledger/client-a.jsonl": content}
    if chance(draw, 30):
        files[f"ledger/client-{choose(draw, 'b', 'x y', 'ä')}.jsonl"] = content
    gate = ("--fail-if", choose(draw, "spent>1", "spent>1e400"))
    return files, choose(draw, (), ("--json",), gate, ("--json", *gate))


def test_ledger(sandbox: Sandbox) -> None:
    """a client's ledger: seepage prove --of ledger"""
    sandbox.keep({"ledger/client-a.jsonl": json_lines([ENTRY, ENTRY | {"t": 4}])})
    sandbox.fuzz(ledgers(), lambda more=(): ran("prove", "--of", f"ledger:{sandbox.home}", *more))
