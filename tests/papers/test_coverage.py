"""The page of what is here of the three papers names what is there, and is what its command writes."""

from pathlib import Path

import pytest
from scripts import script

ROOT = Path(__file__).parents[2]

COVERAGE = script("pages_coverage")
pytestmark = pytest.mark.docs


def test_every_command_test_and_row_that_is_named_is_there() -> None:
    assert COVERAGE.problems() == []


def test_the_page_is_what_its_command_writes() -> None:
    assert COVERAGE.PAGE.read_text(encoding="utf-8") == COVERAGE.page(), "python experiments/pages_coverage.py"


def test_every_attack_defense_rule_and_partition_of_the_papers_parts_is_named() -> None:
    words = (ROOT / "experiments" / "coverage.toml").read_text(encoding="utf-8")
    ours = {"averaged", "spear", "linear", "gauss_newton", "patch_embedding", "patch_unmixing", "lora", "token_set"}
    ours |= {"token_sequences", "fedleak_guided", "cafe_published", "fedleak", "cafe"}  # ours, or named by their papers
    for name in set(COVERAGE.attacks) - ours:
        assert name in words, f"{name} stands in no line"


def test_what_is_not_there_is_found() -> None:
    wrong = [
        ({"command": "seepage audit --attack nothing"}, "not registered"),
        ({"command": "seepage reproduce cafe/table-99"}, "no item"),
        ({"command": "python experiments/nothing.py"}, "there is no"),
        ({"test": "tests/measure/test_risk.py::test_nothing"}, "no test"),
        ({"row": "cpa/unmix#nothing"}, "no row"),
        ({"command": "seepage audit"}, "says no reason"),
    ]
    for line, problem in wrong:
        assert any(problem in said for said in COVERAGE.Line("x", **line).problems()), line
