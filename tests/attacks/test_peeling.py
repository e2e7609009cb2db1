"""Activations behind a pooled head: patches out of a weight gradient, readings from slopes, whole residual networks."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, Transcript, build, record
from seepage.attacks.gauss_newton import GaussNewton
from seepage.attacks.network.linearize import Held, LayerUse, VictimNetwork
from seepage.attacks.reading.patches import read_patches
from seepage.attacks.reading.readings import Forward, solve_reading
from seepage.base.algebra.derivative import Derivative
from seepage.base.nn import state_of
from seepage.testing import planted_inputs
from seepage.testing.attack import recovered_db
from seepage.testing.watch import Changed


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def used(
    n: int, channels: int, outputs: int, side: int, stride: int = 1, kernel: int = 3, seed: int = 0
) -> tuple[LayerUse, Tensor]:
    """A convolution that reads sparse non-negative maps, and the shape of its outputs."""
    reading = torch.randn(n, channels, side, side, generator=draws(seed), dtype=torch.float64).clamp(min=0)
    weight = torch.randn(outputs, channels, kernel, kernel, generator=draws(seed + 1), dtype=torch.float64)
    geometry = ((stride, stride), (kernel // 2, kernel // 2), (1, 1), 1)
    output = F.conv2d(reading, weight, None, *geometry)
    return LayerUse(weight, geometry, reading, output), output


def gradient_of(layer: LayerUse, slopes: Tensor) -> Tensor:
    """By autograd, not by `LayerUse`."""
    weight = layer.weight.clone().requires_grad_(True)
    (F.conv2d(layer.input, weight, None, *layer.geometry) * slopes).sum().backward()
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize(("n", "stride", "side"), [(1, 1, 4), (3, 1, 4), (3, 2, 2), (2, 1, 2)])
def test_which_outputs_were_on_behind_an_average_is_read_off_the_weight_gradient(
    n: int, stride: int, side: int
) -> None:
    layer, output = used(n, 24, 100, side, stride)
    on = output > 0
    # The signal of an average is the same everywhere in a map; each example has its own.
    signal = torch.randn(n, 100, 1, 1, generator=draws(5), dtype=torch.float64).expand_as(output)
    gradient = gradient_of(layer, signal * on).float()
    found = read_patches(layer, gradient, signal)
    assert found is not None
    assert torch.equal(found, on)


def test_which_output_was_the_largest_is_read_off_the_weight_gradient() -> None:
    layer, output = used(3, 24, 64, 4)
    _, places = F.max_pool2d(output, 2, return_indices=True)
    largest = torch.zeros_like(output).flatten(2).scatter(2, places.flatten(2), 1.0).view_as(output) > 0
    signal = torch.randn(3, 64, 2, 2, generator=draws(5), dtype=torch.float64)
    spread = F.interpolate(signal, scale_factor=2)
    found = read_patches(layer, gradient_of(layer, spread * largest).float(), spread)
    assert found is not None
    assert torch.equal(found, largest)


def test_fewer_outputs_than_positions_or_slopes_of_other_examples_tell_nothing() -> None:
    layer, output = used(2, 24, 31, 4)  # 32 positions
    signal = torch.randn(output.shape[:2], generator=draws(5), dtype=torch.float64)[..., None, None].expand_as(output)
    assert read_patches(layer, gradient_of(layer, signal * (output > 0)).float(), signal) is None
    layer, output = used(2, 24, 64, 4)
    signal = torch.randn(output.shape[:2], generator=draws(5), dtype=torch.float64)[..., None, None].expand_as(output)
    gradient = gradient_of(layer, signal * (output > 0)).float()
    assert read_patches(layer, gradient, signal.roll(1, 1)) is None


def test_a_reading_is_solved_from_the_slopes_and_from_its_signs_where_these_are_too_few() -> None:
    enough, output = used(2, 5, 16, 6)
    slopes = torch.randn(output.shape, generator=draws(3), dtype=torch.float64)
    solved = solve_reading([(enough, slopes, gradient_of(enough, slopes).float())], None)
    torch.testing.assert_close(solved[0], enough.input, rtol=0, atol=1e-4)
    # 7 outputs of 9 entries each: 63 rows for 72 positions, of which about 36 are zero.
    few, output = used(2, 5, 7, 6)
    slopes = torch.randn(output.shape, generator=draws(3), dtype=torch.float64)
    gradient = gradient_of(few, slopes).float()
    solved = solve_reading([(few, slopes, gradient)], None)
    torch.testing.assert_close(solved[0], few.input, rtol=0, atol=1e-4)
    # Readings that are no output of a ReLU: nothing is found, and nothing made up.
    shifted = LayerUse(few.weight, few.geometry, few.input + 1, few.output)
    assert solve_reading([(shifted, slopes, gradient_of(shifted, slopes).float())], None) is None


def test_known_activations_further_on_make_up_for_missing_rows() -> None:
    """Readings that are positive everywhere: no sign tells anything, an affine map of them does."""
    layer, output = used(2, 5, 7, 6)
    layer = LayerUse(layer.weight, layer.geometry, layer.input + 1, layer.output)
    slopes = torch.randn(output.shape, generator=draws(3), dtype=torch.float64)
    uses = [(layer, slopes, gradient_of(layer, slopes).float())]
    weight = torch.randn(10, 5, 3, 3, generator=draws(4), dtype=torch.float64)
    leaf = torch.zeros_like(layer.input).requires_grad_(True)
    wanted = F.conv2d(layer.input, weight, padding=1)
    read = F.conv2d(leaf, weight, padding=1)
    forward = Forward(Derivative([read], leaf), [read.detach()], [wanted], [wanted > 0])
    solved = solve_reading(uses, forward)
    torch.testing.assert_close(solved[0], layer.input, rtol=0, atol=1e-3)


def test_a_held_activation_gives_its_value_and_passes_its_slopes() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    params, buffers = state_of(model)
    value, on = torch.rand(1, 2, 2, 2, generator=draws()), torch.rand(1, 2, 2, 2, generator=draws(1)) > 0.5
    network = VictimNetwork(model, params, buffers, 0.0, 1.0, held={0: Held(on, value)})
    x = torch.rand(1, 1, 2, 2, generator=draws(2)).requires_grad_(True)
    seen = network.run(x)
    assert torch.equal(seen.activations[0].output, value)
    (slope,) = torch.autograd.grad(seen.activations[0].output.sum(), seen.activations[0].input)
    assert torch.equal(slope, on.float())


def residual(n: int, width: int = 8, classes: int = 4) -> tuple[Transcript, Tensor]:
    model = build(Architecture("resnet", {"width": width}), (1, 16, 16), classes, seed=0)
    batch = Batch(planted_inputs(n, (1, 16, 16), 0), torch.arange(n) % classes)
    return record(model, batch, client=FedSGD(mode="eval")), batch.inputs


@pytest.mark.parametrize(
    "options", [{"n": 2}, pytest.param({"n": 4, "width": 16, "classes": 3}, marks=pytest.mark.slow)], ids=len
)
def test_images_come_back_through_a_residual_network_also_more_than_classes(options: dict[str, int]) -> None:
    seen, truth = residual(**options)
    found = GaussNewton(steps=12)(seen, seed=0)
    assert recovered_db(found, truth).min() > 100
    assert found.certified.all()


@pytest.mark.slow
def test_last_layers_of_one_batch_with_first_layers_of_another_get_no_certificate() -> None:
    seen, _ = residual(2)
    other = residual(3)[0][0].update.tensors

    def mixed(observed):  # type: ignore[no-untyped-def]
        front = {name: other[name] for name in observed.update.tensors if name.startswith(("stem", "stages.0"))}
        assert front
        return replace(observed, update=replace(observed.update, tensors=observed.update.tensors | front))

    found = GaussNewton(steps=6)(Changed(seen, mixed), seed=0)
    assert not found.certified.any()


def test_activations_deep_in_a_residual_network_are_those_of_the_client() -> None:
    seen, truth = residual(2)
    examined = GaussNewton().examine(seen)
    place = examined.structure.activation
    assert place == 4  # what the second stage gives: 16 x 8 x 8, far from the 64 pooled features of the head
    with torch.no_grad():
        true = examined.network.run(truth).activations[place].output.flatten(1)
    found = examined.head.features.to(true)
    assert torch.cdist(found, true).min(1).values.max() < 1e-4 * true.norm(dim=1).max()
