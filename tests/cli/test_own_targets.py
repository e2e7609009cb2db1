"""An autoencoder on the command line: simulated, and asked for where captured files look like one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation.test_own_targets import NETS

Cli = Callable[..., Any]
Refused = Callable[..., str]


def test_an_audit_of_an_autoencoder(home: Path, cli: Cli) -> None:
    (home / "coders.py").write_text(NETS)
    done = cli(
        "audit", "tiny.toml", "--data", "digits", "--set", "data.size=4", "--model", "coders:coder", "--set",
        "model={}", "--client", "fedsgd:target=input", "--loss", "mse", "--attack", "linear", "--jobs", 1, "--set",
        "training.steps=0", "--out", "run",
    )  # fmt: skip
    assert "2 of 2" in done.out
    assert "10 targets" not in (home / "run" / "report.html").read_text()


@pytest.mark.slow
def test_captured_files_that_look_like_an_autoencoder_are_asked_for(home: Path, cli: Cli, refused: Refused) -> None:
    (home / "coders.py").write_text(NETS)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 24), torch.nn.ReLU(), torch.nn.Linear(24, 64))
    inputs = torch.rand(1, 1, 8, 8)
    torch.save(model.state_dict(), "before.pt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.mse_loss(model(inputs), inputs.flatten(1)).backward()
    optimizer.step()
    torch.save(model.state_dict(), "after.pt")
    files = ("before.pt", "after.pt", "--model", "coders:coder", "--shape", "1,8,8", "--lr", 0.1)
    asked = refused("attack", *files)
    assert "returns as many numbers as it takes, 64, as an autoencoder does; say what it is: --target input" in asked
    assert "its loss cross_entropy is of classes" in refused("attack", *files, "--target", "input")
    known = ("--target", "input", "--loss", "mse", "--steps", 1, "--batch-size", 1, "--attack", "linear")
    done = cli("attack", *files, *known, "--out", "run")
    assert "1 of 1" in done.out
