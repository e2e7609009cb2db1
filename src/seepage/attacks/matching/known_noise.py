"""What an attacker who is told of the client's defense makes of it: how large its noise is, and what came before it."""

import math
from dataclasses import replace

from seepage.types import ClientUpdate, Knowledge, Noise, Round


def known_noise(knowledge: Knowledge, observed: Round | None = None) -> Noise | None:
    """The Gaussian noise of a defense the attacker is told of; None where there is none that is known.

    The noise of several local steps is taken to stay as it was added: that it also moves the later gradients is a
    second-order matter. Behind Adam it does not stay so, and defenses behind the noise change it: None.

    Args:
        knowledge: What the attacker is told.
        observed: The round under attack; None: as of round 0, with one example.
    """
    defense, client = knowledge.defense, knowledge.client
    if defense is None or not client.linear_in_gradient:
        return None
    examples, t = (1, 0) if observed is None else (observed.batch_size or 1, observed.t)
    clients = client.num_clients
    noise = defense.added_noise(client.per_client, examples / clients, t)
    if noise is None or noise.law != "gaussian" or not noise.deviation > 0:
        return None
    if clients == 1:
        return noise
    # The mean of several clients' updates: their noises are independent, and clips of single ones do not show.
    return None if noise.unit else replace(noise, deviation=noise.deviation / math.sqrt(clients), clip=None)


def defended_rule(knowledge: Knowledge, observed: Round | None = None) -> ClientUpdate:
    """The client's rule with what the attacker is told of a defense that is made from the batch.

    Args:
        knowledge: What the attacker is told.
        observed: The round under attack; None: only whether the rule depends on the defense is asked.

    >>> from torch import nn
    >>> from seepage.clients import FedSGD
    >>> from seepage.defenses import DPSGD
    >>> defended_rule(Knowledge(nn.Identity(), FedSGD(), (1,), 2, defense=DPSGD(sigma=1.0, clip=0.5)))
    ClippedRule(rule=FedSGD(mode='train'), clip=0.5, still=False)
    """
    if knowledge.defense is None:
        return knowledge.client
    sent = {} if observed is None else observed.update.tensors
    return knowledge.defense.defended_rule(knowledge.client, knowledge.model, sent)
