"""How two runs differ beside what they found: what the client did, and what the attacker was told and given."""

import ast
from collections.abc import Iterable, Iterator, Mapping

from seepage.audit.row import Cell, Result, Row
from seepage.core.schema import JsonRecord

NOT_RECORDED = "not recorded"
DEFAULT = "the default"

LONGEST, SHOWN = 10_000, 120
"""Characters of the longest `repr` that is taken apart, and of the longest value that is shown."""

INFERRED_AS = {
    "client": "local steps", "client's lr": "learning rate", "client's steps": "local steps",
    "shape of an example": "input shape",
}  # fmt: skip
"""Facts of a captured update, and the name under which the cell says that they were inferred, where it is another."""


STATED = frozenset({"learning rate", "weight decay", "batch size", "shape of an example", "classes", "target"})
"""Facts of a captured update that somebody tells, beside the client's rule."""


class Difference(JsonRecord):
    """One thing that is not the same in two runs.

    Attributes:
        case: Title of the case in the newer run.
        what: Its name, such as `learning rate` or `linear: tolerance`.
        old: What it was.
        new: What it is.
        told: Whether the attacker was told or given it: then fewer finds may come of that alone, as where a wrong
            learning rate was told. Else it is the setting, which is what two runs are made to compare.
    """

    case: str
    what: str
    old: str
    new: str
    told: bool

    @property
    def words(self) -> str:
        """For people."""
        old, new = (text if len(text) <= SHOWN else f"{text[:SHOWN]}..." for text in (self.old, self.new))
        return f"{self.what} of {self.case}: {old} -> {new}"


def differences(old: Result, new: Result) -> list[Difference]:
    """What differs in the cases that two runs have in common: those that the attacker was told of first."""
    before = {cell.name: cell for cell in old.cells}
    pairs = [(before[cell.name], cell) for cell in new.cells if cell.name in before]
    found = [one for pair in pairs for one in (*_of_setting(*pair), *_of_attacks(old, new, *pair))]
    return sorted(found, key=lambda one: not one.told)


def contradictory(old: Result, new: Result, found: Iterable[Difference]) -> list[str]:
    """A remark where both runs attacked the same files and were told other things of the client that sent them."""
    before = {cell.name: cell.files for cell in old.cells}
    same = {cell.heading for cell in new.cells if cell.files and before.get(cell.name) == cell.files}
    names = dict.fromkeys(one.what for one in found if one.told and one.case in same and _is_stated(one.what))
    if not names:
        return []
    return [f"both runs attacked the same files, so that one of them was told wrong: {', '.join(names)}"]


def _of_setting(old: Cell, new: Cell) -> Iterator[Difference]:
    """Of a captured update the client's rule is what somebody told; of an audit it is what the client did."""
    captured = old.data is None and new.data is None
    (kind, _), (other, _) = _parts_of(old.client or ""), _parts_of(new.client or "")
    then, now = (_facts(cell, captured, alike=kind == other) for cell in (old, new))
    for name in dict.fromkeys((*then, *now)):
        absent = DEFAULT if name.startswith("client's") else NOT_RECORDED  # a rule's defaults are not in its `repr`
        a, b = then.get(name, absent), now.get(name, absent)
        if a == b:
            continue
        inferred = _is_inferred(old, name) and _is_inferred(new, name)
        told = captured and _is_stated(name) and not inferred and NOT_RECORDED not in (a, b)
        yield Difference(case=new.heading, what=name, old=a, new=b, told=told)


def _is_inferred(cell: Cell, name: str) -> bool:
    """Whether a fact was read off the update. Where nothing tells of weight decay none is taken out, and none said."""
    return INFERRED_AS.get(name, name) in (cell.inferred or {}) or (name == "weight decay" and not cell.decayed)


def _is_stated(name: str) -> bool:
    """Whether somebody tells a fact of a captured update: one of `STATED`, or the client's rule."""
    return name in STATED or name.startswith("client")


def _facts(cell: Cell, captured: bool, *, alike: bool) -> dict[str, str]:
    """The facts of a case by the names that people have for them; what is not known is left out.

    Args:
        cell: The case.
        captured: Whether it is a captured update, whose defense nobody knows.
        alike: Whether the client's rule is of the same kind in both runs, so that single options of it differ.
    """
    federation = {} if cell.federation is None else cell.federation
    rule, options = _parts_of(cell.client or "")
    facts = {
        "model": cell.model,
        **{f"model's {name}": value for name, value in cell.model_options.items()},
        "data": cell.data,
        "training": cell.history,
        **{f"federation's {name}": value for name, value in federation.items() if name in ("rounds", "clients")},
        "client": (rule if alike else cell.client) or None,
        **{f"client's {name}": value for name, value in options.items() if alike},
        "learning rate": cell.rate,
        "weight decay": None if cell.decayed is None else f"{cell.decayed:.3g} of each weight",
        "batch size": cell.batch_size,
        "batches": cell.batches,
        "shape of an example": None if cell.input_shape is None else ",".join(map(str, cell.input_shape)),
        "classes": len(cell.classes) or None,
        "target": cell.target,
        "defense": None if captured else cell.defense or "none",
        **{name: f"the file {digest[:12]}" for name, digest in cell.files.items()},
    }
    return {name: _text(value) for name, value in facts.items() if value is not None}


def _of_attacks(old: Result, new: Result, then: Cell, now: Cell) -> Iterator[Difference]:
    before = {row.attack: row for row in old.rows_of(then)}
    pairs = [(before[row.attack], row) for row in new.rows_of(now) if row.attack in before]
    was, is_ = _told(a for a, _ in pairs), _told(b for _, b in pairs)
    for item in sorted(was ^ is_):
        words = ("told", "not told") if item in was else ("not told", "told")
        # Who is told more and finds no more is no reason for doubt.
        yield Difference(case=now.heading, what=item, old=words[0], new=words[1], told=item in was)
    tuned = {row.attack: set(row.chosen) for row in (*old.tuned, *new.tuned)}
    for a, b in pairs:
        (kind, first), (other, second) = _parts_of(a.options), _parts_of(b.options)
        if kind != other and kind and other:
            yield Difference(case=now.heading, what=a.attack, old=kind, new=other, told=True)
        # An option that one of two versions of an attack has was told by nobody; a tuned one was chosen on other data.
        shared = [name for name in first if name in second and name not in tuned.get(a.attack, ())]
        for name in (name for name in shared if first[name] != second[name]):
            what = f"{a.attack}: {name}"
            yield Difference(case=now.heading, what=what, old=first[name], new=second[name], told=True)


def _told(rows: Iterable[Row]) -> set[str]:
    """What any of these attacks was told."""
    return {item for row in rows for item in row.told}


def _parts_of(text: str) -> tuple[str, Mapping[str, str]]:
    """The name and the options in a `repr`, which a stranger's file may hold; one of another form is a name.

    >>> _parts_of("FedAvg(lr=0.1, mode='train')")
    ('FedAvg', {'lr': '0.1', 'mode': 'train'})
    """
    try:
        call = ast.parse(text, mode="eval").body if len(text) <= LONGEST else None
        if not isinstance(call, ast.Call):
            return text, {}
        options = {one.arg: ast.unparse(one.value).strip("'") for one in call.keywords if one.arg is not None}
        return ast.unparse(call.func), options
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text, {}


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
