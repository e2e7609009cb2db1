"""What is said of a run fits what was attacked: rows of a table have no mean color, and texts are no pictures."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Cli

OF_PICTURES = re.compile(
    r"pictur|mean color|brighter|brightness|\beyes?\b|\bpixel|each image|gr[ae]y square|SSIM", re.I
)
LEAST = ("--set", "batch.count=1", "--set", "training.steps=0", "--jobs", 1, "--out", "run")
TABLE = ("--data", "wine", "--model", "fc2:hidden=16", "--batch-size", 2)
TEXT = ("--data", "notes.txt", "--model", "gpt:width=64", "--batch-size", 1, "--set", "data.tokens=8")
NOISE = ("--defense", "gaussian_noise:clip=1,sigma=0.3")
RUNS = {
    "a table that leaks": (*TABLE, "--attack", "linear", "--membership", "--bounds"),
    "a table behind noise": (*TABLE, "--attack", "linear", "--attack", "cocktail_party", *NOISE),
    "a table without a score": (*TABLE[:2], "--model", "own:Late", "--batch-size", 2, "--attack", "linear"),
    "values": ("--data", "table.csv", "--set", "data.target_column=y", "--loss", "mse", "--model", "fc2:hidden=8",
               "--batch-size", 2, "--attack", "linear", "--attack", "dlg:steps=2"),
    "texts": (*TEXT, "--attack", "token_sequences"),
    "texts without a score": (*TEXT, "--attack", "dlg"),
}  # fmt: skip
OWN = """
from torch import nn

def Late(shape, classes):
    return nn.Sequential(nn.LayerNorm(shape), nn.Linear(shape[0], 4), nn.ReLU(), nn.Linear(4, classes))
"""


@pytest.fixture
def data(home: Path) -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(80, 5)).round(3).tolist()
    (home / "table.csv").write_text("\n".join(["a,b,c,d,y", *(",".join(map(str, row)) for row in rows)]))
    (home / "notes.txt").write_text("\n".join("".join(draw.choice(list("abcdefgh "), 12)) for _ in range(80)))
    (home / "own.py").write_text(OWN)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("what", RUNS)
def test_nothing_is_said_of_pictures_where_there_are_none(what: str, cli: Cli) -> None:
    found = cli("audit", *RUNS[what], *LEAST, code=2 if "without" in what else 0)
    cli("evidence", "pack", "run", "--out", "pack")
    result = json.loads(Path("run/result.json").read_text())
    kind = "texts" if "text" in what else "records"
    assert {case["kind"] for case in result["cases"]} == {kind}
    said = {
        "the terminal": found.out,
        "the verdict": result["verdict"],
        "notes": " ".join(note for row in result["rows"] for note in row["notes"]),
        "flags": Path("run/flags.json").read_text(),
        "the report": shown(Path("run/report.html")),
        **{path.name: shown(path) for path in Path("pack").iterdir() if path.suffix in (".html", ".md", ".xml")},
    }
    for where, words in said.items():
        assert [match[0] for match in OF_PICTURES.finditer(words)] == [], where


def shown(path: Path) -> str:
    """The words of a page, without its style, the options of attacks and the recipe, which name what the code names."""
    text = re.sub(r"<(style|code|pre)\b.*?</\1>", " ", path.read_text(), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


def test_of_pictures_it_is_said(cli: Cli, run: Path) -> None:
    cli("report", run)
    words = shown(run / "report.html")
    assert "Look at the pictures too" in words
    assert "a flat square in its mean color" in words
