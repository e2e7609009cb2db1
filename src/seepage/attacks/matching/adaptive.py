"""Distances of an attacker who knows the client's defense: what the defense hides is not held against a guess.

The dummy gradient goes through what is known of the defense before it is compared, so every distance can be used:
entries that were hidden are hidden in it too, and one that lies within the rounding of what was observed counts as
equal to it.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from seepage.attacks.matching.distances import Distance
from seepage.types import DefenseModel, Knowledge, Round, Tensors


@dataclass(frozen=True)
class DefenseAware(Distance):
    """A distance that follows the client's defense where the attacker is told of it, and is `inner` where not.

    What a defense lets an attacker do to a guess's gradient it states itself (`Defense.attacker_models`), and each of
    these models says which distances it helps: a cosine has no use for a known clip, and a rounding interval helps sums
    of absolute differences only. Nothing is followed behind the sum of several clients' updates.

    >>> from seepage.clients import FedSGD
    >>> from torch import nn
    >>> from seepage.attacks.matching.distances import L2
    >>> from seepage.defenses import Sparsify
    >>> told = Knowledge(nn.Identity(), FedSGD(), (1,), 2, defense=Sparsify(keep=0.5))
    >>> known = DefenseAware(L2()).adapt_to(told)
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
            dummy = model(dummy, target)
        return self.inner(dummy, target)
