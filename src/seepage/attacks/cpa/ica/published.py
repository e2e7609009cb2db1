"""The objective of the Cocktail Party Attack (Kariyappa et al., ICML 2023, eq. 7 to 10) and its search by Adam."""

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.base.checkpoint import Resumable
from seepage.base.images import neighbor_differences


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Weights of the published objective, to be minimized. Zero switches a term off.

    Args:
        negentropy: Of the square of each row's mean log cosh, `(E log cosh s)^2`, averaged over rows (eq. 7 with a = 1,
            in the form of the released code); the paper's weight is 1. The paper maximizes it without comparing it to a
            Gaussian's, which favors sources flatter than a Gaussian over peaked ones; the authors' released code leaves
            the term out.
        independence: Of `exp(T |cos|) - 1` over pairs of unmixing rows (eq. 8), averaged over all n^2 places of the
            matrix of cosines, where a row with itself counts 0: (n - 1) / n of the mean over pairs.
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
        # The published terms with their signs: the search goes down, and negentropy is to be large (eq. 7).
        n = len(rows)
        total = rows.new_zeros(())
        if self.negentropy:
            # log cosh s = |s| + log(1 + exp(-2 |s|)) - log 2, finite for large s.
            size = sources.abs()
            log_cosh = size + torch.nn.functional.softplus(-2 * size) - torch.log(torch.tensor(2.0))
            total = total - self.negentropy * log_cosh.mean(1).square().mean()
        if self.independence:
            # Rows that find the same source are parallel: every pair is punished exponentially (eq. 8). [n, n]
            cosines = (rows @ rows.T).abs() * (1 - torch.eye(n).to(rows))
            total = total + self.independence * (torch.exp(self.temperature * cosines) - 1).mean()
        whole = sources + offsets
        if self.tv and shape is not None:
            images = whole.reshape(n, *shape)
            down, across = neighbor_differences(images)
            total = total + self.tv * (across.mean() + down.mean())
        if self.l1:
            total = total + self.l1 * whole.abs().mean()
        if self.sign:
            # Zero where a source has one sign throughout, whichever (eq. 10). [n]
            below, above = (-whole).relu().norm(dim=1), whole.relu().norm(dim=1)
            total = total + self.sign * torch.minimum(below, above).mean()
        return total


IMAGES = Objective()
"""The authors' weights for FC-2 on Tiny-ImageNet, batch 128; the paper gives none, nor any for other settings.

They are of a release whose negentropy is multiplied by 0. Here it has weight 1, as the paper's objective has it, beside
weights that were found without it; on Tiny-ImageNet with n = 32 that changes nothing (20.54 dB and an SSIM of 0.84, and
20.50 dB and 0.84 without; the book's Table 4)."""

EMBEDDINGS = Objective(independence=5.3, temperature=7.7, tv=0.0, l1=5.0, sign=0.13)
"""The authors' weights for VGG-16 on ImageNet, batch 256. Of negentropy as for `IMAGES`; here it was not measured."""


class Unmixing(Resumable):
    """The published search, a step at a time: center and whiten, then Adam on the unmixing rows.

    Rows start at the identity and are put to unit length in each evaluation; the learning rate is constant.

    Args:
        mixtures: `[m, d]`.
        n: Number of sources; the published method needs it.
        objective: Weights.
        shape: `(C, H, W)` where the sources are images.
        lr: Learning rate.

    Attributes:
        rows: `[n, n]` the unknowns, float32.
        optimizer: Adam on them.
        history: `(step, objective)` pairs that were recorded.

    >>> search = Unmixing(torch.tensor([[1.0, -1.0, 2.0, -2.0], [2.0, 1.0, -1.0, -2.0]]), 2, IMAGES)
    >>> search.step() > search.step(), tuple(search.sources().shape)
    (True, (2, 4))
    """

    kept = ("rows", "optimizer", "history")

    def __init__(
        self,
        mixtures: Tensor,
        n: int,
        objective: Objective,
        *,
        shape: tuple[int, ...] | None = None,
        lr: float = 1e-3,
    ) -> None:
        mixtures = mixtures.double()
        means = mixtures.mean(1, keepdim=True)
        centered = mixtures - means
        # Whitening by the covariance's first n eigenvectors: D^-1/2 V^T, as in `unmix.whitener` but about the mean.
        moments, vectors = torch.linalg.eigh(centered @ centered.T / (mixtures.shape[1] - 1))
        keep = moments.argsort(descending=True)[:n]
        keep = keep[moments[keep] > moments.max() * 1e-15]
        whitening = (vectors[:, keep] / moments[keep].sqrt()).T  # [n, m]
        self._white, self._offsets = (whitening @ centered).float(), (whitening @ means).float()
        self._objective, self._shape = objective, shape
        self.rows = torch.eye(len(self._white)).to(self._white).requires_grad_()
        self.optimizer = torch.optim.Adam([self.rows], lr=lr)
        self.history: list[tuple[int, float]] = []

    def step(self) -> float:
        """One Adam step; the objective before it."""
        # On whitened mixtures unit rows give sources of variance 1; nothing but eq. 8 keeps them apart.
        unit = torch.nn.functional.normalize(self.rows, dim=1)
        value = self._objective(unit, unit @ self._white, unit @ self._offsets, self._shape)
        self.rows.grad = torch.autograd.grad(value, self.rows)[0]
        self.optimizer.step()
        return value.item()

    def note(self, step: int, value: float) -> None:
        """Add to the history."""
        self.history.append((step, value))

    def sources(self) -> Tensor:
        """`[n, d]` the sources as they stand, up to order, sign and scale."""
        unit = torch.nn.functional.normalize(self.rows.detach(), dim=1)
        found: Tensor = unit @ self._white + unit @ self._offsets  # the means come back: an image is not centered
        return found
