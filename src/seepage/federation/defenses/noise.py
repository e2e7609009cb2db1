"""Random noise on the whole update: Gaussian, on a unit norm, decaying over the rounds, Laplace."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from seepage.base.nn import TINY, norm, safe_norm
from seepage.base.registry import defenses
from seepage.errors import SeepageError
from seepage.federation.types import (
    ClientUpdate,
    ClientView,
    Defense,
    DefenseModel,
    GaussianMechanism,
    Likelihood,
    Noise,
    Tensors,
    Update,
)


@defenses.register("gaussian_noise")
@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Defense):
    """Clip the whole update to a norm, then add independent Gaussian noise to every entry.

    This is the mechanism of client-level differential privacy (Geyer et al. 2017) for one update. It states no
    epsilon: that depends on sampling and on the number of rounds; see `seepage.measure.privacy.accounting`.

    Args:
        sigma: Standard deviation of the noise, in units of `clip` where a clip is set, else absolute.
        clip: Largest Euclidean norm of the update over all tensors; None leaves it as it is.
    """

    reads_examples: ClassVar[bool] = False

    sigma: float
    clip: float | None = None

    def __post_init__(self) -> None:
        _check("GaussianNoise", "sigma", self.sigma, self.clip)

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        return replace(update, tensors=_clipped_and_noisy(update.tensors, self.sigma, self.clip, generator))

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return _clip_models(self.clip)

    def added_noise(self, rule: ClientUpdate, examples: float, t: int) -> Noise:
        return _noise(self.sigma, self.clip, rule, examples)

    def with_less_noise(self, share: float, t: int) -> "GaussianNoise":
        return replace(self, sigma=share * self.sigma)

    def mechanism(self, rounds: Sequence[int]) -> GaussianMechanism:
        return GaussianMechanism("update", self.clip, self.sigma)


@defenses.register("decaying_noise")
@dataclass(frozen=True, kw_only=True)
class DecayingNoise(Defense):
    """Gaussian noise whose strength falls from round to round (the decay of Fu et al. 2022, Adap DP-FL).

    Round t gets `max(floor, sigma * decay ** (t // every))`. Fu et al. lower the noise when the model has improved and
    set each client's clip from earlier rounds; here both follow a plan fixed beforehand, because a client that
    looks at its data to choose its noise spends privacy that no accountant counts.
    `seepage.measure.privacy.accounting.epsilons` takes `[defense.sigma_at(t) for t in rounds]`.

    Args:
        sigma: Standard deviation in round 0, in units of `clip` where a clip is set, else absolute.
        decay: Factor per `every` rounds, in (0, 1]; 1 never decays.
        every: Rounds between two steps of the decay, at least 1.
        floor: The noise never falls below this; same unit as `sigma`.
        clip: Largest Euclidean norm of the update over all tensors; None leaves it as it is.

    Example:
        >>> [DecayingNoise(sigma=1.0, decay=0.5, floor=0.2).sigma_at(t) for t in range(4)]
        [1.0, 0.5, 0.25, 0.2]
    """

    reads_examples: ClassVar[bool] = False

    sigma: float
    decay: float = 0.99
    every: int = 1
    floor: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        _check("DecayingNoise", "sigma", self.sigma, self.clip)
        if not 0 < self.decay <= 1 or self.every < 1 or not 0 <= self.floor <= self.sigma:
            raise SeepageError(
                "DecayingNoise needs decay in (0, 1], every >= 1 and floor from 0 to sigma, got "
                f"decay={self.decay}, every={self.every}, floor={self.floor}; correct the recipe"
            )

    def sigma_at(self, t: int) -> float:
        """The noise of round `t`."""
        return max(self.floor, self.sigma * self.decay ** (t // self.every))

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        return replace(
            update, tensors=_clipped_and_noisy(update.tensors, self.sigma_at(client.t), self.clip, generator)
        )

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return _clip_models(self.clip)

    def added_noise(self, rule: ClientUpdate, examples: float, t: int) -> Noise:
        return _noise(self.sigma_at(t), self.clip, rule, examples)

    def with_less_noise(self, share: float, t: int) -> GaussianNoise:
        return GaussianNoise(sigma=share * self.sigma_at(t), clip=self.clip)

    def mechanism(self, rounds: Sequence[int]) -> GaussianMechanism:
        return GaussianMechanism("update", self.clip, tuple(self.sigma_at(t) for t in rounds))


@defenses.register("unit_norm_noise")
@dataclass(frozen=True, kw_only=True)
class UnitNormNoise(Defense):
    """Scale the whole update to norm 1, then add Gaussian noise (Kariyappa et al. 2023, Section 6 and Table 3).

    The paper's epsilons, 6056.00, 606.60 and 60.56 for sigma 0.0001, 0.001 and 0.01, are (but for the digits of the
    second) sqrt(2 ln(1.25 / delta)) / (8 sigma) at delta 1e-5: the classical formula outside its range, with
    sensitivity 1/8 for a batch of 8. Scaling to norm 1 does not bound what one example changes by 1/8: examples are
    not clipped.

    Args:
        sigma: Standard deviation of the noise, relative to the norm of the whole update.
    """

    reads_examples: ClassVar[bool] = False

    sigma: float

    def __post_init__(self) -> None:
        _check("UnitNormNoise", "sigma", self.sigma, None)

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        length = max(float(norm(update.tensors)), 1e-12)
        unit = {name: tensor / length for name, tensor in update.tensors.items()}
        noisy = _clipped_and_noisy(unit, self.sigma, None, generator)
        return replace(update, tensors=noisy)

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return (UnitLength(),)

    def added_noise(self, rule: ClientUpdate, examples: float, t: int) -> Noise | None:
        # A difference of weights has another unit norm.
        return Noise(self.sigma, unit=True) if gradient_unit(rule, examples) == 1 else None

    def with_less_noise(self, share: float, t: int) -> "UnitNormNoise":
        return replace(self, sigma=share * self.sigma)


@defenses.register("laplace_noise")
@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(Defense):
    """Clip the update's sum of magnitudes, then add independent Laplace noise (as in Zhu et al. 2019, Section 5.1).

    With a clip this is the Laplace mechanism for one update: replacing it moves at most `2 * clip` in sum of
    magnitudes. Without one it promises nothing.

    Args:
        scale: Scale b of the noise (standard deviation sqrt(2) b), in units of `clip` where a clip is set.
        clip: Largest sum of magnitudes of the update over all tensors; None leaves it as it is.
    """

    reads_examples: ClassVar[bool] = False

    scale: float
    clip: float | None = None

    def __post_init__(self) -> None:
        _check("LaplaceNoise", "scale", self.scale, self.clip)

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        shrink, scale = 1.0, self.scale
        if self.clip is not None:
            total = sum(float(tensor.abs().sum()) for tensor in update.tensors.values())
            shrink, scale = min(1.0, self.clip / max(total, 1e-12)), self.scale * self.clip
        noisy = {name: tensor * shrink + scale * _laplace(tensor, generator) for name, tensor in update.tensors.items()}
        return replace(update, tensors=noisy)

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return _clip_models(self.clip, order=1)

    def added_noise(self, rule: ClientUpdate, examples: float, t: int) -> Noise:
        scale = self.scale if self.clip is None else self.scale * self.clip
        return Noise(math.sqrt(2) * scale * gradient_unit(rule, examples), law="laplace")

    def likelihood(self, rule: ClientUpdate, examples: float) -> "LaplaceLikelihood | None":
        if not self.scale > 0:
            return None
        unit = gradient_unit(rule, examples)
        clip = None if self.clip is None else self.clip * unit
        return LaplaceLikelihood(self.scale * (unit if clip is None else clip), clip)

    def with_less_noise(self, share: float, t: int) -> "LaplaceNoise":
        return replace(self, scale=share * self.scale)


def gradient_unit(rule: ClientUpdate, examples: float) -> float:
    """Factor that converts an update's own unit to that of a gradient."""
    if rule.single_gradient:
        return 1.0
    ones = Update({"w": torch.ones(1, dtype=torch.float64)}, kind="delta")
    return abs(float(rule.as_gradient(ones, math.ceil(examples))["w"]))


def _noise(sigma: float, clip: float | None, rule: ClientUpdate, examples: float) -> Noise:
    unit = gradient_unit(rule, examples)
    bound = None if clip is None else clip * unit
    return Noise(sigma * (unit if bound is None else bound), bound)


def gaussian(like: Tensor, generator: Generator) -> Tensor:
    """Standard normal entries, shaped, typed and placed like a tensor."""
    return torch.randn(like.shape, generator=generator).to(like)


def _laplace(like: Tensor, generator: Generator) -> Tensor:
    """The difference of two unit exponentials is a unit Laplace variable."""
    draws = torch.empty(2, *like.shape).exponential_(generator=generator)
    return (draws[0] - draws[1]).to(like)


def _clipped_and_noisy(tensors: Tensors, sigma: float, clip: float | None, generator: Generator) -> Tensors:
    shrink, deviation = 1.0, sigma
    if clip is not None:
        shrink, deviation = min(1.0, clip / max(float(norm(tensors)), 1e-12)), sigma * clip
    return {name: tensor * shrink + deviation * gaussian(tensor, generator) for name, tensor in tensors.items()}


def _check(who: str, what: Literal["sigma", "scale"], strength: float, clip: float | None) -> None:
    if not 0 <= strength < math.inf or (clip is not None and not 0 < clip < math.inf):
        raise SeepageError(
            f"{who} needs {what} >= 0 and clip > 0, got {what}={strength}, clip={clip}; correct the recipe"
        )


@dataclass(frozen=True)
class Clipped(DefenseModel):
    """The whole gradient is scaled down to a Euclidean norm (order 2) or a sum of magnitudes (order 1)."""

    scales_whole: ClassVar[bool] = True

    clip: float
    order: Literal[1, 2] = 2

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        if self.order == 2:
            size = safe_norm(dummy)
        else:
            size = torch.stack([tensor.abs().sum() for tensor in dummy.values()]).sum() + TINY
        scale = (self.clip / size).clamp(max=1)
        return {name: scale * tensor for name, tensor in dummy.items()}

    def suited_to(self, *, scale_free: bool, absolute: bool, single_gradient: bool) -> "Clipped | None":
        # A difference of weights has another unit than the clip norm, and a cosine ignores length.
        return self if single_gradient and not scale_free else None


@dataclass(frozen=True)
class LaplaceLikelihood(Likelihood):
    """`sum |g - m(g')| / b`: minus the log density of independent Laplace noise of scale b, up to a constant.

    Here m scales the guess's gradient g' down to the clip, as the client scaled its own. Squared distances overrate
    the few entries with much noise; this one is the likelihood that the Bayes-optimal attack asks for.

    Args:
        scale: b, in units of the gradient.
        clip: Largest sum of magnitudes of that gradient before the noise; None: none.

    >>> LaplaceLikelihood(scale=0.5)({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 0.0])})
    tensor(2.)
    """

    scale: float
    clip: float | None = None

    def __call__(self, dummy: Tensors, sent: Tensors) -> Tensor:
        if self.clip is not None:
            dummy = Clipped(self.clip, order=1)(dummy, sent)
        # -log p(g | g') = sum_i |g_i - g'_i| / b + const
        return torch.stack([(dummy[name] - sent[name]).abs().sum() for name in sent]).sum() / self.scale


@dataclass(frozen=True)
class UnitLength(DefenseModel):
    """The whole gradient is scaled to norm 1."""

    scales_whole: ClassVar[bool] = True

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        size = safe_norm(dummy)
        return {name: tensor / size for name, tensor in dummy.items()}

    def suited_to(self, *, scale_free: bool, absolute: bool, single_gradient: bool) -> "UnitLength | None":
        return self if single_gradient and not scale_free else None


def _clip_models(clip: float | None, order: Literal[1, 2] = 2) -> tuple[DefenseModel, ...]:
    return () if clip is None else (Clipped(clip, order),)
