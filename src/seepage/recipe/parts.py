"""The parts of a recipe: things by name with their options, checked and made."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from seepage import data
from seepage.attacks import ATTACKS, Attack
from seepage.clients import CLIENTS
from seepage.data.dataset import Options
from seepage.defenses import DEFENSES
from seepage.errors import Problems, SeepageError, short, unknown
from seepage.models import LIBRARIES, MODELS
from seepage.registry import import_dotted, is_dotted, problems_with
from seepage.simulate.partition import PARTITIONS, Partition
from seepage.types import Defense


@dataclass(frozen=True)
class Part:
    """A thing by name, with its options: one table of a recipe.

    >>> str(Part("dlg", {"steps": 20}))
    'dlg(steps=20)'
    """

    use: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.use}({inside})" if inside else self.use

    def table(self) -> dict[str, Any]:
        return {"use": self.use, **self.options}


def make_attack(use: str, options: Mapping[str, Any]) -> Attack:
    """An attack by registry name or dotted path.

    Raises:
        SeepageError: For an unknown name, wrong options, or a thing that is no attack.

    >>> make_attack("linear", {"tolerance": 0.01})
    LinearLeak(floor=0.0001, tolerance=0.01, same=0.01)
    """
    make = find_part("attack", use, {name: entry.make for name, entry in ATTACKS.items()})
    found = problems_with(make, options, f"attack {use!r}")
    if found:
        raise Problems(f"attack {use!r} cannot be made:", found)
    attack = make(**options)
    if not isinstance(attack, Attack):
        raise SeepageError(
            f"{use!r} makes a {type(attack).__name__}, not a seepage.attacks.Attack; derive it from that"
        )
    return attack


def find_part(kind: str, use: str, registry: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """What a name stands for: a registry's, or the user's own by its dotted path.

    Raises:
        SeepageError: For an unknown name.
    """
    if use in registry:
        return registry[use]
    if is_dotted(use):
        found: Callable[..., Any] = import_dotted(use)
        return found
    raise unknown(kind, use, [*registry, f"module:{kind.capitalize()}"])


def named_code(tables: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every `module:thing` in tables, at any depth, with its place: whatever of it can be imported, and what cannot.

    >>> list(named_code({"grid": {"model.use": ["fc2", "my:net"]}, "attack": [{"use": "ggl", "generator": "my:gan"}]}))
    [(('grid', 'model', 'use'), 'my:net'), (('attack', 'generator'), 'my:gan')]
    """
    if isinstance(tables, Mapping):
        for key, value in tables.items():
            yield from named_code(value, (*where, *str(key).split(".")))
    elif isinstance(tables, list | tuple):
        for value in tables:
            yield from named_code(value, where)
    elif isinstance(tables, str) and is_dotted(tables):
        yield where, tables


_MODEL = {"grid", "case", "model", "use"}
"""What the place of a model's name is made of."""


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
        if not (set(place) <= _MODEL and (not models or name.partition(":")[0] in LIBRARIES))
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
        raise SeepageError(
            f"{what} names somebody's own code ({short(', '.join(own))[1:-1]}), which is not run "
            "unasked; if you trust it, add --trust"
        )


def problems_of(part: Part, key: str) -> list[str]:
    """What is wrong with a part of a recipe.

    Args:
        part: The part.
        key: The recipe's table it comes from, such as `attack`.

    Raises:
        SeepageError: For an unknown name, and where the part's own checks refuse its values.
    """
    what = f"{key} {part.use!r}"
    if key == "data":
        return _data_problems(part, what)
    if key == "model":
        if part.use in MODELS:
            return problems_with(MODELS[part.use], part.options, what, given=2)
        if part.use.partition(":")[0] in LIBRARIES or is_dotted(part.use):
            return []  # checked when it is built
        raise unknown("model", part.use, [*MODELS, *(f"{library}:NAME" for library in LIBRARIES), "module:factory"])
    if key == "client":
        if part.use not in CLIENTS:
            raise unknown("client", part.use, CLIENTS)
        return _client_problems(part, what)
    if key == "partition":
        make_partition = find_part(key, part.use, PARTITIONS)
        found = problems_with(make_partition, part.options, what)
        return found or _making_problems(make_partition, part.options, what, Partition)
    makers: dict[str, Callable[..., Any]] = {name: entry.make for name, entry in ATTACKS.items()}
    make = find_part(key, part.use, makers if key == "attack" else DEFENSES)
    found = problems_with(make, part.options, what)
    return found or _making_problems(make, part.options, what, Attack if key == "attack" else Defense)


def _client_problems(part: Part, what: str) -> list[str]:
    own = {key: value for key, value in part.options.items() if key != "clients"}
    found = problems_with(CLIENTS[part.use], own, what)
    clients = part.options.get("clients", 1)
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 1:
        found.append(f"{what}: clients must be a whole number from 1 up, got {clients!r}")
    if not found:
        CLIENTS[part.use](**own)  # its own checks
    return found


def _making_problems(make: Callable[..., Any], options: Mapping[str, Any], what: str, kind: type) -> list[str]:
    """Make a thing to see whether its own checks of values pass, and whether it is what it should be."""
    try:
        made = make(**options)
    except SeepageError:
        raise
    except Exception as error:  # whatever somebody's own code may raise
        return [f"{what} cannot be made ({type(error).__name__}: {error})"]
    if not isinstance(made, kind):
        return [f"{what} makes a {type(made).__name__}, not a seepage.{kind.__name__}; derive it from that"]
    return []


def _data_problems(part: Part, what: str) -> list[str]:
    """What can be said without loading the data: whether they exist, and whether the options make sense."""
    found = problems_with(data.load, part.options, what, given=1)
    if part.use not in data.DATA and not os.path.exists(os.path.expanduser(part.use)):
        try:
            data.load(part.use)
        except SeepageError as error:
            found.append(str(error))
    if not found and "seed" in part.options:
        found += seed_problems(part.options["seed"], f"{what}: seed")
    if not found:
        try:
            Options(**{key: value for key, value in part.options.items() if key in Options.__dataclass_fields__})
        except Problems as error:
            found += [f"{what}: {problem}" for problem in error.problems]
    return found


def seed_problems(seed: int, what: str) -> list[str]:
    """PyTorch's generators take 63 bits."""
    return [] if 0 <= seed < 2**63 else [f"{what} must be from 0 to 2**63 - 1, got {seed}"]
