"""What an attacker who knows of the client's defense makes of it: its noise, the client's rule, the distance.

The dummy gradient goes through what is known of the defense before it is compared, so every distance can be used:
entries that were hidden are hidden in it too, and one that lies within the rounding of what was observed counts as
equal to it.
"""

import math
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from seepage.attacks.search.distances import Distance
from seepage.federation.types import ClientUpdate, DefenseModel, Knowledge, Likelihood, Noise, Round, Tensors


def known_noise(knowledge: Knowledge, observed: Round | None = None) -> Noise | None:
    """The Gaussian noise of a defense the attacker knows of; None where there is none that is known.

    The noise of several local steps is taken to stay as it was added: that it also moves the later gradients is a
    second-order matter. Behind Adam it does not stay so, and defenses behind the noise change it: None.

    Args:
        knowledge: What the attacker knows.
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


def known_likelihood(knowledge: Knowledge, observed: Round | None = None) -> Likelihood | None:
    """How likely the client's defense sends what was seen, where the attacker knows of one that says so.

    For one client's update that is an average of gradients; a sum of several clients' has another law.

    Args:
        knowledge: What the attacker knows.
        observed: The round under attack; None: as of one example.
    """
    defense, client = knowledge.defense, knowledge.client
    if defense is None or client.num_clients > 1 or not client.linear_in_gradient:
        return None
    return defense.likelihood(client, 1 if observed is None else observed.batch_size or 1)


def defended_rule(knowledge: Knowledge, observed: Round | None = None) -> ClientUpdate:
    """The client's rule with what the attacker knows of a defense that is made from the batch.

    Args:
        knowledge: What the attacker knows.
        observed: The round under attack; None: only whether the rule depends on the defense is asked.

    >>> from torch import nn
    >>> from seepage.federation.clients import FedSGD
    >>> from seepage.federation.defenses import DPSGD
    >>> defended_rule(Knowledge(nn.Identity(), FedSGD(), (1,), 2, defense=DPSGD(sigma=1.0, clip=0.5)))
    ClippedRule(rule=FedSGD(mode='train'), clip=0.5, still=False)
    """
    if knowledge.defense is None:
        return knowledge.client
    sent = {} if observed is None else observed.update.tensors
    return knowledge.defense.defended_rule(knowledge.client, knowledge.model, sent)


@dataclass(frozen=True)
class DefenseAware(Distance):
    """A distance that follows the client's defense where the attacker knows of it, and is `inner` where not.

    What a defense lets an attacker do to a guess's gradient it states itself (`Defense.attacker_models`), and each of
    these models says which distances it helps: a cosine has no use for a known clip, and a rounding interval helps sums
    of absolute differences only. Nothing is followed behind the sum of several clients' updates.

    >>> from seepage.federation.clients import FedSGD
    >>> from torch import nn
    >>> from seepage.attacks.search.distances import L2
    >>> from seepage.federation.defenses import Sparsify
    >>> informed = Knowledge(nn.Identity(), FedSGD(), (1,), 2, defense=Sparsify(keep=0.5))
    >>> known = DefenseAware(L2()).adapt_to(informed)
    >>> import torch
    >>> dummy, sent = {"w": torch.tensor([2.0, 0.5, -3.0, 1.0])}, {"w": torch.tensor([2.0, 0.0, -3.0, 0.0])}
    >>> float(L2()(dummy, sent)), round(float(known(dummy, sent)), 4)
    (1.25, 0.0011)
    >>> round(float(known({**dummy, "w": torch.tensor([2.0, 0.5, -3.0, 2.5])}, sent)), 4)  # 0.5 over what was sent
    0.3138
    """

    inner: Distance

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        return self.inner(dummy, target)

    def adapt_to(self, knowledge: Knowledge, observed: Round | None = None) -> Distance:
        inner, defense = self.inner.adapt_to(knowledge, observed), knowledge.defense
        if defense is None or knowledge.client.per_client is not knowledge.client:
            return inner
        suited = [
            model.suited_to(
                scale_free=inner.scale_free,
                absolute=inner.absolute,
                single_gradient=knowledge.client.single_gradient,
            )
            for model in defense.attacker_models(knowledge.model)
        ]
        models = tuple(model for model in suited if model is not None)
        return Composed(inner, models) if models else inner


@dataclass(frozen=True)
class Composed(Distance):
    """A distance after the dummy gradient went through what the defense does."""

    inner: Distance
    models: tuple[DefenseModel, ...]

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        for model in self.models:
            target = model.credible(target)  # of what was sent the part that is a gradient
            dummy = model(dummy, target)  # the dummy gradient as it would have been sent
        return self.inner(dummy, target)


@dataclass(frozen=True)
class Stated(Distance):
    """Minus the log-likelihood that a defense states of itself, as a distance."""

    likelihood: Likelihood

    def __call__(self, dummy: Tensors, target: Tensors) -> Float[Tensor, ""]:
        return self.likelihood(dummy, target)
