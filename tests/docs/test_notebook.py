"""The notebook runs and shows what it says. After a change: SEEPAGE_NOTEBOOK=write, and look at it."""

import ast
import contextlib
import io
import json
import os
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.rows import result_of, row_of

from seepage.audit.row import Case
from seepage.base.images import SHOWN
from seepage.federation.types import Batch, Reconstruction

NOTEBOOK = Path(__file__).parents[2] / "examples" / "audit.ipynb"
PICTURE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")


@pytest.mark.slow  # seven seconds
@pytest.mark.skipif(not NOTEBOOK.is_file(), reason="the notebook is not here")
def test_the_notebook_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    given = [_outputs("".join(cell["source"]), names) for cell in cells]
    if os.environ.get("SEEPAGE_NOTEBOOK") == "write":
        for number, (cell, outputs) in enumerate(zip(cells, given, strict=True), 1):
            cell.update(outputs=outputs, execution_count=number)
        NOTEBOOK.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for cell, outputs in zip(cells, given, strict=True):
        source, shown = "".join(cell["source"]), [_text(one) for one in cell["outputs"]]
        printed = [_text(one) for one in outputs]
        assert [_plain(one) for one in shown] == [_plain(one) for one in printed], source
        # Where nothing is recovered a picture is what a search makes of noise, which processors do not share.
        lost = any(one.startswith("0% recovered") for one in printed)
        for one, other in zip(_pictures(shown), _pictures(printed), strict=True):
            assert one.shape == other.shape
            assert lost or np.abs(one - other).mean() < 8, f"a picture looks different in\n{source}"
    assert any("data:image" in _text(one) for outputs in given for one in outputs), "pictures inline"


def test_what_a_notebook_shows_is_no_html_of_a_stranger() -> None:
    evil = "<script>alert(1)</script>"
    row = row_of(case="a", attack=evil, examples=4, recovered=0.5, exact=0.25, psnr=20.0)
    page = result_of([row], [Case(name="a", title=evil)], verdict=evil)._repr_html_()
    assert "<script" not in page
    assert "2 of 4" in page
    found = Reconstruction(torch.zeros(3, 5), certified=torch.tensor([True, False, True]), notes=(evil,))._repr_html_()
    assert "<script" not in found
    assert "2 certified" in found
    assert "<img" not in found
    assert Batch(torch.zeros(20, 3, 4, 4), torch.zeros(20).long())._repr_html_().count("<img") == SHOWN


def _outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell, as a notebook does: what it prints, and what its last line is."""
    tree, printed = ast.parse(source), io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, NOTEBOOK.name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        found.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        show = getattr(value, "_repr_html_", None)
        data = {"text/html": show(), "text/plain": type(value).__name__} if show else {"text/plain": repr(value)}
        found.append({"output_type": "display_data", "metadata": {}, "data": data})
    return found


def _text(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    return "".join(output.get("text", data.get("text/html", data.get("text/plain", ""))))


def _plain(text: str) -> str:
    """The words, without what differs between machines: digits of times and errors, and pictures."""
    return re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", PICTURE.sub("picture", text))


def _pictures(texts: list[str]) -> list[np.ndarray[Any, Any]]:
    found = [Image.open(io.BytesIO(b64decode(one))) for text in texts for one in PICTURE.findall(text)]
    return [np.asarray(one, dtype=float) for one in found]
