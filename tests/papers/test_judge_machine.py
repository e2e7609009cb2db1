"""The machine judge: right on controls, blind to what a pair is, and rarely fooled by strangers."""

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from seepage.errors import SeepageError
from seepage.measure.metrics import baselines
from seepage.papers.judging.machine import MOST_STRANGERS, machine_answers
from seepage.papers.judging.pairs import ShownPair, Subject


def pictures(n: int, seed: int) -> list[Tensor]:
    """Smooth random images: coarse noise, enlarged."""
    coarse = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    return list(torch.nn.functional.interpolate(coarse, (24, 24), mode="bicubic").clamp(0, 1))


def pair(left: Tensor, right: Tensor) -> ShownPair:
    return ShownPair(Subject(kind="guess", case="", attack="", round=0, example=0), left, right)


def test_it_tells_the_same_from_others_and_from_flat_squares() -> None:
    private = pictures(12, 0)
    noise = 0.03 * torch.randn(3, 24, 24, generator=torch.Generator().manual_seed(1))
    shown = {f"same{i}": pair(x, (x + noise).clamp(0, 1)) for i, x in enumerate(private)}
    shown |= {f"flat{i}": pair(x, baselines(x[None], seed=0)["mean_color"][0]) for i, x in enumerate(private)}
    answers, rule = machine_answers(shown, private, None)
    assert {name for name, answer in answers.items() if answer == "same"} == {f"same{i}" for i in range(12)}
    assert "of 132 pairs of different private pictures" in rule


def test_strangers_are_called_the_same_as_rarely_as_it_says() -> None:
    """Of 600 pairs of pictures that the limit was not drawn from."""
    strangers = pictures(1200, 5)
    shown = {str(i): pair(strangers[2 * i], strangers[2 * i + 1]) for i in range(600)}
    answers, _ = machine_answers(shown, pictures(24, 6), None)
    same = sum(answer == "same" for answer in answers.values())
    assert binom.sf(same - 1, 600, MOST_STRANGERS) > 1e-3


def test_it_looks_at_pictures_alone() -> None:
    private = pictures(8, 0)
    shown = {"a": pair(private[0], private[0]), "b": pair(private[0], private[1])}
    renamed = {name: ShownPair(Subject(kind="other", case="x", attack="y", round=1, example=2), *(one.left, one.right))
               for name, one in shown.items()}  # fmt: skip
    assert machine_answers(shown, private, None) == machine_answers(renamed, private, None)


def test_too_few_pictures_and_no_images() -> None:
    with pytest.raises(SeepageError, match="has 12"):
        machine_answers({}, pictures(4, 0), None)
    with pytest.raises(SeepageError, match="let people judge"):
        machine_answers({}, [torch.zeros(4)] * 9, None)
