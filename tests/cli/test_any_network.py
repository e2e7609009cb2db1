"""`seepage attack BEFORE AFTER` with the networks that people have: as they are made, named, shaped and saved."""

import importlib
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests.cli.conftest import Cli
from torch import Tensor, nn

from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.contents import contents
from seepage.audit.record import _history
from seepage.base.registry import Spec

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


def pairs():
    return Pairs()


class Pairs(nn.Linear):
    def __init__(self):
        super().__init__(30, 2)

    def forward(self, x):
        assert len(x) < 3, "only pairs"
        return super().forward(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(30, 4), nn.Linear(4, 30)

    def forward(self, x):
        return self.encoder(x)


class Masks(nn.Conv2d):
    def __init__(self):
        super().__init__(3, 2, 1)

    def forward(self, x):
        return {"out": super().forward(x), "aux": None}


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


ALLOWED = "--allow-inconclusive"  # it is of what the network takes, not of what can be reconstructed
ASKED = ("attack", "before.pt", "after.pt", "--lr=0.1", "--steps=1", "--attack=linear", "--jobs=1", "--batch-size=1",
         ALLOWED)  # fmt: skip

LITTLE = ("--attack=linear", "--json", "--allow-inconclusive")
"""One attack of which nothing is asked but what is said before it."""


def shape_of(folder: str = "run") -> tuple[int, ...]:
    return tuple(json.loads(Path(folder, "observed", "knowledge.json").read_text())["input_shape"])


def cases(found: Any) -> Any:
    return found.json["cases"][0]["inferred"]


# --- what a factory may be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["rows", "instance", "late"])
def test_a_factory_without_a_shape_and_a_network_that_is_there_are_read(use: str, cli: Cli, nets: Any) -> None:
    step(nets.rows(), torch.rand(1, 30), torch.tensor([1]))
    found = cli(*ASKED, f"--model=nets:{use}", "--out=run", "--json")
    assert cases(found)["input shape"].startswith("30, to which the weights fit")
    assert found.json["rows"][0]["certified"]["n"] == 1


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
    cases(cli(*ASKED, "--model=nets:Digits", "--out=run", "--json"))
    assert shape_of() == (1, 28, 28)


@pytest.mark.parametrize(("classes", "side"), [(1000, 224), (10, 32)])
@pytest.mark.slow
def test_a_network_of_photographs_is_told_by_its_classes_and_its_first_convolution(
    classes: int, side: int, cli: Cli, nets: Any
) -> None:
    step(nets.Wide(classes), torch.rand(1, 3, 40, 40), torch.tensor([1]))
    said = cases(cli(*ASKED, "--model=nets:Wide", "--out=run", "--json"))
    assert said["classes"].startswith(f"{classes}, ")
    assert shape_of() == (3, side, side)
    # It pools, so that nothing tells the size, and a user must hear of that before and after.
    assert "perhaps others; if examples have another shape, give it with --shape" in said["input shape"]
    assert "though the network takes pictures of any size" in cli(*ASKED, "--model=nets:Wide", "--out=again").err
    assert "input shape" not in cases(cli(*ASKED, "--model=nets:Wide", "--shape=3,40,40", "--out=told", "--json"))


def test_texts_have_as_many_tokens_as_the_weights_read(nets: Any, cli: Cli) -> None:
    tokens = torch.randint(50, (1, 6), generator=torch.Generator().manual_seed(0))
    step(nets.texts(), tokens, torch.tensor([1]))
    asked = [word for word in ASKED if not word.startswith("--attack")]
    said = cases(cli(*asked, "--model=nets:texts", "--attack=token_set", "--out=run", "--json"))
    assert said["input shape"] == "6, to which the weights fit"
    np.savez("batch.npz", x=tokens.numpy(), y=np.array([1]))
    (row,) = cli("report", "run", "--truth=batch.npz", "--trust", "--json").json["rows"]
    assert [row["scores"][name]["mean"] for name in ("token_recall", "token_precision")] == [1, 1]


def test_the_truth_of_texts_is_a_file_of_token_numbers(cli: Cli, nets: Any, refused: Refused) -> None:
    tokens = torch.tensor([[7, 7, 3, 9, 9, 1]])
    step(nets.texts(), tokens, torch.tensor([1]))
    asked = [word for word in ASKED if not word.startswith("--attack")]
    cli(*asked, "--model=nets:texts", "--shape=6", "--attack=token_set", "--out=run")
    np.savez("words.npz", x=np.array([["a"]]), y=np.array([1]))
    assert "save texts as whole token numbers x [N, L]" in refused("report", "run", "--truth=words.npz", "--trust")
    np.savez("more.npz", x=tokens.numpy() + 50, y=np.array([1]))
    assert "tokens from 51 to 59 and the network knows 50" in refused("report", "run", "--truth=more.npz", "--trust")
    np.savez("batch.npz", x=tokens.numpy(), y=np.array([1]))
    (row,) = cli("report", "run", "--truth=batch.npz", "--trust", "--json").json["rows"]
    assert [row["scores"][name]["mean"] for name in ("token_recall", "token_precision")] == [1, 1]


# --- what does not fit is a sentence ------------------------------------------------------------------------------


def test_whatever_a_network_raises_is_a_sentence_with_the_option(refused: Refused, nets: Any) -> None:
    step(nets.Digits(), torch.rand(1, 1, 28, 28), torch.tensor([1]))
    said = refused(*ASKED, "--model=nets:Crash")
    assert "the picture must be 5 wide, nets.py line" in said
    assert "give the shape of one example, as it takes them, with --shape" in said
    known = refused(*ASKED, "--model=nets:Digits", "--shape=3,32,32")
    assert "cannot take examples of shape 3,32,32" in known
    assert "nor any other" not in known


def test_what_moved_beside_the_outputs_is_said_and_no_class_is_named(cli: Cli, nets: Any) -> None:
    net, inputs = nets.Encoder(), torch.rand(8, 30)
    torch.save(net.state_dict(), "before.pt")
    F.mse_loss(net.decoder(net(inputs)), inputs).backward()
    torch.optim.Adam(net.parameters(), lr=0.001).step()
    torch.save(net.state_dict(), "after.pt")
    said = cases(cli("attack", "before.pt", "after.pt", "--model=nets:Encoder", *LITTLE, "--out=run"))
    assert "decoder.weight', 'decoder.bias' moved, and the outputs of the network" in said["other outputs"]
    assert "labels" not in said


def test_steps_of_adam_are_counted_at_a_stated_rate(cli: Cli, nets: Any) -> None:
    net, draw = nets.rows(), torch.Generator().manual_seed(0)
    inputs, labels = torch.rand(64, 30, generator=draw), torch.arange(64) % 2
    torch.save(net.state_dict(), "before.pt")
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    torch.save(net.state_dict(), "after.pt")
    asked = ("attack", "before.pt", "after.pt", "--model=nets:rows", "--lr=1e-4", *LITTLE)
    said = cases(cli(*asked, "--out=run"))
    assert said["local steps"] == "assumed to be 1; of Adam or AdamW at 0.0001 they were 4 or more: --steps"
    again = cli(*asked, "--out=again", "--client=fedavg:lr=1e-4,steps=4,optimizer=adam")
    assert "local steps" not in cases(again), "the same rate stated twice is no contradiction"


def test_passes_that_batch_norms_count_are_named_beside_the_assumed_step(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "normed.py").write_text(
        "from torch import nn\n\ndef net():\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))\n"
    )
    monkeypatch.syspath_prepend(str(home))
    net = importlib.import_module("normed").net()
    torch.save(net.state_dict(), "before.pt")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(net(torch.rand(6, 1, 8, 8)), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
        optimizer.step()
    torch.save(net.state_dict(), "after.pt")
    said = cases(cli("attack", "before.pt", "after.pt", "--model=normed:net", "--lr=0.1", *LITTLE, "--out=run"))
    assert said["passes"] == "3 in train mode for 1 step, as the batch norms count"
    assert said["local steps"] == "assumed to be 1; if each pass was a step, they were 3: --steps 3"


def test_logits_of_a_segmentation_are_found_under_their_name(cli: Cli, nets: Any) -> None:
    net = nets.Masks()
    torch.save(net.state_dict(), "before.pt")
    F.cross_entropy(net(torch.rand(1, 3, 8, 8))["out"], torch.ones(1, 8, 8).long()).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    torch.save(net.state_dict(), "after.pt")
    cases(cli(*ASKED, "--model=nets:Masks", "--shape=3,8,8", "--target=map", "--out=run", "--json"))


def test_what_a_network_raises_for_a_larger_batch_alone_is_one_too(refused: Refused, nets: Any) -> None:
    step(nets.pairs(), torch.rand(1, 30), torch.tensor([1]))
    asked = tuple(word for word in ASKED if not word.startswith("--steps"))
    said = refused(*asked, "--model=nets:pairs")
    assert "'nets:pairs' fails on a batch of examples (only pairs, nets.py line" in said
    said = refused(
        "audit", "--data=breast_cancer", "--model=nets:pairs", "--batch-size=4", "--attack=linear", "--out=o"
    )
    assert "'nets:pairs' fails on a batch of examples (only pairs, nets.py line" in said


@pytest.mark.full
def test_a_network_of_timm_takes_the_pictures_it_was_made_for(cli: Cli, home: Path) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_vit", num_classes=10)  # of 160 x 160
    step(model, torch.rand(1, 3, 160, 160), torch.tensor([1]))
    cases(cli(*ASKED, "--model=timm:test_vit", "--out=run", "--json"))
    assert shape_of() == (3, 160, 160)


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["1.", "model.", "module.net."])
def test_keys_of_a_network_inside_another_are_found(prefix: str, cli: Cli, nets: Any) -> None:
    step(nets.rows(), torch.rand(1, 30), torch.tensor([1]), lambda name: f"{prefix}{name}")
    found = cli(*ASKED, "--model=nets:rows", "--out=run", "--json")
    assert found.json["rows"][0]["certified"]["n"] == 1


def test_keys_of_a_part_of_a_network_are_found(cli: Cli, home: Path, nets: Any) -> None:
    (home / "outer.py").write_text(
        "from nets import rows\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.heads = rows()\n        self.scale = nn.Parameter(nn.init.ones_("
        "self.heads[0].bias.new_empty(1)), requires_grad=False)\n\n"
        "    def forward(self, x):\n        return self.heads(x * self.scale)\n"
    )
    step(nets.rows(), torch.rand(1, 30), torch.tensor([1]))
    found = cli(*ASKED, "--model=outer:Net", "--out=run", "--json")
    assert cases(found)["weights"].startswith("not in the files: 1 weight (scale); taken from outer:Net as built")


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


# --- normalization outside of the network --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "mean", "std"),
    [
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("0.5", (0.5,), (0.5,)),
        ("0.1307,0.3081", (0.1307,), (0.3081,)),
    ],
)
def test_what_a_client_normalizes_outside_of_its_network_comes_back_as_pixels(
    typed: str, mean: tuple[float, ...], std: tuple[float, ...], cli: Cli, home: Path
) -> None:
    (home / "flat.py").write_text(
        "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), "
        "nn.Linear(16, 3))\n"
    )
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 3))
    picture = torch.rand(1, 3, 8, 8)
    shift, scale = (torch.tensor(part).reshape(-1, 1, 1) for part in (mean, std))
    step(net, (picture - shift) / scale, torch.tensor([1]))
    asked = (*ASKED, "--model=flat:net", "--shape=3,8,8", "--json")
    found = cli(*asked, f"--normalize={typed}", "--out=run")
    assert found.json["rows"][0]["certified"]["n"] == 1, found.err
    (outcome,) = home.glob("run/attacks/**/*.safetensors")
    assert torch.allclose(load_file(outcome)["inputs"], picture, atol=1e-3)
    # A folder knows what was done to its inputs, and whoever attacks it needs to know nothing.
    again = cli("attack", "run/observed", "--model=flat:net", "--attack=linear", "--jobs=1", "--out=again", "--json")
    assert again.json["rows"][0]["certified"]["n"] == 1
    (second,) = home.glob("again/attacks/**/*.safetensors")
    assert torch.allclose(load_file(second)["inputs"], picture, atol=1e-3)


def test_an_audit_normalizes_as_it_is_told(cli: Cli, nets: Any) -> None:
    line = ("audit", "--data=breast_cancer", "--model=nets:rows", "--batch-size=1", "--attack=linear", "--jobs=1")
    found = cli(*line, "--set=batch.count=1", "--normalize=0.5", "--out=run", "--json")
    assert found.json["cases"][0]["model_options"] == {"normalize": "0.5"}
    assert found.json["rows"][0]["scores"]["psnr"]["mean"] > 60


@pytest.mark.parametrize("typed", ["mean", "0.5,0", "1,2,3", ","])
def test_a_normalization_that_is_none_is_a_sentence(typed: str, refused: Refused, nets: Any) -> None:
    step(nets.rows(), torch.rand(1, 30), torch.tensor([1]))
    assert "--normalize takes imagenet" in refused(*ASKED, "--model=nets:rows", f"--normalize={typed}")


# --- networks saved as a whole -------------------------------------------------------------------------------------


@pytest.fixture
def saved(nets: Any) -> Tensor:
    """`net.pt2` (exported), `net.ts` (TorchScript), `net.pt` (a pickled module), and an update of that network."""
    example = torch.rand(1, 30)
    step(nets.rows(), example, torch.tensor([1]))
    net = nets.rows()
    torch.save(net, "net.pt")
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    torch.export.save(torch.export.export(net, (torch.rand(2, 30),), dynamic_shapes=dynamic), "net.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is a thing of the past
        torch.jit.save(torch.jit.script(net), "net.ts")
    return example


@pytest.mark.parametrize("file", ["net.pt", "net.pt2"])
def test_a_saved_network_is_read_where_it_is_trusted(file: str, cli: Cli, home: Path, saved: Tensor) -> None:
    found = cli(*ASKED, f"--model={file}", "--trust", "--out=run", "--json")
    assert found.json["rows"][0]["certified"]["n"] == 1
    (outcome,) = home.glob("run/attacks/**/*.safetensors")
    assert torch.allclose(load_file(outcome)["inputs"], saved, atol=1e-3)


def test_a_torchscript_is_differentiated_as_it_is(cli: Cli, home: Path, saved: Tensor) -> None:
    line = tuple(word for word in ASKED if not word.startswith("--attack"))
    matching = ("--attack=dlg:steps=15,line_search=true", "--shape=30")
    found = cli(*line, ALLOWED, "--model=net.ts", "--trust", *matching, "--out=run", "--json")
    assert found.json["rows"][0]["misfit"] < 0.01


@pytest.mark.parametrize("file", ["net.pt", "net.pt2", "net.ts"])
def test_no_file_with_a_network_is_opened_unasked(
    file: str, refused: Refused, saved: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr("torch.load", opened)
    monkeypatch.setattr("torch.jit.load", opened)
    monkeypatch.setattr("torch.export.load", opened)
    for verb in (("record", "--out=other", *ASKED[1:5]), ASKED):
        assert "if it is yours, add --trust" in refused(*verb, f"--model={file}")
    audit = ("audit", "--data=breast_cancer", "--attack=linear", f"--model={file}")
    assert "if it is yours, add --trust" in refused(*audit)


def test_a_network_that_was_exported_for_one_size_of_batch_is_to_be_exported_anew(
    refused: Refused, saved: Tensor, nets: Any
) -> None:
    torch.export.save(torch.export.export(nets.rows(), (torch.rand(2, 30),)), "fixed.pt2")
    said = refused(*ASKED, "--model=fixed.pt2", "--trust")
    assert "exported for batches of 2 alone; export it with dynamic_shapes" in said


def test_a_folder_cannot_say_that_its_network_is_trusted(cli: Cli, refused: Refused, saved: Tensor) -> None:
    cli("record", *ASKED[1:5], "--batch-size=1", "--model=net.pt", "--trust", "--out=seen")
    known = json.loads(Path("seen/knowledge.json").read_text())["architecture"]
    assert known == {"use": "net.pt", "options": {"trust": True}}
    for line in (("attack", "seen", "--attack=linear"), ("check", "seen"), ("check", "seen", "--model=net.pt")):
        assert "--trust" in refused(*line)
    cli("attack", "seen", "--attack=linear", "--trust", "--out=run", "--jobs=1")


def test_a_saved_network_is_audited(cli: Cli, saved: Tensor) -> None:
    line = ("audit", "--data=breast_cancer", "--batch-size=1", "--attack=linear", "--jobs=1", "--set=batch.count=1")
    found = cli(*line, "--model=net.pt2", "--trust", "--out=run", "--json")
    assert found.json["rows"][0]["scores"]["psnr"]["mean"] > 60


# --- losses, weights and warnings ----------------------------------------------------------------------------------

SIGMOID = """
import torch.nn.functional as F
from torch import nn


def net():
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())


def own(outputs, targets):
    return F.binary_cross_entropy(outputs.squeeze(1), targets.float())
"""


def test_a_loss_of_ones_own_is_used_where_the_network_ends_in_a_sigmoid(cli: Cli, home: Path) -> None:
    (home / "ends.py").write_text(SIGMOID)
    line = ("audit", "--data=breast_cancer", "--model=ends:net", "--batch-size=1", "--attack=linear", "--jobs=1")
    found = cli(*line, "--set=batch.count=1", "--loss=ends:own", "--out=own", "--json")
    assert found.json["rows"][0]["scores"]["exact"]["mean"] == 1.0
    assert not found.json["cases"][0]["inferred"]
    twice = cli(*line, "--set=batch.count=1", "--loss=binary", "--out=twice", "--json")
    assert "--loss binary takes another" in twice.json["cases"][0]["inferred"]["outputs"]


def test_weights_that_no_file_has_are_said(cli: Cli, home: Path, nets: Any) -> None:
    (home / "headed.py").write_text(
        "from nets import rows\n\n\ndef net():\n    model = rows()\n    model[0].requires_grad_(False)\n"
        "    return model\n"
    )
    model = nets.rows()
    model[0].requires_grad_(False)
    step(model, torch.rand(1, 30), torch.tensor([1]))
    for name in ("before.pt", "after.pt"):
        torch.save({key: t for key, t in torch.load(name).items() if key.startswith("2.")}, name)
    found = cli(*ASKED, "--model=headed:net", "--out=run", "--json")
    said = "not in the files: 496 weights (0.weight, 0.bias); taken from headed:net as built"
    assert cases(found)["weights"].startswith(said)
    assert f"inferred, not stated: weights: {said}" in cli(*ASKED, "--model=headed:net", "--out=run").out


def test_what_a_factory_warns_of_is_one_line(cli: Cli, home: Path, nets: Any) -> None:
    (home / "loud.py").write_text(
        "import warnings\nfrom nets import rows\n\n\ndef net(input_shape, num_classes):\n    for i in range(40):\n"
        "        warnings.warn(f'no-op {i}')\n    return rows()\n"
    )
    step(nets.rows(), torch.rand(1, 30), torch.tensor([1]))
    found = cli("record", *ASKED[1:5], "--model=loud:net", "--out=seen")
    assert found.out.count("no-op") == 1
    assert "'loud:net' warned 40 times while it was built, first of: no-op 0" in found.out
    assert "no-op" not in found.err


# --- nothing is trained unasked ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "steps"),
    [
        ({"model": "fc2"}, {0, 100}),
        ({"model": "mine:net"}, {0}),
        ({"model": "torchvision:resnet18"}, {0}),
        ({"model": "timm:resnet10t"}, {0}),
        ({"model": "fc2", "weights": "some.pt"}, {0}),
        ({"model": "mine:net", "settings": ["training.steps=100"]}, {100}),
        ({"recipe": "tiny.toml", "model": "mine:net"}, {7}),
    ],
)
def test_the_default_audit_attacks_a_network_of_ones_own_as_it_is(
    known: dict[str, Any], steps: set[int], home: Path
) -> None:
    from seepage.cli.options import SimulationOptions, tables_of

    (home / "tiny.toml").write_text(f"{(home / 'tiny.toml').read_text()}\n[training]\nsteps = 7\n")
    tables = tables_of(known.pop("recipe", None), SimulationOptions(**known))
    swept = tables.get("grid", {}).get("training.steps", [tables.get("training", {}).get("steps", 0)])
    assert set(swept) == steps


def test_weights_of_a_factory_of_ones_own_are_not_called_fresh() -> None:
    own = Recipe(model=Spec("mine:net"))
    assert _history(own) == "weights it comes with"
    assert _history(Recipe(model=Spec("fc2"))) == "freshly initialized"
    assert _history(replace(own, training=replace(own.training, steps=5))) == "weights it comes with, trained 5 steps"


@pytest.mark.full
def test_the_default_audit_unmixes_two_images_of_a_vision_transformer(cli: Cli) -> None:
    model = "vit:patch=32,width=32,depth=1,heads=2,hidden=32"
    sized = ("--set=data.size=64", "--batch-size=2", "--set=batch.count=1", "--set=training.steps=0")
    found = cli("audit", "--model", model, *sized, "--out=run", "--no-pictures", "--jobs=1", "--json")
    (row,) = [row for row in found.json["rows"] if row["attack"] == "patch_unmixing"]
    recovered = row["scores"]["recovered"]
    assert (recovered["mean"], recovered["n"]) == (1.0, 2)
    assert found.json["verdict"].startswith("LEAKS")
