"""Labels, and the last token of each sequence, which no layer reads: from the last layer, where errors are known.

    gradient of W = sum over rows i of d_i (x) m_i     m_i: what the last layer reads    d_i: the gradient in its output

With all sequences known the m_i are, and where they are linearly independent so are the d_i, by least squares.
Between that layer's output and the logits z lies little: with J = dz/d(output), `count d = J^T (softmax(z) -
onehot(y))`.
"""

import torch
from torch import Tensor, nn

from seepage.attacks.network import AttackedRound
from seepage.attacks.text.layers import linear_calls, own_weights

SHORTLIST = 16
"""Targets, the largest by their product with what is left, among which the nearest is taken."""


def targets_by_errors(attacked: AttackedRound, ids: Tensor, places: Tensor | None, count: int) -> Tensor | None:
    """`[n]` the targets of sequences, or None where the last layer's errors cannot be solved for.

    Args:
        attacked: The round.
        ids: `[n, tokens]`.
        places: `[n]` for logits of every token, which of them has the unknown target; None: logits of sequences.
        count: Targets in the batch, known and unknown: the loss is their mean.
    """
    top = _top(attacked, ids)
    if top is None:
        return None
    module, weight, axis = top
    output, read, logits = _pass(attacked, module, ids)
    chosen = logits if places is None else logits[torch.arange(len(ids)), :, places.to(ids.device)]  # [n, classes]
    # Which rows of the last layer carry a gradient at all: of every logit that has a target.
    used = (
        logits
        if places is None
        else logits * (torch.arange(logits.shape[2], device=ids.device) <= places[:, None])[:, None]
    )
    (slopes,) = torch.autograd.grad(used.square().sum(), output, retain_graph=True)
    active = slopes.flatten(0, -2).abs().amax(1) > 0
    m = read.flatten(0, -2)[active].double()
    mixtures = (attacked.gradient[weight] if axis == 0 else attacked.gradient[weight].T).double()  # [d_in, d_out]
    if len(m) > m.shape[1]:
        return None
    # G = M^T D with M [rows, d_in] known and D [rows, d_out] wanted; unique where M has full row rank, and of least
    # norm where it has not.
    errors = torch.linalg.lstsq(m.T.cpu(), mixtures.cpu(), driver="gelsd").solution  # [rows, d_out]
    spread = torch.zeros_like(output.flatten(0, -2))
    spread[active] = errors.to(spread)
    return _nearest(output, chosen, count * spread.reshape(output.shape))


def _top(attacked: AttackedRound, ids: Tensor) -> tuple[str, str, int] | None:
    """The last fully connected layer whose weight nothing else uses: its name, its weight's, and the input axis."""
    model = attacked.model
    names = own_weights(model)
    with linear_calls(model) as calls, torch.no_grad():
        attacked.forward(ids[:1])
    for name, parameter, _, axis in reversed(calls):
        weight = names.get(id(parameter))
        if weight in attacked.gradient and weight is not None:
            return name, weight, axis
    return None


def _pass(attacked: AttackedRound, module: str, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output and input of a layer, and the logits as a function of that output."""
    kept: dict[str, Tensor] = {}

    def cut(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        kept["read"], kept["output"] = args[0].detach(), output.detach().requires_grad_()
        return kept["output"]

    handle = attacked.model.get_submodule(module).register_forward_hook(cut)
    try:
        with torch.enable_grad():
            logits, _ = attacked.forward(ids)
    finally:
        handle.remove()
    return kept["output"], kept["read"], logits


def _nearest(output: Tensor, logits: Tensor, errors: Tensor) -> Tensor:
    """`[n]` the targets whose errors are nearest to those that were solved for.

    Args:
        output: Of the last layer.
        logits: `[n, classes]` as a function of it.
        errors: Shaped like `output`: the gradient of the sum of the losses.
    """
    # J^T u as a function of u, so that its derivative along w gives J w: the products of w with every row of J.
    u = torch.zeros_like(logits).requires_grad_()
    (pulled,) = torch.autograd.grad(logits, output, u, create_graph=True)
    (softmax,) = torch.autograd.grad(logits, output, logits.softmax(1).detach(), retain_graph=True)
    left = softmax - errors  # J^T onehot(y)
    # J left = J J^T onehot(y): the largest entry is near y, as J J^T is close to diagonal. [n, classes]
    (products,) = torch.autograd.grad(pulled, u, left, retain_graph=True)
    likely = products.topk(min(SHORTLIST, logits.shape[1]), 1).indices
    # |J^T onehot(t) - left|^2 decides among the few likeliest t.
    distances = []
    for column in likely.T:
        onehot = torch.nn.functional.one_hot(column, logits.shape[1]).to(logits)
        (tried,) = torch.autograd.grad(logits, output, onehot, retain_graph=True)
        touched = (tried != 0).to(tried)  # rows of this sequence's own target
        # Some networks flatten examples and tokens into one axis.
        distances.append(((tried - left) * touched).square().reshape(len(logits), -1).sum(1))
    best = torch.stack(distances).argmin(0)
    return likely[torch.arange(len(likely)), best]
