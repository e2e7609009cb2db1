"""The types refuse what cannot be, in one place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from seepage import Batch, FedSGD, Knowledge, Round, SeepageError, Update
from seepage.federation.types import check_fits

SHAPES = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 3), max_size=2).map(tuple), min_size=1)


def filled(shapes: dict[str, tuple[int, ...]], value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full(shape, value) for name, shape in shapes.items()}


def test_a_batch_has_as_many_labels_as_inputs() -> None:
    batch = Batch(torch.rand(3, 2), torch.tensor([0, 1, 2]), torch.tensor([7, 8, 9]))
    assert len(batch) == 3
    assert batch.to("cpu").indices is not None
    for labels, indices in ((torch.zeros(2), None), (torch.zeros(3), torch.zeros(4))):
        with pytest.raises(SeepageError, match="one length"):
            Batch(torch.rand(3, 2), labels, indices)


@given(shapes=SHAPES)
def test_the_update_between_two_states_is_their_difference(shapes: dict[str, tuple[int, ...]]) -> None:
    before, after = filled(shapes, 1.0), filled(shapes, 3.5)
    update = Update.from_states({**before, "seen": torch.tensor(3)}, {**after, "seen": torch.tensor(9)})
    assert update.kind == "delta"
    assert set(update.tensors) == set(shapes), "counters such as batch norm's are no part of it"
    assert all(bool((tensor == 2.5).all()) for tensor in update.tensors.values())


def test_an_update_keeps_no_hold_on_a_graph() -> None:
    before = {"w": torch.ones(2, requires_grad=True)}
    assert not Update.from_states(before, before).tensors["w"].requires_grad


@given(first=SHAPES, second=SHAPES)
def test_two_states_of_different_models_have_no_difference(
    first: dict[str, tuple[int, ...]], second: dict[str, tuple[int, ...]]
) -> None:
    if second and all(first.get(name) == shape for name, shape in second.items()):
        return  # a part of the first: the rest was not sent
    with pytest.raises(SeepageError, match="the state after does not fit the state before"):
        Update.from_states(filled(first, 0.0), filled(second, 0.0))


def test_a_misfit_names_what_is_missing_unknown_or_of_another_shape() -> None:
    like = filled({"a": (2,), "b": (3,)}, 0.0)
    with pytest.raises(SeepageError, match=r"X .*Y.*'b'.*'c'"):
        check_fits(filled({"a": (2,), "c": (3,)}, 0.0), like, "X", "Y")
    with pytest.raises(SeepageError, match=r"'b' has shape \(4,\), expected \(3,\)"):
        check_fits(filled({"a": (2,), "b": (4,)}, 0.0), like, "X", "Y")
    check_fits(like, like, "X", "Y")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_update_that_is_not_finite_is_refused(value: float) -> None:
    params = {"w": torch.ones(2, 2)}
    update = {"w": torch.ones(2, 2)}
    update["w"][1, 0] = value
    with pytest.raises(SeepageError, match=r"round 4 .*'w'"):
        Round(4, params, Update(update))


def test_an_update_of_another_model_is_refused() -> None:
    with pytest.raises(SeepageError, match="the update does not fit the model"):
        Round(0, {"w": torch.ones(2)}, Update({"v": torch.ones(2)}))


@pytest.mark.parametrize("value_range", [(1.0, 0.0), (0.0, 0.0), (0.0, float("nan"))])
def test_a_range_of_values_rises(value_range: tuple[float, float]) -> None:
    with pytest.raises(SeepageError, match="value_range"):
        Knowledge(nn.Linear(2, 2), FedSGD(), (2,), 2, value_range)
