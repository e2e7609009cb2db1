"""What vouches for rows that were divided: one example's own bias gradient, and its column of the next layer's."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.network import best_labels, relative_mismatch
from seepage.attacks.network.evidence import FAINT
from seepage.attacks.network.first_layer import FirstLayer, Trace
from seepage.base.algebra.rows import LEAST_ALIKE
from seepage.federation.types import Reconstruction

SUM_TOLERANCE = 100.0
"""Times the tolerance of one row up to which what all rows, or all examples, add up to may be off."""


def unproven(found: Reconstruction, seen: FirstLayer) -> Reconstruction:
    """What was found where the batch size was inferred: no proof, where slopes of all examples are in proportion."""
    if found.certified is None or not bool(found.certified.any()):
        return found
    stated = "the batch size was read off the update, and more examples may be behind it"
    if seen.attacked.knowledge.num_outputs > (1 if seen.attacked.knowledge.target == "value" else 2):
        return replace(found, notes=(*found.notes, f"{stated}: alike ones of one label would look like one"))
    note = f"{stated}, whose slopes are all in proportion, so nothing is certified; give --batch-size"
    return replace(found, certified=torch.zeros_like(found.certified), notes=(*found.notes, note))


def label_of_single(seen: FirstLayer, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
    """The label `[1]` whose bias gradient, at the only example `[1, *shape]`, is nearest the sent one.

    And by how much the two differ in direction, `[1]`, or the next layer's weight gradients if that is more. Where
    batch norm in train mode makes the model's own gradient another, weights are the client's own, or each pixel has a
    label, there is none, and the difference is infinite.
    """
    knowledge, unknown = seen.attacked.knowledge, torch.full((1,), torch.inf, device=inputs.device)
    if knowledge.client.batch_coupled(knowledge.model) or seen.attacked.observed.personal or knowledge.target == "map":
        return None, unknown
    trace = seen.trace(inputs)
    if knowledge.target == "value":
        return _value(seen, trace)
    slopes = list(trace.slopes())
    own = torch.cat([first for first, _ in slopes])  # [classes, m]
    nearest = (own - seen.bias).norm(dim=1).argmin().reshape(1)
    sent, first = F.normalize(seen.bias[None], dim=1), own[nearest].to(seen.bias)
    turned = relative_mismatch(F.normalize(first, dim=1), sent)
    # A gradient that was scaled as a whole is as good.
    factor = seen.bias.norm() / first.norm()
    next_slopes = [factor * slope.double() for slope in slopes[int(nearest)][1]]
    return nearest, torch.maximum(turned, _next_layer(seen, trace, next_slopes))


def _next_layer(seen: FirstLayer, trace: Trace, slopes: Sequence[Tensor]) -> Tensor:
    """How far the next layer's weight gradient is from what the only example makes of slopes `[1, c]` there, `[1]`.

    That of one example is `s a(x)^T`, so it shows the scale of x, which rows that were divided do not show where
    weight and bias were scaled apart: by a clip of each tensor, or a learning rate of its own for biases. Any one
    of the layers that may read the neurons is enough. Where no such layer's gradient was sent, the direction of a
    softmax's slopes depends on x too and this is 0; values and one logit have no such direction, and it is infinite.
    """
    knowledge = seen.attacked.knowledge
    silent = 0.0 if knowledge.target == "class" and knowledge.num_outputs > 1 else torch.inf
    found = [
        relative_mismatch(
            (slope.T @ read.double()).reshape(1, -1), seen.attacked.gradient[name].double().reshape(1, -1)
        )
        for slope, (name, read, _) in zip(slopes, trace.later, strict=True)
    ]
    return torch.stack(found).amin(0) if found else seen.bias.new_full((1,), silent)


def _value(seen: FirstLayer, trace: Trace) -> tuple[Tensor | None, Tensor]:
    """The target `[1, k]` of the only example, and how far the sent bias gradient is from what one can make `[1]`.

    With slopes s at the k outputs f the chain rule gives db = J^T s, where row o of J is the gradient of output o
    at the first layer. So s is known by least squares, whatever the loss is, and of a squared error
    s = 2 (f - y) / k, so that y = f - k s / 2.
    """
    outputs, sent = trace.logits.reshape(-1), seen.bias  # [k], [m]
    rows = list(trace.outputs_slopes())
    ways = torch.cat([first for first, _ in rows]).double()  # J [k, m]
    if len(outputs) >= len(sent):
        return None, torch.full((1,), torch.inf, device=sent.device)  # any gradient has such slopes
    slopes = torch.linalg.lstsq(ways.T.cpu(), sent[:, None].cpu()).solution[:, 0].to(sent)  # [k]
    turned = relative_mismatch((slopes @ ways)[None], sent[None])
    later = zip(*(own for _, own in rows), strict=True)
    next_slopes = [(slopes @ torch.cat(way).double())[None] for way in later]
    turned = torch.maximum(turned, _next_layer(seen, trace, next_slopes))
    if seen.attacked.knowledge.client.loss != "mse":
        return None, turned
    return (outputs.detach() - len(outputs) * slopes.to(outputs) / 2)[None], turned


def vouched_by_rule(seen: FirstLayer, inputs: Tensor, neurons: Tensor) -> tuple[Tensor, Tensor]:
    """Best label and relative mismatch, `[k]` each, of rows divided at the given neurons.

    If one example alone reaches neuron j, the sent bias gradient and the sent column j of the next layer's weight
    gradient are that example's own, divided by the batch size.
    """
    if not len(inputs) or seen.attacked.knowledge.target != "class":  # there is no label to try
        return neurons.new_zeros(len(inputs)), inputs.new_full((len(inputs),), torch.inf)
    trace, n, at = seen.trace(inputs), seen.batch_size, neurons[:, None]
    # The update is a mean over the batch, so one example's own bias gradient is batch_size times the sent one. [k, 1]
    sent = n * seen.bias[neurons].to(inputs)[:, None]
    columns = [n * seen.attacked.gradient[name][:, neurons].T for name, _, _ in trace.later]  # [k, c] each

    def mismatches() -> Iterator[Tensor]:
        for first, later in trace.slopes():
            # Column j of the next layer's weight gradient: the example's activation of neuron j times the output's
            # gradient. Any one of the layers that read these neurons may confirm a row.
            nearest = inputs.new_full((len(inputs),), torch.inf)
            for slope, (_, activation, _), column in zip(later, trace.later, columns, strict=True):
                nearest = torch.minimum(nearest, relative_mismatch(activation.gather(1, at) * slope, column))
            yield torch.maximum(relative_mismatch(first.gather(1, at), sent), nearest)

    return best_labels(mismatches())


def vouched_by_any_loss(
    seen: FirstLayer, inputs: Tensor, neurons: Tensor, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same without a word of the loss: likeliest label and mismatch, `[k]` each; infinite for lone rows.

    And `[k]` whether the slope at the logits is seen, and below zero at one label alone.

    Of one example x alone at neuron j, column j of the next layer's weight gradient is a_j(x) s, with the activation
    a_j and the slope s at that layer's outputs. So s is known, and the chain rule gives the bias gradient from it:
    db_j = d(s . output) / d(first_j). A mixture of examples whose slopes are no multiples of one another fulfils this
    for no three rows with one quotient.
    """
    knowledge = seen.attacked.knowledge
    labels, best = neurons.new_zeros(len(inputs)), inputs.new_full((len(inputs),), torch.inf)
    alone = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
    if not len(inputs) or knowledge.num_outputs < (2 if knowledge.target == "value" else 3):
        return labels, best, alone
    trace, sent, at = seen.trace(inputs), seen.bias[neurons].to(inputs)[:, None], neurons[:, None]  # [k, 1] each
    for place, (name, activation, output) in enumerate(trace.later):
        column = seen.attacked.gradient[name][:, neurons].T.to(inputs)  # [k, c]
        slope = column / activation.gather(1, at)  # [k, c]
        best = torch.minimum(best, relative_mismatch(trace.back(place, slope).gather(1, at), sent))
        if knowledge.target == "class":
            labels = trace.nearest_label(place, slope)
        elif name == seen.last[0] and knowledge.client.loss == "mse":
            # n s = 2 (f - y) / k of an example's own squared error, so its target is y = f - k n s / 2.
            labels = output.detach() - slope.shape[1] * seen.batch_size * slope / 2  # [k, values]
        if name == seen.last[0]:
            alone = (slope < -FAINT * slope.abs().amax(1, keepdim=True)).sum(1) == 1
    passed = best <= tolerance
    agreeing = _agreeing(inputs.flatten(1), passed, tolerance)
    return labels, torch.where(passed & (agreeing >= LEAST_ALIKE), best, torch.inf), alone


def account_for_all(seen: FirstLayer, inputs: Tensor, values: Tensor, tolerance: float) -> bool:
    """Whether these are all examples of the batch: as many, and their slopes sum to the last bias gradient.

    A mixture that stood in for two examples would leave one too few, and one beside its own examples would add its
    slope once more.
    """
    if seen.last[1] is None or len(inputs) != seen.batch_size or values.ndim != 2:
        return False
    logits = seen.trace(inputs).logits.detach()
    slopes = 2 * (logits - values) / (values.shape[1] * seen.batch_size)  # [n, k]
    off = (slopes.sum(0) - seen.attacked.gradient[seen.last[1]]).norm()
    return bool(off <= SUM_TOLERANCE * tolerance * slopes.norm(dim=1).sum())


def _agreeing(rows: Tensor, passed: Tensor, tolerance: float) -> Tensor:
    """`[k]` how many of the rows `[k, d]` that passed are within the tolerance of each, relative to its size."""
    gaps = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")  # [k, k]
    near = gaps <= tolerance * rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    found: Tensor = (near & passed[None]).sum(1)
    return found


def distinct(inputs: Tensor, mismatch: Tensor, same: float) -> Tensor:
    """Places of rows that are not the same example as a better row, best first."""
    flat, left = inputs.flatten(1), mismatch.argsort(stable=True)
    kept = [left[:0]]
    while len(left):
        best = flat[left[0]]
        kept.append(left[:1])
        left = left[(flat[left] - best).norm(dim=1) > same * best.norm().clamp(min=1e-12)]
    return torch.cat(kept)
