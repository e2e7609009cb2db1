"""The default tier stays fast: a test that takes more than its share of the tier is refused by name.

`--keep-dearest=FILE` writes what each test of the tier took, as `.ci/run` does, which then runs this file on it.
Seconds are of the processor, of the test and of the processes that it started and waited for; since machines differ by
a factor of three, and a neighbor's load adds to them, what is limited is the share of the whole tier in the same run.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MOST = 0.015
"""Share of the tier's core seconds that one test may take."""

OTHER_TIERS = ("slow", "docs", "full")
"""What these marks name is not in the default tier, also where one run holds all."""

TOOK: dict[str, float] = {}
BEGAN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-dearest", type=Path, help="write the core seconds of each test to this file")


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
        if not any(item.get_closest_marker(name) for name in OTHER_TIERS):
            item.user_properties.append(("core seconds", core_seconds() - item.stash[BEGAN]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown" and (took := dict(report.user_properties).get("core seconds")) is not None:
        TOOK[report.nodeid] = took


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--keep-dearest")
    if path is not None and not hasattr(session.config, "workerinput"):
        took = sorted(TOOK.items(), key=lambda item: -item[1])
        path.write_text(json.dumps({name: round(seconds, 2) for name, seconds in took}, indent=1) + "\n")


if __name__ == "__main__":
    took = json.loads(Path(sys.argv[1]).read_text())
    tier = sum(took.values())
    print(f"dearest of {len(took)} tests that took {tier:.0f} core seconds:", *list(took.items())[:5], sep="\n  ")
    if dear := [f"{name} ({seconds / tier:.1%})" for name, seconds in took.items() if seconds > MOST * tier]:
        sys.exit(f"more than {MOST:.1%} of the tier: {', '.join(dear)}; make them cheaper or mark them slow")
