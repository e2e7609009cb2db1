"""Whether guesses give the update that was sent, or a multiple of it, and whether they lie in the value range."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress

import torch
from torch import Tensor

from seepage.attacks.network.attacked_round import AttackedRound
from seepage.base.nn import forward, in_mode
from seepage.base.second_derivatives import twice_differentiable
from seepage.base.solvers import conjugate_gradients
from seepage.errors import Inapplicable
from seepage.federation.types import Batch

EXACT = 0.01
"""Root mean square error, as a share of the value range, up to which an input counts as exact: 40 dB."""
READ = 0.1
"""Relative error, or error as `EXACT` states it, up to which a number counts as read at all."""
FAINT = 1e-3
"""Share of the largest entry, of slopes or of what a layer read, below which an entry may be rounding."""
CERTIFYING_MISMATCH = 1e-3
"""Relative difference of what the network itself gives at a guess from what was sent, up to which it is certified."""
PER_UNKNOWN = 10
"""Entries of an update for each number that is fitted to it, from which a fit is no matter of course."""
UNLABELED_STEPS = 200
"""Steps in which slopes are fitted: each as dear as two gradients."""
MULTIPLE = "times the gradient of the stated loss"
"""In a note: the update is no gradient of the stated loss at the stated rate, but a multiple of one."""


def vouch(
    attacked: AttackedRound, inputs: Tensor, labels: Tensor, *, multiple: float | None = 1.0
) -> tuple[float, float]:
    """How far the client's own update at these inputs is from the observed one, and the multiple that was compared.

    With u the update at the inputs and v the observed one, `|s u - v| / |v|` over all tensors that were sent.

    Args:
        attacked: The round.
        inputs: `[n, *shape]` guesses.
        labels: `[n]` their labels, as `Batch` has them.
        multiple: s; None: the nearest of all positive ones. An update that was clipped to a norm, or made at another
            learning rate than was stated, is a multiple.
    """
    observed, knowledge, batch = attacked.observed, attacked.knowledge, Batch(inputs, labels.to(inputs.device))
    own = knowledge.client(knowledge.model, observed.params, batch, buffers=observed.buffers).tensors
    sent = observed.update.tensors
    multiple = nearest_multiple(own, sent) if multiple is None else multiple
    # Tensors that were not sent (frozen, withheld, private) are no part of the comparison.
    apart = _sum((multiple * own[name].double() - tensor).square() for name, tensor in sent.items())
    size = _sum(tensor.double().square() for tensor in sent.values())
    return math.sqrt(apart / size) if size else math.inf, multiple


def vouch_unlabeled(attacked: AttackedRound, inputs: Tensor) -> float | None:
    """How far the nearest update that any loss gives at these inputs is from the observed one, relatively.

    With J the derivative of all outputs `[n k]` in the weights, a loss of them gives J^T d for some d, so that

        min over d of |J^T d - v| / |v|

    needs neither labels nor the loss. It is solved by conjugate gradients on `J J^T d = J v`.

    Returns:
        None where the update is no gradient, or has fewer than `PER_UNKNOWN` entries for each entry of d, or where the
        network has no second derivative.
    """
    with suppress(Inapplicable), twice_differentiable(attacked.model):
        return _nearest(attacked, inputs)
    return None


def _nearest(attacked: AttackedRound, inputs: Tensor) -> float | None:
    """The same, where that can be differentiated."""
    observed, knowledge = attacked.observed, attacked.knowledge
    own = {name: tensor.detach().clone() for name, tensor in observed.params.items()}
    sent = {name: tensor.to(own[name]) for name, tensor in observed.update.tensors.items() if name in own}
    if observed.update.kind != "gradient" or (observed.update.step is not None and not observed.update.step.linear):
        return None
    leaves = [own[name].requires_grad_() for name in sent]
    training = knowledge.client.mode == "train"
    with torch.enable_grad(), in_mode(knowledge.model, training=training):
        outputs = forward(knowledge.model, own, inputs.to(leaves[0].device), buffers=observed.buffers)
        if outputs.numel() * PER_UNKNOWN > sum(map(Tensor.numel, leaves)):
            return None
        slopes = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(outputs, leaves, slopes, create_graph=True, materialize_grads=True)

    def pushed(tensors: Iterable[Tensor]) -> Tensor:  # J w
        (found,) = torch.autograd.grad(pulled, slopes, list(tensors), retain_graph=True)
        return found

    def back(values: Tensor) -> tuple[Tensor, ...]:  # J^T d
        return torch.autograd.grad(outputs, leaves, values, retain_graph=True, materialize_grads=True)

    target = pushed(sent.values())
    nearest = conjugate_gradients(lambda values: pushed(back(values)), target, steps=UNLABELED_STEPS, tolerance=1e-6)
    apart = _sum((own - tensor).double().square() for own, tensor in zip(back(nearest), sent.values(), strict=True))
    size = _sum(tensor.double().square() for tensor in sent.values())
    return math.sqrt(apart / size) if size else None


def nearest_multiple(own: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> float:
    """The s > 0 for which `s own` is nearest to what was sent; 1 where the two point away from each other."""
    # argmin over s of |s u - v|^2 is <u, v> / <u, u>.
    along = _sum(own[name].double() * tensor for name, tensor in sent.items())
    best = along / max(_sum(own[name].double().square() for name in sent), 1e-300)
    return best if best > 0 else 1.0


def _sum(parts: Iterable[Tensor]) -> float:
    """Sum over all entries of several tensors, made one at a time: the float64 copy of a whole update is large."""
    return math.fsum(float(part.sum()) for part in parts)


def in_range(values: Tensor, value_range: tuple[float, float], slack: float | Tensor = EXACT) -> Tensor:
    """`[k]` bool: which of `[k, ...]` values lie in the value range, give or take a share of it.

    >>> import torch
    >>> in_range(torch.tensor([[0.0, 1.005], [0.5, 1.1]]), (0.0, 1.0))
    tensor([ True, False])
    """
    low, high = value_range
    room = slack * (high - low)
    found: Tensor = ((values >= low - room) & (values <= high + room)).flatten(1).all(1)
    return found


def multiple_words(share: float) -> str:
    r"""What an update is that holds so many times the gradient of the stated loss, and what that may come from.

    The update alone does not tell the causes apart. Clipping shortens, so that it explains no share above 1.

    >>> print(multiple_words(0.25).replace(", ", ",\n"))
    the update is 0.25 times the gradient of the stated loss,
    as behind clipping to a norm,
    a learning rate below the one stated or inferred,
    or another loss (weighted,
    focal)
    >>> multiple_words(2.0).partition("behind ")[2]
    'a learning rate above the one stated or inferred, or another loss (weighted, focal)'
    """
    causes = "clipping to a norm, a learning rate below" if share < 1 else "a learning rate above"
    return (
        f"the update is {share:.3g} {MULTIPLE}, as behind {causes} the one stated or inferred, or another loss "
        "(weighted, focal)"
    )
