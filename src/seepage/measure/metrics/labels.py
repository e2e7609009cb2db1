"""How many labels an attack got right, before and after guesses are matched to examples, or how near values are."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from seepage.base.nn import NO_TARGET
from seepage.base.registry import metrics
from seepage.base.units import Units
from seepage.errors import SeepageError
from seepage.federation.types import Target


def label_accuracy(guessed: Tensor, true: Tensor) -> float:
    """Share of labels guessed right whatever their order: the overlap of the two multisets.

    With as many guesses as examples this is the accuracy under the best re-ordering. The overlap is divided
    by the longer of the two lists, so an attack gains nothing by naming every class.

    Args:
        guessed: `[k]` int64 class numbers.
        true: `[n]` int64 class numbers, or `[n, classes]` probabilities (the largest counts).

    Returns:
        A share in [0, 1]; higher is better.

    Raises:
        SeepageError: Where there are no labels at all.

    >>> label_accuracy(torch.tensor([3, 3, 1]), torch.tensor([1, 2, 3]))
    0.6666666666666666
    """
    guessed, true = class_numbers(guessed), class_numbers(true)
    if not len(guessed) and not len(true):
        raise SeepageError("there are no labels to compare; pass at least one example")
    classes, where = torch.cat([guessed, true]).unique(return_inverse=True)
    counts = [part.bincount(minlength=len(classes)) for part in where.split([len(guessed), len(true)])]
    return int(torch.minimum(*counts).sum()) / max(len(guessed), len(true))


@metrics.register("label", of_labels=True, by_default=True, about="1 where the label was guessed right")
def label_hits(guessed: Tensor, true: Tensor, permutation: Tensor) -> Tensor:
    """Which examples had their label guessed right by the guess they were matched with.

    Args:
        guessed: `[k]` class numbers, in the order of the guesses.
        true: `[n]` class numbers, or `[n, classes]` probabilities.
        permutation: `[n]` int64 place of each example's guess, -1 for none (see `align`).

    Returns:
        `[n]` float64: 1 right, 0 wrong, NaN where no guess was matched.

    >>> label_hits(torch.tensor([5, 6]), torch.tensor([6, 6, 1]), torch.tensor([1, 0, -1]))
    tensor([1., 0., nan], dtype=torch.float64)
    """
    hits = torch.full((len(true),), torch.nan, dtype=torch.float64)
    matched = permutation >= 0
    chosen = class_numbers(guessed)[permutation[matched]]
    hits[matched] = (chosen == class_numbers(true)[matched]).double()
    return hits


@metrics.register(
    "target_error",
    of_labels=True,
    digits=9,
    about="of values: how far the guessed target is from the true one, in the target's own unit, mean over its numbers",
)
def target_errors(guessed: Tensor, true: Tensor, permutation: Tensor, units: Units | None = None) -> Tensor:
    """Mean absolute error of each example's guessed target, in the target's own unit.

    Args:
        guessed: `[k, d]` values, in the order of the guesses, scaled as the network is trained towards them.
        true: `[n, d]` values, scaled likewise.
        permutation: `[n]` int64 place of each example's guess, -1 for none (see `align`).
        units: What one of the scaled numbers is in the target's own; None: the same.

    Returns:
        `[n]` float64; NaN where no guess was matched.

    >>> target_errors(torch.tensor([[2.0], [7.0]]), torch.tensor([[7.5], [0.0]]), torch.tensor([1, -1]))
    tensor([0.5000,    nan], dtype=torch.float64)
    """
    errors = torch.full((len(true),), torch.nan, dtype=torch.float64)
    matched = permutation >= 0
    chosen = guessed.detach().cpu().double().flatten(1)[permutation[matched]]
    off = (chosen - true.detach().cpu().double().reshape(len(true), -1)[matched]).abs()
    errors[matched] = (off if units is None else off * units.scale).mean(1)
    return errors


class LabelScores(NamedTuple):
    """What is measured of labels: values by metric, guesses that need no attack, and the share right in any order."""

    values: dict[str, Tensor]
    floors: Mapping[str, Mapping[str, Tensor]]
    share: float


def label_scores(
    guessed: Tensor | None,
    true: Tensor,
    permutation: Tensor,
    units: Units | None = None,
    target: Target | None = None,
) -> LabelScores:
    """Compare labels with the truth: class numbers, values (in their unit, beside the mean target) or maps.

    Args:
        guessed: The attack's, or None.
        true: As `Batch.labels`.
        permutation: `[n]` int64 place of each example's guess, -1 for none.
        units: Of values.
        target: What examples are trained towards; None: of numbers, classes where they are such shares of 1.
    """
    values = target == "value" if target is not None else units is not None or not _are_shares(true)
    floors = _floors(true, units, values=values)
    if guessed is None:
        return LabelScores({}, floors, torch.nan)
    if guessed.is_floating_point():
        return LabelScores({"target_error": target_errors(guessed, true, permutation, units)}, floors, torch.nan)
    if guessed.ndim > 1:
        hits = map_hits(guessed, true, permutation)
        return LabelScores({"label": hits}, floors, float(hits.nan_to_num(0.0).mean()))
    return LabelScores({"label": label_hits(guessed, true, permutation)}, floors, label_accuracy(guessed, true))


def labels_fit(guessed: Tensor, true: Tensor) -> bool:
    """Whether guessed labels can be compared with the true ones: class numbers, values, or maps of one size."""
    if guessed.is_floating_point():
        return true.is_floating_point() and guessed[:1].numel() * len(true) == true.numel() * len(guessed[:1])
    if guessed.ndim == 1:
        return true.ndim == 1 or true.is_floating_point()
    return not true.is_floating_point() and guessed.shape[1:] == true.shape[1:]


def map_hits(guessed: Tensor, true: Tensor, permutation: Tensor) -> Tensor:
    """`[n]` share of the pixels that have a class and had it guessed right; NaN where no guess was matched.

    >>> map_hits(torch.tensor([[[1, 1, 0]]]), torch.tensor([[[1, 0, -100]]]), torch.tensor([0]))
    tensor([0.5000], dtype=torch.float64)
    """
    true, matched = true.detach().cpu().flatten(1), permutation >= 0
    hits, known = torch.full((len(true),), torch.nan, dtype=torch.float64), true != NO_TARGET
    right = guessed.detach().cpu().flatten(1)[permutation[matched]] == true[matched]
    hits[matched] = (right & known[matched]).sum(1).double() / known[matched].sum(1).clamp(min=1)
    return hits


def _floors(true: Tensor, units: Units | None, *, values: bool) -> dict[str, dict[str, Tensor]]:
    """Guesses that need no attack: of values the mean target, of maps each one's own commonest class (an oracle).

    Where the mean is not known, that of the batch stands in, which is an oracle too; of one example there is none.
    """
    if true.is_floating_point() and values:
        numbers = true.detach().cpu().double().reshape(len(true), -1)
        if units is None and len(numbers) < 2:
            return {}
        mean = numbers.mean(0, keepdim=True) if units is None else torch.zeros_like(numbers[:1])  # scaled, it is 0
        guesses, own = mean.expand_as(numbers), torch.arange(len(numbers))
        return {"mean_target": {"target_error": target_errors(guesses, numbers, own, units)}}
    if not true.is_floating_point() and true.ndim > 1:
        commonest = torch.stack([_commonest(one) for one in true.detach().cpu()])
        return {"commonest": {"label": map_hits(commonest, true, torch.arange(len(true)))}}
    return {}


def _are_shares(labels: Tensor) -> bool:
    """Whether labels are probabilities of classes."""
    return labels.ndim == 2 and labels.shape[1] > 1 and bool((labels >= 0).all() and (labels.sum(1) < 1.001).all())


def _commonest(labels: Tensor) -> Tensor:
    """A map of the class that most of a map's pixels have."""
    known = labels[labels != NO_TARGET]
    return torch.full_like(labels, int(known.mode().values) if len(known) else 0)


def class_numbers(labels: Tensor) -> Tensor:
    """`[n]` class numbers from class numbers or from `[n, classes]` probabilities, on the CPU.

    >>> class_numbers(torch.tensor([[0.2, 0.8], [1.0, 0.0]]))
    tensor([1, 0])
    """
    labels = labels.detach().cpu()
    return (labels.argmax(1) if labels.ndim == 2 else labels).long()
