"""Exact images out of several local steps: the first gradient by a simulated client, Gauss-Newton step by step."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.base import Attack, Needs, Progress, ignore, refuse, run_resumable
from seepage.attacks.gauss_newton.gauss_newton import HEAD_NEEDS, GaussNewton
from seepage.attacks.gauss_newton.levels import to_levels
from seepage.attacks.gauss_newton.preconditioner import BlockCirculant
from seepage.attacks.gauss_newton.search import Search
from seepage.attacks.gauss_newton.seen import ROUNDED
from seepage.attacks.network import AttackedRound, vouch
from seepage.attacks.network.linearize import VictimNetwork
from seepage.attacks.reading.decoding import NaturalSpectrum
from seepage.attacks.reading.equations import Equations, Known, Structure
from seepage.attacks.reading.readings import NEWTON_SOLVED
from seepage.base.checkpoint import Resumable
from seepage.base.registry import Spec, attacks
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.federation.types import Batch, Reconstruction, Status, Tensors, Transcript

RENEWALS = 4
"""How often the signal in the logits is renewed: features move it by their own small error alone."""
WHITENING_FLOOR = 2.0
"""Whitens the weight gradient's equations hardly at all: its errors, a few percent of it, would be blown up."""
OPEN = 3.0
"""Units within so many times the features' error of zero may be on or off."""
STEPS, INNER = 2, 60
"""Gauss-Newton steps in a turn, and iterations of the conjugate gradients in the first of them."""
LENGTHS = (1.0, 0.5, 0.25)
"""Shares of the way to a turn's images that are tried."""


@attacks.register(
    "local_steps",
    paper="none; its equations are in the docs",
    cost="minutes",
    family="gradient matching",
)
@dataclass(frozen=True, kw_only=True)
class LocalSteps(Attack):
    """Reads images out of a client's several local steps, each of all its examples, through a convolutional network.

    Over k steps of a small rate the client sends, per step, `u(x) = g(w_0, x) + d(x)`: the gradient at the weights it
    was sent, which `gauss_newton` reads, and a drift, since the weights move. The drift of a guess is what a simulated
    client shows. From `gradient_matching` on, each turn takes it off the update, reads the features in front of the
    head from what is left, makes two Gauss-Newton steps on these and the last convolution's weight gradient, and goes
    as far, or to the nearest 8-bit images, as explains the update best through all the client's steps.

    Images are certified where, rounded to 8 bits, they give the client's update to rounding through all its steps.
    No publication has this. Local batches of different examples are not read.

    Args:
        turns: Turns, at most.
        steps: Steps of the gradient matching that the first drift is taken from.

    Example:
        >>> LocalSteps(turns=3).steps
        300
    """

    needs: ClassVar[Needs] = replace(
        HEAD_NEEDS,
        text="several local steps, each of all examples; a network that gauss_newton reads, behind a ReLU",
        uncoupled="the first gradient a mixture that gauss_newton reads by other equations",
        batch_size="the client cannot be simulated",
    )

    turns: int = 40
    steps: int = 300

    def examine(self, transcript: Transcript) -> "_CutRound":
        attacked = AttackedRound.of(transcript)
        examples = attacked.observed.batch_size
        assert examples is not None
        local = attacked.knowledge.client.batches(examples)
        if len(local) < 2:
            raise refuse("single_step")("the client makes a single step, which has no drift", "use gauss_newton")
        network, head, structure = GaussNewton().cut(attacked)
        if any(len(places) != examples for places in local):
            raise refuse("order_unknown")(
                "local steps hold different examples, in an order that is not known", "use gradient_matching"
            )
        if structure.activation is None or structure.slope != 0 or not structure.direct:
            raise refuse("no_relu")(
                "the head does not read a ReLU behind a layer, so that features do not say which units are on",
                "use gradient_matching",
            )
        if attacked.knowledge.num_classes <= examples:
            raise refuse("too_few_classes")(
                "there are as many examples as classes, or more, so that features do not follow from the head",
                "use gradient_matching",
            )
        _ = [attacked.gradient[name] for name in (*structure.names, head[0])]  # refuses withheld ones
        matching = attacks.build(Spec("gradient_matching", {"steps": self.steps}))
        return _CutRound(attacked, network, head, structure, matching, matching.prepare(transcript))

    def run(self, seen: "_CutRound", *, seed: int, progress: Progress) -> Reconstruction:
        search = _Search(seen, seed)
        turn, interrupted = run_resumable(
            search, self.turns + 1, search.advance, progress,
            note=lambda turn, error: search.history.append((turn, error)), every=1, ended=lambda: search.found,
        )  # fmt: skip
        status: Status = "interrupted" if interrupted else "ok" if search.found else "exhausted"
        note = "through all local steps the update at these images differs from the observed one by"
        size = (len(search.inputs),)
        return Reconstruction(
            search.inputs, search.labels,
            objective=search.inputs.new_full(size, search.error),
            certified=torch.full(size, search.found, device=search.inputs.device), status=status,
            history=tuple(search.history), cost={"steps": turn, "evaluations": search.passes},
            notes=(f"{note} {search.error:.1e} of its size",),
        )  # fmt: skip


@dataclass(frozen=True)
class _CutRound:
    """The round, its network with the names of the head's weight and bias, where the known quantities lie, and the
    attack that gives the first guess with what that prepared.
    """

    attacked: AttackedRound
    network: VictimNetwork
    head: tuple[str, str | None]
    structure: Structure
    matching: Attack
    prepared: Any

    def equations(self, inputs: Tensor, labels: Tensor) -> Equations:
        """What the gradient at the first weights says, as this guess leaves it: `g = u - d(x)`."""
        drift = self.drift(inputs, labels)
        gradient = {name: self.attacked.gradient[name] - tensor for name, tensor in drift.items()}
        wanted = [gradient[name].to(inputs) for name in self.structure.names]
        return Equations(
            self.network, self.structure, self.known(gradient, inputs, labels), wanted, floor=WHITENING_FLOOR
        )

    def drift(self, inputs: Tensor, labels: Tensor) -> Tensors:
        """`d(x) = u(x) - g(w_0, x)`: the mean gradient through all steps less that at the first weights."""
        knowledge, observed = self.attacked.knowledge, self.attacked.observed
        client, batch = knowledge.client, Batch(inputs, labels)
        rules, round_ = (client, client.first_order_rule()), (knowledge.model, observed.params, batch)
        whole, first = (rule(*round_, buffers=observed.buffers) for rule in rules)
        # The difference of weights through all steps, as the mean of the gradients at w_0, w_1, ...; and that at w_0.
        through, alone = client.as_gradient(whole, len(batch)), first.tensors
        return {name: through[name] - alone[name] for name in observed.update.tensors}

    def known(self, gradient: Tensors, inputs: Tensor, labels: Tensor) -> Known:
        """Features by least squares from the head's gradient, which no longer is one of any batch exactly.

        With `D = (softmax(F W^T + b) - Y) / n` the signal in the logits, the head's gradient is `D^T F`. D hardly
        depends on F: it is taken at the last F, first that of the guess, and F is solved for.
        A unit that is off in all steps leaves exact zeros. Behind a ReLU no feature is negative, so that those which
        are show how far off all are. Units that near to zero may be on or off, and their slopes are left open.
        """
        layer = self.head[0].rpartition(".")[0]
        with torch.no_grad():
            _, calls = self.attacked.forward(inputs.double(), [layer], exact=True)
        state, features = self.attacked.exact[0], calls[layer][0].input.flatten(1)
        weight, bias = state[self.head[0]], 0 if self.head[1] is None else state[self.head[1]]
        for _ in range(RENEWALS):
            logits = features @ weight.T + bias
            slopes = (logits.softmax(1) - F.one_hot(labels, logits.shape[1])) / len(labels)  # D
            features = torch.linalg.lstsq(slopes.T, gradient[self.head[0]].double()).solution  # D^T F = dL/dW
        traces = features.abs() > FLOAT32_NETWORK * features.abs().amax(1, keepdim=True)
        # No feature behind a ReLU is negative: those which are show the error of all, root mean square. [n, 1]
        negative = traces & (features < 0)
        error = ((features * negative).square().sum(1) / negative.sum(1).clamp(min=1)).sqrt()[:, None]
        on, near_zero = traces & (features > OPEN * error), traces & (features.abs() <= OPEN * error)
        # The gradient in the features is D W at the units that are on.
        parts = (features.clamp(min=0).to(inputs), on, near_zero, traces & ~on, (slopes @ weight * on).to(inputs))
        value, on, near_zero, near, signal = (part.unflatten(1, self.structure.shape) for part in parts)
        return Known(value, on, near_zero, near, signal, torch.ones_like(value), one_sided=True)


@dataclass(eq=False)
class _Search(Resumable):
    """The turns: the best images so far with their labels and error, those that the next turn starts from (`now`), the
    first turn's preconditioner, which suits all, evaluations so far (`passes`), and each turn's number and error.
    """

    kept: ClassVar[tuple[str, ...]] = ("place", "error", "passes", "history")

    seen: _CutRound
    seed: int
    inputs: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    now: Tensor = field(init=False)
    error: float = float("inf")
    preconditioner: BlockCirculant | None = None
    passes: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        like, examples = self.seen.attacked.like(), self.seen.attacked.observed.batch_size or 0
        self.inputs = self.now = like.new_zeros(examples, *self.seen.attacked.knowledge.input_shape)
        self.labels = torch.zeros(examples, dtype=torch.int64, device=like.device)

    @property
    def found(self) -> bool:
        """Whether 8-bit images explain the whole update to rounding."""
        return self.error < ROUNDED and bool(torch.equal(self.inputs, self._rounded(self.inputs)))

    @property
    def place(self) -> dict[str, Any]:
        """Images and the preconditioner, for checkpoints."""
        eigen = None if self.preconditioner is None else self.preconditioner.eigen()
        return {"images": (self.inputs, self.labels, self.now), "eigen": eigen}

    @place.setter
    def place(self, place: dict[str, Any]) -> None:
        like, eigen = self.seen.attacked.like(), place["eigen"]
        self.inputs, self.labels, self.now = (tensor.to(like.device) for tensor in place["images"])
        self.preconditioner = None if eigen is None else BlockCirculant.of(eigen, self.now)

    def advance(self, turn: int) -> float:
        """Make a turn, given how many were made; returns the error of its images."""
        return self.turn() if turn else self.start()

    def start(self) -> float:
        """Gradient matching through the steps, from which the first turn takes the drift."""
        found = self.seen.matching.run(self.seen.prepared, seed=self.seed, progress=ignore)
        assert found.labels is not None
        self.labels, self.passes = found.labels, int(found.cost.get("evaluations", 0))
        error = self._keep([found.inputs.detach().clamp(*self.seen.attacked.knowledge.value_range)])
        if found.status == "interrupted":  # the search inside has caught it
            raise KeyboardInterrupt
        return error

    def turn(self) -> float:
        """Two Gauss-Newton steps on what is left of the update without the drift."""
        network, equations = self.seen.network, self.seen.equations(self.now, self.labels)
        unit = (self.now - network.low) / network.span
        spectrum = NaturalSpectrum(unit.shape[1:]).to(unit)
        search = Search(equations, spectrum, equations.start(unit), GaussNewton().inner, iterations=INNER)
        search.preconditioner = self.preconditioner
        for _ in range(STEPS):
            search.step()
            search.tolerance = NEWTON_SOLVED  # of two steps the second is the last that this drift gets
        self.preconditioner, self.passes = search.preconditioner, self.passes + search.passes
        reached = network.low + network.span * search.point.x.detach().clamp(0, 1)
        on_the_way = [self.now + length * (reached - self.now) for length in LENGTHS]
        return self._keep([self._rounded(reached), *on_the_way])

    def _rounded(self, inputs: Tensor) -> Tensor:
        low, span = self.seen.network.low, self.seen.network.span
        return low + span * to_levels((inputs - low) / span)

    def _keep(self, several: list[Tensor]) -> float:
        """Go on from those images that explain the update best."""
        errors = [vouch(self.seen.attacked, one, self.labels)[0] for one in several]
        error, self.now = min(zip(errors, several, strict=True), key=lambda pair: pair[0])
        if error < self.error:
            self.inputs, self.error = self.now, error
        return error
