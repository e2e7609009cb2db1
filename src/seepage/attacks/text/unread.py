"""Targets that no layer reads, where the last layer's own gradient was not sent or is another's as well: by direction.

The gradient of a sum of cross-entropies is `sum_i J_i^T (softmax(z_i) - onehot(y_i))`, with J_i the derivative of the
logits z_i in what is trained. All of it is known but for the unknown targets, so what is left of the update is

    R = -sum_i J_i^T onehot(y_i)

`-J_i R` is largest, or nearly so, at y_i; among the likeliest the one is taken that leaves the least of R.
"""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from seepage.attacks.network import AttackedRound
from seepage.attacks.text.targets import SHORTLIST
from seepage.base.nn import forward, in_mode


def targets_by_direction(attacked: AttackedRound, ids: Tensor, places: Tensor | None, targets: Tensor | None) -> Tensor:
    """`[n]` the unknown target of each sequence.

    Args:
        attacked: The round, whose loss is a mean over all targets.
        ids: `[n, tokens]`.
        places: `[n]` for logits of every token, which of them has the unknown target; None: logits of sequences.
        targets: `[n, tokens]` those that are known, where logits are of every token; -100: none.
    """
    knowledge, observed, gradient = attacked.knowledge, attacked.observed, attacked.gradient
    names = list(gradient)
    leaves = {name: observed.params[name].detach().requires_grad_() for name in names}
    rest = {name: p.detach() for name, p in observed.params.items() if name not in leaves}
    rows = torch.arange(len(ids), device=ids.device)
    # PyTorch's other kernels of attention have no second derivative.
    with torch.enable_grad(), in_mode(knowledge.model, training=False), sdpa_kernel(SDPBackend.MATH):
        logits = forward(knowledge.model, {**leaves, **rest}, ids, buffers=observed.buffers)
        chosen = logits if places is None else logits[rows, :, places.to(ids.device)]  # [n, classes]
        known = chosen.new_zeros(())
        count = len(ids)
        if places is not None and targets is not None:
            known = knowledge.client.loss_of(logits, targets, reduction="sum")
            count = int((places + 1).sum())
        # d/dz of <softmax(z), z> with the softmax held constant is softmax(z): the half of each error that is known.
        total = known + (chosen.softmax(1).detach() * chosen).sum()
        own = torch.autograd.grad(total, list(leaves.values()), retain_graph=True, materialize_grads=True)
        left = [count * gradient[name] - part for name, part in zip(names, own, strict=True)]  # R
        # J^T u as a function of u, whose derivative along R is J R: a product for every target at once.
        u = torch.zeros_like(chosen).requires_grad_()
        pulled = torch.autograd.grad(chosen, list(leaves.values()), u, create_graph=True, materialize_grads=True)
        inner = torch.stack([(a * b).sum() for a, b in zip(pulled, left, strict=True)]).sum()
        (products,) = torch.autograd.grad(inner, u, retain_graph=True)  # [n, classes]
        found = torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
        for row in range(len(ids)):
            best, value = left, torch.inf
            for label in (-products[row]).topk(min(SHORTLIST, products.shape[1])).indices.tolist():
                one = torch.autograd.grad(
                    chosen[row, label], list(leaves.values()), retain_graph=True, allow_unused=True
                )
                # R + J^T onehot(label), which is nearest to zero at the right label.
                after = [a if b is None else a + b for a, b in zip(left, one, strict=True)]
                size = float(torch.stack([part.square().sum() for part in after]).sum())
                if size < value:
                    best, value, found[row] = after, size, label
            left = best  # the next sequence's target is looked for in what this one leaves
    return found
