"""Gradient matching: find inputs whose update is the observed one. One engine; `presets.py` holds the papers.

A method is a choice of parts: a distance between updates, priors on inputs, a rule for the labels, what the unknowns
are, which direction the optimizer follows, the optimizer and its schedule, whether candidates are projected into the
value range, and how many restarts run side by side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Needs, Progress, ignore, refuse, run_resumable
from seepage.attacks.search.adaptive import defended_rule
from seepage.attacks.search.directions import Direction, Gradients, Plain
from seepage.attacks.search.distances import Distance
from seepage.attacks.search.first_order import FirstOrderProblem, with_first_order_step
from seepage.attacks.search.labels import Auto, Joint, LabelInference, labels_by
from seepage.attacks.search.layers import LayerPrior
from seepage.attacks.search.objective import MatchingObjective
from seepage.attacks.search.optimizers import LBFGS, OptimizerSettings, Schedule
from seepage.attacks.search.parameters import NumbersOnly, Parameterization, Pixels
from seepage.attacks.search.priors import Prior
from seepage.attacks.search.problem import Evaluation, Local, Problem
from seepage.attacks.search.search import Restart
from seepage.base.blocks import one_hot
from seepage.base.checkpoint import Resumable, record_interval
from seepage.base.nn import generator, input_layer, last_linear, output_shape, vocabulary_of
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Reconstruction, Round, Status, Transcript

STANDING, PATIENCE = 1e-3, 20
"""L-BFGS is at rest where the lowest objective fell by less than this share in so many steps of 20 evaluations."""
NUMBERS_SHARE = 0.3
"""Share of a search's steps for which numbers are searched for again, beside words that are set."""
FEWEST_STEPS_FOR_TRIAL = 50
"""Steps from which the trial of a first-order step, some three evaluations, pays."""


@dataclass(frozen=True, kw_only=True)
class GradientMatching(Attack):
    """Optimize dummy inputs until their update matches the observed one.

    Args:
        distance: Between dummy and observed gradient.
        optimizer: Optimizer settings.
        steps: Optimizer steps per restart.
        priors: Penalties on the candidates, or on what layers of the model see of them.
        labels: Rule that names the labels, or `Joint()` to optimize them.
        parameters: What the unknowns are and where they start.
        direction: What a first-order optimizer is given in place of the gradient with respect to the inputs.
        schedule: Learning rate over the steps.
        project: Put candidates back into the value range after each step.
        restarts: Searches from different starts, in lock-step; the lowest objective wins.
        microbatch: Examples per chunk (exact for separable clients, memory of one chunk); None: all at once.
        tolerance: A restart ends, and the attack with it, once the distance is below this share of its value at a
            zero gradient.
        local: How an update of several local steps is matched: `unrolled` differentiates all of them, `averaged`
            takes it for the mean of gradients at the weights that were sent out, one for each local batch.
        gradients: `exact`: by differentiating twice. `first_order`: from two first-order passes. `auto`: the latter
            where a trial at the start shows that it holds, but for L-BFGS, which lives on small changes, and short
            searches.
    """

    certifies: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs(
        text="the batch size", differentiable=True, batch_size="it says how many inputs to search for"
    )

    distance: Distance
    optimizer: OptimizerSettings
    steps: int
    priors: tuple[Prior | LayerPrior, ...] = ()
    labels: LabelInference = Auto()  # noqa: RUF009 - frozen and without state
    parameters: Parameterization = Pixels()  # noqa: RUF009
    direction: Direction = Plain()  # noqa: RUF009
    schedule: Schedule = "constant"
    project: bool = False
    restarts: int = 1
    microbatch: int | None = None
    tolerance: float = 1e-10
    local: Local = "unrolled"
    gradients: Literal["auto", "exact", "first_order"] = "auto"

    def __post_init__(self) -> None:
        counts = {"steps": self.steps, "restarts": self.restarts, "microbatch": self.microbatch}
        wrong = {name: count for name, count in counts.items() if count is not None and count < 1}
        if wrong:
            got = ", ".join(f"{name}={count}" for name, count in wrong.items())
            raise SeepageError(f"gradient matching needs whole numbers from 1 up, got {got}; correct the recipe")
        if self.direction.needs_plain_steps and isinstance(self.optimizer, LBFGS):
            raise SeepageError(
                f"{self.direction} looks one optimizer step ahead and L-BFGS has no step of its own; use Adam"
            )
        whole = [prior for prior in self._layer_priors if not prior.separable]
        if whole and self.microbatch is not None:
            raise SeepageError(
                f"{type(whole[0]).__name__} is a statistic of the whole batch, of which a micro-batch sees a part; "
                "leave out microbatch, or the prior"
            )

    @property
    def _layer_priors(self) -> tuple[LayerPrior, ...]:
        return tuple(prior for prior in self.priors if isinstance(prior, LayerPrior))

    def examine(self, transcript: Transcript) -> tuple[Knowledge, Round]:
        knowledge, observed = transcript.knowledge, transcript[0]
        for prior in self.priors:
            if isinstance(prior, LayerPrior):
                prior.check(knowledge, observed)
            else:
                prior.check(knowledge)
        self.parameters.check(knowledge)
        _check_outputs(knowledge, observed)
        _check_reaches_input(knowledge, observed)
        labels = labels_by(self.labels, observed, knowledge)
        if labels is not None and len(labels) != observed.batch_size:
            raise refuse("wrong_labels")(
                f"the transcript tells {len(labels)} labels for {observed.batch_size} examples",
                "record it again with the right labels",
            )
        return knowledge, observed

    @property
    def ignores(self) -> frozenset[str]:
        """The labels, where it searches for them all the same."""
        return frozenset({"labels"} if isinstance(self.labels, Joint) else ())

    def adapts(self, knowledge: Knowledge) -> bool:
        """Whether the distance, or the client's rule that is followed, is another one where the defense is known."""
        blind = replace(knowledge, defense=None)
        same = self.distance.adapt_to(knowledge) == self.distance.adapt_to(blind)
        return not same or defended_rule(knowledge) is not knowledge.client

    def objective_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> float:
        return self._objective(transcript[0], transcript.knowledge).value_at(inputs, labels)

    def _objective(self, observed: Round, knowledge: Knowledge) -> MatchingObjective:
        problem = Problem.of(
            observed, knowledge, self.distance.adapt_to(knowledge, observed), self.microbatch, self.local
        )
        own = tuple(prior for prior in self.priors if isinstance(prior, Prior))
        return MatchingObjective(problem, knowledge, observed, own, self._layer_priors)

    def run(self, seen: tuple[Knowledge, Round], *, seed: int, progress: Progress) -> Reconstruction:
        knowledge, observed = seen
        objective, labels = self._objective(observed, knowledge), labels_by(self.labels, observed, knowledge)
        found = self.minimize(objective, labels, seed=seed, progress=progress)
        return self._with_words(objective, found, seed) if knowledge.blocks else found

    def _with_words(self, objective: MatchingObjective, found: Reconstruction, seed: int) -> Reconstruction:
        """The rows with the likeliest word of each block, and numbers searched for anew: what explains no worse."""
        if found.labels is None or found.objective is None or found.status in ("interrupted", "diverged"):
            return found
        rows = one_hot(found.inputs, objective.knowledge.blocks)
        numbers = replace(
            self, parameters=NumbersOnly(rows=rows, std=self.parameters.std), restarts=1,
            steps=math.ceil(self.steps * NUMBERS_SHARE),
        )  # fmt: skip
        again = numbers.minimize(objective, found.labels, seed=seed, progress=ignore)
        candidates = [again.inputs, rows] if again.objective is not None else [rows]
        values = [objective.value_at(inputs, found.labels) for inputs in [found.inputs, *candidates]]
        cost = {name: found.cost[name] + again.cost[name] for name in found.cost}
        best = min(range(len(values)), key=values.__getitem__)
        if best == 0:
            return replace(found, cost=cost, status="interrupted" if again.status == "interrupted" else found.status)
        value = torch.full_like(found.objective, values[best])
        chosen = candidates[best - 1]
        return replace(again, inputs=chosen, objective=value, cost=cost, notes=found.notes, history=found.history)

    def minimize(
        self,
        objective: MatchingObjective,
        labels: Tensor | None,
        *,
        seed: int,
        progress: Progress,
        every: int | None = None,
    ) -> Reconstruction:
        """Search for the inputs of the lowest objective.

        Args:
            objective: Whose knowledge and round say how many inputs, and of what shape, are searched for.
            labels: `[n]`; None: searched for together with the inputs.
            seed: Of the starts and the noise.
            progress: Shows the search, and keeps its checkpoints.
            every: Steps between two checkpoints; None: a hundredth of all.
        """
        run = _MatchingRun(self, objective, labels, seed)
        run.select_solver()

        def advance(step: int) -> float:
            run.advance_all(step)
            return run.lowest()

        step, interrupted = run_resumable(run, self.steps, advance, progress, every=every, ended=lambda: run.ended)
        return run.reconstruction(step, "interrupted" if interrupted else None)


def _check_outputs(knowledge: Knowledge, observed: Round) -> None:
    """Refuse a model whose outputs are maps where each example is said to have one class, as older recordings do."""
    if knowledge.target == "map" or vocabulary_of(knowledge.model) is not None:
        return
    shape = output_shape(knowledge.model, observed.params, observed.buffers, knowledge.input_shape)
    if len(shape) > 1 and knowledge.target == "class":
        raise refuse("wrong_outputs")(
            f"the model returns outputs of shape {shape} for an example, which is said to have one class",
            "observe or record it again with the target map",
        )


def _check_reaches_input(knowledge: Knowledge, observed: Round) -> None:
    """Refuse an update in which the head alone has a gradient, as where its weights are zero, or all units are off.

    The loss passes `D W` back to the features, so with W = 0 no layer in front has a gradient, whatever the input is.
    What is left, `D^T F`, depends on the input through the features F alone, and gives these without a search.
    """
    head, sent = last_linear(knowledge.model, knowledge.num_outputs), observed.update.tensors
    first = input_layer(knowledge.model, observed.params, knowledge.input_shape)
    if head is None or (first is not None and first.weight == head[0]):  # what it reads is the input itself
        return
    in_front = [tensor for name, tensor in sent.items() if name not in head]
    if in_front and not any(bool(tensor.any()) for tensor in in_front):
        raise refuse("zero_gradient")(
            f"only {head[0].rpartition('.')[0]}, the last layer, has a gradient: it shows the features in front of it, "
            "as far as no search is needed, and nothing else of the input",
            "look at the update of a later round, when its weights are no longer zero",
        )


class _MatchingRun(Resumable):
    """One call of the engine: the parts of the attack at work on one update."""

    kept = ("searches", "reach")

    def __init__(
        self, attack: GradientMatching, objective: MatchingObjective, labels: Tensor | None, seed: int
    ) -> None:
        self.attack, self.objective, self.labels, self.seed = attack, objective, labels, seed
        self.knowledge, self.observed = objective.knowledge, objective.observed
        self.every = record_interval(attack.steps)
        target = self.observed.gradient(self.knowledge.client)
        zero = {name: torch.zeros_like(tensor) for name, tensor in target.items()}
        self.scale = float(attack.distance.adapt_to(self.knowledge, self.observed)(zero, target))
        self.searches = [self._start(r) for r in range(attack.restarts)]
        self.remarks: tuple[str, ...] = ()

    def select_solver(self) -> None:
        """Take the first-order step where it is asked for, or holds. The choice depends on the start alone."""
        attack, problem = self.attack, self.objective.problem
        short = isinstance(attack.optimizer, LBFGS) or attack.steps < FEWEST_STEPS_FOR_TRIAL
        if attack.gradients == "exact" or (attack.gradients == "auto" and short) or not isinstance(problem, Problem):
            return
        search = self.searches[0]
        inputs, labels = search.decode()[1].detach(), self.labels_of(search).detach()
        quicker, note = with_first_order_step(problem, inputs, labels, force=attack.gradients == "first_order")
        self.objective = replace(self.objective, problem=quicker)
        self.remarks = () if note is None else (note,)

    def _start(self, restart: int) -> Restart:
        assert self.observed.batch_size is not None  # `check` refused it
        draw = generator(self.seed, "start", restart)
        like = next(iter(self.observed.params.values()))
        space = self.attack.parameters.start(self.observed.batch_size, self.knowledge, like, draw)
        logits = None
        if self.labels is None:
            logits = self.attack.labels.first_logits(self.observed, self.knowledge, draw).to(like)
        return Restart(space, logits, self.attack.optimizer, self.attack.schedule, self.attack.steps)

    @property
    def ended(self) -> bool:
        """One restart that explains the update ends the search; else all must have ended."""
        ends = [search.ended for search in self.searches]
        return "explained" in ends or None not in ends

    def lowest(self) -> float:
        return min((search.lowest for search in self.searches if search.best), default=math.nan)

    @property
    def reach(self) -> float | None:
        """What all restarts, which go in lock-step through one problem, have learned of a good move's length."""
        problem = self.objective.problem
        return problem.reach if isinstance(problem, FirstOrderProblem) else None

    @reach.setter
    def reach(self, reach: float | None) -> None:
        if isinstance(self.objective.problem, FirstOrderProblem) and reach is not None:
            self.objective.problem.reach = reach

    def advance_all(self, step: int) -> None:
        """One optimizer step of every restart; each sees the others where they stood before it."""
        standing: dict[int, Tensor] = {}
        if self.objective.compares:
            standing = {r: s.decode()[1].detach() for r, s in enumerate(self.searches) if s.ended is None}
        for r, search in enumerate(self.searches):
            self.advance(search, step, r, [inputs for other, inputs in standing.items() if other != r])

    def advance(self, search: Restart, step: int, restart: int, others: Sequence[Tensor]) -> None:
        """One optimizer step of one restart."""
        if search.ended is not None:
            return
        first: list[float] = []
        place = _SearchPoint(self, search, step, restart, others, self.objective)

        def closure() -> float:
            value, distance = self._differentiate(search, place)
            first.append(value)
            if math.isfinite(value) and distance <= self.attack.tolerance * self.scale and self._is_explained(search):
                raise _Explained
            return value

        try:
            # PyTorch types the closure's result as a float; L-BFGS accepts one.
            search.optimizer.step(closure)
        except _Explained:
            search.ended = "explained"
        share = self.attack.direction.step_noise
        if share > 0 and search.ended is None:
            search.move([share * place.lr * noise for noise in place.noise(search.unknowns)])
        if self.attack.project:
            search.project()
        search.schedule.step()
        value = first[0]
        if step % self.every == 0 and math.isfinite(value):
            search.history.append((step, value))
        finite = math.isfinite(value) and all(bool(unknown.isfinite().all()) for unknown in search.unknowns)
        if search.ended is None and not finite:
            search.ended = "diverged"
        # Adam's steps are as long as its rate says, and end with its schedule; L-BFGS comes to rest by itself.
        search.still = 0 if search.lowest < (1 - STANDING) * search.mark else search.still + 1
        search.mark = search.lowest if search.still == 0 else search.mark
        if search.ended is None and isinstance(self.attack.optimizer, LBFGS) and search.still >= PATIENCE:
            search.ended = "rest"

    def _is_explained(self, search: Restart) -> bool:
        """Whether the distance is as small as it seems; float32 rounds some to 0 on the way."""
        exact = self.objective.problem.distance_at(search.decode()[1].detach(), self.labels_of(search).detach())
        return exact <= self.attack.tolerance * self.scale

    def _differentiate(self, search: Restart, place: "_SearchPoint") -> tuple[float, float]:
        """Objective and distance at the current point; leaves the gradients in the unknowns' `.grad`."""
        search.evaluations += 1
        unknowns, inputs = search.decode()
        labels = self.labels_of(search)
        evaluation, distance = self.objective.at(inputs, labels, place.others, place.share)
        gradients = list(torch.autograd.grad(inputs, unknowns, evaluation.by_inputs))
        by_logits = self.by_logits(search, labels, evaluation)
        turned = by_logits if self.attack.direction.turns_labels else []
        straight = [] if turned else by_logits
        gradients += turned
        if math.isfinite(evaluation.value):
            search.update_best(evaluation.value, inputs, labels)
            gradients = self.attack.direction(gradients, place)
        for unknown, gradient in zip(search.free, [*gradients, *straight], strict=True):
            # Convolutions and recurrent layers may lay a gradient out in another order, which L-BFGS does not take.
            unknown.grad = gradient.contiguous()
        return evaluation.value, distance

    def by_logits(self, search: Restart, labels: Tensor, evaluation: Evaluation) -> Gradients:
        """The gradient by the label logits alone; empty where labels are fixed."""
        if search.logits is None:
            return []
        assert evaluation.by_labels is not None
        return list(torch.autograd.grad(labels, search.logits, evaluation.by_labels))

    def labels_of(self, search: Restart) -> Tensor:
        """Fixed labels, or the search's own as probabilities; values as they are."""
        if search.logits is not None:
            if self.knowledge.target == "value":
                return search.logits
            return search.logits.sigmoid() if search.logits.shape[1] == 1 else search.logits.softmax(1)
        assert self.labels is not None
        return self.labels

    def reconstruction(self, step: int, status: Status | None) -> Reconstruction:
        search = min(self.searches, key=lambda search: search.lowest)
        if not search.best:
            return self._nothing(step, status or "diverged")
        inputs, labels = search.best["inputs"], search.best["labels"]
        if search.logits is not None and self.knowledge.target != "value":
            labels = labels.argmax(1) if labels.shape[1] > 1 else (labels[:, 0] > 0.5).long()
        return Reconstruction(
            inputs=inputs,
            labels=labels,
            objective=torch.full((len(inputs),), search.lowest, device=inputs.device),
            status=status or self._status(search),
            history=tuple(search.history),
            cost=self._cost(step),
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        ended = sum(search.ended == "diverged" for search in self.searches)
        if not ended or len(self.searches) == 1:
            return self.remarks
        early = f"{ended} of {len(self.searches)} restarts ended early because their numbers were no longer finite"
        return (*self.remarks, early)

    def _nothing(self, step: int, status: Status) -> Reconstruction:
        """Every restart's first objective was already not finite (or the run was stopped before it)."""
        middle = sum(self.knowledge.value_range) / 2
        like = next(iter(self.observed.params.values()))
        shape = (self.observed.batch_size or 0, *self.knowledge.input_shape)
        inputs = torch.full(shape, middle, dtype=like.dtype, device=like.device)
        return Reconstruction(inputs=inputs, status=status, cost=self._cost(step), notes=self._notes())

    def _cost(self, step: int) -> dict[str, float]:
        return {"steps": step, "evaluations": sum(search.evaluations for search in self.searches)}

    def _status(self, search: Restart) -> Status:
        if search.ended in ("explained", "rest"):
            return "ok"
        if search.ended == "diverged":
            return "diverged"
        return "ok" if has_settled(search.history) else "exhausted"


@dataclass(frozen=True)
class _SearchPoint:
    """Where one restart stands at one step, as its direction may ask about it."""

    run: _MatchingRun
    search: Restart
    step: int
    restart: int
    others: Sequence[Tensor]
    objective: MatchingObjective

    @property
    def share(self) -> float:
        return self.step / self.run.attack.steps

    @property
    def lr(self) -> float:
        return float(self.search.optimizer.param_groups[0]["lr"])

    @property
    def moved(self) -> int:
        return len(self.search.unknowns)

    def gradients_at(self, moves: Sequence[Tensor]) -> Gradients:
        self.search.evaluations += 1
        unknowns, inputs = self.search.decode(moves)
        labels = self.run.labels_of(self.search)
        evaluation, _ = self.objective.at(inputs, labels, self.others, self.share)
        gradients = list(torch.autograd.grad(inputs, unknowns, evaluation.by_inputs))
        if not self.run.attack.direction.turns_labels:
            return gradients
        return [*gradients, *self.run.by_logits(self.search, labels, evaluation)]

    def step_along(self, gradients: Sequence[Tensor]) -> Gradients:
        return self.search.step_along(gradients)

    def noise(self, like: Sequence[Tensor]) -> Gradients:
        draw = generator(self.run.seed, f"noise/{self.restart}", self.step)
        return [torch.randn(tensor.shape, generator=draw).to(tensor) for tensor in like]


class _Explained(Exception):
    """The observed update is explained to rounding; ends an optimizer's inner loop early."""


def has_settled(history: list[tuple[int, float]]) -> bool:
    """Whether the objective fell by less than 1 % of itself over the last tenth of the recorded steps.

    >>> has_settled([(step, 1.0) for step in range(20)]), has_settled([(s, 20.0 - s) for s in range(20)])
    (True, False)
    """
    if len(history) < 10:
        return False
    tail = [value for _, value in history[-max(2, round(0.1 * len(history))) :]]
    return tail[0] - min(tail) <= 0.01 * abs(tail[0])
