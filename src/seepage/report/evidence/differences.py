"""How two runs differ beside what they found: what the client did, and attacker knowledge."""

import ast
from collections.abc import Container, Iterable, Iterator, Mapping

from seepage.audit.row import Case, Result, Row
from seepage.base.schema import JsonRecord

NOT_RECORDED = "not recorded"
DEFAULT = "the default"
INFERRED, NOT_INFERRED = "inferred", "not inferred"

LONGEST, SHOWN = 10_000, 120
"""Characters of the longest `repr` that is taken apart, and of the longest value that is shown."""

INFERRED_AS = {
    "client": "local steps", "client's lr": "learning rate", "client's steps": "local steps",
    "shape of an example": "input shape",
}  # fmt: skip
"""Facts of a captured update, and the name under which the case says that they were inferred, where it is another."""


STATED = frozenset({"learning rate", "weight decay", "batch size", "shape of an example", "classes", "target"})
"""Facts of a captured update that somebody tells, beside the client's rule and the model."""


class Difference(JsonRecord):
    """One thing that is not the same in two runs.

    Attributes:
        title: Title of the case in the newer run.
        what: Its name, such as `learning rate` or `linear: tolerance`.
        old: What it was.
        new: What it is.
        in_knowledge: Whether it is attacker knowledge: then fewer finds may come of that alone, as where a wrong
            learning rate was stated. Else it is the setting, which is what two runs are made to compare.
    """

    title: str
    what: str
    old: str
    new: str
    in_knowledge: bool

    @property
    def words(self) -> str:
        """For people."""
        old, new = (text if len(text) <= SHOWN else f"{text[:SHOWN]}..." for text in (self.old, self.new))
        return f"{self.what} of {self.title}: {old} -> {new}"


def differences(old: Result, new: Result, fewer: Container[str] = ()) -> list[Difference]:
    """What differs in the cases that two runs have in common: those in attacker knowledge first.

    Args:
        old: The older run.
        new: The newer run.
        fewer: Titles of cases in the newer run of which it found less. Of the same files fewer finds come of what was
            stated or inferred otherwise, also where an attacker knew more.
    """
    before = {case.name: case for case in old.cases}
    pairs = [(before[case.name], case) for case in new.cases if case.name in before]
    found = []
    for then, now in pairs:
        less = now.heading in fewer and _same_files(then, now)
        here = [*_of_setting(then, now), *_of_attacks(old, new, then, now, less=less)]
        # Where something was stated otherwise, what else can be inferred follows from that.
        found += here if any(one.in_knowledge for one in here) or not less else [*here, *_of_sources(then, now)]
    return sorted(found, key=lambda one: not one.in_knowledge)


def contradictory(old: Result, new: Result, found: Iterable[Difference]) -> list[str]:
    """A remark where both runs attacked the same files and took the client that sent them for another one."""
    before = {case.name: case for case in old.cases}
    same = {
        case.heading: (before[case.name], case)
        for case in new.cases
        if case.name in before and _same_files(before[case.name], case)
    }
    names: dict[str, None] = {}
    inferred = False
    for one in found:
        valued = not {one.old, one.new} & {NOT_RECORDED, INFERRED}  # what one of them lacks contradicts nothing
        if one.in_knowledge and one.title in same and _is_taken(one.what) and valued:
            names[one.what] = None
            inferred |= any(_is_read_off(case, one.what) for case in same[one.title])
    if not names:
        return []
    how = "stated or inferred wrong" if inferred else "stated wrong"
    return [f"both runs attacked the same files, so that one of them was {how}: {', '.join(names)}"]


def _same_files(old: Case, new: Case) -> bool:
    """Whether two cases are of one captured update, by the digests of its files; a run's own truth tells the client."""
    return old.data is None and new.data is None and bool(new.files) and old.files == new.files


def _of_setting(old: Case, new: Case) -> Iterator[Difference]:
    """Of a captured update the client's rule is what somebody stated; of an audit it is what the client did."""
    captured, same = old.data is None and new.data is None, _same_files(old, new)
    (kind, _), (other, _) = _parts_of(old.client or ""), _parts_of(new.client or "")
    then, now = (_facts(case, captured, alike=kind == other) for case in (old, new))
    for name in dict.fromkeys((*then, *now)):
        absent = DEFAULT if name.startswith("client's") else NOT_RECORDED  # a rule's defaults are not in its `repr`
        a, b = then.get(name, absent), now.get(name, absent)
        # One share of the weights that was taken out is one decay, also where it was divided by two rates.
        if a == b or (name == "weight decay" and same and _text(old.decayed) == _text(new.decayed)):
            continue
        inferred = _is_inferred(old, name) and _is_inferred(new, name)
        in_knowledge = captured and _is_stated(name) and not inferred and NOT_RECORDED not in (a, b)
        in_knowledge |= same and _is_taken(name)  # the client that sent these files was one, and did one thing
        yield Difference(title=new.heading, what=name, old=a, new=b, in_knowledge=in_knowledge)


def _is_inferred(case: Case, name: str) -> bool:
    """Whether nobody stated a fact. Where nothing shows weight decay none is subtracted, and none is stated."""
    return _is_read_off(case, name) or (name == "weight decay" and not case.decayed)


def _is_read_off(case: Case, name: str) -> bool:
    """Whether a fact was read off the update."""
    return INFERRED_AS.get(name, name) in (case.inferred or {})


def _is_stated(name: str) -> bool:
    """Whether somebody tells a fact of a captured update: one of `STATED`, or the client's rule."""
    return name in STATED or name.startswith("client")


def _is_taken(name: str) -> bool:
    """Whether attacks take a fact of captured files for given: one that somebody tells, or the model."""
    return _is_stated(name) or name.startswith("model")


def _facts(case: Case, captured: bool, *, alike: bool) -> dict[str, str]:
    """The facts of a case by the names that people have for them; what is not known is left out.

    Args:
        case: The case.
        captured: Whether it is a captured update, whose defense nobody knows.
        alike: Whether the client's rule is of the same kind in both runs, so that single options of it differ.
    """
    federation = {} if case.federation is None else case.federation
    rule, options = _parts_of(case.client or "")
    facts = {
        "model": case.model,
        **{f"model's {name}": value for name, value in case.model_options.items()},
        "data": case.data,
        "training": case.history,
        **{f"federation's {name}": value for name, value in federation.items() if name in ("rounds", "clients")},
        "client": (rule if alike else case.client) or None,
        **{f"client's {name}": value for name, value in options.items() if alike},
        "learning rate": _rate(case, options) if captured and not alike else case.rate,
        "weight decay": _decay(case, options),
        "batch size": case.batch_size,
        "batches": case.batches,
        "shape of an example": None if case.input_shape is None else ",".join(map(str, case.input_shape)),
        "classes": len(case.classes) or None,
        "target": case.target,
        "defense": None if captured else case.defense or "none",
        **{name: f"the file {digest[:12]}" for name, digest in case.files.items()},
    }
    return {name: _text(value) for name, value in facts.items() if value is not None}


def _rate(case: Case, options: Mapping[str, str]) -> float | None:
    """The learning rate of a captured update; of several local steps it stands in the client's rule."""
    return case.rate if case.rate is not None else _number(options.get("lr"))


def _decay(case: Case, options: Mapping[str, str]) -> str | None:
    """Weight decay as optimizers have it where rate and steps are known, else the share of each weight.

    The share is 1 - (1 - lr wd)^steps.
    """
    if not case.decayed:
        return None if case.decayed is None else "0"
    rate, steps = _rate(case, options), 1.0 if case.rate is not None else _number(options.get("steps"))
    if not rate or steps is None or not (steps >= 1 and rate > 0 and case.decayed < 1):  # a stranger's file
        return f"{case.decayed:.3g} of each weight"
    return f"{(1 - (1 - case.decayed) ** (1 / steps)) / rate:.3g}"


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _of_sources(old: Case, new: Case) -> Iterator[Difference]:
    """Facts that were read off the update in one of two runs only."""
    was, is_ = set(old.inferred or {}), set(new.inferred or {})
    for name in sorted(was ^ is_):
        words = (INFERRED, NOT_INFERRED) if name in was else (NOT_INFERRED, INFERRED)
        yield Difference(title=new.heading, what=name, old=words[0], new=words[1], in_knowledge=True)


def _of_attacks(old: Result, new: Result, then: Case, now: Case, *, less: bool) -> Iterator[Difference]:
    before = {row.attack: row for row in old.rows_of(then)}
    pairs = [(before[row.attack], row) for row in new.rows_of(now) if row.attack in before]
    was, is_ = _told(a for a, _ in pairs), _told(b for _, b in pairs)
    for item in sorted(was ^ is_):
        words = ("known", "not known") if item in was else ("not known", "known")
        # An attacker who knows more and finds no more is no caveat; one who finds less in the same files knew something
        # wrong.
        yield Difference(title=now.heading, what=item, old=words[0], new=words[1], in_knowledge=less or item in was)
    for a, b in pairs:
        (kind, first), (other, second) = _parts_of(a.options), _parts_of(b.options)
        if kind != other and kind and other:
            yield Difference(title=now.heading, what=a.attack, old=kind, new=other, in_knowledge=True)
        # An option that one of two versions of an attack has was stated by nobody.
        shared = [name for name in first if name in second]
        for name in (name for name in shared if first[name] != second[name]):
            what = f"{a.attack}: {name}"
            yield Difference(title=now.heading, what=what, old=first[name], new=second[name], in_knowledge=True)


def _told(rows: Iterable[Row]) -> set[str]:
    """What any of these attacks knew."""
    return {item for row in rows for item in row.known}


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
