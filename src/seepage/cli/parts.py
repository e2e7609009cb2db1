"""A part as it is typed, `NAME` or `NAME:OPTION=VALUE,...`: an attack, a defense, a client, a model, a filter"""

import re
from typing import Any

from seepage.audit.recipe.overrides import parsed
from seepage.base.registry import Registry, Spec
from seepage.errors import SeepageError, short

_TYPED = re.compile(r"(.*?)(?::(\s*[A-Za-z_]\w*\s*=.*))?", re.DOTALL)
"""A name may hold colons of its own, as `module:thing` does; options begin at the first that a `KEY=` follows."""

_PIECE = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^]]*\]|[^,])+""")
"""What stands between commas, of which those in quotes and in a list divide nothing."""


def part_of(text: str, option: str, known: Registry[Any] | None = None) -> Spec:
    """A part by its name and its options.

    Args:
        text: What was typed.
        option: Where, for the message, such as `--defense`.
        known: The parts that have a name; what follows one of these and a colon must be options.

    Raises:
        SeepageError: Where options are not written `OPTION=VALUE`, or one is given twice.

    >>> str(part_of("gaussian_noise:sigma=1,clip=0.5", "--defense"))
    'gaussian_noise(sigma=1, clip=0.5)'
    >>> part_of("mymodule:Mod:level='high'", "--mod").options
    {'level': 'high'}
    """
    match = _TYPED.fullmatch(text)
    assert match is not None  # the first group takes any text
    use, typed = match.groups()
    head, colon, _ = use.partition(":")
    if colon and typed is None and known is not None and head in known:
        raise SeepageError(
            f"{option} {short(text)}: options are written {head}:OPTION=VALUE,...; `seepage list` names them"
        )
    options: dict[str, Any] = {}
    for piece in pieces(typed or ""):
        key, value = pair(piece, option)
        if key == "use" or key in options:
            why = "has no option 'use'" if key == "use" else f"has {key} twice"
            raise SeepageError(f"{option} {short(text)} {why}; give each option once, as NAME:OPTION=VALUE,...")
        options[key] = value
    return Spec.of({"use": use, **options})


def pieces(text: str) -> list[str]:
    """What stands between the commas of a text; empty pieces are left out.

    >>> pieces("a=[1, 2],b='x,y',c=3")
    ['a=[1, 2]', "b='x,y'", 'c=3']
    """
    return [piece.strip() for piece in _PIECE.findall(text) if piece.strip()]


def pair(text: str, where: str) -> tuple[str, Any]:
    """`KEY=VALUE`, where the value is as TOML has it, or a word.

    Raises:
        SeepageError: For another form.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SeepageError(f"{where} takes KEY=VALUE, got {short(text)}")
    return key.strip(), parsed(value.strip())
