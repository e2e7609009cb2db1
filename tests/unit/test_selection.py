"""The k-th smallest number against sorting all of them, on what makes a sample lie."""

import math

import pytest
import torch
from torch import Tensor

from seepage.attacks.matching import selection
from seepage.attacks.matching.selection import SAMPLE, kth_smallest


def numbers(kind: str, n: int) -> Tensor:
    draw = torch.Generator().manual_seed(7)
    made = {
        "normal": lambda: torch.randn(n, generator=draw),
        "sorted": lambda: torch.randn(n, generator=draw).sort().values,
        "equal": lambda: torch.full((n,), 0.3),
        "mostly zeros": lambda: torch.randn(n, generator=draw) * (torch.rand(n, generator=draw) > 0.9),
        "few values": lambda: torch.randint(5, (n,), generator=draw).float(),
        # Every entry that an even stride looks at is large: the sample knows nothing of the rest.
        "spoilt sample": lambda: torch.arange(n).remainder(n // SAMPLE).eq(0) * 9.0 + torch.rand(n, generator=draw),
        "infinite": lambda: torch.where(torch.rand(n, generator=draw) > 0.5, math.inf, torch.rand(n, generator=draw)),
        "double": lambda: torch.randn(n, generator=draw, dtype=torch.float64),
    }
    return made[kind]()


KINDS = ["normal", "sorted", "equal", "mostly zeros", "few values", "spoilt sample", "infinite", "double"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_number_that_sorting_puts_there(kind: str) -> None:
    it = numbers(kind, 10 * SAMPLE + 37)
    ordered = it.sort().values
    parts = list(it.split([5, 1, len(it) - 5 - 1 - 70_000, 70_000]))
    for place in (0, 1, len(it) // 10, len(it) // 2, len(it) - 2, len(it) - 1):
        found = kth_smallest(parts, place)
        assert found.dtype == it.dtype
        assert found == ordered[place]


def test_few_are_all_ordered_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ordered: list[int] = []
    partition = selection.np.partition

    def counted(array: object, place: int) -> object:
        ordered.append(len(array))  # type: ignore[arg-type]
        return partition(array, place)  # type: ignore[call-overload]

    monkeypatch.setattr(selection.np, "partition", counted)
    it = numbers("normal", 50 * SAMPLE)
    kth_smallest([it[:1000]], 500)
    kth_smallest([it], len(it) // 2)
    assert ordered[0] == 1000
    assert ordered[1] < len(it) / 20


def test_numbers_that_are_none_give_what_sorting_gives() -> None:
    it = numbers("normal", 10 * SAMPLE)
    it[::3] = math.nan
    assert kth_smallest([it], 1000) == it.sort().values[1000]
