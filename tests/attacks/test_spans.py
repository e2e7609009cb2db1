"""All examples of a regression on many outputs are read off the spans of its first and last layer."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from seepage import Architecture, attack
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.base.registry import Spec
from seepage.errors import Inapplicable
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.types import Reconstruction

READINGS, VALUES = 20, 60
STEPS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 1e-2),
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
}


def forecaster() -> nn.Module:
    return nn.Sequential(nn.Linear(READINGS, 32), nn.ReLU(), nn.Linear(32, VALUES))


def found(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    *,
    n: int,
    stated: int,
    noise: float = 0.0,
    by: str = "sgd",
) -> tuple[Reconstruction | None, Tensor]:
    """What `linear` makes of one step between two float32 checkpoints, and the truth."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    torch.manual_seed(seed)
    model, inputs, targets = forecaster(), torch.rand(n, READINGS), torch.rand(n, VALUES)
    save_file(model.state_dict(), folder / "before.safetensors")
    F.mse_loss(model(inputs), targets).backward()
    STEPS[by](model.parameters()).step()
    after = {name: tensor + noise * 1e-2 * torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    save_file(after, folder / "after.safetensors")
    capture = Capture(
        before=folder / "before.safetensors",
        after=folder / "after.safetensors",
        lr=1e-2 if by == "sgd" else None,
        architecture=Architecture("test_spans:forecaster"),
        client=Spec("fedsgd", {"loss": "mse"}),
        input_shape=(READINGS,),
        batch_size=stated,
        target="value",
    )
    observe_files(capture, folder / "observed")
    try:
        return attack(open_transcript(folder / "observed", trust=True), "linear"), inputs
    except Inapplicable:
        return None, inputs


@pytest.mark.parametrize(("n", "seed"), [(2, 0), (3, 1), (4, 2)])
def test_every_example_is_read_within_its_stated_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, seed: int
) -> None:
    read, inputs = found(tmp_path, monkeypatch, seed, n=n, stated=n)
    assert read is not None
    assert read.certified is not None
    assert len(read) == n
    assert read.certified.all()
    off = (read.inputs[:, None] - inputs[None]).square().mean(2).sqrt()  # [n, n]
    assert off.argmin(0).unique().numel() == n
    assert bool((off.amin(1) <= 2 * read.objective).all())
    assert float(off.amin(0).max()) < 1.8e-3  # 55 dB


@pytest.mark.parametrize(("n", "seed"), [(1, 0), (2, 0), (3, 0), (4, 0)])
@pytest.mark.full
def test_behind_adam_examples_are_read_within_their_stated_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, seed: int
) -> None:
    read, inputs = found(tmp_path, monkeypatch, seed, n=n, stated=n, by="adam")
    assert read is not None
    assert read.certified is not None
    assert len(read) == n
    off = (read.inputs[:, None] - inputs[None]).square().mean(2).sqrt()  # [n, n]
    assert off.argmin(0).unique().numel() == n
    assert bool((off.amin(1) <= 2 * read.objective).all())
    assert float(off.amin(0).max()) < 1.8e-2  # 35 dB
    assert read.certified.any()


@pytest.mark.full
@pytest.mark.parametrize("by", STEPS)
@pytest.mark.parametrize(("stated", "noise"), [(2, 0.0), (4, 0.0), (3, 1e-3)], ids=["fewer", "more", "noise"])
def test_of_another_batch_size_or_with_noise_nothing_false_is_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: int, noise: float, by: str
) -> None:
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        read, inputs = found(folder, monkeypatch, seed, n=3, stated=stated, noise=noise, by=by)
        if read is None or read.certified is None or not read.certified.any():
            continue
        off = (read.inputs[read.certified][:, None] - inputs[None]).square().mean(2).sqrt()
        assert float(off.amin(1).max()) < 1e-2
