"""What is wrong with a part of a recipe, found without running anything."""

from dataclasses import replace

from seepage.base.registry import KINDS, Spec, clients, datasets, is_dotted, is_network_file, models
from seepage.base.signatures import problems_with
from seepage.errors import SeepageError
from seepage.federation import data
from seepage.federation.clients import alone
from seepage.federation.clients.losses import own_loss
from seepage.federation.clients.own_step import own_step
from seepage.federation.data.dataset import Options
from seepage.federation.models.trained_part import part_problems, split_options

_REGISTRIES = {registry.kind: registry for registry in KINDS.values()}


def problems_of(part: Spec, key: str) -> list[str]:
    """Sentences on mistakes in a part of a recipe.

    Args:
        part: The part.
        key: The recipe's table it comes from, such as `attack`.

    Raises:
        SeepageError: For an unknown name, and where the part's own checks refuse its values.
    """
    what = f"{key} {part.use!r}"
    if key == "data":
        return _data_problems(part, what)
    if key == "client":
        return _client_problems(part, what)
    if key == "model":
        own, trained = split_options(part.options)
        wrong = part_problems(trained, what)
        return wrong + _model_problems(replace(part, options=own), what)
    return _REGISTRIES[key].problems(part, what)


def _model_problems(part: Spec, what: str) -> list[str]:
    if is_network_file(part.use):
        unknown = sorted(set(part.options) - {"trust"})
        if part.options.get("trust") is not True:
            return [
                f"{what} is a saved network, and to read one can run code that is in it; if it is yours, add --trust"
            ]
        return [f"{what}: a saved network has no option {unknown[0]!r}; leave it out"] if unknown else []
    if part.use not in models and (models.knows(part.use) or models.is_foreign(part.use)):
        return []  # checked when it is built
    return _REGISTRIES["model"].problems(part, what)


def _client_problems(part: Spec, what: str) -> list[str]:
    rule, number = alone(part)
    found = [] if own_step(rule) else clients.problems(rule, what)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        found.append(f"{what}: clients must be a whole number from 1 up, got {number!r}")
    loss = rule.options.get("loss")
    if not found and isinstance(loss, str) and is_dotted(loss):
        own_loss(loss)  # a mistake is reported before anything is computed
    return found


def _data_problems(part: Spec, what: str) -> list[str]:
    """Sentences on mistakes that show without loading the data: a missing file, or options that do not fit."""
    try:
        loader = data.named(part)
    except SeepageError as error:
        return [str(error), *problems_with(Options, part.options, what)]
    found = datasets.problems(loader, what)
    if not found and "seed" in part.options:
        found += seed_problems(part.options["seed"], f"{what}: seed")
    return found


def seed_problems(seed: int, what: str) -> list[str]:
    """PyTorch's generators take 63 bits."""
    return [] if 0 <= seed < 2**63 else [f"{what} must be from 0 to 2**63 - 1, got {seed}"]
