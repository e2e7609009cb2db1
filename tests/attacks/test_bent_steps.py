"""Examples behind one step of an optimizer that divides entries by their size: read, to a stated error, by any rule."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from seepage import Architecture, SeepageError, attack, build, open_transcript
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.base.registry import Spec
from seepage.federation.clients import FedAvg
from seepage.federation.transcript.foreign import STEP_NUMBERS
from seepage.federation.transcript.recorded import RecordedTranscript
from seepage.federation.types import Batch, Reconstruction

SHAPE, CLASSES = (3, 8, 8), 10
Make = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
STEPS: dict[str, tuple[Make, dict[str, object]]] = {
    "adam": (lambda p: torch.optim.Adam(p, lr=1e-3), {"optimizer": "adam", "lr": 1e-3}),
    "adam, slow": (lambda p: torch.optim.Adam(p, lr=1e-4), {"optimizer": "adam", "lr": 1e-4}),
    "adamw": (
        lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01),
        {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01},
    ),
    "adamw, decay unsaid": (lambda p: torch.optim.AdamW(p, lr=1e-3), {"optimizer": "adamw", "lr": 1e-3}),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=1e-3), {"optimizer": "rmsprop", "lr": 1e-3}),
    "adadelta": (torch.optim.Adadelta, {"optimizer": "adadelta", "lr": 1.0}),
    "adam, eps 1e-3": (lambda p: torch.optim.Adam(p, eps=1e-3), {"optimizer": "adam", "lr": 1e-3, "eps": 1e-3}),
    "clipped": (lambda p: torch.optim.SGD(p, lr=0.1), {"lr": 0.1, "clip_value": 1e-2}),
}


def captured(
    folder: Path, name: str, private: Batch, *, stated: bool, seed: int = 0, steps: int = 1
) -> RecordedTranscript:
    """Two checkpoints around a client's own steps, as `seepage record` reads them."""
    make, options = STEPS[name]
    named = Architecture("fc2", {"hidden": 128})
    model = build(named, SHAPE, CLASSES, seed=seed)
    save_file(model.state_dict(), folder / "before.safetensors")
    optimizer = make(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(private.inputs), private.labels).backward()
        if "clip_value" in options:
            nn.utils.clip_grad_value_(model.parameters(), 1e-2)
        optimizer.step()
    save_file(model.state_dict(), folder / "after.safetensors")
    client = Spec("fedavg", {**options, "steps": steps}) if stated else Spec("fedsgd")
    paths = {name: folder / f"{name}.safetensors" for name in ("before", "after")}
    capture = Capture(**paths, architecture=named, client=client, input_shape=SHAPE, batch_size=len(private))
    observe_files(capture, folder / "observed")
    return open_transcript(folder / "observed")


def one(seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(torch.rand((1, *SHAPE), generator=draw), torch.randint(CLASSES, (1,), generator=draw))


def off(found: Reconstruction, private: Batch) -> float:
    return float((found.inputs[0] - private.inputs[0]).square().mean().sqrt())


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_an_example_is_read_to_its_stated_error_whether_the_step_was_stated_or_seen(
    name: str, tmp_path: Path, *, stated: bool
) -> None:
    certified = 0
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        private = one(seed)
        seen = captured(folder, name, private, stated=stated, seed=seed)
        assert seen[0].update.step is not None
        found = attack(seen, "linear")
        assert found.labels is not None
        assert found.certified is not None
        assert found.objective is not None
        assert off(found, private) < float(found.objective[0])
        assert off(found, private) < 0.05 or name == "adam, slow"  # 26 dB
        assert name == "adam, slow" or found.labels.tolist() == private.labels.tolist()
        certified += int(found.certified.sum())
    # The others are known to a few hundredths, which is no exact copy.
    assert certified == (3 if name in ("adam, eps 1e-3", "adadelta", "rmsprop", "clipped") else certified)


def test_errors_and_step_are_read_from_the_folder_again(tmp_path: Path) -> None:
    seen = captured(tmp_path, "adam", one(0), stated=True)
    step = seen[0].update.step
    known = FedAvg(lr=1e-3, optimizer="adam", steps=1).first_step(1)
    assert step is not None
    assert known is not None
    assert replace(step, name="") == replace(known[0], name="")
    measured = seen[0].measured(seen.knowledge.client)
    assert 0 < measured.known() < 1
    halved = seen[0].over(2.0)
    for name, error in halved.measured(seen.knowledge.client).error.items():
        torch.testing.assert_close(2 * error, measured.error[name], rtol=1e-3, atol=0)


@pytest.mark.parametrize("place", range(len(STEP_NUMBERS)))
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_step_that_cannot_be_is_refused_or_read_without_a_fault(tmp_path: Path, place: int, value: float) -> None:
    captured(tmp_path, "adam", one(0), stated=True)
    path = tmp_path / "observed" / "rounds" / "000000.safetensors"
    numbers = load_file(path)["step"]
    numbers[place] = value
    save_file({**load_file(path), "step": numbers}, path)
    try:
        attack(open_transcript(tmp_path / "observed"), "linear")
    except SeepageError:
        return


def test_several_steps_are_not_inverted_as_one(tmp_path: Path) -> None:
    seen = captured(tmp_path, "adam", one(0), stated=False, steps=5)
    assert seen[0].update.step is None
    assert seen.knowledge.client.sign_only


def test_an_example_that_was_not_there_is_not_certified(tmp_path: Path) -> None:
    """Two examples behind an update of which one is stated: no outer product explains the rows."""
    for seed in range(5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        both = Batch(*(torch.cat([getattr(one(k), what) for k in (seed, seed + 50)]) for what in ("inputs", "labels")))
        captured(folder, "adam", both, stated=True, seed=seed)
        text = (folder / "observed" / "knowledge.json").read_text()
        (folder / "observed" / "knowledge.json").write_text(text.replace('"batch_size": 2', '"batch_size": 1'))
        found = attack(open_transcript(folder / "observed"), "linear")
        assert found.certified is None or not found.certified.any()
