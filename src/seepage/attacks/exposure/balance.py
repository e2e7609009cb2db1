r"""Whether one step at one rate moved all tensors, by the balance of neurons, under any loss and of any batch.

A neuron between two layers may be scaled, where what lies between them is homogeneous (a ReLU, a pool, nothing at all):
its row w and bias b times s, and its column v of the next layer over s, leave the outputs as they were, so that the
gradient is orthogonal to that direction:

    <w, dL/dw> + b dL/db - <v, dL/dv> = 0            for each neuron, whatever the examples and the loss are

Weights that moved by minus a rate times the gradient keep it within what their rounding leaves. A rate for each tensor,
as of LARS, leaves one equation in three unknown rates for each neuron, which many neurons determine; an optimizer that
changes entries one by one keeps none of it. In sizes, one step moves

    |w|^2 + b^2 - |v|^2   by   |dw|^2 + db^2 - |dv|^2

and s steps of one length and direction by a share 1/s of that; of steps in other directions their cosines decide. So
neurons tell one step from several, where their sizes moved far beyond the errors.

Decay takes a share of each tensor: `<w, dw> + b db - <v, dv>` is then `-a |w|^2 - a' b^2 + a'' |v|^2` and shows which
tensors shrank. Where a batch norm reads a layer, its rows alone are free: `<w, dL/dw> = 0`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from seepage.base.nn import as_inputs, forward, generator, in_mode
from seepage.base.rounding import DEVIATIONS, FLOAT32_NETWORK, FLOAT32_SUM
from seepage.federation.measured import ROUNDING, spread_of

NEURONS = 6
"""Neurons of a pair of layers from which their balance says anything: three rates are fitted."""
BY_CHANCE = 1e-6
"""Chance of another rule to keep the balance, below which it proves one."""
APART = 30.0
"""How many times over its error a neuron's size must have moved: steps that are nearly orthogonal leave so little."""
ONE_RATE = 1e-2
"""Relative difference up to which rates that were fitted are one."""
FEWEST_NEURONS = 48
"""Neurons that tell one step: two examples switch no neuron of n on that is the same by a chance of `(3/4)^n`."""
OWN_RATES = 1.1
"""How many times one rate must be another to be one of its own: several steps bend sums by some hundredths."""
PROBED = 2
"""Made-up examples by which the layers that neurons stand between are found."""
ONE_STEP = "1, as several would have moved the sizes of {} neurons otherwise"
"""What is said of local steps that the balance of neurons tells."""
WORSE = 20.0
"""How many times worse every other share must meet the balance for one to be right; a twentieth off is another one."""


@dataclass(frozen=True)
class HomogeneousPair:
    """Two layers between which neurons may be scaled, by the names of their tensors; one, whose scale a norm undoes."""

    weight: str
    bias: str | None
    after: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """Of its tensors."""
        return tuple(name for name in (self.weight, self.bias, self.after) if name is not None)


@dataclass(frozen=True)
class Balance:
    """What the neurons of a network say of a difference of weights.

    Attributes:
        neurons: How many were looked at.
        rates: The rate of each tensor that they tell over that of the first, where these differ; empty: one rate.
        single: It was one step, as several would have moved the neurons' sizes otherwise.
        names: Of the tensors that were looked at.
    """

    neurons: int
    rates: Mapping[str, float]
    single: bool = False
    names: frozenset[str] = frozenset()


def homogeneous_pairs(model: nn.Module, input_shape: tuple[int, ...]) -> list[HomogeneousPair]:
    """Pairs of layers whose neurons balance in a made-up gradient of a made-up loss.

    >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> homogeneous_pairs(net, (4,))
    [HomogeneousPair(weight='0.weight', bias='0.bias', after='2.weight')]
    """
    own = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    draw = generator(0, "balance")
    noise = torch.rand((PROBED, *input_shape), generator=draw, dtype=torch.float64).to(next(iter(own.values())))
    with torch.enable_grad(), in_mode(model, training=False):
        outputs = forward(model, own, as_inputs(model, noise))
        loss = (outputs * torch.rand(outputs.shape, generator=draw).to(outputs)).sum()
        slopes = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
    terms = {name: (p * g).detach() for (name, p), g in zip(own.items(), slopes, strict=True) if g is not None}
    found, before = list[HomogeneousPair](), dict[str, tuple[Tensor, Tensor]]()
    for prefix in (name.removesuffix("weight") for name in terms if name.endswith("weight") and terms[name].ndim):
        weight, bias = f"{prefix}weight", f"{prefix}bias"
        if terms[weight].ndim > 1:
            # The nearest layer before it that balances: further ones do where nothing but factors lies between.
            for first in reversed(before):
                columns = _columns(terms[weight], len(before[first][0]))
                if columns is not None and _vanish(before[first][0] - columns.sum(1), before[first][1]):
                    with_bias = f"{first.removesuffix('weight')}bias"
                    found.append(HomogeneousPair(first, with_bias if with_bias in terms else None, weight))
                    break
        shifted = bias in terms and terms[bias].shape == terms[weight].shape[:1]  # not of a transposed convolution
        parts = [terms[weight].reshape(len(terms[weight]), -1), *([terms[bias][:, None]] if shifted else [])]
        before[weight] = torch.cat(parts, 1).sum(1), torch.cat(parts, 1).abs().sum(1)
    return found


def _columns(terms: Tensor, neurons: int) -> Tensor | None:
    """`[neurons, columns of each and rows]` of a layer behind; None where it cannot read so many."""
    if terms.shape[1] % neurons:
        return None
    return terms.movedim(1, 0).reshape(neurons, -1)


def _vanish(sums: Tensor, sizes: Tensor) -> bool:
    live = sizes > 0
    return int(live.sum()) >= NEURONS and bool((sums[live].abs() <= FLOAT32_NETWORK * sizes.max()).all())


def balance_of(
    model: nn.Module,
    input_shape: tuple[int, ...],
    moved: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
) -> Balance | None:
    """What the neurons say of a difference of weights; None where they say nothing, or that it is no such step.

    Args:
        model: The network, at any weights.
        input_shape: Shape of one example.
        moved: By how much each tensor changed, but for decay.
        weights: What was sent out, by name.
    """
    asked = [
        pair
        for pair in homogeneous_pairs(model, input_shape)
        if all(name in moved and name in weights for name in pair.names)
    ]
    seen = [one for pair in asked if (one := _Neurons.of(pair, moved, weights)) is not None]
    if not seen:
        return None
    count = sum(len(one.terms) for one in seen)
    even = [one.chance(torch.ones(one.terms.shape[1])) for one in seen]
    if all(chance is not None for chance in even):
        proved = math.prod(chance for chance in even if chance is not None) < BY_CHANCE
        names = frozenset(name for one in seen for name in one.names)
        single = count >= FEWEST_NEURONS and all(one.single for one in seen)
        return Balance(count, {}, single, names) if proved else None
    rates = dict[str, float]()
    for one in seen:
        fitted = one.fitted()
        if fitted is None:
            return None
        own = dict(zip(one.names, fitted, strict=True))
        shared = next((name for name in own if name in rates), None)
        over = 1.0 if shared is None else rates[shared] / own[shared]
        if shared is None and rates:
            continue  # which rates it has beside the others' nothing says
        rates |= {name: rate * over for name, rate in own.items() if name not in rates}
    return (
        Balance(count, rates, names=frozenset(rates)) if max(rates.values()) / min(rates.values()) > OWN_RATES else None
    )


@dataclass(frozen=True)
class _Neurons:
    """The neurons of one pair of layers.

    Attributes:
        names: Of the tensors that are balanced.
        terms: `[neurons, tensors]` the sums over each tensor, that of the layer behind with its sign turned.
        squares: `[neurons, tensors]` those of the weights, likewise.
        moves: `[neurons]` squares of what they moved by, likewise, all tensors together.
        off: `[neurons]` standard errors of their sum.
        single: Sizes moved as by one step.
    """

    names: tuple[str, ...]
    terms: Tensor
    squares: Tensor
    moves: Tensor
    off: Tensor
    single: bool

    @classmethod
    def of(cls, pair: HomogeneousPair, moved: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> "_Neurons | None":
        neurons, terms, errors, sizes = len(weights[pair.weight]), list[Tensor](), torch.zeros(()), list[Tensor]()
        squares = list[Tensor]()
        for name in pair.names:
            weight, change = weights[name].double(), moved[name].double()
            spread = (spread_of(weight + change, "float32").square() + (2 * ROUNDING * change).square()).sqrt()
            if name == pair.after:
                weight, change, spread = (one.movedim(1, 0) for one in (weight, change, spread))
            weight, change, spread = (one.reshape(neurons, -1) for one in (weight, change, spread))
            sign = -1.0 if name == pair.after else 1.0
            terms.append(sign * (weight * change).sum(1))
            squares.append(sign * weight.square().sum(1))
            sizes.append(sign * change.square().sum(1))
            # Sums of float32 leave each entry of a gradient off by a share of the largest.
            summed = FLOAT32_SUM * (weight * change).abs().sum(1) + 2 * ROUNDING * change.abs().max() * weight.norm(
                dim=1
            )
            errors = errors + (weight * spread).square().sum(1) + summed.square()
        every, off = torch.stack(terms, 1), errors.sqrt()
        live = every.abs().amax(1) > DEVIATIONS * off
        if int(live.sum()) < NEURONS:
            return None
        moves = torch.stack(sizes, 1).sum(1)[live]
        half = moves.abs() / 4  # two steps of one length leave at least so much
        single = bool(half.median() > APART * DEVIATIONS * off[live].median())
        return cls(pair.names, every[live], torch.stack(squares, 1)[live], moves, off[live], single)

    def missed(self, shares: Tensor) -> float:
        """How far the balance is missed where tensors lost these shares, in errors.

        Steps after the first start from other weights, whose products with their moves the first weights' miss by at
        most half the squares of all that moved, one way or the other.
        """
        sums = (self.terms + shares * self.squares).sum(1) / self.off
        later = self.moves / self.off
        part = float((sums @ later) / later.square().sum().clamp(min=1e-300))
        return float((sums - min(max(part, -0.5), 0.5) * later).square().mean().sqrt())

    def chance(self, over: Tensor) -> float | None:
        """Chance of another rule to leave sums as small as these at some rates; None where they do not vanish."""
        sums = self.terms @ over.double()
        if float((sums / self.off).square().mean().sqrt()) > DEVIATIONS:
            return None
        ratios = (DEVIATIONS * self.off / self.terms.abs().amax(1)).clamp(max=1.0)
        fitted = 0 if bool((over == 1).all()) else self.terms.shape[1] - 1
        return math.exp(float(ratios.log().sum()) * max(len(ratios) - fitted, 0) / len(ratios))

    def fitted(self) -> list[float] | None:
        """The rate of each tensor over the first's, where rates make all neurons balance; None where none do."""
        scaled = self.terms / self.off[:, None]
        least = torch.linalg.svd(scaled).Vh[-1]
        over = least / least[0]  # one over the rates, up to a factor
        values = torch.linalg.svdvals(scaled)
        clear = len(values) == 1 or float(values[-1]) * DEVIATIONS < float(values[-2])
        if not clear or not bool((over > 0).all()):
            return None
        chance = self.chance(over)
        return [1 / float(one) for one in over] if chance is not None and chance < BY_CHANCE else None


def shares_of_neurons(
    pairs: Sequence[HomogeneousPair],
    before: Mapping[str, Tensor],
    delta: Mapping[str, Tensor],
    share: float,
    known: Mapping[str, float],
) -> dict[str, float]:
    """Which tensors shrank by a share and which by nothing, as the balance of their neurons shows.

    Args:
        pairs: Of the network, from its first layer to its last.
        before: Weights that were sent out.
        delta: By how much each moved.
        share: What those that shrank lost.
        known: What tensors are known to have lost.

    Returns:
        Of those that are not known, where no other choice meets the balance nearly as well.
    """
    found = dict(known)
    for pair in reversed(pairs):
        if not all(name in delta and name in before for name in pair.names):
            continue
        neurons = _Neurons.of(pair, delta, before)
        if neurons is None:
            continue
        choices = [(found[name],) if name in found else (0.0, share) for name in pair.names]
        missed = dict[tuple[float, ...], float]()
        for shares in product(*choices):
            missed[shares] = neurons.missed(torch.tensor(shares, dtype=torch.float64))
        for place, name in enumerate(pair.names):
            best = {one: min(off for shares, off in missed.items() if shares[place] == one) for one in choices[place]}
            right = min(best, key=best.__getitem__)
            if all(off >= WORSE * max(best[right], 1.0) for one, off in best.items() if one != right):
                found[name] = right
    return {name: one for name, one in found.items() if name not in known}


def every_rate(rates: Mapping[str, float], names: Iterable[str], reference: str | None) -> dict[str, float] | None:
    """The rate of every tensor over that of one, by those that neurons tell.

    Of the others: what a layer's other tensor has, where rates are those of layers, or what other vectors have, where
    they are those of matrices and vectors.

    Args:
        rates: Of some tensors, over the first of them.
        names: Of all.
        reference: The tensor whose rate is called 1, such as the last bias.

    Returns:
        None where nothing tells the rate of the reference.

    >>> found = {"0.weight": 1.0, "0.bias": 1.0, "2.weight": 10.0}
    >>> every_rate(found, ["0.weight", "0.bias", "2.weight", "2.bias"], "2.bias")
    {'0.weight': 0.1, '0.bias': 0.1, '2.weight': 1.0, '2.bias': 1.0}
    """
    layers = dict[str, list[float]]()
    for name, rate in rates.items():
        layers.setdefault(name.rpartition(".")[0], []).append(rate)
    vectors = [rate for name, rate in rates.items() if name.endswith("bias")]
    full = dict(rates)
    for name in names:
        own = layers.get(name.rpartition(".")[0], [])
        if name not in full and own and all(_one(each) for each in layers.values()) and len(rates) > len(layers):
            full[name] = own[0]
        elif name not in full and name.endswith("bias") and vectors and _one(vectors):
            full[name] = vectors[0]
    base = full.get(str(reference))
    return None if base is None else {name: full[name] / base for name in names if name in full}


def _one(rates: Iterable[float]) -> bool:
    every = list(rates)
    return max(every) <= (1 + ONE_RATE) * min(every)
