"""How the entries of the last layer's gradient follow the input (Fan et al. 2025, appendix C, Figure 9)."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from seepage.base.nn import captured_calls, in_mode, last_linear
from seepage.base.progress import Doing, ProgressCallback
from seepage.errors import refuse
from seepage.papers.run import Value
from seepage.papers.special.victims import first_case, victims_of


def sensitivity(
    model: nn.Module, image: Float[Tensor, "1 *shape"], label: Tensor, classes: int
) -> tuple[Float[Tensor, "classes k"], Float[Tensor, "classes k"]]:
    """Entries of the last weight's gradient for one example, and each one's absolute change with the input.

    Entry (c, i) is d_c f_i: the slope of the loss by logit c, times feature i. The second tensor holds the sum over
    all numbers j of the input of `|d (d_c f_i) / d x_j|`.

    Args:
        model: The network, in eval mode here, at its current weights.
        image: `[1, *shape]`.
        label: `[1]`.
        classes: Classes of the model.

    Raises:
        Inapplicable: Where the model has no last linear layer.
    """
    names = last_linear(model, classes)
    if names is None:
        raise refuse("no_head")("the model has no last linear layer", "choose another model")
    last = names[0].rpartition(".")[0]
    x = image.detach().requires_grad_()
    with captured_calls(model, [last]) as calls, in_mode(model, training=False):
        logits = model(x)
    feature, slope = calls[last][0].input[0], logits.softmax(-1)[0] - F.one_hot(label, classes)[0]
    of_feature = _jacobian(feature, x)  # [k, d]
    of_slope = _jacobian(slope, x)  # [classes, d]
    rows = [(of_slope[c] * feature[:, None] + slope[c] * of_feature).abs().sum(1) for c in range(classes)]
    return torch.outer(slope, feature).detach(), torch.stack(rows).detach()


def _jacobian(outputs: Tensor, x: Tensor) -> Float[Tensor, "m d"]:
    each = torch.eye(len(outputs), dtype=outputs.dtype, device=outputs.device)
    (found,) = torch.autograd.grad(outputs, x, each, retain_graph=True, is_grads_batched=True)
    return found.reshape(len(outputs), -1).detach()


def pearson(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation of all entries.

    >>> round(pearson(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2.0, 4.0, 8.0])), 6)
    1.0
    """
    return float(torch.corrcoef(torch.stack([a.double().flatten(), b.double().flatten()]))[0, 1])


def figure_9(tables: Mapping[str, Any], *, data: str, seed: int, show: ProgressCallback) -> list[Value]:
    """The correlation of an entry's magnitude with its sensitivity: mean over examples, and one deviation about it.

    The second row is the share of all sensitivity that the larger half of the entries has.
    """
    recipe = first_case(tables, seed)
    found, shares = [], []
    for transcript, batch in victims_of(recipe):
        known = transcript.knowledge
        for n in range(len(batch)):
            image, label = batch.inputs[n : n + 1], batch.labels[n : n + 1]
            entries, moves = sensitivity(known.model, image, label, known.num_classes)
            sizes, moved = entries.abs().flatten(), moves.flatten()
            found.append(pearson(sizes, moved))
            larger = sizes.argsort(descending=True)[: len(sizes) // 2]
            shares.append(float(moved[larger].sum() / moved.sum()))
            show(len(found), recipe.batch.size * recipe.batch.count, Doing("examples"))
    return [_value("correlation", found), _value("share of sensitivity in the larger half", shares)]


def _value(row: str, numbers: list[float]) -> Value:
    values = torch.tensor(numbers, dtype=torch.float64)
    mean, spread = float(values.mean()), float(values.std())
    return Value(row=row, column=0, ours=mean, low=mean - spread, high=mean + spread, facts={"examples": len(values)})
