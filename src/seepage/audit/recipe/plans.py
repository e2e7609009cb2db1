"""What a recipe says of the setting: how the model is trained, by whom, and which examples are attacked.

Configuration alone. `seepage.audit.simulate` does what these say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seepage.base.registry import Spec, membership_tests
from seepage.errors import SeepageError, short, unknown
from seepage.federation.transcript.designs import DESIGNS, Design, check_rounds, make_design
from seepage.federation.transcript.vertical import ServerStep


@dataclass(frozen=True, kw_only=True)
class Training:
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

    steps: int = 0
    lr: float = 0.02
    batch_size: int = 32
    optimizer: Literal["sgd", "adam"] = "sgd"
    init: Literal["default", "wide"] = "default"
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in ("sgd", "adam") or self.steps < 0 or self.lr <= 0 or self.batch_size < 1:
            raise SeepageError(
                f"training needs steps >= 0, lr > 0, batch_size >= 1 and sgd or adam, got {self}; correct the recipe"
            )
        if self.init not in ("default", "wide"):
            raise SeepageError(f"training.init must be default or wide, got {self.init!r}; correct the recipe")


@dataclass(frozen=True, kw_only=True)
class Federation:
    """How the model was trained by clients before the audited round.

    Args:
        rounds: Rounds before the audited one: the stage at which it is attacked.
        clients: Clients in all.
        share: Share of them that takes part in each round, drawn anew; one at least.
        examples: Examples of a client that take part in a round, drawn anew; None: all it holds.
        lr: The server's learning rate; None: 1 for differences of weights, 0.1 for gradients.
    """

    rounds: int = 0
    clients: int = 100
    share: float = 0.1
    examples: int | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        wrong = []
        if self.rounds < 0:
            wrong.append(f"rounds >= 0, got {self.rounds}")
        if self.clients < 1:
            wrong.append(f"clients >= 1, got {self.clients}")
        if not 0 < self.share <= 1:
            wrong.append(f"a share above 0 and up to 1, got {self.share}")
        if self.examples is not None and self.examples < 1:
            wrong.append(f"examples >= 1, got {self.examples}")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            wrong.append(f"lr > 0, got {self.lr}")
        if wrong:
            raise SeepageError(f"[federation] needs {'; '.join(wrong)}; correct the recipe")

    @property
    def per_round(self) -> int:
        """Clients that take part in a round."""
        return max(1, round(self.share * self.clients))


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The private batches that are attacked.

    Args:
        size: Examples per batch.
        count: Batches, each attacked by itself; more of them make the interval honest. With `[rounds]`: of how many
            rounds the attacks that read one round are given each by itself.
        skip: Batches, or clients of a federation, that are passed over first: what another run with this seed attacks.
    """

    size: int = 1
    count: int = 1
    skip: int = field(default=0, metadata={"quiet": True})

    def __post_init__(self) -> None:
        if self.size < 1 or self.count < 1:
            raise SeepageError(f"batch.size and batch.count must be at least 1, got {self.size} and {self.count}")
        if self.skip < 0:
            raise SeepageError(f"batch.skip must be at least 0, got {self.skip}")


@dataclass(frozen=True, kw_only=True)
class TunePlan:
    """Options of attacks that are chosen on other batches before the scored ones are attacked: a recipe's `[tune]`.

    Args:
        options: `attack.OPTION` to the values that are tried; of several options every combination. An option goes to
            every attack that takes it.
        count: Batches that each is tried on. None of their examples is in a scored batch.
    """

    options: Mapping[str, Sequence[Any]]
    count: int = 1

    def __post_init__(self) -> None:
        wrong = [key for key in self.options if not key.startswith("attack.") or key == "attack."]
        if wrong or not self.options:
            named = f", got {short(wrong[0])}" if wrong else ""
            raise SeepageError(f"tune.options are of attacks, such as attack.tv{named}; correct the recipe")
        for key, values in self.options.items():
            if isinstance(values, str) or not values:
                raise SeepageError(f"tune needs at least one value of {short(key)}; write {short(key)}=1e-4,1e-3")
        if all(len(values) == 1 for values in self.options.values()):
            key = next(iter(self.options))
            raise SeepageError(
                f"tune has one value of {short(key)} and nothing to choose; name several, or set {short(key)}"
            )
        if self.count < 1:
            raise SeepageError(f"tune.count must be at least 1, got {self.count}")


@dataclass(frozen=True, kw_only=True)
class Rounds:
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
    count: int = 60
    samples: int = 800
    optimizer: Literal["none", "sgd", "adam"] = "none"
    lr: float = 1e-4

    def __post_init__(self) -> None:
        least = 1 if self.design == "whole" else 2
        if self.count < 1 or self.samples < least:
            raise SeepageError(
                f"rounds.count must be at least 1 and rounds.samples at least {least}, got {self.count} and "
                f"{self.samples}"
            )
        if self.design not in DESIGNS:
            raise unknown("design of rounds", self.design, DESIGNS)
        _ = self.server

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
class BoundsPlan:
    """Upper bounds for any attacker are computed as well: the `[bounds]` of a recipe.

    Args:
        where: `defended`: where clients use a defense; `all`: everywhere, so that numbers sent are counted against
            private numbers where there is none.
        level: The false positive rate at which membership is bounded.
        candidates: The attacker knows that each example is one of so many, equally likely ones; None: how likely a
            blind guess is follows from examples that are neither trained on nor attacked.
        public: Such examples at most; they are the prior of bounds in decibels.
        seconds: Time for the bounds of one update that are estimated.
    """

    where: Literal["defended", "all"] = "defended"
    level: float = 0.01
    candidates: int | None = None
    public: int = 512
    seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.where not in ("defended", "all"):
            raise SeepageError(f"bounds.where must be defended or all, got {self.where!r}; correct the recipe")
        wrong = []
        if not 0 < self.level < 1:
            wrong.append(f"level between 0 and 1, got {self.level}")
        if self.candidates is not None and self.candidates < 1:
            wrong.append(f"candidates >= 1, got {self.candidates}")
        if self.public < 0:
            wrong.append(f"public >= 0, got {self.public}")
        if not 0 < self.seconds < float("inf"):
            wrong.append(f"seconds > 0, got {self.seconds}")
        if wrong:
            raise SeepageError(f"[bounds] needs {'; '.join(wrong)}; correct the recipe")


@dataclass(frozen=True, kw_only=True)
class EpsilonPlan:
    """The epsilon of each defense is measured as well, by calling it on canaries: the `[epsilon]` of a recipe.

    Args:
        stated: The claimed epsilon of the defense, over all rounds; None: only what is computed from its
            options is compared with the measurement.
        delta: The delta of both.
        calls: Calls of the defense, at most. The measured epsilon cannot exceed about the logarithm of them.
        seconds: Time for one defense.
    """

    stated: float | None = None
    delta: float = 1e-5
    calls: int = 60_000
    seconds: float = 60.0

    def __post_init__(self) -> None:
        wrong = []
        if self.stated is not None and not 0 <= self.stated < float("inf"):
            wrong.append(f"stated >= 0, got {self.stated}")
        if not 0 < self.delta < 1:
            wrong.append(f"delta between 0 and 1, got {self.delta}")
        if self.calls < 1000:
            wrong.append(f"calls >= 1000, got {self.calls}")
        if not 0 < self.seconds < float("inf"):
            wrong.append(f"seconds > 0, got {self.seconds}")
        if wrong:
            raise SeepageError(f"[epsilon] needs {'; '.join(wrong)}; correct the recipe")


@dataclass(frozen=True, kw_only=True)
class MembershipPlan:
    """Whether candidates were in the attacked batches is tested as well: the `[membership]` of a recipe.

    The candidates of a batch are its examples and as many others. Those others, and the public examples of the
    attacker, are neither trained on nor attacked.

    Args:
        tests: Membership tests, each by its name or as `module:thing` of your own.
        public: Public examples at most; half of them teach a test, the others calibrate it.
        level: Share of others that may be named by mistake; a p-value up to it names a candidate. With c calibration
            examples no p-value is under 1 / (c + 1).
    """

    tests: Sequence[str] = ("matched_filter",)
    public: int = 800
    level: float = 0.01

    def __post_init__(self) -> None:
        if isinstance(self.tests, str) or not all(isinstance(use, str) for use in self.tests) or not self.tests:
            raise SeepageError(f'membership.tests must be a list such as ["matched_filter"], got {self.tests!r}')
        object.__setattr__(self, "tests", tuple(self.tests))  # a list, where it comes from TOML
        if len(set(self.tests)) < len(self.tests):
            raise SeepageError(f"membership.tests names a test twice: {list(self.tests)}; name each once")
        if not 0 < self.level < 1:
            raise SeepageError(f"membership.level must lie between 0 and 1, got {self.level}; 0.01 is usual")
        if self.public < 4:
            raise SeepageError(f"membership.public must be at least 4, got {self.public}; some hundreds are usual")
        for use in self.tests:
            membership_tests.problems(Spec(use), "membership.tests")
