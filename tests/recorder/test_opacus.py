"""The ledger says what a live PrivacyEngine says, over rounds and clients, and is found again beside the recordings."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("opacus", reason="needs seepage[opacus]")

from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from seepage import Architecture, FedAvg, SeepageError, build, exposure
from seepage.cli import main
from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.ledger import LedgerEntry, open_entry, save_entry
from seepage.recorder.opacus import Ledger
from seepage.recorder.recorder import Recorder

# Opacus warns of its ordinary random numbers and of hooks.
pytestmark = pytest.mark.filterwarnings("default")

SHAPE, CLASSES, LR, DELTA = (1, 4, 4), 4, 0.1, 1e-5
NET = Architecture("fc2", {"hidden": 8})


class Client:
    """Plain Opacus: an engine, its optimizer, and rounds of training."""

    def __init__(self, number: int, *, noise: float = 1.0, accountant: str = "rdp", clip: Any = 1.0) -> None:
        draw = torch.Generator().manual_seed(number)
        data = TensorDataset(torch.rand(32, *SHAPE, generator=draw), torch.randint(CLASSES, (32,), generator=draw))
        plain: nn.Module = build(NET, SHAPE, CLASSES)
        self.engine = PrivacyEngine(accountant=accountant)
        self.model, self.optimizer, self.loader = self.engine.make_private(
            module=plain,
            optimizer=torch.optim.SGD(plain.parameters(), lr=LR),
            data_loader=DataLoader(data, batch_size=8, generator=draw),
            noise_multiplier=noise,
            max_grad_norm=clip,
            clipping="per_layer" if isinstance(clip, list) else "flat",
        )

    def trained(self, steps: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Weights before and after some steps."""
        before = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        batches = iter(self.loader)
        for _ in range(steps):
            inputs, labels = next(batches)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(inputs), labels).backward()
            self.optimizer.step()
        return before, self.model.state_dict()


def recorder(folder: Path) -> Recorder:
    rule = FedAvg(lr=LR, batch_size=32)
    return Recorder(folder, architecture=NET, input_shape=SHAPE, num_classes=CLASSES, client=rule, audit="inline")


@pytest.mark.full
def test_epsilon_is_the_engines_over_rounds_and_clients(tmp_path: Path) -> None:
    ledger, seen = Ledger(tmp_path, delta=DELTA), recorder(tmp_path)
    clients = {number: Client(number, noise=0.8 + number) for number in (0, 1)}
    wanted: dict[tuple[int, int], float] = {}
    for t in (1, 2, 3):
        for number, client in clients.items():
            kept = seen.record(*client.trained(2), t=t, client=number, examples=32)
            spent = ledger.record(client.engine, client.optimizer, t=t, client=number, seen=kept)
            wanted[t, number] = client.engine.get_epsilon(DELTA)
            assert spent.epsilon == wanted[t, number]
            assert kept.folder is not None
            assert open_entry(kept.folder) == spent
            stated = exposure(kept.folder)
            assert stated.stated == spent
            assert f"the client states epsilon {spent.epsilon:.3g}" in stated.notes[-1]
    for number in clients:
        rows = ledger.rows(number)
        assert [row["t"] for row in rows] == [1, 2, 3]
        assert [row["epsilon"] for row in rows] == [wanted[t, number] for t in (1, 2, 3)]
        assert [row["steps"] for row in rows] == [2, 4, 6]
        assert [row["recording"] for row in rows] == [f"00000{t}-client-{number}" for t in (1, 2, 3)]
        assert {(row["noise"], row["clip"], row["sample_rate"]) for row in rows} == {(0.8 + number, 1.0, 0.25)}
        # To those who see who took part it is more.
        assert rows[-1]["epsilon"] < epsilon(sigma=0.8 + number, rounds=6, delta=DELTA)
    assert (tmp_path / "ledger").stat().st_mode & 0o77 == 0


def test_leakage_and_epsilon_stand_in_one_line(tmp_path: Path) -> None:
    """Without noise, clipping alone hides nothing: one example in the step is given away, and the line says both."""
    client = Client(0, noise=0.0)
    before = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    # An input whose hidden units are not all off: one in 256 has none on, and is given away by nothing.
    inputs, labels = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1)), torch.tensor([2])
    F.cross_entropy(client.model(inputs), labels).backward()
    client.optimizer.step()
    kept = recorder(tmp_path).record(before, client.model.state_dict(), t=1, client=0, examples=1)
    Ledger(tmp_path).record(client.engine, client.optimizer, t=1, client=0, seen=kept)
    (row,) = Ledger(tmp_path).rows(0)
    assert row["examples_given_away"] == 1
    assert row["epsilon"] is None
    assert row["caveats"] == ["some steps had no noise, so no epsilon holds"]
    assert "reveals 1 of 1" in row["looks"]


@pytest.mark.slow
def test_the_report_of_an_attack_shows_what_was_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(0)
    kept = recorder(tmp_path / "seen").record(*client.trained(2), t=1, client=0, examples=32)
    spent = Ledger(tmp_path / "seen").record(client.engine, client.optimizer, t=1, client=0, seen=kept)
    out = tmp_path / "attacked"
    monkeypatch.setattr(sys, "argv", ["seepage", "attack", str(kept.folder), "--attack", "linear", "--out", str(out)])
    with pytest.raises(SystemExit, match="2"):  # nothing that could be scored
        main()
    assert f"<small>the client states {spent.line}</small>" in (out / "report.html").read_text()


@pytest.mark.parametrize("kind", ["rdp", "prv"])
def test_a_new_engine_each_round_goes_on_counting(tmp_path: Path, kind: str) -> None:
    ledger = Ledger(tmp_path)
    for t in (1, 2, 3):
        client = Client(0, accountant=kind)
        assert ledger.resume(client.engine, client=0) == 2 * (t - 1)
        client.trained(2)
        spent = ledger.record(client.engine, client.optimizer, t=t, client=0)
    whole = RDPAccountant() if kind == "rdp" else PRVAccountant()
    whole.history = [(1.0, 0.25, 6)]
    assert spent.epsilon == whole.get_epsilon(1e-5)
    assert spent.caveats == ()


def test_an_engine_that_starts_anew_is_noticed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for t in (1, 2):
        client = Client(0)
        client.trained(2)
        spent = ledger.record(client.engine, client.optimizer, t=t, client=0)
    assert "made anew" in spent.caveats[0]
    with pytest.raises(SeepageError, match="already counted"):
        ledger.resume(client.engine, client=0)
    with pytest.raises(SeepageError, match="accountant='rdp'"):
        ledger.resume(PrivacyEngine(accountant="prv"), client=0)


def test_what_cannot_be_trusted_is_said(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    weak = Client(0, noise=0.05, accountant="prv")
    nothing = ledger.record(weak.engine, weak.optimizer, t=0, client=0)
    assert (nothing.epsilon, nothing.caveats) == (None, ("no step was counted, so no epsilon can be stated",))
    weak.trained(2)
    spent = ledger.record(weak.engine, weak.optimizer, t=1, client=0)
    assert spent.epsilon > 50
    assert "counted by rdp" in spent.caveats[0]
    assert "vacuous" in spent.caveats[1]
    layers = Client(1, clip=[1.0, 0.5, 1.0, 0.5])
    layers.trained(1)
    assert ledger.record(layers.engine, layers.optimizer, t=1, client=1).clip == pytest.approx(2.5**0.5)
    gaussian = Client(2, accountant="gdp", noise=0.3)
    gaussian.trained(2)
    assert "gdp could not count it" in ledger.record(gaussian.engine, gaussian.optimizer, t=1, client=2).caveats[0]


@pytest.mark.slow
def test_a_line_cut_by_a_kill_is_left_out_and_written_over(tmp_path: Path) -> None:
    ledger, client = Ledger(tmp_path), Client(0)
    for t in (1, 2):
        client.trained(1)
        ledger.record(client.engine, client.optimizer, t=t, client=0)
    path = tmp_path / "ledger" / "client-0.jsonl"
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for size in range(second, len(whole), 40):
        path.write_bytes(whole[:size])
        assert [row["t"] for row in ledger.rows(0)] == [1]
        ledger.record(client.engine, client.optimizer, t=2, client=0)
        assert [json.loads(line)["t"] for line in path.read_text().splitlines()] == [1, 2]
        assert path.read_bytes() == whole
    ledger.record(client.engine, client.optimizer, t=2, client=0)  # a round that was started again
    assert [row["t"] for row in ledger.rows(0)] == [1, 2]


def test_a_statement_of_others_is_read_with_suspicion(tmp_path: Path) -> None:
    spent = LedgerEntry(
        epsilon=2.5, delta=1e-5, accountant="rdp", noise=1.0, clip=1.0, sample_rate=0.1, steps=9, caveats=("one",)
    )
    save_entry(spent, tmp_path)
    assert open_entry(tmp_path) == spent
    assert open_entry(tmp_path / "none") is None
    table = json.loads((tmp_path / "privacy.json").read_text())
    wrong: list[dict[str, Any]] = [
        {"epsilon": -1}, {"epsilon": "2"}, {"delta": None}, {"clip": [1.0]}, {"steps": 1.5}, {"steps": True},
        {"caveats": [1]}, {"caveats": "no"}, {"accountant": None},
    ]  # fmt: skip
    for change in wrong:
        (tmp_path / "privacy.json").write_text(json.dumps(table | change))
        with pytest.raises(SeepageError, match="as a ledger does"):
            open_entry(tmp_path)
    (tmp_path / "privacy.json").write_text(json.dumps({key: table[key] for key in table if key != "epsilon"}))
    with pytest.raises(SeepageError, match="as a ledger does"):
        open_entry(tmp_path)


def test_mistakes_are_said(tmp_path: Path) -> None:
    for delta in (0.0, 1.0, -1.0):
        with pytest.raises(SeepageError, match="delta is in"):
            Ledger(tmp_path, delta=delta)
    if os.geteuid():  # root writes anywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        client = Client(0)
        with pytest.raises(SeepageError, match="cannot make"):
            Ledger(tmp_path / "closed" / "x").record(client.engine, client.optimizer, t=0, client=0)
