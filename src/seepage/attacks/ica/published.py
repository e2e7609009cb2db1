"""The objective of the Cocktail Party Attack (Kariyappa et al., ICML 2023, eq. 7 to 10) and its search by Adam."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Weights of the published objective, to be minimised. Zero switches a term off.

    Args:
        negentropy: Of the mean squared log cosh of each row (eq. 7); the paper's weight is 1. The paper maximises it
            without comparing it to a Gaussian's, which favors sources flatter than a Gaussian over peaked ones;
            the authors' released code leaves the term out.
        independence: Of `exp(T |cos|) - 1` over pairs of unmixing rows (eq. 8).
        temperature: `T` in it.
        tv: Of the total variation of image sources (eq. 3 and 9).
        l1: Of the mean absolute value, for sparse sources (eq. 10).
        sign: Of the smaller of negative and positive part, for sources of one sign (eq. 10).
    """

    negentropy: float = 1.0
    independence: float = 1.47
    temperature: float = 12.4
    tv: float = 3.1
    l1: float = 0.0
    sign: float = 0.0

    def __call__(self, rows: Tensor, sources: Tensor, offsets: Tensor, shape: tuple[int, ...] | None) -> Tensor:
        """The objective `[]`.

        Args:
            rows: `[n, n]` unit rows on whitened, centered mixtures.
            sources: `[n, d]` sources without their means.
            offsets: `[n, 1]` their means; total variation, L1 and sign are of the sources with means.
            shape: `(C, H, W)` where the sources are images.
        """
        n = len(rows)
        total = rows.new_zeros(())
        if self.negentropy:
            # log cosh s = |s| + log(1 + exp(-2 |s|)) - log 2, finite for large s.
            size = sources.abs()
            log_cosh = size + torch.nn.functional.softplus(-2 * size) - torch.log(torch.tensor(2.0))
            total = total - self.negentropy * log_cosh.mean(1).square().mean()
        if self.independence:
            cosines = (rows @ rows.T).abs() * (1 - torch.eye(n).to(rows))
            total = total + self.independence * (torch.exp(self.temperature * cosines) - 1).mean()
        whole = sources + offsets
        if self.tv and shape is not None:
            images = whole.reshape(n, *shape)
            across = (images[..., :, 1:] - images[..., :, :-1]).abs().mean()
            total = total + self.tv * (across + (images[..., 1:, :] - images[..., :-1, :]).abs().mean())
        if self.l1:
            total = total + self.l1 * whole.abs().mean()
        if self.sign:
            below, above = (-whole).relu().norm(dim=1), whole.relu().norm(dim=1)
            total = total + self.sign * torch.minimum(below, above).mean()
        return total


IMAGES = Objective()
"""The authors' weights for FC-2 on Tiny-ImageNet, batch 128; the paper gives none, nor any for other settings."""

EMBEDDINGS = Objective(independence=5.3, temperature=7.7, tv=0.0, l1=5.0, sign=0.13)
"""The authors' weights for VGG-16 on ImageNet, batch 256."""


def search(
    mixtures: Tensor,
    n: int,
    objective: Objective,
    *,
    shape: tuple[int, ...] | None = None,
    steps: int = 25_000,
    lr: float = 1e-3,
    report: Callable[[int, float], None] = lambda step, value: None,
) -> tuple[Tensor, list[tuple[int, float]]]:
    """Center and whiten `mixtures [m, d]`, then find the unmixing rows by Adam, as published.

    Rows start at the identity and are put to unit length in each evaluation; the learning rate is constant.

    Args:
        mixtures: `[m, d]`.
        n: Number of sources; the published method is told it.
        objective: Weights.
        shape: `(C, H, W)` where the sources are images.
        steps: Adam steps.
        lr: Learning rate.
        report: Is told step and objective a hundred times.

    Returns:
        `[n, d]` sources up to order, sign and scale, and the history of the objective.
    """
    mixtures = mixtures.double()
    means = mixtures.mean(1, keepdim=True)
    centered = mixtures - means
    moments, vectors = torch.linalg.eigh(centered @ centered.T / (mixtures.shape[1] - 1))
    keep = moments.argsort(descending=True)[:n]
    keep = keep[moments[keep] > moments.max() * 1e-15]
    whitening = (vectors[:, keep] / moments[keep].sqrt()).T  # [n, m]
    white, offsets = (whitening @ centered).float(), (whitening @ means).float()
    rows = torch.eye(len(white)).to(white).requires_grad_()
    optimizer = torch.optim.Adam([rows], lr=lr)
    history: list[tuple[int, float]] = []
    every = max(1, steps // 100)
    for step in range(steps):
        unit = torch.nn.functional.normalize(rows, dim=1)
        value = objective(unit, unit @ white, unit @ offsets, shape)
        rows.grad = torch.autograd.grad(value, rows)[0]
        optimizer.step()
        if step % every == 0:
            history.append((step, value.item()))
            report(step, value.item())
    unit = torch.nn.functional.normalize(rows.detach(), dim=1)
    return unit @ white + unit @ offsets, history
