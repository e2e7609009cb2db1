"""What the clients of a ledger spent."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opacus", reason="needs seepage[opacus]")

from seepage.cli import main
from seepage.measure.privacy.ledger import LedgerEntry

pytestmark = pytest.mark.filterwarnings("default")
DELTA = 1e-5


def entry(spent: float | None, **other: Any) -> LedgerEntry:
    facts = {"delta": DELTA, "accountant": "rdp", "noise": 1.0, "clip": 1.0, "sample_rate": None, "steps": 1}
    return LedgerEntry(epsilon=spent, **{**facts, **other})


def spending(folder: Path, client: int | str, *epsilons: float | None) -> None:
    """A client's file of a ledger with a line for rounds 1, 2, ..."""
    rows = ({"schema": 1, "t": t, "client": client, **entry(spent).table()} for t, spent in enumerate(epsilons, 1))
    (folder / "ledger").mkdir(exist_ok=True)
    (folder / "ledger" / f"client-{client}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def test_the_command_says_who_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spending(tmp_path, 0, 1.0, 3.0)
    spending(tmp_path, "site-1", 0.5)

    def ran(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["seepage", "prove", "--of", f"ledger:{tmp_path}", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    assert ran("--fail-if", "spent>4") == 0
    shown = capsys.readouterr().out
    assert "client 0: epsilon 3" in shown
    assert "client site-1: epsilon 0.5" in shown
    assert ran("--fail-if", "spent>2") == 1
    assert capsys.readouterr().err == "failed: spent > 2 in 1 of 2 clients: 0\n"
    assert ran("--fail-if", "spent>-1") == 2
    (tmp_path / "ledger" / "client-9.jsonl").write_text('[1]\n{"t": 1, "epsilon": true}\n')
    assert ran("--fail-if", "spent>2") == 2
    assert "delete it" in capsys.readouterr().err
    (tmp_path / "ledger" / "client-9.jsonl").unlink()
    assert ran("--fail-if", "spent>2", "--json") == 1
    assert '"over": ["0"]' in capsys.readouterr().out
