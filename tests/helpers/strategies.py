"""Hypothesis strategies of hostile input: values of JSON and TOML, bytes, named tensors and files of them.

Each damages something good, so that what comes out is read further than noise would be. `draw` first draws what shrinks
to less damage.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import tomli_w
import torch
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

Draw = Callable[..., Any]

MARKER = "fuzz_marker"
"""A module that nobody has: importing it counts as code that was run."""
TRACE = "PWNED"
"""A folder that a pickle would make, were it run."""
SCRIPT = "pwned"
"""What every injected tag, attribute or link carries."""

HOSTILE = (
    f"<script>{SCRIPT}()</script>", f'"><img src=x onerror="{SCRIPT}()">',
    f"</title></code></pre><svg onload={SCRIPT}()>", f"[x](javascript:{SCRIPT}())", f"`<svg onload={SCRIPT}()>`",
    f"``` \n\n<script>{SCRIPT}()</script>\n\n", f"x\n\n<img src=x onerror={SCRIPT}()>\n\n| a | b |",
    f"![x](https://example.invalid/{SCRIPT}.png)", f"<https://example.invalid/{SCRIPT}>",
    f"{{{{ 7 * 7 }}}}{{% set x = {SCRIPT} %}}", f"\x1b[2J\x1b]0;{SCRIPT}\x07", f"\u202e{SCRIPT}\u2066",
    f"\r\x1b[A{SCRIPT}\x9b2J",
)  # fmt: skip
"""Words that would act in a page, in Markdown or in a terminal, were they not spelled out."""

WORDS = (
    *HOSTILE, "", " ", "\x00", "\ud800", "\udcff", "a" * 300, "é" * 5000, "x" * 5000, "..", "../up",
    "../../../etc/passwd", "/etc/passwd", "~nosuchuser/x", "C:\\con", "os:system", "module:f", f"{MARKER}:hit",
    "timm:create_model", "fc2", "linear", "dlg", "fedavg", "gaussian", "nan", "1e400", "0x10", "true", "[[", "a.b.c",
    "|", "\n", "%s%n", "{0.__class__}", "$HOME", "schema", "use", "case",
)  # fmt: skip
PLAIN = tuple(word for word in WORDS if word.isprintable() and 0 < len(word) < 200)
NUMBERS = (
    0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**12, 10**30, 10**400,
    -0.0, 0.5, 1.5, 1e-320, 1e-30, 1e31, 1e38, 3.5e38, 1e308, -1e308, math.nan, math.inf, -math.inf,
)  # fmt: skip
NAMES = (
    "use", "options", "name", "schema", "case", "attack", "label", "rows", "grid", "lr", "seed", "inferred", "promise",
    "history", "", "__class__",
)  # fmt: skip
EMPTY: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, [0] * 2000)

hostile, words, plain, numbers = (st.sampled_from(them) for them in (HOSTILE, WORDS, PLAIN, NUMBERS))


def chance(draw: Draw, percent: int) -> bool:
    """Whether something rarer than not happens; it shrinks to no."""
    return draw(st.integers(0, 99)) >= 100 - percent


def choose(draw: Draw, *them: Any) -> Any:
    """One of them; it shrinks to the first."""
    return draw(st.sampled_from(them))


@st.composite
def nested(draw: Draw) -> Any:
    """A list in a list in a list, or a table in a table."""
    value: Any = 1
    tables = draw(st.booleans())
    for _ in range(choose(draw, 2, 5, 60, 900)):
        value = {"a": value} if tables else [value]
    return value


keys = st.sampled_from(NAMES) | words
odd = st.one_of(
    words, words, numbers, numbers, st.sampled_from(EMPTY).map(deepcopy), nested(),
    st.lists(words | numbers, max_size=4), st.dictionaries(keys, words | numbers | st.none(), max_size=3),
    st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
)  # fmt: skip
"""A value that hardly anybody expects."""


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a value."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


@st.composite
def spoiled(draw: Draw, value: Any, keep: tuple[str, ...] = ()) -> Any:
    """A copy of a JSON value with one to three faults in it; entries called like one of `keep` stay mostly."""
    value = json.loads(json.dumps(value))
    for _ in range(choose(draw, 1, 1, 1, 2, 3)):
        places = [place for place in _places(value) if place[1] not in keep]
        if chance(draw, 3):
            places = list(_places(value))
        if not places:
            return draw(odd)
        _spoil_at(draw, *places[draw(st.integers(0, len(places) - 1))])
    return value


def _spoil_at(draw: Draw, holder: Any, key: Any) -> None:
    there, kind = holder[key], draw(st.integers(0, 8))
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, deepcopy(there) if draw(st.booleans()) else draw(odd))
    elif kind == 1:
        holder[draw(keys)] = draw(odd)
    elif kind == 2 and isinstance(there, str):
        holder[key] = there + draw(hostile)
    elif kind == 3 and isinstance(there, int | float) and abs(there) < 1e300:
        holder[key] = choose(draw, -there, there * 10**6, there + 1, there + 0.5, str(there), [there], not there)
    elif kind == 4:
        holder[key] = deepcopy(choose(draw, str(there), [there], {"use": there}, {"mean": there}, None))
    else:
        holder[key] = draw(odd)


@st.composite
def worded(draw: Draw, value: Any) -> Any:
    """JSON with a stranger's words in every text but the names that all else hangs on, and in one in ten of those."""
    if isinstance(value, dict):
        keep = ("schema", "status", "space", "name", "case", "attack", "severity", "outcome", "kind")
        names = {key for key in value if key in keep and not chance(draw, 10)}
        return {key: item if key in names else draw(worded(item)) for key, item in value.items()}
    if isinstance(value, list):
        return [draw(worded(item)) for item in value]
    return f"{value[:20]}{draw(hostile)}" if isinstance(value, str) else value


@st.composite
def damaged(draw: Draw, content: bytes) -> bytes:
    """Bytes with one to four faults: flips, cuts, repeats, odd lengths, foreign pieces."""
    data = bytearray(content)
    for _ in range(choose(draw, 1, 1, 2, 4)):
        at, kind = draw(st.integers(0, len(data))), draw(st.integers(0, 7))
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind <= 2 and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif kind == 3:
            del data[at : at + choose(draw, 1, 2, 4, 8, 50)]
        elif kind == 4:
            data[at:at] = draw(st.binary(min_size=1, max_size=30))
        elif kind == 5:
            data[at:at] = data[at : at + choose(draw, 1, 8, 40, 300)] * choose(draw, 1, 2, 20)
        elif kind == 6:
            width, order = choose(draw, 1, 2, 4, 8), choose(draw, "little", "big")
            number = choose(draw, 0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**62, 2**64 - 1)
            data[at : at + width] = (number % 256**width).to_bytes(width, order)
        elif draw(st.booleans()):
            del data[at:]
        else:
            heads = (b"\x80\x04", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\xff\xfe", b"{", b"[" * 3000, b"\\ud800")
            data[at:at] = choose(draw, *heads, b"NaN", b"1e999", b"\x00" * 9, b"\n")
    return bytes(data)


@st.composite
def spoiled_json(draw: Draw, value: Any, keep: tuple[str, ...] = ()) -> bytes:
    """A spoiled value as JSON; now and then with damaged bytes, or bytes that are none of it."""
    if chance(draw, 6):
        others = (b"[" * 100_000, b'{"schema": NaN}', b"\xff\xfe{}", b"1e999")
        return draw(st.binary(max_size=60) | st.sampled_from(others))
    text = json.dumps(draw(spoiled(value, keep))).encode()
    return draw(damaged(text)) if chance(draw, 12) else text


@st.composite
def spoiled_lines(draw: Draw, rows: list[Any], keep: tuple[str, ...] = ()) -> bytes:
    """A file of JSON lines of which some are spoiled."""
    if chance(draw, 6):
        return draw(st.binary(max_size=60))
    found = draw(spoiled(rows, keep))
    text = json_lines(found if isinstance(found, list) else [found])
    return draw(damaged(text)) if chance(draw, 15) else text


def json_lines(rows: list[Any]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


@st.composite
def spoiled_toml(draw: Draw, tables: Mapping[str, Any], keep: tuple[str, ...] = ()) -> bytes:
    """TOML of spoiled tables; with damaged bytes where TOML has no such values."""
    try:
        return tomli_w.dumps(draw(spoiled(tables, keep))).encode()
    except (TypeError, ValueError, AttributeError, UnicodeError, RecursionError):
        return draw(damaged(tomli_w.dumps(tables).encode(errors="replace")))


# --- tensors -----------------------------------------------------------------------------------------------------

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64,
)  # fmt: skip
SIZES = (1e-45, 1e-40, 1e-30, 1e10, 9e14, 1e19, 1e31, 1e37, 3e38)
"""Of values of one tensor: from the smallest of float32 to the largest, with those that no training makes."""
VALUES = (0, 1, -1, 2**40, 1e31, 1e38, 1e-320, 1e-30, math.nan, math.inf, -math.inf, 255, 0.5)


@st.composite
def spoiled_tensors(draw: Draw, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Named tensors with one to three faults: kinds of numbers, shapes, values, names."""
    found = dict(tensors)
    for _ in range(choose(draw, 1, 1, 2, 3)):
        if not found:
            break
        name, kind = choose(draw, *sorted(found)), draw(st.integers(0, 9))
        if kind == 0:
            size = choose(draw, *SIZES)
            found = {key: tensor * size if tensor.dtype == torch.float32 else tensor for key, tensor in found.items()}
        elif kind <= 2:
            found[name] = draw(revalued(found[name]))
        elif kind <= 4:
            found[name] = draw(reshaped(found[name]))
        elif kind <= 6:
            found[name] = cast(found[name], choose(draw, *DTYPES))
        elif kind == 7:
            found[f"{name.partition('/')[0]}/{choose(draw, 'x', 'weight', '0', 'inputs', 'labels')}"] = torch.ones(2)
        elif kind == 8:
            found[draw(plain | st.sampled_from([f"update/{name}", name + "x", "x" * 5000]))] = found.pop(name)
        else:
            del found[name]
    return found


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in another kind of numbers, by way of float32 where there is no direct one."""
    try:
        return tensor.to(dtype)
    except (RuntimeError, NotImplementedError):
        return tensor.float().to(dtype)


@st.composite
def reshaped(draw: Draw, tensor: Tensor) -> Tensor:
    flat, kind = tensor.reshape(-1), draw(st.integers(0, 6))
    if not len(flat):
        return torch.ones(choose(draw, (), (1,), (2, 2)))
    if kind == 0:
        return flat.clone()
    if kind == 1:
        return tensor[None].clone()
    if kind == 2:
        return tensor.mT.contiguous() if tensor.ndim > 1 else flat[:, None].clone()
    if kind == 3:
        return torch.cat([tensor, tensor[:1]]) if tensor.ndim else flat.repeat(3)
    if kind == 4:
        return tensor[:0].clone() if tensor.ndim else flat[:0].clone()
    return flat[0].clone() if kind == 5 else flat[:0].clone()


@st.composite
def revalued(draw: Draw, tensor: Tensor) -> Tensor:
    found, kind, value = tensor.clone().reshape(-1), draw(st.integers(0, 2)), choose(draw, *VALUES)
    if not len(found):
        return tensor
    try:
        if kind == 0:
            found[draw(st.integers(0, len(found) - 1))] = value
        elif kind == 1:
            found[:] = value
        else:
            found = (found.double() * choose(draw, -1, *SIZES)).to(tensor.dtype)
    except (RuntimeError, NotImplementedError, OverflowError, ValueError, TypeError):
        # bool and float8 have less arithmetic
        found = torch.zeros(tensor.numel()).to(tensor.dtype)
    return found.reshape(tensor.shape)


def safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file."""
    return save({name: tensor.contiguous().clone() for name, tensor in tensors.items()})


@st.composite
def reheaded(draw: Draw, content: bytes) -> bytes:
    """A safetensors file whose table is spoiled: kinds, shapes, places and lengths that its bytes do not bear out."""
    size = int.from_bytes(content[:8], "little")
    table = draw(spoiled(json.loads(content[8 : 8 + size])))
    for entry in table.values() if isinstance(table, dict) else ():
        if isinstance(entry, dict) and chance(draw, 30):
            odd_shapes = st.sampled_from(([], [0], [2**40, 2**40], [-1], [1] * 70))
            entry["shape"] = draw(odd_shapes | st.lists(st.integers(-1, 2**62), max_size=4))
        if isinstance(entry, dict) and chance(draw, 20):
            entry["dtype"] = choose(draw, "F8_E4M3", "C64", "U64", "F4", "BOOL", "F64", "X", 3)
        if isinstance(entry, dict) and chance(draw, 10):
            entry["data_offsets"] = draw(st.lists(st.integers(-1, 2**63), min_size=2, max_size=2))
    text = json.dumps(table).encode()
    length = choose(draw, len(text), len(text), len(text), len(text) - 1, 2**40, 2**63, 0)
    return length.to_bytes(8, "little") + text + content[8 + size :]


@st.composite
def tensor_file(draw: Draw, tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file, spoiled in its tensors, its table or its bytes."""
    kind = draw(st.integers(0, 19))
    if kind < 12:
        return safetensors(draw(spoiled_tensors(tensors)))
    return draw(reheaded(safetensors(tensors)) if kind < 17 else damaged(safetensors(tensors)))
