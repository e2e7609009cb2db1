"""The printed annex says what was certified: examples, or inner features alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from seepage.evidence.annex import annex
from seepage.evidence.findings import findings
from seepage.evidence.junit import junit
from seepage.evidence.markdown import model_card, summary
from seepage.evidence.statement import state
from seepage.report.run import open_run

Build = Callable[..., Path]
Change = Callable[..., None]


@pytest.mark.parametrize(
    ("space", "words", "found"),
    [
        ("feature", "1 inner feature certified, which is no example", False),
        ("input", "1 guess certified", True),
    ],
)
def test_the_evidence_tells_certified_features_from_certified_examples(
    space: str, words: str, found: bool, tmp_path: Path, build_run: Build, change: Change
) -> None:
    run = build_run(tmp_path, truth=False)
    change(run, lambda result: result["rows"][0].update(vouched=1, space=space, returned=1))
    opened = open_run(run)
    evidence, listed = state(opened), findings(opened.result)
    assert sum(case.certified for case in evidence.cases) == found
    assert sum(case.certified_features for case in evidence.cases) == (not found)
    assert any(one.leaked_on for one in evidence.attacks) == found
    assert ("failure" in junit(evidence, listed).replace("failures", "")) == found
    for page in (annex(evidence, digest="0"), summary(evidence, listed), model_card(evidence)):
        assert words in page
        assert "1 guesses" not in page


def test_the_annex_tells_the_time_of_the_attacks_from_that_of_the_run(tmp_path: Path, build_run: Build) -> None:
    run = build_run(tmp_path, cells=("fc2_size-3",), attacks=("linear",))
    page = annex(state(open_run(run)), digest="0")
    assert "the run took 1 min 15 s, its attacks 1.2 s together" in page  # of env.json and of the row
    assert "<title>Annex, what an update gives away: updates of fc2 on album</title>" in page


def test_a_captured_model_is_on_no_data_that_anybody_knows(tmp_path: Path, build_run: Build) -> None:
    run = build_run(tmp_path, cells=("fc2_size-3",), attacks=("linear",), truth=False)
    assert state(open_run(run)).subject == "updates of fc2"
