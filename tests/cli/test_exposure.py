"""`seepage exposure` on a recorded folder and on a recipe."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Cli

from seepage import Architecture, Batch, build, record
from seepage.cli.exposing import _print
from seepage.leakage import exposure


def test_a_folder_is_looked_at(cli: Cli, observed: Path) -> None:
    found = cli("exposure", observed)
    assert found.code == 0, found.err
    assert "gives away 1 of 1 example exactly" in found.out
    assert "; 1 label\n" in found.out
    assert "2.weight" in found.out


def test_json_and_the_gate(cli: Cli, observed: Path) -> None:
    found = cli("exposure", observed, "--json", "--fail-above", "0", "--round", "1")
    assert found.code == 1
    assert "more than 0 examples" in found.err
    (cell,) = found.json["cells"]
    assert (cell["examples"], cell["t"]) == (1, 1)
    assert {says["name"] for says in cell["tensors"]} == {"2.weight", "2.bias", "4.weight", "4.bias"}
    assert cli("exposure", observed, "--json", "--fail-above", "1").code == 0


def test_a_recipe_is_recorded_and_looked_at(cli: Cli, home: Path) -> None:
    found = cli("exposure", "--recipe", "tiny.toml", "--defense=gaussian_noise", "--set=defense.sigma=1", "--quiet")
    assert found.code == 0, found.err
    assert "gives away 0 of 1 example exactly" in found.out
    assert not list(home.glob("runs*"))


def test_mistakes_are_one_sentence(refused: Callable[..., str], observed: Path) -> None:
    assert "and not both" in refused("exposure")
    assert "and not both" in refused("exposure", observed, "--recipe", "tiny.toml")
    assert "are for --recipe" in refused("exposure", observed, "--set", "data.size=8")
    assert "no round 9" in refused("exposure", observed, "--round", "9")


def test_tensors_and_layers_that_say_nothing_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A vision transformer of five blocks had 70 lines, of which four said something."""
    model = build(Architecture("vit", {"patch": 4, "width": 32, "depth": 5, "heads": 2, "hidden": 32}), (3, 16, 16), 5)
    found = exposure(record(model, Batch(torch.rand(1, 3, 16, 16), torch.tensor([3]))))
    _print("vit", found, quiet=False)
    said = [says.name for says in found.tensors if says.withhold]
    lines = capsys.readouterr().out.splitlines()
    assert all(any(name in line for line in lines) for name in said)
    (rest,) = [line for line in lines if "no closed form found" in line]
    assert rest.startswith(f"{len(found.tensors) - len(said)} further tensors ")
    (inner,) = [line for line in lines if "positions" in line]
    assert inner.startswith("10 further layers")
    # Nothing is said of unmixing layers that read positions: it would find mixtures of these.
    assert not any("cocktail_party" in (says.gives or "") for says in found.tensors)
    assert len(lines) < 25
