"""`seepage prove`: the epsilon of the filter that really runs, beside what is stated and what is computed."""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seepage.cli.options import PrintOptions, SeedOption
from seepage.errors import SeepageError, printable, say, short, unknown

if TYPE_CHECKING:
    from seepage.audit.gate import Condition
    from seepage.measure.privacy.measured import MeasuredEpsilon, Measurement
    from seepage.measure.privacy.measured.measure import Progress

Shapes = Mapping[str, tuple[int, ...]]

_claimed, _calling = (partial(typer.Option, rich_help_panel=title) for title in ("What is claimed", "Calls"))


@dataclass(frozen=True, kw_only=True)
class ProveOptions:
    """What is claimed of a filter, and how it is called."""

    epsilon: Annotated[float | None, _claimed("--epsilon", help="The stated epsilon, over all rounds.")] = None
    delta: Annotated[float, _claimed("--delta", help="The delta of all epsilons.")] = 1e-5
    sigma: Annotated[
        float | None, _claimed("--sigma", help="Noise multiplier, to compute an epsilon where no option tells it.")
    ] = None
    rounds: Annotated[int, _claimed("--rounds", min=1, help="Rounds that the epsilons are over.")] = 1
    neighbors: Annotated[
        Literal["join", "replace"],
        _claimed("--neighbors", help="Neighboring relation: join (add or remove one update) or replace."),
    ] = "join"
    clip: Annotated[float, _calling("--clip", help="Norm that the filter clips to.")] = 1.0
    shapes: Annotated[
        str | None,
        _calling("--shapes", help="Shapes of the test update, e.g. weight=6x8,bias=6 (a scalar: name=1)."),
    ] = None
    weights: Annotated[
        str | None,
        _calling("--weights", help="Clients' weights for f(updates, weights), the canary's first: 1000,10,10."),
    ] = None
    calls: Annotated[int | None, _calling("--calls", help="Most calls; default 120,000.")] = None
    seconds: Annotated[float, _calling("--seconds", help="Stop calling after this time.")] = 50.0
    trust: Annotated[bool, _calling("--trust", help="Run the code that --of names; it is yours.")] = False
    seed: SeedOption = None

    def function(self, names: Sequence[str], show: "Progress | None") -> "MeasuredEpsilon":
        """A user's filter, `f(update) -> sent`, or server, `f(updates, weights) -> aggregate`."""
        from seepage.measure.privacy.accounting import epsilon

        name, computed = _one(names, "function"), None
        if self.sigma is not None and self.neighbors == "join":
            computed = epsilon(sigma=self.sigma, rounds=self.rounds, delta=self.delta)
        how, made = replace(self._measurement(show), computed=computed), self._made(name)
        call = self._among_clients(_guarded(made, name, list(self._shapes)), servers=_takes_clients(made))
        return how.epsilon(call, clip=self.clip, shapes=self._shapes, seed=self.seed or 0)

    def defense(self, names: Sequence[str], show: "Progress | None") -> "MeasuredEpsilon":
        """Defenses, in their order."""
        from seepage.cli.parts import part_of
        from seepage.federation.defenses import DEFENSES, joined
        from seepage.measure.privacy.measured import measure_defense

        parts = [part_of(name, "--of defense", DEFENSES) for name in names]
        for part in parts:
            self._check_trust(part.use)
        defense = joined([DEFENSES.build(part) for part in parts])
        assert defense is not None
        return measure_defense(defense, self._measurement(show), seed=self.seed or 0)

    def _measurement(self, show: "Progress | None") -> "Measurement":
        from seepage.measure.privacy.measured import CALLS, Measurement

        calls = CALLS if self.calls is None else self.calls
        return Measurement(
            delta=self.delta, rounds=self.rounds, stated=self.epsilon, calls=calls, seconds=self.seconds,
            neighbors=self.neighbors, progress=show,
        )  # fmt: skip

    @property
    def _shapes(self) -> Shapes:
        """`weight=6x8,bias=6`; `=1` is a single number without a dimension."""
        from seepage.measure.privacy.measured import SHAPES

        if self.shapes is None:
            return SHAPES
        found = {}
        for part in self.shapes.split(","):
            match = re.fullmatch(r"\s*([\w.]+)\s*=\s*(\d+(?:x\d+)*)\s*", part)
            if match is None:
                raise SeepageError(f"--shapes takes NAME=6x8,... with sizes, got {short(part)}")
            sizes = tuple(int(size) for size in match[2].split("x"))
            found[match[1]] = () if sizes == (1,) else sizes
        return found

    def _among_clients(self, call: Any, *, servers: bool) -> Any:
        """A server's mechanism with the clients' weights; a client's filter as it is."""
        from seepage.measure.privacy.measured import OfClients

        if servers != (self.weights is not None):
            given, wanted = ("updates and weights", "--weights 1000,10,10, the canary's first") if servers else (
                "one update", "no --weights"
            )  # fmt: skip
            raise SeepageError(f"the function takes {given}; give {wanted}")
        try:
            return OfClients(call, tuple(map(float, (self.weights or "").split(",")))) if servers else call
        except ValueError as error:
            raise SeepageError(f"--weights takes numbers such as 1000,10,10, got {short(self.weights)}") from error

    def _made(self, text: str) -> Any:
        """What a name stands for: a class is called with the options, a function is not."""
        from seepage.base.registry import import_dotted
        from seepage.cli.parts import part_of

        part = part_of(text, "--of")
        self._check_trust(part.use)
        found = import_dotted(part.use)
        if isinstance(found, type) or part.options:
            try:
                return found(**part.options)
            except TypeError as error:
                raise SeepageError(f"{part.use} cannot be made with these options ({error}); correct them") from error
        return found

    def _check_trust(self, use: str) -> None:
        if ":" in use and not self.trust and use.partition(".")[0].partition(":")[0] != "seepage":
            raise SeepageError(f"{short(use)} is code that would be run; add --trust if it is yours")


MEASURED: Mapping[str, Callable[..., "MeasuredEpsilon"]] = {
    kind: getattr(ProveOptions, kind) for kind in ("defense", "function")
}
"""What `--of` takes and calls; beside these a ledger, which is read."""


def prove(
    of: Annotated[
        list[str] | None,
        typer.Option(
            "--of",
            metavar="KIND:NAME",
            help="What is called: defense:gaussian_noise:sigma=1,clip=1; function:module:f, yours, f(update) of a "
            "client or f(updates, weights) of a server; or ledger:FOLDER, what its clients spent. Repeatable: a chain "
            "of defenses.",
        ),
    ] = None,
    *,
    measuring: ProveOptions,
    fail_if: Annotated[
        str | None,
        typer.Option(
            "--fail-if", help="Exit with code 1 if: contradicted, or such as empirical_epsilon>8; of a ledger: spent>8."
        ),
    ] = None,
    printed: PrintOptions,
) -> None:
    """Empirical privacy audit: a lower bound on the epsilon of a defense, by calling it on canaries."""
    from seepage.audit.findings import EPSILON_SCORES
    from seepage.audit.gate import parse_condition
    from seepage.base.progress import Doing, Phase
    from seepage.cli.terminal import progress_bar

    if not of:
        raise SeepageError("there is nothing to measure; name it with --of KIND:NAME, such as --of defense:NAME")
    split = [one.partition(":")[::2] for one in of]
    kind, names = split[0][0], [name for _, name in split]
    if kind not in (*MEASURED, "ledger"):
        raise unknown("kind in --of KIND:NAME", kind, [*MEASURED, "ledger"])
    if {other for other, _ in split} != {kind} or not all(names):
        raise SeepageError(f"--of takes KIND:NAME, and several of one kind, got {' and '.join(map(short, of))}")
    scores = ("spent",) if kind == "ledger" else EPSILON_SCORES
    condition = None if fail_if is None else parse_condition(fail_if, scores=scores)
    if kind == "ledger":
        _spent(Path(_one(names, kind)), condition, printed)
        return
    doing = Doing(f"calls of the {kind}", Phase.MEASURING)
    with progress_bar(off=printed.silent) as show:
        found = MEASURED[kind](measuring, names, lambda done, total: show(done, total, doing))
    _present(found, printed)
    _gate(found, condition)


def _one(names: Sequence[str], kind: str) -> str:
    if len(names) != 1:
        raise SeepageError(f"--of {kind}:NAME is given once; leave out {short(names[1])}")
    return names[0]


def _takes_clients(call: Any) -> bool:
    """Whether a function needs two arguments, clients' updates and their weights, and not one update."""
    try:
        needed = [one for one in inspect.signature(call).parameters.values() if one.default is one.empty]
    except (TypeError, ValueError):  # what has no signature, or is no function at all
        return False
    return [one.kind for one in needed] == 2 * [inspect.Parameter.POSITIONAL_OR_KEYWORD]


def _guarded(call: Any, name: str, given: list[str]) -> Any:
    """A function of the user's whose errors end in a sentence. A division by zero is left to the measurement."""
    import traceback

    if not callable(call):
        raise SeepageError(f"{short(name)} is a {type(call).__name__} and no function; name one that takes an update")

    def guarded(*of: Any) -> Any:
        try:
            return call(*of)
        except (ArithmeticError, SeepageError):
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            hint = f"; it is given tensors called {', '.join(given)}: --shapes names others" * isinstance(
                error, KeyError
            )
            raise SeepageError(
                f"{short(name)} raised {type(error).__name__}: {error} ({Path(place.filename).name} line "
                f"{place.lineno}); mend it{hint}"
            ) from error

    return guarded


def _present(found: "MeasuredEpsilon", printed: PrintOptions) -> None:
    if printed.as_json:
        print(json.dumps({"schema": 1, **found.table()}, allow_nan=False))
        return
    if not printed.quiet:
        from seepage.cli.console import open_console

        open_console().print(_rows(found))
        for line in _beside(found):
            print(printable(line))
    print(printable(_verdict(found)))
    if found.beyond is not None:
        from seepage.audit.result_rows import ceiling_words

        said = ceiling_words(*found.beyond, found.ceiling, found.calls)
        print(printable(f"warning: {said}; give more --calls, or hold it against the Gaussian fit"))


def _rows(found: "MeasuredEpsilon") -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("epsilon", "value", "95 %", ""):
        table.add_column(title, justify="right" if title == "value" else "left", no_wrap=title != "")
    for name, value, verdict in (
        ("stated", found.stated, found.stated_verdict),
        ("computed", found.computed, found.computed_verdict),
    ):
        bad = verdict not in (None, "not contradicted")
        table.add_row(name, "-" if value is None else f"{value:.4g}", "", verdict or "", style="red" if bad else "")
    hits, false = found.hits, found.false_hits
    seen = f"{hits[0]}/{hits[1]} against {false[0]}/{false[1]}; could show {found.ceiling:.3g}"
    table.add_row("lower bound", f"{found.low:.4g}", f"[{found.low:.4g}, ...]", seen)
    fit = found.fit
    if found.deterministic:
        table.add_row("by sameness", "inf", "", "outputs of one input never differed")
    if fit is not None:
        low, middle, high = fit.epsilon
        refused = "" if fit.plausible else "refused: the noise is not Gaussian"
        words = refused or f"if it is Gaussian; mu {fit.mu[1]:.3g}"
        table.add_row("by Gaussian fit", f"{middle:.4g}", f"[{low:.4g}, {high:.4g}]", words)
    return table


def _beside(found: "MeasuredEpsilon") -> list[str]:
    over = "one round" if found.rounds == 1 else f"{found.rounds} rounds"
    how = {"join": "joins or leaves", "replace": "is replaced by another"}[found.neighbors]
    lines = [
        f"delta {found.delta:g}, {over}, {found.calls} calls in {found.seconds:.0f} s. One {found.unit} {how}.",
        f"Canary: {found.canary}. What tells it: {found.statistic}.",
    ]
    if found.fit is not None and found.fit.alike:
        lines.append("The fit measured one round and takes the others to be alike and independent.")
    return lines + [f"Note: {note}." for note in found.notes]


def _verdict(found: "MeasuredEpsilon") -> str:
    if found.stated is None and found.computed is None:
        return f"Nothing is claimed; the epsilon is at least {found.low:.4g}."
    claims = (("stated", found.stated_verdict), ("computed", found.computed_verdict))
    stated = [f"{name}: {verdict}" for name, verdict in claims if verdict]
    words = "; ".join(stated)
    end = "" if found.contradicted else " That is no proof: another canary, or more calls, may tell more."
    return f"{words[0].upper()}{words[1:]}.{end}"


def _spent(folder: Path, condition: "Condition | None", printed: PrintOptions) -> None:
    """What a ledger's clients spent; a line without an epsilon is over any budget."""
    from seepage.recorder.opacus import Ledger

    if condition is not None and condition.limit < 0:
        raise SeepageError(f"--fail-if {condition}: no epsilon is below 0; give a budget such as spent>8")
    clients = Ledger(folder).clients()
    over = [
        name
        for name, entry in clients.items()
        if condition is not None and (entry.epsilon is None or condition.meets(entry.epsilon))
    ]
    if printed.as_json:
        rows = [{"client": name, **entry.table()} for name, entry in clients.items()]
        budget = None if condition is None else condition.limit
        print(json.dumps({"schema": 1, "clients": rows, "budget": budget, "over": over}, allow_nan=False))
    elif not printed.quiet:
        for name, entry in clients.items():
            print(printable(f"client {name}: {entry.line}"))
    if over:
        words = f"{condition} in {len(over)} of {len(clients)} clients: {', '.join(over[:3])}"
        say(printable(f"failed: {words}"))
        raise typer.Exit(1)


def _gate(found: "MeasuredEpsilon", condition: "Condition | None") -> None:
    """End with exit code 1 where the measurement meets the condition."""
    if condition is None:
        return
    from seepage.measure.privacy.measured.measure import BLIND

    fit = found.fit if found.fit is not None and found.fit.plausible else None
    claims = [one for one in (found.stated_verdict, found.computed_verdict) if one is not None]
    values = {
        "empirical_epsilon": found.low,
        "fitted_epsilon": None if fit is None else fit.epsilon[1],
        "contradicted": sum(one != "not contradicted" for one in claims) if claims else None,
    }
    value = values[condition.score]
    if BLIND in found.notes:
        raise SeepageError(f"--fail-if {condition} cannot be judged: {BLIND}")
    if value is None:
        why = (
            "nothing is claimed; give --epsilon or --sigma"
            if condition.score == "contradicted"
            else "nothing was fitted"
        )
        raise SeepageError(f"--fail-if {condition} cannot be judged: {why}")
    if condition.meets(value):
        say(f"failed: {condition}, with {condition.score} {value:.4g}")
        raise typer.Exit(1)
