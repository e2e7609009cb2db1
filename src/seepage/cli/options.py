"""Options that several commands share, and their conversion to a recipe's tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seepage.cli.completing import loss_names, names_of, recipe_names
from seepage.cli.stopping import answer_by_interrupt
from seepage.errors import SeepageError

if TYPE_CHECKING:
    from seepage.core.executor import Executor
    from seepage.registry import Spec

DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Name, image folder, .zip, .npz, or table (.csv, .parquet) of private examples.",
        autocompletion=names_of("data"),
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="fc2, convnet, resnet, vit, gpt, torchvision:NAME, timm:NAME, module:factory (a function, a class or a "
        "network), or with --trust a saved network (.pt2, .pt).",
        autocompletion=names_of("models"),
    ),
]
NormalizeOption = Annotated[
    str | None,
    typer.Option(
        "--normalize",
        metavar="imagenet|0.5|MEAN,STD",
        help="What the client does to its inputs before the model; no key of the weights changes by it.",
    ),
]
TrustModelOption = Annotated[
    bool, typer.Option("--trust", help="Read the saved network of --model, which may hold code; it is yours.")
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Run the code that the folder names, or the saved network of --model; it is yours."),
]
WeightsOption = Annotated[
    str | None,
    typer.Option("--weights", help="Start from this file (.safetensors or a state_dict), or: pretrained."),
]
ClientOption = Annotated[
    str | None,
    typer.Option(
        "--client",
        help="What clients compute: fedsgd, fedavg:lr=0.1,epochs=2, or your own training loop, module:function.",
        autocompletion=names_of("clients"),
    ),
]
LossOption = Annotated[
    str | None,
    typer.Option(
        "--loss",
        help="What clients train on: cross_entropy, mse (values), bce, binary (one logit), or your own module:function "
        "of outputs and targets, which is called as it is.",
        autocompletion=loss_names,
    ),
]
SizeOption = Annotated[int | None, typer.Option("--batch-size", min=1, help="Private examples behind one update.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seeds everything.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps.")]
AttackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--attack",
        help="Only this attack, such as inverting_gradients:steps=500. Repeatable.",
        autocompletion=names_of("attacks"),
    ),
]
DefenseOption = Annotated[
    list[str] | None,
    typer.Option(
        "--defense",
        help="Let clients use this defense, such as gaussian_noise:sigma=1,clip=1. Repeatable, in order.",
        autocompletion=names_of("defenses"),
    ),
]
ToldOption = Annotated[
    list[str] | None,
    typer.Option("--told", help="Side information for the attacker: labels, indices (of rounds), defense. Repeatable."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Any recipe value, such as attack.steps=500. Repeatable.")
]
TuneOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tune",
        metavar="attack.OPTION=V1,V2,...",
        help="Pick the best value on a batch that is not scored: attack.tv=1e-4,1e-3. Repeatable: all combinations.",
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder to write to.")]
JobsOption = Annotated[int | None, typer.Option("--jobs", min=1, help="Attacks at a time; default: one per core.")]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="ray", help="Run on a Ray cluster, or start one here: ray, ray:HOST:PORT or ray://HOST:PORT."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print the result in one line and nothing else.")]
NoPicturesOption = Annotated[
    bool,
    typer.Option("--no-pictures", help="Leave every picture out of report.html, and write no grid.png."),
]
GateOption = Annotated[
    str | None,
    typer.Option(
        "--fail-if",
        help="CI gate: exit 1 if any attack result meets this, e.g. 'recovered>0' (an example was recovered), "
        "'named>0.1', 'contradicted>0'.",
    ),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        help="Exit with code 1 if anything got worse than in this run, evidence pack or result.json, with 2 if that "
        "cannot be told.",
    ),
]
AllowOption = Annotated[
    bool,
    typer.Option(
        "--allow-inconclusive",
        help="End with exit code 0, not 2, where nothing could be scored or the verdict is inconclusive.",
    ),
]
WhyOption = Annotated[bool, typer.Option("--why", help="Also say why attacks do not apply, which is counted else.")]
UndefendedOption = Annotated[
    bool,
    typer.Option(
        "--no-undefended",
        help="With --defense: do not attack the case without it as well, which shows whether these attacks work here.",
    ),
]
ReuseOption = Annotated[
    bool,
    typer.Option(
        "--reuse",
        help="Judge a run that is there already although nothing shows that you made it, as one from another machine.",
    ),
]
AllOption = Annotated[
    bool,
    typer.Option(
        "--all", help="Run every attack, also where cheaper ones certified all examples already; a recipe: all_attacks."
    ),
]
MINUTES = 10.0
"""What the attacks of `seepage attack` may take where nothing else is asked for; an audit's recipe says it."""
MinutesOption = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        help="What the attacks may take: searches that need longer make fewer steps, or are left out, which is said; "
        "default: 10, and no limit with --all, a recipe of yours, or steps that you state.",
    ),
]
RetryOption = Annotated[
    bool,
    typer.Option("--retry-failed", help="Run again what failed in a finished run: attacks with an error, lost cases."),
]
MembershipOption = Annotated[
    bool,
    typer.Option("--membership", help="Also run membership inference: who was in the attacked batches."),
]
BoundsOption = Annotated[
    bool,
    typer.Option("--bounds", help="Also bound what no attacker can exceed. With --defense this is done anyway."),
]
ProveOption = Annotated[
    bool,
    typer.Option("--prove", help="Also measure the epsilon of the defense, by calling it many thousand times."),
]
RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        help="A recipe: FILE.toml or a name from `seepage list`. It may name code of its own (module:name), which is "
        "run: read a stranger's recipe first.",
        autocompletion=recipe_names,
    ),
]


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
    from seepage.core.executor import LocalExecutor

    if place is None:
        yield LocalExecutor()
        return
    word, _, address = place.partition(":")
    if word != "ray":
        raise SeepageError(f"--on takes ray, ray:ADDRESS or ray://HOST:PORT, got {place!r}; leave it out to run here")
    from seepage.integrations.ray import cluster

    with cluster(place if address.startswith("//") else address or None) as runner:
        answer_by_interrupt()  # Ray ends with exit code 1, which is a gate's, on SIGTERM and on any SystemExit
        yield runner


def tables_of(
    recipe: str | None,
    *,
    data: str | None = None,
    model: str | None = None,
    weights: str | None = None,
    client: str | None = None,
    loss: str | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    told: list[str] | None = None,
    attacks: list[str] | None = None,
    defenses: list[str] | None = None,
    settings: list[str] | None = None,
    normalize: str | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """A recipe's tables with the command line's changes; an option that was not given changes nothing.

    A model, a client, attacks and defenses may have options behind their name (see `part_of`). With a network that is
    none of this package's, or with weights, the default recipe trains nothing before the first attack: it is attacked
    as it is given.
    """
    from seepage.cli.parts import part_of
    from seepage.recipe.files import OF_TEXT, find_recipe, read_recipe
    from seepage.recipe.overrides import change, choose_part, drop_cases, put
    from seepage.registry import KINDS, models

    tables = read_recipe(find_recipe(recipe))
    if recipe is None and attacks is None and data is not None and _is_text(data, model):
        attacks = list(OF_TEXT)
    for key, names in (("attack", attacks), ("defense", defenses)):
        if names:
            parts = [part_of(name, f"--{key}", KINDS[f"{key}s"]) for name in names]
            listed = tables.get(key)
            listed = [table for table in listed if isinstance(table, dict)] if isinstance(listed, list) else []
            known = {table.get("use"): table for table in listed}
            drop_cases(tables, key)
            put(tables, key, [{**known.get(part.use, {}), **part.table()} for part in parts])
    for key, chosen in (
        ("data", None if data is None else _data_of(data)),
        ("model", None if model is None else part_of(model, "--model", KINDS["models"])),
        ("client", None if client is None else part_of(client, "--client", KINDS["clients"])),
    ):
        if chosen is not None:
            choose_part(tables, key, chosen.use)
            for option, value in chosen.options.items():
                put(tables, f"{key}.{option}", value)
    for key, value in (
        ("client.loss", loss),
        ("batch.size", batch_size),
        ("training.weights", weights),
        ("seed", seed),
        ("device", device),
        ("knowledge.told", told),
    ):
        if value is not None:
            drop_cases(tables, key.partition(".")[0])
            put(tables, key, value)
    if weights is not None or (recipe is None and model is not None and tables["model"]["use"] not in models):
        put(tables, "training.steps", 0)
    add_to_model(tables, normalize, trust=trust)
    return change(tables, settings or [])


def add_to_model(tables: dict[str, Any], normalize: str | None, *, trust: bool) -> None:
    """Put `--normalize` and `--trust` into the table of the model, in place, where they are given.

    Raises:
        SeepageError: Where the model is a saved network, and nobody trusts it.
    """
    from seepage.recipe.overrides import put
    from seepage.recipe.parts import problems_of
    from seepage.registry import Spec, is_network_file

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
    from seepage.cli.parts import part_of
    from seepage.registry import Spec

    part = part_of(text, "--data")
    if part.options and not Path(text).exists():
        spelled = " ".join(f"--set data.{name}={value}" for name, value in part.options.items())
        raise SeepageError(f"--data takes no options behind a name; write --data {part.use} {spelled}")
    return Spec(text)


def tune_by(tables: dict[str, Any], tuned: list[str] | None) -> None:
    """Add `--tune attack.OPTION=V1,V2,...` to a recipe's tables, in place; one there over the same option is replaced.

    Raises:
        SeepageError: Where it names no option or no value.
    """
    from seepage.cli.parts import pieces
    from seepage.recipe.overrides import parsed

    for setting in tuned or []:
        key, equals, text = setting.partition("=")
        values = [parsed(word) for word in pieces(text)]
        if not equals or not key.strip() or not values:
            raise SeepageError(f"--tune takes attack.OPTION=V1,V2,... such as attack.tv=1e-4,1e-3, got {setting!r}")
        plan = tables.setdefault("tune", {})
        if not isinstance(plan, dict) or not isinstance(plan.setdefault("options", {}), dict):
            raise SeepageError("[tune] of the recipe is no table with options; correct the recipe")
        plan["options"][key.strip()] = values


def minutes_of(
    minutes: float | None,
    default: float | None,
    *,
    all_attacks: bool,
    parts: list[str] | None,
    settings: list[str] | None,
) -> float | None:
    """What the attacks may take; None: no limit. Steps that somebody states are never cut.

    Args:
        minutes: As they were typed.
        default: Where nothing was typed.
        all_attacks: Whether all attacks are asked for, whatever they take.
        parts: Attacks as they were typed, perhaps with options.
        settings: Settings as they were typed.

    Raises:
        SeepageError: Where both minutes and steps were typed.
    """
    typed = [text for part in parts or [] for text in part.replace(",", ":").split(":")[1:]]
    typed += [text.strip().rpartition(".")[2] for text in settings or [] if text.strip().startswith("attack.")]
    stated = any(text.partition("=")[0].strip() == "steps" for text in typed)
    if stated and minutes is not None:
        raise SeepageError("--minutes cuts the steps of attacks, and you state them; leave one of the two out")
    return default if minutes is None and not (stated or all_attacks) else minutes


def ask_for(tables: dict[str, Any], *, membership: bool, bounds: bool, prove: bool, defended: bool) -> None:
    """Ask a recipe's tables for further sides of the verdict, with the recipe's own settings where it has them.

    Args:
        tables: The recipe's tables, which are changed.
        membership: Test who was in the batches.
        bounds: Bound what no attacker can exceed, with or without a defense.
        prove: Measure the epsilon of the defense.
        defended: A defense was named on the command line, which is bounded in any case.
    """
    if membership:
        tables.setdefault("membership", {})
    if bounds or defended:
        tables.setdefault("bounds", {})
    if bounds and isinstance(tables["bounds"], dict):
        tables["bounds"] = {"where": "all", **tables["bounds"]}
    if prove:
        tables.setdefault("epsilon", {})
