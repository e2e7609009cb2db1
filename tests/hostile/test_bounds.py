"""Bounds on strangers' files, each in one place: what is over them ends in a sentence before it costs anything."""

import json
import os
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from seepage.audit.folder import check_device
from seepage.audit.row import Row
from seepage.base.hashing import Hasher
from seepage.base.npz import LARGEST_HEADER, read_arrays
from seepage.base.schema import LARGEST, Summary
from seepage.errors import SeepageError
from seepage.federation.models import build
from seepage.federation.types import Architecture


def test_a_file_under_many_names_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = tmp_path / "a.safetensors"
    big.write_bytes(bytes(2**16))
    names = [tmp_path / f"{k}.safetensors" for k in range(50)]
    for k, name in enumerate(names):
        os.link(big, name) if k % 2 else name.symlink_to(big.name)
    hasher, opened, plain = Hasher(most=2**17), [], Path.open

    def counted(self: Path, *args: object, **options: object) -> object:
        opened.append(self)
        return plain(self, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", counted)
    assert len({hasher.digest(name) for name in [big, *names]}) == 1
    assert len(opened) == 1


def test_means_of_a_result_are_numbers_that_can_be_added_up() -> None:
    with pytest.raises(ValueError, match="at most"):
        Summary(mean=10 * LARGEST)
    share = {"case": "a", "attack": "x", "outcome": "nothing_recovered", "scores": {"recovered": {"mean": 2.0}}}
    with pytest.raises(ValueError, match="share"):
        Row.model_validate(share)


@pytest.mark.parametrize("kind", ["privateuseone", "hpu", "nothing"])
def test_a_device_that_is_not_there_is_one_sentence(kind: str) -> None:
    with pytest.raises(SeepageError, match="cannot be used here"):
        check_device(kind)


@pytest.mark.parametrize("changed", [{"n_layer": 100_000}, {"vocab_size": 2**30}, {"n_embd": 1024, "n_layer": 200}])
def test_a_configuration_is_bounded_before_anything_is_built(tmp_path: Path, changed: dict[str, int]) -> None:
    pytest.importorskip("transformers")
    own = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 713, "n_positions": 64}
    (tmp_path / "config.json").write_text(json.dumps(own | changed))
    save_file({"transformer.wte.weight": torch.zeros(713, 8)}, tmp_path / "model.safetensors")
    with pytest.raises(SeepageError, match=r"is the most|by its config\.json"):
        build(Architecture("causal_lm:gpt2", {"folder": str(tmp_path)}), (8,), 713)


def test_a_header_is_bounded_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 400 * 2**20) + b" " * 2**16)
    with pytest.raises(SeepageError, match=f"none has more than {LARGEST_HEADER}"):
        read_arrays(path, most=2**30)
