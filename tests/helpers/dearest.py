"""The default tier stays fast: a test that was measured to take more than its share of a core is refused by name.

`--keep-dearest=FILE` writes what the dearest tests of a run took, as `.ci/run` does; `tests/dearest.json` is such a
file. Seconds are of the processor, of the test and of the processes that it started and waited for.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MOST = 3.0
"""Seconds of a core that a test of the default tier may take."""

KEPT = 60
TOOK: dict[str, float] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    here = Path(__file__).parents[1] / "dearest.json"
    parser.addoption("--dearest", type=Path, default=here, help="measured seconds by which tests are refused")
    parser.addoption("--keep-dearest", type=Path, help="write the core seconds of the dearest tests to this file")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = config.getoption("--dearest")
    known = json.loads(path.read_text()) if path.exists() else {}
    dear = [
        f"{item.nodeid} ({known[item.nodeid]:.1f} s)"
        for item in items
        if known.get(item.nodeid, 0.0) > MOST and item.get_closest_marker("slow") is None
    ]
    if dear:
        raise pytest.UsageError(
            f"these tests of the default tier take more than {MOST:g} seconds of a core; make them cheaper or mark "
            f"them slow: {', '.join(dear)}"
        )


def core_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[BEGAN] = core_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append(("core seconds", core_seconds() - item.stash[BEGAN]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        TOOK[report.nodeid] = dict(report.user_properties).get("core seconds", 0.0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--keep-dearest")
    if path is not None and not hasattr(session.config, "workerinput"):
        dearest = sorted(TOOK.items(), key=lambda item: -item[1])[:KEPT]
        path.write_text(json.dumps({name: round(took, 1) for name, took in dearest}, indent=1) + "\n")


BEGAN = pytest.StashKey[float]()


if __name__ == "__main__":
    took = json.loads(Path(sys.argv[1]).read_text())
    print("dearest tests of the default tier, in seconds of a core:", *list(took.items())[:5], sep="\n  ")
    if dear := [name for name, seconds in took.items() if seconds > MOST]:
        sys.exit(f"more than {MOST:g} seconds of a core: {', '.join(dear)}; make them cheaper or mark them slow")
