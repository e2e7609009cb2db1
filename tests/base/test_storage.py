"""Files are whole or absent; what others wrote is refused with a sentence unless it is right in every byte."""

import errno
import json
import os
import stat
import tracemalloc
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save

from seepage.base import storage
from seepage.base.storage import (
    SCHEMA,
    append_line,
    check_schema,
    check_space,
    each_line,
    make_private,
    read_json,
    read_lines,
    read_tensors,
    sweep,
    write_json,
    write_lines,
    write_tensors,
    write_whole,
)
from seepage.errors import SeepageError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(content=JSON)
def test_json_comes_back_as_it_was(content: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    write_json(path, content)
    assert read_json(path) == content


@given(records=st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=5), cut=st.integers(0, 40))
def test_json_lines_come_back_and_a_last_line_cut_short_is_dropped(
    records: list[dict[str, Any]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    write_lines(path, records)
    assert read_lines(path) == records
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"cut": "short'[: 1 + cut % 14])
    assert read_lines(path) == records


def test_a_broken_line_that_is_not_the_last_is_refused(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none.jsonl") == []
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"b"\n{"c": 3}\n')
    with pytest.raises(SeepageError, match="line 2"):
        read_lines(tmp_path / "x.jsonl")


def test_lines_are_read_one_by_one_and_only_so_long(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n' * 3 + '{"b"\n{"c": 3}\n')
    found = each_line(path)
    assert [next(found) for _ in range(3)] == [{"a": 1}] * 3, "before the broken line was looked at"
    with pytest.raises(SeepageError, match="line 4"):
        next(found)


@pytest.mark.parametrize("content", [b"11\n" * 1_000_000, b"\n" * 3_000_000, b"[" * 2**24 + b"]\n{}\n"])
def test_what_is_no_table_ends_the_reading_at_its_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(SeepageError, match="line 1"):
        read_lines(tmp_path / "x.jsonl")
    assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_have_are_never_written(number: float, tmp_path: Path) -> None:
    for write in (write_json, append_line):
        with pytest.raises(ValueError, match="JSON"):
            write(tmp_path / "x.json", {"x": number})
        assert not (tmp_path / "x.json").exists() or (tmp_path / "x.json").read_text() == ""


def test_a_file_replaces_the_old_one_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "x"
    write_whole(path, "one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["x"]


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o027, 0o077])
def test_who_may_read_a_file_is_for_the_umask_to_say(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        (tmp_path / "plain").write_bytes(b"")
        write_whole(tmp_path / "whole", "x")
        write_tensors(tmp_path / "tensors", {"x": torch.ones(1)})
        append_line(tmp_path / "lines", {})
        write_whole(tmp_path / "own", "x", mode=0o600)
        make_private(tmp_path / "folder")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    plain = modes.pop("plain")
    assert plain == 0o666 & ~umask
    assert (modes.pop("own"), modes.pop("folder")) == (0o600, 0o700)
    assert modes == dict.fromkeys(("whole", "tensors", "lines"), plain)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "x"
    write_whole(path, "old")
    monkeypatch.setattr(storage.os if step == "fsync" else Path, step, full)
    with pytest.raises(SeepageError, match="No space left on device"):
        write_whole(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_a_file_in_place_of_the_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a file")
    with pytest.raises(SeepageError, match="cannot write"):
        write_whole(tmp_path / "x" / "y", "new")


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    write_whole(tmp_path / "below" / "x", "kept")
    (tmp_path / "below" / ".writing-abc").write_text("half")
    sweep(tmp_path)
    assert [file.name for file in (tmp_path / "below").iterdir()] == ["x"]


def test_a_line_that_cannot_be_appended_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SeepageError, match="cannot write"):
        append_line(tmp_path / "no" / "x.jsonl", {})


def test_tensors_come_back_bit_by_bit_also_when_they_share_memory(tmp_path: Path) -> None:
    base = torch.randn(6, 4)
    tensors = {
        "all": base,
        "part": base[1:3],
        "turned": base.T,
        "spread": base[:1].expand(3, 4),
        "one, spread": torch.tensor(2.0).expand(1),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 5),
        "half": base.half(),
        "bool": base > 0,
    }
    write_tensors(tmp_path / "x.safetensors", tensors)
    for found in (read_tensors(tmp_path / "x.safetensors"), load_file(tmp_path / "x.safetensors")):
        assert set(found) == set(tensors)
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)


def test_tensors_are_written_byte_by_byte_as_the_library_writes_them(tmp_path: Path) -> None:
    tensors = {
        "z/weight": torch.randn(3, 5),
        "a": torch.arange(7),
        "kind": torch.tensor([1, 2, 3], dtype=torch.uint8),
        'mask \u00e9"': torch.tensor([True, False]),
        "half": torch.randn(3).half(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 5),
    }
    write_tensors(tmp_path / "x.safetensors", tensors)
    assert (tmp_path / "x.safetensors").read_bytes() == save(tensors)
    with pytest.raises(SeepageError, match=r"torch\.complex64"):
        write_tensors(tmp_path / "y.safetensors", {"c": torch.zeros(2, dtype=torch.complex64)})
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


def test_tensors_that_are_made_when_asked_for_are_written_one_by_one(tmp_path: Path) -> None:
    alive, most = [0], [0]

    class Made(Mapping[str, torch.Tensor]):
        def __iter__(self) -> Iterator[str]:
            return iter("0123456789")

        def __len__(self) -> int:
            return 10

        def __getitem__(self, name: str) -> torch.Tensor:
            tensor = torch.full((1000,), float(name))
            alive[0] += 1
            most[0] = max(most[0], alive[0])
            weakref.finalize(tensor, lambda: alive.__setitem__(0, alive[0] - 1))
            return tensor

    write_tensors(tmp_path / "x.safetensors", Made())
    assert most[0] == 1
    found = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], torch.full((1000,), float(name))) for name in "0123456789")


def test_a_tensor_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", {"a": torch.ones(3), "b": torch.ones(2, 2)})
    whole = (tmp_path / "x.safetensors").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "x.safetensors").write_bytes(whole[:size])
        with pytest.raises(SeepageError, match="not a whole safetensors file"):
            read_tensors(tmp_path / "x.safetensors")


def test_a_pickle_is_refused_with_the_reason_and_not_opened(tmp_path: Path) -> None:
    for suffix in ("pt", "pth", "pkl", "pickle", "bin", "ckpt", "joblib", "PT"):
        with pytest.raises(SeepageError, match="is a pickle file"):
            read_tensors(tmp_path / f"x.{suffix}")


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for read in (read_json, read_tensors, storage.count_tensors):
        for name in ("pipe", "zero", "."):
            with pytest.raises(SeepageError, match="it is no file"):
                read(tmp_path / name)
        with pytest.raises(SeepageError, match=r"No such file|does not exist"):
            read(tmp_path / "nothing")


def test_a_json_file_of_absurd_size_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(storage.LARGEST_JSON + 1)
    with pytest.raises(SeepageError, match="64 MiB"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    "text", ["", "{", "[1,]", "NaN", "[Infinity]", '{"a": 1e999}', "[" * 10**5, "9" * 10**4, "\x00"]
)
def test_what_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SeepageError, match="is not valid JSON"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("record", [{}, {"schema": 0}, {"schema": "1"}, {"schema": None}, [], None, 3, "x" * 10**6])
def test_another_schema_version_is_refused_with_both_versions(record: Any) -> None:
    check_schema({"schema": SCHEMA}, Path("x"))
    with pytest.raises(SeepageError, match=rf"schema version .* reads version {SCHEMA}") as found:
        check_schema(record, Path("x"))
    assert len(str(found.value)) < 300


def test_space_is_looked_for_on_the_disk_of_a_folder_to_be(tmp_path: Path) -> None:
    check_space(tmp_path / "not" / "there" / "yet", 1)
    with pytest.raises(SeepageError, match=r"\d+ MiB"):
        check_space(tmp_path / "not" / "there", 2**62)


def test_records_end_with_a_line_break(tmp_path: Path) -> None:
    for number in range(2):
        append_line(tmp_path / "x.jsonl", {"n": number})
    assert (tmp_path / "x.jsonl").read_text() == '{"n": 0}\n{"n": 1}\n'
    assert [json.loads(line)["n"] for line in (tmp_path / "x.jsonl").read_text().splitlines()] == [0, 1]
