"""`seepage attack BEFORE AFTER` with the networks that people have: as they are made, named, shaped and saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.cli.conftest import Cli
from torch import Tensor, nn

from seepage.recipe.contents import contents

Refused = Callable[..., str]

NETS = """
import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self, num_classes=1000):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4, num_classes)

    def forward(self, x):
        return self.head(self.body(x))


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, 2, 1), nn.Linear(4 * 14 * 14, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).flatten(1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, bilinear=False):
        super().__init__()
        self.conv = nn.Conv2d(n_channels, n_classes, 1)

    def forward(self, x):
        return self.conv(x)


def rows(width=30):
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 2))


def texts():
    return nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(8 * 6, 2))


def late():
    from beside import net

    return net()


def crash():
    return Crash()


class Crash(Digits):
    def forward(self, x):
        assert x.shape[-1] == 5, "the picture must be 5 wide"
        return super().forward(x)


instance = rows()
"""


@pytest.fixture
def nets(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `nets` of a user's, in the folder one works in."""
    (home / "nets.py").write_text(NETS)
    (home / "beside.py").write_text("from nets import rows\n\n\ndef net():\n    return rows()\n")
    monkeypatch.syspath_prepend(home)
    import nets  # type: ignore[import-not-found]

    return nets


def step(model: nn.Module, inputs: Tensor, labels: Tensor, named: Callable[[str], str] = str) -> None:
    """`before.pt` and `after.pt` of one SGD step at 0.1, under the names that `named` makes of the network's own."""
    for name in ("before.pt", "after.pt"):
        if name == "after.pt":
            F.cross_entropy(model(inputs), labels).backward()
            torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1).step()
        torch.save({named(key): tensor for key, tensor in model.state_dict().items()}, name)


ASKED = ("attack", "before.pt", "after.pt", "--lr=0.1", "--steps=1", "--use=linear", "--jobs=1", "--batch-size=1")


def shape_of(folder: str = "run") -> tuple[int, ...]:
    return tuple(json.loads(Path(folder, "observed", "knowledge.json").read_text())["input_shape"])


def cells(found: Any) -> Any:
    assert found.code == 0, found.err
    return found.json["cells"][0]["inferred"]


# --- what a factory may be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["rows", "instance", "late"])
def test_a_factory_without_a_shape_and_a_network_that_is_there_are_read(use: str, cli: Cli, nets: Any) -> None:
    step(nets.rows(), torch.rand(1, 30), torch.tensor([1]))
    found = cli(*ASKED, f"--model=nets:{use}", "--out=run", "--json")
    assert cells(found)["input shape"].startswith("30, to which the weights fit")
    assert found.json["rows"][0]["vouched"] == 1


@pytest.mark.parametrize(
    ("use", "shape", "weights"),
    [
        ("Wide", (3, 8, 8), [(4, 3, 3, 3), (4,), (7, 4), (7,)]),
        ("UNet", (2, 8, 8), [(7, 2, 1, 1), (7,)]),
        ("rows", (30,), [(16, 30), (16,), (2, 16), (2,)]),
    ],
)
def test_a_factory_is_given_what_its_parameters_are_named_after(
    use: str, shape: tuple[int, ...], weights: list[tuple[int, ...]], nets: Any
) -> None:
    from seepage import Architecture, build

    model = build(Architecture(f"nets:{use}"), shape, 7)
    assert [tuple(parameter.shape) for parameter in model.parameters()] == weights


# --- shapes -------------------------------------------------------------------------------------------------------


def test_digits_are_tried_for_a_network_of_one_channel(cli: Cli, nets: Any) -> None:
    step(nets.Digits(), torch.rand(1, 1, 28, 28), torch.tensor([1]))
    cells(cli(*ASKED, "--model=nets:Digits", "--out=run", "--json"))
    assert shape_of() == (1, 28, 28)


@pytest.mark.parametrize(("classes", "side"), [(1000, 224), (10, 32)])
def test_a_network_of_photographs_is_told_by_its_classes_and_its_first_convolution(
    classes: int, side: int, cli: Cli, nets: Any
) -> None:
    step(nets.Wide(classes), torch.rand(1, 3, 40, 40), torch.tensor([1]))
    said = cells(cli(*ASKED, "--model=nets:Wide", "--out=run", "--json"))
    assert said["classes"].startswith(f"{classes}, ")
    assert shape_of() == (3, side, side)
    # It pools, so that nothing tells the size, and a user must hear of that before and after.
    assert "and others; if examples have another shape, give it with --shape" in said["input shape"]
    assert "though the network takes pictures of any size" in cli(*ASKED, "--model=nets:Wide", "--out=again").err
    assert "input shape" not in cells(cli(*ASKED, "--model=nets:Wide", "--shape=3,40,40", "--out=told", "--json"))


def test_texts_are_asked_for_their_length(refused: Refused, nets: Any, cli: Cli) -> None:
    step(nets.texts(), torch.randint(50, (1, 6)), torch.tensor([1]))
    assert "--shape LENGTH, such as --shape 60" in refused(*ASKED, "--model=nets:texts")
    assert cli(*ASKED, "--model=nets:texts", "--shape=6", "--out=run").code == 0


# --- what does not fit is a sentence ------------------------------------------------------------------------------


def test_whatever_a_network_raises_is_a_sentence_with_the_option(refused: Refused, nets: Any) -> None:
    step(nets.Digits(), torch.rand(1, 1, 28, 28), torch.tensor([1]))
    said = refused(*ASKED, "--model=nets:Crash")
    assert "the picture must be 5 wide, nets.py line" in said
    assert "give the shape of one example, as it takes them, with --shape" in said
    told = refused(*ASKED, "--model=nets:Digits", "--shape=3,32,32")
    assert "cannot take examples of shape 3,32,32" in told
    assert "nor any other" not in told


def test_a_network_of_timm_takes_the_pictures_it_was_made_for(cli: Cli, home: Path) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_vit", num_classes=10)  # of 160 x 160
    step(model, torch.rand(1, 3, 160, 160), torch.tensor([1]))
    cells(cli(*ASKED, "--model=timm:test_vit", "--out=run", "--json"))
    assert shape_of() == (3, 160, 160)


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["1.", "model.", "module.net."])
def test_keys_of_a_network_inside_another_are_found(prefix: str, cli: Cli, nets: Any) -> None:
    step(nets.rows(), torch.rand(1, 30), torch.tensor([1]), lambda name: f"{prefix}{name}")
    found = cli(*ASKED, "--model=nets:rows", "--out=run", "--json")
    assert found.code == 0, found.err
    assert found.json["rows"][0]["vouched"] == 1


def test_keys_of_another_network_are_named_on_both_sides(refused: Refused, nets: Any) -> None:
    step(nets.rows(), torch.rand(1, 30), torch.tensor([1]), lambda name: f"{name}.x")
    said = refused(*ASKED, "--model=nets:rows")
    assert "lacks '0.weight', '0.bias', '2.weight' and more and has '0.weight.x', '0.bias.x', '2.weight.x'" in said


# --- what is installed is known by its version --------------------------------------------------------------------


def test_what_a_name_of_an_installed_package_stands_for_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("thousands of files")

    monkeypatch.setattr(Path, "read_bytes", read)
    found = contents({"client": {"loss": "torch.nn.functional:mse_loss"}, "model": {"use": "json:loads"}})
    assert found["torch.nn.functional:mse_loss"] == f"torch {torch.__version__.partition('+')[0]}"
    assert found["json:loads"].startswith("Python 3.")
