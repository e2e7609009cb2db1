"""Match the samples of a cohort across parties, and infer their labels.

Samples of a cohort share all their rounds, so each party's are found in no order. But all parties' v come from one
gradient of the loss with respect to the logits: `v_p = A_p(h_p) delta`, with `A_p` known from the weights and h, and
`delta = softmax(z) - onehot(y)` known up to the label once all h are. Wrong combinations do not fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from seepage.attacks.cafe.steps import Recovered, identifiable
from seepage.attacks.cafe.target_layers import TargetLayer
from seepage.base.nn import in_mode
from seepage.federation.models.vertical import VerticalModel
from seepage.federation.types import Tensors

BEAM_WIDTH = 64
"""Beam width: number of combinations kept for each sample of the first party."""


@dataclass(frozen=True)
class _Party:
    """One party's samples, reduced to the classes: `v = Q (reduced @ delta)` and `part = Q^T v`."""

    logits: Tensor  # [N, C] the party's share of the logits
    reduced: Tensor  # [N, C, C]
    part: Tensor  # [N, C]
    outside: Tensor  # [N] squared norm of v outside the range of A
    power: Tensor  # [N] squared norm of v


def infer_labels(
    model: nn.Module, params: Tensors, layers: Sequence[TargetLayer], found: Sequence[Recovered]
) -> tuple[Tensor, Tensor] | None:
    """Order every cohort's samples alike at all parties (in place), and read the labels.

    Returns:
        `[N]` labels, -1 where unknown, and `[N]` misfits, the relative distances of v from its value computed from h,
        label and weights, infinite where unknown. None where the model is not a `VerticalModel` with one linear layer
        as its head.
    """
    if not isinstance(model, VerticalModel) or not isinstance(model.head, nn.Linear):
        return None
    views = [_view(model, params, m, layer, one) for m, (layer, one) in enumerate(zip(layers, found, strict=True))]
    bias = params["head.bias"].double().cpu() if "head.bias" in params else views[0].logits.new_zeros(())
    n = len(found[0].v)
    inferred = torch.full((n,), -1, dtype=torch.int64), torch.full((n,), torch.inf, dtype=torch.float64)
    members: dict[int, list[int]] = {}
    for i in identifiable(found).nonzero().squeeze(1).tolist():
        members.setdefault(int(found[0].group[i]), []).append(i)
    for cohort in members.values():
        orders, labels, misfit = _best(views, cohort, bias)
        for one, order in zip(found, orders, strict=True):
            chosen = torch.tensor(cohort)[order]
            for rows in (one.v, one.h, one.known, one.zero_gradient, one.spread):
                rows[cohort] = rows[chosen].clone()
        inferred[0][cohort], inferred[1][cohort] = labels, misfit
    return inferred


def _view(model: VerticalModel, params: Tensors, m: int, layer: TargetLayer, one: Recovered) -> _Party:
    """A party's rows in double precision."""
    party = model.get_submodule(f"parties.{m}.rest")
    rest = {n.removeprefix(f"parties.{m}.rest."): p.double().cpu() for n, p in params.items() if f".{m}.rest." in n}
    weight, shift = params[layer.weight].double().cpu(), params[layer.bias].double().cpu()
    # u = W h + b, the layer's outputs, from the recovered features.
    u = one.h @ weight.T + shift  # [N, d2]

    def outputs(row: Tensor) -> Tensor:
        out: Tensor = functional_call(party, rest, (row[None],))
        return out[0]

    with in_mode(model, training=False):
        o = vmap(outputs)(u)  # [N, k]
        slopes = vmap(jacrev(outputs))(u)  # [N, k, d2]
    classes = params["head.weight"].shape[0]
    k = o.shape[1]
    head = params["head.weight"].double().cpu()[:, m * k : (m + 1) * k]  # [C, k]
    # v_n = A_n delta_n with A_n = (d o / d u)^T head^T: the chain rule from the logits to the layer's outputs.
    a = torch.einsum("nkd,ck->ndc", slopes, head)  # [N, d2, C]
    # A = Q R: only Q^T v [r] is compared with R delta, and what of v lies outside Q cannot be explained by any label.
    q, reduced = torch.linalg.qr(a)  # [N, d2, r], [N, r, C]
    part = torch.einsum("ndr,nd->nr", q, one.v)
    power = one.v.pow(2).sum(1)
    outside = (power - part.pow(2).sum(1)).clamp(min=0)
    if reduced.shape[1] < classes:  # a layer narrower than the number of classes
        short = classes - reduced.shape[1]
        reduced = torch.cat([reduced, reduced.new_zeros(len(reduced), short, classes)], dim=1)
        part = torch.cat([part, part.new_zeros(len(part), short)], dim=1)
    return _Party(o @ head.T, reduced, part, outside, power)


def _best(views: Sequence[_Party], cohort: list[int], bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Orders `[P, m]` (the first party keeps its own), labels and misfits `[m]` that fit best.

    A combination is one sample per party. They are grown party by party, the best few kept for each of the first
    party's samples; then the m best that share no sample are taken.
    """
    m = len(cohort)
    combos = torch.arange(m)[:, None]  # [c, parties so far]
    for view in views[1:]:
        del view
        combos = torch.cat([combos.repeat_interleave(m, dim=0), torch.arange(m).repeat(len(combos))[:, None]], dim=1)
        if len(combos) > m * BEAM_WIDTH:
            misfit = _free_misfit(views, torch.tensor(cohort)[combos])
            kept = [
                of.nonzero().squeeze(1)[misfit[of].argsort(stable=True)[:BEAM_WIDTH]]
                for of in (combos[:, 0] == i for i in range(m))
            ]
            combos = combos[torch.cat(kept)]
    labels, misfit = _label_fit(views, torch.tensor(cohort)[combos], bias)
    orders = torch.zeros(len(views), m, dtype=torch.int64)
    left = torch.ones(len(views), m, dtype=torch.bool)
    best = torch.zeros(m, dtype=torch.int64), torch.full((m,), torch.inf, dtype=torch.float64)
    parties = torch.arange(len(views))
    for at in misfit.argsort(stable=True).tolist():
        combo = combos[at]
        if bool(left[parties, combo].all()):
            left[parties, combo] = False
            orders[:, combo[0]] = combo
            best[0][combo[0]], best[1][combo[0]] = labels[at], misfit[at]
    # Samples for which the beam found no partner take one that is still free.
    for party in range(len(views)):
        free = left[party].nonzero().squeeze(1)
        orders[party, left[0].nonzero().squeeze(1)] = free
    return orders, best[0], best[1]


def _free_misfit(views: Sequence[_Party], rows: Tensor) -> Tensor:
    """`[c]` how badly the parties so far, sample `rows[:, p]` at party p, agree on any `delta` at all."""
    pairs = list(zip(views, rows.T, strict=False))
    stacked = torch.cat([view.reduced[at] for view, at in pairs], dim=1)  # [c, P C, C]
    wanted = torch.cat([view.part[at] for view, at in pairs], dim=1)  # [c, P C]
    # All parties see one delta: least squares over their equations stacked. [c, P C, C]
    # With two parties or more the P C equations outnumber the C unknowns, and only samples that belong together fit.
    delta = torch.einsum("ncp,np->nc", torch.linalg.pinv(stacked, rtol=1e-7), wanted)
    left = torch.einsum("npc,nc->np", stacked, delta) - wanted
    return left.pow(2).sum(1) / wanted.pow(2).sum(1).clamp(min=1e-300)


def _label_fit(views: Sequence[_Party], rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The label of each combination that explains all parties' v best, and the relative misfit."""
    pairs = list(zip(views, rows.T, strict=True))
    logits = torch.stack([view.logits[at] for view, at in pairs]).sum(0) + bias  # [c, C]
    deltas = logit_gradients(logits)  # [c, C labels, C]
    left = torch.zeros(deltas.shape[:2], dtype=torch.float64)
    power = torch.zeros(len(rows), dtype=torch.float64)
    for view, at in pairs:
        # For every label y at once: what the party would have sent, R delta_y. [c, y, r]
        made = torch.einsum("npc,nyc->nyp", view.reduced[at], deltas)
        left += (made - view.part[at][:, None]).pow(2).sum(2) + view.outside[at][:, None]
        power += view.power[at]
    least, labels = left.min(dim=1)
    return labels, (least / power.clamp(min=1e-300)).sqrt()


def logit_gradients(logits: Tensor) -> Tensor:
    """`[n, y, C]` gradient of the cross-entropy with respect to the logits, for each label y.

    >>> logit_gradients(torch.zeros(1, 2))[0].tolist()
    [[-0.5, 0.5], [0.5, -0.5]]
    """
    probabilities = logits.softmax(dim=1)
    eye = torch.eye(logits.shape[1], dtype=logits.dtype)
    return probabilities[:, None] - eye
