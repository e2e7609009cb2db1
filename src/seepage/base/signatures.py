"""What a class or function takes: its options with their meanings, and whether given values fit.

Options are read from a signature and a docstring.
"""

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from seepage.errors import Problems, short


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: Its name.
        default: As it would be written, or an empty string where it must be given.
        about: What it means, with its unit and range; the words it takes, where these are few.
    """

    name: str
    default: str = ""
    about: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.default}" if self.default else self.name


def problems_with(
    make: Callable[..., Any],
    options: Mapping[str, Any],
    what: str,
    *,
    given: int = 0,
    shared: Callable[..., Any] | None = None,
    filled: Collection[str] = (),
) -> list[str]:
    """Sentences on mistakes in calling `make` with these options: unknown names, wrong types, missing ones.

    Args:
        make: A class or function; its annotations are the schema.
        options: Keyword arguments, as read from TOML or the command line.
        what: How to call the thing in messages, e.g. `attack 'dlg'`.
        given: How many leading arguments the program passes itself.
        shared: Another class or function, whose options are taken too.
        filled: Names of further arguments that the program passes itself.
    """
    try:
        taken = inspect.signature(make).parameters
        parameters = {name: one for name, one in list(taken.items())[given:] if name not in filled}
    except (TypeError, ValueError):
        return [f"{what} is a {type(make).__name__} that seepage cannot call; name a class or function of your own"]
    if given == 1 and not taken:  # of two, a factory of a model may leave out both
        return [f"{what} takes no argument, and seepage calls it with one; see the how-to page of its kind"]
    hints = _hints(make)
    if shared is not None:
        parameters = {**inspect.signature(shared).parameters, **parameters}
        hints = _hints(shared) | hints
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
            add = f"add {name} = VALUE to its table, or NAME:{name}=VALUE on the command line"
            found.append(f"{what} needs the option {name!r}; {add}")
    return found


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(make.__init__ if inspect.isclass(make) else make, include_extras=True)
    except (NameError, TypeError):  # user code, whose annotations may not resolve
        return {}


def bind(
    make: Callable[..., Any],
    options: Mapping[str, Any],
    what: str,
    *,
    given: int = 0,
    shared: Callable[..., Any] | None = None,
    filled: Collection[str] = (),
) -> None:
    """Raise `Problems` with all mistakes at once unless `make(**options)` fits; arguments as in `problems_with`."""
    found = problems_with(make, options, what, given=given, shared=shared, filled=filled)
    if found:
        raise Problems(f"{what} cannot be made:", found)


def fits(value: Any, hint: Any) -> bool:
    """Whether a TOML value fits a type annotation. Annotations that TOML cannot express are let through.

    >>> fits(1, float), fits("cosine", Literal["cosine", "step"]), fits(True, int), fits(None, int | None)
    (True, True, False, True)
    >>> fits(float("nan"), float), fits("labels", list[str])
    (False, False)
    """
    adapter = _adapter(hint)
    if adapter is None:
        return True
    try:
        adapter.validate_python(value)
    except ValueError:
        try:  # JSON's rules, by which a list can be a tuple and a text a path, as in TOML
            adapter.validate_json(json.dumps(value))
        except (ValueError, TypeError):
            return False
    return True


@cache
def _adapter(hint: Any) -> Any:
    """The pydantic adapter that checks values of an annotation; None where there is none."""
    from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
    except (PydanticSchemaGenerationError, PydanticUserError):
        return None


_WORDS = {
    float: "a number",
    int: "a whole number",
    str: "a text",
    bool: "true or false",
    dict: "a table",
    list: "a list",
    Path: "a path",
    type(None): "nothing",
}
_LIMITS = {"ge": ">= {:g}", "gt": "> {:g}", "le": "<= {:g}", "lt": "< {:g}", "min_length": "not empty"}
"""Words for the limits of `pydantic.Field`."""


def describe(hint: Any) -> str:
    """A type annotation in words.

    >>> describe(int | None), describe(list[str])
    ('a whole number or nothing', 'a list, each item a text')
    >>> from pydantic import Field
    >>> describe(Annotated[float, Field(gt=0, le=1)])
    'a number > 0 and <= 1'
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [bound for extra in args[1:] for bound in getattr(extra, "metadata", ())]
        limits = [
            words.format(getattr(one, key)) for key, words in _LIMITS.items() for one in bounds if hasattr(one, key)
        ]
        return f"{describe(args[0])} {' and '.join(limits)}".strip()
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if origin in (Union, UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is Callable:
        return "a function"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a table"
    if isinstance(origin, type):
        return f"a list, each item {describe(args[0])}"
    return _WORDS.get(hint, str(hint))


def options_of(make: Callable[..., Any], given: int = 0) -> list[Option]:
    """The options of a class or function in order, without the leading ones that the program passes itself.

    Args:
        make: The class or function.
        given: So many are these.
    """
    parameters = list(inspect.signature(make).parameters.values())[given:]
    said, hints = _meanings(make), _hints(make)
    return [
        Option(
            parameter.name,
            "" if parameter.default is parameter.empty else repr(parameter.default),
            _with_words(said.get(parameter.name, ""), hints.get(parameter.name)),
        )
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]


def summary_of(make: Callable[..., Any]) -> str:
    """The first paragraph of a docstring, on one line."""
    return inspect.cleandoc(make.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def _meanings(make: Callable[..., Any]) -> dict[str, str]:
    """Option to its description under `Args:` of the docstring.

    A class also says what its bases say, and a function what the class says that it returns.
    """
    made = make if inspect.isclass(make) else _hints(make).get("return")
    parts = (*reversed(inspect.getmro(made)), make) if inspect.isclass(made) else (make,)
    return {name: said for part in parts for name, said in _documented(inspect.cleandoc(part.__doc__ or "")).items()}


def _with_words(about: str, hint: Any) -> str:
    """The meaning, followed by the words that an option takes, where it does not name them itself."""
    words = list(map(str, get_args(hint))) if get_origin(hint) is Literal else []
    unsaid = [word for word in words if word not in about]
    return f"{about.rstrip('.')} (one of {', '.join(words)})".lstrip() if unsaid else about


def _documented(doc: str) -> dict[str, str]:
    """The entries under `Args:` of a docstring."""
    from docstring_parser import DocstringStyle, parse

    params = parse(doc, DocstringStyle.GOOGLE).params if "Args:" in doc else []
    return {p.arg_name: " ".join((p.description or "").replace("`", "").split()) for p in params}
