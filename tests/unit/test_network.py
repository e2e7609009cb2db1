"""The network of captured weights: its shape and classes, as far as weights and network tell them."""

from typing import Any

import pytest
import torch

from seepage import Architecture, SeepageError, build
from seepage.audit.network import find_network

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("shape", "classes"), [((3, 32, 32), 10), ((1, 28, 28), 10), ((1, 28, 28), 62), ((1, 8, 8), 7), ((30,), 2)]
)
def test_the_shapes_that_weights_fit_are_found(shape: Shape, classes: int) -> None:
    architecture = Architecture("fc2", {"hidden": 12})
    state = build(architecture, shape, classes).state_dict()
    found = find_network(architecture, state, None, None)
    assert (found.input_shape, found.outputs, found.pools) == (shape, classes, None)
    assert set(found.said) == {"input shape", "classes"}
    told = find_network(architecture, state, shape, classes)
    assert (told.input_shape, told.outputs, told.said) == (shape, classes, {})


def test_where_several_shapes_fit_that_is_said() -> None:
    architecture = Architecture("torchvision:resnet18")
    state = {name: torch.empty(t.shape) for name, t in build(architecture, (3, 32, 32), 7).state_dict().items()}
    found = find_network(architecture, state, None, None)
    assert (found.input_shape, found.outputs) == ((3, 32, 32), 7)
    assert "as they do 3,28,28 and others" in found.said["input shape"]
    assert "give it with --shape" in (found.pools or "")


def test_the_side_of_pictures_is_that_of_the_layer_behind_the_convolutions() -> None:
    architecture = Architecture("convnet", {"width": 2})
    state = build(architecture, (5, 48, 48), 4).state_dict()
    found = find_network(architecture, state, None, None)
    assert (found.input_shape, found.outputs, found.pools) == ((5, 48, 48), 4, None)


def test_where_no_weights_fit_the_error_can_name_the_shape_that_was_taken() -> None:
    found: Any = find_network(Architecture("fc2"), {"odd": torch.zeros(3, 5)}, None, None)
    assert found.unfit.endswith("--shape 5 for rows of 5 numbers")
    assert find_network(Architecture("fc2"), {"odd": torch.zeros(3, 5)}, (5,), None).unfit == ""


def test_what_cannot_be_built_at_all_is_one_sentence() -> None:
    with pytest.raises(SeepageError, match="cannot import 'nowhere'"):
        find_network(Architecture("nowhere:net"), {}, None, 3)
