"""From two checkpoints of a plain PyTorch training to the pictures it was trained on."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.cli.conftest import Cli
from torch import nn

from seepage.federation.models import fc2
from seepage.measure.metrics import psnr

SHAPE = (1, 8, 8)


@pytest.fixture
def captured(home: Path) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """`before.pt`, `after.pt` (one SGD step at 0.1), `gradient.safetensors`, made with PyTorch alone."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = fc2(SHAPE, 4, hidden=24)
        inputs, labels = torch.rand(1, *SHAPE), torch.tensor([2])
    torch.save(model.state_dict(), home / "before.pt")
    F.cross_entropy(model(inputs), labels).backward()
    save_file({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, home / "gradient.safetensors")
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.save({"state_dict": {f"module.{n}": t for n, t in model.state_dict().items()}}, home / "after.pt")
    return model, inputs, labels


OPTIONS = ("--model=fc2", "--set=model.hidden=24", "--shape=1,8,8", "--classes=4", "--batch-size=1")


@pytest.mark.parametrize(
    "files",
    [
        ("before.pt", "after.pt", "--lr=0.1"),
        ("before.pt", "--gradient=gradient.safetensors"),
        ("before.pt", "after.pt", "--client=fedavg", "--set=client.lr=0.1", "--set=client.steps=1"),
    ],
    ids=["step", "gradient", "fedavg"],
)
def test_the_picture_comes_back(
    cli: Cli, home: Path, captured: tuple[nn.Module, torch.Tensor, torch.Tensor], files: tuple[str, ...]
) -> None:
    found = cli("record", *files, *OPTIONS)
    assert "seepage attack observed" in found.out
    cli("attack", "observed", "--attack=linear", "--out=run", "--quiet", "--jobs=1")
    (outcome,) = home.glob("run/attacks/**/*.safetensors")
    assert float(psnr(load_file(outcome)["inputs"], captured[1])) > 55


def test_mistakes_are_one_sentence(
    refused: Callable[..., str], home: Path, captured: tuple[nn.Module, torch.Tensor, torch.Tensor]
) -> None:
    sure = torch.load(home / "before.pt", weights_only=True)
    torch.save({**sure, "4.bias": torch.tensor([9.0, 0.0, 0.0, 0.0])}, home / "sure.pt")
    assert "times the learning rate, which is not known" in refused("record", "sure.pt", "after.pt", *OPTIONS)
    assert "--difference FILE" in refused("record", "before.pt", *OPTIONS)
    assert "one of them" in refused("record", "before.pt", "after.pt", "--gradient=gradient.safetensors", *OPTIONS)
    assert "does not fit the model" in refused("record", "before.pt", "after.pt", "--lr=0.1", "--shape=1,8,8")
    assert "does not exist" in refused("record", "before.pt", "none.pt", "--lr=0.1", *OPTIONS)
    for rate in ("-1", "inf"):
        assert "--lr must be above 0" in refused("record", "before.pt", "after.pt", f"--lr={rate}", *OPTIONS)
    assert "whole numbers such as" in refused("record", "before.pt", "after.pt", "--lr=1", "--shape=3*8*8")
    assert "lr > 0" in refused("record", "before.pt", "after.pt", "--client=fedavg", "--set=client.lr=0", *OPTIONS)
    many = "--batch-size=9999999999"
    assert "which cannot be" in refused("record", "before.pt", "after.pt", "--lr=1", *OPTIONS, many)
    assert "leave them out" in refused("record", "before.pt", "--gradient=gradient.safetensors", "--lr=1", *OPTIONS)


def test_a_file_that_lacks_a_tensor_is_a_part_of_an_update_and_one_of_others_is_none(
    cli: Cli, refused: Callable[..., str], home: Path, captured: tuple[nn.Module, torch.Tensor, torch.Tensor]
) -> None:
    whole = load_file(home / "gradient.safetensors")
    save_file({name: t for name, t in whole.items() if name.startswith("4.")}, home / "few.safetensors")
    save_file({f"{name}.x": t for name, t in whole.items()}, home / "other.safetensors")
    save_file({name: t.flatten() for name, t in whole.items()}, home / "flat.safetensors")
    found = cli("record", "before.pt", "--gradient=few.safetensors", *OPTIONS)
    assert "sent: 2 of 4 tensors" in found.out
    assert "withheld: 2 ('2.weight', '2.bias')" in found.out
    assert "other.safetensors has '2.bias.x'" in refused(
        "record", "before.pt", "--gradient=other.safetensors", "--out=elsewhere", *OPTIONS
    )
    said = refused("record", "before.pt", "--gradient=flat.safetensors", "--out=elsewhere", *OPTIONS)
    assert "has shape (1536,), expected (24, 64)" in said


def test_a_recording_is_not_overwritten(
    cli: Cli, refused: Callable[..., str], captured: tuple[nn.Module, torch.Tensor, torch.Tensor]
) -> None:
    cli("record", "before.pt", "after.pt", "--lr=0.1", *OPTIONS)
    assert "already holds" in refused("record", "before.pt", "after.pt", "--lr=0.1", *OPTIONS)


def test_ones_own_pictures_are_the_truth(
    cli: Cli, home: Path, captured: tuple[nn.Module, torch.Tensor, torch.Tensor]
) -> None:
    """Whoever captured an update of their own batch scores the attack with that batch."""
    cli("record", "before.pt", "after.pt", "--lr=0.1", *OPTIONS)
    cli("attack", "observed", "--attack=linear", "--out=run", "--quiet", "--jobs=1")
    pictures = (captured[1].permute(0, 2, 3, 1) * 255).round().byte().numpy()
    np.savez(home / "mine.npz", x=pictures, y=np.array([2]))
    found = cli("report", "run", "--truth=mine.npz", "--json")
    (row,) = found.json["rows"]
    assert row["scores"]["exact"]["mean"] == 1.0
    np.savez(home / "two.npz", x=np.concatenate([pictures, pictures]), y=np.array([2, 1]))
    wrong = cli("report", "run", "--truth=two.npz", code=2)
    assert "expected (1, 1, 8, 8)" in wrong.err


def test_two_equal_files_are_no_update(
    refused: Callable[..., str], captured: tuple[nn.Module, torch.Tensor, torch.Tensor]
) -> None:
    assert "zero everywhere" in refused("record", "before.pt", "before.pt", "--lr=0.1", *OPTIONS)
