"""The report and the grid, from run folders made on the fly."""

import base64
import io
import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from seepage.errors import SeepageError
from seepage.report import words as say
from seepage.report import write_grid, write_report
from seepage.report.pictures import LARGEST_SIDE, _inside, pixels
from seepage.storage import write_json, write_lines, write_tensors, write_whole
from seepage.transcript import open_truth, save_truth
from seepage.types import Batch

HOSTILE = "<script>alert(1)</script>"
INLINE = {"a", "b", "strong", "code", "wbr", "span"}
VOID = {"meta", "img", "br", "link", "input", "hr", "wbr"}


def build_run(
    folder: Path,
    *,
    cells: tuple[str, ...] = ("fc2_size-3", "convnet_size-3"),
    attacks: tuple[str, ...] = ("linear", "dlg"),
    shape: tuple[int, ...] = (3, 12, 12),
    batches: tuple[int, ...] = (3,),
    truth: bool = True,
    level: str = "exact",
) -> Path:
    """Write a finished run: the last attack does not apply to the last cell, the first misses example 2."""
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    flags: list[dict[str, Any]] = []
    for cell in cells:
        private = [Batch(torch.rand(n, *shape, generator=generator), torch.arange(n)) for n in batches]
        if truth and "/" not in cell:
            save_truth(private, folder / "private" / cell)
        for attack in attacks:
            applies = not (cell == cells[-1] and attack == attacks[-1] and len(cells) > 1)
            rows.append(_row(cell, attack, sum(batches), applies=applies, truth=truth))
            flag: dict[str, Any] = {"name": "told", "severity": "note", "message": "It was told."}
            flags.append({"cell": cell, "attack": attack} | flag)
            if applies and "/" not in cell:
                missed = {1} if attack == attacks[0] else set()
                _write_guesses(folder / "reconstructions" / cell / f"{attack}.safetensors", private, missed)
                lines += _score_lines(cell, attack, batches, missed) if truth else []
    flags.append({"cell": None, "attack": None, "name": "odd", "severity": "warning", "message": "Mind the gap."})
    result = {
        "schema": 1,
        "run": str(folder),
        "verdict": "Some of it leaks.",
        "verdict_level": level if truth else "unscored",
        "rows": rows,
        "cells": [_cell(cell, batches, truth=truth) for cell in cells],
        "thresholds": {"recovered_ssim": 0.65, "recovered_gain_db": 3.0, "exact_db": 40.0, "later": None},
    }
    write_json(folder / "result.json", result)
    write_json(folder / "flags.json", {"schema": 1, "flags": flags})
    write_lines(folder / "scores.jsonl", lines)
    env = {"schema": 1, "seepage": "0.1.0", "torch": "2.8.0", "device": "cpu", "command": "seepage audit r.toml"}
    write_json(folder / "env.json", env | {"started": "2026-01-02T03:04:05Z", "seconds": 75.2, "jobs": 2})
    write_whole(folder / "recipe.toml", f'# {HOSTILE}\nname = "r"\nseed = 7\n')
    return folder


def _cell(name: str, batches: tuple[int, ...], *, truth: bool) -> dict[str, Any]:
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
        "defense": None,
        "client": "FedSGD(mode='train')",
        "classes": ["a", "b"],
        "baselines": measured if truth else None,
        "parameters": 97290,
        "a_later_key": [1],
    }


def _row(cell: str, attack: str, examples: int, *, applies: bool, truth: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "cell": cell,
        "attack": attack,
        "options": f"{attack}()",
        "status": "ok" if applies else "inapplicable",
        "reason": None if applies else "the batch is too large; use another attack",
        "told": ["model", "update"],
        "told_extra": ["labels"] if attack == "dlg" else [],
        "examples": examples,
        "seconds": 1.2,
        "nothing_recovered": False,
        "notes": ["a note of the attack"],
        "a_later_key": {},
    }
    for key in ("recovered", "exact", "psnr", "psnr_low", "psnr_high", "ssim", "gain_db", "label_accuracy"):
        row[key] = None
    if applies and truth:
        scores = {"recovered": 2 / 3, "exact": 1 / 3, "psnr": 41.25, "psnr_low": 38.0, "psnr_high": 44.0}
        row |= scores | {"ssim": 0.9, "gain_db": 24.0, "label_accuracy": 1.0, "alignment": "hungarian"}
    return row


def _write_guesses(path: Path, private: list[Batch], missed: set[int]) -> None:
    tensors: dict[str, Tensor] = {}
    for t, batch in enumerate(private):
        matched = torch.tensor([i not in missed for i in range(len(batch))])
        tensors |= {f"{t:06d}/inputs": (batch.inputs + 0.1).clamp(0, 1), f"{t:06d}/matched": matched}
    write_tensors(path, tensors)


def _score_lines(cell: str, attack: str, batches: tuple[int, ...], missed: set[int]) -> list[dict[str, Any]]:
    return [
        {
            "schema": 1,
            "cell": cell,
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


def change(run: Path, edit: Any, name: str = "result.json") -> None:
    """Change a JSON file of a run in place."""
    record = json.loads((run / name).read_text())
    edit(record)
    (run / name).write_text(json.dumps(record))


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


def report(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def picture(path: Path) -> Image.Image:
    image = Image.open(io.BytesIO(path.read_bytes()))
    image.load()
    return image


def decode(attributes: dict[str, str | None]) -> np.ndarray[Any, Any]:
    kind, _, data = str(attributes["src"]).partition(",")
    assert kind == "data:image/png;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    image.load()
    assert image.format == "PNG"
    return np.asarray(image)


# --- the page ----------------------------------------------------------------------------------------------------


def test_the_page_stands_alone(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    page, text = report(run), (run / "report.html").read_text(encoding="utf-8")
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href", "srcset", "action", "poster", "background"):
            assert str(attributes.get(name) or "#").startswith(("data:image/png;base64,", "#")), (tag, name)
    css = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in css
    assert "@import" not in css
    policies = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert policies
    assert str(policies[0]).startswith("default-src 'none'; img-src data:;")


def test_the_page_can_be_found_ones_way_in(tmp_path: Path) -> None:
    page = report(build_run(tmp_path))
    assert page.all("html") == [{"lang": "en"}]
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    counts = Counter(tag for tag, _ in page.tags)
    assert (counts["main"], counts["h1"], counts["title"]) == (1, 1, 1)
    assert all(head.get("scope") in ("row", "col") for head in page.all("th"))
    identities = [str(attributes["id"]) for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    assert {str(link["href"])[1:] for link in page.all("a")} <= set(identities)
    assert all(attributes["aria-labelledby"] in identities for attributes in page.all("section"))


def test_pictures_are_the_private_ones_and_the_guesses(tmp_path: Path) -> None:
    run = build_run(tmp_path, cells=("a", "b"), attacks=("dlg",))
    images = report(run).all("img")
    shown = {str(image["alt"]): decode(image) for image in reversed(images)}  # the first cell's overwrite the last's
    wanted = (open_truth(run / "private" / "a")[0].inputs * 255).round().numpy().transpose(0, 2, 3, 1)
    for i in range(3):
        np.testing.assert_array_equal(shown[f"Private example {i + 1}"], wanted[i])
    brighter = np.clip(wanted[2] / 255 + 0.1, 0, 1) * 255
    guess = next(levels for alt, levels in shown.items() if alt.startswith("dlg, example 3"))
    assert np.abs(guess - brighter).max() <= 1
    assert all(image["alt"] for image in images)
    # 2 cells x 3 private, and 3 guesses of which one was not returned; the attack does not apply to the other cell.
    assert len(images) == 6 + 2


def test_what_was_not_returned_is_marked_and_not_shown(tmp_path: Path) -> None:
    page = report(build_run(tmp_path, cells=("a",), attacks=("linear",)))
    marks = [attributes for attributes in page.all("div") if attributes.get("class") == "missing"]
    assert [mark["aria-label"] for mark in marks] == ["linear, example 2: not returned"]
    assert "not returned" in page.words
    assert "20.5 dB" in page.words
    assert "22.5 dB" in page.words
    assert "21.5 dB" not in page.words  # the score of the mid-gray stand-in


def test_numbers_reach_the_table(tmp_path: Path) -> None:
    text = report(build_run(tmp_path)).words
    for wanted in ("41.2", "38.0 to 44.0", "0.90", "+24.0", "2/3", "1/3", "100 %", "1.2 s"):
        assert wanted in text, wanted
    assert "mean color scores 17.1 dB, SSIM 0.20" in text
    assert "an SSIM of at least 0.65 and a gain of at least 3.0 dB" in text
    assert "fc2(hidden=8), 97,290 parameters; freshly initialized; 7 % right" in text


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        ("exact", "Exact copies"),
        ("recognizable", "Recognizable"),
        ("traces", "Traces only"),
        ("nothing", "Nothing recovered"),
        ("a new word", "Not scored"),
    ],
)
def test_the_verdict_says_its_level_in_words(tmp_path: Path, level: str, wanted: str) -> None:
    page = report(build_run(tmp_path, level=level))
    verdict = page.words[: page.words.index("The question.")]
    assert f"{wanted} Some of it leaks." in verdict
    assert "1 warning limits" in verdict
    assert "contains private data" in page.words
    assert "honest-but-curious server" in page.words


def test_nothing_recovered_is_said_whatever_the_psnr(tmp_path: Path) -> None:
    run = build_run(tmp_path, cells=("a",), attacks=("dlg",))
    assert "nothing recovered" not in report(run).words
    change(run, lambda result: result["rows"][0].update(nothing_recovered=True, psnr=39.0, recovered=0.0, exact=0.0))
    page = report(run)
    assert page.words.count("nothing recovered") == 3  # matrix, table, pictures
    assert "39.0" in page.words
    assert not [cell for cell in page.all("td") if str(cell.get("class")) in ("shade1", "shade2", "shade3", "shade4")]


def test_what_does_not_apply_is_one_line_with_its_reason(tmp_path: Path) -> None:
    page = report(build_run(tmp_path))
    assert "dlg does not apply: the batch is too large; use another attack" in page.words
    titled = [cell for cell in page.all("td") if cell.get("title")]
    assert [cell["title"] for cell in titled] == ["the batch is too large; use another attack"]
    assert "— does not apply" in page.words


def test_a_failed_attack_gives_its_reason(tmp_path: Path) -> None:
    run = build_run(tmp_path, cells=("a",), attacks=("dlg",))
    unscored = dict.fromkeys(("psnr", "recovered", "exact", "ssim", "gain_db", "psnr_low", "psnr_high"))
    change(run, lambda result: result["rows"][0].update(unscored, status="error", reason="it fell over"))
    assert "dlg failed: it fell over" in report(run).words


def test_all_scores_may_be_null(tmp_path: Path) -> None:
    run = build_run(tmp_path, cells=("a",), attacks=("dlg",))
    bare: dict[str, Any] = {"cell": "a", "attack": "dlg", "status": "ok", "psnr": None, "seconds": None, "told": []}
    change(run, lambda result: result.update(rows=[bare], cells=[{"name": "a", "batch_size": None}]))
    (run / "scores.jsonl").unlink()
    page = report(run)
    assert "not scored" in page.words
    assert "None" not in page.words
    assert "nan" not in page.words


def test_a_run_without_truth_shows_reconstructions_alone(tmp_path: Path) -> None:
    run = build_run(tmp_path, truth=False)
    page = report(run)
    assert "no score is possible" in page.words
    assert "private pictures are not in this folder" in page.words
    alts = [str(image["alt"]) for image in page.all("img")]
    assert alts
    assert not any(alt.startswith("Private") for alt in alts)
    assert " dB," not in page.words.split("How to read")[0]
    assert picture(write_grid(run)).format == "PNG"


def test_a_single_cell_may_keep_its_truth_without_a_folder(tmp_path: Path) -> None:
    run = build_run(tmp_path, cells=("a",), attacks=("dlg",))
    (run / "private" / "a" / "truth.safetensors").rename(run / "private" / "truth.safetensors")
    assert "Private example 1" in [image["alt"] for image in report(run).all("img")]


def test_no_more_than_eight_examples_over_all_rounds(tmp_path: Path) -> None:
    page = report(build_run(tmp_path, cells=("a",), attacks=("dlg",), batches=(5, 6)))
    private = [str(image["alt"]) for image in page.all("img") if str(image["alt"]).startswith("Private")]
    assert private == [f"Private example {i}" for i in range(1, 9)]
    assert "The first 8 of 11 examples, in batch order; 3 more are not shown." in page.words


def test_data_that_are_no_pictures_give_numbers_only(tmp_path: Path) -> None:
    run = build_run(tmp_path, shape=(7,))
    page = report(run)
    assert page.all("img") == []
    assert "41.2" in page.words
    assert "no pictures to show" in page.words
    assert picture(write_grid(run)).format == "PNG"


def test_large_pictures_are_reduced_and_gray_ones_shown(tmp_path: Path) -> None:
    page = report(build_run(tmp_path, cells=("a",), attacks=("dlg",), shape=(1, 200, 300), batches=(1,)))
    assert {decode(image).shape for image in page.all("img")} == {(85, LARGEST_SIDE, 3)}
    assert "Reduced from 300 \N{MULTIPLICATION SIGN} 200 pixels." in page.words


def test_flags_come_warnings_first_and_each_message_once(tmp_path: Path) -> None:
    text = report(build_run(tmp_path)).words
    flags = text[text.index("Trust flags") : text.index("How to read the numbers")]
    assert flags.index("Warning Mind the gap. (the whole run)") < flags.index("Note It was told.")
    assert flags.count("It was told.") == 1
    assert "raised in 4 places" in flags


def test_how_the_run_was_made(tmp_path: Path) -> None:
    text = report(build_run(tmp_path / "my-run")).words
    made = text[text.index("How this run was made") :]
    for wanted in ("seepage audit r.toml", "Seed 7", "1 min 15 s", "PyTorch 2.8.0", "Device cpu", 'name = "r"'):
        assert wanted in made, wanted
    assert "my-run" in text
    assert str(tmp_path) not in text  # a path would tell about the machine


# --- strangers ---------------------------------------------------------------------------------------------------


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run = build_run(tmp_path, cells=(HOSTILE, "b"), attacks=(HOSTILE.replace("/", "_"), '" onload="x'))

    def spoil(result: dict[str, Any]) -> None:
        result["verdict"] = result["cells"][1]["title"] = result["cells"][1]["defense"] = HOSTILE
        for row in result["rows"]:
            row |= {"options": HOSTILE, "reason": f'"{HOSTILE}', "told_extra": [HOSTILE], "notes": [HOSTILE]}

    change(run, spoil)
    change(run, lambda flags: flags["flags"].append(flags["flags"][0] | {"message": HOSTILE}), "flags.json")
    change(run, lambda env: env.update(command=HOSTILE), "env.json")
    page = report(run)
    assert page.all("script") == []
    assert HOSTILE in page.text
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert picture(write_grid(run)).format == "PNG"


def test_names_cannot_lead_out_of_the_run(tmp_path: Path) -> None:
    outside = build_run(tmp_path / "outside", cells=("a", "b"), attacks=("dlg",))
    run = build_run(tmp_path / "run", cells=("a", "b"), attacks=("dlg",))
    name = f"../../{outside.name}/private/a"
    assert (run / "private" / name / "truth.safetensors").exists()
    before = len(report(run).all("img"))

    def lead_out(result: dict[str, Any]) -> None:
        result["cells"][0]["name"] = result["rows"][0]["cell"] = name

    change(run, lead_out)
    assert len(report(run).all("img")) == before - 3 - 2


@given(st.text(alphabet="ab./\\:\0", max_size=6) | st.text(max_size=20))
def test_a_name_gives_a_file_right_inside_or_none(name: str) -> None:
    folder = Path("root/run")
    found = _inside(folder, name)
    assert found is None or (found.parent == folder and found.name == name and "\0" not in name)
    assert found is not None or not name.isalnum()


@pytest.mark.parametrize("missing", ["result.json", "flags.json", "env.json"])
def test_an_unfinished_run_is_one_sentence(tmp_path: Path, missing: str) -> None:
    run = build_run(tmp_path)
    (run / missing).unlink()
    for write in (write_report, write_grid):
        with pytest.raises(SeepageError, match=f"has no {missing}"):
            write(run)


@pytest.mark.parametrize(
    ("edit", "wanted"),
    [
        (lambda result: result.update(schema=2), "schema version 2"),
        (lambda result: result.update(rows=3), "list of rows"),
        (lambda result: result["rows"].append("x"), "is no table"),
        (lambda result: result["rows"][0].pop("attack"), "lacks 'attack'"),
        (lambda result: result["rows"][0].update(psnr="12"), "'psnr' cannot be '12'"),
        (lambda result: result["rows"][0].update(examples=True), "'examples' cannot be True"),
        (lambda result: result["cells"][0].update(baselines={"grey": {"psnr": []}}), "'psnr' cannot be"),
        (lambda result: result["thresholds"].update(exact_db=None), "'exact_db' cannot be None"),
    ],
)
def test_a_damaged_result_is_one_sentence(tmp_path: Path, edit: Any, wanted: str) -> None:
    run = build_run(tmp_path)
    change(run, edit)
    with pytest.raises(SeepageError, match=wanted):
        write_report(run)
    assert not (run / "report.html").exists()


def test_truth_and_guesses_of_two_runs_do_not_mix(tmp_path: Path) -> None:
    run = build_run(tmp_path, cells=("a",), attacks=("dlg",))
    save_truth([Batch(torch.rand(2, 3, 12, 12), torch.arange(2))], run / "private" / "a")
    with pytest.raises(SeepageError, match="come from different runs"):
        write_report(run)


def test_a_truncated_file_is_one_sentence(tmp_path: Path) -> None:
    run = build_run(tmp_path, cells=("a",), attacks=("dlg",))
    path = run / "reconstructions" / "a" / "dlg.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SeepageError, match="not a whole safetensors file"):
        write_report(run)


def test_strange_numbers_in_pictures_are_drawn() -> None:
    strange = torch.tensor([[[float("nan"), float("inf"), float("-inf"), 7.0]]])
    assert pixels(strange)[0, :, 0].tolist() == [128, 255, 0, 255]


# --- the grid ----------------------------------------------------------------------------------------------------


def test_both_files_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    first = write_report(run).read_bytes(), write_grid(run).read_bytes()
    assert (write_report(run).read_bytes(), write_grid(run).read_bytes()) == first
    assert "Software" not in picture(run / "grid.png").info


def test_the_users_matplotlib_style_neither_changes_nor_is_changed(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    plain = write_grid(run).read_bytes()
    with matplotlib.rc_context({"font.size": 31.0, "savefig.facecolor": "red", "text.usetex": True}):
        assert write_grid(run).read_bytes() == plain
        assert matplotlib.rcParams["font.size"] == 31.0


def test_the_grid_shows_what_was_recovered_best(tmp_path: Path) -> None:
    black_but_one = torch.zeros(6, 3, 8, 8)
    black_but_one[5, 0] = 1.0  # a red square that only the best recovered example has
    run = build_run(tmp_path, cells=("a", "b"), attacks=("dlg",), shape=(3, 8, 8), batches=(6,))
    save_truth([Batch(black_but_one, torch.arange(6))], run / "private" / "a")
    red = (np.asarray(picture(write_grid(run)).convert("RGB")) == (255, 0, 0)).all(axis=-1)
    assert red.sum() > 5000
    lines = [json.loads(line) for line in (run / "scores.jsonl").read_text().splitlines()]
    write_lines(run / "scores.jsonl", [line | {"value": -line["value"]} for line in lines])
    red = (np.asarray(picture(write_grid(run)).convert("RGB")) == (255, 0, 0)).all(axis=-1)
    assert red.sum() == 0


def test_the_grid_stays_small(tmp_path: Path) -> None:
    cells = tuple(f"cell-{i} costs $x^{i}$ and more words than fit on one line of the grid" for i in range(10))
    attacks = tuple(f"an_attack_with_a_long_name-{i}" for i in range(10))
    run = build_run(tmp_path, cells=cells, attacks=attacks, shape=(3, 140, 140), batches=(4,))
    path = write_grid(run)
    assert path.stat().st_size < 1_000_000
    width, height = picture(path).size
    assert max(width, height) < 3000


# --- words -------------------------------------------------------------------------------------------------------


@given(st.floats(-1e6, 1e6), st.integers(0, 4))
def test_a_number_reads_back(value: float, digits: int) -> None:
    text = say.number(value, digits).replace("\N{MINUS SIGN}", "-")
    assert float(text) == pytest.approx(value, abs=0.51 * 10**-digits)
    assert text != "-0.00"
    assert say.signed(value, digits)[0] in "+\N{MINUS SIGN}"


def test_what_is_no_number_is_a_dash() -> None:
    for value in (None, float("nan"), float("inf")):
        assert {f(value) for f in (say.number, say.signed, say.scientific, say.percent, say.duration)} == {"—"}
        assert say.count_of(value, 8) == "—"


def test_the_page_uses_the_styles_it_names() -> None:
    """A class in the template without a rule in the style sheet would be a silent slip."""
    folder = Path(say.__file__).parent
    css = (folder / "style.css").read_text(encoding="utf-8")
    for name in ("exact", "recognizable", "traces", "nothing", "unscored", "shade4", "missing", "scroll", "muted"):
        assert f".{name}" in css, name
