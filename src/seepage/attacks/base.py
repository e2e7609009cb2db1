"""What an attack is, what it needs of a transcript, and how it reports its progress."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, final, runtime_checkable

from torch import Tensor

from seepage.base.blocks import settled
from seepage.base.checkpoint import Checkpoint, Resumable, run_steps
from seepage.base.nn import input_layer, token_table, vocabulary_of
from seepage.errors import Inapplicable, refuse, short
from seepage.federation.sent_tensors import not_sent
from seepage.federation.types import Knowledge, Reconstruction, Round, Tensors, Transcript

__all__ = ["Attack", "Checkpoint", "Inapplicable", "Needs", "Progress", "Silent", "ignore", "refuse", "run_resumable"]

MATCHING = "a matching attack such as inverting_gradients"
"""What most refusals recommend: it applies to any model and any rule."""
MATCHING_NAMES = ("inverting_gradients", "gradient_matching")
TARGETS = {"class": "classes", "value": "values", "map": "maps of classes"}
"""What examples are trained towards, in words."""
TOKENS_INSTEAD = "use token_sequences, or audit the network behind the embedding with embedded inputs as its data"
"""The same where inputs are token numbers, which matching cannot follow."""


SIGNS_LEAVE = (
    "read what every optimizer leaves: the classes and the statistics of batch norms, which seepage record names, and "
    "members, with the membership test matched_filter"
)
"""What to do where the signs of a gradient alone are left."""


@runtime_checkable
class Progress(Protocol):
    """The audit's side of a running attack: shows how far it is, and keeps its checkpoints."""

    def report(self, done: int, total: int, objective: float) -> None:
        """`done` of `total` steps; `objective` is the best so far."""

    def load(self) -> Checkpoint | None:
        """The checkpoint that an interrupted run of this attack left, or None."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint, replacing the last one."""


class Silent:
    """Progress that nobody watches: nothing is shown, nothing is kept."""

    def report(self, done: int, total: int, objective: float) -> None:
        pass

    def load(self) -> Checkpoint | None:
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        pass


ignore = Silent()


class Shown(Silent):
    """Progress for a callable with (done, total); nothing is kept."""

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self._show = show

    def report(self, done: int, total: int, objective: float) -> None:
        self._show(done, total)


def run_resumable(
    search: Resumable,
    steps: int,
    advance: Callable[[int], float],
    progress: Progress,
    *,
    note: Callable[[int, float], None] = lambda step, value: None,
    every: int | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> tuple[int, bool]:
    """`run_steps` from the search's checkpoint to its end; as it goes it is reported, and its checkpoints are saved.

    Args:
        search: Whose state is saved, and restored before the first step.
        steps: Steps in all.
        advance: Makes one step, given the number of steps before it, and returns the objective.
        progress: Shows the search, and keeps its checkpoints.
        note: Called before the checkpoint is made, at the same steps in every run: for the search's history.
        every: Steps between two notes; None: a hundredth of all.
        ended: Whether the search is over early.

    Returns:
        The steps made in all, and whether they were interrupted.
    """

    def show(step: int, value: float) -> None:
        progress.report(step, steps, value)
        progress.save(search.checkpoint(step))

    first = search.resume(progress.load())
    return run_steps(search, first, steps, advance, note, show, every=every, ended=ended)


@dataclass(frozen=True)
class SingleRound:
    """A transcript of one round that an attack made of what it saw, to hand to another attack.

    Attributes:
        knowledge: What the other attack knows.
        observed: The round.
    """

    knowledge: Knowledge
    observed: Round

    def __len__(self) -> int:
        return 1

    def __getitem__(self, t: int) -> Round:
        if t != 0:
            raise IndexError(t)
        return self.observed


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What must hold of a transcript for an attack to say anything about it; declared once, checked once.

    A need is switched on by its reason: the half of the refusal's sentence that is the attack's own. The other half,
    and the remedy, are the same for all attacks and stand here. Needs are checked in the order of the fields: first
    what lies in the model, which no further fact can mend, then the client's rule, then what the attacker knows.

    Attributes:
        text: All of it in words, for `seepage list`.
        input_layer: The first layer is fully connected and reads the input itself; its weight was sent.
        bias: The first layer has a bias, and that was sent too; the reason says for what, as in
            `has no bias {to divide by}`.
        every_tensor: All parameters were sent, none frozen or withheld: `{the recursion goes through every layer}`.
        weights: All weights are known: what cannot be done where some are the client's own, as in `so {no ...}`.
        images: Examples are images `[C, H, W]`: `{feature inversion} needs images`.
        differentiable: The model can be differentiated along its input, which an embedding of whole numbers cannot.
        linear_in_gradient: The update is an average of gradients. The reason says what is lost where the client's
            optimizer divides each entry by a size of its own, as Adam does: `..., so {no row mixes examples}`.
        gradient: The update is one gradient, and no difference of weights: `a difference of weights {...}`.
        uncoupled: Examples do not reach into one another's gradients. The reason says what batch norm in train mode
            does: `batch norm in train mode makes {every column a mixture of the batch}`.
        classes: Each example has a class, no values and no map of classes: `the targets are values, and {every class is
            tried}`.
        softmax_gradient: The client's loss has the gradient softmax minus label in the logits, as cross-entropy has:
            `the client's loss is no plain cross-entropy, and {the recursion starts from ...}`.
        batch_size: How many examples are behind the update is known: `the batch size is unknown, and {...}`.
        single_example: The update comes from one example: `{the recursion solves for one example}, and 3 are mixed`.
        instead: What to use where the model or the rule is in the way.
    """

    text: str = ""
    input_layer: bool = False
    bias: str | None = None
    every_tensor: str | None = None
    weights: str | None = "the network cannot be run as the client ran it"
    images: str | None = None
    differentiable: bool = False
    linear_in_gradient: str | None = None
    gradient: str | None = None
    uncoupled: str | None = None
    classes: str | None = None
    softmax_gradient: str | None = None
    batch_size: str | None = None
    single_example: str | None = None
    instead: str = MATCHING

    def check(self, knowledge: Knowledge, observed: Round) -> None:
        """Raise `Inapplicable` with the first need that does not hold of this round."""
        self._check_model(knowledge, observed)
        self.check_rule(knowledge, observed)
        self._check_side_information(observed)
        if not any(bool(tensor.any()) for tensor in observed.update.tensors.values()):
            raise refuse("zero_update")(
                "the update is zero everywhere, so there is nothing to attack",
                "check that the client trained, or use another round",
            )

    def _check_model(self, knowledge: Knowledge, observed: Round) -> None:
        if self.input_layer:
            layer = input_layer(knowledge.model, observed.params, knowledge.input_shape)
            if layer is None:
                raise refuse("input_not_read")(
                    "the model's first layer is not a fully connected one that reads the input itself",
                    f"use {self.instead}",
                )
            if self.bias is not None and layer.bias is None:
                raise refuse("no_bias")(
                    f"the model's first fully connected layer has no bias {self.bias}", f"use {self.instead}"
                )
            for name in [layer.weight] if self.bias is None or layer.bias is None else [layer.weight, layer.bias]:
                if name not in observed.update.tensors:
                    raise not_sent(name, [*observed.params, *observed.personal])
        self._check_sent(knowledge, observed)
        if self.images is not None and len(knowledge.input_shape) != 3:
            shape = knowledge.input_shape
            raise refuse("no_images")(
                f"{self.images} needs images (channels, height, width), and an example here has shape {shape}",
                f"use {self.instead}",
            )
        if self.differentiable and vocabulary_of(knowledge.model) is not None:
            table = token_table(knowledge.model)
            named = "a parameter that the network indexes" if table is None else f"the table {table[0]!r}"
            raise refuse("tokens")(f"{named} looks up whole numbers, which have no gradient to follow", TOKENS_INSTEAD)

    def _check_sent(self, knowledge: Knowledge, observed: Round) -> None:
        if self.every_tensor is not None:
            own = [name for name, _ in knowledge.model.named_parameters()]
            absent = [name for name in own if name not in observed.update.tensors]
            if absent:
                raise refuse("not_sent")(
                    f"{len(absent)} of {len(own)} tensors were not sent, such as {short(absent[0])}, and "
                    f"{self.every_tensor}",
                    f"use {MATCHING}, which matches what was sent",
                )
        if self.weights is not None and observed.personal:
            raise refuse("own_weights")(
                f"the weights of {len(observed.personal)} parameters, such as {short(min(observed.personal))}, are the "
                f"client's own and were never seen, so {self.weights}",
                "use linear, which reads the first layer alone, or observe a round whose weights are all known",
            )

    def check_rule(self, knowledge: Knowledge, observed: Round) -> None:
        """The same for the client's rule alone, whatever the model is and the attacker knows."""
        lost = self.linear_in_gradient or ("there is no slope to follow" if self.differentiable else None)
        if lost is not None and knowledge.client.sign_only:
            raise refuse("signs_only")(
                f"the update holds hardly more than the sign of each entry of a gradient, so {lost}", SIGNS_LEAVE
            )
        if self.linear_in_gradient is not None and not knowledge.client.linear_in_gradient:
            raise refuse("divided_entries")(
                f"the client's optimizer divides each entry by a size of its own, so {self.linear_in_gradient}",
                f"use {self.instead}",
            )
        if self.gradient is not None and observed.update.kind == "delta":
            raise refuse("weight_difference")(
                f"a difference of weights {self.gradient}",
                f"observe one SGD step with its learning rate, or use {self.instead}",
            )
        if self.uncoupled is not None and knowledge.client.batch_coupled(knowledge.model):
            raise refuse("batch_norm")(f"batch norm in train mode makes {self.uncoupled}", f"use {self.instead}")
        if self.classes is not None and knowledge.target != "class":
            raise refuse("no_classes")(
                f"the targets are {TARGETS[knowledge.target]}, and {self.classes}", f"use {self.instead}"
            )
        if self.softmax_gradient is not None and not knowledge.softmax_labels:
            why = "the client's loss is no plain cross-entropy"
            if knowledge.target != "class":
                why = f"the targets are {TARGETS[knowledge.target]}"
            raise refuse("no_softmax_gradient")(f"{why}, and {self.softmax_gradient}", f"use {self.instead}")

    def _check_side_information(self, observed: Round) -> None:
        if self.batch_size is not None and observed.batch_size is None:
            raise refuse("no_batch_size")(
                f"the batch size is unknown, and {self.batch_size}", "name it with --batch-size"
            )
        if self.single_example is not None and observed.batch_size != 1:
            raise refuse("several_examples")(
                f"{self.single_example}, and {observed.batch_size or 'an unknown number'} are mixed in this update",
                f"use {self.instead}",
            )


class Attack(ABC):
    """A frozen, keyword-only dataclass of hyperparameters; its `repr` is its provenance.

    An attack reads a `Transcript` and nothing else. It leaves the model as it found it (parameters, buffers, mode,
    hooks), and the same transcript and seed give the same bits on a CPU.

    A subclass declares what it `needs` and writes `run`. Where a condition shows only in the data, or where reading
    the transcript is work that checking and attacking share, it also writes `examine`, whose result `run` is given:

        check(transcript) = examine(transcript), needs first        attack(transcript) = run(examine(transcript))

    Attributes:
        needs: What must hold of the first round, checked before anything else.
        rounds: `one`: reads the first round of the transcript it is given. `all`: needs all rounds together, and then
            checks by itself whether every one of them is zero.
        certifies: Whether it can certify guesses. Those that can run first: what they certify no other need attack.
    """

    needs: ClassVar[Needs] = Needs()
    rounds: ClassVar[Literal["one", "all"]] = "one"
    certifies: ClassVar[bool] = True

    @final
    def check(self, transcript: Transcript) -> None:
        """Raise `Inapplicable(name, reason, remedy)` where this attack cannot say anything about this transcript."""
        self.prepare(transcript)

    @final
    def prepare(self, transcript: Transcript) -> Any:
        """Check the needs, then examine the transcript: what `run` is to be given, for attacks made of attacks.

        Raises:
            Inapplicable: Where the attack cannot say anything about this transcript.
        """
        try:
            if self.rounds == "one":
                self.needs.check(transcript.knowledge, transcript[0])
            return self.examine(transcript)
        except Inapplicable as refused:
            if not any(name in refused.remedy for name in MATCHING_NAMES):
                raise
            # The attack that most refusals recommend would refuse in turn.
            if vocabulary_of(transcript.knowledge.model) is not None:
                raise Inapplicable(refused.name, refused.reason, TOKENS_INSTEAD) from None
            if transcript.knowledge.client.sign_only:
                raise Inapplicable(refused.name, refused.reason, SIGNS_LEAVE) from None
            raise

    @final
    def __call__(self, transcript: Transcript, *, seed: int, progress: Progress = ignore) -> Reconstruction:
        """Attack. Raises `Inapplicable` as `check` does."""
        found = self.run(self.prepare(transcript), seed=seed, progress=progress)
        blocks = transcript.knowledge.blocks
        if blocks and found.space == "input":
            found = replace(found, inputs=settled(found.inputs, blocks))
        # Where each example is its own target there is no label beside it.
        return found if transcript.knowledge.client.target == "label" else replace(found, labels=None)

    def examine(self, transcript: Transcript) -> Any:
        """What the attack works on, by default the transcript itself.

        Raises:
            Inapplicable: For conditions that cannot be declared, such as a layer whose gradient is zero.
        """
        return transcript

    @abstractmethod
    def run(self, seen: Any, /, *, seed: int, progress: Progress) -> Reconstruction:
        """Attack what `examine` returned; all that the attack needs holds."""

    @property
    def ignores(self) -> frozenset[str]:
        """Side information, by its name in `known`, that it makes no use of although it is known; a row says so."""
        return frozenset()

    def adapts(self, knowledge: Knowledge) -> bool:
        """Whether it does something else where the defense in `knowledge` is known than where it is not.

        A frontier asks this before it gives the attack a row for attackers who know.
        """
        return False

    def objective_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> float | None:
        """The attack's own objective at given inputs, or None where it has none.

        The audit calls this with the truth, after the attack, to tell a wrong objective from a weak search.
        """
        return None

    def inner_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> Tensors:
        """What `Reconstruction.inner` would hold at given inputs, by the same names; empty where it holds nothing.

        The audit calls this with the truth, after the attack, to say how far its steps came.
        """
        return {}
