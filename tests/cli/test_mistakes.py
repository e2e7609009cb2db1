"""A user's mistakes: one sentence with what, why and the remedy, exit code 2, and no file touched."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Refused = Callable[..., str]

UNKNOWN = {
    "attack": (["--attack", "lineer"], "linear"),
    "model": (["--model", "fc3"], "fc2"),
    "data": (["--data", "facez"], "faces"),
    "client": (["--set", "client.use=fedsgdd"], "fedsgd"),
    "defense": (["--set", 'defense=[{use="sparsifi"}]'], "sparsify"),
    "thing to tell": (["--known", "label"], "labels"),
    "key": (["--set", "bach.size=3"], "batch"),
    "option of the model": (["--set", "model.hiden=3"], "hidden"),
    "library model": (["--model", "torchvision:resnet19", "--set", "data.channels=3"], "resnet18"),
    "score": (["--fail-if", "pnsr>20"], "psnr"),
}


def test_an_unknown_name_lists_near_ones(refused: Refused) -> None:
    for kind, (arguments, near) in UNKNOWN.items():
        assert f"did you mean '{near}'" in refused("audit", "tiny.toml", *arguments), kind


WRONG = {
    "a text for a number": ("batch.size=big", "whole number"),
    "NaN": ("score.exact_db=nan", "number"),
    "no list": ("knowledge.known=labels", "a list"),
    "a number for a table": ("data=3", "table"),
    "a number for a list of tables": ("attack=3", "[[attack]]"),
    "a number for a path": ("data.root=3", "a path"),
    "a number for a function": ("data.progress=3", "a function"),
    "a number for a grid's list": ("grid.seed=3", "list"),
    "a table below a number": ("seed.x=3", "whole number"),
    "more examples than there are": ("batch.size=99999", "lower batch.size"),
    "no steps": ("training.steps=-1", "steps must be a whole number >= 0"),
    "an absurd size": ("data.size=100000", "between 1 and"),
    "five channels": ("data.channels=5", "1 (grey) or 3 (RGB)"),
    "a width below zero": ("model.hidden=-3", "at least 1"),
    "a width beyond all memory": ("model.hidden=10000000000000", "cannot be built"),
    "a data seed of 100 bits": (f"data.seed={2**100}", "2**63"),
    "an option no attack takes": ("attack.stepz=3", "takes the option"),
    "an option no defense takes": ("defense.keep=0.1", "takes the option"),
    "an attack's bad value": ("attack.labels=guess", "one of"),
    "a setting without =": ("nothing", "KEY=VALUE"),
    "a setting without a key": ("=3", "KEY=VALUE"),
    "a device torch cannot use": ('device="meta"', "--device cpu"),
    "a device that is none": ('device="gpu"', "--device cpu"),
}


def test_a_wrong_setting_is_refused(refused: Refused) -> None:
    """One of each kind: what type a value must have is `test_named`, and what a recipe may say `test_recipe`."""
    for what, (setting, words) in WRONG.items():
        assert words in refused("audit", "tiny.toml", "--jobs", 1, "--set", setting), what


NUMBERS = list(range(200))
LARGE = f'grid={{"seed"={NUMBERS}, "batch.size"={NUMBERS}, "training.steps"={NUMBERS}}}'
REFUSED = [
    (["audit", "defalt"], "did you mean 'default'"),
    (["list", "attack"], "did you mean 'attacks'"),
    (["audit", "tiny.toml", "--attack", "xyz"], "linear"),
    (["audit", "tiny.toml", "--set", "seed=1", "--set", "seed.x=2"], "set seed itself"),
    (["audit", "tiny.toml", "--set", "attack=3", "--set", "attack.steps=2"], "takes the option"),
    (["audit", "tiny.toml", "--set", LARGE], "8000000 combinations"),
    (["audit", "tiny.toml", "--set", 'data="faces"', "--set", 'grid={"data.size"=[8]}'], "has no options"),
    (["audit", "tiny.toml", "--fail-if", "psnr=20"], "SCORE>NUMBER"),
    (["audit", "nofile.toml"], "No such file"),
    (["audit", "photos"], "--data photos"),
    (["audit", "photos.zip"], "--data photos.zip"),
    (["audit", ""], "no recipe"),
    (["frontier", ""], "looks like data"),
    (["audit", "--data", "pics\udcff"], "rename the file or folder"),
    *((["audit", "--set", f"{key}=5"], "KEY=VALUE") for key in ("batch.", ".size", "batch..size", " . ")),
]


def test_what_cannot_be_meant_is_refused_with_the_remedy(home: Path, refused: Refused) -> None:
    (home / "photos").mkdir()
    for arguments, words in REFUSED:
        assert words in refused(*arguments), arguments


def test_all_mistakes_of_a_recipe_are_reported_at_once(home: Path, cli: Callable[..., object]) -> None:
    (home / "bad.toml").write_text(
        'seed = "x"\nsurplus = 1\n[data]\nuse = "facez"\nseed = 3\nsizes = 8\n[model]\nuse = "fc9"\n'
        "[batch]\nsize = 0\n[knowledge]\nknown = 3\n[[defense]]\nuse = 'sparsify'\nkeep = 7\n"
        "[[attack]]\nuse = 'dgl'\n[[attack]]\nuse = 'dlg'\nsteps = 'many'\n"
    )
    found = cli("audit", "bad.toml", code=2)
    problems = [line for line in found.err.splitlines() if line.startswith("  - ")]
    for words in (
        "seed must",
        "surplus",
        "sizes",
        "unknown data",
        "'fc9'",
        "[batch]: size",
        "[knowledge]",
        "(0, 1]",
        "'dgl'",
        "'many'",
    ):
        assert sum(words in problem for problem in problems) == 1, (words, problems)
    assert len(problems) == 10
    assert not (home / "runs").exists()


def test_a_recipe_that_is_no_toml_is_refused(home: Path, refused: Refused) -> None:
    (home / "bad.toml").write_text("[data\nuse = 3")
    assert "line 1" in refused("audit", "bad.toml")
    (home / "bad.toml").write_bytes(b"\xff\xfe")
    assert "not valid TOML" in refused("audit", "bad.toml", "--dry-run")
    (home / "bad.toml").write_text("x = " + "[" * 100_000)
    assert "not valid TOML" in refused("audit", "bad.toml", "--dry-run")


OWN_CODE = {
    "no such module": (["--model", "nomodule:x"], "cannot import"),
    "no such function": (["--model", "os:system_"], "did you mean"),
    "a factory that wants other arguments": (["--model", "os:system"], "needs the option 'command'"),
    "no factory": (["--model", "os:name"], "not a factory"),
    "no attack": (["--attack", "os:getcwd"], "not a seepage.Attack"),
    "nothing to call": (["--attack", "os:name"], "cannot call"),
    "a type without a signature": (["--attack", "builtins:dict"], "cannot call"),
    "a defense that is none": (["--set", 'defense=[{use="os:getcwd"}]'], "not a seepage.Defense"),
    "a factory of no module": (["--model", "mine:number"], "not a torch.nn.Module"),
    "a model with other outputs": (["--model", "mine:five"], "logits of shape"),
    "a model that fails": (["--model", "mine:broken"], "mine.py line 8"),
    "a model that cannot train on one example": (["--model", "mine:normed"], "--batch-size"),
    "a model that cannot take the images": (["--model", "mine:narrow"], "cannot take inputs"),
}
MINE = """
from torch import nn
def number(shape, classes): return 3
def five(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
def narrow(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(9, classes))
def normed(shape, classes): return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))
def broken(shape, classes):
    raise KeyError("oh")
"""


def test_own_code_that_does_not_work_is_refused(home: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "mine.py").write_text(MINE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    for what, (arguments, words) in OWN_CODE.items():
        assert words in refused("audit", "tiny.toml", "--jobs", 1, *arguments), what


PLACES = [
    (["audit", "tiny.toml", "--data", "weights.pt"], "pickle"),
    (["attack", "update.pt", "--attack", "linear"], "alone is no update"),
    (["attack", "update.pt", "weights.pt", "--attack", "linear"], "not a whole file"),
    (["audit", "tiny.toml", "--data", "nowhere/photos"], "no file or folder"),
    (["attack", "nowhere", "--attack", "linear"], "does not exist"),
    (["attack", "tiny.toml", "--attack", "linear"], "alone is no update"),
    (["attack", ".", "--attack", "linear"], "no recorded update"),
    (["report", "nowhere", "--truth", "."], "no finished run"),
    (["report", "tiny.toml"], "no finished run"),
    (["report", "nowhere"], "no finished run"),
    (["report", "."], "no finished run"),
    (["check", "."], "no recorded update"),
    (["audit", "nowhere", "--dry-run"], "unknown recipe"),
    (["audit", "tiny.toml", "--dry-run", "--set", "batch.size=0"], "size must be a whole number >= 1"),
    (["record", "tiny.toml", "--set", "batch.size=0"], "size must be a whole number >= 1"),
    (["audit", "tiny.toml", "--out", "tiny.toml"], "is a file"),
    (["audit", "tiny.toml", "--out", "."], "not empty"),
    (["record", "tiny.toml", "--out", "."], "not empty"),
    (["audit", "tiny.toml", "--out", "tiny.toml/below"], "--out"),
    (["audit", "tiny.toml", "--out", "/proc/run"], "--out"),
]


def test_paths_that_are_not_what_they_should_be(home: Path, refused: Refused) -> None:
    for name in ("weights.pt", "update.pt"):
        (home / name).write_bytes(b"\x80\x04.")
    for arguments, words in PLACES:
        assert words in refused(*arguments), arguments


def test_typers_own_mistakes_exit_with_2(cli: Callable[..., object]) -> None:
    for arguments in (
        ["attac"],
        ["audit", "--jbos", "3"],
        ["audit", "--jobs", "0"],
        ["attack", "x"],
        ["audit", "--seed", "x"],
    ):
        found = cli(*arguments, code=2)
        assert "Traceback" not in found.err


@pytest.mark.slow
def test_the_program_itself_shows_no_traceback(home: Path) -> None:
    command = [sys.executable, "-m", "seepage.cli", "audit", "tiny.toml", "--attack", "lineer"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1


def test_examples_without_labels_are_refused(refused: Callable[..., str], home: Path) -> None:
    np.savez(home / "bare.npz", x=np.zeros((8, 8, 8, 3), np.uint8), y=np.full(8, -1))
    assert "one class only" in refused("audit", "--data=bare.npz", "--attack=linear", "--batch-size=1", "--quiet")


def test_no_message_is_longer_than_a_screen(refused: Refused) -> None:
    """What was typed is cut in the middle: the remedy at the end stays."""
    for words in (["--set", f"{'x' * 5000}=1"], ["--fail-if", "y" * 5000], ["--attack", "z" * 5000]):
        message = refused("audit", "tiny.toml", *words)
        assert max(map(len, message.split("\n"))) < 820


def test_the_home_of_nobody_is_a_path_like_any_other(refused: Refused) -> None:
    message = refused(
        "audit", "tiny.toml", "--weights", "~nosuchuser/x.pt", "--jobs", 1, "--set", "batch.count=1", "--out", "o"
    )
    assert "~nosuchuser/x.pt" in message
