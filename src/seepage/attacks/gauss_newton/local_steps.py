"""Exact images out of several local steps: Gauss-Newton on the first gradient, which a simulated client corrects."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.base import Attack, Inapplicable, Needs, Progress, ignore, run_resumable
from seepage.attacks.gauss_newton.gauss_newton import GaussNewton
from seepage.attacks.gauss_newton.levels import to_levels
from seepage.attacks.gauss_newton.seen import ROUNDED, Seen, known_of
from seepage.attacks.network import AttackedRound, vouch
from seepage.attacks.network.linearize import VictimNetwork
from seepage.attacks.reading.equations import Structure
from seepage.attacks.reading.head import HeadFeatures
from seepage.base.checkpoint import Resumable
from seepage.base.registry import Spec, attacks
from seepage.federation.types import Batch, Reconstruction, Status, Tensors, Transcript, Update

RENEWALS = 4
"""How often the signal in the logits is renewed: features move it by their own small error alone."""
SURER = 1.0
"""Errors of features after a correction are taken for so many times smaller than the last guess's."""
LOST = 3.0
"""A correction that leaves the update so many times further off than the best one did not converge: the search ends."""


@attacks.register(
    "local_steps",
    paper="none; its equations are in the docs",
    cost="minutes",
    family="gradient matching",
    slow_check=True,
)
@dataclass(frozen=True, kw_only=True)
class LocalSteps(Attack):
    """Reads images out of a client's several local steps, each of all its examples, through a convolutional network.

    Over k steps of a small rate the client sends, per step, `u(x) = g(w_0, x) + d(x)`: the gradient at the weights it
    was sent, which `gauss_newton` reads, and a drift, since the weights move. The drift of a guess is what a simulated
    client shows, so that

        x_0 = gradient_matching(u)        x_{i+1} = gauss_newton(u - (d(x_i) + d(x_{i-1})) / 2)

    converges where the drift is a small part of the update. Errors of the drift change their sign from turn to turn,
    so the mean of the last two has less of them.
    Images are certified where, rounded to 8 bits, they give the client's update to rounding through all its steps.

    No publication has this. Local batches that hold different examples in an unknown order are not read.

    Args:
        turns: Corrections, at most.
        steps: Steps of the gradient matching that the first drift is taken from.

    Example:
        >>> LocalSteps(turns=3).steps
        300
    """

    needs: ClassVar[Needs] = Needs(
        text="several local steps, each of all examples; a network that gauss_newton reads",
        images="inversion through convolutions",
        differentiable=True,
        linear_in_gradient="no correction makes a gradient of it",
        uncoupled="the first gradient a mixture that gauss_newton reads by other equations",
        softmax_gradient="the features are solved from softmax minus label",
        batch_size="the client cannot be simulated",
    )

    turns: int = 8
    steps: int = 300

    def examine(self, transcript: Transcript) -> "_Seen":
        attacked = AttackedRound.of(transcript)
        client, examples = attacked.knowledge.client, attacked.observed.batch_size
        assert examples is not None
        if not client.local_steps:
            raise Inapplicable("the client makes a single step, which has no drift", "use gauss_newton")
        if any(len(places) != examples for places in client.batches(examples)):
            raise Inapplicable(
                "local steps hold different examples, in an order that is not known",
                "use gradient_matching, or batches as large as the client",
            )
        network, head, structure = GaussNewton().cut(attacked)
        if structure.activation is None or attacked.knowledge.num_classes <= examples:
            raise Inapplicable(
                "units are averaged in front of the last layer, or there are as many examples as classes, so that "
                "features do not follow from its gradient",
                "use gradient_matching",
            )
        _ = [attacked.gradient[name] for name in (*structure.names, head[0])]  # refuses withheld ones
        matching = attacks.build(Spec("gradient_matching", {"steps": self.steps}))
        return _Seen(attacked, network, head, structure, matching, matching.prepare(transcript))

    def run(self, seen: "_Seen", *, seed: int, progress: Progress) -> Reconstruction:
        search = _Search(seen, seed)

        def advance(turn: int) -> float:
            return search.start() if turn == 0 else search.turn()

        def note(turn: int, value: float) -> None:
            search.history.append((turn, value))

        turn, interrupted = run_resumable(
            search, self.turns + 1, advance, progress, note=note, every=1, ended=lambda: search.ended
        )
        found = search.error < ROUNDED
        status: Status = "interrupted" if interrupted else "ok" if found else "exhausted"
        notes = [
            f"through all local steps the update at these images differs from the observed one by {search.error:.1e} "
            "of its size",
        ]
        return Reconstruction(
            inputs=search.inputs,
            labels=search.labels,
            objective=torch.full((len(search.inputs),), search.error),
            certified=torch.full((len(search.inputs),), found),
            status=status,
            history=tuple(search.history),
            cost={"steps": turn, "evaluations": search.passes},
            notes=tuple(notes),
        )


@dataclass(frozen=True)
class _Seen:
    """The round, its network with the names of the head's weight and bias, where known quantities lie, and the matching attack with what that prepared."""

    attacked: AttackedRound
    network: VictimNetwork
    head: tuple[str, str | None]
    structure: Structure
    matching: Attack
    prepared: Any

    def at_first(self, inputs: Tensor, labels: Tensor, drift: Tensors) -> Seen:
        """What Gauss-Newton is to read: the gradient at the first weights, as this drift leaves it.

        Args:
            inputs: `[n, C, H, W]` the last guess.
            labels: `[n]`.
            drift: What is taken off.
        """
        knowledge, observed = self.attacked.knowledge, self.attacked.observed
        gradient = {name: self.attacked.gradient[name] - drift[name] for name in observed.update.tensors}
        first = replace(knowledge, client=knowledge.client.first_order_rule())
        alone = AttackedRound(first, replace(observed, update=Update(gradient)))
        features, like = self._features(gradient, inputs, labels), self.attacked.like()
        known, (low, high) = known_of(features, self.structure, like), knowledge.value_range
        guess = (inputs - low) / (high - low)
        return Seen(alone, self.network, self.structure, features, known, guess=guess)

    def drift(self, inputs: Tensor, labels: Tensor) -> Tensors:
        """`d(x) = u(x) - g(w_0, x)`: the mean gradient through all steps less that at the first weights."""
        knowledge, observed = self.attacked.knowledge, self.attacked.observed
        client, batch = knowledge.client, Batch(inputs, labels)
        whole = client(knowledge.model, observed.params, batch, buffers=observed.buffers)
        through = client.as_gradient(whole, len(batch))
        rule = client.first_order_rule()
        alone = rule(knowledge.model, observed.params, batch, buffers=observed.buffers).tensors
        return {name: through[name] - alone[name] for name in observed.update.tensors}

    def _features(self, gradient: Tensors, inputs: Tensor, labels: Tensor) -> HeadFeatures:
        """Features by least squares from the head's gradient, which no longer is one of any batch exactly.

        With `D = (softmax(F W^T + b) - Y) / n` the signal in the logits, the head's gradient is `D^T F`. D hardly
        depends on F: it is taken at the last F, first that of the guess, and F is solved for.
        """
        layer = self.head[0].rpartition(".")[0]
        with torch.no_grad():
            _, calls = self.attacked.forward(inputs.double(), [layer], exact=True)
        state, guessed = self.attacked.exact[0], calls[layer][0].input.flatten(1)
        weight, bias = state[self.head[0]], 0 if self.head[1] is None else state[self.head[1]]
        features, wanted = guessed, gradient[self.head[0]].double()
        for _ in range(RENEWALS):
            logits = features @ weight.T + bias
            probabilities = logits.softmax(1)
            slopes = (probabilities - F.one_hot(labels, logits.shape[1])) / len(labels)  # D
            features = torch.linalg.lstsq(slopes.T, wanted).solution  # D^T F = dL/dW
        # What a feature is wrong by shows in those that are off in the guess, and in the way from there.
        noise = (features - guessed).square().mean(1).sqrt() / SURER
        known = torch.ones(len(labels), dtype=torch.bool)
        cpu = [t.cpu() for t in (features, labels, probabilities, slopes @ weight, noise)]
        return HeadFeatures(self.head[0], *cpu, misfit=0.0, spread=0.0, rounding=0.0, known=known, doubt=None)


@dataclass(eq=False)
class _Search(Resumable):
    """The turns.

    Attributes:
        inputs: `[n, C, H, W]` the best images so far.
        labels: `[n]` theirs.
        error: Their relative difference from the observed update through all steps.
        now: Inputs and labels of the last turn.
        drift: The mean of the last two turns' drifts; empty before the first.
        ended: Whether they are found, or no turn gets nearer.
        passes: Evaluations so far.
        history: Each turn's number and error.
    """

    kept: ClassVar[tuple[str, ...]] = ("place", "drift", "error", "ended", "passes", "history")

    seen: _Seen
    seed: int
    inputs: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    now: tuple[Tensor, Tensor] = field(init=False)
    drift: Tensors = field(default_factory=dict)
    error: float = float("inf")
    ended: bool = False
    passes: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        like, examples = self.seen.attacked.like(), self.seen.attacked.observed.batch_size or 0
        self.inputs = like.new_zeros(examples, *self.seen.attacked.knowledge.input_shape)
        self.labels = torch.zeros(examples, dtype=torch.int64, device=like.device)
        self.now = (self.inputs, self.labels)

    @property
    def place(self) -> tuple[Tensor, ...]:
        """Best and last guesses, for checkpoints."""
        return (self.inputs, self.labels, *self.now)

    @place.setter
    def place(self, place: tuple[Tensor, ...]) -> None:
        device = self.seen.attacked.like().device
        self.inputs, self.labels, *now = (tensor.to(device) for tensor in place)
        self.now = (now[0], now[1])

    def start(self) -> float:
        """Gradient matching through the steps, whose drift the first turn takes off."""
        found = self.seen.matching.run(self.seen.prepared, seed=self.seed, progress=ignore)
        return self._keep(found)

    def turn(self) -> float:
        """Gauss-Newton on what is left of the update without the drift."""
        new = self.seen.drift(*self.now)
        self.drift = {name: (tensor + self.drift.get(name, tensor)) / 2 for name, tensor in new.items()}
        corrected = self.seen.at_first(*self.now, self.drift)
        return self._keep(GaussNewton().run(corrected, seed=self.seed, progress=ignore))

    def _keep(self, found: Reconstruction) -> float:
        """Take up a turn's images; of them and the same in 8 bits those that explain the update better."""
        assert found.labels is not None
        low, high = self.seen.attacked.knowledge.value_range
        inputs = found.inputs.detach().clamp(low, high)
        rounded = low + (high - low) * to_levels((inputs - low) / (high - low))
        errors = [vouch(self.seen.attacked, one, found.labels)[0] for one in (inputs, rounded)]
        error, better = min(zip(errors, (inputs, rounded), strict=True), key=lambda pair: pair[0])
        self.now, self.passes = (better, found.labels), self.passes + found.cost.get("evaluations", 0)
        self.ended = error < ROUNDED or error > LOST * self.error
        if error < self.error:
            self.inputs, self.labels, self.error = better, found.labels, error
        if found.status == "interrupted":  # the search inside has caught it
            raise KeyboardInterrupt
        return error
