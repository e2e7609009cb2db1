"""What is handed on names no folder, no class and no place: these are names of people, of wards, of findings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from seepage.audit.recipe.places import shown_command, shown_recipe

Cli = Callable[..., Any]

ARGUMENTS = ("--jobs", 1, "--batch-size", 1, "--set", "batch.count=1", "--set", "data.size=8", "--no-pictures")
SECRET = ("Smith_John", "hiv_positive", "ward-7", "scans")


@pytest.fixture
def patients(home: Path) -> Path:
    """Pictures of patients, by person, in a folder whose name says too much as well."""
    noise = np.random.default_rng(0)
    for name in SECRET[:2]:
        place = home / "ward-7" / "scans" / name
        place.mkdir(parents=True)
        for i in range(4):
            Image.fromarray(noise.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(place / f"{i}.png")
    return home / "ward-7" / "scans"


def handed_on(folder: Path) -> dict[str, str]:
    names = ("result.json", "flags.json", "exposure.json", "scores.jsonl", "report.html")
    return {name: (folder / name).read_text() for name in names}


@pytest.mark.parametrize("absolute", [True, False])
def test_numbers_that_are_handed_on_name_nobody(cli: Cli, patients: Path, home: Path, absolute: bool) -> None:
    data = patients if absolute else patients.relative_to(home)
    # With a membership test there is a sentence on why so few pictures are too few for it.
    found = cli("audit", "tiny.toml", "--data", data, "--json", "--membership", *ARGUMENTS)
    folder = Path(found.json["run"])
    cli("evidence", "pack", folder, "--out", "pack")
    pack = {path.name: path.read_text() for path in Path("pack").iterdir() if path.is_file()}
    for name, text in {**handed_on(folder), **pack, "stdout": found.out, "the run's own name": str(folder)}.items():
        assert not [word for word in (*SECRET, str(home)) if word in text], name
    case = json.loads((folder / "result.json").read_text())["cases"][0]
    assert (case["data"], case["classes"]) == ("folder", ["0", "1"])
    page = (folder / "report.html").read_text()
    assert "seepage audit tiny.toml --data … --json --membership" in page
    assert "use = &#34;…&#34;" in page
    # The folder itself repeats the run: there the path stands.
    assert str(data) in (folder / "recipe.toml").read_text()


def test_names_stand_where_they_are_asked_for(cli: Cli, patients: Path) -> None:
    found = cli("audit", "tiny.toml", "--data", patients, "--json", *ARGUMENTS, "--set", "score.names=true")
    folder = Path(found.json["run"])
    case = json.loads((folder / "result.json").read_text())["cases"][0]
    assert case["data"] == "scans"
    assert case["classes"] == sorted(SECRET[:2])
    assert str(patients) in (folder / "report.html").read_text()
    assert "scans" in folder.name


def test_an_absolute_run_folder_is_known_by_its_name(cli: Cli, home: Path) -> None:
    place = home / "numbers"
    found = cli("audit", "tiny.toml", "--attack", "linear", "--json", "--out", place, *ARGUMENTS)
    assert found.json["run"] == str(place), "for the script that asked"
    assert json.loads((place / "result.json").read_text())["run"] == "numbers"
    assert str(home) not in "".join(handed_on(place).values())
    assert json.loads((place / "result.json").read_text())["cases"][0]["classes"] == ["face", "not a face"], "public"


def test_a_reason_that_names_a_file_does_not_say_where_it_lies(cli: Cli, home: Path) -> None:
    (home / "failing.py").write_text(
        "from dataclasses import dataclass\nfrom pathlib import Path\nfrom seepage import Attack\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Failing(Attack):\n"
        "    def run(self, transcript, *, seed, progress):\n"
        "        Path('missing/prior.npy').absolute().read_bytes()\n"
    )
    found = cli("audit", "tiny.toml", "--attack", "failing:Failing", "--json", "--out", home / "run", *ARGUMENTS)
    assert "…/missing/prior.npy" in found.json["rows"][0]["reason"]
    assert str(home) not in "".join(handed_on(home / "run").values())


def test_a_strangers_recipe_and_command_are_shown_without_their_paths_or_not_at_all() -> None:
    text = 'name = "a/b"\n[data]\nuse = "ward"\n[training]\nweights = "/home/me/w.pt"\n# content of "ward": sha256:1\n'
    shown = shown_recipe(text)
    assert shown is not None
    assert "ward" not in shown
    assert "/home" not in shown
    assert 'name = "a/b"' in shown
    assert shown_recipe("a = [") is None
    assert shown_recipe(text + '# content of [: "\n') is not None
    assert shown_command("seepage audit 'x", []) == ""
    assert shown_command("seepage audit --set training.weights=/a/b.pt --set seed=1", []) == (
        "seepage audit --set training.weights=… --set seed=1"
    )
