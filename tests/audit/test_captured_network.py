"""The network of captured weights: its shape and classes, as far as weights and network tell them."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from seepage import Architecture, SeepageError, build
from seepage.audit.captured_network import find_network
from seepage.federation.models.files import read_network

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("shape", "classes"), [((3, 32, 32), 10), ((1, 28, 28), 10), ((1, 28, 28), 62), ((1, 8, 8), 7), ((30,), 2)]
)
def test_the_shapes_that_weights_fit_are_found(shape: Shape, classes: int) -> None:
    architecture = Architecture("fc2", {"hidden": 12})
    state = build(architecture, shape, classes).state_dict()
    found = find_network(architecture, state, None, None)
    assert (found.input_shape, found.outputs, found.pools) == (shape, classes, None)
    assert set(found.inferred) == {"input shape", "classes"}
    known = find_network(architecture, state, shape, classes)
    assert (known.input_shape, known.outputs, known.inferred) == (shape, classes, {})


def test_classes_that_the_weights_do_not_tell_are_called_assumed() -> None:
    architecture = Architecture("fc2", {"hidden": 12})
    state = dict(build(architecture, (1, 28, 28), 62).state_dict())
    head = [name for name, tensor in state.items() if len(tensor) == 62]
    told = find_network(architecture, state, None, None)
    assert told.outputs == 62
    assert "assumed" not in told.inferred["classes"]
    found = find_network(architecture, {name: one for name, one in state.items() if name not in head}, None, None)
    assert found.inferred["classes"] == "10, assumed: nothing tells which layer of the weights makes the outputs"


def test_a_hidden_layer_of_as_many_rows_is_no_head() -> None:
    architecture = Architecture("fc2", {"hidden": 10})
    state = dict(build(architecture, (1, 28, 28), 62).state_dict())
    bare = {name: tensor for name, tensor in state.items() if len(tensor) != 62}
    assert "assumed" in find_network(architecture, bare, None, None).inferred["classes"]
    assert find_network(architecture, state, None, None).outputs == 62


def test_where_several_shapes_fit_that_is_said() -> None:
    architecture = Architecture("torchvision:resnet18")
    state = {name: torch.empty(t.shape) for name, t in build(architecture, (3, 32, 32), 7).state_dict().items()}
    found = find_network(architecture, state, None, None)
    assert (found.input_shape, found.outputs) == ((3, 32, 32), 7)
    assert "as they do 3,28,28 and perhaps others" in found.inferred["input shape"]
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


@pytest.mark.parametrize("save", ["export", "script", "pickle"])
@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(
            nn.Conv2d(2, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Flatten(),
            nn.Linear(64, 3),
        ),
        nn.Sequential(nn.Embedding(50, 4, padding_idx=0), nn.Flatten(), nn.Linear(24, 3)),
    ],
    ids=["pictures", "texts"],
)  # fmt: skip
def test_a_saved_network_is_the_network(save: str, net: nn.Sequential, tmp_path: Path) -> None:
    """At other weights than its own, its outputs, its gradients and how these change are the network's."""
    net.eval()
    inputs = torch.rand(2, 2, 8, 8) if isinstance(net[0], nn.Conv2d) else torch.randint(50, (2, 6))
    path = tmp_path / ("net.pt2" if save == "export" else "net.pt")
    if save == "export":
        dynamic = ({0: torch.export.Dim.DYNAMIC},)
        torch.export.save(torch.export.export(net, (inputs,), dynamic_shapes=dynamic), path)
    elif save == "pickle":
        torch.save(net, path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that TorchScript is a thing of the past
            torch.jit.save(torch.jit.script(net), path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = read_network(path, trust=True)
    layers = [type(module) for module in found.modules()]
    for kind in (nn.Linear, *([nn.Conv2d, nn.BatchNorm2d] if inputs.is_floating_point() else [nn.Embedding])):
        assert (kind in layers) == (save != "script")
    params = {name: (2 * p).detach().requires_grad_() for name, p in net.named_parameters()}
    assert {name for name, _ in found.named_parameters()} == set(params)
    both = []
    for model in (found, net):
        outputs = functional_call(model, params, (inputs[:1],))
        slopes = torch.autograd.grad(outputs.square().sum(), list(params.values()), create_graph=True)
        bends = torch.autograd.grad(sum(g.square().sum() for g in slopes), list(params.values())[-1])
        both.append([outputs, *slopes, *bends])
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
