"""How attacks read the update of a client that trains by code of its own: what is not stated is read off the update."""

from collections.abc import Mapping
from dataclasses import replace

from seepage.attacks.exposure.decay import infer_weight_decay
from seepage.attacks.exposure.inference import infer_steps
from seepage.attacks.exposure.rules import adaptive_step
from seepage.base.nn import at_state
from seepage.errors import SeepageError, short
from seepage.federation.clients import OwnStep
from seepage.federation.transcript.simulated import Victim


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
    adaptive = adaptive_step(update.tensors, victim.params)
    if adaptive is not None:
        read = replace(own.rule, lr=adaptive.size, optimizer="signsgd", momentum=0.0, nesterov=False)
        return _reading(victim, replace(own, rule=read), {"optimizer": adaptive.finding.message})
    said, decayed, outputs = dict[str, str](), dict[str, float](), knowledge.num_outputs
    if own.loss == "cross_entropy" and victim.defense is None:
        decay = infer_weight_decay(model, victim.params, update.tensors, outputs)
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
