"""Names of user code in a recipe or a run folder, which is not run unless it is trusted."""

from typing import Any

from seepage.audit.recipe.overrides import walk
from seepage.base import registry
from seepage.base.registry import is_dotted, is_network_file
from seepage.errors import SeepageError, short

_MODEL = {"grid", "case", "model", "use"}
"""What the place of a model's name is made of."""


def _is_code(where: tuple[str, ...], value: Any) -> bool:
    """Whether a value is `module:thing`, or in a model's place a saved network, which may hold code."""
    of_model = where[-1:] == ("use",) and set(where) <= _MODEL
    return isinstance(value, str) and (is_dotted(value) or (of_model and is_network_file(value)))


def own_code(tables: Any, *, models: bool = True) -> list[str]:
    """Names of user code in tables, but for the networks of torchvision and timm, looked up by name.

    Elsewhere than in a model's place, `timm:create_model` would be imported and called like anybody's code.

    Args:
        tables: A recipe's, or a run folder's.
        models: Whether models are made of them; else their names are passed over.

    >>> own_code({"model": {"use": "my:net"}, "attack": [{"use": "dlg"}]})
    ['my:net']
    >>> own_code({"grid": {"model.use": ["fc2", "my:net"]}, "attack": [{"use": "ggl", "generator": "my:gan"}]})
    ['my:net', 'my:gan']
    >>> own_code({"model": {"use": "timm:resnet18"}})
    []
    """
    own = [
        name
        for where, name in walk(tables)
        if _is_code(where, name) and not (set(where) <= _MODEL and (not models or registry.models.knows(name)))
    ]
    return list(dict.fromkeys(own))


def refuse_code(tables: Any, what: str, *, models: bool = True) -> None:
    """Raise `SeepageError` where tables name user code, as `own_code` finds it.

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
