"""Whose is it? Whether a guess is nearer to its own example, or person, than to others of a gallery.

    truth x_i, and m others that were attacked in no batch       one other picture of each of P persons
               |                                                                 |
    guess g_i: is x_i the nearest of these m + 1?           guess g_i: is its person's picture the nearest of P?

The scorer draws the gallery, and no attack ever sees it. A guess that knows nothing of the truth is nearest to it with
probability 1 / (m + 1), as truth and others are exchangeable then, or less, since a tie is a miss. Where the scorer
matched n guesses with n examples first, the best of n is taken: then the bound is n / (m + n).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.base.registry import metrics
from seepage.measure.metrics.features import as_in_training
from seepage.measure.metrics.image import is_image, mse, ssim

SIZE = 100
"""Images in a gallery, and persons at most, the true one among them."""
FEATURE_SIDE = 128
"""Pixels per side that images are brought to before the network of the features sees them."""


@dataclass(frozen=True, eq=False)
class Gallery:
    """What guesses are ranked against. The scorer draws it; it holds no attacked example.

    Attributes:
        others: `[m, *shape]` examples on [0, 1], like the private ones.
        pictures: `[p, *shape]` one picture of each person on [0, 1].
        persons: `[p]` int64 class numbers of these pictures, each once.
        labels: `[n]` class numbers of the private examples, in the order of the truth.
        network: Turns images `[k, C, H, W]` into features `[k, d]`; None: no features are to be had.
        features: Those of `others` and of `pictures`, normalized: `[m, d]` and `[p, d]`.
    """

    others: Tensor
    pictures: Tensor
    persons: Tensor
    labels: Tensor | None = None
    network: nn.Module | None = None
    features: tuple[Tensor, Tensor] | None = None

    def seen_by(self, network: nn.Module) -> "Gallery":
        """The gallery with the features of its images, which are computed once."""
        return replace(
            self, network=network, features=(_features(network, self.others), _features(network, self.pictures))
        )

    def of(self, labels: Tensor) -> "Gallery":
        """The gallery for a batch with these labels `[n]`, or class probabilities `[n, classes]`."""
        return replace(self, labels=labels.cpu() if labels.ndim == 1 else labels.cpu().argmax(1))

    def chance(self, metric: str, matched: bool) -> float:
        """Largest probability that a guess that knows nothing is counted as identified.

        Args:
            metric: Name of a metric of this module.
            matched: Whether the scorer matched the batch's guesses with its examples; else each guess's example was
                known.

        >>> gallery = Gallery(torch.zeros(99, 4), torch.zeros(8, 4), torch.arange(8), torch.tensor([3]))
        >>> gallery.chance("identified", True), gallery.chance("person", True)
        (0.01, 0.125)
        """
        assert self.labels is not None
        if metric.startswith("person"):
            known = self.labels[torch.isin(self.labels, self.persons)].unique()
            return (len(known) if matched else 1) / max(1, min(len(self.persons), SIZE))
        best_of = len(self.labels) if matched else 1
        return best_of / (len(self.others) + best_of)


def _nearest_is_own(own: Tensor, others: Tensor) -> Tensor:
    """`[n]`: 1 where `own` `[n]`, a guess's distance to its example, is below all of `others` `[n, m]`; a tie is 0."""
    return (own < others.min(1).values).double()


def _image_identified(guesses: Tensor, truth: Tensor, gallery: Gallery | None, *, by: str) -> Tensor | None:
    if gallery is None or not len(gallery.others) or (by != "pixels" and not is_image(tuple(truth.shape[1:]))):
        return None
    if by == "features":
        if gallery.network is None or gallery.features is None or truth.shape[1] not in (1, 3):
            return None
        seen, true = (_features(gallery.network, images) for images in (guesses, truth))
        return _nearest_is_own(1 - (seen * true).sum(1), 1 - seen @ gallery.features[0].T)  # cosine distances
    measure = mse if by == "pixels" else _dissimilarity
    return _nearest_is_own(measure(guesses, truth), _distances(guesses, gallery.others, measure))


def _person_identified(guesses: Tensor, gallery: Gallery | None, *, by: str) -> Tensor | None:
    """`[n]` 1 where another picture of the guess's own person is nearer than all other persons', 0 where not, else NaN.

    Args:
        guesses: `[n, C, H, W]` guesses, each matched with an example.
        gallery: Pictures to rank; None: not measured.
        by: Distance: `features` (1 - cosine) or pixels (mean squared error).
    """
    if gallery is None or gallery.labels is None or len(gallery.persons) < 2:
        return None
    if by == "features":
        if gallery.network is None or gallery.features is None or guesses.shape[1] not in (1, 3):
            return None
        measured = 1 - _features(gallery.network, guesses) @ gallery.features[1].T
    else:
        measured = _distances(guesses, gallery.pictures, mse)
    found = torch.full((len(guesses),), torch.nan, dtype=torch.float64)
    for place, label in enumerate(gallery.labels.tolist()):
        own = gallery.persons == label  # [p]
        if own.any():  # a person with a single picture cannot be looked up
            strangers = measured[place, ~own][: SIZE - 1]
            found[place] = _nearest_is_own(measured[place, own], strangers[None])[0]
    return found


def _distances(guesses: Tensor, images: Tensor, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`[n, m]` of guesses `[n, *shape]` and images `[m, *shape]`."""
    images = images.to(guesses)
    return torch.stack([measure(guess.expand_as(images), images) for guess in guesses])


def _dissimilarity(guesses: Tensor, truth: Tensor) -> Tensor:
    return 1 - ssim(guesses, truth)


def _features(network: nn.Module, images: Tensor) -> Tensor:
    """`[n, d]` float64 of norm 1, of images `[n, C, H, W]` on [0, 1], sized and normalized as in training."""
    sized = F.interpolate(images.float(), (FEATURE_SIDE, FEATURE_SIDE), mode="bilinear", antialias=True)
    with torch.no_grad():
        pieces = as_in_training(sized).split(32)
        return F.normalize(torch.cat([network(piece) for piece in pieces]).double(), dim=1)


@metrics.register(
    "identified", gallery=True, share=True, about="whether the truth is nearest to the guess of 100, by squared error"
)
def identified(guesses: Tensor, truth: Tensor, gallery: Gallery | None = None) -> Tensor | None:
    """Whether the truth is the nearest image to the guess in the gallery, by mean squared error.

    Args:
        guesses: `[n, *shape]` on [0, 1].
        truth: `[n, *shape]` on [0, 1].
        gallery: Others, drawn by the scorer.

    Returns:
        `[n]` float64, 1 where it is, 0 where another is as near or nearer; None without a gallery.

    >>> others = torch.linspace(0.3, 1, 9).reshape(9, 1).expand(9, 4)
    >>> gallery = Gallery(others, others[:0], torch.arange(0))
    >>> identified(torch.tensor([[0.1] * 4, [0.9] * 4]), torch.zeros(2, 4), gallery)
    tensor([1., 0.], dtype=torch.float64)
    """
    return _image_identified(guesses, truth, gallery, by="pixels")


@metrics.register(
    "identified_ssim",
    gallery=True,
    share=True,
    images_only=True,
    about="whether the truth is nearest to the guess of 100 images, by structural similarity",
)
def identified_ssim(guesses: Tensor, truth: Tensor, gallery: Gallery | None = None) -> Tensor | None:
    """The same by structural similarity, for images; see `identified`."""
    return _image_identified(guesses, truth, gallery, by="ssim")


@metrics.register(
    "identified_features",
    gallery=True,
    share=True,
    images_only=True,
    about="the truth is nearest to the guess of 100 images, by features of SqueezeNet, if its weights are here",
)
def identified_features(guesses: Tensor, truth: Tensor, gallery: Gallery | None = None) -> Tensor | None:
    """The same by the cosine of SqueezeNet's features, for grey and RGB images; see `identified`."""
    return _image_identified(guesses, truth, gallery, by="features")


@metrics.register(
    "person",
    gallery=True,
    share=True,
    about="whether the guess is nearest to another picture of its person (label) among 100 persons, by squared error",
)
def person(guesses: Tensor, truth: Tensor, gallery: Gallery | None = None) -> Tensor | None:
    """Whether, of one other picture of each person (label), that of the true person is nearest to the guess.

    Args:
        guesses: `[n, *shape]` on [0, 1].
        truth: `[n, *shape]` on [0, 1].
        gallery: Pictures of persons, none of them attacked, drawn by the scorer.

    Returns:
        `[n]` float64, 1 where it is, 0 where a stranger's is as near or nearer, NaN for a person of whom the gallery
        has no other picture; None without a gallery of two persons or more.
    """
    return _person_identified(guesses, gallery, by="pixels")


@metrics.register(
    "person_features",
    gallery=True,
    share=True,
    images_only=True,
    about="the same as person, by features of SqueezeNet, if its weights are there",
)
def person_features(guesses: Tensor, truth: Tensor, gallery: Gallery | None = None) -> Tensor | None:
    """As `person`, by the cosine of SqueezeNet's features of grey and RGB images.

    Args:
        guesses: `[n, C, H, W]` on [0, 1].
        truth: `[n, C, H, W]` on [0, 1].
        gallery: Pictures to rank; None: not measured.
    """
    return _person_identified(guesses, gallery, by="features")
