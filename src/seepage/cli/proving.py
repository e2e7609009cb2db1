"""`seepage prove`: the epsilon of the filter that really runs, beside what is stated and what is computed."""

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seepage.cli.options import JsonOption, QuietOption, SeedOption
from seepage.errors import SeepageError, printable, short

if TYPE_CHECKING:
    from seepage.audit.gate import Condition
    from seepage.privacy.measured import Claim, MeasuredEpsilon
    from seepage.privacy.measured.measure import Progress

KNOWN = ("flwr", "nvflare", "opacus", "seepage")
"""Packages whose code is called without `--trust`."""
Shapes = Mapping[str, tuple[int, ...]]


def prove(
    function: Annotated[
        str | None,
        typer.Option(
            "--function", help="Your filter, module:function: dict of tensors in, dict of tensors out; with --trust."
        ),
    ] = None,
    mod: Annotated[
        list[str] | None,
        typer.Option(
            "--mod", help="A Flower client mod, module:thing[:OPTION=VALUE,...]. Repeatable, outermost first."
        ),
    ] = None,
    filter_: Annotated[
        list[str] | None,
        typer.Option("--filter", help="An NVFlare filter, module:Class[:OPTION=VALUE,...]. Repeatable, in order."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", help="module:function of yours that returns Opacus' model, optimizer, loss, inputs and labels."
        ),
    ] = None,
    defense: Annotated[
        list[str] | None,
        typer.Option("--defense", help="A defense, such as gaussian_noise:sigma=1,clip=1. Repeatable, in order."),
    ] = None,
    recorded: Annotated[
        Path | None, typer.Option("--recorded", help="A recorder's folder, of rounds with canaries; with --canaries.")
    ] = None,
    canaries: Annotated[
        Path | None, typer.Option("--canaries", help='JSON or TOML: {"with": [...], "without": [...], "canary": FILE}.')
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="A folder with a ledger: what its clients spent, and by whose word.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="With --ledger: exit with code 1 if a client spent more than this.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The stated epsilon, over all rounds.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="The delta of all epsilons; default 1e-5.")] = None,
    sigma: Annotated[
        float | None, typer.Option("--sigma", help="Noise multiplier, to compute an epsilon where no option tells it.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds that the epsilons are over.")] = 1,
    clip: Annotated[float | None, typer.Option("--clip", help="Norm that the filter clips to; default 1.")] = None,
    neighbors: Annotated[
        str, typer.Option("--neighbors", help="Neighboring relation: join (add or remove one update) or replace.")
    ] = "join",
    shapes: Annotated[
        str | None,
        typer.Option("--shapes", help="Shapes of the test update, e.g. weight=6x8,bias=6 (a scalar: name=1)."),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="KEY=VALUE of the server's message to a mod. Repeatable.")
    ] = None,
    calls: Annotated[int | None, typer.Option("--calls", help="Most calls; default 120,000.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Stop calling after this time.")] = 50.0,
    trust: Annotated[bool, typer.Option("--trust", help="Run the code that --function and the like name.")] = False,
    fail_if: Annotated[
        str | None,
        typer.Option("--fail-if", help="Exit with code 1 if: contradicted, or such as measured_epsilon>8."),
    ] = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Empirical privacy audit: a lower bound on the epsilon of a defense, by calling it on canaries."""
    from seepage.cli.parts import pair
    from seepage.cli.terminal import progress_bar
    from seepage.core.progress import Doing, Phase
    from seepage.privacy.measured import CALLS, SHAPES

    if neighbors not in ("join", "replace"):
        raise SeepageError(f"--neighbors takes join or replace, got {neighbors!r}")
    if budget is not None and (ledger is None or not 0 < budget < math.inf):
        raise SeepageError("--budget takes a number above 0 and needs --ledger FOLDER; correct it")
    if ledger is not None:
        _spent(ledger, budget, as_json=as_json, quiet=quiet)
        return
    condition = _condition_of(fail_if)
    asked = _Asked(
        epsilon=epsilon, delta=delta, sigma=sigma, rounds=rounds, clip=clip,
        neighbors="join" if neighbors == "join" else "replace", shapes=_shapes(shapes) if shapes else SHAPES,
        config=dict(pair(one, "--config") for one in config or []), seconds=seconds,
        calls=CALLS if calls is None else calls, trust=trust, seed=seed or 0,
    )  # fmt: skip
    kinds: dict[str, Callable[[Progress | None], MeasuredEpsilon]] = {}
    if function is not None:
        kinds["--function"] = lambda show: asked.of_function(function, show)
    if mod:
        kinds["--mod"] = lambda show: asked.of_mods(mod, show)
    if filter_:
        kinds["--filter"] = lambda show: asked.of_filters(filter_, show)
    if engine is not None:
        kinds["--engine"] = lambda show: asked.of_engine(engine, show)
    if defense:
        kinds["--defense"] = lambda show: asked.of_defense(defense, show)
    if recorded is not None:
        kinds["--recorded"] = lambda show: asked.of_recorded(recorded, canaries)
    if len(kinds) != 1:
        raise SeepageError(
            f"prove measures one thing, got {' and '.join(kinds) or 'none'}; give --function, --mod, --filter, "
            "--engine, --defense, --recorded or --ledger"
        )
    what, measure = next(iter(kinds.items()))
    with progress_bar(off=as_json or quiet) as show:
        found = measure(lambda done, total: show(done, total, Doing(f"calls of the {what[2:]}", Phase.MEASURING)))
    _present(found, as_json=as_json, quiet=quiet)
    _gate(found, condition)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The options, and how each kind of thing is measured with them."""

    epsilon: float | None
    delta: float | None
    sigma: float | None
    rounds: int
    clip: float | None
    neighbors: Literal["join", "replace"]
    shapes: Mapping[str, Any]
    config: Mapping[str, Any]
    calls: int
    seconds: float
    trust: bool
    seed: int

    def of_function(self, name: str, show: "Progress | None") -> "MeasuredEpsilon":
        from seepage.privacy.measured import Claim

        return self._called(_guarded(self._made(name, "--function"), name, list(self.shapes)), Claim(), show)

    def of_mods(self, names: list[str], show: "Progress | None") -> "MeasuredEpsilon":
        from seepage.integrations.flower_filter import claim_of, mod_filter

        mods = [self._made(name, "--mod") for name in names]
        claim = claim_of(mods[0], rounds=self.rounds) if len(mods) == 1 else _no_claim()
        return self._called(mod_filter(*mods, config=self.config), claim, show)

    def of_filters(self, names: list[str], show: "Progress | None") -> "MeasuredEpsilon":
        from seepage.integrations.nvflare_filter import claim_of, dxo_filter

        filters = [self._made(name, "--filter") for name in names]
        claim = (
            claim_of(filters[0], rounds=self.rounds, shapes=self.shapes) if len(filters) == 1 else _no_claim()
        )  # fmt: skip
        return self._called(dxo_filter(*filters), claim, show)

    def of_engine(self, name: str, show: "Progress | None") -> "MeasuredEpsilon":
        from seepage.integrations.opacus_steps import step_pairs
        from seepage.privacy.measured import Measurement

        model, optimizer, loss, inputs, labels = self._made(name, "--engine", call=True)
        noise = float(optimizer.noise_multiplier) if self.sigma is None else self.sigma
        how = Measurement(
            delta=self._delta(), stated=self.epsilon, computed=self._computed(noise), rounds=self.rounds,
            calls=self.calls, seconds=self.seconds, unit="example", progress=show,
        )  # fmt: skip
        return how.pairs(step_pairs(model, optimizer, loss, inputs, labels, seed=self.seed))

    def of_defense(self, names: list[str], show: "Progress | None") -> "MeasuredEpsilon":
        from seepage.cli.parts import part_of
        from seepage.defenses import DEFENSES, joined
        from seepage.privacy.measured import Measurement, measure_defense

        parts = [part_of(name, "--defense", DEFENSES) for name in names]
        for part in parts:
            self._check_trust(part.use)
        defense = joined([DEFENSES.build(part) for part in parts])
        assert defense is not None
        how = Measurement(
            delta=self._delta(), rounds=self.rounds, stated=self.epsilon, calls=self.calls, seconds=self.seconds,
            neighbors=self.neighbors, progress=show,
        )  # fmt: skip
        return measure_defense(defense, how, seed=self.seed)

    def of_recorded(self, folder: Path, listed: Path | None) -> "MeasuredEpsilon":
        from seepage.integrations.recorded_rounds import CanaryList, measure_recorded

        if listed is None:
            raise SeepageError("--recorded needs --canaries FILE, which says in which rounds the canary was; add it")
        return measure_recorded(
            folder, CanaryList.read(listed), delta=self._delta(), stated=self.epsilon,
            computed=None if self.sigma is None else self._computed(self.sigma), rounds=self.rounds, seed=self.seed,
        )  # fmt: skip

    def _called(self, call: Any, claim: "Claim", show: "Progress | None") -> "MeasuredEpsilon":
        from seepage.privacy.measured import Measurement

        computed = claim.computed if self.sigma is None else self._computed(self.sigma)
        clip = next((one for one in (self.clip, claim.clip) if one is not None), 1.0)
        how = Measurement(
            delta=self.delta or claim.delta or 1e-5, stated=claim.stated if self.epsilon is None else self.epsilon,
            computed=computed if self.neighbors == "join" else None, rounds=self.rounds, calls=self.calls,
            seconds=self.seconds, neighbors=self.neighbors, progress=show,
        )  # fmt: skip
        return how.epsilon(call, clip=clip, shapes=self.shapes, seed=self.seed)

    def _delta(self) -> float:
        return 1e-5 if self.delta is None else self.delta

    def _computed(self, sigma: float) -> float:
        from seepage.privacy.accounting import epsilon

        return epsilon(sigma=sigma, rounds=self.rounds, delta=self._delta())

    def _made(self, text: str, option: str, *, call: bool = False) -> Any:
        """What a name stands for: a class is called with the options, a function is not, unless it is to be."""
        from seepage.cli.parts import part_of
        from seepage.registry import import_dotted

        part = part_of(text, option)
        self._check_trust(part.use)
        found = import_dotted(part.use)
        if isinstance(found, type) or part.options or call:
            try:
                return found(**part.options)
            except TypeError as error:
                raise SeepageError(f"{part.use} cannot be made with these options ({error}); correct them") from error
        return found

    def _check_trust(self, use: str) -> None:
        if ":" in use and not self.trust and use.partition(".")[0].partition(":")[0] not in KNOWN:
            raise SeepageError(f"{short(use)} is code that would be run; add --trust if it is yours")


def _guarded(call: Any, name: str, given: list[str]) -> Any:
    """A function of the user's whose errors are told in a sentence. A division by zero is left to the measurement."""
    import traceback

    if not callable(call):
        raise SeepageError(f"{short(name)} is a {type(call).__name__} and no function; name one that takes an update")

    def guarded(update: Any) -> Any:
        try:
            return call(update)
        except (ArithmeticError, SeepageError):
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            hint = f"; it is given tensors named {', '.join(given)}: --shapes names others" * isinstance(
                error, KeyError
            )
            raise SeepageError(
                f"{short(name)} raised {type(error).__name__}: {error} ({Path(place.filename).name} line "
                f"{place.lineno}); mend it{hint}"
            ) from error

    return guarded


def _no_claim() -> "Claim":
    from seepage.privacy.measured import Claim

    return Claim()


def _shapes(text: str) -> Shapes:
    """`weight=6x8,bias=6`; `=1` is a single number without a dimension."""
    found = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([\w.]+)\s*=\s*(\d+(?:x\d+)*)\s*", part)
        if match is None:
            raise SeepageError(f"--shapes takes NAME=6x8,... with sizes, got {short(part)}")
        sizes = tuple(int(size) for size in match[2].split("x"))
        found[match[1]] = () if sizes == (1,) else sizes
    return found


def _condition_of(fail_if: str | None) -> "Condition | None":
    """What `--fail-if` says, in the words of an audit's; `contradicted` alone is short for `contradicted>0`.

    Raises:
        SeepageError: For a condition on something else.
    """
    from seepage.audit.gate import EPSILON_SCORES, parse_condition

    if fail_if is None:
        return None
    condition = parse_condition("contradicted>0" if fail_if.strip() == "contradicted" else fail_if)
    if condition.score not in EPSILON_SCORES:
        known = ", ".join(EPSILON_SCORES)
        raise SeepageError(f"--fail-if takes {known} here, got {fail_if!r}; an audit has the others")
    return condition


def _present(found: "MeasuredEpsilon", *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps({"schema": 1, **found.table()}, allow_nan=False))
        return
    if not quiet:
        from seepage.cli.console import open_console

        open_console().print(_rows(found))
        for line in _beside(found):
            print(printable(line))
    print(printable(_verdict(found)))
    if found.beyond is not None:
        from seepage.audit.side_rows import ceiling_words

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
    told = [f"{name}: {verdict}" for name, verdict in claims if verdict]
    words = "; ".join(told)
    end = "" if found.contradicted else " That is no proof: another canary, or more calls, may tell more."
    return f"{words[0].upper()}{words[1:]}.{end}"


def _spent(folder: Path, budget: float | None, *, as_json: bool, quiet: bool) -> None:
    """What a ledger's clients spent; a line without an epsilon is over any budget."""
    from seepage.integrations.opacus import Ledger

    clients = Ledger(folder).clients()
    over = [
        name
        for name, entry in clients.items()
        if budget is not None and (entry.epsilon is None or entry.epsilon > budget)
    ]
    if as_json:
        rows = [{"client": name, **entry.table()} for name, entry in clients.items()]
        print(json.dumps({"schema": 1, "clients": rows, "budget": budget, "over": over}, allow_nan=False))
    elif not quiet:
        for name, entry in clients.items():
            print(printable(f"client {name}: {entry.line}; the word of {entry.stated_by}, for one {entry.unit}"))
    if over:
        words = f"{len(over)} of {len(clients)} clients are over the budget of {budget:g}: {', '.join(over[:3])}"
        print(printable(f"failed: {words}"), file=sys.stderr)
        raise typer.Exit(1)


def _gate(found: "MeasuredEpsilon", condition: "Condition | None") -> None:
    """End with exit code 1 where the measurement meets the condition."""
    if condition is None:
        return
    from seepage.privacy.measured.measure import BLIND

    fit = found.fit if found.fit is not None and found.fit.plausible else None
    claims = [one for one in (found.stated_verdict, found.computed_verdict) if one is not None]
    values = {
        "measured_epsilon": found.low,
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
        print(f"failed: {condition}, with {condition.score} {value:.4g}", file=sys.stderr)
        raise typer.Exit(1)
