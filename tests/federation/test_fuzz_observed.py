"""Files of an `observed/` folder come from others: whatever is in them, one sentence or a transcript comes out."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seepage import Architecture, Batch, SeepageError, build, exposure, open_transcript, record, save_transcript
from seepage.federation.transcript.recorded import kind_tensor

pytestmark = pytest.mark.filterwarnings("error")
FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = [
    "../up",
    "/etc/passwd",
    "<script>alert(1)</script>",
    "\x00",
    "a" * 300,
    "fc2",
    "os:system",
    "",
    "..",
    "module:f",
]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(NAMES),
    st.lists(st.one_of(st.integers(-3, 2**40), st.sampled_from(NAMES)), max_size=4),
    st.dictionaries(st.sampled_from(["use", "options", "lr", *NAMES]), st.sampled_from([*NAMES, 3, None]), max_size=3),
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "observed"
    architecture = Architecture("fc2", {"hidden": 6})
    model = build(architecture, (1, 3, 3), 3)
    batch = Batch(torch.rand(2, 1, 3, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2]))
    save_transcript(record(model, batch, architecture=architecture), folder)
    return folder


def opened(folder: Path) -> None:
    """Read everything. A `SeepageError` is fine, any other exception is a fault; so is a file that was not there."""
    before = sorted(folder.parent.rglob("*"))
    with suppress(SeepageError):
        json.dumps(exposure(open_transcript(folder)).table(), allow_nan=False)
    assert sorted(folder.parent.rglob("*")) == before


def copied(good: Path, place: str) -> Path:
    return shutil.copytree(good, Path(place) / "observed")


@FEW
@given(data=st.data())
def test_any_value_in_knowledge(good: Path, data: st.DataObject) -> None:
    content: dict[str, Any] = json.loads((good / "knowledge.json").read_text())
    for key in data.draw(st.lists(st.sampled_from(sorted(content)), min_size=1, max_size=3)):
        inner = isinstance(content[key], dict) and content[key] and data.draw(st.booleans())
        if inner:
            content[key][data.draw(st.sampled_from(sorted(content[key])))] = data.draw(ODD)
        else:
            content[key] = data.draw(ODD)
    with TemporaryDirectory() as place:
        folder = copied(good, place)
        (folder / "knowledge.json").write_text(json.dumps(content))
        opened(folder)


@FEW
@given(
    text=st.one_of(
        st.binary(max_size=60), st.sampled_from([b"[" * 100_000, b'{"schema": NaN}', b"\xff\xfe{}", b"1e999"])
    )
)
def test_any_bytes_as_knowledge(good: Path, text: bytes) -> None:
    with TemporaryDirectory() as place:
        folder = copied(good, place)
        (folder / "knowledge.json").write_bytes(text)
        opened(folder)


@FEW
@given(data=st.data())
@pytest.mark.parametrize("name", ["model.safetensors", "rounds/000000.safetensors"])
def test_any_damage_to_tensors(good: Path, name: str, data: st.DataObject) -> None:
    content = bytearray((good / name).read_bytes())
    header = int.from_bytes(content[:8], "little") + 8
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, header - 1))
        content[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    with TemporaryDirectory() as where:
        folder = copied(good, where)
        (folder / name).write_bytes(content)
        opened(folder)


HEADERS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F64", "I64", "BOOL", "F8_E4M3", "C64", "U8", "X"]),
        "shape": st.lists(st.integers(-1, 2**62), max_size=4),
        "data_offsets": st.lists(st.integers(-1, 2**63), min_size=2, max_size=2),
    }
)


@FEW
@given(
    names=st.dictionaries(st.sampled_from(["update/2.weight", "kind", *NAMES]), HEADERS, max_size=3),
    size=st.integers(0, 64),
)
def test_any_header_of_tensors(good: Path, names: dict[str, Any], size: int) -> None:
    """Shapes of absurd size are refused before memory is taken."""
    header = json.dumps(names).encode()
    with TemporaryDirectory() as place:
        folder = copied(good, place)
        file = folder / "rounds" / "000000.safetensors"
        file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
        opened(folder)


@FEW
@given(
    dtype=st.sampled_from([torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64, torch.uint8]),
    extra=st.sampled_from(["", *NAMES]),
    value=st.sampled_from([0.0, 1.0, 1e30, float("nan"), float("inf")]),
)
def test_any_kind_of_numbers(good: Path, dtype: torch.dtype, extra: str, value: float) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(good / "rounds" / "000000.safetensors")
    if dtype.is_floating_point or dtype.is_complex or value in (0.0, 1.0):
        tensors["update/2.bias"] = torch.full((6,), value, dtype=torch.float64).to(dtype)
    if extra and "\x00" not in extra:
        tensors[f"update/{extra}"] = torch.ones(2)
    with TemporaryDirectory() as place:
        folder = copied(good, place)
        save_file(tensors, folder / "rounds" / "000000.safetensors")
        opened(folder)


SIZES = st.sampled_from([1e-45, 1e-40, 1e-30, 1e10, 9e14, 1e19, 1e31, 1e37, 3e38])


@FEW
@given(
    sizes=st.dictionaries(st.sampled_from(["0.", "2.", "4."]), SIZES, min_size=1),
    kind=st.sampled_from(["update", "params", "gradient"]),
    drawn=st.integers(0, 99),
    lr=st.sampled_from([0.1, 1e-320, 1e-9, 1e30]),
)
def test_finite_values_of_any_size(good: Path, sizes: dict[str, float], kind: str, drawn: int, lr: float) -> None:
    """What no training makes is refused before a matrix of it is decomposed, in weights, updates and their quotient."""
    from safetensors.torch import load_file, save_file

    draw = torch.Generator().manual_seed(drawn)
    with TemporaryDirectory() as place:
        folder = copied(good, place)
        file = folder / ("model.safetensors" if kind == "params" else "rounds/000000.safetensors")
        tensors, part = load_file(file), "params" if kind == "params" else "update"
        for name, tensor in tensors.items():
            for layer, size in sizes.items():
                if name.startswith(f"{part}/") and layer in name:
                    tensors[name] = torch.empty(tensor.shape).uniform_(-1, 1, generator=draw) * size
        if kind != "gradient":
            facts = json.loads((folder / "knowledge.json").read_text())
            facts["client"] = {"use": "fedavg", "lr": lr, "steps": 3}
            (folder / "knowledge.json").write_text(json.dumps(facts))
            round_file = folder / "rounds" / "000000.safetensors"
            sent = load_file(round_file) if kind == "params" else tensors
            save_file({**sent, "kind": kind_tensor("delta")}, round_file)
        if kind != "update":
            save_file(tensors, file)
        opened(folder)


@pytest.mark.parametrize("kind", ["update", "params"])
def test_the_largest_value_is_named(good: Path, tmp_path: Path, kind: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = copied(good, str(tmp_path))
    file = folder / ("model.safetensors" if kind == "params" else "rounds/000000.safetensors")
    save_file({**(tensors := load_file(file)), f"{kind}/2.bias": tensors[f"{kind}/2.bias"] - 1e31}, file)
    with pytest.raises(SeepageError, match=r"1e\+31 in '2.bias'"):
        open_transcript(folder)[0]
