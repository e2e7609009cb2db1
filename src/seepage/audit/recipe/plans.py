"""What a recipe says of the setting: how the model is trained, by whom, and which examples are attacked.

Configuration alone. `seepage.audit.simulate` does what these say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from seepage.base.registry import Spec, membership_tests
from seepage.base.signatures import bind, problems_with
from seepage.errors import Problems, SeepageError, unknown
from seepage.federation.transcript.designs import DESIGNS, Design, check_rounds, make_design
from seepage.federation.transcript.vertical import ServerStep

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Chance = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class RecipeTable:
    """A table of a recipe. What an option may be, its annotation says; any other value is refused."""

    table: ClassVar[str]

    def __init_subclass__(cls, table: str) -> None:
        cls.table = table

    def __post_init__(self) -> None:
        bind(type(self), {one.name: getattr(self, one.name) for one in fields(self)}, f"[{self.table}]")

    @classmethod
    def read(cls, table: Any) -> Self:
        """What an unchecked table of a recipe says.

        Raises:
            SeepageError: For mistakes in it; `Problems` with all of them, where the annotations show them.
        """
        if not isinstance(table, Mapping):
            raise SeepageError(f"[{cls.table}] must be a table, got {table!r}")
        found = problems_with(cls, table, f"[{cls.table}]")
        if found:
            raise Problems("the recipe has mistakes:", found)
        return cls(**table)


@dataclass(frozen=True, kw_only=True)
class Training(RecipeTable, table="training"):
    """How the model was trained before the audited round.

    Args:
        steps: Steps, one batch each; 0 leaves the model freshly initialized.
        lr: Learning rate.
        optimizer: `sgd`, with momentum 0.9, or `adam`.
        batch_size: Examples per step.
        init: How the model starts: `default`, each layer's own way, or `wide`: all parameters uniform from -0.5 to
            0.5, as in the code of Deep Leakage from Gradients. Parameters of normalization layers are left alone.
        weights: A file of weights to start from (`.safetensors`, or a `state_dict` of `torch.save`), or `pretrained`:
            what torchvision or timm offer for the model.
    """

    steps: Natural = 0
    lr: Positive = 0.02
    batch_size: Count = 32
    optimizer: Literal["sgd", "adam"] = "sgd"
    init: Literal["default", "wide"] = "default"
    weights: str | None = None


@dataclass(frozen=True, kw_only=True)
class Federation(RecipeTable, table="federation"):
    """How the model was trained by clients before the audited round.

    Args:
        rounds: Rounds before the audited one: the stage at which it is attacked.
        clients: Clients in all.
        share: Share of them that takes part in each round, drawn anew; one at least.
        examples: Examples of a client that take part in a round, drawn anew; None: all it holds.
        lr: The server's learning rate; None: 1 for differences of weights, 0.1 for gradients.
    """

    rounds: Natural = 0
    clients: Count = 100
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    examples: Count | None = None
    lr: Positive | None = None

    @property
    def per_round(self) -> int:
        """Clients that take part in a round."""
        return max(1, round(self.share * self.clients))


@dataclass(frozen=True, kw_only=True)
class Batches(RecipeTable, table="batch"):
    """The private batches that are attacked.

    Args:
        size: Examples per batch.
        count: Batches, each attacked by itself; more of them make the interval honest. With `[rounds]`: of how many
            rounds the attacks that read one round are given each by itself.
        skip: Batches, or clients of a federation, that are passed over first: what another run with this seed attacks.
    """

    size: Count = 1
    count: Count = 1
    skip: Natural = 0


@dataclass(frozen=True, kw_only=True)
class Rounds(RecipeTable, table="rounds"):
    """Rounds over one data set with known indices, in place of independent batches: the `[rounds]` of a recipe.

    Args:
        design: `random` draws (the paper's protocol), shuffled `epochs`, the server's own `partitions`, or the `whole`
            data set in every round, as a client's full batch.
        count: Number of rounds.
        samples: N, examples that all parties hold.
        optimizer: How the server changes the weights meanwhile; `none` leaves them frozen.
        lr: Its learning rate.
    """

    design: str = "random"
    count: Count = 60
    samples: Count = 800
    optimizer: Literal["none", "sgd", "adam"] = "none"
    lr: Positive = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.design not in DESIGNS:
            raise unknown("design of rounds", self.design, DESIGNS)
        if self.samples < 2 and self.design != "whole":
            raise SeepageError(f"rounds.samples must be at least 2 of the design {self.design}, got {self.samples}")

    @property
    def server(self) -> ServerStep:
        return ServerStep(optimizer=self.optimizer, lr=self.lr)

    def drawn(self, batch_size: int, seed: int) -> Design:
        """The design: which samples each round holds.

        Raises:
            SeepageError: Where the batches do not fit the data set, or the rounds would only repeat themselves.
        """
        design = make_design(self.design, self.samples, batch_size, seed)
        for problem in check_rounds(design, self.count):
            raise SeepageError(f"{problem}; lower rounds.count")
        return design


@dataclass(frozen=True, kw_only=True)
class BoundsPlan(RecipeTable, table="bounds"):
    """Upper bounds for any attacker are computed as well: the `[bounds]` of a recipe.

    Args:
        where: `defended`: where clients use a defense; `all`: everywhere, to be told why there is none elsewhere.
        level: The false positive rate at which membership is bounded.
        candidates: The attacker knows that each example is one of so many, equally likely ones; None: how likely a
            blind guess is follows from examples that are neither trained on nor attacked.
        public: Such examples at most.
    """

    where: Literal["defended", "all"] = "defended"
    level: Chance = 0.01
    candidates: Count | None = None
    public: Natural = 512


@dataclass(frozen=True, kw_only=True)
class EpsilonPlan(RecipeTable, table="epsilon"):
    """The epsilon of each defense is measured as well, by calling it on canaries: the `[epsilon]` of a recipe.

    Args:
        stated: The claimed epsilon of the defense, over all rounds; None: only what is computed from its
            options is compared with the measurement.
        delta: The delta of both.
        calls: Calls of the defense, at most. The measured epsilon cannot exceed about the logarithm of them.
        seconds: Time for one defense.
    """

    stated: Annotated[float, Field(ge=0)] | None = None
    delta: Chance = 1e-5
    calls: Annotated[int, Field(ge=1000)] = 60_000
    seconds: Positive = 60.0


@dataclass(frozen=True, kw_only=True)
class MembershipPlan(RecipeTable, table="membership"):
    """Whether candidates were in the attacked batches is tested as well: the `[membership]` of a recipe.

    The candidates of a batch are its examples and as many others. Those others, and the public examples of the
    attacker, are neither trained on nor attacked.

    Args:
        tests: Membership tests, each by its name or as `module:thing` of your own.
        public: Public examples at most; half of them teach a test, the others calibrate it.
        level: Share of others that may be named by mistake; a p-value up to it names a candidate. With c calibration
            examples no p-value is under 1 / (c + 1).
    """

    tests: Annotated[Sequence[str], Field(min_length=1)] = ("span_or_filter",)
    public: Annotated[int, Field(ge=4)] = 800
    level: Chance = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tests", tuple(self.tests))  # a list, where it comes from TOML
        if len(set(self.tests)) < len(self.tests):
            raise SeepageError(f"membership.tests names a test twice: {list(self.tests)}; name each once")
        for use in self.tests:
            membership_tests.problems(Spec(use), "membership.tests")
