"""What a client does to its update before sending it, and what an attacker who knows of that makes of it.

Import these from `seepage.types`, which shows how they hang together.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Generator, Tensor, nn

from seepage.client_types import Batch, ClientUpdate, Tensors, Update


@dataclass(frozen=True)
class Noise:
    """Independent noise on every entry of an update that is read as a gradient of the mean loss.

    Attributes:
        deviation: Standard deviation in each entry.
        clip: Largest norm of that gradient before the noise; None: none.
        unit: The gradient was scaled to norm 1 before the noise.
        law: Its distribution.
    """

    deviation: float
    clip: float | None = None
    unit: bool = False
    law: Literal["gaussian", "laplace"] = "gaussian"


@dataclass(frozen=True)
class GaussianMechanism:
    """What an accountant of differential privacy counts of a defense.

    Attributes:
        unit: What it protects: whether one `example`, or one `update` of a client, was there at all.
        clip: Largest norm of what one unit adds; None: nothing bounds it, so no epsilon holds.
        sigma: Noise multiplier, the noise's deviation over `clip`: one number where it is the same in all rounds
            (counted exactly), else one for each of the rounds asked about (counted by Renyi divergences).
        every_step: Noise is added in each local step that uses the unit; else once in a round.
    """

    unit: Literal["example", "update"]
    clip: float | None
    sigma: float | tuple[float, ...]
    every_step: bool = False


class DefenseModel(ABC):
    """What an attacker who knows of a defense does to a guess's gradient before it is compared with what was sent.

    Attributes:
        scales_whole: It scales the whole gradient. That holds whatever other defenses do afterwards, but only where
            the defense comes first; other models hold as long as nothing but `only_hides` defenses come after.
        forges: Some of what was sent is no part of the gradient (see `credible`).
    """

    scales_whole: ClassVar[bool] = False
    forges: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        """The dummy gradient as the defense would have sent it, given the `target` it sent; differentiable."""

    def suited_to(self, *, scale_free: bool, absolute: bool, single_gradient: bool) -> "DefenseModel | None":
        """The model for use with one distance and client; None where it does better without.

        Args:
            scale_free: The distance is blind to the gradient's length.
            absolute: The distance adds up absolute differences.
            single_gradient: The client sends one gradient, so that lengths of updates are lengths of gradients.
        """
        return self

    def merged(self, other: "DefenseModel") -> "DefenseModel | None":
        """One model in place of this one and that of a later defense; None: both are applied."""
        return None

    def credible(self, target: Tensors) -> Tensors:
        """What was sent, with zero for entries that are no part of the gradient, where the defense makes such up."""
        return target


class Likelihood(ABC):
    """Minus the log chance that a defense sends what was seen, for the gradient of a guess; up to a constant.

    For defenses whose randomness or rounding is no Gaussian noise (which `Noise` describes).
    """

    @abstractmethod
    def __call__(self, dummy: Tensors, sent: Tensors) -> Tensor:
        """A scalar `[]`, differentiable in the gradient `dummy` of the guess; least where `sent` is likeliest."""


class Defense(ABC):
    """What a client does to its update before sending it. All randomness comes from `generator`.

    Only `__call__` has to be written. What else the package needs to know of a defense is stated by the defense itself,
    by overriding the attributes and methods below; each default is the careful one.

    Attributes:
        tensorwise: Each tensor is changed by itself, with randomness of its own: some can be made alone.
        from_batch: It makes the update anew from the client's examples, whatever it is given: it comes first.
        reads_examples: It looks at the private examples, so behind noise it undoes what the noise guarantees.
        only_hides: It sends every entry as it is, or as zero.
        withholds: It leaves whole tensors out of the update.
        acts_on: `update`: each client's by itself. `group`: the updates of a group, in whose sum it cancels. `view`:
            only what the server can read; the sum of all updates, which training goes on with, is as without it.
        secrets: Names of its options that no attacker is told, whatever else it knows of the defense.
        follows_training: What it does in a round depends on earlier ones, by `begin` and `remember`.
        needs_neighbor: It uses the plain update of the client before it in the group (`ClientView.neighbor`).
    """

    tensorwise: ClassVar[bool] = False
    from_batch: ClassVar[bool] = False
    reads_examples: ClassVar[bool] = True
    only_hides: ClassVar[bool] = False
    withholds: ClassVar[bool] = False
    acts_on: ClassVar[Literal["update", "group", "view"]] = "update"
    secrets: ClassVar[tuple[str, ...]] = ()
    follows_training: ClassVar[bool] = False
    needs_neighbor: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, update: Update, client: "ClientView", *, generator: Generator) -> Update:
        """Return the defended update: same names (but for those it withholds), shapes and dtypes."""

    def stages(self) -> tuple["Defense", ...]:
        """The defenses it is composed of, from left to right; itself alone, unless it is a composition."""
        return (self,)

    def begin(self, losses: Sequence[float], memory: float | None) -> "Defense":
        """The defense as a client uses it in one round of a training; itself, unless it `follows_training`.

        Args:
            losses: The validation loss of each model that the server sent out so far, on examples that are public.
            memory: What `remember` gave when the client last took part; None: it did not yet.
        """
        return self

    def remember(self, sent: Update) -> float | None:
        """The number that a client keeps for its next round, made of what it sent alone; None: none."""
        return None

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        """What an attacker who knows of it does to guesses, in order. None by default: it is not followed."""
        return ()

    def defended_rule(self, rule: ClientUpdate, model: nn.Module, sent: Tensors) -> ClientUpdate:
        """What the client computes with the defense inside, as far as an attacker who knows of it can repeat that.

        Args:
            rule: What the client computes without.
            model: The architecture.
            sent: The update that was seen; empty where only the kind of rule is asked for.
        """
        return rule

    def added_noise(self, rule: ClientUpdate, examples: float, t: int) -> Noise | None:
        """The noise on one client's update of round `t`, in units of the gradient it is read as; None: no such noise.

        Args:
            rule: What one client computes.
            examples: Number of examples behind its update.
            t: Round.
        """
        return None

    def likelihood(self, rule: ClientUpdate, examples: float) -> Likelihood | None:
        """How likely it sends an update, in units of the gradient it is read as; None: not said, or Gaussian noise.

        Args:
            rule: What one client computes.
            examples: Number of examples behind its update.
        """
        return None

    def with_less_noise(self, share: float, t: int) -> "Defense":
        """The same with this share of its noise of round `t`, which is what is left in an average over rounds."""
        return self

    def mechanism(self, rounds: Sequence[int]) -> GaussianMechanism | None:
        """What is counted of it for the epsilon of a client in these rounds; None: it promises no such thing."""
        return None

    def wire_bytes(self, update: Update) -> int:
        """Bytes that a defended update takes on the wire."""
        return update.encoded_bytes()


@dataclass(frozen=True)
class ClientView:
    """What a client has at hand when it defends its update.

    Attributes:
        model: The architecture.
        params: The weights it was sent.
        batch: Its private examples.
        rule: What it computed.
        buffers: The model's buffers.
        t: Round.
        number: Its place among the clients whose updates are summed.
        clients: How many these are.
        neighbor: The update of the client before it among these, without any defense, for defenses of groups that ask
            for it (`needs_neighbor`).
    """

    model: nn.Module
    params: Tensors
    batch: Batch
    rule: ClientUpdate
    buffers: Tensors = field(default_factory=dict)
    t: int = 0
    number: int = 0
    clients: int = 1
    neighbor: Update | None = None
