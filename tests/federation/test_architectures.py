"""No attack ends in an exception on networks that people use; every pair is run by `experiments/architectures.py`."""

from itertools import cycle
from pathlib import Path

import pytest
from scripts import script

from seepage import ATTACKS

ROOT = Path(__file__).parents[2]
STUDY = script("architectures")
OFTEN = ("ResNet-18", "MobileNetV3", "ConvNeXt-T", "ViT-B/16", "BERT", "LSTM", "TransformerEncoder")
"""Networks of the fast tier: one of each way in which something once broke."""
DEALT = 6
"""Attacks of each network in the slow tier; dealt out in turn, so that each occurs on several."""


def dealt() -> dict[str, list[str]]:
    deck = cycle(ATTACKS)
    return {name: [next(deck) for _ in range(DEALT)] for name in STUDY.NETWORKS}


def run(name: str, setting: str, uses: list[str]) -> None:
    for package in {STUDY.NETWORKS[name].library} - {"torch"}:
        pytest.importorskip(package)
    seen, batch = STUDY.transcript(STUDY.NETWORKS[name], setting)
    for use in uses:
        found = STUDY.case(seen, batch, use)
        assert found.outcome != "raised", f"{use} on {name}, {setting}:\n{found.words}"
        if found.outcome == "refused":
            reason, _, remedy = found.words.partition("; ")
            assert reason, f"{use} on {name} refuses without a reason: {found.words}"
            assert remedy, f"{use} on {name} refuses without a remedy: {found.words}"


@pytest.mark.parametrize("name", OFTEN)
def test_networks_used_most_end_in_a_score_or_a_sentence(name: str) -> None:
    run(name, "one example, eval mode", [STUDY.LOOK, "cocktail_party", "inverting_gradients"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "uses", "setting"),
    [(*hand, setting) for hand, setting in zip(dealt().items(), cycle(STUDY.SETTINGS), strict=False)],
)
def test_every_network_and_every_attack_ends_in_a_score_or_a_sentence(name: str, uses: list[str], setting: str) -> None:
    run(name, setting, [STUDY.LOOK, *uses])


def test_every_attack_is_dealt_out() -> None:
    assert {use for uses in dealt().values() for use in uses} == set(ATTACKS)


def test_a_fault_is_not_taken_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such thing")

    seen, batch = STUDY.transcript(STUDY.NETWORKS["LSTM"], "one example, eval mode")
    monkeypatch.setattr(STUDY, "attack", broken)
    found = STUDY.case(seen, batch, "dlg")
    assert found.outcome == "raised"
    assert "no such thing" in found.words


@pytest.mark.docs
def test_the_table_holds_every_attack_on_every_network() -> None:
    """And none that ended in an exception: the page is made of these rows."""
    from seepage.papers.records import read_file

    rows = read_file(ROOT / "results" / f"{STUDY.STUDY}.jsonl")
    assert {(row.row, row.facts["setting"]) for row in rows} == {
        (name, setting) for name in STUDY.NETWORKS for setting in STUDY.SETTINGS
    }
    for row in rows:
        assert row.value == 0, row.row
        missing = {STUDY.LOOK, *ATTACKS} - set(row.facts["cases"])
        assert not missing, f"run: python experiments/architectures.py --attack {' '.join(sorted(missing))}"
