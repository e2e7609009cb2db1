"""Images from the features that a head's update reveals, by a decoder trained on images of the attacker's own."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from seepage.attacks.base import Attack, Needs, Progress, refuse
from seepage.attacks.generative.prior import digest_of, own_images, remembered
from seepage.attacks.generative.training import train_inverter
from seepage.attacks.reading.head import HeadFeatures, head_features
from seepage.base.nn import captured_calls, forward, generator, in_mode
from seepage.base.registry import attacks
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Reconstruction, Round, Transcript

AT_ONCE = 64
"""Images passed through the network at a time."""
SHARE_HELD_OUT, MOST_HELD_OUT = 0.1, 256
"""Of the attacker's images: those that the decoder is judged on and not trained on."""
FAINT = 0.1
"""What is added to a feature's deviation, as a share of the root mean square of all: some are nearly constant."""
MOST_KEPT = 2
"""Networks whose features of the attacker's images a process keeps."""
Seen = tuple[Knowledge, Round, HeadFeatures]


@dataclass(frozen=True)
class _Own:
    """The attacker's images and what the head reads of them, in deviations of theirs.

    Attributes:
        images: `[m, c, H, W]` those that teach, with their mirror images where they have colors.
        features: `[m, k]` theirs.
        held: `[h, c, H, W]` those that judge.
        held_features: `[h, k]` theirs.
        mean: `[k]` of the features.
        scale: `[k]` their deviation.
    """

    images: Tensor
    features: Float[Tensor, "m k"]
    held: Tensor
    held_features: Float[Tensor, "h k"]
    mean: Float[Tensor, " k"]
    scale: Float[Tensor, " k"]

    def nearest(self, features: Float[Tensor, "n k"]) -> Tensor:
        """`[n, c, H, W]` for each of these features the image whose own are nearest."""
        return self.images[torch.cdist(features, self.features).argmin(1)]


@attacks.register(
    "feature_decoder",
    needs="images; a fully connected last layer, fewer examples than classes; auxiliary images",
    paper="ours; a decoder of features is folklore",
    cost="seconds to minutes (a pass of each auxiliary image, and the training of a decoder)",
    family="generative prior",
)
@dataclass(frozen=True, kw_only=True)
class FeatureDecoder(Attack):
    """An image for each feature that a head's update reveals: for federations that train the last layer alone.

    `head_features` solves what the last layer read of every example. The attacker's own images go through the network
    as the client ran it, and a convolutional decoder learns to make them of what the last layer reads, by squared
    error. What it makes of the client's features is inferred: what such images usually look like, and no proof. A tenth
    of the images is held out; a note says how near decoder, nearest other image and flat color come to these.

    Args:
        guess: The `decoder`'s image, or in its place the image of the attacker's own whose features are `nearest`: what
            the decoder has to beat.
        width: Channels of the decoder's last block.
        training: Training steps of 64 images.
    """

    certifies: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs(
        images="a decoder of features",
        weights="no network leads from an image to its features, which are read all the same",
    )

    guess: Literal["decoder", "nearest"] = "decoder"
    width: int = 16
    training: int = 500

    def __post_init__(self) -> None:
        if min(self.width, self.training) < 1:
            raise SeepageError(f"a decoder needs whole numbers from 1 up, got {self}; correct the recipe")

    def examine(self, transcript: Transcript) -> Seen:
        knowledge, observed = transcript.knowledge, transcript[0]
        own_images(knowledge)
        found = head_features(observed, knowledge)
        if not bool(found.known.any()):
            raise refuse("features_unknown")(f"no example's features are known: {found.doubt}", "use gradient_matching")
        return knowledge, observed, found

    def run(self, seen: Seen, *, seed: int, progress: Progress) -> Reconstruction:
        knowledge, observed, found = seen
        like = next(iter(observed.params.values()))
        own = _own(knowledge, observed, found.head)
        bounds = knowledge.value_range
        network = remembered(
            f"inverter/{self.width}/{self.training}/{bounds}",
            torch.cat([own.images.flatten(1), own.features], 1),
            lambda: train_inverter(own.features, own.images, bounds, width=self.width, steps=self.training),
        ).to(own.images)
        features = (found.features[found.known].to(own.images) - own.mean) / own.scale
        with torch.no_grad():
            made = network(features) if self.guess == "decoder" else own.nearest(features)
            judged = _decibels(network(own.held_features), own.held, bounds)
        near = _decibels(own.nearest(own.held_features), own.held, bounds)
        flat = _decibels(own.held.mean((2, 3), keepdim=True).expand_as(own.held), own.held, bounds)
        note = (
            f"inferred, not read: on {len(own.held)} images of the attacker's own that it did not learn from, the "
            f"decoder comes to {judged:.1f} dB, the nearest other image by its features to {near:.1f} and each "
            f"image's own mean color to {flat:.1f}"
        )
        if judged <= max(near, flat):
            note += ": these features hold no picture that the decoder could make"
        left = int((~found.known).sum())
        notes = (note, *([f"the features of {left} of {len(found.known)} examples are not known"] if left else []))
        return Reconstruction(made.to(like), found.labels[found.known].to(like.device), notes=notes)


_kept: dict[str, _Own] = {}


def _own(knowledge: Knowledge, observed: Round, head: str) -> _Own:
    """The attacker's images and their features, in the precision and on the device of the round's weights.

    The same images at the same weights are read once, whatever the update.
    """
    like = next(iter(observed.params.values()))
    images = own_images(knowledge).to(like)
    # Of the head itself nothing is needed, and it is what moves from round to round.
    state = {**knowledge.model.state_dict(), **observed.params, **observed.buffers}
    body = [tensor for name, tensor in state.items() if not name.startswith(f"{head}.")]
    size = observed.batch_size if knowledge.client.batch_coupled(knowledge.model) else None
    key = digest_of(f"{knowledge.model!r}/{head}/{size}/{knowledge.client.mode}", [images, *body])
    if key not in _kept:
        _kept[key] = _features(knowledge, observed, head, images, size or AT_ONCE)
        while len(_kept) > MOST_KEPT:
            del _kept[next(iter(_kept))]
    return _kept[key]


def _features(knowledge: Knowledge, observed: Round, head: str, images: Tensor, size: int) -> _Own:
    """The same, made anew, so many images at a time: as many as the client had, where its batch reaches into them."""
    order = torch.randperm(len(images), generator=generator(0, "held out")).to(images.device)
    held, taught = images[order].tensor_split([max(2, min(MOST_HELD_OUT, round(SHARE_HELD_OUT * len(images))))])
    if images.shape[1] == 3:
        taught = torch.cat([taught, taught.flip(3)])
    features, judging = (_read(knowledge, observed, head, part, size) for part in (taught, held))
    mean, variance = features.mean(0), features.var(0, correction=0)
    scale = (variance + FAINT**2 * variance.mean()).sqrt().clamp_min(1e-12)
    return _Own(taught, (features - mean) / scale, held, (judging - mean) / scale, mean, scale)


@torch.no_grad()
def _read(knowledge: Knowledge, observed: Round, head: str, images: Tensor, size: int) -> Float[Tensor, "m k"]:
    """What the head reads of images, so many at a time; the last batch reaches back to be full."""
    model, found = knowledge.model, []
    with in_mode(model, training=knowledge.client.mode == "train"):
        for first in range(0, len(images), size):
            start = max(0, min(first, len(images) - size))
            with captured_calls(model, [head]) as calls:
                forward(model, observed.params, images[start : start + size], buffers=observed.buffers)
            read = calls[head][0].input.flatten(1)
            if len(calls[head]) != 1 or len(read) != min(size, len(images)):
                raise refuse("not_called_once")("the head is not called once for each batch", "use gradient_matching")
            found.append(read[first - start :])
    return torch.cat(found)


def _decibels(guesses: Tensor, images: Tensor, bounds: tuple[float, float]) -> float:
    """Mean over images of `10 log10(range^2 / mean squared error)`."""
    errors = (guesses - images).double().square().flatten(1).mean(1).clamp_min(1e-12)
    return float((20 * math.log10(bounds[1] - bounds[0]) - 10 * errors.log10()).mean())
