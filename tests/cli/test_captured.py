"""`seepage attack` on files: two checkpoints or a gradient, in one go, with what nobody told inferred and said."""

import fcntl
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.cli.conftest import Cli
from torch import Tensor, nn

from seepage.base.lock import LOCK
from seepage.base.manifest import renew
from seepage.federation.models import fc2
from seepage.measure.metrics import psnr
from seepage.report.evidence import statement
from seepage.report.evidence.annex import annex
from seepage.report.run import open_run

SHAPE = (1, 8, 8)
Refused = Callable[..., str]


@pytest.fixture
def captured(home: Path) -> Tensor:
    """`before.pt`, `after.pt` (one SGD step at 0.1), `model.safetensors` and `gradient.safetensors`: three examples."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = fc2(SHAPE, 10, hidden=24)
        inputs, labels = torch.rand(3, *SHAPE), torch.tensor([2, 5, 5])
    torch.save(model.state_dict(), home / "before.pt")
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, home / "model.safetensors")
    F.cross_entropy(model(inputs), labels).backward()
    save_file({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, home / "gradient.safetensors")
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.save({"state_dict": {f"module.{n}": t for n, t in model.state_dict().items()}}, home / "after.pt")
    return inputs


HIDDEN = ("--set=model.hidden=24", "--attack=linear", "--jobs=1")


@pytest.mark.parametrize(
    "files",
    [
        ("before.pt", "after.pt", "--lr=0.1"),
        ("before.pt", "after.pt", "--lr=0.1", "--steps=1", "--batch-size=3", "--shape=1,8,8", "--classes=10"),
        ("model.safetensors", "--gradient=gradient.safetensors"),
        ("before.pt", "--gradient=gradient.safetensors", "--model=fc2"),
    ],
    ids=["step", "all told", "gradient", "gradient and state_dict"],
)
def test_files_are_attacked_in_one_go(cli: Cli, home: Path, captured: Tensor, files: tuple[str, ...]) -> None:
    found = cli("attack", *files, *HIDDEN, "--out=run", "--json")
    assert found.json["verdict_level"] == "certified"
    assert found.json["rows"][0]["certified"]["n"] == 3
    (outcome,) = home.glob("run/attacks/**/*.safetensors")
    guesses = load_file(outcome)["inputs"]
    best = [max(float(psnr(guess[None], example[None])) for guess in guesses) for example in captured]
    assert min(best) > 50
    assert sorted(path.name for path in home.iterdir() if path.is_dir()) == ["run"]


def test_what_is_inferred_is_said_everywhere(cli: Cli, home: Path, captured: Tensor) -> None:
    asked = ("attack", "before.pt", "--gradient=gradient.safetensors", *HIDDEN, "--out=run")
    lines = [line for line in cli(*asked).out.splitlines() if "not stated: " in line]
    assert [line.split(": ")[1] for line in lines if line.startswith("not stated: ")] == ["classes", "assumed loss"]
    assert [line.split(": ")[1] for line in lines] == ["input shape", "classes", "assumed loss", "batch size", "labels"]
    assert "batch size: 3 or more, from the rank of 2.weight" in lines[3]
    assert "classes 2 (1 or more), 5 (2 or more)" in lines[4]
    found = cli(*asked, "--json").json
    assert found["finished_earlier"]
    (case,), (row,) = found["cases"], found["rows"]
    assert case["inferred"]["batch size"].startswith("3")
    assert "batch size" not in row["known"]
    assert "client rule" in row["known"]
    page = (home / "run" / "report.html").read_text()
    assert "Inferred, not stated" in page
    assert "3 or more, from the rank of 2.weight" in page


def test_what_is_told_is_not_inferred(cli: Cli, home: Path, captured: Tensor) -> None:
    known = ("--batch-size=3", "--shape=1,8,8", "--classes=10")
    found = cli("attack", "before.pt", "--gradient=gradient.safetensors", *HIDDEN, *known, "--json").json
    assert set(found["cases"][0]["inferred"]) == {"assumed loss", "labels"}
    assert "batch size" in found["rows"][0]["known"]
    wrong = cli("attack", "before.pt", "--gradient=gradient.safetensors", *HIDDEN, "--batch-size=2", "--json").json
    assert wrong["cases"][0]["batch_size"] == 2, "who knows believes it"


def test_the_shape_that_is_taken_for_somebodys_own_network_is_said(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its factory has a number of classes of its own, and pools: pictures of any shape fit its weights."""
    (home / "pooled.py").write_text(
        "from torch import nn\n\ndef make(input_shape, num_classes):\n"
        "    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())\n"
        "    return nn.Sequential(*pooled, nn.Linear(32, 20))\n"
    )
    monkeypatch.syspath_prepend(str(home))
    import pooled  # type: ignore[import-not-found]

    torch.manual_seed(0)
    model = pooled.make(None, None)
    torch.save(model.state_dict(), "sent.pt")
    torch.nn.functional.cross_entropy(model(torch.rand(2, 3, 48, 48)), torch.tensor([3, 17])).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.save(model.state_dict(), "back.pt")
    asked = ("attack", "sent.pt", "back.pt", "--lr=0.1", "--model=pooled:make", "--attack=linear", "--out=run")
    found = cli(*asked, code=2)
    said = "input shape: assumed: 3,32,32, to which the weights fit, as they do 3,28,28 and perhaps others"
    assert said in found.out
    assert said in (home / "run" / "report.html").read_text()
    assert "--shape" in found.out.partition(said)[2]
    assert "local steps: 1" in found.out
    known = cli(*asked[:-1], "--out=told", "--shape=3,48,48", code=2).out
    assert "input shape" not in known


def test_a_batch_size_given_later_goes_before_an_inferred_one(cli: Cli, home: Path, captured: Tensor) -> None:
    cli("record", "before.pt", "--gradient=gradient.safetensors", "--set=model.hidden=24")
    found = cli("attack", "observed", "--attack=linear", "--jobs=1", "--batch-size=4", "--json").json
    assert found["cases"][0]["batch_size"] == 4
    assert "batch size" not in found["cases"][0]["inferred"]
    assert "batch size" in found["rows"][0]["known"]


def test_recorded_folders_without_a_batch_size_have_it_inferred(cli: Cli, home: Path, captured: Tensor) -> None:
    """What a recorder in a training writes where the client does not tell its examples."""
    from seepage import Architecture, FedSGD
    from seepage.recorder.recorder import Recorder

    seen = Recorder(
        home / "seen", architecture=Architecture("fc2", {"hidden": 24}), input_shape=SHAPE, num_classes=10,
        client=FedSGD(), lr=0.1,
    )  # fmt: skip
    before, after = torch.load("before.pt"), torch.load("after.pt")["state_dict"]
    for client, state in enumerate((after, {f"module.{name}": tensor for name, tensor in after.items()})):
        seen.record(before, state, t=0, client=client, examples=3 if client else None)
    seen.record(before, {name: after[f"module.{name}"] for name in ("4.weight", "4.bias")}, t=0, client=2)
    asked = ("attack", "seen", "--attack=linear", "--jobs=1", "--out=run")
    lines = [line for line in cli(*asked).out.splitlines() if line.startswith("inferred, not stated: ")]
    assert "batch size: 3 or more, from the rank of 2.weight" in lines[0]
    found = cli(*asked, "--json").json
    assert [case["batch_size"] for case in found["cases"]] == [3, 3, 3]
    known = [("batch size" in row["known"], (row["certified"] or {}).get("n")) for row in found["rows"]]
    assert known == [(False, 3), (True, 3), (False, None)]
    assert "were not returned" in found["cases"][2]["inferred"]["tensors left out"]


def test_several_steps_are_read_as_such(cli: Cli, home: Path, captured: Tensor) -> None:
    found = cli("attack", "before.pt", "after.pt", "--lr=0.05", "--steps=2", *HIDDEN, "--json").json
    assert found["cases"][0]["client"].startswith("FedAvg(lr=0.05, epochs=1, steps=2")
    assert "local steps" not in found["cases"][0]["inferred"]


@pytest.mark.slow
def test_the_same_files_give_the_same_run_and_others_another(cli: Cli, home: Path, captured: Tensor) -> None:
    asked = ("attack", "before.pt", "after.pt", "--lr=0.1", *HIDDEN, "--json")
    first, again = cli(*asked).json, cli(*asked).json
    assert (first["finished_earlier"], again["finished_earlier"]) == (False, True)
    assert first["run"] == again["run"]
    assert cli(*asked, "--seed=1").json["run"] != first["run"]
    assert cli("attack", "before.pt", "after.pt", "--lr=0.2", *HIDDEN, "--json").json["run"] != first["run"]
    state = torch.load(home / "after.pt", weights_only=True)["state_dict"]
    torch.save({name: 1.01 * tensor for name, tensor in state.items()}, home / "after.pt")
    assert cli(*asked, code=2).json["run"] != first["run"]


@pytest.mark.parametrize("own", [False, True])
def test_the_command_that_it_names_for_scoring_is_not_refused(
    cli: Cli, home: Path, captured: Tensor, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "mynet.py").write_text(
        "from seepage.federation.models import fc2\n\n"
        "def make(shape, classes, hidden):\n    return fc2(shape, classes, hidden=hidden)\n"
    )
    monkeypatch.syspath_prepend(home)
    pictures = (captured.permute(0, 2, 3, 1) * 255).round().byte().numpy()
    np.savez(home / "mine.npz", x=pictures, y=np.array([2, 5, 5]))
    known = ("--batch-size=3", "--shape=1,8,8", "--classes=10", f"--model={'mynet:make' if own else 'fc2'}")
    found = cli("attack", "before.pt", "after.pt", "--lr=0.1", *known, *HIDDEN, "--out=run")
    (said,) = re.findall(r"seepage (report RUN[\w\s/-]*)", " ".join(found.out.split()).partition(" reconstruction ")[0])
    assert ("--trust" in said) == own
    again = cli(*said.replace("RUN", "run").replace("FILE", "mine.npz").split())
    assert "exactly" in again.out


def test_whether_guesses_give_the_update_is_said_where_nothing_scores_them(
    cli: Cli, home: Path, captured: Tensor
) -> None:
    asked = (
        "attack",
        "before.pt",
        "after.pt",
        "--lr=0.1",
        *HIDDEN,
        "--attack=gradient_matching:steps=3",
        "--all",
        "--out=run",
    )
    known = ("--batch-size=3", "--shape=1,8,8", "--classes=10", "--details")
    out = " ".join(cli(*asked, *known).out.split())
    table = out.partition("inferred")[0]
    assert "median" not in table  # columns of scores that nothing has
    assert re.search(r"linear [\d.]+ not scored, 3 certified", table)
    off = re.search(r"gradient_matching [\d.]+ not scored, update off by ([\d.]+) %", table)
    assert off is not None
    rows = json.loads((home / "run" / "result.json").read_text())["rows"]
    assert rows[0]["misfit"] < 1e-4
    assert rows[1]["misfit"] == pytest.approx(float(off[1]) / 100, rel=0.1)
    page = " ".join((home / "run" / "report.html").read_text().split())
    assert f"update off by {off[1]} %" in page


@pytest.mark.slow
def test_a_batch_size_that_the_rank_contradicts_is_said_once_where_people_look(
    cli: Cli, home: Path, captured: Tensor
) -> None:
    words = "a layer has a gradient of rank 3"
    asked = ("attack", "before.pt", "after.pt", "--lr=0.1", "--steps=1", *HIDDEN)
    out = " ".join(cli(*asked, "--batch-size=2", "--out=run").out.split())
    assert out.count(words) == 1
    assert "--batch-size" in out
    page = " ".join((home / "run" / "report.html").read_text().split())
    assert page.count(words) == 1
    assert words in " ".join(cli("check", "run/observed").out.split())
    assert words not in cli(*asked, "--batch-size=3", "--out=right").out


@pytest.mark.parametrize("pull", [0.0, 0.002])
@pytest.mark.full
def test_what_to_question_is_said_once_where_nothing_explains_the_update(cli: Cli, home: Path, pull: float) -> None:
    """A penalty on absolute weights: no attack gave a result, and nothing said what may be behind that."""
    torch.manual_seed(0)
    model = fc2(SHAPE, 10, hidden=24)
    torch.save(model.state_dict(), home / "before.pt")
    penalty = torch.stack([p.abs().sum() for p in model.parameters()]).sum()
    (F.cross_entropy(model(torch.rand(3, *SHAPE)), torch.tensor([2, 5, 7])) + pull * penalty).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.save(model.state_dict(), home / "after.pt")
    asked = ("attack", "before.pt", "after.pt", "--lr=0.1", "--steps=1", "--batch-size=3", "--shape=1,8,8", *HIDDEN)
    out = " ".join(cli(*asked, "--out=run", code=2 if pull else 0).out.split())
    page = " ".join((home / "run" / "report.html").read_text().split())
    lead = "No attack here explains the update with the client settings that were stated or inferred."
    assert [text.count(lead) for text in (out, page)] == ([1, 1] if pull else [0, 0])
    if pull:
        for option in ("--loss", "--lr, --steps, --client", "--weight-decay", "--batch-size"):
            assert option in out.partition(lead)[2], option
        assert "batch norm" not in out.partition(lead)[2]


def test_a_certificate_is_not_called_no_copy_where_the_told_loss_is_wrong(cli: Cli, home: Path) -> None:
    torch.manual_seed(0)
    model = fc2(SHAPE, 10)
    with torch.no_grad():
        model[-1].weight.mul_(0.35)  # so that classes move alike
        model[-1].bias[:5] += 1.0  # so that the examples' losses differ
    torch.save(model.state_dict(), home / "before.pt")
    logits, labels = model(torch.rand(3, *SHAPE)), torch.tensor([2, 5, 7])
    losses = F.cross_entropy(logits, labels, reduction="none")
    ((1 - (-losses).exp()).square() * losses).mean().backward()  # a focal loss (Lin et al. 2017)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.save(model.state_dict(), home / "after.pt")
    asked = ("--lr=0.1", "--steps=1", "--batch-size=3", "--shape=1,8,8", "--attack=linear", "--out=run")
    out = " ".join(cli("attack", "before.pt", "after.pt", *asked).out.split())
    assert "3 guesses certified, by linear" in out
    assert "no exact copies" not in out
    assert "is not the client's: cross_entropy (--loss)" in out


def test_the_truth_scores_it_later(cli: Cli, home: Path, captured: Tensor) -> None:
    cli("attack", "before.pt", "after.pt", "--lr=0.1", *HIDDEN, "--out=run", "--quiet")
    pictures = (captured.permute(0, 2, 3, 1) * 255).round().byte().numpy()
    np.savez(home / "mine.npz", inputs=pictures, labels=np.array([2, 5, 5]))
    np.savez(home / "part.npz", x=pictures[:2], y=np.array([2, 5]))
    assert "attack it with --batch-size 2" in cli("report", "run", "--truth=part.npz", code=2).err
    (row,) = cli("report", "run", "--truth=mine.npz", "--json").json["rows"]
    assert row["scores"]["exact"]["mean"] == 1.0


def test_what_was_told_otherwise_is_said_where_it_leaves_no_result_at_all(
    cli: Cli, home: Path, captured: Tensor
) -> None:
    line = ("attack", "before.pt", "after.pt", *HIDDEN, "--lr=0.1", "--quiet")
    cli(*line, "--out=right")
    wrong = cli(*line, "--weight-decay=0.01", "--out=wrong", code=2)
    assert wrong.out.startswith("NO RESULT"), wrong.out
    found = cli("compare", "right", "wrong", code=2)
    assert re.search(r"weight decay of .*: 0 of each weight -> 0\.001 of each weight\n", found.out)
    assert "certified 3" in found.out
    cli("compare", "wrong", "right", code=1)  # what an attack did not find, and now does


def test_the_report_captions_each_picture_without_a_truth_by_what_is_proved_of_it(
    cli: Cli, home: Path, captured: Tensor
) -> None:
    asked = ("attack", "before.pt", "--gradient=gradient.safetensors", "--set=model.hidden=24", "--jobs=1", "--out=run")
    cli(*asked, "--attack=linear", "--attack=inverting_gradients:steps=3", "--all")
    page = (home / "run" / "report.html").read_text()
    strips = dict(re.findall(r'<tr>\s*<th scope="row">([\w<>]+)<small>(.*?)</tr>', page, re.S))
    linear, matching = strips["linear"], strips["inverting_<wbr>gradients"]
    assert linear.startswith("3 of 3 guesses certified")
    assert linear.count("<small>certified</small>") == 3
    assert "linear, example 1, certified:" in linear
    assert "not scored" in matching
    assert "<small>certified</small>" not in matching
    (path,) = home.glob("run/reconstructions/**/linear.safetensors")
    tensors = load_file(path)
    tensors["000000/certified"][1] = False
    save_file(tensors, path)
    renew(home / "run", [path.relative_to(home / "run").as_posix()])
    cli("report", "run")
    page = (home / "run" / "report.html").read_text()
    assert (page.count('96"><small>certified</small>'), page.count('96"><small>not certified</small>')) == (2, 1)
    assert "linear, example 2, not certified:" in page
    np.savez(home / "mine.npz", x=captured.numpy(), y=np.array([2, 5, 5]))
    cli("report", "run", "--truth=mine.npz")
    assert "certified</small>" not in (home / "run" / "report.html").read_text()  # decibels stand there


@pytest.mark.slow
def test_another_learning_rate_is_said_before_anything_is_called_better(cli: Cli, home: Path, captured: Tensor) -> None:
    """Of the same files, so that one of the two statements was wrong; no gate passes on it."""
    line = ("attack", "before.pt", "after.pt", *HIDDEN)
    cli(*line, "--lr=0.1", "--out=right")
    cli(*line, "--lr=0.3", "--loss=bce", "--out=wrong")
    found = cli("compare", "right", "wrong", code=2)
    assert re.match(r"known or set otherwise:\n  client of .*", found.out)
    assert re.search(r"learning rate of .*: 0\.1 -> 0\.3\n", found.out)
    assert "NOT WORSE" not in found.out
    record = cli("compare", "right", "wrong", "--json", code=2).json
    assert (len(record["caveats"]) >= 2, record["worse"]) == (True, 0)
    assert list(record).index("caveats") < list(record).index("changes")
    gate = cli(*line, "--lr=0.3", "--loss=bce", "--out=wrong", "--baseline=right", "--quiet", code=2)
    assert "learning rate" in gate.err
    assert cli("compare", "right", "right").out.startswith("NOT WORSE")
    np.savez(home / "mine.npz", x=captured.numpy(), y=np.array([2, 5, 5]))
    before = json.loads((home / "right" / "result.json").read_text())["cases"][0]
    cli("report", "right", "--truth=mine.npz")
    after = json.loads((home / "right" / "result.json").read_text())["cases"][0]
    assert (after["files"], after["rate"]) == (before["files"], 0.1)


@pytest.mark.slow
def test_a_certificate_that_proves_false_is_said_in_the_terminal(cli: Cli, home: Path, captured: Tensor) -> None:
    """A truth of other examples: whatever was certified is none of them, or the truth is the wrong one."""
    cli("attack", "before.pt", "--gradient=gradient.safetensors", *HIDDEN, "--out=run")
    np.savez(home / "other.npz", x=1 - captured.numpy(), y=np.array([2, 5, 5]))
    np.savez(home / "mine.npz", x=captured.numpy(), y=np.array([2, 5, 5]))
    found = cli("report", "run", "--truth=other.npz")
    words = " ".join(found.out.split())
    assert "FALSE CERTIFICATE. 3 of 3 guesses that linear certified" in words
    assert "3 false certificates" in words.partition("recovered: ")[0]  # the table
    assert cli("report", "run", "--truth=other.npz", "--quiet").out.startswith("FALSE CERTIFICATE.")
    known = cli("report", "run", "--truth=other.npz", "--json").json
    assert known["rows"][0]["certified"]["wrong"] == 3
    assert known["verdict"].startswith("FALSE CERTIFICATE.")
    assert "FALSE" not in cli("report", "run", "--truth=mine.npz").out
    # The paper says what the guesses were scored with: the file given last, and once.
    (scored,) = [file for file in json.loads((home / "run/env.json").read_text())["files"] if file["name"] == "--truth"]
    assert scored["sha256"] == hashlib.sha256((home / "mine.npz").read_bytes()).hexdigest()
    assert scored["sha256"][:16] in annex(statement.evidence_of(open_run(home / "run")), digest="0")


def test_a_truth_scores_nothing_while_another_process_writes(cli: Cli, home: Path, captured: Tensor) -> None:
    cli("attack", "before.pt", "after.pt", "--lr=0.1", *HIDDEN, "--attack=linear", "--out=run", "--quiet")
    pictures = (captured.permute(0, 2, 3, 1) * 255).round().byte().numpy()
    np.savez(home / "mine.npz", x=pictures, y=np.array([2, 5, 5]))
    before = (home / "run" / "result.json").read_bytes()
    with (home / "run" / LOCK).open("w") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        found = cli("report", "run", "--truth=mine.npz", code=2)
    assert "another process is writing to" in found.err
    assert (home / "run" / "result.json").read_bytes() == before


def test_mistakes_are_one_sentence_and_leave_nothing(
    cli: Cli, home: Path, captured: Tensor, refused: Refused, observed: Path
) -> None:
    both = ("before.pt", "after.pt", "--lr=0.1")
    assert "alone is no update" in refused("attack", "before.pt", *HIDDEN)
    assert "--gradient FILE" in refused("attack", "before.pt", "model.safetensors", "--gradient=after.pt", *HIDDEN)
    assert "does not exist" in refused("attack", "nothing.pt", "after.pt", *HIDDEN)
    assert "does not exist" in refused("attack", "before.pt", "nothing.pt", *HIDDEN)
    assert "is a folder" in refused("attack", observed, "--lr=0.1", "--attack=linear")
    assert "is a folder" in refused("attack", observed, "after.pt", "--attack=linear")
    assert "unknown attack" in refused("attack", *both, "--set=model.hidden=24", "--attack=liner")
    assert "does not fit the model" in refused("attack", *both, "--attack=linear")
    assert "a label names the rows" in refused("attack", *both, *HIDDEN, "--set=model.label=x")
    assert "--steps must be from 1" in refused("attack", *both, *HIDDEN, "--steps=0")
    assert "neither --lr nor" in refused("attack", "before.pt", "--gradient=gradient.safetensors", "--lr=1", *HIDDEN)
    assert "plain SGD" in refused("attack", *both, "--client=fedavg", "--set=client.lr=0.2", *HIDDEN)
    assert "zero everywhere" in refused("attack", "before.pt", "model.safetensors", "--lr=0.1", *HIDDEN)
    (home / "run").mkdir()
    (home / "run" / "mine.txt").write_text("keep")
    assert "is not empty" in refused("attack", *both, *HIDDEN, "--out=run")


class _Code:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("import pathlib; pathlib.Path('ran').write_text('oh')",)


def test_no_file_is_unpickled(home: Path, captured: Tensor, refused: Refused) -> None:
    torch.save({"weight": _Code()}, home / "evil.pt")
    torch.save(nn.Linear(2, 2), home / "module.pt")
    for file in ("evil.pt", "module.pt"):
        assert "could run code" in refused("attack", "before.pt", file, "--lr=0.1", *HIDDEN)
        assert "could run code" in refused("attack", file, "after.pt", "--lr=0.1", *HIDDEN)
        assert "could run code" in refused("attack", file, "--gradient=gradient.safetensors", *HIDDEN)
    assert not (home / "ran").exists()


def test_inferences_of_strangers_are_texts_of_bearable_length(cli: Cli, home: Path, observed: Path) -> None:
    path = observed / "knowledge.json"
    record = json.loads(path.read_text())
    bad = {"batch size": "\x1b[2J<script>alert(1)</script>", "long": "a" * 10_000, "other": 3, "b" * 9000: "x"}
    path.write_text(json.dumps({**record, "inferred": bad}))
    found = cli("attack", observed, "--attack=linear", "--jobs=1", "--out=run")
    assert "\x1b" not in found.out
    assert max(map(len, found.out.splitlines())) < 1200
    assert "<script>" not in (home / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("outputs", "options", "target"),
    [(1, ("--loss=binary",), None), (1, ("--loss=mse",), "value"), (3, ("--loss=mse", "--target=value"), "value")],
)
def test_checkpoints_of_another_loss_are_read_by_it(
    cli: Cli, home: Path, outputs: int, options: tuple[str, ...], target: str | None
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, outputs))
    names = {"1": "2", "3": "4"}  # of fc2, whose first layer normalizes
    named = lambda: {f"{names[n.partition('.')[0]]}.{n.partition('.')[2]}": t for n, t in model.state_dict().items()}  # noqa: E731
    torch.save({name: tensor.clone() for name, tensor in named().items()}, home / "before.pt")
    x = torch.rand(1, *SHAPE)
    wanted = torch.ones(1, outputs)
    loss = F.binary_cross_entropy_with_logits if "--loss=binary" in options else F.mse_loss
    loss(model(x), wanted).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.save(named(), home / "after.pt")
    asked = ("attack", "before.pt", "after.pt", "--lr=0.1", "--steps=1", "--batch-size=1", "--shape=1,8,8", *HIDDEN)
    found = cli(*asked, *options, "--out=run", "--json")
    assert found.json["rows"][0]["certified"]["n"] == 1
    known = json.loads((home / "run" / "observed" / "knowledge.json").read_text())
    assert known.get("target") == target
    (outcome,) = home.glob("run/attacks/**/*.safetensors")
    label = load_file(outcome)["labels"].double()
    torch.testing.assert_close(label.flatten(), wanted.flatten().double(), atol=1e-3, rtol=0)


def test_one_output_is_asked_for_its_loss(cli: Cli, home: Path) -> None:
    model = nn.Linear(4, 1)
    torch.save(model.state_dict(), home / "before.pt")
    torch.save({name: tensor + 0.1 for name, tensor in model.state_dict().items()}, home / "after.pt")
    (home / "lone.py").write_text("from torch import nn\ndef net(shape, classes):\n    return nn.Linear(4, classes)\n")
    asked = ("attack", "before.pt", "after.pt", "--model=lone:net", "--shape=4", "--classes=1", "--lr=0.1", "--jobs=1")
    found = cli(*asked, code=2)
    assert "add --loss binary" in found.err


def test_a_network_of_rows_is_given_rows(home: Path, cli: Cli) -> None:
    model = nn.Linear(9, 2)
    torch.save(model.state_dict(), home / "before.pt")
    torch.save({name: tensor + 0.1 for name, tensor in model.state_dict().items()}, home / "after.pt")
    (home / "bare.py").write_text("from torch import nn\ndef net(shape, classes):\n    return nn.Linear(shape[0], 2)\n")
    asked = (
        "attack",
        "before.pt",
        "after.pt",
        "--model=bare:net",
        "--classes=2",
        "--lr=0.1",
        "--jobs=1",
        "--attack=linear",
    )
    found = cli(*asked, "--out=run", "--json", code=2)
    assert found.json["cases"][0]["inferred"]["input shape"] == "9, to which the weights fit"


def test_a_loss_that_was_typed_is_run_and_a_strangers_is_not(cli: Cli, home: Path, captured: Tensor) -> None:
    own = "from torch.nn import functional\ndef smooth(outputs, targets):\n    return functional.cross_entropy("
    (home / "ownloss.py").write_text(f"{own}outputs, targets)\n")
    asked = ("attack", "before.pt", "after.pt", "--lr=0.1", "--steps=1", *HIDDEN, "--out=run", "--batch-size=3")
    found = cli(*asked, "--loss=ownloss:smooth", "--json")
    index = home / "run" / "observed" / "knowledge.json"
    assert json.loads(index.read_text())["client"]["loss"] == "ownloss:smooth"
    index.write_text(index.read_text().replace("ownloss:smooth", "strangers:trap"))
    (home / "run" / "result.json").unlink()
    found = cli(*asked, "--loss=ownloss:smooth", code=2)
    assert "'strangers:trap'" in found.err


def test_rows_of_a_table_are_scored_with_an_npz(cli: Cli, home: Path) -> None:
    """Classes as floats too, as a loss of one logit takes them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, rows = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2)), torch.rand(1, 5)
    (home / "rows.py").write_text(
        "from torch import nn\n"
        "def factory(shape, classes):\n"
        "    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, classes))\n"
    )
    torch.save(net.state_dict(), home / "rows_before.pt")
    F.cross_entropy(net(rows), torch.tensor([1])).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    torch.save(net.state_dict(), home / "rows_after.pt")
    np.savez(home / "batch.npz", x=rows.numpy(), y=np.float32([1]))
    known = ("--model=rows:factory", "--shape=5", "--classes=2", "--lr=0.1", "--batch-size=1", "--attack=linear")
    cli("attack", "rows_before.pt", "rows_after.pt", *known, "--jobs=1", "--out=run")
    scored = cli("report", "run", "--truth", "batch.npz", "--trust")
    assert "1 of 1 examples exactly" in " ".join(scored.out.split())
    np.savez(home / "z.npz", x=8 * rows.numpy() - 4, y=np.float32([1]))  # as its own network reads it
    assert "attack them again with --values=" in cli("report", "run", "--truth=z.npz", "--trust", code=2).err
    net.load_state_dict(torch.load(home / "rows_before.pt"))
    net.zero_grad()
    F.cross_entropy(net(8 * rows - 4), torch.tensor([1])).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    torch.save(net.state_dict(), home / "z_after.pt")
    cli("attack", "rows_before.pt", "z_after.pt", *known, "--jobs=1", "--normalize=0.5,0.125", "--out=scaled")
    for truth in ("z.npz", "batch.npz"):
        scored = cli("report", "scaled", f"--truth={truth}", "--trust", "--json")
        assert scored.json["rows"][0]["scores"]["exact"]["mean"] == 1.0, truth


def test_a_rate_that_makes_several_steps_of_one_is_no_pass(cli: Cli, home: Path, captured: Tensor) -> None:
    """The rate of several local steps stands in the client's rule."""
    line = ("attack", "before.pt", "after.pt", *HIDDEN, "--quiet")
    cli(*line, "--lr=0.1", "--out=right")
    cli(*line, "--lr=0.05", "--out=wrong")
    found = cli("compare", "right", "wrong", code=2)
    assert re.search(r"client of .* -> FedAvg", found.out)
    assert "NOT WORSE" not in found.out


@pytest.mark.full
def test_weight_decay_that_was_inferred_and_then_told_away_is_no_pass(cli: Cli, home: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = fc2(SHAPE, 10, hidden=24)
        inputs, labels = torch.rand(3, *SHAPE), torch.tensor([2, 5, 5])
    torch.save(model.state_dict(), home / "before.pt")
    F.cross_entropy(model(inputs), labels).backward()
    torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5e-4).step()
    torch.save(model.state_dict(), home / "after.pt")
    line = ("attack", "before.pt", "after.pt", *HIDDEN, "--quiet", "--lr=0.1")
    cli(*line, "--out=right")
    cli(*line, "--weight-decay=0", "--out=none", code=2)
    found = cli("compare", "right", "none", code=2)
    assert re.match(r"known or set otherwise:\n  weight decay of .* -> 0 of each weight\n", found.out)
    gate = cli(*line, "--weight-decay=0", "--out=none", "--baseline=right", code=2)
    assert "weight decay of" in gate.err
    assert "another folder" in cli(*line, "--weight-decay=0.0005", "--out=none", code=2).err


def test_the_help_names_no_gate_that_nothing_here_can_judge(cli: Cli, home: Path, captured: Tensor) -> None:
    shown = cli("attack", "--help").out
    assert "'certified>0'" in shown
    assert not re.search(r"'(recovered|named|contradicted)>", shown)
    line = ("attack", "before.pt", "after.pt", *HIDDEN, "--lr=0.1", "--quiet", "--out=run")
    cli(*line, "--fail-if=certified>0", code=1)
    cli(*line, "--fail-if=contradicted>0", code=2)


def test_blocks_of_one_hot_columns_are_stated(cli: Cli) -> None:
    rows = torch.cat([torch.rand(2, 2, generator=torch.Generator().manual_seed(0)), torch.eye(3)[:2]], 1)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    torch.save(model, "net.pt")
    torch.save(model.state_dict(), "before.pt")
    F.cross_entropy(model(rows), torch.tensor([0, 2])).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    torch.save(model.state_dict(), "after.pt")
    asked = ["attack", "before.pt", "after.pt", "--model=net.pt", "--trust", "--lr=0.1", "--batch-size=2", "--shape=5"]
    cli(*asked, "--attack=linear", "--blocks=2:3", "--out=run", code=None)
    assert json.loads(Path("run/observed/knowledge.json").read_text())["blocks"] == [[2, 3]]
    assert "columns of words" in json.loads(Path("run/result.json").read_text())["rows"][0]["known"]
    for wrong in ("2-3", "3:3", "x:1"):
        assert "block" in cli(*asked, f"--blocks={wrong}", "--out=other", code=2).err
