"""Text beside text on a report's page, whatever the texts are."""

import re
import shutil
from pathlib import Path

from seepage.audit.run import run
from seepage.report import write_report

HOSTILE = ("<script>alert(1)</script> was <b>said</b>", "turned \u202eround and \x1b[2J rung \x07")


def test_hostile_texts_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("\n".join([*HOSTILE, "a plain line", "another plain line"]), encoding="utf-8")
    tables = {
        "data": {"use": str(tmp_path / "notes.txt"), "tokens": 24, "split": 1.0, "vocabulary": 257},
        "model": {"use": "gpt", "width": 128, "depth": 1},
        "batch": {"size": 4, "count": 1},
        "training": {"steps": 0},
        "attack": [{"use": "token_sequences"}],
    }
    found = run(tables, out=tmp_path / "run", jobs=1)
    (row,) = found.result.rows
    assert row.mean("exact") == 1.0
    assert (row.certified.n, row.certified.wrong) == (4, 0)
    assert found.result.verdict_level == "exact"
    page = write_report(found.folder).read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not {"\u202e", "\x1b", "\x07"} & set(page)
    assert "<strong><bdi>a plain line</bdi></strong>" in page
    assert "plain line" not in write_report(found.folder, pictures=False).read_text(encoding="utf-8")
    assert "PSNR" not in page.partition('id="numbers"')[0]  # a text has none
    assert "ROUGE-1" in page
    assert "rouge_1" not in page
    shutil.rmtree(found.folder / "private")
    page = write_report(found.folder).read_text(encoding="utf-8")
    assert "plain line" not in page
    numbers = [list(map(int, found.split())) for found in re.findall(r"<bdi>([\d ]+)</bdi>", page)]
    assert len(numbers) == 4, "of a captured update no words are known"
    known = [list(b"a plain line"), list(b"another plain line")]
    assert all(any(len(row) == len(text) for row in numbers) for text in known)
