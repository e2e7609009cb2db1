"""The recorder: what it writes is what `seepage attack` reads, its disk is bounded, and the truth stays where it is."""

import doctest
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage import (
    Architecture,
    Batch,
    FedAvg,
    FedSGD,
    SeepageError,
    attack,
    build,
    exposure,
    open_transcript,
    open_truth,
    score,
)
from seepage.attacks.exposure import Exposure
from seepage.recorder import recorder as module
from seepage.recorder.recorder import Recorder

SHAPE, CLASSES = (1, 8, 8), 4
NET = Architecture("fc2", {"hidden": 24})
LR = 0.1


def step(n: int, seed: int = 0, decay: float = 0.0) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Batch]:
    """Weights before and after one SGD step of plain PyTorch, and the batch."""
    model: nn.Module = build(NET, SHAPE, CLASSES, seed=seed)
    batch = Batch(torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed)), torch.arange(n) % CLASSES)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    F.cross_entropy(model(batch.inputs), batch.labels).backward()
    torch.optim.SGD(model.parameters(), lr=LR, weight_decay=decay).step()
    return before, model.state_dict(), batch


def recorder(folder: Path, **options: object) -> Recorder:
    plain = {"architecture": NET, "input_shape": SHAPE, "num_classes": CLASSES, "client": FedAvg(lr=LR)}
    return Recorder(folder, **(plain | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"client": FedSGD(), "lr": LR}], ids=["fedavg", "fedsgd"])
def test_a_recording_is_attacked_like_any_other(tmp_path: Path, options: dict[str, object]) -> None:
    before, after, batch = step(1)
    found = recorder(tmp_path / "seen", private=tmp_path / "own", **options)
    done = found.record(before, after, t=3, client=12, examples=1)
    assert (done.exposure, done.blocked) == (None, False)
    assert done.folder == tmp_path / "seen" / "000003-client-12"
    assert score(attack(done.folder, "linear"), batch).psnr > 60
    assert (tmp_path / "seen").stat().st_mode & 0o77 == 0
    truth = found.keep_truth(batch, t=3, client=12)
    assert torch.equal(open_truth(truth)[0].inputs, batch.inputs)
    assert truth.stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("options", [{}, {"client": FedSGD(), "lr": LR}], ids=["fedavg", "fedsgd"])
def test_weight_decay_hides_nothing_from_the_gate(tmp_path: Path, options: dict[str, object]) -> None:
    """It was taken for part of the gradient, of which no row was a multiple of an example then: nothing was blocked."""
    before, after, batch = step(2, decay=5e-4)
    done = recorder(tmp_path, block=0, **options).record(before, after, t=0, client=0, examples=2)
    assert done.blocked
    assert done.exposure.examples == 2
    assert done.folder is not None
    update, plain = open_transcript(done.folder)[0].update, step(2)
    assert set(update.decayed) == set(before)
    assert update.rate == (LR if options else None)
    said = json.loads((done.folder / "knowledge.json").read_text())["inferred"]["weight decay"]
    assert said.startswith("5e-05 of 4.weight, by what all its rows together moved")
    assert (", so about 0.0005 if" in said) == bool(options)
    unit = -LR if options else 1.0
    for name, tensor in update.tensors.items():
        assert torch.allclose(tensor * unit, plain[1][name] - plain[0][name], atol=2e-7), name
    assert score(attack(done.folder, "linear"), batch).psnr > 60


def test_a_head_that_alone_shrinks_hides_nothing_from_the_gate(tmp_path: Path) -> None:
    """What decay did not touch is left as it is: a decay made up there would hide rows that give examples away."""
    model: nn.Module = build(NET, SHAPE, CLASSES, seed=0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    F.cross_entropy(model(torch.rand(2, *SHAPE)), torch.tensor([0, 3])).backward()
    first, last = list(model.parameters())[:2], list(model.parameters())[2:]
    torch.optim.SGD([{"params": last, "weight_decay": 5e-3}, {"params": first}], lr=LR).step()
    done = recorder(tmp_path, block=0).record(before, model.state_dict(), t=0, client=0, examples=2)
    assert done.blocked
    assert done.folder is not None
    assert set(open_transcript(done.folder)[0].update.decayed) == {"4.weight", "4.bias"}


def test_numbers_that_overflowed_beside_weight_decay_are_refused_in_a_sentence(tmp_path: Path) -> None:
    before, after, _ = step(2, decay=5e-4)
    after["2.weight"][0, 0] = float("nan")
    with pytest.raises(SeepageError, match="NaN"):
        recorder(tmp_path, block=0).record(before, after, t=0, client=0, examples=2)


def test_arrays_that_are_only_numbered_are_taken_in_order(tmp_path: Path) -> None:
    before, after, _ = step(1)
    numbered = [{str(i): tensor for i, tensor in enumerate(state.values())} for state in (before, after)]
    seen = recorder(tmp_path)
    named = seen.record(before, after, t=0, client=0, examples=1).folder
    plain = seen.record(*numbered, t=0, client=1, examples=1).folder
    assert named is not None
    assert plain is not None
    assert exposure(named).table() == exposure(plain).table()


def test_the_oldest_go_when_the_disk_is_full(tmp_path: Path) -> None:
    before, after, _ = step(1)
    folder = tmp_path / "seen"
    size = recorder(folder).size
    seen = recorder(folder, most=3 * size)
    (tmp_path / "seen").mkdir()
    (folder / "mine.txt").write_text("not a recording")
    for t in range(6):
        seen.record(before, after, t=t, client=0, examples=1)
        assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 3 * size
    assert sorted(path.name for path in folder.iterdir()) == [*(f"00000{t}-client-0" for t in (3, 4, 5)), "mine.txt"]


def test_the_oldest_go_also_after_a_million_rounds_and_with_names(tmp_path: Path) -> None:
    before, after, _ = step(1)
    seen = recorder(tmp_path, most=2 * recorder(tmp_path).size)
    for t, client in ((999_999, "site-b"), (1_000_000, "../site"), (1_000_000, "site a")):
        seen.record(before, after, t=t, client=client, examples=1)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == 2
    assert all(re.fullmatch(r"1000000-client-[0-9a-f]{16}", name) for name in left)


def test_the_client_may_tell_its_local_steps(tmp_path: Path) -> None:
    before, after, _ = step(1)
    rule = FedAvg(lr=LR, epochs=5)
    seen = recorder(tmp_path, client=rule)
    for t, steps, wanted in ((0, None, rule), (1, 3, replace(rule, steps=3)), (2, 0, rule)):
        folder = seen.record(before, after, t=t, client=0, examples=1, steps=steps).folder
        assert folder is not None
        assert open_transcript(folder).knowledge.client == wanted
    folder = recorder(tmp_path, client=FedSGD(), lr=LR).record(before, after, t=3, client=0, steps=3).folder
    assert folder is not None
    assert open_transcript(folder).knowledge.client == FedSGD()


@pytest.mark.parametrize(("n", "blocked"), [(1, True), (60, False)])
def test_what_gives_away_too_much_is_blocked(tmp_path: Path, n: int, blocked: bool) -> None:
    before, after, _ = step(n)
    found = recorder(tmp_path, block=0, client=FedAvg(lr=LR, batch_size=64)).record(
        before, after, t=0, client=0, examples=n, keep=False
    )
    assert found.folder is None
    assert found.blocked == blocked
    assert not list(tmp_path.iterdir())


def test_a_rule_of_ones_own_decides(tmp_path: Path) -> None:
    def many_labels(found: Exposure) -> bool:
        return any(len(one.evidence["present"]) > 1 for one in found.of("labels"))

    before, after, _ = step(1)
    assert not recorder(tmp_path, block=many_labels).record(before, after, t=0, client=0, examples=1).blocked
    assert recorder(tmp_path, block=0).blocks(None)
    assert not recorder(tmp_path).blocks(None)


def test_mistakes_are_said(tmp_path: Path) -> None:
    before, after, batch = step(1)
    with pytest.raises(SeepageError, match="learning rate is known"):
        recorder(tmp_path, client=FedSGD())
    with pytest.raises(SeepageError, match="one recording"):
        recorder(tmp_path, most=10)
    with pytest.raises(SeepageError, match="'none' or 'inline'"):
        recorder(tmp_path, audit="sometimes")
    with pytest.raises(SeepageError, match="keeps no truth"):
        recorder(tmp_path).keep_truth(batch, t=0, client=0)
    with pytest.raises(SeepageError, match="does not fit the model"):
        recorder(tmp_path).record(before, {"other": after["2.bias"]}, t=0, client=0)
    with pytest.raises(SeepageError, match="NaN"):
        recorder(tmp_path).record(before, after | {"2.bias": after["2.bias"] / 0}, t=0, client=0)


def test_its_own_example_holds() -> None:
    """The folder of adapters is left out where doctests are collected."""
    found = doctest.testmod(module)
    assert found.failed == 0
    assert found.attempted > 0


def test_a_list_of_arrays_takes_its_names_from_the_model_or_from_names(tmp_path: Path) -> None:
    """Flower's oldest form: as many arrays as are trained, and none of them has a name."""
    architecture = Architecture("fc2", {"hidden": 8, "frozen": ["2.*"]})
    before = build(architecture, (1, 4, 4), 3).state_dict()
    head = {"0": before["4.weight"], "1": before["4.bias"]}
    moved = {number: tensor + 1 for number, tensor in head.items()}
    given = {"architecture": architecture, "input_shape": (1, 4, 4), "num_classes": 3, "client": FedAvg(lr=0.1)}
    found = Recorder(tmp_path / "a", **given).record(head, moved, t=0, client=0, examples=1)
    assert found.folder is not None
    seen = open_transcript(found.folder)[0]
    assert set(seen.update.tensors) == {"4.weight", "4.bias"}
    assert all(torch.allclose(tensor, torch.ones_like(tensor)) for tensor in seen.update.tensors.values())
    turned = Recorder(tmp_path / "b", **given, names=["4.bias", "4.weight"])
    arrays = {"0": before["4.bias"], "1": before["4.weight"]}
    again = turned.record(arrays, {"0": arrays["0"] + 2, "1": arrays["1"]}, t=0, client=0, examples=1)
    assert again.folder is not None
    sent = open_transcript(again.folder)[0].update.tensors
    assert torch.allclose(sent["4.bias"], torch.full((3,), 2.0))
    assert not sent["4.weight"].any()
    with pytest.raises(SeepageError, match=r"names=.*'top'"):
        Recorder(tmp_path / "c", **given, names=["top"])


def test_layers_that_stay_with_the_client_are_its_own(tmp_path: Path) -> None:
    architecture = Architecture("fc2", {"hidden": 8})
    before = {n: t for n, t in build(architecture, (1, 4, 4), 3).state_dict().items() if n.startswith("2.")}
    given = {"architecture": architecture, "input_shape": (1, 4, 4), "num_classes": 3, "client": FedAvg(lr=0.1)}
    recorder = Recorder(tmp_path, **given, audit="inline")
    found = recorder.record(before, {n: t + 1 for n, t in before.items()}, t=0, client=0, examples=1)
    assert found.folder is not None
    assert found.exposure.sent.personal == ("4.bias", "4.weight")
    assert open_transcript(found.folder)[0].personal == {"4.weight", "4.bias"}
