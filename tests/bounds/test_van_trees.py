"""The bound in decibels: attained where an update is linear, and never beaten by estimators of any kind."""

import math

import torch
from torch import Tensor, nn

from seepage.bounds import BoundOptions, upper_bounds
from seepage.bounds.prior import GaussianPrior
from seepage.bounds.van_trees import decibels
from seepage.clients import FedSGD
from seepage.core.nn import generator, state_of
from seepage.defenses import GaussianNoise
from seepage.types import Batch


def linear_case(seed: int = 0, pixels: int = 36, classes: int = 20) -> nn.Module:
    """A network that trains its last bias alone: with squared errors its gradient is linear in the input."""
    torch.manual_seed(seed)
    layer = nn.Linear(pixels, classes)
    layer.weight.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), layer)


def kind(count: int, seed: int = 1) -> Tensor:
    """`[count, 1, 6, 6]` pictures of one Gaussian family: a few smooth patterns."""
    draw = generator(seed, "pictures")
    patterns = torch.randn(5, 36, generator=draw)
    weights = torch.randn(count, 5, generator=generator(seed, "weights", count)) * torch.tensor([1, 0.7, 0.5, 0.3, 0.2])
    return (0.5 + 0.05 * weights @ patterns + 0.02 * torch.randn(count, 36, generator=draw)).reshape(count, 1, 6, 6)


def test_posterior_mean_attains_it_on_a_linear_update() -> None:
    """The best estimator is known in closed form: the bound is its error, to within a tenth of a decibel."""
    model, client, sigma = linear_case(), FedSGD(loss="mse"), 0.02
    public, truth = kind(400), kind(1, seed=1)
    batch = Batch(truth, torch.tensor([3]))
    found = upper_bounds(
        model,
        batch,
        client=client,
        defense=GaussianNoise(sigma=sigma),
        options=BoundOptions(public=Batch(public, torch.zeros(400).long())),
    ).of("psnr_db")
    assert found is not None
    # The oracle: draws from the prior, the real update of each, noise, and Bayes' rule with matrices.
    prior = GaussianPrior.of(batch, public)
    eye = torch.eye(36, dtype=torch.float64)
    root = torch.stack([prior.root(row) for row in eye])
    color = truth.double().mean()

    def update(x: Tensor) -> Tensor:
        model.double()
        params, _ = state_of(model)
        return client(model, params, Batch(x.reshape(1, 1, 6, 6), batch.labels)).tensors["1.bias"]

    middle = update(color.expand(36))
    matrix = torch.stack([update(color + row) - middle for row in eye], dim=1)  # linear: differences are exact
    covariance = root @ root.T
    gain = covariance @ matrix.T @ torch.linalg.inv(matrix @ covariance @ matrix.T + sigma**2 * torch.eye(20))
    draws = torch.randn(4000, 36, generator=generator(0, "prior"), dtype=torch.float64) @ root
    noise = sigma * torch.randn(4000, 20, generator=generator(0, "noise"), dtype=torch.float64)
    error = (draws - (draws @ matrix.T + noise) @ gain.T).square().mean(1)
    reached = decibels(float(error.mean()))
    standard = 10 / math.log(10) * float(error.std() / error.mean()) / math.sqrt(4000)
    assert abs(reached - found.value) < 4 * standard < 0.3
    # An estimator that does not know the prior does worse.
    blunt = (draws - (draws @ matrix.T + noise) @ torch.linalg.pinv(matrix).T).square().mean()
    assert decibels(float(blunt)) < found.value - 1
