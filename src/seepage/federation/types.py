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
       +--> truth (private/, closed to attacks)                             Reconstruction
                        \________________________  align + score  ______________/
                                                         |
                           Scores of examples (scores.jsonl) --> Row per attack and case (result.json)
                                                         |
                                report.html, grid.png, the gate, the frontier, the results book

Of several clients that were summed, `Round` has the mean of their updates. A reconstruction attack receives a
`Transcript`, never the private `Batch`: the truth is out of its reach by type. A membership test is given candidates
and public examples besides.
Elsewhere in `seepage`: `audit.simulate.setting.Setting`, `federation.clients.step.Client`,
`measure.metrics.scores.Score`, `audit.row.Row`.

Who may import whom, in the order of imports, which is not that of the drawing: a folder uses those before it and none
after. Attacks, except `exposure`, use no data, no transcripts on disk, no metrics and no bounds.

    errors.py    the errors that a user sees
    base         names, storage, networks as functions, linear algebra, worker processes
    federation   data, models, clients, defenses, transcripts, truth: all that exists before an attack starts
    measure      how close a guess is; bounds and epsilon
    attacks      reconstruction, membership, exposure: what reads a transcript
    api.py       `record`, `observe`, `attack`: the drawing for one batch, from code
    audit        recipe, simulate, attack, score, verdict: the drawing for a run folder
    testing      contracts of parts of one's own
    report       page, evidence, frontier: what is made of a finished run
    recorder     beside a real training, makes `observed/`
    papers       published numbers beside ours; recorder and papers do not import each other
    cli          the commands
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import ClassVar, Literal, Protocol, Self, final, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from seepage.base.blocks import Block, check_blocks
from seepage.base.images import shown
from seepage.base.registry import Spec
from seepage.base.storage import Tensors as Tensors
from seepage.base.words import plural
from seepage.errors import SeepageError
from seepage.federation.measured import Formats, Measured, Step, entries_of_gradient, entries_of_step, format_told
from seepage.federation.sent_tensors import SentTensors, check_finite, check_fits

Architecture = Spec
"""How a model is built again: `fc2`, `torchvision:resnet18` or `module:factory`, with options."""
Status = Literal["ok", "diverged", "interrupted", "exhausted"]
Ambiguity = Literal["order", "sign", "scale"]
Space = Literal["input", "feature", "token"]
SideInformation = Literal["labels", "indices", "statistics", "auxiliary", "defense"]
Mode = Literal["train", "eval"]
Reduction = Literal["mean", "sum", "none"]
Target = Literal["class", "value", "map"]
"""What an example is trained towards: a class (a token its next one), numbers, or a class at each pixel."""
OwnTarget = Literal["label", "input"]
"""What a client holds its model's outputs against."""
StepGradient = Callable[[Tensors, Tensor], Tensors]
"""The gradient of a local step, from the weights at that step and the places `[b]` of its examples."""


# --- the client's side: its examples, its rule, the update, and what is done to it before it leaves ----------------


@dataclass(frozen=True)
class Batch:
    """Examples with their labels: a client's private ones, or an attacker's dummy, candidate or public ones.

    Attributes:
        inputs: `[n, *shape]`, float, in the data's value range (images: `[n, C, H, W]` in [0, 1]).
        labels: `[n]` int64 class numbers, or `[n, classes]` float class probabilities. Of regression `[n, k]` floats;
            of maps `[n, h, w]` int64, -100 where a pixel has no class.
        indices: `[n]` int64 places in the data set, where they are known.
    """

    inputs: Tensor
    labels: Tensor
    indices: Tensor | None = None

    def __post_init__(self) -> None:
        given = [t for t in (self.inputs, self.labels, self.indices) if t is not None]
        if any(t.ndim == 0 for t in given):
            raise SeepageError("a batch needs inputs, labels and indices with one entry per example, got a lone number")
        if len({len(t) for t in given}) != 1:
            raise SeepageError(
                f"a batch needs as many labels (and indices) as inputs, got {len(self.inputs)} "
                f"inputs and {len(self.labels)} labels; pass tensors of one length"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"<Batch: inputs {list(self.inputs.shape)}, labels {list(self.labels.shape)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the first pictures."""
        return f"<p>{len(self)} examples</p>{shown(self.inputs, self.labels)}"

    def to(self, device: torch.device | str) -> Self:
        indices = None if self.indices is None else self.indices.to(device)
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device), indices=indices)


@dataclass(frozen=True)
class Update:
    """What leaves the client in one round.

    Attributes:
        tensors: One tensor per trainable parameter, by its name and in its shape; missing ones were not sent.
        kind: `gradient`: the gradient of the mean loss. `delta`: parameters after minus before.
        rate: For a gradient computed from two checkpoints: the learning rate by which their difference was divided. It
            allows recomputing the weights after training, which are what was rounded. None: sent as a gradient.
        decayed: For two checkpoints: the share in [0, 1] by which weight decay shrank each weight, by name, where
            known. The tensors no longer contain it.
        step: For a gradient that is the inverse of a first step of an optimizer that bends it, such as Adam: that step.
            With it the weights after training, and so each entry's error, follow from the gradient as with `rate`.
        rates: The rate of each tensor over `rate`, by name, where tensors have rates of their own; 1 of those missing.
            The tensors no longer contain it.
        returned: Buffers that the client returned, by name, such as a batch norm's statistics; empty: not known.
    """

    tensors: Tensors
    kind: Literal["gradient", "delta"] = "gradient"
    rate: float | None = field(default=None, repr=False)
    decayed: dict[str, float] = field(default_factory=dict, repr=False)
    step: Step | None = field(default=None, repr=False)
    rates: dict[str, float] = field(default_factory=dict, repr=False)
    returned: Tensors = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"<Update: {self.kind} of {plural(len(self.tensors), 'tensor')}>"

    @classmethod
    def from_states(cls, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Self:
        """The update between two checkpoints of one model: `after - before`, name by name.

        Names that `after` lacks were not sent, and are not in the update.

        Raises:
            SeepageError: Where `after` has other names, or shapes, than `before`.

        >>> before, after = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
        >>> Update.from_states(before, after)
        <Update: delta of 1 tensor>
        """
        check_fits(after, before, "the state after", "the state before", partial=True)
        moved = [name for name in before if name in after and before[name].is_floating_point()]
        tensors = {name: after[name].detach() - before[name].detach() for name in moved}
        return cls(tensors, kind="delta")

    def without_decay(self, before: Mapping[str, Tensor], shares: Mapping[str, float]) -> Self:
        """The difference of weights without the part of weight decay, which shrinks each weight by a share.

        Args:
            before: The weights that were sent out.
            shares: What weight decay took off each weight, as a share of it, by name; 0 of those that are missing.

        >>> before, after = {"w": torch.ones(2)}, {"w": torch.tensor([0.75, 1.25])}
        >>> Update.from_states(before, after).without_decay(before, {"w": 0.25}).tensors["w"]
        tensor([0.0000, 0.5000])
        """
        own = {name: share for name, share in shares.items() if name in self.tensors}
        freed = {name: self.tensors[name] + share * before[name].detach() for name, share in own.items()}
        return replace(self, tensors={**self.tensors, **freed}, decayed={**self.decayed, **own})

    def at_one_rate(self, rates: Mapping[str, float]) -> Self:
        """The difference of weights as it would be had all tensors one rate, and not these times it."""
        even = {name: tensor / rates.get(name, 1.0) for name, tensor in self.tensors.items()}
        return replace(self, tensors=even, rates={name: rate for name, rate in rates.items() if name in even})

    @property
    def nbytes(self) -> int:
        """Bytes of all entries as they are."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def encoded_bytes(self, bits: int | None = None) -> int:
        """Bytes in the shortest of some plain forms, before any general compression.

        All entries; or the entries that are not zero, with a bit for each entry, or with a number of 4 bytes for each
        one sent.

        Args:
            bits: Bits of an entry, with 4 bytes for each tensor's scale; None: those of its type, and no scale.

        >>> Update({"w": torch.zeros(80)}).encoded_bytes(), Update({"w": torch.ones(80)}).encoded_bytes(bits=1)
        (0, 14)
        """
        total = 0
        for tensor in self.tensors.values():
            size, count = tensor.numel(), int((tensor != 0).sum())
            own = 8 * tensor.element_size() if bits is None else bits
            entries = min(size * own, count * own + min(size, 32 * count))  # bits
            total += -(-entries // 8) + (4 if bits is not None else 0)
        return total


@dataclass(frozen=True)
class LocalProblem:
    """What a rule computes an update from: the model as it was sent out, and the examples.

    Attributes:
        model: The architecture.
        params: The trainable parameters that the server sent.
        batch: The client's examples, or an attacker's dummy ones.
        buffers: The model's buffers; None: those of the module.
        create_graph: Keep the graph, so that the update can be differentiated in inputs and labels.
    """

    model: nn.Module
    params: Tensors
    batch: Batch
    buffers: Tensors | None = None
    create_graph: bool = False


class ClientUpdate(ABC):
    """The FL protocol on the client's side: a pure function, differentiable in `batch.inputs`.

    The client uses it on the private batch; an attack uses the same object on its dummy batch. A new rule needs
    `compute`, `as_gradient` and `separable`; what else it says of itself has a default. Whoever uses a rule asks these
    properties, never for its class. A rule that trains on a loss derives from
    `seepage.federation.clients.TrainingRule`.
    """

    @final
    def __call__(
        self,
        model: nn.Module,
        params: Tensors,
        batch: Batch,
        *,
        buffers: Tensors | None = None,
        create_graph: bool = False,
    ) -> Update:
        """Compute the update. With `create_graph` it can be differentiated in inputs and labels."""
        return self.compute(LocalProblem(model, params, batch, buffers, create_graph))

    @abstractmethod
    def compute(self, problem: LocalProblem) -> Update:
        """The update that the client sends."""

    @abstractmethod
    def as_gradient(self, update: Update, examples: int | None = None) -> Tensors:
        """The update read as a gradient of the mean loss (exact for one step, else an average).

        Args:
            update: What the client sent.
            examples: Number of examples behind it; rules that count epochs need it to know their steps.
        """

    @abstractmethod
    def separable(self, model: nn.Module) -> bool:
        """Whether the update is the mean of the updates of single examples (exact micro-batching)."""

    @property
    def loss(self) -> str:
        """The name of the loss that the client trains on."""
        return "cross_entropy"

    def loss_of(self, logits: Tensor, labels: Tensor, reduction: Reduction = "mean") -> Tensor:
        """The loss that the client trains on, of `[n, classes]` logits: a number, or `[n]` where `reduction` is none.

        Args:
            logits: What the model says: `[n, classes]`, `[n, classes, h, w]` for maps.
            labels: As `Batch.labels`.
            reduction: `mean` or `sum` over the examples, or `none`.
        """
        return F.cross_entropy(logits, labels, reduction=reduction)

    @property
    def target(self) -> OwnTarget:
        """Target of the loss: each example's label, or the example itself (an autoencoder)."""
        return "label"

    @property
    def softmax_gradient(self) -> bool:
        """Whether the loss's gradient in the logits is softmax minus label, from which labels can be inferred."""
        return self.loss == "cross_entropy"

    @property
    def one_logit(self) -> bool:
        """Whether the model has one output for two classes, whose sigmoid is the chance of the second."""
        return False

    @final
    def num_outputs(self, num_classes: int) -> int:
        """Outputs of a model for so many classes."""
        return 1 if self.one_logit else num_classes

    @property
    def mode(self) -> Mode:
        """Whether batch norm takes the statistics of the client's own batch (`train`) or the running ones (`eval`)."""
        return "train"

    @property
    def single_gradient(self) -> bool:
        """Whether the client sends the gradient of its whole batch's mean loss, in one step and nothing else."""
        return False

    @property
    def local_steps(self) -> bool:
        """Whether the client trains in local steps, whose gradients `walk` can replace one by one."""
        return False

    def walk(self, params: Tensors, examples: int, gradient: StepGradient, *, create_graph: bool = False) -> Update:
        """The update with each local step's gradient taken from `gradient`: a defense inside the client has its own.

        Args:
            params: The weights that were sent.
            examples: Number of the client's examples.
            gradient: Gives a gradient for each parameter, from weights and the places `[b]` of a step's examples.
            create_graph: Keep every step in the graph.
        """
        return Update(gradient(params, torch.arange(examples)))

    def batches(self, examples: int) -> list[Tensor]:
        """Places `[b]` of the examples of each local step, for a client with so many examples."""
        return [torch.arange(examples)]

    def reaches(self, steps: int) -> list[float]:
        """Weight of each local step's gradient in the final difference of weights, in units of the learning rate."""
        return [1.0] * steps

    def with_steps(self, steps: int) -> "ClientUpdate":
        """The rule of a client that made so many local steps; itself, where a rule has no such number."""
        return self

    def batch_coupled(self, model: nn.Module) -> bool:
        """Whether examples reach into one another's gradients, as through batch norm in train mode."""
        return not self.separable(model)

    @property
    def linear_in_gradient(self) -> bool:
        """Whether `as_gradient` is an average of gradients; not so behind Adam, which divides entry by entry."""
        return True

    @property
    def sign_only(self) -> bool:
        """Whether the update holds hardly more than each entry's sign, so that nothing in it has a slope to follow."""
        return False

    def first_order_rule(self) -> "ClientUpdate":
        """The single-gradient rule that `as_gradient` approximates; itself where the rule sends one gradient."""
        return self

    @property
    def read_as(self) -> "ClientUpdate":
        """The rule that attacks read the update by: itself, unless what it does cannot be followed by who does not
        know all of it, such as dropout's masks, or cannot be differentiated.
        """
        return self

    def without_decay(self) -> "ClientUpdate":
        """The rule that is left once a server that knows it has undone its weight decay (`undecayed`)."""
        return self

    def undecayed(self, update: Update, params: Tensors, examples: int) -> Update:
        """The update as it were without weight decay: exact for one local step, to first order in the decay for more.

        Args:
            update: What the client sent, untouched by any defense.
            params: The weights that were sent out.
            examples: Number of examples behind it.
        """
        return update

    def for_round(self, seed: int, t: int) -> "ClientUpdate":
        """The rule with the client's own randomness of round `t`, of which the attacker's copy knows nothing."""
        return self

    def max_participations(self, examples: int) -> int:
        """The most local steps of one round that use the same example, for a client with so many examples.

        A privacy accountant counts the round that many times.
        """
        return 1

    @property
    def per_client(self) -> "ClientUpdate":
        """The rule of one client; itself, unless updates of several are summed."""
        return self

    def with_per_client(self, rule: "ClientUpdate") -> "ClientUpdate":
        """A copy with another rule for each client; the other rule itself, unless updates of several are summed."""
        return rule

    @property
    def num_clients(self) -> int:
        """Number of clients whose updates are summed before the server sees them."""
        return 1

    def parts(self, batch: Batch) -> list[Batch]:
        """The batch of each client whose updates are summed before the server sees them."""
        return [batch]


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
        """The sent update, with zero for entries that the defense made up and that are no part of the gradient."""
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
        reads_examples: It reads the private examples; behind noise it therefore voids the noise's guarantee.
        only_hides: It sends every entry as it is, or as zero.
        withholds: It leaves whole tensors out of the update.
        acts_on: `update`: each client's by itself. `group`: the updates of a group, in whose sum it cancels. `view`:
            only what the server can read; the sum of all updates, which training continues with, is as without it.
        secrets: Names of its options that no attacker knows, whatever else it knows of the defense.
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
        """Transformations that an attacker who knows the defense applies to guesses, in order; none by default."""
        return ()

    def defended_rule(self, rule: ClientUpdate, model: nn.Module, sent: Tensors) -> ClientUpdate:
        """The client rule with the defense inside, as far as an attacker who knows the defense can repeat it.

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
        """A copy with this share of its noise of round `t`, as it remains in an average over rounds."""
        return self

    def mechanism(self, rounds: Sequence[int]) -> GaussianMechanism | None:
        """The mechanism of differential privacy for a client's epsilon in these rounds; None: it is none."""
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


# --- the server's side: what it sees and knows, and what an attack gets back ---------------------------------------


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
        update: What the client sent, with weight decay or the step of an optimizer undone where they are known.
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

    def __repr__(self) -> str:
        return f"<Round {self.t}: {self.update!r}, batch size {self.batch_size or 'unknown'}>"

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
        step = None if sent.step is None else sent.step.over(share)
        return replace(self, update=replace(sent, tensors=tensors, rate=rate, step=step))

    def gradient(self, client: ClientUpdate) -> Tensors:
        """The update as a gradient of the mean loss; a `delta` is divided by what the client did.

        Asking it for a tensor that was not sent raises `Inapplicable`.
        """
        found = client.as_gradient(self.update, self.batch_size)
        if found is not self.update.tensors:
            # A rate of 1e-300, which an untrusted file may state, makes of any difference more than a number can hold.
            check_finite(found, self.t, "gradient that the client's rule and update make")
        return SentTensors(found, [*self.params, *self.personal])

    def step(self, client: ClientUpdate) -> Step | None:
        """How the client's weights follow from its gradient; None where it sent a gradient and no weights."""
        update = self.update
        if update.step is not None or update.kind == "gradient":
            return update.step or (None if update.rate is None else Step.sgd(update.rate))
        # A linear rule's change of 1 in a weight shows one over the rate.
        one = client.as_gradient(Update({"": torch.ones(1, dtype=torch.float64)}, "delta"), self.batch_size)[""]
        return Step.sgd(1 / float(one.abs()))

    def formats(self, client: ClientUpdate) -> Formats:
        """The number formats that the largest tensor tells; arguments as of `measured`."""
        sent = self.update.tensors
        name = max(sent, key=lambda name: sent[name].numel())
        share = self.update.decayed.get(name, 0.0)
        return format_told(self._one(name, client), self.params.get(name), self._own(self.step(client), name), share)

    def _own(self, step: Step | None, name: str) -> Step | None:
        """The step of one tensor, whose rate may be its own."""
        return None if step is None else step.over(self.update.rates.get(name, 1.0))

    def _one(self, name: str, client: ClientUpdate) -> Tensor:
        """One tensor of the update as a gradient."""
        own = self.update.tensors[name]
        if self.update.kind == "gradient":
            return own
        return client.as_gradient(Update({name: own}, "delta"), self.batch_size)[name]

    def measured(self, client: ClientUpdate, names: Sequence[str] | None = None) -> Measured:
        """The update as a gradient with its errors, by what its step and its number formats leave.

        Args:
            client: The client's rule, linear in the gradient.
            names: Tensors that are wanted; None: all.

        >>> from seepage.federation.clients import FedSGD
        >>> before, after = torch.tensor([0.5, -0.25]), torch.tensor([0.499, -0.249])
        >>> sent = Round(0, {"w": before}, Update({"w": (before - after) / 0.1}, rate=0.1))
        >>> [f"{e:.0e}" for e in sent.measured(FedSGD()).error["w"].tolist()]
        ['9e-08', '4e-08']
        """
        shared, formats = self.step(client), self.formats(client)
        value, error, raw = dict[str, Tensor](), dict[str, Tensor](), dict[str, tuple[Tensor, Tensor]]()
        for name in self.update.tensors if names is None else names:
            gradient, share, before = self._one(name, client), self.update.decayed.get(name, 0.0), self.params.get(name)
            step = self._own(shared, name)
            own = format_told(gradient, before, step, share, like=formats)
            if step is None or before is None:
                value[name], error[name] = entries_of_gradient(gradient, own)
            else:
                value[name], error[name], *kept = entries_of_step(gradient, before, step, share, own)
                raw |= {name: (kept[0], kept[1])} if step.bent else {}
        return Measured(value, error, shared, formats, raw)


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
        blocks: One-hot blocks of a table's row, which the encoding of its words made.
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
    blocks: tuple[Block, ...] = ()

    def __post_init__(self) -> None:
        low, high = self.value_range
        if not low < high:
            raise SeepageError(f"value_range must rise, got {self.value_range}; pass (low, high)")
        check_blocks(self.blocks, self.input_shape)

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


def in_short(transcript: Transcript) -> str:
    """A transcript in one line, as its `repr`."""
    of, known = transcript.knowledge, ", ".join(transcript.knowledge.known)
    what = (
        f"{plural(len(transcript), 'round')} of {type(of.model).__name__}, {of.client}, inputs {list(of.input_shape)}"
    )
    return f"<{type(transcript).__name__}: {what}{f'; {known} known' if known else ''}>"


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

    def __repr__(self) -> str:
        sure = "" if self.certified is None else f", {int(self.certified.sum())} certified"
        return f"<Reconstruction: {self.space} {list(self.inputs.shape)}{sure}, {self.status}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: what came back, and the first pictures of it."""
        what = {"input": "guesses of examples", "feature": "inputs of an inner layer", "token": "tokens"}[self.space]
        sure = "" if self.certified is None else f"; {int(self.certified.sum())} certified as exact"
        words = "".join(f"<br>{escape(note)}" for note in self.notes)
        return f"<p>{len(self)} {what}{sure}; {self.status}{words}</p>{shown(self.inputs, self.labels)}"
