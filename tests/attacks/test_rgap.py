"""R-GAP: exact where no layer has a deficit, its ranks those of the plain linear algebra, its refusals by name."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch import Tensor, nn

from seepage import Architecture, Batch, GaussianNoise, attack, build, record
from seepage.attacks import RGap
from seepage.attacks.rgap.chain import Chain, activation_of
from seepage.base.nn import frozen_randomness, generator, state_of
from seepage.federation.clients import FedAvg
from seepage.federation.types import Update
from seepage.testing import planted_inputs
from seepage.testing.watch import Changed


def one(shape: tuple[int, ...], label: int = 1, seed: int = 0) -> Batch:
    return Batch(planted_inputs(1, shape, seed), torch.tensor([label]))


def strided(activation: nn.Module, *, bias: bool = True, channels: int = 6, seed: int = 0) -> nn.Sequential:
    """Two convolutions and a fully connected layer on 1 x 8 x 8."""
    with frozen_randomness(seed):
        return nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1, bias=bias),
            activation,
            nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=bias),
            activation,
            nn.Flatten(),
            nn.Linear(32 * channels, 4, bias=bias),
        )


@settings(max_examples=8, deadline=None)
@given(
    activation=st.sampled_from([nn.ReLU(), nn.LeakyReLU(0.2), nn.Sigmoid(), nn.Tanh()]),
    bias=st.booleans(),
    label=st.integers(0, 3),
    seed=st.integers(0, 20),
)
def test_a_planted_image_comes_back_through_convolutions(
    activation: nn.Module, bias: bool, label: int, seed: int
) -> None:
    batch = one((1, 8, 8), label, seed)
    found = attack(record(strided(activation, bias=bias, seed=seed), batch), RGap())
    assert found.labels is not None
    if found.certified.item():
        assert found.labels.tolist() == [label]
        assert (found.inputs - batch.inputs).abs().max() < 1e-2
    if isinstance(activation, nn.LeakyReLU | nn.Tanh) and bias:
        assert found.certified.item()


@pytest.mark.parametrize("use", ["fc2", "mlp3", "lenet"])
def test_a_planted_image_comes_back_through_our_networks(use: str) -> None:
    batch = one((1, 8, 8), 2)
    found = attack(record(build(Architecture(use), (1, 8, 8), 4), batch), RGap())
    assert found.labels.item() == 2
    assert (found.inputs - batch.inputs).abs().max() < 1e-3


def test_a_narrow_convolution_protects_and_says_so() -> None:
    with frozen_randomness(0):
        model = nn.Sequential(nn.Conv2d(1, 2, 3, stride=3), nn.LeakyReLU(), nn.Flatten(), nn.Linear(18, 3))
    found = attack(record(model, one((1, 9, 9))), RGap())
    assert not found.certified.any()
    assert found.notes[1] == "layer '0' protects most: 49 of 81 values are left open"
    # 18 + 18 equations, of which both kinds say four: k_o^T z_p = <W_p, dL/dW_o>.
    assert found.notes[0] == "rank of unknowns, first layer first: 0 32 of 81, 3 18 of 18"


def test_the_matrices_are_those_of_autograd() -> None:
    model = strided(nn.LeakyReLU()).double()
    linear_map = Chain.of(model, state_of(model)[0], (1, 8, 8)).maps[1]
    reading = torch.rand(96, generator=generator(0, "reading"), dtype=torch.float64).requires_grad_()
    output_gradient = torch.rand(192, generator=generator(0, "output_gradient"), dtype=torch.float64)
    conv = linear_map.module

    def output(flat: Tensor) -> Tensor:
        return nn.functional.conv2d(flat.reshape(1, 6, 4, 4), conv.weight, stride=1, padding=1).flatten()

    assert torch.allclose(linear_map.matrix(), torch.autograd.functional.jacobian(output, reading))
    gradient = torch.autograd.grad(output_gradient @ output(reading), conv.weight)[0]
    rows, wanted = linear_map.gradient_system(output_gradient, gradient)
    assert torch.allclose(rows @ reading, wanted)


@pytest.mark.parametrize("module", [None, nn.ReLU(), nn.LeakyReLU(0.3), nn.Sigmoid(), nn.Tanh()])
def test_curves_turn_around_and_have_the_slope_of_autograd(module: nn.Module | None) -> None:
    activation, act = activation_of(module), module or nn.Identity()
    assert activation is not None
    z = torch.linspace(-2, 2, 10, dtype=torch.float64).requires_grad_()
    y = act(z)
    known = activation.known(y)
    assert torch.equal(activation.forward(z), y)
    assert torch.allclose(activation.inverse(y)[known], z[known])
    assert torch.allclose(activation.derivative(z), torch.autograd.grad(y.sum(), z)[0])


def test_noise_is_not_certified() -> None:
    found = attack(record(strided(nn.LeakyReLU()), one((1, 8, 8)), defense=GaussianNoise(sigma=0.1)), RGap())
    assert not found.certified.any()


class Residual(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + inputs.relu()


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.MaxPool2d(2), "MaxPool2d"),
        (nn.BatchNorm2d(2), "BatchNorm2d"),
        (Residual(), "Residual"),
        (nn.GELU(), "GELU"),
        (nn.Sequential(nn.ReLU(), nn.Tanh()), "'2'"),
    ],
)
def test_it_says_which_layer_stops_it(module: nn.Module, said: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), module, nn.Flatten(), nn.LazyLinear(3))
    with torch.no_grad():
        model.eval()(torch.zeros(1, 1, 8, 8))
    with refusal("network", said):
        Chain.of(model, state_of(model)[0], (1, 8, 8))


def test_it_says_where_it_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    model = strided(nn.LeakyReLU())
    single, pair = one((1, 8, 8)), Batch(planted_inputs(2, (1, 8, 8)), torch.tensor([0, 1]))
    seen = record(model, single)
    cases = {
        "several_examples": record(model, pair),
        "no_batch_size": Changed(seen, lambda observed: replace(observed, batch_size=None)),
        "zero_update": Changed(
            seen,
            lambda o: replace(o, update=Update({k: torch.zeros_like(v) for k, v in o.update.tensors.items()})),
        ),
        "weight_difference": record(model, single, client=FedAvg(epochs=3)),
        "no_head": record(nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten()), single),
    }
    for name, transcript in cases.items():
        with refusal(name):
            RGap()(transcript, seed=0)
    monkeypatch.setattr("seepage.attacks.rgap.rgap.MOST_UNKNOWNS", 80)
    with refusal("too_large", 96):
        RGap().check(seen)
