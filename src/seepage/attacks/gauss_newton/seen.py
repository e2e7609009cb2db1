"""What Gauss-Newton works on: a round, what its head reveals, and when the update vouches for images."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from seepage.attacks.base import Inapplicable, refuse
from seepage.attacks.gauss_newton.contrast import with_contrast
from seepage.attacks.gauss_newton.levels import to_levels
from seepage.attacks.network import EXACT, AttackedRound, vouch
from seepage.attacks.network.linearize import Held, VictimNetwork
from seepage.attacks.reading.activations import inner_activations
from seepage.attacks.reading.equations import Known, Structure
from seepage.attacks.reading.head import HeadFeatures
from seepage.base.nn import generator, norm
from seepage.federation.types import Batch, Tensors

CERTAIN = 1e-1
"""An image is certified where the update is off by less than this share of what a change of the image adds to it."""
CERTAIN_CURVED = 1e-4
"""Share that certifies where slopes depend on the images: sigmoids give far images gradients that differ by 1e-4."""
CERTAIN_TOGETHER = 1e-2
"""Share that certifies where batch norm ties examples together; the change is then to a flat image."""
ROUNDED = 1e-4
"""Relative difference of the updates up to which images rounded to 8 bits are the client's, but for a few values."""
OFF, ON = 0.5, 4.0
"""A ReLU's feature below, or above, so many times its error is off, or on; between them its side is open."""


@dataclass(frozen=True)
class Seen:
    """What the attack works on: the round, and what its head reveals.

    Attributes:
        attacked: The round, its update divided by the head's `share`.
        network: The network.
        structure: Where the known quantities lie in it.
        head: What the head reveals, or what was read further down in its place.
        known: The same as equations.
        held: Activations that are known.
    """

    attacked: AttackedRound
    network: VictimNetwork
    structure: Structure
    head: HeadFeatures
    known: Known
    held: Mapping[int, Held] = field(default_factory=dict)

    def images(self, unit: Tensor) -> Tensor:
        """Images in [0, 1] from where a search stands."""
        return unit.detach().clamp(0, 1)

    def decodable(self, features: Tensor) -> Tensor:
        """Features `[n, *shape]` with their positions: `[n, c, h, w]`, `[n, c, 1, 1]` where they have none."""
        shape = self.structure.shape if len(self.structure.shape) == 3 else (*self.structure.shape, 1, 1)
        return features.view(len(features), *shape)

    def update(self, unit: Tensor, labels: Tensor) -> Tensors:
        """The update that a client with these images would have sent."""
        batch = Batch(self.network.low + self.network.span * unit, labels.to(unit.device))
        observed, client = self.attacked.observed, self.attacked.knowledge.client
        return client(self.attacked.model, observed.params, batch, buffers=observed.buffers).tensors

    def error(self, unit: Tensor) -> float:
        """Relative difference of the update that these images give from the observed one."""
        return self.explained(unit)[0]

    def explained(self, unit: Tensor) -> tuple[float, Bool[Tensor, " n"]]:
        """The same, and the examples behind it.

        Examples whose features are not known may have left no trace in the update, and then count as 0; or the layers
        in front showed them all the same. Whichever explains the update better is taken.
        """
        known, images = self.head.known, self.network.low + self.network.span * unit
        found = []
        for some in (known,) if bool(known.all()) else (known, torch.ones_like(known)):
            # A multiple that was solved for has an error of its own: the one that explains most stands in for it.
            multiple = None if self.head.share != 1 else float(some.double().mean())
            error = vouch(self.attacked, images[some.to(unit.device)], self.head.labels[some], multiple=multiple)[0]
            found.append((error, some))
        return min(found, key=lambda pair: pair[0])

    def vouched(self, unit: Tensor, probe: Tensor, error: float) -> Bool[Tensor, " n"]:
        """Which images the update vouches for.

        The layers in front of the matched one were not fitted to, so that the whole update comes out right vouches for
        the images that it depends on. What a small change of an image adds to it must stand out from what is left
        unexplained: one whose loss is near 0 could be any image, and so could one that hardly reaches the weights.
        Behind a curved activation, far images give nearly the same update.

        Args:
            unit: `[n, C, H, W]` images.
            probe: `[n, C, H, W]` standard normal numbers, the direction of that change.
            error: Of these images.
        """
        limit = CERTAIN if self.structure.activation is not None else CERTAIN_CURVED
        # The smallest error that a certificate must rule out: an image that far off is not exact.
        changed = (unit + EXACT * probe).split(1)  # at 40 dB
        own = []
        for one, other, label in zip(unit.split(1), changed, self.head.labels.split(1), strict=True):
            # The update is the mean of what the examples would send alone.
            own.append(_apart(self.update(one, label), self.update(other, label)) / len(unit))
        # Unexplained, |u - v|, against what image i would add: |u(x_i + e) - u(x_i)| / n.
        off = error * float(norm(self.attacked.observed.update.tensors))
        return (self.explained(unit)[1] & (off < limit * torch.tensor(own))).to(unit.device)


@dataclass(frozen=True)
class SeenTogether(Seen):
    """The same where batch norm in train mode ties the examples together: all that is known is what a block read.

    The update does not show the batch's contrast: of another one it would be the same.

    Attributes:
        center: `[1, C, H, W]` image from which distances are known up to one factor; None: all are known.
    """

    center: Tensor | None = None

    @classmethod
    def of(cls, attacked: AttackedRound, network: VictimNetwork) -> "SeenTogether":
        """Read the last block.

        Raises:
            Inapplicable: Where it cannot be solved for.
        """
        try:
            found = inner_activations(attacked.observed, attacked.knowledge)
        except Inapplicable as refused:
            raise refuse("batch_norm")(
                "batch norm in train mode makes each example's features depend on the whole batch, and "
                f"{refused.reason}",
                refused.remedy,
            ) from None
        like, network = attacked.like(), replace(network, training=True)
        # Of black images all activations may be zero, and so alike.
        two = torch.rand((2, *attacked.knowledge.input_shape), generator=generator(0, "probe image")).to(like)
        structure = Structure.reading(network, f"{found.layer}.weight", two)
        known = Known.of_reading(found.activations.to(like), found.offset_known)
        head = replace(found, features=found.activations.flatten(1))
        return cls(attacked.over(found.share), network, structure, head, known, center=network.zero(two))

    def images(self, unit: Tensor) -> Tensor:
        """Images in [0, 1] of the contrast that 8-bit values show, else of the one that fills the range."""
        return super().images(unit) if self.center is None else with_contrast(unit.detach(), self.center)

    def vouched(self, unit: Tensor, probe: Tensor, error: float) -> Bool[Tensor, " n"]:
        """The same by the part of the update that depends on an image: its change where that image is a flat one.

        Of another contrast the update would be the same, so only 8-bit values are vouched for.
        """
        if self.center is None:
            return super().vouched(unit, probe, error)
        if not (error < ROUNDED and bool((unit == to_levels(unit)).all())):
            return torch.zeros(len(unit), dtype=torch.bool, device=unit.device)
        whole = self.update(unit, self.head.labels)
        own = []
        for i in range(len(unit)):
            without = unit.clone()
            without[i] = unit[i].mean((1, 2), keepdim=True)
            own.append(_apart(whole, self.update(without, self.head.labels)))
        off = error * float(norm(self.attacked.observed.update.tensors))
        return (off < CERTAIN_TOGETHER * torch.tensor(own)).to(unit.device)


def _apart(one: Tensors, other: Tensors) -> float:
    return float(norm({name: one[name] - other[name] for name in one}))


def known_of(head: HeadFeatures, structure: Structure, like: Tensor) -> Known:
    """What the head's features say about the quantity that the structure names.

    Behind a ReLU, a positive feature is what the ReLU read. Behind a leaky ReLU of slope a, so is a negative one over
    a. Otherwise the features themselves are what is known, and their slopes follow from the images.

    All of it has the type and the device of `like`.
    """
    features = head.features.unflatten(1, structure.shape)
    signal = head.signal.unflatten(1, structure.shape)
    example = (-1, *(1,) * len(structure.shape))
    weight = head.known.double().view(example)
    on = torch.ones_like(features, dtype=torch.bool)
    open_ = near = torch.zeros_like(on)
    slope = structure.slope
    if structure.activation is not None:
        # A ReLU's features are never negative, so a negative one shows an error at least that large.
        error = 2 * head.noise
        if slope == 0:
            error = torch.maximum(error, -head.features.amin(1))
        error = error.nan_to_num(posinf=float(features.abs().max())).view(example)
        size = features if slope == 0 else features.abs()
        on = size > ON * error
        # Features within a few errors of zero may be of either side of the kink: their slopes are unknowns of their
        # own. Where the matched layer's units are not the known ones, nothing can stand for the open ones.
        open_ = (size > OFF * error) & ~on if structure.direct else open_
        near = ~on & (slope == 0) if structure.direct else near
        on = on if structure.direct else size > error
        negative = features < 0
        # From the activation's output y to its input z: dL/dz = act'(z) dL/dy, and z = y / a below zero.
        signal = torch.where(negative, slope * signal, signal)
        features = torch.where(negative, features / slope if slope else torch.zeros_like(features), features)
        signal = torch.where(on, signal, torch.zeros_like(signal))
    on, open_, near = on.to(like.device), open_.to(like.device), near.to(like.device)
    return Known(features.to(like), on, open_, near, signal.to(like), weight.to(like), one_sided=slope == 0)
