"""Pairs for people to judge: controls are what they claim, and often enough."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.errors import SeepageError
from seepage.papers.judging import ShownPair, choose_pairs
from seepage.report.pictures import Guesses, Pictures


def album(
    seed: int, *, n: int = 12, classes: int = 3, attacks: tuple[str, ...] = ("a", "b"), flat: bool = False
) -> Pictures:
    """Made-up private pictures in one round; each attack misses example 0."""
    draw = torch.Generator().manual_seed(seed)
    truth = torch.rand(n, 3, 6, 6, generator=draw)
    truth = truth.mean((2, 3), keepdim=True).expand(-1, -1, 6, 6).clone() if flat else truth
    matched = torch.arange(n) > 0
    guesses = {name: Guesses({0: torch.rand(n, 3, 6, 6, generator=draw)}, {0: matched}) for name in attacks}
    return Pictures({0: truth}, guesses, {0: torch.arange(n) % classes})


ALBUMS = {"one": album(1), "two": album(2, attacks=("a",))}


def of_kind(pairs: list[ShownPair], kind: str) -> list[ShownPair]:
    return [pair for pair in pairs if pair.subject.kind == kind]


def decibels(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(-10 * np.log10(np.mean((a.double().numpy() - b.double().numpy()) ** 2)))


@given(pairs=st.integers(20, 90), seed=st.integers(0, 2**31))
@settings(max_examples=25)
def test_each_kind_of_control_is_a_tenth_or_more(pairs: int, seed: int) -> None:
    found = choose_pairs(ALBUMS, pairs=pairs, seed=seed)
    counts = Counter(pair.subject.kind for pair in found)
    assert len(found) <= pairs
    assert all(counts[kind] >= max(3, len(found) / 10) for kind in ("same", "other", "flat"))
    # Eleven of twelve examples were reconstructed of each attack: what there is room for is shown, and nothing twice.
    assert counts["guess"] >= min(33, pairs - 3 * max(3, -(-pairs // 10)))
    assert len({pair.subject for pair in of_kind(found, "guess")}) == counts["guess"]


@given(seed=st.integers(0, 2**31))
@settings(max_examples=10)
def test_controls_are_what_they_claim(seed: int) -> None:
    private = {case: pictures.truth[0] for case, pictures in ALBUMS.items() if pictures.truth}
    for pair in choose_pairs(ALBUMS, seed=seed):
        subject = pair.subject
        assert torch.equal(pair.left, private[subject.case][subject.example])
        if subject.kind == "same":
            assert 27 < decibels(pair.right, pair.left) < 40, "alike to a person, and not equal bytes"
        elif subject.kind == "flat":
            np.testing.assert_allclose(pair.right.std((1, 2)), 0, atol=1e-6)
            np.testing.assert_allclose(pair.right.mean((1, 2)), pair.left.mean((1, 2)), atol=1e-6)
        elif subject.kind == "other":
            where = [
                (case, i) for case in private for i, one in enumerate(private[case]) if torch.equal(one, pair.right)
            ]
            ((_, i),) = where
            assert i % 3 != subject.example % 3, "of another class"
        else:
            guesses = ALBUMS[subject.case].guesses[subject.attack]
            assert torch.equal(pair.right, guesses.inputs[0][subject.example])
            assert subject.example > 0, "nothing was returned for example 0"


def test_the_order_is_mixed_and_the_seed_decides() -> None:
    first, again, other = (choose_pairs(ALBUMS, seed=seed) for seed in (0, 0, 1))
    assert [pair.subject for pair in first] == [pair.subject for pair in again]
    assert all(torch.equal(one.right, two.right) for one, two in zip(first, again, strict=True))
    assert [pair.subject for pair in first] != [pair.subject for pair in other]
    kinds = [pair.subject.kind for pair in first]
    assert sum(a != b for a, b in pairwise(kinds)) > 10


def test_guesses_are_drawn_evenly_over_cases_and_attacks() -> None:
    found = of_kind(choose_pairs(ALBUMS, pairs=30), "guess")
    counts = Counter((pair.subject.case, pair.subject.attack) for pair in found)
    assert max(counts.values()) - min(counts.values()) <= 1
    only = of_kind(choose_pairs(ALBUMS, attack="b", pairs=30), "guess")
    assert {(pair.subject.case, pair.subject.attack) for pair in only} == {("one", "b")}


def test_one_class_still_gets_another_picture() -> None:
    found = choose_pairs({"one": album(1, classes=1)}, pairs=20)
    assert all(not torch.equal(pair.left, pair.right) for pair in of_kind(found, "other"))


@pytest.mark.parametrize(
    ("pictures", "pairs", "words"),
    [
        (album(1), 19, "--pairs 20"),
        (album(1, n=1), 20, "no attack returned"),
        (album(1, flat=True), 20, "flat color"),
        (album(1, attacks=()), 20, "no attack returned"),
    ],
)
def test_what_cannot_be_judged_is_said(pictures: Pictures, pairs: int, words: str) -> None:
    with pytest.raises(SeepageError, match=words):
        choose_pairs({"one": pictures}, pairs=pairs)


def test_copies_of_one_picture_are_no_two() -> None:
    same = album(1)
    copies = Pictures({0: same.truth[0][:1].expand(12, -1, -1, -1)}, same.guesses, same.labels)
    with pytest.raises(SeepageError, match="look different"):
        choose_pairs({"one": copies})
