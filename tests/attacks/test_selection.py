"""The k-th smallest number against sorting all of them, on what makes a sample lie."""

import math

import pytest
import torch
from torch import Tensor

from seepage.attacks.search import selection
from seepage.attacks.search.selection import SAMPLE, kth_smallest


def numbers(kind: str, n: int) -> Tensor:
    draw = torch.Generator().manual_seed(7)
    made = {
        "normal": lambda: torch.randn(n, generator=draw),
        "sorted": lambda: torch.randn(n, generator=draw).sort().values,
        "equal": lambda: torch.full((n,), 0.3),
        "mostly zeros": lambda: torch.randn(n, generator=draw) * (torch.rand(n, generator=draw) > 0.9),
        "few values": lambda: torch.randint(5, (n,), generator=draw).float(),
        # Entries whose size goes with their place, as the weights of a kernel do.
        "striped": lambda: torch.arange(n).remainder(9) + torch.rand(n, generator=draw),
        "infinite": lambda: torch.where(torch.rand(n, generator=draw) > 0.5, math.inf, torch.rand(n, generator=draw)),
        "double": lambda: torch.randn(n, generator=draw, dtype=torch.float64),
    }
    return made[kind]()


KINDS = ["normal", "sorted", "equal", "mostly zeros", "few values", "striped", "infinite", "double"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_number_that_sorting_puts_there(kind: str) -> None:
    it = numbers(kind, 10 * SAMPLE + 37)
    ordered = it.sort().values
    parts = list(it.split([5, 1, len(it) - 5 - 1 - 70_000, 70_000]))
    for place in (0, 1, len(it) // 10, len(it) // 2, len(it) - 2, len(it) - 1):
        found = kth_smallest(parts, place)
        assert found.dtype == it.dtype
        assert found == ordered[place]


@pytest.mark.parametrize("kind", ["normal", "sorted", "mostly zeros", "striped"])
def test_few_are_all_ordered_and_of_many_some(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    ordered: list[int] = []
    partition = selection.np.partition

    def counted(array: object, place: int) -> object:
        ordered.append(len(array))  # type: ignore[arg-type]
        return partition(array, place)  # type: ignore[call-overload]

    monkeypatch.setattr(selection.np, "partition", counted)
    it = numbers(kind, 45 * SAMPLE)  # a fixed stride of 45 would see one stripe of the nine
    kth_smallest([it[:1000]], 500)
    kth_smallest([it[:300_000], it[300_000:]], round(0.97 * len(it)))
    assert ordered[0] == 1000
    assert ordered[1] < len(it) / 20


def test_where_the_bracket_misses_all_are_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_sampled", lambda array, count: array[: round(count)])
    it = numbers("sorted", 10 * SAMPLE)
    assert kth_smallest([it], len(it) // 2) == it[len(it) // 2]


def test_numbers_that_are_none_give_what_sorting_gives() -> None:
    it = numbers("normal", 10 * SAMPLE)
    it[::3] = math.nan
    assert kth_smallest([it], 1000) == it.sort().values[1000]
