"""Finished run folders made on the fly, and a reader of the pages made of them."""

import io
import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.helpers.rows import nested
from torch import Tensor

from seepage.base.storage import write_json, write_lines, write_tensors, write_whole
from seepage.federation.transcript.truth import save_truth
from seepage.federation.types import Batch
from seepage.report import write_report

HOSTILE = "<script>alert(1)</script>"
INLINE = {"a", "b", "strong", "code", "wbr", "span"}
VOID = {"meta", "img", "br", "link", "input", "hr", "wbr"}


@pytest.fixture(scope="session")
def build_run() -> Callable[..., Path]:
    """Write a finished run: the last attack does not apply to the last case, the first misses example 2."""
    return _build_run


@pytest.fixture
def change() -> Callable[..., None]:
    """Change a JSON file of a run in place."""

    def edit_file(run: Path, edit: Callable[[Any], object], name: str = "result.json") -> None:
        record = json.loads((run / name).read_text())
        edit(record)
        (run / name).write_text(json.dumps(record))

    return edit_file


@pytest.fixture
def report() -> Callable[[Path], "Page"]:
    """Write a run's report and read it."""
    return lambda run: Page(write_report(run).read_text(encoding="utf-8"))


@pytest.fixture
def picture() -> Callable[[Path], Image.Image]:
    """Open a picture, whole."""

    def load(path: Path) -> Image.Image:
        image = Image.open(io.BytesIO(path.read_bytes()))
        image.load()
        return image

    return load


def _build_run(
    folder: Path,
    *,
    cases: tuple[str, ...] = ("fc2_size-3", "convnet_size-3"),
    attacks: tuple[str, ...] = ("linear", "dlg"),
    shape: tuple[int, ...] = (3, 12, 12),
    batches: tuple[int, ...] = (3,),
    truth: bool = True,
    level: str = "exact",
) -> Path:
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    flags: list[dict[str, Any]] = []
    for case in cases:
        private = [Batch(torch.rand(n, *shape, generator=generator), torch.arange(n)) for n in batches]
        if truth and "/" not in case:
            save_truth(private, folder / "private" / case)
        for attack in attacks:
            applies = not (case == cases[-1] and attack == attacks[-1] and len(cases) > 1)
            rows.append(_row(case, attack, sum(batches), applies=applies, truth=truth))
            flag: dict[str, Any] = {"name": "known", "severity": "note", "message": "It was stated."}
            flags.append({"case": case, "attack": attack} | flag)
            if applies and "/" not in case:
                missed = {1} if attack == attacks[0] else set()
                _write_guesses(folder / "reconstructions" / case / f"{attack}.safetensors", private, missed)
                lines += _score_lines(case, attack, batches, missed) if truth else []
    flags.append({"case": None, "attack": None, "name": "odd", "severity": "warning", "message": "Mind the gap."})
    result = {
        "schema": 1,
        "run": str(folder),
        "verdict": "Some of it leaks.",
        "verdict_level": level if truth else "unscored",
        "rows": rows,
        "cases": [_case(case, batches, truth=truth) for case in cases],
        "thresholds": {"recovered_gain_db": 3.0, "exact_db": 40.0, "later": None},
    }
    write_json(folder / "result.json", result)
    write_json(folder / "flags.json", {"schema": 1, "flags": flags})
    write_lines(folder / "scores.jsonl", lines)
    env = {"schema": 1, "seepage": "0.1.0", "torch": "2.8.0", "device": "cpu", "command": "seepage audit r.toml"}
    write_json(folder / "env.json", env | {"started": "2026-01-02T03:04:05Z", "seconds": 75.2, "jobs": 2})
    write_whole(folder / "recipe.toml", f'# {HOSTILE}\nname = "r"\nseed = 7\n')
    return folder


def _case(name: str, batches: tuple[int, ...], *, truth: bool) -> dict[str, Any]:
    measured = {"mean_color": {"psnr": 17.1, "ssim": 0.2}, "grey": {"psnr": 11.0, "ssim": None}}
    return {
        "name": name,
        "title": f"{name} (title)",
        "model": "fc2",
        "model_options": {"hidden": 8},
        "data": "album" if truth else None,
        "batch_size": batches[0],
        "batches": len(batches),
        "training_steps": 0 if truth else None,
        "accuracy": 0.07 if truth else None,
        "accuracy_examples": 120 if truth else None,
        "defense": None,
        "client": "FedSGD(mode='train')",
        "classes": ["a", "b"],
        "baselines": measured if truth else None,
        "parameters": 97290,
        "a_later_key": [1],
    }


def _row(case: str, attack: str, examples: int, *, applies: bool, truth: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "case": case,
        "attack": attack,
        "options": f"{attack}()",
        "status": "ok" if applies else "inapplicable",
        "reason": None if applies else "the batch is too large; use another attack",
        "known": ["model", "update"],
        "side_information": ["labels"] if attack == "dlg" else [],
        "examples": examples,
        "seconds": 1.2,
        "notes": ["a note of the attack"],
        "a_later_key": {},
    }
    scores = {
        "recovered": 2 / 3, "exact": 1 / 3, "psnr": 41.25, "psnr_median": 39.75, "psnr_low": 38.0, "psnr_high": 44.0,
        "ssim": 0.9, "gain_db": 24.0, "label_accuracy": 1.0, "alignment": "hungarian",
    }  # fmt: skip
    row |= scores if applies and truth else dict.fromkeys(scores)
    return nested(**row)


def _write_guesses(path: Path, private: list[Batch], missed: set[int]) -> None:
    tensors: dict[str, Tensor] = {}
    for t, batch in enumerate(private):
        matched = torch.tensor([i not in missed for i in range(len(batch))])
        tensors |= {f"{t:06d}/inputs": (batch.inputs + 0.1).clamp(0, 1), f"{t:06d}/matched": matched}
    write_tensors(path, tensors)


def _score_lines(case: str, attack: str, batches: tuple[int, ...], missed: set[int]) -> list[dict[str, Any]]:
    return [
        {
            "schema": 1,
            "case": case,
            "attack": attack,
            "round": t,
            "example": i,
            "metric": metric,
            "value": value + i,
            "alignment": "hungarian",
            "matched": i not in missed,
        }
        for t, n in enumerate(batches)
        for i in range(n)
        for metric, value in (("psnr", 20.5), ("ssim", 0.25))
    ]


class Page(HTMLParser):
    """A page as a reader of HTML sees it; fails on tags that do not pair up."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += "" if tag in INLINE else " "
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def words(self) -> str:
        return " ".join(self.text.split())
