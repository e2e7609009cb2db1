"""Which part of a network the clients train: some layers, or a low-rank adapter (`peft`, in `seepage[adapters]`)."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from seepage.base.signatures import problems_with
from seepage.errors import SeepageError, not_installed, short
from seepage.federation.models.normalize import statistics_of

KEYS = ("trainable", "frozen", "adapter", "normalize", "classes_last")
"""Options of every model: `[model] use = "fc2", frozen = ["0.*"], adapter = { rank = 8, targets = ["0"] }`, what it
does to its inputs first, and whether the last axis of its outputs is that of the classes."""


class Adapter:
    """Options of a low-rank adapter, the recipe's `model.adapter`.

    Args:
        rank: r, columns of A's output.
        targets: Names of the layers that get one, or how their names end; None: every fully connected layer but the
            last one.
        alpha: The adapter's output is scaled with `alpha / rank`; None: `rank`, so with 1.
        full: Layers that are trained in full beside it, as a new head is; how their names end.
    """

    def __init__(
        self, rank: int = 8, targets: Sequence[str] | None = None, alpha: float | None = None, full: Sequence[str] = ()
    ) -> None:
        if rank < 1 or (alpha is not None and not alpha > 0):
            raise SeepageError(f"an adapter needs rank >= 1 and alpha > 0, got {rank} and {alpha}; correct the recipe")
        self.rank, self.targets, self.alpha, self.full = rank, targets, alpha, full

    def attach(self, model: nn.Module) -> nn.Module:
        """The model with the adapter in it, and all else frozen.

        Raises:
            SeepageError: Where `peft` is not installed, or has no adapter for these layers.
        """
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError as error:
            raise not_installed("peft, which adapters need,", "adapters") from error
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        targets = list(self.targets if self.targets is not None else linear[:-1])
        for option, names in (("targets", targets), ("full", self.full)):
            known = [name for name, _ in model.named_modules() if name]
            strange = next((n for n in names if not any(k == n or k.endswith(f".{n}") for k in known)), None)
            if strange is not None or (option == "targets" and not names):
                what = f"has no layer {short(strange)}" if names else "has no fully connected layer but the last"
                raise SeepageError(f"the model {what}, which model.adapter.{option} names; name its layers")
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha or self.rank,
            target_modules=targets,
            modules_to_save=list(self.full) or None,
        )
        try:
            inject_adapter_in_model(config, model)  # in place
        except (ValueError, TypeError, NotImplementedError) as error:
            reason = (str(error).splitlines() or [""])[0][:160]
            raise SeepageError(f"peft has no adapter for these layers ({reason}); name others in targets") from error
        return model


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's own options, and those that every model has.

    >>> split_options({"hidden": 8, "frozen": ["0.*"]})
    ({'hidden': 8}, {'frozen': ['0.*']})
    """
    own = {name: value for name, value in options.items() if name not in KEYS}
    return own, {name: options[name] for name in KEYS if name in options}


def part_problems(part: Mapping[str, Any], what: str) -> list[str]:
    """Sentences on mistakes in the options of the part that is trained."""
    found = []
    for key in ("trainable", "frozen"):
        names = part.get(key, [])
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            found.append(f"{what}: {key} must be a list of names such as ['features.*'], got {short(names)}")
    if "trainable" in part and "frozen" in part:
        found.append(f"{what}: give trainable or frozen, and not both")
    if not isinstance(part.get("classes_last", False), bool):
        found.append(f"{what}: classes_last must be true or false, got {short(part['classes_last'])}")
    if "adapter" in part:
        table = part["adapter"]
        wrong = not isinstance(table, Mapping)
        found += [f"{what}: adapter must be a table such as {{ rank = 8 }}"] if wrong else []
        found += [] if wrong else problems_with(Adapter, table, f"{what}: adapter")
    if "normalize" in part:
        try:
            statistics_of(part["normalize"])
        except SeepageError as error:
            found.append(f"{what}: {error}")
    return found


def train_part(model: nn.Module, part: Mapping[str, Any]) -> nn.Module:
    """Freeze what a client does not train, in place, and put an adapter in.

    Args:
        model: The network.
        part: `trainable` or `frozen`: names of parameters, with wildcards as in `features.*`; `adapter`: options of an
            `Adapter`. With an adapter `trainable` names what is trained beside it.

    Raises:
        SeepageError: For a name that no parameter has, and where nothing would be trained.

    >>> net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    >>> [name for name, p in train_part(net, {"frozen": ["0.*"]}).named_parameters() if p.requires_grad]
    ['1.weight', '1.bias']
    """
    problems = part_problems(part, "model")
    if problems:
        raise SeepageError(f"{problems[0]}; correct the recipe")
    if "adapter" in part:
        model = Adapter(**part["adapter"]).attach(model)
    for key, trained in (("trainable", True), ("frozen", False)):
        if key in part:
            _set(model, part[key], key, trained=trained, others="adapter" not in part)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SeepageError("no parameter of the model would be trained; freeze fewer")
    return model


def _set(model: nn.Module, patterns: Sequence[str], key: str, *, trained: bool, others: bool) -> None:
    """Train, or freeze, the parameters of these names; those of other names the other way round, where `others`."""
    own = dict(model.named_parameters())
    unused = next((one for one in patterns if not any(fnmatchcase(name, one) for name in own)), None)
    if unused is not None:
        raise SeepageError(f"no parameter of the model is called {short(unused)}, which model.{key} names; correct it")
    for name, parameter in own.items():
        if any(fnmatchcase(name, one) for one in patterns):
            parameter.requires_grad_(trained)
        elif others and trained:
            parameter.requires_grad_(False)
