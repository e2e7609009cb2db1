"""The contact sheet: every picture has its place, and a missing one is a blank."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seepage import SeepageError
from seepage.federation.transcript.truth import open_truth
from seepage.report import write_sheet
from seepage.report.grid import EMPTY, GAP


@pytest.fixture
def run(build_run: Callable[..., Path], tmp_path: Path) -> Path:
    return build_run(tmp_path / "run")


def test_each_private_picture_stands_left_of_what_came_back(run: Path, tmp_path: Path) -> None:
    path = write_sheet(run, tmp_path / "sheet.png", case="fc2_size-3")
    sheet = np.asarray(Image.open(path)).astype(int)
    truth = [picture for batch in open_truth(run / "private" / "fc2_size-3") for picture in batch.inputs]
    height, width = truth[0].shape[1:]
    across = max(1, round((len(truth) / 2) ** 0.5))
    assert sheet.shape[1] == 2 * across * width + GAP
    for number, picture in enumerate(truth):
        row, column = divmod(number, across)
        tile = sheet[row * height : (row + 1) * height, column * width : (column + 1) * width]
        wanted = (picture.expand(3, -1, -1) * 255).round().permute(1, 2, 0).numpy()
        assert np.abs(tile - wanted).max() <= 1, number
    right = sheet[:, across * width + GAP :]
    row, column = divmod(1, across)  # the first attack returned nothing for this example
    missing = right[row * height : (row + 1) * height, column * width : (column + 1) * width]
    assert (missing == EMPTY).all()


def test_what_is_not_there_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SeepageError, match="case"):
        write_sheet(run, tmp_path / "x.png", case="nowhere")
    with pytest.raises(SeepageError, match="attack"):
        write_sheet(run, tmp_path / "x.png", attack="nothing")
    assert not (tmp_path / "x.png").exists()
