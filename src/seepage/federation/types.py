r"""The words of this package, and the way of a batch through it. Everything else passes these types around.

    case of a recipe --> Setting: data, model, weights, and whose examples are attacked
                            |
                       private Batch
                            |
       +--------------------+--> Client.send(model, params, batch)
       |                           ClientUpdate --> Update --> Defense --> Update --+
       |                           (FedSGD | ...)                                Round (+ indices?)
       |                                                                            | x T
       |                                                       Transcript + Knowledge   <- all an attacker
       |                                                                            |      sees (observed/)
       |                                                                         Attack
       |                                                                            |
       +--> truth (private/, only metrics opens it)                         Reconstruction
                        \________________________  align + score  ______________/
                                                         |
                           Scores of examples (scores.jsonl) --> Row per attack and case (result.json)
                                                         |
                                report.html, grid.png, the gate, the frontier, the results book

An attack receives a `Transcript`, never a `Batch`: the truth is out of its reach by type. What is not defined here:
`simulate.setting.Setting`, `clients.step.Client`, `metrics.scores.Score`, `audit.row.Row`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self, runtime_checkable

from torch import Tensor, nn

from seepage.base.registry import Spec
from seepage.errors import SeepageError
from seepage.federation.client_types import (
    Batch,
    ClientUpdate,
    ClientView,
    Defense,
    DefenseModel,
    GaussianMechanism,
    Likelihood,
    LocalProblem,
    Mode,
    Noise,
    OwnTarget,
    Reduction,
    StepGradient,
    Target,
    Tensors,
    Update,
)
from seepage.federation.fitting import SentTensors, check_finite, check_fits

__all__ = [
    "Ambiguity", "Architecture", "Batch", "ClientUpdate", "ClientView", "Defense", "DefenseModel",
    "GaussianMechanism", "Knowledge", "Likelihood", "LocalProblem", "Mode", "Noise", "OwnTarget", "Reconstruction",
    "Reduction", "Round", "Status", "StepGradient", "Target", "Tensors", "SideInformation", "Transcript", "Update",
]  # fmt: skip

Architecture = Spec
"""How a model is built again: `fc2`, `torchvision:resnet18` or `module:factory`, with options."""
Status = Literal["ok", "diverged", "interrupted", "exhausted"]
Ambiguity = Literal["order", "sign", "scale"]
Space = Literal["input", "feature", "token"]
SideInformation = Literal["labels", "indices", "statistics", "auxiliary", "defense"]


@dataclass(frozen=True)
class Round:
    """One round as the server sees it: the model that it sent out and the update that it received.

    Each parameter of the model is one of four things: *sent*, in the update; *withheld*, trained by the client and not
    in the update; *personal*, where the server never saw its weights either; or *frozen*, in neither `params` nor
    `personal`, at the weights of `Knowledge.model`.

    Attributes:
        t: The round's number in its transcript.
        params: The trainable parameters the client started from, as far as the server knows them.
        buffers: The model's buffers (batch-norm statistics) at that time; may be empty.
        update: What the client sent.
        batch_size: Number of examples behind the update, where the server knows it.
        size_inferred: That number was read off the update itself. It is the least that can be: examples with slopes in
            proportion look like one.
        labels: `[n]` the true labels, only when the attacker knows them.
        indices: `[n]` data-set indices, only when the protocol shows them (vertical FL).
        personal: Names of parameters that are the client's own: neither weights nor gradients of theirs are known.
    """

    t: int
    params: Tensors
    update: Update
    buffers: Tensors = field(default_factory=dict)
    batch_size: int | None = None
    labels: Tensor | None = None
    indices: Tensor | None = None
    personal: frozenset[str] = frozenset()
    size_inferred: bool = False

    def __post_init__(self) -> None:
        check_fits(self.update.tensors, self.params, "the update", "the model", partial=True)
        check_finite(self.update.tensors, self.t)

    @property
    def withheld(self) -> tuple[str, ...]:
        """Parameters that the client trained and did not send, from weights that the server knows."""
        return tuple(name for name in self.params if name not in self.update.tensors)

    def over(self, share: float) -> Self:
        """A copy with the update divided by a number, where it is known to be this multiple of the client's."""
        if share == 1:
            return self
        sent = self.update
        rate = None if sent.rate is None else share * sent.rate  # (after - before) / lr over s is that over (s lr)
        tensors = {name: tensor / share for name, tensor in sent.tensors.items()}
        return replace(self, update=replace(sent, tensors=tensors, rate=rate))

    def gradient(self, client: ClientUpdate) -> Tensors:
        """The update as a gradient of the mean loss; a `delta` is divided by what the client did.

        Asking it for a tensor that was not sent raises `Inapplicable`.
        """
        found = client.as_gradient(self.update, self.batch_size)
        if found is not self.update.tensors:
            # A rate of 1e-300, which an untrusted file may state, makes of any difference more than a number can hold.
            check_finite(found, self.t, "gradient that the client's rule and update make")
        return SentTensors(found, [*self.params, *self.personal])


@dataclass(frozen=True)
class Knowledge:
    """Everything the attacker knows beside the rounds themselves. The report prints it.

    Attributes:
        model: The architecture. Its own parameters are not used: each round carries them.
        client: The client's rule, as an object: what it computes from a batch, and how.
        input_shape: Shape of one example, e.g. `(3, 32, 32)`.
        num_classes: Number of classes; of values, how many numbers a target has.
        value_range: Smallest and largest value an input can take.
        known: What the attacker knows beyond model, client rule, shapes and updates.
        defense: The defense the client applied, when the attacker knows it.
        auxiliary: Examples `[m, *shape]` that are not private, when the attacker has some.
        architecture: How to build the model again: registry name or dotted path, with options.
        target: What the examples are trained towards.
    """

    model: nn.Module
    client: ClientUpdate
    input_shape: tuple[int, ...]
    num_classes: int
    value_range: tuple[float, float] = (0.0, 1.0)
    known: frozenset[SideInformation] = frozenset()
    defense: Defense | None = None
    auxiliary: Tensor | None = None
    architecture: Architecture | None = None
    target: Target = "class"

    def __post_init__(self) -> None:
        low, high = self.value_range
        if not low < high:
            raise SeepageError(f"value_range must rise, got {self.value_range}; pass (low, high)")

    @property
    def num_outputs(self) -> int:
        """Outputs of the model for an example, or for each pixel of its map."""
        return self.client.num_outputs(self.num_classes)

    @property
    def softmax_labels(self) -> bool:
        """Whether each example has a class, and the loss's gradient in its outputs is softmax minus that label."""
        return self.target == "class" and self.client.softmax_gradient


@runtime_checkable
class Transcript(Protocol):
    """A victim's rounds as the server saw them. Rounds may be made anew each time they are asked for."""

    @property
    def knowledge(self) -> Knowledge: ...

    def __len__(self) -> int: ...

    def __getitem__(self, t: int) -> Round: ...


@dataclass(frozen=True)
class Reconstruction:
    """What an attack got back.

    Attributes:
        inputs: `[k, *shape]` guesses; `k` may be less than the number of private examples.
        labels: `[k]` int64 guessed labels, or None.
        space: `input`: guesses of the examples. `feature`: guesses of an inner layer's input. `token`: `[k, 1]` token
            numbers that the examples hold, each once, in no order.
        indices: `[k]` data-set slots, when the protocol shows them; then no matching is needed.
        ambiguity: What the method cannot know and a score may therefore fit.
        objective: `[k]` the attack's own objective per guess (lower is better), or None.
        certified: `[k]` bool: guesses that the attack proves exact without the truth; None: it cannot certify.
        inner: Quantities it found on the way, `[k, d]` by their name in the paper; NaN where unknown.
        status: `ok`: converged or exact. `exhausted`: the step budget ended first.
        history: `(step, objective)` of the best restart.
        cost: Work done, e.g. `{"evaluations": 300}`. Seconds are measured by the audit.
        notes: Sentences for the report, e.g. how many rows are identifiable.
    """

    inputs: Tensor
    labels: Tensor | None = None
    space: Space = "input"
    indices: Tensor | None = None
    ambiguity: frozenset[Ambiguity] = frozenset({"order"})
    objective: Tensor | None = None
    certified: Tensor | None = None
    inner: Mapping[str, Tensor] = field(default_factory=dict)
    status: Status = "ok"
    history: tuple[tuple[int, float], ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.inputs)
