"""The report of a run that somebody else made: hostile names, damaged files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from seepage.base.images import pixels
from seepage.errors import SeepageError
from seepage.federation.transcript.truth import save_truth
from seepage.federation.types import Batch
from seepage.report import write_grid, write_report
from seepage.report.pictures import inside

Build = Callable[..., Path]
Change = Callable[..., None]
Read = Callable[[Path], Any]
Picture = Callable[[Path], Image.Image]
HOSTILE = "<script>alert(1)</script>"


def test_hostile_text_stays_text(
    tmp_path: Path, build_run: Build, report: Read, change: Change, picture: Picture
) -> None:
    run = build_run(tmp_path, cases=(HOSTILE, "b"), attacks=(HOSTILE.replace("/", "_"), '" onload="x'))

    def spoil(result: dict[str, Any]) -> None:
        result["verdict"] = result["cases"][1]["title"] = result["cases"][1]["defense"] = HOSTILE
        for row in result["rows"]:
            row |= {"options": HOSTILE, "reason": f'"{HOSTILE}', "side_information": [HOSTILE], "notes": [HOSTILE]}

    change(run, spoil)
    change(run, lambda flags: flags["flags"].append(flags["flags"][0] | {"message": HOSTILE}), "flags.json")
    change(run, lambda env: env.update(command=HOSTILE), "env.json")
    page = report(run)
    assert page.all("script") == []
    assert HOSTILE in page.text
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert picture(write_grid(run)).format == "PNG"


def test_names_cannot_lead_out_of_the_run(tmp_path: Path, build_run: Build, report: Read, change: Change) -> None:
    outside = build_run(tmp_path / "outside", cases=("a", "b"), attacks=("dlg",))
    run = build_run(tmp_path / "run", cases=("a", "b"), attacks=("dlg",))
    name = f"../../{outside.name}/private/a"
    assert (run / "private" / name / "truth.safetensors").exists()
    pictures = lambda: [image for image in report(run).all("img") if not str(image["alt"]).startswith("Closest")]  # noqa: E731
    before = len(pictures())

    def lead_out(result: dict[str, Any]) -> None:
        result["cases"][0]["name"] = result["rows"][0]["case"] = name

    change(run, lead_out)
    assert len(pictures()) == before - 3 - 2


@pytest.mark.slow
@given(st.text(alphabet="ab./\\:\0", max_size=6) | st.text(max_size=20))
def test_a_name_gives_a_file_right_inside_or_none(name: str) -> None:
    folder = Path("root/run")
    found = inside(folder, name)
    assert found is None or (found.parent == folder and found.name == name and "\0" not in name)
    assert found is not None or not name.isalnum()


@pytest.mark.parametrize("missing", ["result.json", "flags.json", "env.json"])
def test_an_unfinished_run_is_one_sentence(tmp_path: Path, missing: str, build_run: Build) -> None:
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
        (lambda result: result["rows"][0]["scores"]["psnr"].update(mean="12"), "'mean' cannot be '12'"),
        (lambda result: result["rows"][0].update(examples=True), "'examples' cannot be True"),
        (lambda result: result["cases"][0].update(baselines={"grey": {"psnr": []}}), "'psnr' cannot be"),
        (lambda result: result["thresholds"].update(exact_db=None), "'exact_db' cannot be None"),
    ],
)
def test_a_damaged_result_is_one_sentence(
    tmp_path: Path, edit: Any, wanted: str, build_run: Build, change: Change
) -> None:
    run = build_run(tmp_path)
    change(run, edit)
    with pytest.raises(SeepageError, match=wanted):
        write_report(run)
    assert not (run / "report.html").exists()


def test_a_membership_row_without_its_level_is_shown(
    tmp_path: Path, build_run: Build, report: Read, change: Change
) -> None:
    run = build_run(tmp_path, cases=("a",))
    row = {"case": "a", "test": "gradient_cosine", "members": 3, "others": 3, "auc": 0.5, "level": None}
    change(run, lambda result: result.update(membership=[row]))
    assert "gradient_cosine" in report(run).text


def test_truth_and_guesses_of_two_runs_do_not_mix(tmp_path: Path, build_run: Build) -> None:
    run = build_run(tmp_path, cases=("a",), attacks=("dlg",))
    save_truth([Batch(torch.rand(2, 3, 12, 12), torch.arange(2))], run / "private" / "a")
    with pytest.raises(SeepageError, match="come from different runs"):
        write_report(run)


def test_a_truncated_file_is_one_sentence(tmp_path: Path, build_run: Build) -> None:
    run = build_run(tmp_path, cases=("a",), attacks=("dlg",))
    path = run / "reconstructions" / "a" / "dlg.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SeepageError, match="not a whole safetensors"):
        write_report(run)


def test_strange_numbers_in_pictures_are_drawn() -> None:
    strange = torch.tensor([[[float("nan"), float("inf"), float("-inf"), 7.0]]])
    assert pixels(strange)[0, :, 0].tolist() == [128, 255, 0, 255]
