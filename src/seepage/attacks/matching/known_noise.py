"""What an attacker who is told of the client's noise makes of it: how large it is, and what came before it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from seepage.clients import Aggregate, FedAvg, FedSGD
from seepage.defenses import DPSGD, Compose, DecayingNoise, GaussianNoise, Guardian, UnitNormNoise
from seepage.defenses.dp_sgd import ClippedRule
from seepage.defenses.guardian import GuardianRule
from seepage.types import ClientUpdate, Defense, Knowledge, Round, Update


@dataclass(frozen=True)
class KnownNoise:
    """Gaussian noise on an update that is read as a gradient.

    Attributes:
        deviation: Standard deviation in each entry.
        clip: Largest norm of that gradient before the noise; None: none.
        unit: It was scaled to norm 1 before the noise.
    """

    deviation: float
    clip: float | None = None
    unit: bool = False


def known_noise(knowledge: Knowledge, observed: Round | None = None) -> KnownNoise | None:
    """The noise of a defense the attacker is told of; None where it tells of none, or follows no such noise.

    The noise of several local steps is taken to stay as it was added: that it also moves the later gradients is a
    second-order matter. Behind Adam it does not stay so, and defenses behind the noise change it: None.

    Args:
        knowledge: What the attacker is told.
        observed: The round under attack; None: as of round 0, with one example.
    """
    defense, client = knowledge.defense, knowledge.client
    if isinstance(defense, Compose) or not client.linear_in_gradient:
        return None
    examples, t = (1, 0) if observed is None else (observed.batch_size or 1, observed.t)
    clients = client.clients if isinstance(client, Aggregate) else 1
    if isinstance(defense, DPSGD):
        found = KnownNoise(defense.sigma * defense.clip * _dp_share(client.per_client, examples / clients))
    else:
        found = _on_update(defense, t, _unit(client, examples))
    # The mean of several clients' updates: their noises are independent, and clips of single ones do not show.
    found = replace(found, deviation=found.deviation / math.sqrt(clients))
    if clients > 1:
        found = replace(found, clip=None) if not found.unit else KnownNoise(0.0)
    return found if found.deviation > 0 else None


def _on_update(defense: Defense | None, t: int, unit: float) -> KnownNoise:
    match defense:
        case GaussianNoise() | DecayingNoise():
            sigma = defense.sigma if isinstance(defense, GaussianNoise) else defense.sigma_at(t)
            clip = None if defense.clip is None else defense.clip * unit
            return KnownNoise(sigma * (unit if clip is None else clip), clip)
        case UnitNormNoise() if not defense.restore:
            return KnownNoise(defense.sigma * unit, unit=True) if unit == 1 else KnownNoise(0.0)
    return KnownNoise(0.0)


def _unit(client: ClientUpdate, examples: int) -> float:
    """What one of the update's own units is where the update is read as a gradient."""
    if isinstance(client.per_client, FedSGD):
        return 1.0
    ones = Update({"w": torch.ones(1, dtype=torch.float64)}, kind="delta")
    return abs(float(client.as_gradient(ones, examples)["w"]))


def _dp_share(rule: ClientUpdate, examples: float) -> float:
    """The deviation of the noise in one client's gradient over that in the sum of a local step's examples."""
    if not isinstance(rule, FedAvg):
        return 1 / examples
    sizes = [len(places) for places in rule.batches(math.ceil(examples))]
    reach = _reaches(rule.momentum, len(sizes))
    return math.sqrt(sum((far / size) ** 2 for far, size in zip(reach, sizes, strict=True))) / sum(reach)


def _reaches(momentum: float, steps: int) -> Sequence[float]:
    """How far each local step still moves the weights when the last one is made."""
    return [(1 - momentum ** (steps - s)) / (1 - momentum) for s in range(steps)]


def defended_rule(knowledge: Knowledge, observed: Round | None = None) -> ClientUpdate:
    """The client's rule with what the attacker is told of a defense that is made from the batch.

    That is `dp_sgd`'s clip of examples, and `guardian`'s equation where it is the only defense and one client's update
    is seen.

    Args:
        knowledge: What the attacker is told.
        observed: The round under attack; None: only whether the rule depends on the defense is asked.

    >>> from torch import nn
    >>> defended_rule(Knowledge(nn.Identity(), FedSGD(), (1,), 2, defense=DPSGD(sigma=1.0, clip=0.5)))
    ClippedRule(rule=FedSGD(mode='train'), clip=0.5, still=False)
    """
    client, defense = knowledge.client, knowledge.defense
    first = defense.parts[0] if isinstance(defense, Compose) and defense.parts else defense
    rule = client.per_client
    if isinstance(defense, Guardian) and rule is client and defense.beta > 0:
        return GuardianRule(client, defense.beta, {} if observed is None else observed.update.tensors)
    if not isinstance(first, DPSGD) or not isinstance(rule, FedSGD | FedAvg) or client.batch_coupled(knowledge.model):
        return client
    clipping = ClippedRule(rule, first.clip)
    return replace(client, rule=clipping) if isinstance(client, Aggregate) else clipping
