"""`seepage check`: what is known of a client, what its update reveals, and what to type, before any attack."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.cli.conftest import Cli

from seepage import Architecture, Batch, build, record
from seepage.attacks.exposure import exposure
from seepage.audit.checking import Check
from seepage.cli.checking import _print_exposure
from seepage.cli.console import open_console

Refused = Callable[..., str]


@pytest.fixture
def captured(home: Path) -> None:
    """Two checkpoints of `fc2`, one step of SGD at 0.1 on one example, and its gradient."""
    torch.manual_seed(0)
    model = build(Architecture("fc2", {"hidden": 24}), (1, 8, 8), 10)
    torch.save(model.state_dict(), home / "before.pt")
    F.cross_entropy(model(torch.rand(1, 1, 8, 8)), torch.tensor([2])).backward()
    torch.save({name: p.grad for name, p in model.named_parameters()}, home / "gradient.pt")
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.save(model.state_dict(), home / "after.pt")


def facts(found: Any) -> dict[str, tuple[str, str, str]]:
    (case,) = found.json["cases"]
    return {fact["name"]: (fact["value"], fact["origin"], fact["option"]) for fact in case["facts"]}


MODEL = ("--model=fc2", "--set=model.hidden=24", "--shape=1,8,8")


def test_two_files_are_told_read_inferred_and_unknown(cli: Cli, captured: None) -> None:
    found = cli("check", "before.pt", "after.pt", *MODEL, "--lr=0.1", "--json")
    said = facts(found)
    assert said["learning rate"] == ("0.1", "stated", "")
    assert said["input shape"] == ("1,8,8", "stated", "")
    assert said["keys"] == ("4 of the network's 4 parameters are in the files", "read", "")
    assert said["classes"][1:] == ("read", "")
    assert said["batch size"][0].startswith("1 or more")
    assert said["batch size"][1:] == ("inferred", "--batch-size")
    assert said["normalization"][1:] == ("unknown", "--normalize")
    assert said["labels"][1] == "inferred"
    assert "class 2" in said["labels"][0]
    (case,) = found.json["cases"]
    assert case["exposure"]["examples"] == 1


ENDED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 48), nn.Linear(48, 10)

    def forward(self, x):
        return torch.relu(self.last(torch.relu(self.first(x.flatten(1)))))
"""


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_network_that_ends_in_a_relu_is_no_changed_gradient(cli: Cli, home: Path, optimizer: str) -> None:
    """Its last bias adds up to no zero, which was assumed to be noise, so that no layer told anything."""
    (home / "ended.py").write_text(ENDED)
    space: dict[str, Any] = {}
    exec(ENDED, space)
    torch.manual_seed(0)
    model = space["Net"]()
    torch.save(model.state_dict(), home / "before.pt")
    F.cross_entropy(model(torch.rand(6, 1, 8, 8)), torch.tensor([0, 1, 2, 3, 4, 5])).backward()
    getattr(torch.optim, optimizer)(model.parameters(), lr=0.1).step()
    torch.save(model.state_dict(), home / "after.pt")
    found = cli("check", "before.pt", "after.pt", "--model=ended:Net", "--shape=1,8,8", "--lr=0.1")
    assert "sum to zero" not in found.out
    assert "add up to zero" not in found.out
    (names,) = re.findall(r"^labels +class(?:es)? ([\d, ]+),", found.out, re.M)
    # A class whose bias rose is there, whatever the ReLU does.
    assert {int(name) for name in names.split(",")} <= set(range(6))
    if optimizer == "Adam":
        return
    assert "the span of at least 6 private examples" in found.out
    assert re.search(r"^batch size +(assumed: )?6 or more, from the rank of first.weight", found.out, re.M)


def test_a_rate_that_nothing_tells_is_unknown_and_asked_for(cli: Cli, captured: None, home: Path) -> None:
    """The table ended in an error where `--lr` was left out, and so did the next command, one option at a time."""
    given = cli("check", "before.pt", "after.pt", *MODEL)
    assert re.search(r"^learning rate +not known.* unknown +--lr", given.out, re.M)
    assert re.search(r"^the update: reveals 1 of 1 or more examples exactly", given.out, re.M)
    assert "the learning rate is not known" in given.out
    (line,) = re.findall(r"^  (seepage attack .*)$", given.out, re.M)
    assert "RATE" not in line, "what can be typed as it stands"
    (rest,) = re.findall(r"^with what you know of the rest: (.*)$", given.out, re.M)
    assert "--client fedavg:lr=…,steps=…,optimizer=…,clip_norm=…" in rest
    assert "fedavg:optimizer" not in rest
    (home / "sound.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.Conv1d(1, 4, 3)\n")
    torch.save(torch.nn.Conv1d(1, 4, 3).state_dict(), home / "sound.pt")
    both = cli("attack", "sound.pt", "sound.pt", "--model=sound:net", code=2)
    assert "--shape 1,LENGTH" in both.err


@pytest.mark.slow
def test_one_size_of_several_steps_is_no_rate(cli: Cli, home: Path) -> None:
    torch.manual_seed(0)
    model = build(Architecture("fc2", {"hidden": 24}), (1, 8, 8), 10)
    torch.save(model.state_dict(), home / "before.pt")
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(4):
        adam.zero_grad()
        F.cross_entropy(model(torch.rand(8, 1, 8, 8)), torch.randint(10, (8,))).backward()
        adam.step()
    torch.save(model.state_dict(), home / "after.pt")
    found = cli("check", "before.pt", "after.pt", *MODEL)
    assert found.out.count("a gradient's sizes are gone") == 0, "the table has it"
    said = facts(cli("check", "before.pt", "after.pt", *MODEL, "--json"))
    assert said["optimizer"][1] == "assumed"
    assert said["learning rate"][1:] == ("inferred", "--lr")
    assert said["learning rate"][0].endswith(
        "is the size of its largest entries: of Adam, about its rate times its steps"
    )
    assert "of Adam they were several" in said["local steps"][0]


def test_what_is_stated_is_no_longer_guessed(cli: Cli, captured: None) -> None:
    known = ("--batch-size=1", "--steps=1", "--lr=0.1", "--loss=cross_entropy", "--classes=10", "--weight-decay=0")
    said = facts(cli("check", "before.pt", "after.pt", *MODEL, *known, "--json"))
    for name in ("batch size", "local steps", "loss", "classes", "weight decay"):
        assert said[name][1] == "stated", name


def test_a_gradient_has_no_rate_and_no_steps(cli: Cli, captured: None) -> None:
    found = cli("check", "before.pt", "--gradient=gradient.pt", *MODEL, "--json")
    said = facts(found)
    assert said["optimizer"][0] == "none: it was given as a gradient"
    assert not {"learning rate", "local steps", "weight decay"} & set(said)
    assert found.json["command"].startswith("seepage attack before.pt --model fc2")


def test_the_command_that_is_printed_is_one_to_type(cli: Cli, captured: None, home: Path) -> None:
    asked = ("check", "before.pt", "after.pt", *MODEL, "--lr=0.1", "--steps=1")
    found = cli(*asked)
    assert "No attack was run" in found.out
    (line,) = re.findall(r"^  (seepage attack .*)$", found.out, re.M)
    assert "--batch-size" in found.out.partition("with what you know of the rest: ")[2]
    assert not list(home.glob("runs*"))
    run = cli(*shlex.split(line)[1:], "--attack=linear", "--out=run", "--json", "--jobs=1")
    assert run.json["verdict_level"] == "certified"


def test_a_folder_is_looked_at(cli: Cli, observed: Path) -> None:
    found = cli("check", observed)
    assert "reveals 1 of 1 example exactly" in found.out
    assert "; 1 label\n" in found.out
    assert "2.weight" in found.out
    assert f"seepage attack {observed}" in found.out


def test_json_and_the_gate(cli: Cli, observed: Path) -> None:
    found = cli("check", observed, "--json", "--fail-if", "exposed>0", "--round", "1", code=1)
    assert "exposed > 0" in found.err
    (case,) = found.json["cases"]
    given = case["exposure"]
    assert (given["examples"], given["t"]) == (1, 1)
    assert {says["name"] for says in given["tensors"]} == {"2.weight", "2.bias", "4.weight", "4.bias"}
    cli("check", observed, "--quiet", "--fail-if", "exposed>1")


def test_a_recipe_is_recorded_and_looked_at(cli: Cli, home: Path) -> None:
    found = cli("check", "tiny.toml", "--defense=gaussian_noise", "--set=defense.sigma=1", "--quiet")
    assert "0 of 1 example proved" in found.out
    assert not list(home.glob("runs*"))


def test_batch_norm_is_read(cli: Cli) -> None:
    settings = ("--set=model.batch_norm=true", "--set=training.steps=0", "--set=batch.count=1")
    found = cli("check", "--data=digits", "--model=convnet", "--batch-size=4", *settings)
    assert "batch norm: train mode" in found.out


def test_mistakes_are_one_sentence(refused: Refused, observed: Path, captured: None) -> None:
    assert "nothing to look at" in refused("check")
    assert "nosuch" in refused("check", "--model=nosuch")
    assert "--lr is for captured files" in refused("check", "--data=digits", "--lr=0.1")
    assert "--data is for a batch of your own" in refused("check", "before.pt", "after.pt", "--data=digits")
    assert "looked at as it is" in refused("check", observed, "--set", "data.size=8")
    assert "in which all was recorded" in refused("check", observed, "--lr=0.1")
    assert "no round 9" in refused("check", observed, "--round", "9")
    assert "--difference FILE" in refused("check", "before.pt")
    assert "does not exist" in refused("check", "nowhere.pt", "after.pt")


def test_tensors_and_layers_that_say_nothing_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A vision transformer of five blocks had 70 lines, of which four said something."""
    model = build(Architecture("vit", {"patch": 4, "width": 32, "depth": 5, "heads": 2, "hidden": 32}), (3, 16, 16), 5)
    found = exposure(record(model, Batch(torch.rand(1, 3, 16, 16), torch.tensor([3]))))
    _print_exposure(Check(case="vit", title="vit", facts=(), exposure=found), open_console())
    said = [says.name for says in found.tensors if says.withhold]
    lines = capsys.readouterr().out.splitlines()
    assert all(any(name in line for line in lines) for name in said)
    (rest,) = [line for line in lines if "no closed form found" in line]
    assert rest.startswith(f"further {len(found.tensors) - len(said)} tensors ")
    (inner,) = [line for line in lines if "positions" in line]
    assert inner.startswith("10 further layers")
    # Nothing is said of unmixing layers that read positions: it would find mixtures of these.
    assert not any("cocktail_party" in (says.gives or "") for says in found.tensors)
    assert len(lines) < 25
