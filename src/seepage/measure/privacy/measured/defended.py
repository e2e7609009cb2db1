"""Measure the epsilon of a defense of this package, as a client of the simulation applies it."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Generator, Tensor, nn

from seepage.base.nn import generator
from seepage.errors import refuse
from seepage.federation.clients import FedSGD
from seepage.federation.types import Batch, ClientView, Defense, GaussianMechanism, Tensors, Update
from seepage.measure.privacy.guarantee import guarantee_of
from seepage.measure.privacy.measured.canaries import LONG, Array, InRounds, Neighbors, Pair
from seepage.measure.privacy.measured.measure import MeasuredEpsilon, Measurement

INPUTS = 16
"""Inputs of the linear model whose examples are canaries."""


def measure_defense(defense: Defense, how: Measurement, *, participations: int = 1, seed: int = 0) -> MeasuredEpsilon:
    """Measure a defense's epsilon, beside what is computed from its options.

    The unit is what its mechanism protects: an example, for a defense such as `dp_sgd` that makes the update anew from
    them, else the client's whole update.

    Args:
        defense: The defense.
        how: The measurement. What it says of the unit, of a computed epsilon, and of whether rounds are alike, is
            replaced by what the defense's own options say; for neighbors that `replace`, none is computed.
        participations: Local steps of a round in which one example is used, for noise in each: the claims are over
            all of them, and each is a round here.
        seed: Draws canaries and noise.

    Raises:
        Inapplicable: For a defense that needs other examples, or other clients, than canaries.
    """
    stages, rounds = defense.stages(), range(how.rounds)
    mechanism = next((found for stage in stages if (found := stage.mechanism(rounds)) is not None), None)
    guarantee = guarantee_of(defense, rounds, how.delta, participations=participations)
    how = replace(
        how,
        computed=None if guarantee is None or how.neighbors == "replace" else guarantee.epsilon,
        rounds=how.rounds * (participations if mechanism is not None and mechanism.every_step else 1),
        alike=mechanism is None or not isinstance(mechanism.sigma, tuple),
        unit="example" if stages[0].from_batch else "update",
    )
    if any(stage.acts_on != "update" for stage in stages):
        raise refuse("cancels_in_sum")(
            "what it does cancels in a sum of clients, or the server's sum is as without it",
            "measure a defense that changes each update by itself",
        )
    if stages[0].from_batch:
        return how.pairs(_example_pairs(defense, mechanism, how.neighbors, seed))
    if any(stage.reads_examples for stage in stages):
        raise refuse("needs_examples")(
            "it looks at the client's examples, which a canary update has none of",
            "measure the defenses behind it alone, or call the client's own code by Measurement.pairs",
        )
    return how.epsilon(filter_of(defense, seed=seed), clip=(mechanism.clip if mechanism else None) or 1.0, seed=seed)


def filter_of(defense: Defense, *, seed: int = 0) -> InRounds:
    """A defense that needs only the update, as a filter with a stream of randomness of its own.

    >>> from seepage.federation.defenses import GaussianNoise
    >>> sent = filter_of(GaussianNoise(sigma=0.0, clip=1.0)).call({"w": torch.tensor([3.0, 4.0])}, 0)
    >>> sent["w"]
    tensor([0.6000, 0.8000])
    """
    draws = generator(seed, "measured")
    nobody = Batch(torch.empty(0), torch.empty(0, dtype=torch.int64))
    view = ClientView(nn.Identity(), {}, nobody, FedSGD())

    def call(update: Tensors, t: int) -> Tensors:
        here = replace(view, params={name: torch.zeros_like(tensor) for name, tensor in update.items()}, t=t)
        return defense(Update(update, kind="delta"), here, generator=draws).tensors

    return InRounds(call)


def _example_pairs(
    defense: Defense, mechanism: GaussianMechanism | None, neighbors: Neighbors, seed: int
) -> list[Pair]:
    """A batch of one canary, against an example whose gradient is zero or, to be replaced, the canary's negative.

    The model is linear with zero weights and two classes: the gradient of cross-entropy in row k of its weights is
    (1/2 - [y = k]) x, so it has norm |x| / sqrt(2), is zero for x = 0, and turns to its negative with the label.
    """
    clip = (mechanism.clip if mechanism else None) or 1.0
    draws, length = generator(seed, "measured"), clip * math.sqrt(2)
    signs = torch.from_numpy(np.random.default_rng(seed).choice([-1.0, 1.0], INPUTS)).float()
    dirac = torch.eye(INPUTS)[0]
    canaries = {
        "an example on one input": length * dirac,
        "an example on all inputs": length * signs / math.sqrt(INPUTS),
        f"an example {LONG:g} times the clip": LONG * length * dirac,
    }
    found = []
    for name, x in canaries.items():
        other = (x, 1) if neighbors == "replace" else (torch.zeros_like(x), 0)
        sides = (_Steps(defense, *other, draws), _Steps(defense, x, 0, draws))
        shift = sides[1].gradient - sides[0].gradient
        found.append(Pair(name, *sides, shift.flatten().double().numpy()))
    return found


class _Steps:
    """Updates of a client with one example, behind the defense."""

    def __init__(self, defense: Defense, x: Tensor, label: int, draws: Generator) -> None:
        self.defense, self.draws = defense, draws
        model = nn.Linear(INPUTS, 2, bias=False)
        params = {"weight": torch.zeros(2, INPUTS)}
        self.view = ClientView(model, params, Batch(x[None], torch.tensor([label])), FedSGD())
        self.update = self.view.rule(model, params, self.view.batch)
        self.gradient = self.update.tensors["weight"].detach()

    def __call__(self, trials: int, rounds: int) -> Array:
        rows = [self._once(i % rounds) for i in range(trials * rounds)]
        return np.stack(rows).reshape(trials, rounds, -1)

    def _once(self, t: int) -> Array:
        sent = self.defense(self.update, replace(self.view, t=t), generator=self.draws)
        return sent.tensors["weight"].detach().double().flatten().numpy()
