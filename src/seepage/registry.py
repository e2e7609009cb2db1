"""Things by name: dotted paths to a user's own code, and options checked against a signature."""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from seepage.errors import Problems, SeepageError
from seepage.errors import short as short

_DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_dotted(use: str) -> bool:
    """Whether a name has the form `module.sub:thing`.

    >>> is_dotted("mymodule:MyAttack"), is_dotted("fc2")
    (True, False)
    """
    return _DOTTED.fullmatch(use) is not None


def import_dotted(use: str) -> Any:
    """Import `module:thing` from the user's own code; the current folder counts as a place to look.

    This runs the module. Call it only for names the user typed, never for names read from others' files.

    Raises:
        SeepageError: For a name of another form, which `seepage.recipe.parts.refuse_code` would not see, and where
            there is no such thing.
    """
    if not is_dotted(use):
        raise SeepageError(f"{short(use)} has not the form module:thing; name what is to be imported so")
    module_name, _, attribute = use.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise SeepageError(
            f"cannot import {module_name!r} ({error}); run seepage in the folder of that file or install it"
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        near = get_close_matches(attribute, names, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise SeepageError(f"module {module_name!r} has no {attribute!r}{hint or '; check the name'}")
    return getattr(module, attribute)


def problems_with(make: Callable[..., Any], options: Mapping[str, Any], what: str, *, given: int = 0) -> list[str]:
    """What is wrong with calling `make` with these options: unknown names, wrong types, missing ones.

    Args:
        make: A class or function; its annotations are the schema.
        options: Keyword arguments, as read from TOML or the command line.
        what: How to call the thing in messages, e.g. `attack 'dlg'`.
        given: How many leading arguments the program passes itself.
    """
    try:
        parameters = dict(list(inspect.signature(make).parameters.items())[given:])
    except (TypeError, ValueError):
        return [f"{what} is a {type(make).__name__} that seepage cannot call; name a class or function of your own"]
    hints = _hints(make)
    kinds = {parameter.kind for parameter in parameters.values()}
    found = []
    for name, value in options.items():
        if name not in parameters and inspect.Parameter.VAR_KEYWORD in kinds:
            continue
        if name not in parameters:
            near = get_close_matches(name, parameters, n=2)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            found.append(f"{what} has no option {name!r}; {hint}it takes: {', '.join(parameters) or 'none'}")
        elif name in hints and not fits(value, hints[name]):
            found.append(f"{what}: {name} must be {describe(hints[name])}, got {short(value)}")
    for name, parameter in parameters.items():
        named = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        required = parameter.default is parameter.empty and named
        if required and name not in options:
            found.append(f"{what} needs the option {name!r}; add {name} = VALUE to its table, or --set")
    return found


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(make.__init__ if inspect.isclass(make) else make)
    except (NameError, TypeError):  # somebody's own code, whose annotations may not resolve
        return {}


def bind(make: Callable[..., Any], options: Mapping[str, Any], what: str, *, given: int = 0) -> None:
    """Raise `Problems` with all mistakes at once unless `make(**options)` fits."""
    found = problems_with(make, options, what, given=given)
    if found:
        raise Problems(f"{what} cannot be made:", found)


def fits(value: Any, hint: Any) -> bool:
    """Whether a TOML value fits a type annotation. Annotations that TOML cannot express are let through.

    >>> fits(1, float), fits("cosine", Literal["cosine", "step"]), fits(True, int), fits(None, int | None)
    (True, True, False, True)
    >>> fits(float("nan"), float), fits("labels", list[str])
    (False, False)
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in args
    if origin is Union or type(hint).__name__ == "UnionType":
        return any(fits(value, arg) for arg in args)
    if origin in (tuple, list, Sequence):
        return isinstance(value, list | tuple) and all(fits(item, args[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict)
    if origin is Callable:
        return callable(value)
    return _fits_plain(value, hint)


def _fits_plain(value: Any, hint: Any) -> bool:
    """`fits` for an annotation without parts."""
    if hint is type(None):
        return value is None
    if hint is float:  # The bound leaves out NaN, infinity, and whole numbers too large for a float.
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) <= sys.float_info.max
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, str | os.PathLike)
    return isinstance(value, hint) if hint in (str, bool, dict, list) else True


def describe(hint: Any) -> str:
    """A type annotation in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if origin is Union or type(hint).__name__ == "UnionType":
        return " or ".join(describe(arg) for arg in args)
    if origin in (tuple, list, Sequence):
        return f"a list, each item {describe(args[0])}"
    if origin in (dict, Mapping, Callable):
        return "a function" if origin is Callable else "a table"
    words = {
        float: "a number",
        int: "a whole number",
        str: "a text",
        bool: "true or false",
        dict: "a table",
        list: "a list",
        Path: "a path",
        type(None): "nothing",
    }
    return words.get(hint, str(hint))
