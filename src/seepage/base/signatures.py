"""What a class or function takes: its options with their meanings, and whether given values fit.

Options are read from a signature and a docstring. For code of this package both are read from the source file, by
`ast` and without importing it, so that listing everything that has a name does not load PyTorch.
"""

import ast
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
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
            found.append(f"{what} needs the option {name!r}; add {name} = VALUE to its table, or --set")
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


# What follows reads source files without importing them.


@dataclass(frozen=True)
class SourceDefinition:
    """A class or function as it stands in a source file.

    Attributes:
        module: Dotted name of the module.
        node: Its definition.
    """

    module: str
    node: ast.ClassDef | ast.FunctionDef

    @property
    def about(self) -> str:
        """The first paragraph of its docstring, on one line."""
        return (ast.get_docstring(self.node) or "").partition("\n\n")[0].replace("\n", " ")

    def options(self, given: int = 0, *, meanings: bool = True) -> list[Option]:
        """Its options in order, without the leading ones that the program passes itself.

        Args:
            given: So many are these.
            meanings: Whether what they mean is looked up, which takes reading the parts that they are passed to.
        """
        parameters = list(self._parameters().items())[given:]
        said = self.meanings([name for name, _ in parameters]) if meanings else {}
        found = []
        for name, (holder, annotation, default) in parameters:
            about = _with_words(said.get(name, ""), _literal_words(holder, annotation)) if meanings else ""
            found.append(Option(name, "" if default is None else _written(holder, default), about))
        return found

    def meanings(self, names: Sequence[str] = ()) -> dict[str, str]:
        """Option to its description under `Args:` of the docstring, each on one line and without markup.

        A class also says what its bases say. Of those of `names` that a function says nothing of, it says what the
        parts say that it passes them to.
        """
        found: dict[str, str] = {}
        for part in (*self._bases(), *self._groups()):
            found |= part.meanings()
        found |= _documented(ast.get_docstring(self.node) or "")
        if isinstance(self.node, ast.FunctionDef) and not set(names) <= set(found):
            return self._passed_on() | found
        return found

    def _bases(self) -> list["SourceDefinition"]:
        bases = self.node.bases if isinstance(self.node, ast.ClassDef) else []
        found = [read_source(self.module, base.id) for base in bases if isinstance(base, ast.Name)]
        return [base for base in found if base is not None]

    def _passed_on(self) -> dict[str, str]:
        """Meanings of options that a function hands to another: `Adam(lr=lr)` says of `lr` what `Adam` does."""
        found: dict[str, str] = {}
        calls = [node for node in ast.walk(self.node) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        for call in calls:
            other = read_source(self.module, call.func.id) if isinstance(call.func, ast.Name) else None
            if other is None or other.node is self.node:
                continue
            handed = {k.value.id: k.arg for k in call.keywords if isinstance(k.value, ast.Name) and k.arg}
            for name, value in zip(other._parameters(), call.args, strict=False):
                handed |= {value.id: name} if isinstance(value, ast.Name) else {}
            said = other.meanings(list(handed.values()))
            found |= {own: said[name] for own, name in handed.items() if name in said and own not in found}
        return found

    @property
    def _preset(self) -> ast.Call | None:
        """The decorator `preset("name", name=default)`, which gives a function options of the groups it takes."""
        calls = [node for node in self.node.decorator_list if isinstance(node, ast.Call)]
        return next((call for call in calls if ast.unparse(call.func) == "preset"), None)

    def _groups(self) -> list["SourceDefinition"]:
        """The classes of options that a function with such a decorator takes as positional arguments."""
        if not isinstance(self.node, ast.FunctionDef) or self._preset is None:
            return []
        kinds = [argument.annotation for argument in self.node.args.args]
        found = [read_source(self.module, kind.id) for kind in kinds if isinstance(kind, ast.Name)]
        return [group for group in found if group is not None]

    def _shared(self, call: ast.Call) -> "dict[str, _Parameter]":
        """The options of its groups that the decorator names: those with a default of their own first."""
        known = {name: parameter for group in self._groups() for name, parameter in group._parameters().items()}
        found = {k.arg: (*known[k.arg][:2], k.value) for k in call.keywords if k.arg in known}
        return found | {name: known[name] for name in (constant(self.module, node) for node in call.args)}

    def _parameters(self) -> "dict[str, _Parameter]":
        """By name: the module that writes it down, its annotation and its default, None where it must be given."""
        if isinstance(self.node, ast.FunctionDef):
            taken = dict(_arguments(self.module, self.node))  # `**options` are those of a library
            return taken if self._preset is None else self._shared(self._preset) | _keywords(taken, self.node)
        own = [node for node in self.node.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        if own:
            return dict(list(_arguments(self.module, own[0]))[1:])
        found: dict[str, _Parameter] = {}
        for base in reversed(self._bases()):
            found |= base._parameters()
        return found | dict(_fields(self.module, self.node))


_Parameter = tuple[str, ast.expr | None, ast.expr | None]


def _arguments(module: str, node: ast.FunctionDef) -> Iterator[tuple[str, _Parameter]]:
    """The parameters of a function."""
    places = [*node.args.posonlyargs, *node.args.args]
    defaults: list[ast.expr | None] = [None] * (len(places) - len(node.args.defaults))
    defaults += node.args.defaults
    for argument, default in zip([*places, *node.args.kwonlyargs], [*defaults, *node.args.kw_defaults], strict=True):
        yield argument.arg, (module, argument.annotation, default)


def _keywords(parameters: dict[str, _Parameter], node: ast.FunctionDef) -> dict[str, _Parameter]:
    """Those of a function's parameters that are keywords only."""
    return {argument.arg: parameters[argument.arg] for argument in node.args.kwonlyargs}


def _fields(module: str, node: ast.ClassDef) -> Iterator[tuple[str, _Parameter]]:
    """The fields of a dataclass that its constructor takes."""
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        default, given = item.value, {}
        if isinstance(default, ast.Call) and ast.unparse(default.func).endswith("field"):
            given = {keyword.arg: keyword.value for keyword in default.keywords}
            default = given.get("default", given.get("default_factory"))
        if "ClassVar" not in ast.unparse(item.annotation) and "init" not in given:
            yield item.target.id, (module, item.annotation, default)


@cache
def _names(module: str) -> dict[str, ast.stmt | tuple[str, str]]:
    """What stands in a module at top level, by name: a definition, or the module and name that it is imported from."""
    path = file_of(module)
    found: dict[str, ast.stmt | tuple[str, str]] = {}
    for node in parse(path).body if path is not None else ():
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


@cache
def parse(path: Path) -> ast.Module:
    """A source file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def file_of(module: str) -> Path | None:
    """The source file of a module of this package or of another installed one, which is not imported; else None."""
    package, *rest = module.split(".")
    spec = None if package == __package__ else find_spec(package)
    if package == __package__:
        path = Path(__file__).parent.joinpath(*rest)
    elif spec is not None and spec.origin is not None:
        path = Path(spec.origin).with_suffix("") if not rest else Path(spec.origin).parent.joinpath(*rest)
    else:
        return None
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _resolve(module: str, name: str) -> tuple[str, ast.stmt] | None:
    """The statement that defines a name, and its module; imports are followed through this package."""
    found = _names(module).get(name)
    if isinstance(found, tuple):
        return _resolve(*found)
    return None if found is None else (module, found)


def read_source(module: str, name: str) -> SourceDefinition | None:
    """The class or function that a name stands for in a module."""
    module, node = _resolve(module, name) or (module, None)
    return SourceDefinition(module, node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None


def constant(module: str, node: ast.expr) -> Any:
    """The value of an expression of literals, of names of such, and of calls of what this package defines.

    Raises:
        ValueError: For any other expression.

    >>> constant("seepage.base.signatures", ast.parse("-2 * 3", mode="eval").body)
    -6
    """
    if isinstance(node, ast.Name):
        found = _resolve(module, node.id)
        value = getattr(found[1], "value", None) if found else None
        if found is None or not isinstance(value, ast.expr):
            raise ValueError(f"{node.id} is no constant")
        return constant(found[0], value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _called(module, node, node.func.id)
    with suppress(ValueError):
        return ast.literal_eval(node)
    if any(isinstance(part, ast.Name | ast.Call | ast.Attribute | ast.Lambda) for part in ast.walk(node)):
        raise ValueError(f"{ast.unparse(node)} is no constant")
    return eval(compile(ast.Expression(node), module, "eval"), {"__builtins__": {}})  # literals and signs only


def _called(module: str, node: ast.Call, name: str) -> Any:
    """The result of a call with constants, such as `Needs(bias=True)`; its function is imported."""
    from importlib import import_module

    found = _resolve(module, name)
    if found is None:
        raise ValueError(f"{name} is none of this package's")
    make = getattr(import_module(found[0]), name)
    given = {keyword.arg: constant(module, keyword.value) for keyword in node.keywords if keyword.arg}
    return make(*(constant(module, argument) for argument in node.args), **given)


def _written(module: str, node: ast.expr) -> str:
    """A default as it would be written."""
    if not isinstance(node, ast.Call):
        try:
            return repr(constant(module, node))
        except ValueError:
            pass
    return ast.unparse(node)


def _literal_words(module: str, annotation: ast.expr | None) -> list[str]:
    """The words of `Literal["a", "b"]`, also where it has a name of its own."""
    if isinstance(annotation, ast.Name):
        found = _resolve(module, annotation.id)
        module, annotation = (found[0], getattr(found[1], "value", None)) if found else (module, None)
    if not isinstance(annotation, ast.Subscript) or ast.unparse(annotation.value) != "Literal":
        return []
    words = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    return [str(constant(module, word)) for word in words]


def _with_words(about: str, words: list[str]) -> str:
    """The meaning, followed by the words that an option takes, where it does not name them itself."""
    unsaid = [word for word in words if word not in about]
    return f"{about.rstrip('.')} (one of {', '.join(words)})" if unsaid else about


def _documented(doc: str) -> dict[str, str]:
    """The entries under `Args:` of a docstring."""
    from docstring_parser import DocstringStyle, parse

    params = parse(doc, DocstringStyle.GOOGLE).params if "Args:" in doc else []
    return {p.arg_name: " ".join((p.description or "").replace("`", "").split()) for p in params}
