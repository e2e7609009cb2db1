r"""What softmax regression from zero weights gives away: the sum of each class, and so the only example of one.

Where the weights W of a softmax's only layer are zero, its probabilities p are those of its bias whatever the examples
are. Of n examples, `c_k` of class k with the sum `C_k`, and s the mean of all,

    n dL/db_k = n p_k - c_k,        n dL/dW_k = n p_k s - C_k

so the counts are read off the bias. A class that is in no example has `C_k = 0`, and its row gives s; then every sum is
known. Where all classes are there, s is open: no row of a gradient tells it, as `sum_k dL/dW_k = 0`. But values have a
least size, so `C_k >= c_k low` bounds s from below for each k, and is met where one of the classes is empty there, as
the background of a drawing is. What is read so is returned as a guess.
"""

import torch
from torch import Tensor

from seepage.attacks.network import in_range
from seepage.attacks.network.first_layer import FirstLayer
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.base.words import plural
from seepage.federation.types import Reconstruction


def class_sums(seen: FirstLayer) -> Reconstruction | None:
    """The only examples of their classes; None where the layer is no softmax regression at zero weights.

    Args:
        seen: The first layer, which must be the last one, too.
    """
    attacked, knowledge, n = seen.attacked, seen.attacked.knowledge, seen.batch_size
    rule, weights = knowledge.client, attacked.observed.params[seen.layer.weight]
    softmax = knowledge.target == "class" and rule.loss == "cross_entropy" and not rule.one_logit
    if n < 2 or seen.layer.weight != seen.last[0] or not softmax or len(rule.batches(n)) > 1 or bool(weights.any()):
        return None
    trace = seen.trace(seen.to_inputs(seen.weight[:1] * 0))
    chances, outputs = (one.detach().double().softmax(1)[0] for one in (trace.first, trace.logits))  # p [classes]
    counts = n * (chances - seen.bias)
    whole = counts.round()
    off = float((counts - whole).abs().max())
    # Another loss, rate or batch size makes no whole numbers.
    if not torch.allclose(chances, outputs) or off > n * FLOAT32_NETWORK or bool((whole < 0).any()):
        return None
    only, absent = whole == 1, whole == 0
    if absent.any():
        each = seen.weight[absent] / chances[absent, None]
        mean = each.mean(0)
        if float((each - mean).abs().max() * chances.min()) > FLOAT32_NETWORK * float(seen.weight.abs().max()):
            return None  # something else was added
    else:
        mean = _above_background(seen, chances, whole)
    sums = n * (chances[:, None] * mean - seen.weight)
    inputs = seen.to_inputs(sums[only])
    inside = in_range(inputs, knowledge.value_range)
    known = bool(absent.any()) and not attacked.observed.size_inferred
    how = "by the row of a class that is not there" if absent.any() else "if each value is least in one of the classes"
    return Reconstruction(
        inputs=inputs,
        labels=only.nonzero().squeeze(1),
        objective=inputs.new_full((len(inputs),), off),
        certified=inside & known,
        cost={"evaluations": 1},
        notes=(
            f"the weights are zero, so each class's sum is read, {how}: {plural(len(inputs), 'class')} of "
            f"one example, {int((whole > 1).sum())} of more",
        ),
    )


def _above_background(seen: FirstLayer, chances: Tensor, counts: Tensor) -> Tensor:
    """`[d]` the mean of all examples at which each value is nowhere below the least, and there in one class."""
    low, n = seen.attacked.knowledge.value_range[0], seen.batch_size
    scale, shift = (one.double().expand(seen.weight.shape[1]) for one in (seen.layer.scale, seen.layer.shift))
    least = scale * low + shift  # as the layer reads it
    # n (p_k s - G_k) = c_k least
    at = (counts[:, None] * least / n + seen.weight) / chances[:, None]
    return torch.where(scale > 0, at.amax(0), at.amin(0))
