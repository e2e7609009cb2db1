"""Steps I and II against fake gradients as written: forged entries are never positive, so use positive ones alone."""

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.attacks.base import Inapplicable
from seepage.attacks.cafe.sites import Site
from seepage.attacks.cafe.steps import Recovered, cover, gradients
from seepage.types import Transcript


def solve(
    transcript: Transcript,
    rounds: Sequence[int],
    batches: Sequence[Tensor],
    samples: int,
    sites: Sequence[Site],
    biases: Sequence[Tensor],
    *,
    covers: int = 4,
) -> list[Recovered]:
    """V and H of every site from positive entries.

    Step I solves each neuron by itself, from the rounds in which its bias gradient is positive; neurons with too few
    of those are left out. Step II solves each feature of a batch from the positive entries of its weight gradient.

    Args:
        transcript: The rounds.
        rounds: The numbers of those to use.
        batches: Their samples.
        samples: N.
        sites: The layers to read.
        biases: `[T, d2]` bias gradients of each.
        covers: How often each sample's weight gradients are read.

    Raises:
        Inapplicable: Where too few neurons have enough positive rounds.
    """
    table = torch.zeros(len(batches), samples, dtype=torch.float64)
    for t, batch in enumerate(batches):
        table[t, batch] = 1 / len(batch)
    largest = max(len(batch) for batch in batches)
    solved = [_columns(table, bias) for bias in biases]
    short = min(int(known.sum()) for _, known in solved)
    if short < 2 * largest:
        raise Inapplicable(
            f"only {short} neurons have enough rounds with a positive bias gradient, and batches of {largest} need "
            f"{2 * largest}",
            f"record more rounds than {len(rounds)} (about eight times the number of samples)",
        )
    d1 = [transcript.knowledge.model.get_parameter(site.weight).shape[1] for site in sites]
    sums = [torch.zeros(samples, width, dtype=torch.float64) for width in d1]
    mass = [torch.zeros(samples, width, dtype=torch.float64) for width in d1]
    names = [site.weight for site in sites]
    for place in cover(batches, samples, covers):
        found = gradients(transcript, rounds[place], names)
        batch = batches[place]
        for m, site in enumerate(sites):
            v, known = solved[m]
            weight = found[site.weight].double().cpu()[known] * len(batch)
            h, trust = _features(v[batch][:, known], weight)
            sums[m][batch] += trust * h
            mass[m][batch] += trust
    return [_recovered(v, h, w) for (v, _), h, w in zip(solved, sums, mass, strict=True)]


def _recovered(v: Tensor, sums: Tensor, mass: Tensor) -> Recovered:
    n = len(v)
    norms = v.norm(dim=1)
    silent = norms <= 1e-3 * norms.median()
    known = ((mass > 0).double().mean(dim=1) > 0.9) & ~silent
    h = sums / mass.clamp(min=1e-300)
    return Recovered(
        v=v,
        h=h,
        v_known=torch.ones(n, dtype=torch.bool),
        known=known,
        silent=silent,
        spread=torch.where(known, 1e-3, torch.inf).double(),
        group=torch.arange(n),
    )


def _columns(table: Tensor, bias: Tensor, *, passes: int = 3) -> tuple[Tensor, Tensor]:
    """`[N, d2]` V, and `[d2]` which neurons were solved.

    A few positive entries are clipped (where psi is near zero), so rows that do not fit are dropped and the neuron is
    solved again.
    """
    samples = table.shape[1]
    v = torch.zeros(samples, bias.shape[1], dtype=torch.float64)
    known = torch.zeros(bias.shape[1], dtype=torch.bool)
    for j in range(bias.shape[1]):
        rows = (bias[:, j] > 0).nonzero().squeeze(1)
        for _ in range(passes):
            if len(rows) < samples + max(10, samples // 20):
                break
            q, r = torch.linalg.qr(table[rows])
            diagonal = r.diagonal().abs()
            if not diagonal.min() > 1e-9 * diagonal.max():
                break
            target = bias[rows, j]
            v[:, j] = torch.linalg.solve_triangular(r, (q.T @ target)[:, None], upper=True).squeeze(1)
            known[j] = True
            left = (table[rows] @ v[:, j] - target).abs()
            good = left <= (5 * left.median()).clamp(min=1e-6 * target.abs().max())
            if bool(good.all()) or int(good.sum()) < samples + 10:
                break
            rows = rows[good]
    return v, known


def _features(v: Tensor, weight: Tensor, *, passes: int = 3) -> tuple[Tensor, Tensor]:
    """`[k, d1]` H of one batch from the positive entries of `[c, d1]` K grad W, and each entry's inverse variance."""
    k = len(v)
    outer = torch.einsum("aj,bj->jab", v, v).reshape(-1, k * k)  # [c, k k]
    mask = (weight > 0).double()
    scale = v.norm(dim=1).clamp(min=1e-300)
    ridge = torch.diag(1e-13 * scale.pow(2)) * v.shape[1] ** 0.5
    h = torch.zeros(k, weight.shape[1], dtype=torch.float64)
    inverse = torch.zeros(weight.shape[1], k, k, dtype=torch.float64)
    for _ in range(passes):
        gram = (mask.T @ outer).reshape(-1, k, k) + ridge  # [d1, k, k]
        right = ((mask * weight).T @ v.T)[..., None]  # [d1, k, 1]
        inverse = torch.linalg.inv(gram)
        h = (inverse @ right).squeeze(2).T
        left = (v.T @ h - weight).abs()
        typical = (left * mask).sum(0) / mask.sum(0).clamp(min=1)
        keep = mask * (left <= 6 * typical).double()
        if torch.equal(keep, mask):
            break
        mask = keep
    trust = 1 / inverse.diagonal(dim1=1, dim2=2).T.clamp(min=1e-300)  # [k, d1]
    count = (weight > 0).sum(0)
    # A feature that is zero for the whole batch has a gradient of zero, so no entry is positive.
    dead = count <= 0.02 * len(weight)
    enough = mask.sum(0) >= k + 5
    typical_trust = trust[:, enough].median() if bool(enough.any()) else trust.new_tensor(1.0)
    h = torch.where(dead, 0.0, h)
    return h, torch.where(dead, typical_trust, torch.where(enough, trust, 0.0))
