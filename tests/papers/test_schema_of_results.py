"""Every line of results/ is a record, and its command starts something that is there."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from each import check_each
from pydantic import ValidationError
from scripts import script

from seepage.audit.recipe.files import find_recipe, list_recipes, read_recipe
from seepage.errors import SeepageError
from seepage.papers import Record, list_items
from seepage.papers.records import RECORD_SCHEMA, read_file

ROOT = Path(__file__).parents[2]
items = cache(list_items)
FINISHED = tomllib.loads((ROOT / "experiments" / "finished.toml").read_text(encoding="utf-8"))


@pytest.mark.docs
def test_every_line_is_a_record_of_its_file() -> None:
    files = sorted((ROOT / "results").rglob("*.jsonl"))
    check_each(((path.relative_to(ROOT).as_posix(), path) for path in files), lines_are_records)


def lines_are_records(path: Path) -> None:
    """A study's file is called as the study; an item's as the item."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(line["schema"] == RECORD_SCHEMA for line in lines)
    for record in read_file(path):
        if path.parent.name == "reproduce":
            item = items()[record.item]
            assert path.stem == record.item.replace("/", "-")
            line = next(line for line in item.lines if (line.name, line.data) == (record.row, record.paper_data))
            assert record.paper == line.paper_at(record.column), "a paper's number is that of [expect]"
            if "attack" in record.facts:
                assert record.facts["attack"] == line.attack_at(record.column), (record.row, record.column)
        else:
            assert path == ROOT / "results" / f"{record.item}.jsonl"
            assert record.size is None
        check_command(record.command)


def check_command(command: str) -> None:
    words = [word for word in shlex.split(command) if "=" not in word.partition("-")[0]]
    if words[:3] == ["python", "-m", "pytest"]:
        files = [word.partition("::")[0] for word in words if word.startswith("tests/")]
        assert files, command
        assert all((ROOT / file).exists() for file in files), command
    elif words[:2] == ["python", "-m"]:
        assert (ROOT / f"{words[2].replace('.', '/')}.py").exists(), f"{command}: the tree has no module {words[2]}"
    elif words[0] == "python":
        assert (ROOT / words[1]).exists() or is_finished(command), f"{command}: the tree has no {words[1]}"
    else:
        assert words[0] == "seepage", command
        assert words[1] in ("audit", "frontier", "reproduce"), command
        own = {"audit": "default", "frontier": "frontier"}.get(words[1], "")  # what it takes where none is named
        named = next((word for word in words[2:3] if not word.startswith("-")), own)
        assert named in {*list_recipes(), *items()} or (ROOT / named).is_file(), command


def is_finished(command: str) -> bool:
    """Whether it is of a study whose script, or subcommand, `finished.toml` says to be gone."""
    return any(f"{command} ".startswith(f"python experiments/{one} ") for one in FINISHED["commands"])


@pytest.mark.docs
def test_a_finished_study_is_gone_and_its_commit_has_it() -> None:
    for one, today in FINISHED["commands"].items():
        script, _, part = one.partition(" ")
        path = ROOT / "experiments" / script
        assert not path.exists() or part, one
        text = path.read_text("utf-8") if path.exists() else ""
        known = re.search(r"def main\(\s*\w+: Literal\[(.*?)\]", text)
        assert known is None or f'"{part}"' not in known[1], one
        if today:
            check_command(today)
        if has_history():
            assert git("cat-file", "-e", f"{FINISHED['commit']}:experiments/{script}").returncode == 0, script


@pytest.mark.docs
def test_a_study_that_code_names_is_there() -> None:
    for file in sorted((ROOT / "src").rglob("*.py")) + sorted((ROOT / "src").rglob("*.toml")):
        for name in re.findall(r"experiments/[\w/-]+\.(?:py|toml)", file.read_text(encoding="utf-8")):
            assert (ROOT / name).is_file(), f"{file} names {name}"


def has_history() -> bool:
    """Whether this is a whole clone, and no archive or the last commit alone."""
    return shutil.which("git") is not None and git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_number_is_kept_with_its_command_and_its_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/experiments/mine.py", "--data", "/secret/x.npz", "two words"])
    record = script("keeping").keep_measured(
        "mine/first", "linear, n 1", "psnr", 0.123456, seed=3, results=tmp_path, n=1, cpu_s=0.98765
    )
    assert read_file(tmp_path / "mine" / "first.jsonl") == [record]
    assert (record.value, record.seeds, record.facts) == (0.1235, {"3": 0.1235}, {"n": 1, "cpu_s": 0.9877})
    assert record.command == "python experiments/mine.py --data x.npz 'two words'"
    assert record.made["torch"]


@pytest.mark.parametrize("change", [{"value": "high"}, {"interval": [2, 1]}, {"whatever": 1}, {"schema": 3}])
def test_what_is_no_record_is_refused_in_one_sentence(tmp_path: Path, change: dict[str, object]) -> None:
    good = {"schema": RECORD_SCHEMA, "item": "a/b", "row": "r", "metric": "psnr", "value": 1.0}
    assert Record.model_validate(good)
    with pytest.raises(ValidationError):
        Record.model_validate(good | change)
    (tmp_path / "x.jsonl").write_text(json.dumps(good | change) + "\n")
    with pytest.raises(SeepageError, match="cannot be read"):
        read_file(tmp_path / "x.jsonl")


@pytest.mark.docs
def test_an_attack_that_a_recipe_uses_twice_has_a_label() -> None:
    """So that rows address it wherever it stands in the list: without labels names are numbered by position."""
    check_each(((name, name) for name in sorted(list_recipes())), twice_used_attacks_have_labels)


def twice_used_attacks_have_labels(name: str) -> None:
    for path, attacks in attack_lists(read_recipe(find_recipe(name))):
        unlabeled = [str(attack["use"]) for attack in attacks if not attack.get("label")]
        assert len(set(unlabeled)) == len(unlabeled), (path, "add label = NAME")


def attack_lists(tables: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Every list of attacks of a recipe: its own, that of its small form, those of its cases."""
    for key, value in tables.items():
        listed = value if isinstance(value, list) else [value]
        if key == "attack" and all(isinstance(one, Mapping) for one in listed):
            yield f"{path}{key}", listed
        elif key != "expect":
            for one in listed:
                if isinstance(one, Mapping):
                    yield from attack_lists(one, f"{path}{key}.")
