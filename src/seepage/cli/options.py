"""Options that several commands share, in groups that a command takes as one object, and their recipe tables."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from seepage.cli.completing import loss_names, names_of, recipe_names
from seepage.cli.stopping import answer_by_interrupt
from seepage.errors import SeepageError

if TYPE_CHECKING:
    from seepage.base.executor import Executor
    from seepage.base.registry import Spec


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of its groups as options of its own; it is called with one object for each group.

    Groups are dataclasses with a default for every field, each of which has its `typer.Option`.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            own = get_type_hints(groups[name], include_extras=True)
            spelled = [parameter.replace(name=one.name, default=one.default) for one in fields(groups[name])]
            parameters += [one.replace(annotation=own[one.name]) for one in spelled]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))
    parameters = sorted((one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters), key=_box_of)

    @wraps(command)
    def called(**given: Any) -> None:
        made = {
            name: group(**{one.name: given.pop(one.name) for one in fields(group)}) for name, group in groups.items()
        }
        command(**given, **made)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def _box_of(parameter: inspect.Parameter) -> int:
    """Where an option's box stands in the help; arguments and options without a box come first."""
    box = parameter.annotation.__metadata__[0].rich_help_panel
    return BOXES.index(box) if box in BOXES else -1


def typed(*groups: Any) -> dict[str, Any]:
    """What was given of some groups, by the options as they are typed; None where an option was left out."""
    found = {}
    for group in groups:
        hints = get_type_hints(type(group), include_extras=True)
        for one in fields(group):
            value = getattr(group, one.name)
            spelling = str(hints[one.name].__metadata__[0].default)  # where typer keeps an option's first spelling
            found[spelling] = None if value is False else value
    return found


BOXES = ("What is audited", "Client", "Captured files", "Attacker", "Measure more", "Gate", "Output", "Machine")
_what, _client, _files, _attacker, _more, _gate, _output, _machine = (
    partial(typer.Option, rich_help_panel=title) for title in BOXES
)

JsonOption = Annotated[bool, _output("--json", help="Print one JSON object on stdout and nothing else.")]
QuietOption = Annotated[bool, _output("--quiet", help="Print the result in one line and nothing else.")]
OutOption = Annotated[Path | None, _output("--out", help="Folder to write to; default: a new one in runs/.")]
PicturesOption = Annotated[
    bool | None,
    _output(
        "--pictures/--no-pictures",
        help="Whether report.html shows pictures and grid.png is written; a run remembers it.",
    ),
]
DetailsOption = Annotated[
    bool, _output("--details", help="Every attack on every case, and why it has no result where it has none.")
]
ReuseOption = Annotated[
    bool,
    _gate(
        "--reuse",
        help="Judge a run that is there already although nothing shows that you made it, as one from another machine.",
    ),
]
SeedOption = Annotated[int | None, _machine("--seed", help="Seeds everything.")]
DeviceOption = Annotated[str | None, _machine("--device", help="cpu, cuda, cuda:1, mps.")]
AttackOption = Annotated[
    list[str] | None,
    _attacker(
        "--attack",
        help="Only this attack: NAME, module:Attack or NAME:OPTION=VALUE,..., such as inverting_gradients:steps=500. "
        "Repeatable.",
        autocompletion=names_of("attacks"),
    ),
]
MembershipOption = Annotated[
    bool, _more("--membership", help="Also run membership inference: who was in the attacked batches.")
]
KnownOption = Annotated[
    list[str] | None,
    _attacker("--known", help="Side information for the attacker: labels, indices (of rounds), defense. Repeatable."),
]
RetryOption = Annotated[
    bool,
    _machine("--retry-failed", help="Run again what failed in a finished run: attacks with an error, lost cases."),
]
RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        help="A recipe: FILE.toml or a name from `seepage list`. It may name code of its own (module:name), which is "
        "run: read a stranger's recipe first.",
        autocompletion=recipe_names,
    ),
]
AfterArgument = Annotated[Path | None, typer.Argument(help="The weights that the client returned.")]


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """A batch of one's own, whose update is simulated."""

    data: Annotated[
        str | None,
        _what(
            "--data",
            help="Name, image folder, .zip, .npz, or table (.csv, .parquet) of private examples.",
            autocompletion=names_of("data"),
        ),
    ] = None
    weights: Annotated[
        str | None, _what("--weights", help="Start from this file (.safetensors or a state_dict), or: pretrained.")
    ] = None
    defense: Annotated[
        list[str] | None,
        _client(
            "--defense",
            help="Let clients use this defense, such as gaussian_noise:sigma=1,clip=1. Repeatable, in order.",
            autocompletion=names_of("defenses"),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The model and the client behind an update, and where to compute."""

    model: Annotated[
        str | None,
        _what(
            "--model",
            help="fc2, convnet, resnet, vit, gpt, torchvision:NAME, timm:NAME, module:factory (a function, a class or "
            "a network), or with --trust a saved network (.pt2, .pt).",
            autocompletion=names_of("models"),
        ),
    ] = None
    normalize: Annotated[
        str | None,
        _what(
            "--normalize",
            metavar="imagenet|0.5|MEAN,STD",
            help="What the client does to its inputs before the model; no key of the weights changes by it.",
        ),
    ] = None
    client: Annotated[
        str | None,
        _client(
            "--client",
            help="What clients compute: fedsgd, fedavg:lr=0.1,epochs=2, or your own training loop, module:function.",
            autocompletion=names_of("clients"),
        ),
    ] = None
    loss: Annotated[
        str | None,
        _client(
            "--loss",
            help="What clients train on: cross_entropy, mse (values), bce, binary (one logit), or your own "
            "module:function of outputs and targets, which is called as it is.",
            autocompletion=loss_names,
        ),
    ] = None
    batch_size: Annotated[int | None, _client("--batch-size", min=1, help="Private examples behind one update.")] = None
    seed: SeedOption = None
    device: DeviceOption = None
    settings: Annotated[
        list[str] | None,
        _what("--set", help="Any recipe value, such as attack.steps=500. Repeatable."),
    ] = None
    trust: Annotated[
        bool,
        _what("--trust", help="Run code that a folder names, or the saved network of --model; it is yours."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(NetworkOptions, OwnOptions):
    """All of a simulation."""


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """What is known of captured files: two checkpoints, or one and a gradient."""

    gradient: Annotated[Path | None, _files("--gradient", help="The client's gradient, in place of AFTER.")] = None
    difference: Annotated[
        Path | None, _files("--difference", help="What the client changed the weights by, in place of AFTER.")
    ] = None
    shape: Annotated[
        str | None, _files("--shape", help="Shape of one example, such as 3,32,32; default: one the weights fit.")
    ] = None
    classes: Annotated[
        int | None,
        _files(
            "--classes",
            help="How many classes the model tells apart, as many as it has outputs; default: as many as the weights "
            "fit.",
        ),
    ] = None
    target: Annotated[
        str | None,
        _files(
            "--target",
            help="Task: class, value (regression), map (segmentation) or input (an autoencoder, with its --loss); "
            "default: from the model's outputs and the loss.",
        ),
    ] = None
    values: Annotated[
        str | None,
        _files(
            "--values",
            help="Smallest and largest number in an example, such as -3,3 of standardized columns; default: 0,1.",
        ),
    ] = None
    blocks: Annotated[
        str | None,
        _files(
            "--blocks",
            help="One-hot columns of a table: first place, from 0, and width of each block, such as 4:3,7:2.",
        ),
    ] = None
    lr: Annotated[
        float | None,
        _files("--lr", help="The client's learning rate; it may be left out where the last bias shows it."),
    ] = None
    steps: Annotated[
        int | None, _files("--steps", help="Steps that the client took at that rate; default: inferred, else 1.")
    ] = None
    weight_decay: Annotated[
        float | None,
        _files(
            "--weight-decay",
            help="Weight decay of that SGD, which is taken out of the update; default: inferred for cross-entropy, "
            "else 0.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AttackerOptions:
    """The attacks, and how long they may take."""

    attack: AttackOption = None
    all_attacks: Annotated[
        bool,
        _attacker(
            "--all",
            help="Run every attack, also where cheaper ones certified all examples already; a recipe: all_attacks.",
        ),
    ] = False
    minutes: Annotated[
        float | None,
        _attacker(
            "--minutes",
            help="What the whole command may take: searches that go on longer stop with their best guess, and the same "
            "command again goes on with them; default: 10, and no limit with --all, a recipe of yours, or steps that "
            "you state.",
        ),
    ] = None

    def time(self, default: float | None, settings: list[str] | None) -> float | None:
        """Minutes that the command may take, with `default` where nothing was typed; None: no limit.

        Who asks for all attacks, or states their steps, wants all of them, whatever they take.
        """
        typed = [text for part in self.attack or [] for text in part.replace(",", ":").split(":")[1:]]
        typed += [text.strip().rpartition(".")[2] for text in settings or [] if text.strip().startswith("attack.")]
        stated = any(text.partition("=")[0].strip() == "steps" for text in typed)
        return default if self.minutes is None and not (stated or self.all_attacks) else self.minutes


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Where attacks run."""

    jobs: Annotated[int | None, _machine("--jobs", min=1, help="Attacks at a time; default: one per core.")] = None
    on: Annotated[
        str | None,
        _machine(
            "--on",
            metavar="ray",
            help="Run on a Ray cluster, or start one here: ray, ray:HOST:PORT or ray://HOST:PORT.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """Further parts of the verdict."""

    membership: MembershipOption = False
    bounds: Annotated[
        bool, _more("--bounds", help="Also compute upper bounds for any attacker. With --defense this is done anyway.")
    ] = False
    prove: Annotated[
        bool, _more("--prove", help="Also measure the epsilon of the defense, by calling it many thousand times.")
    ] = False
    no_undefended: Annotated[
        bool,
        _more(
            "--no-undefended",
            help="With --defense: do not attack the case without it as well, which shows whether these attacks work "
            "here.",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What ends a command with exit code 1 or 2."""

    fail_if: Annotated[
        str | None,
        _gate(
            "--fail-if",
            help="CI gate: exit 1 if any attack result meets this, e.g. 'recovered>0' (an example was recovered), "
            "'members_identified>0.1', 'contradicted>0'.",
        ),
    ] = None
    baseline: Annotated[
        Path | None,
        _gate(
            "--baseline",
            help="Exit with code 1 if anything got worse than in this run, evidence pack or result.json, with 2 if "
            "that cannot be decided.",
        ),
    ] = None
    allow: Annotated[
        bool,
        _gate(
            "--allow-inconclusive",
            help="End with exit code 0, not 2, where nothing could be scored or the verdict is inconclusive.",
        ),
    ] = False
    reuse: ReuseOption = False


@dataclass(frozen=True, kw_only=True)
class CertifiedGateOptions(GateOptions):
    """The same where no truth is at hand."""

    fail_if: Annotated[
        str | None,
        _gate(
            "--fail-if",
            help="CI gate: exit 1 if any row meets this: 'certified>0', all that can be judged without a truth.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PrintOptions:
    """How a result is printed."""

    as_json: JsonOption = False
    quiet: QuietOption = False

    @property
    def silent(self) -> bool:
        """Whether nothing but the result is wanted, so that no progress is shown."""
        return self.as_json or self.quiet


@dataclass(frozen=True, kw_only=True)
class ShowOptions(PrintOptions):
    """How a run is shown."""

    pictures: PicturesOption = None
    details: DetailsOption = False


MINUTES = 10.0
"""What the attacks of `seepage attack` may take where nothing else is asked for; an audit's recipe says it."""


TEXT_FILES = (".txt", ".jsonl")
"""Files that are text in any case; a .csv may be a table."""
TEXT_DATA = ("python_reference",)
TEXT_MODELS = ("gpt", "text_encoder", "causal_lm", "text_classifier")
"""Models that read token numbers and nothing else."""


@contextmanager
def running_on(place: str | None) -> "Iterator[Executor]":
    """The executor that `--on` names; a Ray cluster is joined or started for the duration of the `with` block.

    Args:
        place: None: this machine. `ray`, `ray:ADDRESS` with an address that `ray.init` takes, or `ray://HOST:PORT`.

    Raises:
        SeepageError: For another word, where Ray is not installed, and where no cluster answers.
    """
    from seepage.base.executor import LocalExecutor

    if place is None:
        yield LocalExecutor()
        return
    word, _, address = place.partition(":")
    if word != "ray":
        raise SeepageError(f"--on takes ray, ray:ADDRESS or ray://HOST:PORT, got {place!r}; leave it out to run here")
    from seepage.recorder.ray import cluster

    with cluster(place if address.startswith("//") else address or None) as runner:
        answer_by_interrupt()  # Ray ends with exit code 1, which is a gate's, on SIGTERM and on any SystemExit
        yield runner


def tables_of(
    recipe: str | None,
    own: SimulationOptions = SimulationOptions(),
    *,
    attacks: list[str] | None = None,
    known: list[str] | None = None,
) -> dict[str, Any]:
    """A recipe's tables with the command line's changes; an option that was not given changes nothing.

    A model, a client, attacks and defenses may have options behind their name (see `part_of`). With a network that is
    none of this package's, or with weights, the default recipe trains nothing before the first attack: it is attacked
    as it is given.
    """
    from seepage.audit.recipe.files import OF_TEXT, find_recipe, read_recipe
    from seepage.audit.recipe.overrides import change, choose_part, drop_cases, put
    from seepage.base.registry import KINDS, models
    from seepage.cli.parts import part_of

    tables = read_recipe(find_recipe(recipe))
    if recipe is None and attacks is None and own.data is not None and _is_text(own.data, own.model):
        attacks = list(OF_TEXT)
    for key, names in (("attack", attacks), ("defense", own.defense)):
        if names:
            parts = [part_of(name, f"--{key}", KINDS[f"{key}s"]) for name in names]
            listed = tables.get(key)
            listed = [table for table in listed if isinstance(table, dict)] if isinstance(listed, list) else []
            stated = {table.get("use"): table for table in listed}
            drop_cases(tables, key)
            put(tables, key, [{**stated.get(part.use, {}), **part.table()} for part in parts])
    for key, chosen in (
        ("data", None if own.data is None else _data_of(own.data)),
        ("model", None if own.model is None else part_of(own.model, "--model", KINDS["models"])),
        ("client", None if own.client is None else part_of(own.client, "--client", KINDS["clients"])),
    ):
        if chosen is not None:
            choose_part(tables, key, chosen.use)
            for option, value in chosen.options.items():
                put(tables, f"{key}.{option}", value)
    for key, value in (
        ("client.loss", own.loss),
        ("batch.size", own.batch_size),
        ("training.weights", own.weights),
        ("seed", own.seed),
        ("device", own.device),
        ("knowledge.known", known),
    ):
        if value is not None:
            drop_cases(tables, key.partition(".")[0])
            put(tables, key, value)
    if own.weights is not None or (recipe is None and own.model is not None and tables["model"]["use"] not in models):
        put(tables, "training.steps", 0)
    add_to_model(tables, own.normalize, trust=own.trust)
    return change(tables, own.settings or [])


def add_to_model(tables: dict[str, Any], normalize: str | None, *, trust: bool) -> None:
    """Put `--normalize` and `--trust` into the table of the model, in place, where they are given.

    Raises:
        SeepageError: Where the model is a saved network, and nobody trusts it.
    """
    from seepage.audit.recipe.overrides import put
    from seepage.audit.recipe.parts import problems_of
    from seepage.base.registry import Spec, is_network_file

    if normalize is not None:
        put(tables, "model.normalize", normalize)
    table = tables.get("model")
    if isinstance(table, dict) and is_network_file(str(table.get("use"))):
        if trust:
            table["trust"] = True
        for problem in problems_of(Spec.of(table), "model"):
            raise SeepageError(problem)


def _is_text(data: str, model: str | None) -> bool:
    """Whether data are texts, by their name, or by that of a model which reads nothing else."""
    named = (model or "").partition(":")[0]
    return data in TEXT_DATA or Path(data).suffix.lower() in TEXT_FILES or named in TEXT_MODELS


def _data_of(text: str) -> "Spec":
    """Data by their name or path, which is hidden in what is handed on and so has no options behind it.

    Raises:
        SeepageError: Where it has some.
    """
    from seepage.base.registry import Spec
    from seepage.cli.parts import part_of

    part = part_of(text, "--data")
    if part.options and not Path(text).exists():
        spelled = " ".join(f"--set data.{name}={value}" for name, value in part.options.items())
        raise SeepageError(f"--data takes no options behind a name; write --data {part.use} {spelled}")
    return Spec(text)


def ask_for(tables: dict[str, Any], more: MeasureOptions, *, defended: bool) -> None:
    """Ask a recipe's tables for further parts of the verdict, in place, with its own settings where it has them.

    A defense that was named on the command line (`defended`) is bounded in any case, and the case without it attacked.
    """
    if more.membership:
        tables.setdefault("membership", {})
    if more.bounds or defended:
        tables.setdefault("bounds", {})
    if more.bounds and isinstance(tables["bounds"], dict):
        tables["bounds"] = {"where": "all", **tables["bounds"]}
    if more.prove:
        tables.setdefault("epsilon", {})
    if defended and not more.no_undefended:
        tables["undefended"] = True
    elif more.no_undefended:
        tables.pop("undefended", None)
