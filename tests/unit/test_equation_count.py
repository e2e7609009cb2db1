"""Equations against unknowns: the counts by hand, the rank by autograd's Jacobian and numpy."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.gauss_newton import GaussNewton
from seepage.attacks.gauss_newton.equations import Structure
from seepage.attacks.gauss_newton.linearize import Network
from seepage.core.nn import frozen_randomness, state_of
from seepage.leakage import equation_count, exposure
from seepage.leakage.convolutions import Jacobian, convolution_findings
from seepage.testing import planted_inputs


def tiny(channels: int, activation: nn.Module) -> nn.Sequential:
    with frozen_randomness(0):
        return nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            activation,
            nn.Conv2d(3, channels, 3, stride=2, padding=1),
            activation,
            nn.Flatten(),
            nn.Linear(9 * channels, 5),
        ).double()


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.1)], ids=["relu", "leaky"])
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_the_rank_is_that_of_autograds_jacobian(channels: int, activation: nn.Module) -> None:
    model = tiny(channels, activation)
    params, buffers = state_of(model)
    x = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    structure = Structure.of(Network(model, params, buffers, 0.0, 1.0), "5.weight", x, 1)
    assert structure is not None
    z = model[:3](x).detach()
    on = (z > 0) if isinstance(activation, nn.ReLU) else torch.ones_like(z, dtype=torch.bool)
    slope = torch.where(z > 0, 1.0, 0.0 if isinstance(activation, nn.ReLU) else 0.1)
    chances = model(x).softmax(1) - F.one_hot(torch.tensor([0]), 5)
    fixed = (slope * (chances @ model[5].weight).view_as(z)).detach()

    def equations(image: Tensor) -> Tensor:
        """Active features, and the weight's gradient at slopes that the features fix."""
        reading = model[:2](image)
        gradient = torch.nn.grad.conv2d_weight(reading, model[2].weight.shape, fixed, 2, 1)
        return torch.cat([model[2](reading)[on], gradient.flatten()])

    whole = torch.autograd.functional.jacobian(equations, x).flatten(1).detach().numpy()
    expected = np.linalg.matrix_rank(whole, tol=1e-6 * np.linalg.norm(whole, 2))
    jacobian = Jacobian(Network(model, params, buffers, 0.0, 1.0), structure, x)
    assert jacobian.rank() == expected
    if isinstance(activation, nn.LeakyReLU) and channels > 1:
        assert expected == 36
    else:
        assert expected < 36


def test_the_counts_are_those_of_the_network() -> None:
    """Leaky: all 16 x 2 x 2 features. 3x3 kernels move the slopes of 4 places over the 16 that the layer reads."""
    model = build(Architecture("convnet", {"width": 8, "activation": "leaky_relu"}), (1, 8, 8), 6)
    seen = record(model, Batch(planted_inputs(2, (1, 8, 8)), torch.arange(2)))
    count = equation_count(seen[0], seen.knowledge)
    assert count is not None
    assert (count.unknowns, count.active, count.batch_size) == (64, 64, 2)
    assert count.shared == 16 * min(16 * 9, 2 * 16)
    assert count.layers == ("8.weight", "5.weight")
    assert (count.rank, count.largest_batch, count.overdetermined) == (64, 5, True)


def test_an_exposure_says_so_and_the_attack_bears_it_out() -> None:
    model, truth = build(Architecture("convnet", {"width": 16}), (1, 8, 8), 4), planted_inputs(2, (1, 8, 8))
    seen = record(model, Batch(truth, torch.arange(2)))
    found = exposure(seen)
    (finding,) = [one for one in found.findings if one.name == "overdetermined"]
    assert "batches of up to 3 are overdetermined" in finding.message
    assert finding.tensors == ("8.weight", "5.weight")
    assert found.table()["convolutions"]["largest_batch"] == finding.evidence["largest_batch"] == 3
    certified = GaussNewton()(seen, seed=0).certified
    assert certified is not None
    assert certified.all()


def test_it_is_silent_where_it_does_not_apply() -> None:
    image = planted_inputs(1, (1, 8, 8))
    batch = Batch(image, torch.tensor([1]))
    norms = build(Architecture("convnet", {"width": 4, "batch_norm": True}), (1, 8, 8), 4)
    coupled, single = record(norms, batch), record(norms, batch, client=FedSGD(mode="eval"))
    assert equation_count(coupled[0], coupled.knowledge) is None
    assert equation_count(single[0], single.knowledge) is not None
    flat = record(build(Architecture("fc2", {"hidden": 16}), (1, 8, 8), 4), batch)
    assert equation_count(flat[0], flat.knowledge) is None
    assert convolution_findings(None) == []


def test_a_network_with_few_features_is_underdetermined() -> None:
    model = tiny(1, nn.ReLU()).float()
    seen = record(model, Batch(planted_inputs(1, (1, 6, 6)), torch.tensor([1])))
    count = equation_count(seen[0], seen.knowledge)
    assert count is not None
    assert count.rank is not None
    assert count.rank < 36
    assert not count.readable
    assert convolution_findings(count) == []
