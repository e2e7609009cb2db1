"""`NAME:OPTION=VALUE,...` is read alike by every command, and reaches what it names."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli

from seepage import SeepageError
from seepage.base.registry import defenses
from seepage.cli.options import SimulationOptions, tables_of
from seepage.cli.parts import part_of

Refused = Callable[..., str]


def test_options_are_read_as_toml_has_them() -> None:
    part = part_of("a.b:Thing:x=1e-4,on=true,word=max,list=[1, 2],text='a,b'", "--mod")
    assert part.use == "a.b:Thing"
    assert part.options == {"x": 1e-4, "on": True, "word": "max", "list": [1, 2], "text": "a,b"}
    for name in ("quantize", "mine:Defense", "torchvision:resnet18"):
        assert (part_of(name, "--defense").use, part_of(name, "--defense").options) == (name, {})
        found = part_of(f"{name}:bits=8", "--defense", defenses)
        assert (found.use, found.options) == (name, {"bits": 8})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quantize:bits", "quantize:OPTION=VALUE"),
        ("quantize:8", "quantize:OPTION=VALUE"),
        ("quantize:bits=8,4", "KEY=VALUE"),
        ("quantize:bits=8,bits=4", "bits twice"),
        ("quantize:use=mine:Defense", "no option 'use'"),
    ],
)
def test_another_form_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(SeepageError, match=words):
        part_of(text, "--defense", defenses)


def test_an_audit_takes_options_behind_every_name(cli: Cli) -> None:
    named = (
        "--attack", "inverting_gradients:steps=2,tv=1e-3",
        "--defense", "gaussian_noise:sigma=0.5,clip=1",
        "--client", "fedavg:lr=0.1,epochs=2",
        "--model", "fc2:hidden=8",
    )  # fmt: skip
    cli("record", "tiny.toml", "--out", "run", *named[2:])
    cli("audit", "tiny.toml", "--jobs", 1, "--set", "batch.count=1", "--out", "audited", "--allow-inconclusive", *named)
    known = tomllib.loads(Path("audited/recipe.toml").read_text())
    assert [(one["use"], one["steps"], one["tv"]) for one in known["attack"]] == [("inverting_gradients", 2, 1e-3)]
    assert known["defense"] == [{"use": "gaussian_noise", "sigma": 0.5, "clip": 1}]
    assert {**known["client"], "use": "fedavg", "lr": 0.1, "epochs": 2} == known["client"]
    assert known["model"] == {"use": "fc2", "hidden": 8}
    recorded = tomllib.loads(Path("run/recipe.toml").read_text())
    assert [recorded[key] for key in ("defense", "client", "model")] == [
        known[key] for key in ("defense", "client", "model")
    ]


def test_options_lie_over_the_recipes_own_and_below_what_is_set(home: Path) -> None:
    (home / "own.toml").write_text('[[attack]]\nuse = "dlg"\nsteps = 7\nlr = 0.5\n')
    attacks: list[dict[str, Any]] = tables_of("own.toml", attacks=["dlg:steps=9"])["attack"]
    assert attacks == [{"use": "dlg", "steps": 9, "lr": 0.5}]
    attacks = tables_of(
        "own.toml", attacks=["dlg:steps=9", "dlg:label=long"], own=SimulationOptions(settings=["attack.lr=1.0"])
    )["attack"]
    assert attacks == [
        {"use": "dlg", "steps": 9, "lr": 1.0},
        {"use": "dlg", "label": "long", "steps": 7, "lr": 1.0},
    ]


def test_captured_updates_are_attacked_with_options(cli: Cli, observed: Path) -> None:
    cli("attack", observed, "--attack", "inverting_gradients:steps=2", "--out", "again", "--jobs", 1)
    assert json.loads(Path("again/attack.json").read_text())["attacks"] == [{"use": "inverting_gradients", "steps": 2}]


def test_a_look_at_a_recipe_takes_a_defense_with_options(cli: Cli) -> None:
    found = cli("check", "tiny.toml", "--defense", "withhold:tensors=['2.*']", "--json")
    tensors = [one["name"] for one in found.json["cases"][0]["exposure"]["tensors"]]
    assert tensors
    assert not [name for name in tensors if name.startswith("2.")]


def test_data_have_no_options_behind_their_name(refused: Refused) -> None:
    message = refused("audit", "tiny.toml", "--data", "digits:size=8")
    assert "--data digits --set data.size=8" in message
