"""Names of somebody's own code in a recipe or a run folder, which is not run unless it is trusted."""

from collections.abc import Iterator, Mapping
from typing import Any

from seepage import registry
from seepage.errors import SeepageError, short
from seepage.registry import is_dotted, is_network_file


def named_code(tables: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every `module:thing` and saved network in tables, at any depth, with its place.

    >>> list(named_code({"grid": {"model.use": ["fc2", "my:net"]}, "attack": [{"use": "ggl", "generator": "my:gan"}]}))
    [(('grid', 'model', 'use'), 'my:net'), (('attack', 'generator'), 'my:gan')]
    """
    if isinstance(tables, Mapping):
        for key, value in tables.items():
            yield from named_code(value, (*where, *str(key).split(".")))
    elif isinstance(tables, list | tuple):
        for value in tables:
            yield from named_code(value, where)
    elif isinstance(tables, str) and (is_dotted(tables) or (_of_model(where) and is_network_file(tables))):
        yield where, tables


_MODEL = {"grid", "case", "model", "use"}
"""What the place of a model's name is made of."""


def _of_model(where: tuple[str, ...]) -> bool:
    return bool(where) and where[-1] == "use" and set(where) <= _MODEL


def own_code(tables: Any, *, models: bool = True) -> list[str]:
    """Names of somebody's own code in tables, but for the networks of torchvision and timm, looked up by name.

    Elsewhere than in a model's place, `timm:create_model` would be imported and called like anybody's code.

    Args:
        tables: A recipe's, or a run folder's.
        models: Whether models are made of them; else their names are passed over.

    >>> own_code({"model": {"use": "my:net"}, "attack": [{"use": "dlg"}]})
    ['my:net']
    >>> own_code({"model": {"use": "timm:resnet18"}})
    []
    """
    own = [
        name
        for place, name in named_code(tables)
        if not (set(place) <= _MODEL and (not models or registry.models.knows(name)))
    ]
    return list(dict.fromkeys(own))


def refuse_code(tables: Any, what: str, *, models: bool = True) -> None:
    """Raise `SeepageError` where tables name somebody's own code, as `own_code` finds it.

    Args:
        tables: A recipe's, or a run folder's.
        what: What they are, for the message.
        models: Whether models are made of them; else their names are passed over.
    """
    own = own_code(tables, models=models)
    if own:
        # Every name is shown, each cut by itself: who is asked to trust code must see all of it.
        names = ", ".join(short(name)[1:-1] for name in own)
        raise SeepageError(
            f"{what} names somebody's own code ({names}), which is not run unasked; if you trust it, add --trust"
        )
