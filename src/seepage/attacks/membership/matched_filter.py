"""The matched filter: the likelihood-ratio test for a known gradient in a sum of gradients like public ones."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.membership.base import Detector, Done, MembershipTest, nothing
from seepage.attacks.membership.gradients import AT_ONCE, ExampleGradients
from seepage.attacks.membership.noise import KnownNoise
from seepage.attacks.membership.shrinkage import ledoit_wolf
from seepage.attacks.search.adaptive import known_noise
from seepage.base.registry import membership_tests
from seepage.errors import SeepageError, refuse
from seepage.federation.types import Batch, Knowledge, Round

SCALE_FLOOR = 1e-3
"""Share of the mean standard deviation that is added to that of each entry."""


@dataclass(frozen=True)
class Whitening:
    """A covariance `S = (1 - rho) Z'Z / m + rho mu I` of gradients, and products with its inverse.

    rho is the shrinkage of Ledoit and Wolf (2004), which needs no choice; mu is the mean variance of an entry. With
    fewer examples than entries only m x m systems are solved, by the Woodbury identity:

        S^-1 = (1 / b) (I - Z' (Z Z' + (b / a) I)^-1 Z),    a = (1 - rho) / m,    b = rho mu

    Noise of variance v in an entry adds `v D^2` to S, where D scales the entries: then with W = b / (b + v D^2), a
    diagonal,

        (S + v D^2)^-1 = (1 / b) (W - W Z' (Z W Z' + (b / a) I)^-1 Z W)

    Attributes:
        mean: `[d]` the mean gradient.
        scale: `[d]` what each entry is multiplied by first.
        rows: `[m, d]` the centered, scaled gradients Z, or Z W.
        inverse: `[m, m]` float64, (Z Z' + (b / a) I)^-1.
        shrinkage: rho, between 0 and 1.
        weights: `[d]` the diagonal of W; None: all 1.
    """

    mean: Tensor
    scale: Tensor
    rows: Tensor
    inverse: Tensor
    shrinkage: float
    weights: Tensor | None = None

    @classmethod
    def of(cls, gradients: Tensor, noise: float | Tensor = 0.0) -> "Whitening":
        """The covariance of public examples' gradients.

        Args:
            gradients: `[m, d]`, one row for each example. They are centered and scaled in place.
            noise: v, the variance that noise adds to every entry, or `[d]` to each, in units of one example's gradient.

        Raises:
            SeepageError: Where all rows are the same.
        """
        m, d = gradients.shape
        mean = gradients.mean(0)
        gradients -= mean
        # Each entry gets unit variance, or less where it hardly varies (a dead neuron): entries differ in scale by
        # orders of magnitude, and shrinkage towards a multiple of I would keep what it has of the largest only.
        deviation = gradients.square().mean(0).sqrt()
        scale = 1 / (deviation + SCALE_FLOOR * deviation.mean()).clamp_min(1e-30)
        gradients *= scale
        gram = (gradients @ gradients.T).double()  # [m, m] = Z Z'
        mu = float(gram.diagonal().sum() / m / d)
        if mu == 0:
            raise refuse("gradients_alike")(
                "the gradients of all public examples are the same (zero, where a network has died), so a member's "
                "does not stand out",
                "look at the update of a network that still learns",
            )
        squared = float((gram / m).square().sum())
        rho = ledoit_wolf(m, d, mu, squared, float(gram.diagonal().square().mean()))
        ridge = rho * mu * m / (1 - rho)  # b / a
        weights = None
        if bool(torch.as_tensor(noise).any()):
            weights = rho * mu / (rho * mu + noise * scale.square())  # [d]
            gram = ((gradients * weights) @ gradients.T).double()  # Z W Z'
        inverse = torch.linalg.inv(gram + ridge * torch.eye(m, dtype=gram.dtype, device=gram.device))
        return cls(mean, scale, gradients if weights is None else gradients * weights, inverse, rho, weights)

    def centered(self, gradients: Tensor) -> Tensor:
        """`[k, d]` gradients less the mean, scaled."""
        return (gradients - self.mean) * self.scale

    def solved(self, centered: Tensor) -> Tensor:
        """`[k, d]` rows x' S^-1 times b, of centered rows x."""
        along = (centered @ self.rows.T).double() @ self.inverse  # [k, m]
        direct = centered if self.weights is None else centered * self.weights
        return direct - along.to(centered.dtype) @ self.rows

    def residual(self, update: Tensor) -> Tensor:
        """`[1, d]` an update less its share of the mean gradient, where a clip has scaled it by nobody knows what.

        The share is that of generalized least squares: s = m' S^-1 u / m' S^-1 m.
        """
        mean, own = (self.mean * self.scale)[None], (update * self.scale)[None]
        solved = self.solved(mean)
        share = (solved * own).sum() / (solved * mean).sum().clamp_min(1e-30)
        return own - share * mean


@dataclass(frozen=True)
class _Filter(Detector):
    """The matched filter at one set of weights.

    Attributes:
        gradients: Of single examples.
        whitening: By their covariance.
        mean: `[d]` the mean update of batches.
        scaled: The update was clipped, so that its length says nothing.
    """

    gradients: ExampleGradients
    whitening: Whitening
    mean: Tensor
    scaled: bool = False

    def templates(self, examples: Batch, done: Done = nothing) -> Tensor:
        """`[k, d]` rows g' S^-1 / sqrt(g' S^-1 g), of centered gradients g."""
        rows = []
        for part in torch.arange(len(examples)).split(AT_ONCE):
            own = self.whitening.centered(self.gradients.of(Batch(examples.inputs[part], examples.labels[part]), done))
            solved = self.whitening.solved(own)
            rows.append(solved / (solved * own).sum(1, keepdim=True).clamp_min(1e-30).sqrt())
        return torch.cat(rows)

    def statistics(self, observed: Round, templates: Tensor) -> Tensor:
        """`[k]` correlations, from -1 to 1."""
        entries, lost = self.gradients.entries_of(observed), self.gradients.lost_of(observed)
        if lost is not None:
            entries = torch.where(lost, self._expected(entries, observed.batch_size or 1), entries)
        # u - m, or u - s m
        centered = (entries - self.mean)[None] * self.whitening.scale
        update = self.whitening.residual(entries) if self.scaled else centered
        length = (self.whitening.solved(update) * update).sum().clamp_min(1e-30).sqrt()
        return templates @ update[0] / length

    def _expected(self, least: Tensor, examples: int) -> Tensor:
        """`[d]` entries u as they are expected by their signs and least sizes.

        With u about N(m, s^2), E[u | u > 0] = m + s phi(m / s) / Phi(m / s), and for u < 0 the same of -u.
        """
        spread = 1 / (self.whitening.scale.double() * examples**0.5)
        mean, sign = self.mean.double(), least.sign().double()
        odds = sign * mean / spread
        ratio = (-odds.square() / 2 - math.log(2 * math.pi) / 2 - torch.special.log_ndtr(odds)).exp()
        size = torch.maximum((sign * mean + spread * ratio).abs(), least.double().abs())
        return (sign * size).to(least.dtype)


@membership_tests.register(
    "matched_filter",
    paper="none; the adaptive matched filter of signal detection (Robey et al. 1992) on gradients",
    cost="a backward pass for each example",
)
@dataclass(frozen=True, kw_only=True)
class MatchedFilter(MembershipTest):
    """Correlate the update with the candidate's gradient, after whitening by the covariance of public gradients.

    The update is the mean of n gradients. If the candidate c is among them, u = g_c / n + r, and r is a mean of others,
    about Gaussian with the mean and a multiple of the covariance S of public examples' gradients. For a known signal in
    such noise the most powerful statistic is linear in u (Neyman and Pearson 1933):

        T(c) = g_c' S^-1 (u - m) / sqrt(g_c' S^-1 g_c  (u - m)' S^-1 (u - m))

    with g_c centered by the mean gradient m as well. Whitening is what counts: gradients of examples share their large
    directions, which say little about any one of them.

    Batch norm in train mode couples the examples of a batch, so that its update is more than the mean of their own
    gradients. What that adds is measured on public batches of the client's size, and its variance is added to S, tensor
    by tensor: layers that see a handful of values per channel then count for little.

    An attacker who knows of the client's defense adds the variance of its Gaussian noise to S, clips examples as the
    client does, and takes the scale that a clip of the whole update gave it for unknown
    (`seepage.attacks.membership.noise`).

    Args:
        entries: Largest number of entries of each tensor that are used, drawn at random.
    """

    entries: int = 4096

    def __post_init__(self) -> None:
        if self.entries < 1:
            raise SeepageError(f"entries must be at least 1, got {self.entries}; some thousands are usual")

    def fit(
        self, knowledge: Knowledge, observed: Round, reference: Batch, *, seed: int, done: Done = nothing
    ) -> Detector:
        """A detector with the covariance of the reference's gradients. See `MembershipTest.fit`."""
        gradients = ExampleGradients.at(knowledge, observed, reference, entries=self.entries, seed=seed)
        rows, known = gradients.of(reference, done), KnownNoise.of(knowledge, observed)
        coupling = gradients.coupling(reference, rows)
        variance: float | Tensor = 0.0 if coupling is None else coupling[1]
        if known is not None:
            variance = variance + known.variance(rows, gradients.weights, observed.batch_size or 1)
        whitening = Whitening.of(rows, variance)
        mean = whitening.mean if coupling is None else coupling[0]
        return _Filter(gradients, whitening, mean, known is not None and known.length is not None)

    def adapts(self, knowledge: Knowledge) -> bool:
        """Whether it knows of noise, or of a clip of examples."""
        defense = knowledge.defense
        mechanism = None if defense is None else defense.mechanism([0])
        return known_noise(knowledge) is not None or (mechanism is not None and mechanism.unit == "example")
