"""What the options of named things mean, with their units: from docstrings, and for what presets share, from here."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from seepage.attacks import ATTACKS
from seepage.clients import CLIENTS
from seepage.defenses import DEFENSES
from seepage.models import MODELS
from seepage.simulate.partition import PARTITIONS

SHARED = {
    "activation": "weight of the mean activation of each layer; 0: without",
    "batch_norm": "weight of the distance to the batch-norm statistics, beside a distance of weight 1; 0: without",
    "by": "whether the largest entries are chosen over all tensors together, or in each",
    "enhance": "whether a network trained on the auxiliary images sharpens the result",
    "generator": "your own generator, as module:factory; none: one is trained on the auxiliary images",
    "group": "weight of the agreement of the restarts; 0: without",
    "hidden": "neurons of a hidden layer",
    "k": "how far ahead the second gradient is taken, in units of the unknowns",
    "keep": "folder in which what was trained is kept for the next time",
    "l1": "whether the absolute distance is a mean or a sum over entries",
    "l2": "weight of the candidates' squared norm",
    "label_weight": "weight of the squared distance between prediction and label",
    "labels": "rule that names the labels from the update; joint: they are searched for; given: they are told",
    "largest": "most embeddings that are inverted; none: all",
    "latent": "numbers that a generated image is made from",
    "latent_steps": "steps on the generator's inputs; the rest goes to its weights",
    "layer": "the fully connected layer to read, by name; none: the first one that will do",
    "line_search": "whether L-BFGS searches along its direction (strong Wolfe)",
    "local": "how an update of several local steps is matched: through all of them, or as a mean of gradients",
    "lr": "learning rate of the attack's own optimizer, in units of its unknowns per step; not the client's",
    "match": "weight of the distance between gradients",
    "matching": "weight of gradient matching beside the features; 0: without",
    "microbatch": "examples per chunk, in whose memory the batch is matched; none: all at once",
    "mode": "fast: this package's way; published: the paper's steps and constants",
    "noise": "standard deviation of the noise on each step, as a share of the step; 0: without",
    "ratio": "share of the entries that are matched, 0 to 1: the largest",
    "restarts": "searches from different starts; the one of the lowest objective is returned",
    "sample": "entries from which the limit of the largest is estimated; none: from all",
    "scale": "how many times smaller each side of the searched image is",
    "schedule": "how the learning rate changes over the steps",
    "sigma": "standard deviation of the client's noise; none: as told of the defense, else 0.1",
    "signed": "whether steps follow the sign of the gradient alone",
    "start": "what candidates start from",
    "steps": "steps of the attack's optimizer, per restart",
    "training": "steps for which a network is trained on the auxiliary images",
    "tv": "weight of total variation, the mean absolute difference of neighboring pixels; 0: without",
    "weight": "weight of the gradient further ahead, 0 to 1, in the blended direction; 0: without",
    "weight_lr": "learning rate on the generator's weights",
    "weights": "file with the generator's weights",
    "width": "channels of the generator's first layers",
}
"""Options that several attacks have in common, and that their papers' presets pass on."""


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: Its name.
        default: As it would be written, or an empty string where it must be given.
        about: What it means, with its unit and range; the words it takes, where these are few.
    """

    name: str
    default: str
    about: str


def options_of(make: Callable[..., Any], skip: int = 0) -> list[Option]:
    """The options of a class or function, in order.

    Args:
        make: It.
        skip: Leading parameters that the program passes itself.

    Example:
        >>> from seepage.clients import FedSGD
        >>> options_of(FedSGD)[0].name, options_of(FedSGD)[0].default
        ('mode', "'train'")
    """
    said = _documented(make)
    parameters = list(inspect.signature(make).parameters.values())[skip:]
    hints = get_type_hints(make.__init__ if inspect.isclass(make) else make)
    return [
        Option(
            p.name,
            "" if p.default is p.empty else repr(p.default),
            _with_words(said.get(p.name) or SHARED.get(p.name, ""), hints.get(p.name)),
        )
        for p in parameters
    ]


def _documented(make: Callable[..., Any]) -> dict[str, str]:
    """The entries under `Args:` of a docstring, each on one line and without markup."""
    found = re.search(r"^Args:\n((?:    .*\n|\n)+)", f"{inspect.getdoc(make) or ''}\n", re.MULTILINE)
    entries: dict[str, str] = {}
    name = ""
    for line in found.group(1).splitlines() if found else ():
        head = re.match(r"    (\w+): (.*)", line)
        if head:
            name = head.group(1)
            entries[name] = head.group(2)
        elif name and line.strip():
            entries[name] += f" {line.strip()}"
    return {name: text.replace("`", "") for name, text in entries.items()}


def _with_words(about: str, hint: Any) -> str:
    """The meaning, followed by the words that an option takes, where it does not name them itself."""
    words = [str(word) for word in get_args(hint)] if get_origin(hint) is Literal else []
    unsaid = [word for word in words if word not in about]
    return f"{about.rstrip('.')} (one of {', '.join(words)})" if unsaid else about


def explained(kind: str) -> dict[str, list[Option]]:
    """All options of a kind of `seepage list`, by name; empty for kinds without options."""
    makers: dict[str, dict[str, Callable[..., Any]]] = {
        "attacks": {name: entry.make for name, entry in ATTACKS.items()},
        "clients": dict(CLIENTS),
        "defenses": dict(DEFENSES),
        "models": dict(MODELS),
        "partitions": dict(PARTITIONS),
    }
    skip = 2 if kind == "models" else 0
    return {name: options_of(make, skip) for name, make in makers.get(kind, {}).items()}
