"""Recipes: flat TOML whose tables are the constructor arguments of one object each.

    name = "mine"
    seed = 0
    all_attacks = false                        whether attacks also run where all examples are certified already
    undefended = true                          whether each case with a defense is attacked without it as well
    [data]      use = "album"                  a name or a path, and the options of `data.load`
    [model]     use = "fc2"                    a name or `module:factory`, and its options
    [training]  steps = 200                    `plans.Training`: how the model got where it is
    [federation] rounds = 200, clients = 100   `plans.Federation`: rounds of clients before the audited one
    [partition] use = "dirichlet", alpha = 0.5 who of them holds what
    [client]    use = "fedsgd"                 and its options; clients = 3: only the mean of so many is seen
    [batch]     size = 8, count = 1            `Batches`: the private batches that are attacked
    [rounds]    design = "random", count = 60  `plans.Rounds`: one data set, batches of known indices (vertical FL)
    [knowledge] known = ["labels", "defense"]   `SideInformation`: what the attacker knows beyond the protocol
    [auxiliary] use = "photos", count = 500   `auxiliary.Auxiliary`: images of the attacker's own, none of them private
    [[defense]] use = "sparsify", keep = 0.1   none or more, applied left to right
    [[attack]]  use = "dlg", steps = 20        one or more
    [membership] tests = ["span_or_filter"]    `plans.MembershipPlan`: also test who was in the attacked batches
    [bounds]    where = "all"                  `plans.BoundsPlan`: upper bounds for any attacker are computed as well
    [epsilon]   stated = 8.0                   `plans.EpsilonPlan`: the defense's epsilon is measured by calling it
    [score]     recovered_likeness = 0.4       `Scoring`: thresholds, further metrics
    [grid]      "model.use" = ["fc2", "convnet"]   one audit case per combination
    [[case]]    name = "vertical", ...         one more case: the tables above, changed by these

All mistakes are reported at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from seepage.attacks.base import Attack
from seepage.audit.recipe.auxiliary import Auxiliary
from seepage.audit.recipe.plans import (
    Batches,
    BoundsPlan,
    EpsilonPlan,
    Federation,
    MembershipPlan,
    RecipeTable,
    Rounds,
    Training,
)
from seepage.base.limits import EXACT_DB, GAIN_DB, LIKENESS, Limits
from seepage.base.registry import Spec, attacks, defenses
from seepage.errors import unknown
from seepage.federation.clients import make_client
from seepage.federation.defenses import joined
from seepage.federation.types import ClientUpdate, Defense

_SIDE_INFORMATION = ("labels", "indices", "defense")


@dataclass(frozen=True, kw_only=True)
class AttackerKnowledge(RecipeTable, table="knowledge"):
    """What the attacker knows beyond model, client rule, shapes, batch size and updates.

    Args:
        known: Any of `labels`, `indices` (with `[rounds]`: which examples each round holds) and `defense` (what the
            client does to its update, with its options).
    """

    known: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "known", tuple(self.known))  # a list, where it comes from TOML
        for item in self.known:
            if item not in _SIDE_INFORMATION:
                raise unknown("side information in knowledge.known", item, _SIDE_INFORMATION)


@dataclass(frozen=True, kw_only=True)
class Scoring(RecipeTable, table="score"):
    """Thresholds of the summary. Beyond their ranges a gate would be open or closed whatever was recovered.

    Args:
        recovered_likeness: Likeness to the guess from which an image counts as recovered.
        recovered_gain_db: Decibels over its own mean from which what is no image counts as recovered.
        exact_db: PSNR over which an example counts as exact.
        lpips: Also compute LPIPS, where its weights are on this machine.
        metrics: Further metrics, each by its name or as `module:function` of your own.
        names: Let results have the names of your data and classes, and pages without pictures its paths: they are names
            of files and folders, and may say who the examples are.
    """

    recovered_likeness: Annotated[float, Field(ge=0, le=1)] = LIKENESS
    recovered_gain_db: Annotated[float, Field(ge=0, le=60)] = GAIN_DB
    exact_db: Annotated[float, Field(ge=0, le=149)] = EXACT_DB
    lpips: bool = False
    metrics: Sequence[str] = ()
    names: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "metrics", tuple(self.metrics))  # a list, where it comes from TOML
        if self.metrics:
            from seepage.measure.metrics import find_metric

            for use in self.metrics:
                find_metric(use)  # a mistake is reported before anything is computed

    @property
    def limits(self) -> Limits:
        """From where on an example counts as recovered, and as exact."""
        return Limits(self.recovered_likeness, self.recovered_gain_db, self.exact_db)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One case of an audit, fully resolved: no grid is left in it."""

    # In this order they are written down, and from that text a run has its name.
    name: str = "audit"
    seed: int = 0
    device: str = "cpu"
    all_attacks: bool = False
    undefended: bool = False
    data: Spec = Spec("album")  # noqa: RUF009
    model: Spec = Spec("fc2")  # noqa: RUF009
    client: Spec = Spec("fedsgd")  # noqa: RUF009
    training: Training = Training()  # noqa: RUF009
    batch: Batches = Batches()  # noqa: RUF009
    knowledge: AttackerKnowledge = AttackerKnowledge()
    score: Scoring = Scoring()
    defense: tuple[Spec, ...] = ()
    attack: tuple[Spec, ...] = ()
    auxiliary: Auxiliary | None = None
    rounds: Rounds | None = None
    federation: Federation | None = None
    partition: Spec = Spec("iid")  # noqa: RUF009
    membership: MembershipPlan | None = None
    bounds: BoundsPlan | None = None
    epsilon: EpsilonPlan | None = None
    # These say which of a recipe's cases this is, and are not written down.
    case: str = "case"
    varied: frozenset[str] = frozenset()  # the tables that the grid chose for it
    twin: str | None = None  # the case that is this one without its defense
    control: bool = False  # run for the sake of such a case alone: what is found here is no finding

    @property
    def architecture(self) -> Spec:
        return self.model

    def make_client(self) -> ClientUpdate:
        return make_client(self.client)

    def make_defense(self) -> Defense | None:
        return joined([defenses.build(part) for part in self.defense])

    @property
    def bounded(self) -> bool:
        """Whether upper bounds are asked for here."""
        return self.bounds is not None and (self.bounds.where == "all" or bool(self.defense))

    def make_attack(self, part: Spec) -> Attack:
        attack: Attack = attacks.build(part)
        return attack
