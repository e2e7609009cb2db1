"""Seeded damage: to values of JSON and TOML, to bytes, and to named tensors."""

import json
import math
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor

MARKER = "fuzz_marker"
"""A module that lies in the sandbox: importing it counts as code that was run."""
TRACE = "PWNED"
"""A folder that a pickle would make, were it run."""
SCRIPT = "pwned"
"""What every injected tag, attribute or link carries."""

HOSTILE = (
    f"<script>{SCRIPT}()</script>",
    f'"><img src=x onerror="{SCRIPT}()">',
    f"</title></code></pre><svg onload={SCRIPT}()>",
    f"[x](javascript:{SCRIPT}())",
    f"`<svg onload={SCRIPT}()>`",
    f"``` \n\n<script>{SCRIPT}()</script>\n\n",
    f"x\n\n<img src=x onerror={SCRIPT}()>\n\n| a | b |",
    f"![x](https://example.invalid/{SCRIPT}.png)",
    f"<https://example.invalid/{SCRIPT}>",
    f"{{{{ 7 * 7 }}}}{{% set x = {SCRIPT} %}}",
    f"\x1b[2J\x1b]0;{SCRIPT}\x07",
    f"\u202e{SCRIPT}\u2066",
    f"\r\x1b[A{SCRIPT}\x9b2J",
)
"""Words that would act in a page, in Markdown or in a terminal, were they not spelled out."""

WORDS = (
    *HOSTILE,
    "",
    " ",
    "\x00",
    "\ud800",
    "\udcff",
    "a" * 300,
    "é" * 5000,
    "x" * 5000,
    "..",
    "../../../etc/passwd",
    "/etc/passwd",
    "~nosuchuser/x",
    "C:\\con",
    "os:system",
    f"{MARKER}:hit",
    "timm:create_model",
    "fc2",
    "linear",
    "dlg",
    "fedavg",
    "gaussian",
    "nan",
    "1e400",
    "0x10",
    "true",
    "[[",
    "a.b.c",
    "|",
    "\n",
    "%s%n",
    "{0.__class__}",
    "$HOME",
    "schema",
    "use",
    "case",
)

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    2**31 - 1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64,
    10**12,
    10**30,
    10**400,
    -0.0,
    0.5,
    1.5,
    1e-320,
    1e-30,
    1e31,
    1e38,
    3.5e38,
    1e308,
    -1e308,
    math.nan,
    math.inf,
    -math.inf,
)

NAMES = ("use", "options", "name", "schema", "case", "attack", "label", "rows", "grid", "case", "seed", "", "__class__")


def nested(rng: Random, depth: int | None = None) -> Any:
    """A list in a list in a list, or a table in a table."""
    value: Any = 1
    for _ in range(rng.choice((2, 5, 60, 900)) if depth is None else depth):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def odd(rng: Random) -> Any:
    """A value that hardly anybody expects."""
    kind = rng.randrange(10)
    if kind < 4:
        return rng.choice(WORDS)
    if kind < 7:
        return rng.choice(NUMBERS)
    if kind == 7:
        return rng.choice((None, True, False, [], {}, [[]], [None], {"": None}, [0] * 2000))
    if kind == 8:
        return [rng.choice((*WORDS, *NUMBERS)) for _ in range(rng.randrange(5))]
    if rng.random() < 0.3:
        return nested(rng)
    return {rng.choice((*NAMES, *WORDS)): rng.choice((*WORDS, *NUMBERS, None)) for _ in range(rng.randrange(4))}


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a value."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def spoiled(rng: Random, value: Any, *, keep: tuple[str, ...] = ()) -> Any:
    """A copy of a JSON value with one to three faults in it; entries called like one of `keep` stay mostly."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = [place for place in _places(value) if place[1] not in keep or rng.random() < 0.03]
        if not places:
            return odd(rng)
        _spoil_at(rng, *rng.choice(places))
    return value


def _spoil_at(rng: Random, holder: Any, key: Any) -> None:
    there, kind = holder[key], rng.randrange(9)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, rng.choice((there, odd(rng))))
    elif kind == 1:
        holder[rng.choice((*NAMES, *WORDS))] = odd(rng)
    elif kind == 2 and isinstance(there, str):
        holder[key] = there + rng.choice(HOSTILE)
    elif kind == 3 and isinstance(there, int | float) and abs(there) < 1e300:
        holder[key] = rng.choice((-there, there * 10**6, there + 1, there + 0.5, str(there), [there], not there))
    elif kind == 4:
        holder[key] = rng.choice((str(there), [there], {"use": there}, {"mean": there}, None))
    else:
        holder[key] = odd(rng)


def as_json(rng: Random, value: Any) -> bytes:
    """The value as JSON; now and then with damaged bytes."""
    text = json.dumps(value).encode()
    return damaged(rng, text) if rng.random() < 0.12 else text


def damaged(rng: Random, content: bytes) -> bytes:
    """Bytes with one to four faults: flips, cuts, repeats, odd lengths, foreign pieces."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(8)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            del data[at : at + rng.choice((1, 2, 4, 8, 50))]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 30)))
        elif kind == 3:
            end = at + rng.choice((1, 8, 40, 300))
            data[at:at] = data[at:end] * rng.choice((1, 2, 20))
        elif kind == 4:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice((0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**62, 2**64 - 1))
            data[at : at + width] = (number % 256**width).to_bytes(width, rng.choice(("little", "big")))
        elif kind == 5:
            data[at:at] = rng.choice(
                (
                    b"\x80\x04",
                    b"PK\x03\x04",
                    b"\x93NUMPY\x01\x00",
                    b"\xff\xfe",
                    b"{",
                    b"[" * 3000,
                    b"NaN",
                    b"1e999",
                    b"\x00" * 9,
                    b"\n",
                    b"\\ud800",
                )
            )
        elif at < len(data):
            data[at] = rng.choice((data[at] ^ (1 << rng.randrange(8)), rng.randrange(256)))
    return bytes(data)


# --- tensors -----------------------------------------------------------------------------------------------------

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint16,
    torch.uint64,
)


def spoiled_tensors(rng: Random, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Named tensors with one to three faults: kinds of numbers, shapes, values, names."""
    found = dict(tensors)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not found:
            break
        name = rng.choice(sorted(found))
        kind = rng.randrange(10)
        if kind == 0:
            del found[name]
        elif kind == 1:
            found[rng.choice((*(w for w in WORDS if w.isprintable()), f"update/{name}", name + "x"))] = found.pop(name)
        elif kind == 2:
            found[f"{name.partition('/')[0]}/{rng.choice(('x', 'weight', '0', 'inputs', 'labels'))}"] = torch.ones(2)
        elif kind <= 4:
            found[name] = cast(found[name], rng.choice(DTYPES))
        elif kind <= 6:
            found[name] = _reshaped(rng, found[name])
        else:
            found[name] = _revalued(rng, found[name])
    return found


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in another kind of numbers, by way of float32 where there is no direct one."""
    try:
        return tensor.to(dtype)
    except (RuntimeError, NotImplementedError):
        return tensor.float().to(dtype)


def _reshaped(rng: Random, tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    if not len(flat):
        return torch.ones(rng.choice(((), (1,), (2, 2))))
    kind = rng.randrange(7)
    if kind == 0:
        return flat[0].clone()  # 0-d
    if kind == 1:
        return flat[:0].clone()
    if kind == 2:
        return tensor[:0].clone() if tensor.ndim else flat[:0].clone()
    if kind == 3:
        return tensor.mT.contiguous() if tensor.ndim > 1 else flat[:, None].clone()
    if kind == 4:
        return torch.cat([tensor, tensor[:1]]) if tensor.ndim else flat.repeat(3)
    if kind == 5:
        return flat.clone()
    return tensor[None].clone()


def _revalued(rng: Random, tensor: Tensor) -> Tensor:
    value = rng.choice((0, 1, -1, 2**40, 1e31, 1e38, 1e-320, 1e-30, math.nan, math.inf, -math.inf, 255, 0.5))
    found = tensor.clone().reshape(-1)
    if not len(found):
        return tensor
    try:
        if rng.random() < 0.5:
            found[rng.randrange(len(found))] = value
        elif rng.random() < 0.5:
            found[:] = value
        else:
            found = (found.double() * rng.choice((1e10, 1e30, 1e-30, -1))).to(tensor.dtype)
    except (
        RuntimeError,
        NotImplementedError,
        OverflowError,
        ValueError,
        TypeError,
    ):  # bool and float8 have less arithmetic
        found = torch.zeros(tensor.numel()).to(tensor.dtype)
    return found.reshape(tensor.shape)


def safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file."""
    from safetensors.torch import save

    return save({name: tensor.contiguous().clone() for name, tensor in tensors.items()})


def reheaded(rng: Random, content: bytes) -> bytes:
    """A safetensors file whose table is spoiled: kinds, shapes, places and lengths that its bytes do not bear out."""
    size = int.from_bytes(content[:8], "little")
    table = spoiled(rng, json.loads(content[8 : 8 + size]))
    for entry in table.values() if isinstance(table, dict) else ():
        if isinstance(entry, dict) and rng.random() < 0.3:
            entry["shape"] = rng.choice(([], [0], [2**40, 2**40], [-1], [1] * 70, entry.get("shape")))
        if isinstance(entry, dict) and rng.random() < 0.2:
            entry["dtype"] = rng.choice(("F8_E4M3", "C64", "U64", "F4", "BOOL", "F64", 3))
    text = json.dumps(table).encode()
    length = rng.choice((len(text), len(text), len(text), len(text) - 1, 2**40, 2**63, 0))
    return length.to_bytes(8, "little") + text + content[8 + size :]


def spoiled_file(rng: Random, tensors: Mapping[str, Tensor]) -> bytes:
    """A file of tensors, spoiled in its tensors, its table or its bytes."""
    kind = rng.random()
    if kind < 0.6:
        return safetensors(spoiled_tensors(rng, tensors))
    whole = safetensors(tensors)
    return reheaded(rng, whole) if kind < 0.85 else damaged(rng, whole)
