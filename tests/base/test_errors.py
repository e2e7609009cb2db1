"""Errors are sentences, and survive the way back from a worker."""

import pickle
from collections.abc import Callable

import pytest

from seepage.errors import Inapplicable, Problems, SeepageError, refuse, unknown


@pytest.mark.parametrize(
    "error",
    [
        SeepageError("a; b"),
        Inapplicable("no_bias", "no bias", "use another"),
        Problems("two:", ["x", "y"]),
        unknown("a", "b", ["c"]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_sent_between_processes(error: SeepageError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("make", [Inapplicable, lambda name, *words: refuse(name)(*words)], ids=["made", "refused"])
def test_inapplicable_has_a_name_a_reason_and_a_remedy(make: Callable[..., Inapplicable]) -> None:
    error = make("no_bias", "no bias", "use another")
    assert (error.name, error.reason, error.remedy) == ("no_bias", "no bias", "use another")
    assert str(error) == "no bias; use another", "the name is for programs"


def test_one_problem_is_one_line_and_several_are_a_list() -> None:
    assert str(Problems("bad:", ["x"])) == "bad: x"
    assert str(Problems("bad:", ["x", "y"])) == "bad:\n  - x\n  - y"


def test_an_unknown_name_lists_near_ones_and_a_long_list_is_not_printed() -> None:
    assert str(unknown("model", "fc3", ["fc2", "convnet"])) == (
        "unknown model 'fc3'; did you mean 'fc2'? Known: convnet, fc2"
    )
    assert str(unknown("model", "zzz", ["fc2"])) == "unknown model 'zzz'. Known: fc2"
    assert str(unknown("model", "x", [])) == "unknown model 'x'. Known: (none)"
    many = [f"resnet{n}" for n in range(2000)]
    assert str(unknown("model", "resnet18x", many)).endswith("2000 names are known.")
    assert len(str(unknown("model", "resnet18x", many))) < 150
