"""Networks as people have them: what they return, what they take, how they are named, and where they go wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Refused = Callable[..., str]

NETS = """
from dataclasses import dataclass
import torch
from torch import nn, Tensor

@dataclass
class Output:
    hidden: Tensor
    logits: Tensor

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        inputs = shape[0] * shape[1] * shape[2]
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, classes))
    def forward(self, x): return self.net(x)

class Named(Net):
    def forward(self, x): return {"hidden": x, "logits": self.net(x)}

class First(Net):
    def forward(self, x): return self.net(x), x

class AsObject(Net):
    def forward(self, x): return Output(x, self.net(x))

class Aged(Net):
    def forward(self, x, age): return self.net(x) + age

class OneLogit(Net):
    def forward(self, x): return self.net(x)[:, :1]

class Broken(Net):
    def forward(self, x):
        hidden = self.net(x)
        return hidden @ torch.ones(3, 3)

class PerPixel(nn.Conv2d):
    def __init__(self, shape, classes): super().__init__(shape[0], classes, 3, padding=1)
"""


@pytest.fixture
def nets(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (home / "nets.py").write_text(NETS)
    return home


TINY = ("audit", "tiny.toml", "--attack", "linear", "--jobs", 1)


@pytest.mark.parametrize(
    ("net", "said"),
    [("Named", "logits of the dict"), ("First", "the first of the tuple of 2"), ("AsObject", "logits of the Output")],
)
def test_what_a_network_returns_beside_its_logits_is_passed_over_and_said(
    net: str, said: str, nets: Path, cli: Cli
) -> None:
    found = cli(*TINY, "--model", f"nets:{net}", "--out", "run", "--json")
    plain = cli(*TINY, "--model", "nets:Net", "--out", "plain", "--json").json
    # The same network, the same numbers: what is beside the logits changes nothing.
    assert found.json["rows"][0]["scores"]["psnr"]["mean"] == plain["rows"][0]["scores"]["psnr"]["mean"] == 150.0
    assert said in found.json["cases"][0]["inferred"]["logits"]
    assert not plain["cases"][0]["inferred"]
    assert f"inferred, not stated: logits: {said}" in cli(*TINY, "--model", f"nets:{net}", "--out", "run").out


@pytest.mark.parametrize(
    ("net", "said"),
    [
        ("Aged", "it takes more than the examples"),
        ("Broken", "nets.py line 36); correct that line"),
        ("PerPixel", "a map of class numbers for each example"),
    ],
)
def test_what_cannot_be_audited_is_one_sentence_that_says_where(
    net: str, said: str, nets: Path, refused: Refused
) -> None:
    assert said in refused(*TINY, "--model", f"nets:{net}")


def test_one_logit_of_two_classes_has_its_line_to_copy(nets: Path, refused: Refused) -> None:
    line = (*TINY, "--model", "nets:OneLogit", "--set", "data.use=two.npz")
    import numpy as np

    rng = np.random.default_rng(0)
    np.savez("two.npz", x=rng.random((40, 1, 8, 8), dtype=np.float32), y=np.arange(40) % 2)
    assert "add --loss binary" in refused(*line)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("./nets.py:Net", "nets:Net"),
        ("nets.py:Net", "nets:Net"),
        ("nets.Net", "nets:Net"),
        ("resnet18", "torchvision:resnet18"),
    ],
)
def test_a_name_in_another_spelling_is_told(typed: str, meant: str, nets: Path, refused: Refused) -> None:
    assert f"did you mean '{meant}'?" in refused(*TINY, "--model", typed)


def test_a_data_set_that_is_not_here_is_one_plain_sentence(
    home: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    from urllib.error import URLError

    def no_network(*_: Any, download: bool, **__: Any) -> Any:
        raise URLError(OSError(-2, "Name or service not known")) if download else RuntimeError("not found")

    monkeypatch.setenv("SEEPAGE_DATA", str(home / "data"))
    monkeypatch.setattr("torchvision.datasets.CIFAR10", no_network)
    (home / "data").mkdir()
    said = refused("audit", "--data", "cifar10")
    assert "network" in said
    assert "urlopen" not in said
    assert str(home) not in said
