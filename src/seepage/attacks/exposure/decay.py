"""Weight decay in a difference of weights: read off the last layer, looked for in the others, and taken back out.

SGD with weight decay `wd` and learning rate `lr` moves weights by `-lr (g + wd w)` in a step. The part that holds the
weights themselves says nothing about any example, and attacks that read the difference as a gradient would take it for
one of an example.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor, nn

from seepage.attacks.exposure.balance import HomogeneousPair, homogeneous_pairs, shares_of_neurons
from seepage.attacks.network.outputs import outputs_of
from seepage.attacks.text.moved_rows import LEAST_EXPLAINED
from seepage.base.nn import generator, last_linear, normalized_layers
from seepage.base.rounding import DEVIATIONS
from seepage.federation.types import Tensors

FEWEST_DEVIATIONS = 20
"""Standard errors that the found share must lie above 0."""
BLOCK, LEAST_BLOCK = 256, 8
"""Rows and columns of the part of another layer that is looked at, and how many there must be."""
PASSES = 6
"""How often the directions of a layer's gradient and its decay are found from one another."""
BLOCK_EXPLAINED = 0.99
"""Share of what a layer moved outside its gradient's directions, as a square, that shrinking it must explain."""
LAST_PLACES = 2.0
"""A layer that moved by no more than this many units of its last place, outside its gradient, did not shrink."""
MOST_POSITIONS, MOST_TOKENS = 65_536, 5
"""Rows of a weight up to which it may be a position embedding, and those of them that stand for no patch."""
POSITIONS_ROUNDED = 8.0
"""Times the rounding of the returned weights up to which two gradients are one."""
FURTHER = 4.0
"""How many times worse the other share must meet it."""


@dataclass(frozen=True)
class WeightDecay:
    """What weight decay took off the weights between two checkpoints.

    Attributes:
        share: Of a layer, as a share of it, above 0 and below 1; `lr * wd` of one step without momentum.
        where: That layer's weight, from which it follows.
        shares: The share by name, for those of the weights that shrank.
        spared: Weights that moved and did not shrink, biases and norms left out.
        guessed: No other layer shows whether it shrank, so that it is taken to have done so as the last one did.
        vectors: Biases and norms shrank as well, as PyTorch's optimizers have it where nobody names groups.
        by: What tells it.
    """

    share: float
    where: str
    shares: Mapping[str, float]
    spared: int = 0
    guessed: bool = True
    vectors: bool = True
    by: str = "by what all its rows together moved"

    def words(self, lr: float | None) -> str:
        """How much weight decay there was, and what it follows from.

        Args:
            lr: Learning rate of the one step, if known.
        """
        size = "" if lr is None else f", so about {self.share / lr:.2g} if that was plain SGD at a rate of {lr:.3g}"
        which = "" if self.vectors else ", none off biases and norms"
        which += f", none off {self.spared} other weights" if self.spared else ""
        others = "; other layers do not tell, and are taken to have shrunk as well" if self.guessed else ""
        return f"{self.share:.3g} of {self.where}, {self.by}{size}{which}; taken out of the update{others}"


def infer_weight_decay(
    model: nn.Module, before: Tensors, delta: Tensors, num_classes: int, input_shape: tuple[int, ...]
) -> WeightDecay | None:
    """Weight decay of SGD from what all rows of the last layer together moved; None where that shows none.

    The softmax does not change when one vector is added to all rows, so that the rows of a gradient of cross-entropy,
    also a smoothed or weighted one, add up to 0: whatever the examples, in each local step. Only weight decay moves the
    sum of the rows, and along itself: by `1 - (1 - lr wd)^steps` of it. Another loss, noise or compression moves it
    elsewhere, and then nothing is said.

    Clients may have spared other layers, or given them another rate. Two things show that of a layer. A gradient of
    low rank leaves directions in which only decay moves the layer. And neurons between homogeneous layers balance in a
    gradient, which decay shifts (see `balance`). Where nothing shows it, a layer is taken to have shrunk as others did.

    Args:
        model: The architecture.
        before: Weights that were sent out.
        delta: Weights after minus before, of SGD on cross-entropy; momentum may be in it.
        num_classes: Classes of the model.
        input_shape: Shape of one example.

    >>> layer = nn.Linear(6, 4)
    >>> before = {name: tensor.detach().clone() for name, tensor in layer.named_parameters()}
    >>> loss = nn.functional.cross_entropy(layer(torch.rand(3, 6)), torch.tensor([0, 2, 2]))
    >>> loss.backward()
    >>> torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=0.01).step()
    >>> delta = {name: tensor.detach() - before[name] for name, tensor in layer.named_parameters()}
    >>> found = infer_weight_decay(layer, before, delta, 4, (6,))
    >>> round(found.share, 6), found.where
    (0.001, 'weight')
    """
    says = getattr(model, "no_weight_decay", None)
    try:
        spared = {str(name) for name in says()} if callable(says) else set[str]()
    except Exception:  # somebody's own code, which nobody has to call to train the network
        spared = set()

    def pairs() -> list[HomogeneousPair]:
        normed = set(normalized_layers(model, before, input_shape).values())
        rows = [HomogeneousPair(f"{layer}.weight".removeprefix("."), None, None) for layer in normed]
        return [*homogeneous_pairs(model, input_shape), *rows]

    return decay_of_rows(_last_layer(model, num_classes, input_shape), before, delta, spared, pairs)


def _last_layer(model: nn.Module, classes: int, input_shape: tuple[int, ...]) -> tuple[str, str | None] | None:
    """Names of weight and bias of the layer of the classes: fully connected, or the convolution that makes maps."""
    if (linear := last_linear(model, classes)) is not None:
        return linear
    try:
        made = outputs_of(model, input_shape)
    except Exception:  # somebody's own code, reported where the outputs are used
        return None
    own = "" if made is None or not made.layer else f"{made.layer}."
    return None if made is None else (f"{own}weight", f"{own}bias")


def decay_of_rows(
    names: tuple[str, str | None] | None,
    before: Mapping[str, Tensor],
    delta: Mapping[str, Tensor],
    exempt: Collection[str] = (),
    pairs: Callable[[], Sequence[HomogeneousPair]] = list,
) -> WeightDecay | None:
    """The same from the names of the last layer's weight `[classes, k]` and bias; None where there is no such layer.

    `before` and `delta` are asked for one tensor at a time; `exempt` are weights that the network itself says should
    not decay, taken for so where no equation shows it; `pairs` finds layers whose neurons balance, where there is one.
    """
    if names is None or names[0] not in delta or names[0] not in before or len(before[names[0]]) < 2:
        return None
    weight, bias = names
    # The rows of a cross-entropy's gradient add up to 0, so decay alone moves their sum: sum dW = -a sum W. [k]
    still, moved = (tensors[weight].double().flatten(1).sum(0) for tensors in (before, delta))
    # Least squares of moved = -a still, with its standard error from what is left.
    size = float(still.square().sum())
    share = -float(still @ moved) / size if size else 0.0
    left = float((moved + share * still).square().sum())
    error = (left / max(len(still) - 1, 1) / size) ** 0.5 if size else 0.0
    explained = left <= (1 - LEAST_EXPLAINED) * float(moved.square().sum())
    if not 0 < share < 1 or not explained or share < FEWEST_DEVIATIONS * error:
        return None
    vectors = _vectors_too(before, delta, bias, share)
    # Layers of their own rate or none: by directions that no gradient moves, then by their neurons.
    shown = dict[str, float]()
    for name in delta:
        if name != weight and name in before and delta[name].ndim > 1 and bool(delta[name].any()):
            found = _of_block(before[name].flatten(1).double(), delta[name].flatten(1).double(), share)
            shown |= {} if found is None else {name: found}
    rest = median(shown.values()) if shown else share  # of layers that show nothing
    ends = {} if vectors is None else {name: rest if vectors else 0.0 for name in delta if delta[name].ndim == 1}
    balanced = shares_of_neurons(pairs(), before, delta, share, {weight: share, **shown, **ends})
    shown |= {name: found for name, found in balanced.items() if delta[name].ndim > 1}
    rest = median(shown.values()) if shown else share
    shown |= dict.fromkeys((name for name in exempt if name in delta and name not in shown), 0.0)
    shown |= _of_positions(before, delta, rest)
    if vectors is None:
        votes = [found > 0 for name, found in balanced.items() if delta[name].ndim == 1]
        vectors = not votes or sum(votes) * 2 > len(votes)
    shares = {weight: share}
    for name in delta:
        tensor = delta[name]
        if name == weight or name not in before or not bool(tensor.any()):
            continue  # what did not move at all was not trained
        if tensor.ndim > 1:
            shares[name] = shown.get(name, rest)
        else:
            shares[name] = (share if name == bias else rest) if vectors else 0.0
    spared = sum(1 for name, found in shares.items() if not found and delta[name].ndim > 1)
    guessed = not shown and any(delta[name].ndim > 1 for name in shares if name != weight)
    return WeightDecay(share, weight, {k: a for k, a in shares.items() if a}, spared, guessed, vectors)


def decay_of_directions(before: Mapping[str, Tensor], delta: Mapping[str, Tensor]) -> WeightDecay | None:
    """Weight decay under any loss: layers shrank along themselves in the directions that their gradient leaves free.

    None where no layer shows any; layers that show nothing are taken to have shrunk as those did. Arguments as of
    `infer_weight_decay`.
    """
    shown, share = dict[str, float](), 0.0
    for _ in range(2):  # first which layers shrank, then of which others that would have shown
        for name, moved in delta.items():
            if name not in shown and name in before and moved.ndim > 1 and bool(moved.any()):
                found = _of_block(before[name].flatten(1).double(), moved.flatten(1).double(), share)
                shown |= {} if found is None else {name: found}
        share = max(shown.values(), default=0.0)
        if not share:
            return None
    where = max((name for name in shown if shown[name]), key=lambda name: before[name].numel(), default=None)
    assert where is not None  # as some layer shrank
    share = shown[where]
    shares = {name: shown.get(name, share) for name, moved in delta.items() if name in before and bool(moved.any())}
    spared = sum(1 for name, found in shares.items() if not found)
    guessed = any(name not in shown for name in shares)
    by = "by the directions that its gradient leaves free"
    return WeightDecay(share, where, {k: a for k, a in shares.items() if a}, spared, guessed, by=by)


def _vectors_too(
    before: Mapping[str, Tensor], delta: Mapping[str, Tensor], bias: str | None, share: float
) -> bool | None:
    """Whether the last bias shrank as the weight did; None where its sum is too small to show it."""
    if bias is None or bias not in delta or bias not in before:
        return None
    still, moved = float(before[bias].double().sum()), float(delta[bias].double().sum())
    # Each returned bias is rounded to half a unit of its last place.
    rounded = float((torch.finfo(before[bias].dtype).eps * before[bias].double()).norm())
    return None if share * abs(still) <= 4 * rounded else abs(moved + share * still) < abs(moved)


def _of_positions(before: Mapping[str, Tensor], delta: Mapping[str, Tensor], share: float) -> dict[str, float]:
    """By how much position embeddings, and tokens that stand beside them, shrank: by the gradients that they share.

    Tokens are `z_p = E x_p + b + pos_p`, so the gradient of b is the sum of those of the rows pos_p of the patches, and
    a class token's is that of its own row, whatever the network behind, the batch and the steps. Of the shares 0 and
    `share` of each the pair is taken that meets this to rounding, where no other one does.
    """
    biases = {
        name: tensor
        for name, tensor in delta.items()
        if tensor.ndim == 1
        and name in before
        and name.endswith("bias")
        and f"{name.removesuffix('bias')}weight" in delta
    }
    found = dict[str, float]()
    for name, moved in delta.items() if share else ():
        rows = moved.numel() // max(moved.shape[-1], 1) if moved.ndim > 1 else 0
        if name not in before or not 2 <= rows <= MOST_POSITIONS or not bool(moved.any()):
            continue
        start, moved = (one.double().reshape(rows, -1) for one in (before[name], moved))
        for bias, other in biases.items():
            if len(other) != moved.shape[1]:
                continue
            pair = (before[bias].double(), other.double())
            for first in range(min(rows - 1, MOST_TOKENS) + 1):
                shown = _shared(pair, (start[first:], moved[first:]), share)
                if shown is None:
                    continue
                found[name] = shown
                for token, at in delta.items():
                    if token in before and at.ndim > 1 and at.numel() == len(other) and token != name:
                        own = (before[token].double().flatten(), at.double().flatten())
                        row = (start[:1], moved[:1] + shown * start[:1])
                        of_token = _shared(own, row, share, known=True)
                        found |= {} if of_token is None else {token: of_token}
    return found


def _shared(
    vector: tuple[Tensor, Tensor], rows: tuple[Tensor, Tensor], share: float, *, known: bool = False
) -> float | None:
    """By how much rows `[r, d]` shrank whose gradients add up to a vector's; where those are `known`, the vector.

    None where no pair of the shares 0 and `share` gives the same sum to rounding, or several do.
    """
    (start, moved), (starts, moves) = vector, rows
    summed, still = moves.sum(0), starts.sum(0)
    eps = torch.finfo(torch.float32).eps
    # Each returned weight is rounded to half a unit of its last place, evenly.
    rounded = eps / 12**0.5 * float((starts.square().sum() + start.square().sum()).sqrt())
    rounded += eps * float(moves.norm())
    missed = {
        (own, other): float((moved + own * start - summed - other * still).norm())
        for own in (0.0, share)
        for other in ((0.0,) if known else (0.0, share))
    }
    place = 0 if known else 1
    best = {a: min(miss for pair, miss in missed.items() if pair[place] == a) for a in (0.0, share)}
    near, far = sorted(best.values())
    if near > POSITIONS_ROUNDED * rounded or far < FURTHER * max(near, rounded):
        return None
    return min(best, key=best.__getitem__)


def _of_block(start: Float[Tensor, "m d"], moved: Float[Tensor, "m d"], least: float) -> float | None:
    """By how much a layer shrank, from a part of it; None where its gradient leaves no direction free.

    Args:
        start: The weight.
        moved: By how much it moved: `-a start`, and a matrix of a rank below half the part's.
        least: A share that others shrank by: 0 is said only where this would have shown.
    """
    draw = generator(0, "weight decay")
    rows, columns = (torch.randperm(k, generator=draw)[:BLOCK] for k in start.shape)
    start, moved = (one[rows][:, columns] for one in (start, moved))
    half = min(start.shape) // 2
    if half < LEAST_BLOCK // 2 or not bool(start.any()):
        return None
    share = 0.0
    for _ in range(PASSES):
        off = moved + share * start
        if not bool(off.isfinite().all()):
            return None  # a stranger's numbers
        left, _, right = torch.linalg.svd(off, full_matrices=False)  # of D + a W, the gradient's part at this share
        # In these directions, left and right, the gradient is nothing.
        free, freely = (left[:, half:].T @ one @ right[half:].T for one in (start, moved))
        size = float(free.square().sum())
        share = -float((free * freely).sum()) / size if size else 0.0
    left_over = float((freely + share * free).square().sum())
    # Returned float32 weights are rounded to half a unit of their last place, which hides single moves and not all.
    if float(freely.norm()) <= LAST_PLACES * torch.finfo(torch.float32).eps * float(free.norm()):
        error = (left_over / free.numel() / size) ** 0.5 if size else math.inf
        return 0.0 if DEVIATIONS * error < least and abs(share) <= DEVIATIONS * error else None
    explained = left_over <= (1 - BLOCK_EXPLAINED) * float(freely.square().sum())
    return share if explained and 0 < share < 1 else None
