"""Softmax regression from zero weights: counts and class sums are read off one step."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from seepage import Architecture, attack, exposure
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.types import Reconstruction, Transcript

CLASSES, VALUES = 10, 64


def softmax_regression() -> nn.Module:
    model = nn.Linear(VALUES, CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.normal_(model.bias, std=0.3, generator=torch.Generator().manual_seed(3))
    return model


def sparse(n: int) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.rand(n, VALUES, generator=draw) * (torch.rand(n, VALUES, generator=draw) > 0.6)


@pytest.fixture(autouse=True)
def _own_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def captured(folder: Path, inputs: Tensor, labels: Tensor, *, uniform: bool, lr: float = 0.1) -> Transcript:
    model = softmax_regression()
    if uniform:
        nn.init.zeros_(model.bias)  # type: ignore[arg-type]
    save_file(model.state_dict(), folder / "before.safetensors")
    optimizer = torch.optim.SGD(model.parameters(), lr)
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    save_file(model.state_dict(), folder / "after.safetensors")
    capture = Capture(
        before=folder / "before.safetensors",
        after=folder / "after.safetensors",
        lr=lr,
        architecture=Architecture("test_class_sums:softmax_regression"),
        input_shape=(VALUES,),
        batch_size=len(inputs),
    )
    observe_files(capture, folder / "observed")
    return open_transcript(folder / "observed", trust=True)


def off(found: Reconstruction, inputs: Tensor, labels: Tensor) -> float:
    assert found.labels is not None
    order = [int((labels == label).nonzero()) for label in found.labels]
    return float((found.inputs - inputs[order]).abs().max())


@pytest.mark.parametrize("uniform", [True, False])
def test_of_one_example_of_each_class_all_are_read_over_the_background(tmp_path: Path, *, uniform: bool) -> None:
    """With equal probabilities the last bias has no gradient but rounding."""
    inputs, labels = sparse(CLASSES), torch.arange(CLASSES).flip(0)
    seen = captured(tmp_path, inputs, labels, uniform=uniform)
    found = attack(seen, "linear")
    assert len(found) == CLASSES
    assert off(found, inputs, labels) < 1e-5
    # A row that all examples share is not seen.
    assert found.certified is not None
    assert not found.certified.any()
    leak = exposure(seen).of("labels")[0]
    assert leak.evidence["counts"] == (1,) * CLASSES


def test_a_row_that_all_share_is_the_background_that_is_not_read(tmp_path: Path) -> None:
    inputs, labels = sparse(CLASSES) / 2 + 0.25, torch.arange(CLASSES)
    found = attack(captured(tmp_path, inputs, labels, uniform=True), "linear")
    assert off(found, inputs - inputs.amin(0), labels) < 1e-5


def test_a_class_that_is_not_there_proves_the_others(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    inputs, labels = torch.rand(7, VALUES, generator=draw), torch.tensor([0, 1, 2, 2, 5, 8, 9])
    found = attack(captured(tmp_path, inputs, labels, uniform=False), "linear")
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 5, 8, 9]
    assert found.certified is not None
    assert found.certified.all()
    assert off(found, inputs, labels) < 1e-5
