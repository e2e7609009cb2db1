"""Choose the pairs that a judge sees: guesses of attacks, mixed with controls whose right answer is known."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, TypeVar

import torch
from torch import Generator, Tensor

from seepage.base.nn import generator
from seepage.base.schema import JsonRecord
from seepage.errors import SeepageError, unknown
from seepage.measure.metrics import baselines, psnr
from seepage.report.pictures import Pictures, Place, open_pictures
from seepage.report.run import RunFolder

T = TypeVar("T")
Kind = Literal["guess", "same", "other", "flat"]
Answer = Literal["same", "not", "unsure"]

EXPECTED: dict[str, Answer] = {"same": "same", "other": "not", "flat": "not"}
"""The right answer to each kind of control; the right answer to a guess is not known."""

FEWEST_PAIRS = 20
"""Fewest pairs on a page; with fewer, too few guesses are left beside the controls."""
FEWEST_CONTROLS = 3
"""Fewest controls of each kind, so that careless judges can be detected."""
NOISE = 0.03
"""Standard deviation of the noise added to a private example shown beside itself, so that their bytes differ."""
ALIKE_DB = 20.0
"""PSNR in dB from which two private examples are too similar to serve as a control of different pictures."""
FLAT_DB = 20.0
"""PSNR in dB of its mean color from which a private example is too uniform for a control."""


class Subject(JsonRecord):
    """What a pair shows. This is stored in the key only, never in the page.

    Attributes:
        kind: `guess`, or a control: `same` (an example beside itself), `other` (beside another private example),
            `flat` (beside its mean color).
        case: Case of the private example.
        attack: Whose guess it is; empty for controls.
        round: Round of the private example.
        example: Its place in the batch.
    """

    kind: str
    case: str
    attack: str
    round: int
    example: int


@dataclass(frozen=True)
class ShownPair:
    """Two pictures `[C, H, W]` in [0, 1]: the private one, and the guess or control shown beside it."""

    subject: Subject
    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class ControlExample:
    """A private example that can serve as a control."""

    case: str
    place: Place
    picture: Tensor
    label: Tensor

    def control(self, kind: Kind, right: Tensor) -> ShownPair:
        """A control of this example."""
        t, example = self.place
        return ShownPair(Subject(kind=kind, case=self.case, attack="", round=t, example=example), self.picture, right)


def open_albums(run: RunFolder, case: str | None, attack: str | None) -> dict[str, Pictures]:
    """Case to its pictures, for cases with both private pictures and guesses.

    Raises:
        SeepageError: Where the run has no such case or attack, or nothing to judge.
    """
    if case is not None and case not in (names := [known.name for known in run.cases]):
        raise unknown("case", case, names)
    found = {known.name: open_pictures(run, known) for known in run.cases if case in (None, known.name)}
    albums = {name: pictures for name, pictures in found.items() if pictures.truth and pictures.guesses}
    if not albums:
        raise SeepageError(
            f"{run.folder} has no private and reconstructed pictures to compare; audit a set of images, or put the "
            "private/ folder of the recording into the run"
        )
    if attack is not None and not any(attack in pictures.guesses for pictures in albums.values()):
        raise unknown("attack with pictures", attack, {name for one in albums.values() for name in one.guesses})
    return albums


def returned(pictures: Pictures, attack: str) -> list[Place]:
    """The private examples for which an attack returned a guess."""
    return [place for place in pictures.places if pictures.guesses[attack].at(place) is not None]


def choose_pairs(
    albums: dict[str, Pictures], *, attack: str | None = None, pairs: int = 60, seed: int = 0
) -> list[ShownPair]:
    """Draw guesses evenly over cases and attacks, and mix in controls; each kind is at least a tenth of the pairs.

    Args:
        albums: Case to its pictures, with private ones.
        attack: Only guesses of this attack; None: of all.
        pairs: Largest number of pairs, controls included; at least `FEWEST_PAIRS`.
        seed: Draws guesses, controls, noise and order.

    Returns:
        The pairs in the order in which they are to be shown.

    Raises:
        SeepageError: Where no guess was returned, or no control of a kind can be made.
    """
    if pairs < FEWEST_PAIRS:
        raise SeepageError(
            f"{pairs} pairs leave too few guesses beside the controls; use --pairs {FEWEST_PAIRS} or more"
        )
    draw = generator(seed, "judging")
    found = _guesses(albums, attack, pairs - 3 * max(FEWEST_CONTROLS, math.ceil(pairs / 10)), draw)
    if not found:
        raise SeepageError("no attack returned a guess, so there is nothing to judge; read the run's report")
    # With n guesses and ceil(n / 7) controls of each of three kinds, each kind is at least a tenth of all.
    each = max(FEWEST_CONTROLS, math.ceil(len(found) / 7))
    every = [*found, *_controls(_private(albums), each, draw)]
    return _shuffled(every, draw)


def _guesses(albums: dict[str, Pictures], attack: str | None, most: int, draw: Generator) -> list[ShownPair]:
    groups = [
        [_guess(pictures, case, name, place) for place in _shuffled(returned(pictures, name), draw)[:most]]
        for case, pictures in albums.items()
        for name in pictures.guesses
        if attack in (None, name)
    ]
    # Each turn takes one guess of every group, in random order, until there are enough.
    turns = zip_longest(*_shuffled(groups, draw))
    return [pair for turn in turns for pair in turn if pair is not None][:most]


def _guess(pictures: Pictures, case: str, attack: str, place: Place) -> ShownPair:
    private, guess = pictures.private(place), pictures.guesses[attack].at(place)
    assert private is not None  # albums hold the truth,
    assert guess is not None  # and `returned` asked for it
    subject = Subject(kind="guess", case=case, attack=attack, round=place[0], example=place[1])
    return ShownPair(subject, private, guess)


def _private(albums: dict[str, Pictures]) -> list[ControlExample]:
    return [
        ControlExample(case, (t, i), picture, pictures.labels[t][i])
        for case, pictures in albums.items()
        for t, inputs in (pictures.truth or {}).items()
        for i, picture in enumerate(inputs)
    ]


def _controls(pool: list[ControlExample], each: int, draw: Generator) -> list[ShownPair]:
    vivid = [held for held in pool if _db(_mean_color(held.picture), held.picture) < FLAT_DB]
    if not vivid:
        raise SeepageError(
            "every private example is nearly one flat color, so nobody could tell it from a square of that color; "
            "judge a run with other data"
        )
    return [
        *(held.control("same", _noisy(held.picture, draw)) for held in _draw(pool, each, draw)),
        *(held.control("flat", _mean_color(held.picture)) for held in _draw(vivid, each, draw)),
        *_others(pool, each, draw),
    ]


def _others(pool: list[ControlExample], each: int, draw: Generator) -> list[ShownPair]:
    """`each` control pairs of two different examples; pairs repeat where there are fewer."""
    found: list[ShownPair] = []
    for held in _shuffled(pool, draw):
        if (other := _another(held, pool, draw)) is not None:
            found.append(held.control("other", other.picture))
        if len(found) == each:
            break
    if not found:
        raise SeepageError(
            "a control needs two private examples that look different, and this run has none; audit more examples "
            "with --set batch.count=8"
        )
    return [found[i % len(found)] for i in range(each)]


def _another(held: ControlExample, pool: list[ControlExample], draw: Generator) -> ControlExample | None:
    """A clearly different example for a control: from another class if there is one, and not a near copy."""
    order = _shuffled([other for other in pool if other.picture.shape == held.picture.shape], draw)
    order.sort(key=lambda other: torch.equal(other.label, held.label))
    return next((other for other in order if _db(other.picture, held.picture) < ALIKE_DB), None)


def _draw(pool: Sequence[ControlExample], count: int, draw: Generator) -> list[ControlExample]:
    """Draw `count` examples, repeating examples as little as possible."""
    order = _shuffled(pool, draw)
    return [order[i % len(order)] for i in range(count)]


def _shuffled(items: Sequence[T], draw: Generator) -> list[T]:
    return [items[i] for i in torch.randperm(len(items), generator=draw).tolist()]


def _mean_color(picture: Tensor) -> Tensor:
    return baselines(picture[None], seed=0)["mean_color"][0]


def _noisy(picture: Tensor, draw: Generator) -> Tensor:
    return (picture + NOISE * torch.randn(picture.shape, generator=draw)).clamp(0, 1)


def _db(guess: Tensor, truth: Tensor) -> float:
    return float(psnr(guess[None], truth[None]))
