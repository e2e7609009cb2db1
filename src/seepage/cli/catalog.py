"""Everything that has a name, for `seepage list`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from seepage.attacks import ATTACKS
from seepage.clients import CLIENTS
from seepage.data import DATA
from seepage.defenses import DEFENSES
from seepage.metrics import METRICS
from seepage.models import LIBRARIES, MODELS
from seepage.recipe.case import list_recipes
from seepage.simulate.partition import PARTITIONS


def catalog() -> dict[str, list[dict[str, str]]]:
    """Names with what a reader needs to choose: `{"attacks": [{"name", "needs", "paper", "cost", ...}], ...}`."""
    libraries = [{"name": f"{library}:NAME", "about": f"any classifier of {library}"} for library in LIBRARIES]
    own = {"name": "module:factory", "about": "your own: factory(input_shape, num_classes) returns a torch.nn.Module"}
    files = {"name": "PATH", "about": "an image folder with a folder per class, a .zip with labels.csv, or a .npz"}
    return {
        "attacks": [
            {
                "name": name,
                "needs": entry.needs,
                "paper": entry.paper,
                "cost": entry.cost,
                "options": _options(entry.make),
                "about": _about(entry.make),
            }
            for name, entry in ATTACKS.items()
        ],
        "defenses": _makers(DEFENSES),
        "clients": _makers(CLIENTS),
        "partitions": _makers(PARTITIONS),
        "models": [*_makers(MODELS, skip=2), *libraries, own],
        "data": [*({"name": name, "about": about} for name, about in DATA.items()), files],
        "metrics": [{"name": name, "about": m.description, "unit": m.unit} for name, m in METRICS.items()],
        "recipes": [
            *({"name": name, "about": about} for name, about in list_recipes().items()),
            {"name": "FILE.toml", "about": "your own"},
        ],
    }


def _makers(makers: Mapping[str, Callable[..., Any]], skip: int = 0) -> list[dict[str, str]]:
    return [
        {"name": name, "about": _about(make), "options": _options(make, skip)} for name, make in sorted(makers.items())
    ]


def _about(make: Callable[..., Any]) -> str:
    """The first paragraph of a docstring."""
    return (inspect.getdoc(make) or "").partition("\n\n")[0].replace("\n", " ")


def _options(make: Callable[..., Any], skip: int = 0) -> str:
    """Options with their defaults: `steps=300, lr=1.0`."""
    parameters = list(inspect.signature(make).parameters.values())[skip:]
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
