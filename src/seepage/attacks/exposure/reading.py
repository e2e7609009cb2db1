"""How attacks read the update of a client that trains by code of its own: what is not stated is read off the update."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from seepage.attacks.exposure.decay import infer_weight_decay
from seepage.attacks.exposure.inference import infer_steps
from seepage.attacks.exposure.rules import adaptive_step, vanishing_sums
from seepage.base.nn import at_state
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.errors import SeepageError, short
from seepage.federation.clients import OwnStep, gradient_behind
from seepage.federation.measured import Step
from seepage.federation.transcript.simulated import Victim
from seepage.federation.types import Tensors, Update

BEYOND = 1.01
"""Times the ceiling of a step from which an entry contradicts it; a decay moves some entries a little more."""


@dataclass(frozen=True)
class OneStep:
    """The one step of a client whose optimizer divides each entry by a size of its own, or which clips entries.

    Attributes:
        step: It.
        told: How it is known, in words.
        shares: The share of each weight that a decay beside it took off, by name.
    """

    step: Step
    told: str
    shares: Mapping[str, float] = field(default_factory=dict)

    def read(self, before: Tensors, update: Update) -> tuple[Update, str]:
        """The gradient behind a difference of weights, as an update, and what is said of it.

        Args:
            before: The weights that were sent out, by name.
            update: Weights after minus before.
        """
        gradient, found = gradient_behind(before, update, self.step, self.shares)
        words, eps = [self.told], self.step.eps
        words += [f"its epsilon is taken for {eps:g}, which scales the whole gradient"] * bool(self.step.scaled and eps)
        words.append(f"of {found.known():.0%} of the entries that moved the size is known")
        beyond = self._beyond(before, update)
        words += [f"but entries moved by {beyond:.3g} times the most that such a step moves any"] * (beyond > BEYOND)
        middle = found.accuracy()
        words += [f"the median one to {middle:.1g} of itself"] if middle is not None and middle < 1 else []
        return gradient, "; ".join(words)

    def _beyond(self, before: Tensors, update: Update) -> float:
        """The largest entry over the ceiling of the step, above 1 where it is beyond it by more than rounding."""
        top = max(float((t + self.shares.get(n, 0.0) * before[n]).abs().max()) for n, t in update.tensors.items())
        times = top * self.step.gain / self.step.rate
        return times if times > 1 + FLOAT32_NETWORK else 1.0


def read_off(victim: Victim) -> Victim:
    """The same victim with an attacker who reads an own training step by what the update shows of it.

    The server sees the weights that it sent and those that were returned, of the first round here, and knows how many
    steps make a round. Nothing else is used: not the examples, and not the code.

    Args:
        victim: Whose rule may be a training step of its own.

    Returns:
        The victim, with what was read off as `inferred`. As it is, where the rule is another or its learning rate was
        stated.

    Raises:
        SeepageError: Where the update does not show the learning rate.
    """
    rule = victim.rule or victim.knowledge.client
    own, knowledge = rule.per_client, victim.knowledge
    if not isinstance(own, OwnStep) or own.stated:
        return victim
    update, model = victim.update(0), at_state(knowledge.model, victim.params, victim.buffers)
    steps = own.rule.count(len(rule.parts(victim.batches(0))[0]))
    sums = vanishing_sums(model, knowledge.num_outputs, own, knowledge.target or "class", knowledge.input_shape)
    adaptive = adaptive_step(update.tensors, victim.params, sums=sums)
    if adaptive is not None:
        read = replace(own.rule, lr=adaptive.size, optimizer="signsgd", momentum=0.0, nesterov=False)
        said = {"optimizer": adaptive.finding.message}
        if adaptive.best is None or steps > 1 or rule is not own or "defense" in knowledge.known:
            return _reading(victim, replace(own, rule=read), said)
        one = OneStep(adaptive.best.step, adaptive.finding.message, adaptive.shares)
        _, said["optimizer"] = one.read(victim.params, update)
        if one.step.eps:
            read = replace(read, optimizer="adam", lr=one.step.rate, eps=one.step.eps)
        return _reading(victim, replace(own, rule=read), said).by_one_step(one.step, one.shares)
    said, decayed, outputs = dict[str, str](), dict[str, float](), knowledge.num_outputs
    if own.loss == "cross_entropy" and victim.defense is None:
        decay = infer_weight_decay(model, victim.params, update.tensors, outputs, knowledge.input_shape)
        if decay is not None:
            said["weight decay"], decayed = decay.words(None), dict(decay.shares)
    freed = update.without_decay(victim.params, decayed).tensors if own.softmax_gradient else {}
    found = infer_steps(
        model, freed, knowledge.input_shape, outputs, lr=None, steps=steps, coupled=own.batch_coupled(model)
    )
    if found is None:
        raise SeepageError(
            f"the training step {short(own.name)} was run, and what it sent does not tell its learning rate to an "
            f"attacker; state it, as attacks need it: --client {own.name}:lr=0.1, or lr in the recipe's [client]"
        )
    lr = found.lr * steps / own.rule.reach(steps)  # with momentum a step moves the weights by more than its rate
    said["learning rate"] = f"about {lr:.2g}, {found.said['learning rate'].partition(', ')[2]}"
    return _reading(victim, replace(own, rule=replace(own.rule, lr=lr), decayed=decayed), said)


def _reading(victim: Victim, own: OwnStep, said: Mapping[str, str]) -> Victim:
    rule = (victim.rule or own).with_per_client(own)
    read = Victim.knowing(replace(victim.knowledge, client=rule), victim.defense)
    return replace(victim, knowledge=read, rule=rule, inferred=said)
