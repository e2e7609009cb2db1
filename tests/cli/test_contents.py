"""A finished run is that of today's data, weights and code, or it is not shown."""

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from seepage.audit.recipe import contents
from seepage.audit.recipe.contents import digest_of

Cli = Callable[..., Any]
Refused = Callable[..., str]

ARGUMENTS = ("--attack", "linear", "--jobs", 1, "--json", "--set", "data.size=8", "--batch-size", 1)
NET = """
from torch import nn
import widths
def make(shape, classes):
    wide = widths.WIDTH
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * 64, wide), nn.ReLU(), nn.Linear(wide, classes))
"""


def photos(folder: Path, seed: int) -> None:
    """Two classes of four pictures; with another seed their bytes are others, and names and sizes the same."""
    noise = np.random.default_rng(seed)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(4):
            Image.fromarray(noise.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / name / f"{i}.bmp")


@pytest.fixture
def audit(cli: Cli) -> Callable[..., Any]:
    return lambda *more: cli("audit", "tiny.toml", *ARGUMENTS, "--set", "batch.count=1", *more)


def test_other_photos_in_the_same_place_are_another_run(audit: Callable[..., Any], home: Path) -> None:
    photos(home / "photos", 0)
    first = audit("--data", "photos").json
    assert audit("--data", "photos").json["finished_earlier"] is True
    photos(home / "photos", 1)
    other = audit("--data", "photos").json
    assert other["finished_earlier"] is False
    assert other["run"] != first["run"]
    photos(home / "photos", 0)
    assert audit("--data", "photos").json["run"] == first["run"]


def test_a_gate_never_judges_other_weights(audit: Callable[..., Any], refused: Refused, home: Path) -> None:
    def weights(seed: int) -> None:
        torch.manual_seed(seed)
        first, last = torch.nn.Linear(64, 16), torch.nn.Linear(16, 2)
        named = {
            f"{name}.{key}": t for name, part in (("1", first), ("3", last)) for key, t in part.state_dict().items()
        }
        save_file(named, home / "w.safetensors")

    (home / "net.py").write_text(NET)
    (home / "widths.py").write_text("WIDTH = 16\n")
    known = ("--model", "net:make", "--weights", "w.safetensors", "--out", "kept")
    weights(0)
    try:
        audit(*known)
        weights(1)
        said = refused("audit", "tiny.toml", *ARGUMENTS, "--set", "batch.count=1", *known, "--fail-if", "psnr>1000")
        assert "w.safetensors" in said
        assert "had other content" in said
        weights(0)
        # A module that the named one imports, which nobody names.
        (home / "widths.py").write_text("WIDTH = 17\n")
        said = refused("audit", "tiny.toml", *ARGUMENTS, "--set", "batch.count=1", *known)
        assert "net:make" in said
        again = Path("kept/recipe.toml").read_text()
        assert again.count("# content of ") == 2
    finally:
        for name in ("net", "widths"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()


def test_a_recipe_that_names_nothing_on_disk_has_the_name_it_had(cli: Cli, home: Path) -> None:
    (home / "faces.txt").write_text("not named")
    found = cli("audit", "tiny.toml", "--attack", "linear", "--jobs", 1, "--json").json
    assert "# content" not in Path(found["run"], "recipe.toml").read_text()


def test_code_of_this_package_is_known_by_its_version() -> None:
    assert contents.contents({"score": {"metrics": ["seepage.measure.metrics.image:psnr"]}}) == {}
    assert contents.contents({"attack": [{"use": "json:loads"}]}).keys() == {"json:loads"}


def test_a_digest_is_of_bytes_and_a_large_folder_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "x.bin").write_bytes(b"abc")
    inside = b".\x003\x00" + hashlib.sha256(b"abc").digest()
    assert digest_of(home / "x.bin") == f"sha256:{hashlib.sha256(inside).hexdigest()}"
    photos(home / "photos", 0)
    before = digest_of(home / "photos")
    (home / "photos" / "a" / ".DS_Store").write_bytes(b"left by a file manager")
    assert digest_of(home / "photos") == before
    (home / "photos" / "a" / "0.bmp").rename(home / "photos" / "a" / "4.bmp")
    assert digest_of(home / "photos") != before
    monkeypatch.setattr(contents, "MOST_HASHED", 10)

    def read(*_: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(hashlib, "file_digest", read)
    assert digest_of(home / "photos").startswith("stat:")
