"""What the contract does not cover: refusals and edges. Promises are checked in `tests/contract`."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seepage import Compose, GaussianNoise, SeepageError, Sparsify, Update
from seepage.base.nn import generator
from seepage.testing import DefenseCase

CLIENT = DefenseCase(defense=Sparsify(keep=0.5)).client()


NONSENSE = [
    {"sigma": -0.1},
    {"sigma": float("nan")},
    {"sigma": float("inf")},
    {"sigma": 1.0, "clip": 0.0},
    {"sigma": 1.0, "clip": -2.0},
    {"sigma": 1.0, "clip": float("inf")},
]


@pytest.mark.parametrize("options", NONSENSE)
def test_noise_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(SeepageError, match="sigma >= 0 and clip > 0"):
        GaussianNoise(**options)


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_outside_of_zero_to_one_is_refused(keep: float) -> None:
    with pytest.raises(SeepageError, match=r"share in \(0, 1\]"):
        Sparsify(keep=keep)


@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=40),
    st.floats(0.01, 1),
)
def test_pruning_keeps_the_largest_of_a_sorted_list(values: list[float], keep: float) -> None:
    update = Update({"w": torch.tensor(values)})
    pruned = Sparsify(keep=keep)(update, CLIENT, generator=generator(0, "none")).tensors["w"]
    count = max(1, round(keep * len(values)))
    kept = sorted((abs(v) for v in pruned.tolist()), reverse=True)[:count]
    assert kept == sorted((abs(v) for v in update.tensors["w"].tolist()), reverse=True)[:count]
    assert int((pruned != 0).sum()) <= count
    assert bool(((pruned == 0) | (pruned == update.tensors["w"])).all())


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_clipping_gives_the_smaller_of_norm_and_bound(length: float, clip: float) -> None:
    direction = {"w": torch.tensor([0.6, 0.0]), "b": torch.tensor([0.8])}
    update = Update({name: length * tensor for name, tensor in direction.items()})
    clipped = GaussianNoise(sigma=0, clip=clip)(update, CLIENT, generator=generator(0, "none"))
    for name, tensor in direction.items():
        assert torch.allclose(clipped.tensors[name], min(length, clip) * tensor, rtol=1e-5)


def test_no_parts_leave_the_update_as_it_is() -> None:
    update = Update({"w": torch.ones(2)})
    assert Compose(())(update, CLIENT, generator=generator(0, "none")) is update
