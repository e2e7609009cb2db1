"""The parts of the pages on adding one, installed: a package's entry points give them names."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from seepage.audit.run import run
from seepage.base.registry import KINDS, Registry, Spec, _entry_points
from seepage.cli.catalog import catalog

HOWTO = Path(__file__).parents[2] / "docs/howto"
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.skipif(not HOWTO.is_dir(), reason="the pages are not here")


def forget() -> None:
    """Let the registries look at what is installed again."""
    _entry_points.cache_clear()
    for registry in KINDS.values():
        registry.__dict__.pop("_points", None)
        for name in [name for name in registry._registered if name not in registry._modules]:
            del registry._registered[name]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[str, str]]]:
    """The entry points of the page, with the files of all pages, as `pip install` leaves them."""
    files = {name: text for page in HOWTO.glob("*.md") for name, text in FILE.findall(page.read_text("utf-8"))}
    points: dict[str, dict[str, str]] = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    for home in {point.partition(":")[0] for group in points.values() for point in group.values()}:
        (tmp_path / f"{home}.py").write_text(files[f"{home}.py"])
    info = tmp_path / "my_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1.0\n")
    lines = [f"[{name}]\n" + "\n".join(f"{k} = {v}" for k, v in group.items()) for name, group in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    forget()
    yield points
    monkeypatch.undo()
    forget()


def registry_of(group: str) -> Registry[object]:
    return next(registry for registry in KINDS.values() if registry.group == group)


def test_installed_parts_have_names_and_are_listed(installed: dict[str, dict[str, str]]) -> None:
    for group, points in installed.items():
        for name, home in points.items():
            assert name in registry_of(group)
            assert home.partition(":")[0] not in sys.modules, "a name is known without importing the part"
    listed = {entry["name"]: entry for entries in catalog().values() for entry in entries}
    for group, points in installed.items():
        for name, home in points.items():
            assert registry_of(group)[name].home == home
            assert listed[name]["about"]
            assert not registry_of(group).is_foreign(name)
    assert listed["one_row"]["needs"] == "a fully connected first layer with bias, and one example"
    assert listed["stripes"]["options"].endswith("count=40, side=8")


def test_an_installed_part_that_cannot_be_imported_is_listed_with_the_reason(
    installed: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "my_attack.py").write_text("import no_such_library\n")
    attacks = {entry["name"]: entry["about"] for entry in catalog()["attacks"]}
    assert "my_attack:OneRow" in attacks["one_row"]
    assert "No module named 'no_such_library'" in attacks["one_row"]


@pytest.mark.slow
def test_an_audit_of_installed_parts(installed: dict[str, dict[str, str]], tmp_path: Path) -> None:
    tables = {
        "data": {"use": "stripes", "count": 30},
        "model": {"use": "fc2", "hidden": 16},
        "client": {"use": "sum_sgd", "factor": 3.0},
        "defense": [{"use": "scale", "factor": 0.5}],
        "attack": [{"use": "one_row"}],
        "score": {"metrics": ["brightness_error"]},
        "federation": {"rounds": 1, "clients": 3},
        "partition": {"use": "sorted"},
    }
    (row,) = run(tables, out=tmp_path / "run", jobs=1).result.rows
    assert row.status == "ok"
    assert "brightness_error" in row.scores


def test_a_part_is_called_by_its_name_where_it_is_written_down(installed: dict[str, dict[str, str]]) -> None:
    rule = KINDS["clients"].build(Spec("sum_sgd", {"factor": 3.0}))
    assert KINDS["clients"].spec_of(rule).use == "sum_sgd"
