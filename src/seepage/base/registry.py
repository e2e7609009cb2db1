"""Everything that has a name: attacks, defenses, clients, models, data sets, metrics, partitions,
membership tests.

A part registers itself in its own file, and that is the only place to touch:

    from seepage.base.registry import attacks

    @attacks.register("mine", paper="Me 2026", cost="seconds")
    @dataclass(frozen=True, kw_only=True)
    class Mine(Attack):
        ...

Three kinds of names lead to a part: a name of this package; a name that an installed package adds by an entry point
in the group `seepage.attacks` (or `seepage.defenses`, ...); and a dotted path `module:thing` to a file in the working
folder. This module imports neither PyTorch nor any part: which file registers which name is found by its first line,
and a file is imported once its part is needed, or all of them once somebody asks what there is.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache, cached_property, partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from seepage.base.signatures import Option, bind, options_of, problems_with, summary_of
from seepage.errors import Problems, SeepageError, short, unknown

T = TypeVar("T", covariant=True)
Made = TypeVar("Made", bound=Callable[..., Any])

_DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_dotted(use: str) -> bool:
    """Whether a name has the form `module.sub:thing`.

    >>> is_dotted("mymodule:MyAttack"), is_dotted("fc2")
    (True, False)
    """
    return _DOTTED.fullmatch(use) is not None


def is_network_file(use: str) -> bool:
    """Whether the name of a model is that of a file with a whole network, which may hold code.

    >>> is_network_file("nets/mine.pt2"), is_network_file("mymodule:net")
    (True, False)
    """
    return use.lower().endswith((".pt2", ".pt", ".pth", ".ts", ".jit", ".torchscript"))


def respelled(use: str) -> str | None:
    """The registered spelling of a name in the form of a file or of an attribute; None where it has no such form.

    >>> respelled("./nets/mine.py:Net"), respelled("nets.mine.Net"), respelled("fc2")
    ('nets.mine:Net', 'nets.mine:Net', None)
    """
    file = re.fullmatch(r"(?:\./)?([A-Za-z_][\w/]*)\.py:([A-Za-z_]\w*)", use)
    if file:
        return f"{file[1].replace('/', '.')}:{file[2]}"
    dotted = re.fullmatch(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)", use)
    return f"{dotted[1]}:{dotted[2]}" if dotted and dotted[2] != "py" else None


def _in_a_library(use: str) -> str | None:
    """The name with its library in front, where torchvision has a network of this name."""
    try:
        from torchvision import models as networks
    except ImportError:
        return None
    return f"torchvision:{use}" if use in networks.list_models(module=networks) else None


def import_dotted(use: str) -> Any:
    """Import `module:thing` from the user's own code; the current folder counts as a place to look.

    This runs the module. Call it only for names the user typed, never for names read from others' files.

    Raises:
        SeepageError: For a name of another form, which `seepage.audit.recipe.trust.refuse_code` would not see, and
        where
            there is no such thing.
    """
    if not is_dotted(use):
        raise SeepageError(f"{short(use)} has not the form module:thing; name what is to be imported so")
    module_name, _, attribute = use.partition(":")
    try:
        with working_folder_first():
            module = importlib.import_module(module_name)
    except ImportError as error:
        raise SeepageError(
            f"cannot import {module_name!r} ({error}); run seepage in the folder of that file or install it"
        ) from error
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        near = get_close_matches(attribute, names, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise SeepageError(f"module {module_name!r} has no {attribute!r}{hint or '; check the name'}")
    return getattr(module, attribute)


@contextmanager
def working_folder_first() -> Iterator[None]:
    """Let the user's own code import what lies in the current folder, while the block lasts."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added:
            sys.path.remove(here)


@dataclass(frozen=True)
class Spec:
    """A part by name, with its options: one table of a recipe. Also how a model is built again.

    Attributes:
        use: A registered name, or `module:thing`; models also `torchvision:NAME` and `timm:NAME`.
        options: Keyword arguments.
        label: What the results of an attack are called; empty: its name.

    >>> str(Spec("dlg", {"steps": 20}))
    'dlg(steps=20)'
    >>> Spec.of({"use": "dlg", "steps": 20}).options
    {'steps': 20}
    """

    use: str
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """The part that a recipe's table names."""
        options = {name: value for name, value in table.items() if name not in ("use", "label")}
        return cls(str(table.get("use", "")), options, str(table.get("label", "")))

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.use}({inside})" if inside else self.use

    def with_options(self, **options: Any) -> Self:
        """A copy with other options."""
        return replace(self, options={**self.options, **options})

    def table(self) -> dict[str, Any]:
        """The part as a recipe's table."""
        return {"use": self.use, **({"label": self.label} if self.label else {}), **self.options}


@dataclass(frozen=True)
class Entry(Generic[T]):
    """What is registered under a name. Calling it makes the part: `ATTACKS["dlg"](steps=20)`.

    Attributes:
        name: The name.
        home: Where it is defined, `module:thing`.
        made: The class or function.
        facts: Facts stated at its registration, e.g. `paper` and `cost` of an attack. Each is an attribute
            of the entry too: `ATTACKS["dlg"].paper`.
        given: Leading arguments that the program passes itself, e.g. a model's input shape and number of classes.
        leading: Those of them that are known already: the `NAME` of `torchvision:NAME`.
    """

    name: str
    home: str
    made: Callable[..., T] = field(repr=False, compare=False)
    facts: Mapping[str, Any] = field(default_factory=dict)
    given: int = 0
    leading: tuple[Any, ...] = ()

    @property
    def make(self) -> Callable[..., T]:
        """The class or function, with the leading arguments that are known."""
        return partial(self.made, *self.leading) if self.leading else self.made

    def __call__(self, *given: Any, **options: Any) -> T:
        return self.make(*given, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.facts:
            raise AttributeError(name)
        return self.facts[name]

    @property
    def about(self) -> str:
        """Description in one line: the first paragraph of its docstring, unless it was registered with another."""
        return str(self.facts.get("about", summary_of(self.made)))

    @property
    def options(self) -> list[Option]:
        """Its options in order, with their defaults and meanings."""
        return options_of(self.made, self.given + (is_pattern(self.name) or len(self.leading)))


def _import_home(home: str) -> Any:
    """Import a thing by its place in a module, which may be an attribute of a class."""
    module, _, path = home.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


class Registry(Mapping[str, Entry[T]]):
    """The named parts of one kind.

    Args:
        kind: What one of them is called, e.g. `attack`.
        room: The package whose files register them, e.g. `seepage.attacks`.
        base: `module:Class` that what is made must be an instance of; empty: anything goes.
        given: Leading arguments that the program passes itself when it makes one.
        variable: The name of this registry in its module.
        group: The group of entry points; default: `seepage.` and the room's own name.
        own: Word for a user-defined part in messages, as `factory` in `module:factory`.
        shared: `module:Class` of options that every one of this kind takes; it is given them as one object.
    """

    def __init__(
        self,
        kind: str,
        room: str,
        variable: str,
        *,
        base: str = "",
        given: int = 0,
        group: str = "",
        own: str = "",
        shared: str = "",
    ) -> None:
        self.kind, self.room, self.variable, self.base, self.given = kind, room, variable, base, given
        self.group, self.own, self.shared = (
            group or f"seepage.{room.rpartition('.')[2]}",
            own or kind.capitalize(),
            shared,
        )
        self._registered: dict[str, Entry[T]] = {}

    def register(self, name: str, **facts: Any) -> Callable[[Made], Made]:
        """Decorate the class or function that makes the part.

        Args:
            name: Its name in recipes and on the command line. `torchvision:NAME` registers all names of that form;
                what stands for `NAME` is the first argument of the call.
            facts: What else is to be known of it, e.g. `paper="..."`. Literals, or calls with literals.

        Raises:
            SeepageError: Where something else has this name.
        """

        def remember(make: Made) -> Made:
            module, thing = make.__module__, getattr(make, "__qualname__", name)
            if f"{module}.".startswith(f"{self.room}.") and name not in self._modules:
                raise SeepageError(
                    f"{module} registers {name!r} in a form that its name cannot be found by; "
                    f"write @{self.variable}.register({name!r}) above {thing}, at the top level of the file"
                )
            home, other = f"{module}:{thing}", self._home_of(name)
            if other not in (None, home, module):
                raise SeepageError(f"two {self.kind}s are called {name!r}: {other} and {home}; rename one")
            needs = getattr(getattr(make, "needs", None), "text", None)  # what an attack's class says of itself
            self._registered[name] = Entry(name, home, make, ({"needs": needs} if needs else {}) | facts, self.given)
            return make

        return remember

    def _home_of(self, name: str) -> str | None:
        """Where the part of a name is defined, as far as that is known without importing it."""
        if name in self._registered:
            return self._registered[name].home
        point = self._points.get(name)
        return self._modules.get(name, None if point is None else f"{point.module}:{point.attr}")

    def find(self, use: str) -> Entry[T]:
        """The entry of a name. A dotted path is imported: call this only with names that the user typed.

        Raises:
            SeepageError: For an unknown name.
        """
        if use in self:
            return self[use]
        for pattern in filter(is_pattern, self._names):
            head = pattern.removesuffix("NAME")
            if use.startswith(head) and len(use) > len(head):
                return replace(self[pattern], name=use, leading=(use.removeprefix(head),))
        if is_dotted(use) and respelled(use) is None:
            return Entry(use, use, import_dotted(use), {}, self.given)
        meant = respelled(use) or (self.kind == "model" and _in_a_library(use))
        if meant:
            raise SeepageError(f"unknown {self.kind} {short(use)}; did you mean {short(meant)}?")
        raise unknown(self.kind, use, [*self, *filter(is_pattern, self._names), f"module:{self.own}"])

    def knows(self, use: str) -> bool:
        """Whether a name leads to code of this package, of the libraries it uses, or of an installed one.

        >>> models.knows("fc2"), models.knows("timm:resnet18"), models.knows("my:net")
        (True, True, False)
        """
        return use in self or any(use.startswith(p.removesuffix("NAME")) for p in filter(is_pattern, self._names))

    def is_foreign(self, use: str) -> bool:
        """Whether a name leads to user code, a dotted path or a saved network, which is not run unasked.

        >>> models.is_foreign("my:net"), models.is_foreign("timm:resnet18"), models.is_foreign("nets/mine.pt2")
        (True, False, True)
        """
        return (is_dotted(use) or (self.kind == "model" and is_network_file(use))) and not self.knows(use)

    def problems(self, spec: Spec, what: str = "") -> list[str]:
        """Sentences on mistakes in a part: its options, or its own checks of their values.

        Args:
            spec: The part.
            what: How to call it in messages; default: `attack 'dlg'`.

        Raises:
            SeepageError: For an unknown name, and where the part's own checks refuse a value.
        """
        what = what or f"{self.kind} {spec.use!r}"
        entry = self.find(spec.use)
        common = self._common
        found = problems_with(entry.make, spec.options, what, given=self.given, shared=common)
        if found and self.base and is_dotted(spec.use) and inspect.isfunction(entry.make):
            base = self.base.partition(":")[2]
            found.append(f"{what} is a function, called with its options alone: it must return a seepage.{base}")
        if found or (self.given and common is None):  # what the program passes itself is not there yet
            return found
        try:
            if common is not None:
                self._split(spec)
                return []
            made = entry.make(**spec.options)
        except Problems as error:
            return [f"{what}: {problem}" for problem in error.problems]
        except SeepageError:
            raise
        except Exception as error:  # user code may raise anything
            return [f"{what} cannot be made ({type(error).__name__}: {error})"]
        return self._misfit(made, what)

    def build(self, spec: Spec, *given: Any) -> T:
        """Make a part.

        Raises:
            SeepageError: For an unknown name, wrong options, or a thing of another kind.

        >>> attacks.build(Spec("linear", {"tolerance": 0.01}))
        LinearLeak(floor=0.0001, tolerance=0.01, same=0.01)
        """
        what = f"{self.kind} {spec.use!r}"
        entry = self.find(spec.use)
        common, options = self._common, dict(spec.options)
        bind(entry.make, options, what, given=self.given, shared=common)
        if common is not None:
            shared, options = self._split(spec)
            given = (shared, *given)
        made = entry.make(*given, **options)
        misfit = self._misfit(made, what)
        if misfit:
            raise SeepageError(misfit[0])
        return made

    @property
    def _common(self) -> Callable[..., Any] | None:
        """The class of the options that all of this kind share."""
        return _import_home(self.shared) if self.shared else None

    def _split(self, spec: Spec) -> tuple[Any, dict[str, Any]]:
        """The options that all of this kind share, as one object, and the part's own."""
        common = _import_home(self.shared)
        names = {f.name for f in fields(common)}
        return (
            common(**{name: value for name, value in spec.options.items() if name in names}),
            {name: value for name, value in spec.options.items() if name not in names},
        )

    def _misfit(self, made: Any, what: str) -> list[str]:
        """One sentence where what was made is of another kind."""
        if not self.base or isinstance(made, _import_home(self.base)):
            return []
        module, _, base = self.base.partition(":")
        module = (
            "seepage" if module in ("seepage.federation.types", "seepage.attacks.base") else module
        )  # where it is public
        return [f"{what} makes a {type(made).__name__}, not a {module}.{base}; derive it from that"]

    def spec_of(self, made: Any) -> Spec:
        """The reverse of `build` for a dataclass: its name and its options.

        Fields that its class lists as `secrets` are left out: no attacker knows them, and no folder holds them.
        One that no package registers is named by its dotted path, which to read is to run code.

        Args:
            made: The part.

        Raises:
            SeepageError: For a thing that cannot be named.
        """
        kind = type(made)
        home = f"{kind.__module__}:{kind.__qualname__}"
        # What a file in the working folder registered has its name in this process alone.
        lasting = [name for name in (*self._modules, *self._points) if self._home_of(name) == home]
        named = is_dotted(home) and kind.__module__ != "__main__"
        secret = getattr(kind, "secrets", ())
        if not is_dataclass(made) or not (lasting or named):
            raise SeepageError(
                f"{kind.__name__} is not one of seepage's {self.kind}s ({', '.join(self)}), so it has no name here"
            )
        options = {f.name: getattr(made, f.name) for f in fields(made) if f.init and f.name not in secret}
        return Spec(lasting[0] if lasting else home, options)

    def describe(self) -> list[Entry[T]]:
        """All entries, patterns such as `torchvision:NAME` last. An installed part that cannot be imported says so."""
        return [self._described(name) for name in (*self, *filter(is_pattern, self._names))]

    def _described(self, name: str) -> Entry[T]:
        try:
            return self[name]
        except SeepageError as error:
            return Entry(name, self._home_of(name) or name, _nothing, {"about": str(error)})

    def __getitem__(self, name: str) -> Entry[T]:
        if name not in self._registered and name in self._modules:
            importlib.import_module(self._modules[name])
        if name not in self._registered and name in self._points:
            self._load(self._points[name])
        return self._registered[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and not is_pattern(name) and self._home_of(name) is not None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if not is_pattern(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<registry of {len(self)} {self.variable}>"

    @property
    def _names(self) -> list[str]:
        """All names: this package's own, cheapest first where they say what they cost, then the others'."""
        return list(dict.fromkeys((*self._modules, *self._points, *self._registered)))

    @cached_property
    def _modules(self) -> dict[str, str]:
        """Which module registers a name of this package, by the line that does it; nothing is imported.

        A cost that is a literal of the same call sorts the names.
        """
        package, *below = self.room.split(".")
        origin = getattr(find_spec(package), "origin", None)
        if origin is None:
            raise SeepageError(f"the source of {self.room} is not there; install seepage with its .py files")
        root = Path(origin).parent
        room = root.joinpath(*below)
        files = sorted(room.rglob("*.py")) if room.is_dir() else [room.with_suffix(".py")]
        word = r"""["']([^"']*)["']"""
        line = rf"^(?:@|\w+ = )(?:[\w.]+\.)?{self.variable}\.register\(\s*{word}"  # @attacks.register("linear"
        call = re.compile(rf"{line}(?:[^@]*?\bcost={word})?", re.M)
        found = []
        for path in files:
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join([package, *(part for part in parts if part != "__init__")])
            found += [(_rank(cost), name, module) for name, cost in call.findall(path.read_text("utf-8"))]
        return {name: module for _, name, module in sorted(found)}

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        """Entry points of installed packages; names of this package keep their meaning."""
        found = _entry_points().select(group=self.group)
        return {point.name: point for point in found if point.name not in self._modules}

    def _load(self, point: EntryPoint) -> None:
        """Import an installed part, which may register itself."""
        home = f"{point.module}:{point.attr}"
        try:
            made = point.load()
        except Exception as error:  # others' code may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise SeepageError(
                f"the installed {self.kind} {point.name!r} ({home}) cannot be imported ({short(reason)}); "
                "mend or remove its package"
            ) from error
        if point.name not in self._registered:
            self.register(point.name)(made)


def _nothing() -> Any:
    """Stands for a part that cannot be imported."""


@cache
def _entry_points() -> Any:
    """Entry points of all installed packages."""
    return entry_points()


def is_pattern(name: str) -> bool:
    """Whether a registered name stands for many, as `torchvision:NAME` does."""
    return name.endswith("NAME")


_TIMES = ("milliseconds", "seconds", "minutes", "hours", "days")


def _rank(cost: str) -> list[int]:
    """A cost in words as something to sort by; what says nothing comes last.

    >>> _rank("seconds to hours (24,000 Adam steps)") < _rank("minutes (Adam)")
    True
    """
    return [_TIMES.index(word) for word in re.findall(r"[a-z]+", str(cost)) if word in _TIMES] or [len(_TIMES)]


FETCHED = "downloaded by torchvision"
"""Origin of the data sets that a network is used for where they are not on this machine."""

attacks: Registry[Any] = Registry("attack", "seepage.attacks", "attacks", base="seepage.attacks.base:Attack")
defenses: Registry[Any] = Registry(
    "defense", "seepage.federation.defenses", "defenses", base="seepage.federation.types:Defense"
)
clients: Registry[Any] = Registry(
    "client", "seepage.federation.clients", "clients", base="seepage.federation.types:ClientUpdate"
)
models: Registry[Any] = Registry(
    "model", "seepage.federation.models", "models", base="torch.nn:Module", given=2, own="factory"
)
datasets: Registry[Any] = Registry(
    "data",
    "seepage.federation.data",
    "datasets",
    base="seepage.federation.data.dataset:Dataset",
    given=1,
    shared="seepage.federation.data.dataset:Options",
)
metrics: Registry[Any] = Registry("metric", "seepage.measure.metrics", "metrics", given=2)
partitions: Registry[Any] = Registry(
    "partition",
    "seepage.audit.simulate.partition",
    "partitions",
    base="seepage.audit.simulate.partition:Partition",
    group="seepage.partitions",
)
membership_tests: Registry[Any] = Registry(
    "membership test",
    "seepage.attacks.membership",
    "membership_tests",
    base="seepage.attacks.membership.base:MembershipTest",
    own="Test",
)
KINDS = {
    "attacks": attacks,
    "membership tests": membership_tests,
    "defenses": defenses,
    "clients": clients,
    "partitions": partitions,
    "models": models,
    "data": datasets,
    "metrics": metrics,
}
"""The eight registries, as `seepage list` calls them."""
