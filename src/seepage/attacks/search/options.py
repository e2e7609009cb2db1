"""Options that the named attacks have in common, documented once, and the decorator that gives a preset its share."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter
from typing import Any, Literal, TypeVar, get_type_hints

from seepage.attacks.base import Attack
from seepage.attacks.search.directions import Direction, Plain
from seepage.attacks.search.distances import Distance
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.labels import LABEL_RULES
from seepage.attacks.search.layers import LayerPrior
from seepage.attacks.search.optimizers import OptimizerSettings, Schedule
from seepage.attacks.search.parameters import Parameterization, Pixels, Start
from seepage.attacks.search.priors import Prior, TotalVariation
from seepage.attacks.search.problem import Local

LabelRule = Literal["auto", "bias", "count", "given", "joint", "minimum", "refined", "sign"]
Made = TypeVar("Made", bound=Attack)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What the searches of many papers have in common. A preset takes those it names to `preset`.

    Args:
        steps: Steps of the attack's optimizer, per restart.
        lr: Learning rate of the attack's own optimizer, in units of its unknowns per step; not the client's.
        tv: Weight of total variation, the mean absolute difference of neighboring pixels, in the units the preset's
            unknowns have: those of normalized images, `(x - 0.5) / 0.25`, unless it says otherwise; 0: without.
        schedule: How the learning rate changes over the steps.
        start: What candidates start from.
        labels: Rule that names the labels from the update; joint: they are searched for; given: they are known.
        restarts: Searches from different starts; the one of the lowest objective is returned.
        line_search: Whether L-BFGS searches along its direction (strong Wolfe).
        microbatch: Examples per chunk, in whose memory the batch is matched; none: all at once.
        local: How an update of several local steps is matched: through all of them, or as a mean of gradients.
    """

    steps: int = 300
    lr: float = 1.0
    tv: float = 0.0
    schedule: Schedule = "constant"
    start: Start = "normal"
    labels: LabelRule = "auto"
    restarts: int = 1
    line_search: bool = False
    microbatch: int | None = None
    local: Local = "unrolled"

    @property
    def pixels(self) -> Pixels:
        """The inputs themselves as unknowns."""
        return Pixels(start_from=self.start)

    @property
    def normalized(self) -> Pixels:
        """Normalized images as unknowns, the units most published constants are given in: `(x - 0.5) / 0.25`."""
        return Pixels(start_from=self.start, mean=0.5, std=0.25)

    def matching(
        self,
        distance: Distance,
        optimizer: OptimizerSettings,
        parameters: Parameterization,
        *priors: Prior | LayerPrior,
        direction: Direction = Plain(),  # noqa: B008 - frozen and without state
        project: bool = False,
    ) -> GradientMatching:
        """The engine with these options and parts; total variation, if any, comes before the other priors.

        Its weight is one for the unknowns' units, in which papers state it: of normalized images where they are such.
        """
        smooth = (TotalVariation(self.tv, unit=parameters.std),) if self.tv > 0 else ()
        return GradientMatching(
            distance=distance,
            optimizer=optimizer,
            steps=self.steps,
            priors=(*smooth, *priors),
            labels=LABEL_RULES[self.labels],
            parameters=parameters,
            direction=direction,
            schedule=self.schedule,
            project=project,
            restarts=self.restarts,
            microbatch=self.microbatch,
            local=self.local,
        )


def preset(*names: str, **defaults: Any) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Give a function that takes groups of options, such as `SearchOptions`, those options as keywords of its own.

    They come first in the signature that `help` and recipes see, and their meaning is copied from the group's docstring
    under `Args:`. Options of a group that are not taken keep its own defaults and cannot be set.

    Args:
        names: Options that are taken with the default of their group.
        defaults: Options that are taken with a default of the paper's own.

    >>> @preset("restarts", steps=20)
    ... def mine(search: SearchOptions, *, weight: float = 1.0) -> GradientMatching: ...
    >>> [str(parameter) for parameter in inspect.signature(mine).parameters.values()]
    ['steps: int = 20', 'restarts: int = 1', 'weight: float = 1.0']
    """

    def decorated(make: Callable[..., Made]) -> Callable[..., Made]:
        hints = get_type_hints(make)
        own = inspect.signature(make).parameters.values()
        groups = [hints[p.name] for p in own if p.kind is not Parameter.KEYWORD_ONLY]
        kinds = {name: hint for group in groups for name, hint in get_type_hints(group).items()}
        fallback = {field.name: field.default for group in groups for field in fields(group)}
        taken = defaults | {name: fallback[name] for name in names}
        shared = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=kinds[name])
            for name, value in taken.items()
        ]
        plain = [p.replace(annotation=hints[p.name]) for p in own if p.kind is Parameter.KEYWORD_ONLY]
        signature = inspect.Signature([*shared, *plain], return_annotation=hints["return"])

        @wraps(make)
        def build(**options: Any) -> Made:
            given = signature.bind(**options)
            given.apply_defaults()
            values = given.arguments
            made = [
                group(**{field.name: values.pop(field.name) for field in fields(group) if field.name in taken})
                for group in groups
            ]
            return make(*made, **values)

        build.__signature__ = signature  # type: ignore[attr-defined]
        build.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()} | {
            "return": hints["return"]
        }
        build.__doc__ = _with_meanings(make.__doc__ or "", groups, taken)
        return build

    return decorated


def _with_meanings(doc: str, groups: list[Any], shared: dict[str, Any]) -> str:
    """A docstring whose `Args:`, its last section, explain the shared options too."""
    meanings: dict[str, str] = {}
    for group in groups:
        section = inspect.getdoc(group).partition("Args:\n")[2].partition("\n\n")[0]  # type: ignore[union-attr]
        # An entry is a line at the section's own depth, with the deeper lines that follow it.
        meanings |= {m[1]: m[0].rstrip() for m in re.finditer(r"^    (\w+): .*\n?(?:     .*\n?)*", section, re.M)}
    text = inspect.cleandoc(doc)
    head, args, own = text.partition("\n\nArgs:\n")
    return "\n".join([head, "", "Args:", *(meanings[name] for name in shared), *([own] if args else [])])
