"""What others install and build with: the action, hooks, workflows, container, conda recipe, changelog and citation."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"] if (ROOT / "pyproject.toml").exists() else {}
pytestmark = pytest.mark.skipif(not (ROOT / "action.yml").exists(), reason="the repository's own files are not here")

CALLED_OTHERWISE = {"torch": "pytorch", "matplotlib": "matplotlib-base", "docstring-parser": "docstring_parser"}
"""Names of packages on conda-forge."""


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-actions", ["action.yml"]),
        ("vendor.github-workflows", [".github/workflows/ci.yml", ".github/workflows/docs.yml"]),
        ("vendor.citation-file-format", ["CITATION.cff"]),
        ("vendor.github-issue-forms", [".github/ISSUE_TEMPLATE/fault.yml", ".github/ISSUE_TEMPLATE/method.yml"]),
        ("vendor.github-issue-config", [".github/ISSUE_TEMPLATE/config.yml"]),
    ],
)
def test_files_of_the_repository_fit_their_published_schemas(schema: str, files: list[str]) -> None:
    checker = pytest.importorskip("check_jsonschema")
    arguments = ["--builtin-schema", schema, *(str(ROOT / name) for name in files)]
    found = CliRunner().invoke(checker.main, arguments)
    assert found.exit_code == 0, found.output


def test_the_hooks_are_a_manifest_that_pre_commit_takes_and_name_commands() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout
    from seepage.cli import app

    commands = {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    for hook in read(".pre-commit-hooks.yaml"):
        words = hook["entry"].split()
        assert words[words.index("seepage") + 1] in commands


def steps(name: str) -> dict[str, Any]:
    return next(step for step in read("action.yml")["runs"]["steps"] if step.get("id") == name)


def test_no_input_of_the_action_is_part_of_a_script() -> None:
    for step in read("action.yml")["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """The environment of a step, as far as a machine without GitHub has it; `seepage` is that of this Python."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "seepage"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m seepage "$@"\n')
    program.chmod(0o755)
    for name in ("output", "summary"):
        (tmp_path / name).touch()
    return os.environ | {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "RUNNER_TEMP": str(tmp_path),
    }


def run_step(name: str, place: Path, environment: dict[str, str], **inputs: str) -> "subprocess.CompletedProcess[str]":
    # GitHub starts `shell: bash` so.
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps(name)["run"]],
        cwd=place,
        env=environment | inputs,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.full  # four commands, each in a process of its own
def test_the_action_gates_a_small_model_as_far_as_a_machine_without_github_can_say(
    tmp_path: Path, runner: dict[str, str]
) -> None:
    recipe = str(ROOT / "packaging" / "gate.toml")
    asked = {"RECIPE": recipe, "FAIL_IF": "recovered>0"}
    open_ = run_step("audit", tmp_path, runner, **asked, ARGS="--jobs=1\n--attack=linear\n", OUT="behind noise")
    assert open_.returncode == 0, open_.stderr
    bare = run_step("audit", tmp_path, runner, **asked, ARGS="--jobs=1\n--attack=linear\n--set=defense=[]", OUT="bare")
    assert bare.returncode == 1, bare.stderr
    known = (tmp_path / "output").read_text().splitlines()
    assert known == ["run=behind noise", "exit-code=0", "run=bare", "exit-code=1"]
    found = run_step("findings", tmp_path, runner, OUT="bare", RECIPE=recipe)
    assert found.returncode == 0, found.stderr
    assert "LEAKS" in (tmp_path / "summary").read_text()
    assert (tmp_path / "seepage.sarif").stat().st_size
    assert "data:image" not in (tmp_path / "bare" / "report.html").read_text()


def test_inputs_of_the_action_are_words_whatever_stands_in_them(tmp_path: Path, runner: dict[str, str]) -> None:
    (tmp_path / "bin" / "seepage").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" > words\nexit 2\n")
    asked = {
        "RECIPE": "$(touch pwned)",
        "FAIL_IF": "x`touch pwned`>0",
        "ARGS": "; touch pwned\n\n--set=a b",
        "OUT": "no",
    }
    assert run_step("audit", tmp_path, runner, **asked).returncode == 2
    words = ["audit", asked["RECIPE"], "; touch pwned", "--set=a b", "--fail-if", asked["FAIL_IF"]]
    assert (tmp_path / "words").read_text().splitlines() == [*words, "--no-pictures", "--out", "no"]
    assert run_step("findings", tmp_path, runner, OUT="no", RECIPE="").returncode == 0
    assert not (tmp_path / "pwned").exists()
    assert (tmp_path / "output").read_text() == "run=no\nexit-code=2\n"


def test_the_container_is_not_root_and_is_built_from_what_is_there() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    assert next(word[1] for word in reversed(words) if word[0] == "USER") == "10001"
    copied = [name for word in words if word[0] == "COPY" and "--from=build" not in word for name in word[1:-1]]
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == let_in
    assert all((ROOT / name).exists() for name in copied)


def test_the_conda_recipe_asks_for_what_the_package_asks_for() -> None:
    text = (ROOT / "packaging/conda/meta.yaml").read_text()
    text = re.sub(r"{%.*?%}\n", "", text).replace("{{ version }}", PROJECT["version"]).replace("{{ PYTHON }}", "python")
    recipe = yaml.safe_load(text)
    wanted = {"python": PROJECT["requires-python"]}
    for line in PROJECT["dependencies"]:
        name, version = re.fullmatch(r"([\w-]+)(.*)", line).groups()  # type: ignore[union-attr]
        wanted[CALLED_OTHERWISE.get(name, name)] = version
    assert dict(line.split(" ", 1) for line in recipe["requirements"]["run"]) == wanted
    assert recipe["build"]["entry_points"] == [f"{name} = {place}" for name, place in PROJECT["scripts"].items()]
    assert f'version = "{PROJECT["version"]}"' in (ROOT / "packaging/conda/meta.yaml").read_text()


def test_changelog_and_citation_are_of_this_version_and_in_their_forms() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert set(re.findall(r"^### (.*)$", changes, re.MULTILINE)) <= {
        "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security",
    }  # fmt: skip
    assert re.search(rf"^## \[{re.escape(PROJECT['version'])}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE)
    assert read("CITATION.cff")["version"] == PROJECT["version"]


def test_the_action_judges_no_folder_that_is_there(tmp_path: Path, runner: dict[str, str]) -> None:
    """A checkout that brings a finished run would be judged in place of an audit; nothing of it is shown, either."""
    (tmp_path / "bin" / "seepage").write_text("#!/bin/sh\ntouch asked\nexit 0\n")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "result.json").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("there", "link"):
        found = run_step("audit", tmp_path, runner, RECIPE="", FAIL_IF="recovered>0", ARGS="", OUT=name)
        assert (found.returncode, "is there already" in found.stderr) == (2, True)
    assert "run=" not in (tmp_path / "output").read_text()
    assert run_step("findings", tmp_path, runner, OUT="", RECIPE="").returncode == 0
    assert not (tmp_path / "asked").exists()
    run_step("audit", tmp_path, runner, RECIPE="", FAIL_IF="recovered>0", ARGS="", OUT="fresh")
    assert (tmp_path / "asked").exists()
