"""The grid of pictures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.rows import put
from torch import Tensor

from seepage.base.storage import write_lines, write_tensors
from seepage.federation.transcript.truth import save_truth
from seepage.federation.types import Batch
from seepage.report import grid, write_grid, write_report

Build = Callable[..., Path]
Change = Callable[..., None]
Read = Callable[[Path], Any]
Picture = Callable[[Path], Image.Image]


def test_both_files_are_the_same_bytes_each_time(tmp_path: Path, build_run: Build, picture: Picture) -> None:
    run = build_run(tmp_path)
    first = write_report(run).read_bytes(), write_grid(run).read_bytes()
    assert (write_report(run).read_bytes(), write_grid(run).read_bytes()) == first
    assert "Software" not in picture(run / "grid.png").info


def test_the_grid_shows_what_was_recovered_best(tmp_path: Path, build_run: Build, picture: Picture) -> None:
    black_but_one = torch.zeros(6, 3, 8, 8)
    black_but_one[5, 0] = 1.0  # a red square that only the best recovered example has
    run = build_run(tmp_path, cases=("a", "b"), attacks=("dlg",), shape=(3, 8, 8), batches=(6,))
    save_truth([Batch(black_but_one, torch.arange(6))], run / "private" / "a")
    red = (np.asarray(picture(write_grid(run)).convert("RGB")) == (255, 0, 0)).all(axis=-1)
    assert red.sum() > 5000
    lines = [json.loads(line) for line in (run / "scores.jsonl").read_text().splitlines()]
    write_lines(run / "scores.jsonl", [line | {"value": -line["value"]} for line in lines])
    red = (np.asarray(picture(write_grid(run)).convert("RGB")) == (255, 0, 0)).all(axis=-1)
    assert red.sum() == 0


def test_titles_say_what_differs_between_the_cases_on_two_lines_at_the_most(
    tmp_path: Path, build_run: Build, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build_run(tmp_path, cases=("a", "b"), attacks=("dlg",), shape=(1, 8, 8), batches=(2,))
    parts = ["convnet(width=4, depth=2)", "batch 1", "freshly initialized"]
    defenses = ("no defense", "gaussian_noise(sigma=0.01, clip=1) and much more of what no line has the room for")

    def named(result: Any) -> None:
        for case, defense in zip(result["cases"], defenses, strict=True):
            case.update(title_parts=[*parts, defense], title=", ".join([*parts, defense]))

    change(run, named)
    written: list[str] = []
    monkeypatch.setattr(grid, "_text", lambda canvas, x, y, text, **_: written.append(text))
    write_grid(run)
    bold = [text for text in written if "defense" in text or "gaussian" in text]
    assert bold[0] == "no defense"
    assert bold[1].replace("\n", " ").startswith("gaussian_noise(sigma=0.01, clip=1)")
    assert bold[1].count("\n") == 1
    assert any(f"All of: {', '.join(parts)}." in text.replace("\n", " ") for text in written), "the footer"


def test_a_narrow_grid_has_room_for_its_last_words(tmp_path: Path, build_run: Build, picture: Picture) -> None:
    run = build_run(tmp_path, cases=("a",), attacks=("dlg",), shape=(1, 8, 8), batches=(2,))
    ink = np.asarray(picture(write_grid(run)).convert("L")) < 250
    assert ink[-20:].any(), "the footer"
    assert not ink[:, -10:].any(), "it ends before the margin"


BLUE, RED, GREEN, FLAT = (0, 0, 255), (255, 0, 0), (0, 255, 0), (0xED, 0xF0, 0xF2)


def test_the_columns_of_all_cases_are_in_line(
    tmp_path: Path, build_run: Build, change: Change, picture: Picture
) -> None:
    """The first attack does not apply to the second case: the second attack keeps its column there."""
    run = build_run(tmp_path, cases=("a", "b", "c"), attacks=("linear", "dlg", "last"), shape=(3, 8, 8), batches=(1,))
    for case in ("a", "b"):
        save_truth([Batch(filled(BLUE), torch.arange(1))], run / "private" / case)
        for attack, color in (("linear", RED), ("dlg", GREEN)):
            whole = {"000000/inputs": filled(color), "000000/matched": torch.ones(1, dtype=torch.bool)}
            write_tensors(run / "reconstructions" / case / f"{attack}.safetensors", whole)
    away = {"status": "inapplicable", "outcome": "does not apply", "reason": "why"}
    change(run, lambda result: put(result["rows"][3], **away))
    pixels = np.asarray(picture(write_grid(run)).convert("RGB"))
    blue, red, green, flat = (starts(pixels, color) for color in (BLUE, RED, GREEN, FLAT))
    assert (len(blue), len(red), len(green)) == (2, 1, 2)
    column = red[0] - blue[0]
    assert all(abs(g - b - 2 * column) <= 1 for g, b in zip(green, blue, strict=True))
    assert any(abs(x - blue[1] - column) <= 1 for x in flat), "a box where the red picture would be"


def filled(color: tuple[int, int, int]) -> Tensor:
    return (torch.tensor(color) / 255).reshape(1, 3, 1, 1).expand(1, 3, 8, 8).contiguous()


def starts(pixels: Any, color: tuple[int, int, int]) -> list[int]:
    """Columns of pixels at which an area of one color begins."""
    found = (pixels == color).all(axis=-1).sum(axis=0) > 20
    return [int(x) for x in np.flatnonzero(found[1:] & ~found[:-1]) + 1]


@pytest.mark.slow
def test_the_grid_stays_small(tmp_path: Path, build_run: Build, picture: Picture) -> None:
    cases = tuple(f"case-{i} costs $x^{i}$ and more words than fit on one line of the grid" for i in range(10))
    attacks = tuple(f"an_attack_with_a_long_name-{i}" for i in range(10))
    run = build_run(tmp_path, cases=cases, attacks=attacks, shape=(3, 140, 140), batches=(4,))
    path = write_grid(run)
    assert path.stat().st_size < 1_000_000
    width, height = picture(path).size
    assert max(width, height) < 3000
