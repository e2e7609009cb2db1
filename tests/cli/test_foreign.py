"""Recorded folders from strangers: refused with a sentence, before anything is believed, run, or allocated."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Cli = Callable[..., Any]
Refused = Callable[..., str]
Damage = Callable[[Path], object]

ROUND = "rounds/000000.safetensors"
MODEL = "model.safetensors"


def facts(**changes: Any) -> Damage:
    """Change keys of `knowledge.json`; a value of `...` takes the key away."""

    def damage(folder: Path) -> None:
        path = folder / "knowledge.json"
        record = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in record.items() if value is not ...}))

    return damage


def text(old: str, new: str) -> Damage:
    """Change the text of `knowledge.json`, for what Python's `json` does not write."""
    path = "knowledge.json"
    return lambda folder: (folder / path).write_text(re.sub(old, new, (folder / path).read_text()))


def tensors(file: str, change: Callable[[Tensor], Tensor], part: str = "") -> Damage:
    """Change every tensor of a safetensors file whose name starts with `part`."""

    def damage(folder: Path) -> None:
        found = {name: tensor.clone() for name, tensor in load_file(folder / file).items()}
        changed = {name: change(t).contiguous() if name.startswith(part) else t for name, t in found.items()}
        save_file(changed, folder / file)

    return damage


def added(file: str, **more: Tensor) -> Damage:
    return lambda folder: save_file(load_file(folder / file) | more, folder / file)


def renamed(file: str, old: str, new: str) -> Damage:
    def damage(folder: Path) -> None:
        found = {name.replace(old, new): tensor.clone() for name, tensor in load_file(folder / file).items()}
        save_file(found, folder / file)

    return damage


def cut(file: str, size: int) -> Damage:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:size])


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def fc2(**options: Any) -> dict[str, Any]:
    return {"use": "fc2", "options": options}


DAMAGED: dict[str, tuple[Damage, str]] = {
    "no knowledge.json": (lambda folder: (folder / "knowledge.json").unlink(), "AFTER"),
    "another schema version": (facts(schema=2), "schema version 2"),
    "no schema version": (facts(schema=...), "schema version None"),
    "a list for a table": (lambda folder: (folder / "knowledge.json").write_text("[1]"), "schema version None"),
    "no JSON": (cut("knowledge.json", 50), "not valid JSON"),
    "empty JSON": (cut("knowledge.json", 0), "not valid JSON"),
    "no text": (lambda folder: (folder / "knowledge.json").write_bytes(b"\xff\xfe\0"), "not valid JSON"),
    "a hundred thousand lists": (lambda folder: (folder / "knowledge.json").write_text("[" * 10**5), "not valid JSON"),
    "NaN in JSON": (text("1.0", "NaN"), "no finite number"),
    "a number beyond floats": (text("1.0", "1e999"), "no finite number"),
    "a number of ten thousand digits": (text('"rounds": 2', f'"rounds": {"9" * 10_000}'), "not valid JSON"),
    "no rounds": (facts(rounds=0), "0 rounds"),
    "a billion rounds": (facts(rounds=10**9), "000002.safetensors is missing"),
    "rounds in words": (facts(rounds="two"), "rounds must be a whole number"),
    "a key missing": (facts(num_classes=...), "needs the option 'num_classes'"),
    "a missing round": (
        lambda folder: (folder / "rounds/000001.safetensors").unlink(),
        "000001.safetensors is missing",
    ),
    "a missing model": (lambda folder: (folder / MODEL).unlink(), "does not exist"),
    "a truncated model": (cut(MODEL, 900), "not a whole safetensors file"),
    "a truncated round": (cut(ROUND, 900), "not a whole safetensors file"),
    "a truncated last round": (cut("rounds/000001.safetensors", 900), "not a whole safetensors file"),
    "a header of absurd length": (lambda f: (f / ROUND).write_bytes(b"\xff" * 8 + b"{}"), "not a whole safetensors"),
    "a pickle in its place": (lambda f: torch.save({"x": torch.ones(1)}, f / ROUND), "not a whole safetensors"),
    "NaN in the update": (tensors(ROUND, lambda t: t * torch.nan, "update"), "NaN or infinite"),
    "infinity in the last update": (tensors("rounds/000001.safetensors", lambda t: t / 0, "update"), "NaN or infinite"),
    "NaN in the model": (tensors(MODEL, lambda t: t * torch.nan), "NaN or infinite"),
    "an update of other shapes": (tensors(ROUND, lambda t: t[:1], "update"), "has shape"),
    "an update of other names": (renamed(ROUND, "weight", "wait"), "has unknown ['2.wait', '4.wait']"),
    "a model of other names": (renamed(MODEL, "params/2", "params/3"), "does not fit the model 'fc2'"),
    "no update": (renamed(ROUND, "update/", "updates/"), "lacks"),
    "a later model of other shapes": (added(ROUND, **{"params/2.weight": torch.ones(3, 3)}), "does not fit"),
    "whole numbers as update": (tensors(ROUND, lambda t: t.long(), "update"), "torch.int64"),
    "complex numbers as update": (tensors(ROUND, lambda t: t.to(torch.complex64), "update"), "torch.complex64"),
    "truth values as model": (tensors(MODEL, lambda t: t.bool()), "torch.bool"),
    "a kind of update that is none": (added(ROUND, kind=torch.tensor([120], dtype=torch.uint8)), "kind 'x'"),
    "a kind in two dimensions": (added(ROUND, kind=torch.ones(2, 2)), "kind"),
    "a delta where gradients are sent": (
        added(ROUND, kind=torch.tensor(list(b"delta"), dtype=torch.uint8)),
        "FedSGD sends gradients",
    ),
    "an unknown client rule": (facts(client={"use": "fedavgg"}), "unknown client rule 'fedavgg'"),
    "a client rule that is no name": (facts(client={"use": ["fedsgd"]}), "unknown client rule"),
    "no client table": (facts(client=None), "client must be a table"),
    "a client option that is none": (facts(client={"use": "fedsgd", "x": 3}), "no option 'x'"),
    "a client option that cannot be": (facts(client={"use": "fedsgd", "mode": "x"}), "one of 'train', 'eval'"),
    "an unknown model": (facts(architecture={"use": "fc9", "options": {}}), "did you mean 'fc2'"),
    "a model that is no table": (facts(architecture="fc2"), "architecture must be a table"),
    "model options that are no table": (facts(architecture={"use": "fc2", "options": [1]}), "a table `options`"),
    "a model option that is none": (facts(architecture=fc2(depth=3)), "no option 'depth'"),
    "a width below zero": (facts(architecture=fc2(hidden=-16)), "at least 1"),
    "a width of a trillion": (facts(architecture=fc2(hidden=10**12)), "(1000000000000,)"),
    "a width of 10**18": (facts(architecture=fc2(hidden=10**18)), "cannot be built"),
    "a trillion classes": (facts(num_classes=10**12), "1000000000000 classes"),
    "a million classes": (facts(num_classes=999_999), "does not fit"),
    "no classes": (facts(num_classes=0), "0 classes"),
    "inputs of no shape": (facts(input_shape=[]), "names inputs of shape"),
    "inputs of negative sides": (facts(input_shape=[1, -8, -8]), "names inputs of shape"),
    "inputs of absurd size": (facts(input_shape=[1, 10**6, 10**6]), "names inputs of shape"),
    "inputs of seventy dimensions": (facts(input_shape=[1] * 70 + [8, 8]), "names inputs of shape"),
    "a shape in words": (facts(input_shape="188"), "input_shape must be a list"),
    "a range that falls": (facts(value_range=[1, 0]), "[low, high]"),
    "a range of one": (facts(value_range=[1]), "[low, high]"),
    "no examples": (facts(batch_size=0), "batch size 0"),
    "a trillion examples": (facts(batch_size=10**12), "batch size 1000000000000"),
    "told garbage": (facts(known=["labels", 3, None, {}]), "known must be a list"),
    "told something unknown": (facts(known=["label"]), "did you mean 'labels'"),
    "known labels that are not there": (facts(known=["labels"]), "lacks the labels"),
    "known labels beyond the classes": (both(facts(known=["labels"]), added(ROUND, labels=torch.tensor([7]))), "0..1"),
    "told too many labels": (
        both(facts(known=["labels"]), added(ROUND, labels=torch.zeros(5, dtype=torch.int64))),
        "one whole number per example",
    ),
    "known labels in fractions": (
        both(facts(known=["labels"]), added(ROUND, labels=torch.zeros(1))),
        "one whole number",
    ),
    "known images that are not there": (facts(known=["auxiliary"]), "auxiliary.safetensors does not exist"),
    "known images of another shape": (
        both(
            facts(known=["auxiliary"]), lambda f: save_file({"inputs": torch.rand(2, 3)}, f / "auxiliary.safetensors")
        ),
        "no finite inputs of shape (1, 8, 8)",
    ),
    "a pretrained model": (
        facts(architecture={"use": "torchvision:resnet18", "options": {"weights": "DEFAULT"}}, input_shape=[3, 8, 8]),
        "refuses the options",
    ),
    "a device in place of a file": (
        lambda folder: ((folder / "knowledge.json").unlink(), (folder / "knowledge.json").symlink_to("/dev/zero")),
        "leads out of it",
    ),
    "a pipe in place of a file": (lambda folder: ((folder / MODEL).unlink(), os.mkfifo(folder / MODEL)), "no file"),
    "a folder in place of a file": (lambda folder: ((folder / MODEL).unlink(), (folder / MODEL).mkdir()), "no file"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_folder_is_refused(what: str, observed: Path, refused: Refused) -> None:
    damage, words = DAMAGED[what]
    damage(observed)
    assert words in refused("attack", observed, "--attack", "linear", "--jobs", 1)
    assert words in refused("check", observed)


CODE = """
import pathlib
pathlib.Path("ran").write_text("oh")
from torch import nn
def make(shape, classes, hidden=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))
"""


def test_somebody_elses_code_is_not_run_unasked(observed: Path, home: Path, refused: Refused) -> None:
    (home / "theirs.py").write_text(CODE)
    for use in ("theirs:make", "os:system"):
        facts(architecture={"use": use, "options": {}})(observed)
        assert f"--model {use}" in refused("attack", observed, "--attack", "linear")
        assert f"--model {use}" in refused("check", observed)
    assert not (home / "ran").exists()
    assert "theirs" not in sys.modules


RULE = """
open("ran", "a").close()
from dataclasses import dataclass
from seepage import FedSGD
@dataclass(frozen=True, kw_only=True, repr=False)
class Halved(FedSGD):
    share: float = 0.5
"""


def test_a_client_rule_of_ones_own_is_recorded_by_its_path_and_run_only_where_it_is_trusted(
    home: Path, cli: Cli, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "ourrule.py").write_text(RULE)
    arguments = ("tiny.toml", "--client", "ourrule:Halved", "--set", "client.share=0.25", "--jobs", 1, "--out", "run")
    cli("audit", *arguments)
    written = json.loads(Path("run/observed/knowledge.json").read_text())["client"]
    assert (written["use"], written["share"]) == ("ourrule:Halved", 0.25)
    monkeypatch.delitem(sys.modules, "ourrule")
    (home / "ran").unlink()
    assert "not run unasked" in refused("attack", "run/observed", "--attack", "linear", "--jobs", 1)
    assert "not run unasked" in refused("check", "run/observed")
    assert "not run unasked" in refused("check", "run/observed")
    assert "somebody's own code" in refused("audit", "run/recipe.toml", "--dry-run")
    assert not (home / "ran").exists()
    cli("attack", "run/observed", "--attack", "linear", "--jobs", 1, "--trust", "--out", "blind")
    assert "--trust" in refused("report", "blind", "--truth", "run/private")
    cli("report", "blind", "--truth", "run/private", "--trust")


def test_own_code_runs_with_the_recorded_options_once_it_is_named(home: Path, cli: Cli) -> None:
    (home / "ours.py").write_text(CODE)
    arguments = ("tiny.toml", "--model", "ours:make", "--set", "model.hidden=7", "--jobs", 1, "--out", "run")
    cli("audit", *arguments)
    cli("attack", "run/observed", "--attack", "linear", "--model", "ours:make", "--jobs", 1)
    found = cli(
        "attack", "run/observed", "--attack", "linear", "--model", "ours:make", "--set", "model.hidden=8", code=2
    )
    assert "does not fit" in found.err


IN_A_RUN: dict[str, dict[str, Any]] = {
    "model": {"model": {"use": "theirs:make", "options": {}}},
    "model option": {"model": {"use": "fc2", "options": {"hidden": ["theirs:make"]}}},
    "attack": {"attacks": [{"use": "theirs:make"}]},
    "a later attack": {"attacks": [{"use": "linear"}, {"use": "theirs:make"}]},
    "generator of an attack": {"attacks": [{"use": "ggl", "generator": "theirs:make"}]},
    "options of an inner attack": {
        "attacks": [{"use": "averaged", "attack": "ggl", "options": {"generator": "theirs:make"}}]
    },
    "a library's function as an attack": {"attacks": [{"use": "timm:create_model", "model_name": "x"}]},
    "a library's function as a generator": {"attacks": [{"use": "ggl", "generator": "torchvision:get_model"}]},
    "a model in an attack's place": {"attacks": [{"use": "ggl", "model": {"use": "timm:create_model"}}]},
}


def test_a_run_folder_does_not_name_code_to_run(run: Path, home: Path, cli: Cli, refused: Refused) -> None:
    (home / "theirs.py").write_text(CODE)
    cli("attack", run / "observed", "--attack", "linear", "--out", "blind", "--jobs", 1)
    asked = json.loads(Path("blind/attack.json").read_text())
    for place, change in IN_A_RUN.items():
        Path("blind/attack.json").write_text(json.dumps({**asked, **change}))
        assert "add --trust" in refused("report", "blind", "--truth", run / "private"), place
        assert not (home / "ran").exists(), place


IN_A_RECIPE = {
    "attack": 'attack = [{ use = "theirs:make" }]',
    "generator of an attack": 'attack = [{ use = "ggl", generator = "theirs:make" }]',
    "defense": 'defense = [{ use = "theirs:make" }]',
    "partition": 'partition = { use = "theirs:make" }',
    "grid over attacks": 'grid = { attack = [[{ use = "theirs:make" }]] }',
    "grid over defenses": 'grid = { defense = [[], [{ use = "theirs:make" }]] }',
    "grid over partitions": 'grid = { "partition.use" = ["theirs:make"] }',
    "case": 'case = [{ name = "one", defense = [{ use = "theirs:make" }] }]',
    "case of a client": 'case = [{ name = "other", client = { use = "theirs:make" } }]',
    "client": 'client = { use = "theirs:make" }',
    "data": 'data = { use = "theirs:make" }',
    "grid over data": 'grid = { "data.use" = ["digits", "theirs:make"] }',
    "metric": 'score = { metrics = ["theirs:make"] }',
    "auxiliary": 'auxiliary = { use = "theirs:make" }',
    "frontier": 'frontier = [{ parts = [{ use = "theirs:make" }] }]',
    "utility": 'utility = { rounds = "theirs:make" }',
    "expect": 'expect = { by = "theirs:make" }',
    "a library's function as a defense": 'defense = [{ use = "timm:create_model" }]',
}


def test_checking_a_recipe_runs_no_code_that_it_names(home: Path, refused: Refused) -> None:
    (home / "theirs.py").write_text(CODE)
    for place, recipe in IN_A_RECIPE.items():
        (home / "theirs.toml").write_text(recipe)
        assert "add --trust" in refused("audit", "theirs.toml", "--dry-run"), place
        assert not (home / "ran").exists(), place


def test_code_that_is_trusted_is_imported_to_check_its_options(home: Path, cli: Cli) -> None:
    (home / "trusted.py").write_text(CODE)
    (home / "mine.toml").write_text('defense = [{ use = "trusted:make" }]')
    found = cli("audit", "mine.toml", "--dry-run", "--trust", code=2)
    assert "needs the option 'shape'" in found.err
    assert (home / "ran").exists()


def test_a_model_is_not_made_to_check_a_recipe(home: Path, cli: Cli) -> None:
    (home / "theirs.py").write_text(CODE)
    for use in ("theirs:make", "torchvision:resnet18"):
        (home / "mine.toml").write_text(f'attack = [{{ use = "linear" }}]\ngrid = {{ "model.use" = ["{use}", "fc2"] }}')
        cli("audit", "mine.toml", "--dry-run")
    assert not (home / "ran").exists()


def test_other_number_formats_are_read(observed: Path, cli: Cli) -> None:
    tensors(ROUND, lambda t: t.double(), "update")(observed)
    tensors(MODEL, lambda t: t.half())(observed)
    cli("check", observed)


def test_labels_that_are_not_told_are_not_used(observed: Path, cli: Cli) -> None:
    added(ROUND, labels=torch.tensor([1]))(observed)
    arguments = ("--set", "attack.labels=given", "--set", "attack.steps=2", "--jobs", 1, "--json")
    row = cli("attack", observed, "--attack", "inverting_gradients", *arguments).json["rows"][0]
    assert row["status"] == "inapplicable"
    assert row["side_information"] == []


def test_symlinked_and_oddly_named_cases_stay_inside_the_run_folder(observed: Path, home: Path, cli: Cli) -> None:
    (home / "many").mkdir()
    for name in ("..hidden", "a case; rm -rf", "<script>", "é"):
        (home / "many" / name).symlink_to(observed.resolve())
    before = set(home.iterdir())
    found = cli("attack", "many", "--attack", "linear", "--jobs", 1, "--out", "out", "--json")
    assert {row["case"] for row in found.json["rows"]} == {"..hidden", "a case; rm -rf", "<script>", "é"}
    assert set(home.iterdir()) - before == {home / "out"}
    assert "<script>" not in (home / "out" / "report.html").read_text()


@pytest.mark.parametrize("name", [".", "..", "observed/.."])
def test_a_folder_by_a_relative_name_writes_below_the_run_folder(
    name: str, observed: Path, home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {".": observed, "..": observed / "rounds", "observed/..": home}[name]
    monkeypatch.chdir(place)
    cli("attack", name, "--attack", "linear", "--jobs", 1, "--out", home / "out", "--quiet")
    assert [path.name for path in (home / "out" / "attacks").iterdir()] == ["case"]


LIMITED = """
import resource, sys
import seepage.cli, torch, seepage.federation.transcript.simulated
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 300 * 2**20,) * 2)
for folder in sys.argv[1:]:
    sys.argv = ["seepage", "check", folder]
    try:
        seepage.cli.main()
    except SystemExit as end:
        assert end.code == 2
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures this process's memory in /proc")
def test_absurd_sizes_are_refused_within_300_mib(observed: Path, home: Path) -> None:
    absurd = {
        "wide": facts(architecture=fc2(hidden=10**12)),
        "classes": facts(num_classes=10**12),
        "large": facts(input_shape=[1, 2**14, 2**14]),
        "batch": facts(batch_size=10**12),
        "rounds": facts(rounds=10**12),
        "mlp": facts(architecture={"use": "mlp3", "options": {"hidden": 10**6}}),
        "conv": facts(architecture={"use": "convnet", "options": {"width": 10**6}}),
    }
    for name, damage in absurd.items():
        subprocess.run(["cp", "-r", observed, name], check=True)
        damage(home / name)
    command = [sys.executable, "-c", LIMITED, *absurd]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("error: ") == len(absurd)
    assert "memory" not in found.stderr
