"""Gradient matching without a way back is not run on somebody's own network, and only where that was never wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from seepage.attacks import ATTACKS
from seepage.audit import hopeless
from seepage.audit import run as audit
from seepage.audit.hopeless import HOPELESS_BELOW, MEASURED, is_own, searches_blindly
from seepage.audit.row import Outcome
from seepage.leakage.landscape import PROBE_NOISE, SUCCESS_DB
from seepage.recipe.resolve import cells
from seepage.transcript.recorded import open_transcript

RECORDS = Path(__file__).parents[2] / "results/matching/landscape.jsonl"
NET = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU(), nn.Linear(3, classes))
"""
TABLES: dict[str, Any] = {
    "data": {"use": "faces", "size": 8},
    "model": {"use": "nets:net"},
    "batch": {"size": 6},
    "attack": [{"use": "linear"}, {"use": "inverting_gradients", "steps": 1}],
}


def test_no_measured_attack_succeeded_below_the_limit() -> None:
    found: dict[tuple[str, ...], tuple[float, bool]] = {}
    for line in RECORDS.read_text().splitlines():
        record = json.loads(line)
        facts, noise = record["facts"], f"{PROBE_NOISE:g}"
        gain = record["value"] - facts["flat_psnr"]
        key = tuple(str(one) for one in (record["row"], facts["batch"], facts["size"], record["data"], record["seeds"]))
        found[key] = facts["cosine"][noise], gain >= SUCCESS_DB
    below = [good for cosine, good in found.values() if cosine < HOPELESS_BELOW]
    assert (len(below), any(below)) == (MEASURED, False)


def test_it_is_said_in_the_row_and_all_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hopeless, "HOPELESS_BELOW", 2.0)  # nothing has a way back
    rows = {row.attack: row for row in audit.run(TABLES, out=tmp_path / "run", jobs=1).result.rows}
    assert rows["inverting_gradients"].outcome is Outcome.NOT_TRIED
    assert "descent does not lead back" in str(rows["inverting_gradients"].reason)
    assert rows["linear"].gave_result, "a closed form needs no slope"
    everything = audit.run({**TABLES, "all_attacks": True}, out=tmp_path / "all", jobs=1).result
    assert all(row.outcome is not Outcome.NOT_TRIED for row in everything.rows)
    monkeypatch.setattr(hopeless, "HOPELESS_BELOW", -2.0)
    open_ = audit.run(TABLES, out=tmp_path / "open", jobs=1).result
    assert all(row.outcome is not Outcome.NOT_TRIED for row in open_.rows)


def test_only_ones_own_network_is_looked_at_and_only_a_search_that_knows_nothing_else(tmp_path: Path) -> None:
    assert is_own(cells(TABLES)[0])
    packaged = {**TABLES, "model": {"use": "fc2", "hidden": 16}, "batch": {"size": 1}}
    assert not is_own(cells(packaged)[0])
    seen = open_transcript(audit.record_only(packaged, out=tmp_path / "run") / "observed")
    assert searches_blindly(ATTACKS["dlg"](), seen)
    assert not searches_blindly(ATTACKS["linear"](), seen)
    assert not searches_blindly(ATTACKS["gradient_matching"](), seen), "features of the last layer guide it"
