"""`seepage exposure` on a recorded folder and on a recipe."""

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Cli


def test_a_folder_is_looked_at(cli: Cli, observed: Path) -> None:
    found = cli("exposure", observed)
    assert found.code == 0, found.err
    assert "gives away 1 of 1 examples exactly" in found.out
    assert "2.weight" in found.out
    assert "No attack was run" in found.out


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
    assert "gives away 0 of 1 examples" in found.out
    assert not list(home.glob("runs*"))


def test_mistakes_are_one_sentence(refused: Callable[..., str], observed: Path) -> None:
    assert "and not both" in refused("exposure")
    assert "and not both" in refused("exposure", observed, "--recipe", "tiny.toml")
    assert "are for --recipe" in refused("exposure", observed, "--set", "data.size=8")
    assert "no round 9" in refused("exposure", observed, "--round", "9")
