"""Files from strangers that want memory, or lead elsewhere: refused in one sentence, within bounds, nothing written."""

import json
import os
import pickle
import shutil
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from small import write_observed

from seepage import Architecture, SeepageError, build, open_transcript
from seepage.audit.recipe.files import read_recipe
from seepage.base.storage import LARGEST_HEAD, append_line, read_json, read_tensors, refuse_links
from seepage.federation.data import load
from seepage.federation.models.weights import load_weights, read_state
from seepage.report.run import open_run


def png(side: int = 8, value: int = 40) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (side, side), (value, 0, 0)).save(buffer, format="PNG")
    return buffer.getvalue()


def survives(call: Callable[[], object]) -> None:
    """A `SeepageError` of bearable length is fine; any other exception is a fault."""
    message = ""
    try:
        call()
    except SeepageError as error:
        message = str(error)
    assert len(message) < 1000


def pack(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


IMAGES = {"images/a.png": png(value=10), "images/b.png": png(value=90)}
TABLE = b"file,label\na.png,0\nb.png,1\n"


@pytest.fixture
def observed(tmp_path: Path) -> Path:
    return write_observed(tmp_path / "observed")


# --- archives of images ------------------------------------------------------------------------------------------


def test_an_archive_in_an_archive_is_not_opened(tmp_path: Path) -> None:
    inner = pack(tmp_path / "inner.zip", {**IMAGES, "labels.csv": TABLE}).read_bytes()
    path = pack(tmp_path / "x.zip", {"images/a.png": inner, "images/b.png": png(), "labels.csv": TABLE})
    with pytest.raises(SeepageError, match=r"1 of the 2 .*'images/a\.png'"):
        load(str(path))


def test_a_link_in_an_archive_is_only_its_text(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png())
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("labels.csv", TABLE)
        archive.writestr("images/b.png", png())
        link = zipfile.ZipInfo("images/a.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(tmp_path / "secret.png"))
    with pytest.raises(SeepageError, match=r"1 of the 2 .*'images/a\.png'"):
        load(str(path))


def test_names_that_lead_out_of_an_archive_write_nothing(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "er"
    place.mkdir(parents=True)
    names = ["../../up.png", "/etc/up.png", "..\\up.png", "images/<script>.png"]
    rows = "\n".join(f"{name},{number % 2}" for number, name in enumerate(names))
    path = pack(place / "x.zip", {**dict.fromkeys(names, png()), "labels.csv": f"file,label\n{rows}\n".encode()})
    before = sorted(tmp_path.rglob("*"))
    assert len(load(str(path)).batch(torch.arange(4)).inputs) == 4, "read as names in the archive, and no more"
    assert sorted(tmp_path.rglob("*")) == before


def test_an_archive_of_one_file_told_a_thousand_times_is_refused(tmp_path: Path) -> None:
    """Entries of a zip that overlap: each is honest, and together they unpack to gigabytes."""
    big = 48 * 2**20
    path = pack(tmp_path / "x.zip", {"images/0.bmp": bytes(big), "labels.csv": TABLE})
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    name_length = struct.unpack("<H", content[start + 28 : start + 30])[0]
    entry = content[start : start + 46 + name_length]
    end = content.index(b"PK\x05\x06")
    copies = [entry.replace(b"images/0.bmp", f"images/{n:x}.bmp".encode()[:12]) for n in range(1, 40)]
    directory = content[start:end] + b"".join(copies)
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 41, 41, len(directory), start, 0)
    path.write_bytes(content[:start] + directory + tail)
    with pytest.raises(SeepageError, match=r"times its size|damaged"):
        load(str(path))


def test_an_archive_with_a_file_without_a_name_is_refused(tmp_path: Path) -> None:
    """Found by coverage-guided fuzzing, as the next one."""
    content = pack(tmp_path / "x.zip", {**IMAGES, "labels.csv": TABLE}).read_bytes()
    start = content.index(b"PK\x01\x02")
    length = struct.unpack("<H", content[start + 28 : start + 30])[0]
    nameless = content[start : start + 28] + b"\0\0" + struct.pack("<H", length) + content[start + 32 :]
    (tmp_path / "x.zip").write_bytes(content[:start] + nameless)
    with pytest.raises(SeepageError, match="damaged"):
        load(str(tmp_path / "x.zip"))


def test_a_state_dict_on_several_disks_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(3)}, tmp_path / "w.pt")
    content = bytearray((tmp_path / "w.pt").read_bytes())
    locator = content.rindex(b"PK\x06\x07")
    content[locator + 16 : locator + 20] = struct.pack("<L", 7)
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(SeepageError, match=r"torch\.save"):
        read_state(tmp_path / "w.pt")


def test_a_table_of_endless_rows_is_refused(tmp_path: Path) -> None:
    rows = b"file,label\n" + b"a.png,0\n" * 10_000
    with pytest.raises(SeepageError, match="more rows than the archive has files"):
        load(str(pack(tmp_path / "x.zip", {**IMAGES, "labels.csv": rows})))
    wide = b"file,label\n" + b" " * (33 * 2**20)
    with pytest.raises(SeepageError, match="32 MiB"):
        load(str(pack(tmp_path / "y.zip", {**IMAGES, "labels.csv": wide})))


# --- what torch.save wrote ---------------------------------------------------------------------------------------


def test_packed_state_dicts_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2**20)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        pack(tmp_path / "bomb.pt", {info.filename: archive.read(info) for info in archive.infolist()})
    assert (tmp_path / "bomb.pt").stat().st_size < 10_000
    with pytest.raises(SeepageError, match=r"unpacks to .* times its size"):
        read_state(tmp_path / "bomb.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(1).expand(2**40),
        lambda: torch.zeros(4).as_strided((2**20, 2**20), (0, 0)),
        lambda: torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (2**40,)),
        lambda: torch.empty(2**40, device="meta"),
    ],
    ids=["repeated", "strided", "sparse", "meta"],
)
def test_tensors_without_their_values_are_refused(tmp_path: Path, make: Callable[[], torch.Tensor]) -> None:
    torch.save({"w": make()}, tmp_path / "w.pt")
    with pytest.raises(SeepageError, match=r"more than their values|not all there"):
        read_state(tmp_path / "w.pt")


def test_one_tensor_under_many_names_is_refused_and_tied_weights_are_not(tmp_path: Path) -> None:
    whole = torch.zeros(10**5)
    torch.save({f"w{i}": whole for i in range(60)}, tmp_path / "many.pt")
    with pytest.raises(SeepageError, match="again and again"):
        read_state(tmp_path / "many.pt")
    torch.save({"in": whole, "out": whole, "part": whole[:50]}, tmp_path / "tied.pt")
    assert set(read_state(tmp_path / "tied.pt")) == {"in", "out", "part"}


class _Writes:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran",)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".json", ".toml", ".zip", ".npz"])
def test_no_reader_runs_a_pickle(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"x{suffix}"
    path.write_bytes(pickle.dumps({"w": _Writes()}))
    for read in (read_state, read_tensors, read_json, read_recipe, lambda path: load(str(path))):
        with pytest.raises(SeepageError):
            read(path)
    assert not (tmp_path / "ran").exists()


# --- links -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "knowledge.json", "rounds/000000.safetensors", "rounds"])
def test_a_link_out_of_a_recorded_folder_is_not_followed(tmp_path: Path, observed: Path, name: str) -> None:
    (observed / name).rename(tmp_path / "elsewhere")
    (observed / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SeepageError, match="leads out of it"):
        open_transcript(observed)


def test_links_inside_a_folder_and_to_a_folder_are_followed(tmp_path: Path, observed: Path) -> None:
    (observed / "model.safetensors").rename(observed / "other.safetensors")
    (observed / "model.safetensors").symlink_to("other.safetensors")
    (tmp_path / "link").symlink_to(observed)
    assert len(open_transcript(tmp_path / "link")) == 1


def test_a_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(SeepageError, match="leads out of it"):
        refuse_links(tmp_path)


def test_lines_are_not_appended_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("untouched")
    (tmp_path / "progress.jsonl").symlink_to(tmp_path / "theirs")
    with pytest.raises(SeepageError, match="cannot write"):
        append_line(tmp_path / "progress.jsonl", {"a": 1})
    assert (tmp_path / "theirs").read_text() == "untouched"


# --- run folders and recipes -------------------------------------------------------------------------------------

RESULT = {
    "schema": 1, "verdict": "x", "verdict_level": "exact", "thresholds": {},
    "rows": [{"case": "a", "attack": "dlg", "outcome": "exact"}], "cases": [{"name": "a"}],
}  # fmt: skip


def test_the_seed_of_a_deep_recipe_is_none(tmp_path: Path) -> None:
    for name in ("result.json", "flags.json", "env.json"):
        (tmp_path / name).write_text(json.dumps({**RESULT, "flags": []}))
    (tmp_path / "recipe.toml").write_text("a = " + "[" * 50_000)
    assert open_run(tmp_path).seed is None


@pytest.mark.parametrize("part", ["update/", "params/", "frozen/", ""])
@pytest.mark.parametrize("file", ["model.safetensors", "rounds/000000.safetensors"])
def test_a_name_of_five_thousand_letters_makes_a_short_sentence(observed: Path, file: str, part: str) -> None:
    name = f"{part}{'n' * 5000}\x1b[2J"
    save_file({**load_file(observed / file), name: torch.full((2,), torch.nan)}, observed / file)
    survives(lambda: open_transcript(observed)[0])
    survives(lambda: load_weights(build(Architecture("fc2"), (1, 3, 3), 3), read_state(observed / file), 3, "it"))


def test_a_head_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.safetensors").open("wb") as file:
        file.write((LARGEST_HEAD + 1).to_bytes(8, "little"))
        file.truncate(2 * LARGEST_HEAD)
    with pytest.raises(SeepageError, match="16 MiB"):
        read_tensors(tmp_path / "x.safetensors")


# --- memory ------------------------------------------------------------------------------------------------------


def test_of_the_scores_only_those_are_kept_that_a_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("result.json", "flags.json", "env.json"):
        (tmp_path / name).write_text(json.dumps({**RESULT, "flags": []}))
    line = {"case": "a", "attack": "dlg", "round": 0, "example": 0, "metric": "psnr", "value": 1.5}
    lines = [{**line, "example": i, "metric": metric} for i in range(5) for metric in ("psnr", "mse", "lpips")]
    (tmp_path / "scores.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert open_run(tmp_path).scores == {("a", "dlg", 0, i, "psnr"): 1.5 for i in range(5)}
    monkeypatch.setattr("seepage.report.run.MOST_SCORES", 4)
    with pytest.raises(SeepageError, match="more than 4 scores"):
        open_run(tmp_path)


LIMITED = """
import resource, sys, warnings
from pathlib import Path
import torch
import seepage, seepage.report, seepage.federation.data.decode
from seepage.federation.data import load
from seepage.audit.recipe.files import read_recipe
from seepage.report.run import open_run
from seepage.base.storage import read_json, read_lines, read_tensors
from seepage.federation.models.weights import read_state
READ = {
    "zip": lambda path: load(str(path)).batch(torch.arange(2)), "pt": read_state, "json": read_json,
    "jsonl": read_lines, "toml": read_recipe, "run": open_run,
    "observed": lambda path: seepage.open_transcript(path)[0],
}
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 400 * 2**20,) * 2)
for path in map(Path, sys.argv[1:]):
    try:
        READ[path.suffix[1:]](path)
    except seepage.SeepageError as error:
        print(f"{path.name}: {error}")
"""


def huge_png(side: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(2**20)))


def sparse(path: Path, size: int, start: bytes = b"") -> None:
    """A file that says it has gigabytes and takes none on the disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)


def wide_head(size: int) -> bytes:
    table = {"params/2.weight": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures this process's memory in /proc")
def test_nothing_here_takes_more_than_400_mib(tmp_path: Path, observed: Path) -> None:
    size = 6 * 2**30
    hostile = []
    for name in ("model.safetensors", "rounds/000000.safetensors"):
        folder = tmp_path / f"{Path(name).stem}.observed"
        shutil.copytree(observed, folder)
        head = wide_head(size)
        sparse(folder / name, len(head) + size, head)
        hostile.append(folder)
    sparse(tmp_path / "a.json", size)
    sparse(tmp_path / "b.jsonl", size)
    sparse(tmp_path / "c.toml", size)
    run = tmp_path / "d.run"
    run.mkdir()
    for name in ("result.json", "flags.json", "env.json"):
        (run / name).write_text(json.dumps({**RESULT, "flags": []}))
    sparse(run / "recipe.toml", size)
    images = {"images/a.png": huge_png(60_000), "images/b.png": huge_png(60_000)}
    pack(tmp_path / "e.zip", {**images, "labels.csv": TABLE})
    pack(tmp_path / "f.zip", {**IMAGES, "labels.csv": b"file,label\n" + b"a,0\n" * (7 * 2**20)})
    torch.save({"w": torch.zeros(1).expand(2**40)}, tmp_path / "g.pt")
    hostile += [*(tmp_path / name for name in ("a.json", "b.jsonl", "c.toml", "d.run", "e.zip", "f.zip", "g.pt"))]
    command = [sys.executable, "-W", "ignore", "-c", LIMITED, *map(str, hostile)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 0, found.stderr
    assert [line.partition(":")[0] for line in found.stdout.splitlines()] == [path.name for path in hostile]
    assert "memory" not in found.stdout + found.stderr
