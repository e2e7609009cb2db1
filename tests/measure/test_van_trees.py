"""The bound in decibels: attained where an update is linear, and never beaten by estimators of any kind."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from seepage.api import record
from seepage.base.nn import generator, state_of
from seepage.federation.clients import Aggregate, FedAvg, FedSGD
from seepage.federation.defenses import DPSGD, Compose, GaussianNoise, LaplaceNoise, Quantize, Soteria, Sparsify
from seepage.federation.defenses.jacobian_damping import JacobianDamping
from seepage.federation.defenses.noise import DecayingNoise
from seepage.federation.defenses.outpost import Outpost
from seepage.federation.defenses.partial import Withhold
from seepage.federation.types import Batch, ClientUpdate, Defense
from seepage.measure.bounds import BoundOptions, upper_bounds
from seepage.measure.bounds.channel import channel_of
from seepage.measure.bounds.jacobian import UpdateJacobian
from seepage.measure.bounds.prior import GaussianPrior
from seepage.measure.bounds.van_trees import InformationSpectrum, decibels, estimated_error


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


CLIENTS = {
    "one gradient": FedSGD(),
    "local steps": FedAvg(lr=0.1, epochs=2, batch_size=2),
    "two clients": Aggregate(rule=FedSGD(), clients=2),
}
DEFENSES = {
    "none": None,
    "clipped": GaussianNoise(sigma=0.0, clip=0.05),
    "clipped examples": DPSGD(sigma=0.0, clip=0.05),
    "sparse": Sparsify(keep=0.3),
    "withheld": Withhold(tensors=["1.*"]),
    "sparse, then clipped": Compose((Sparsify(keep=0.3), GaussianNoise(sigma=0.0, clip=0.02))),
}


def network() -> tuple[nn.Module, Batch]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 4)).double()
    return model, Batch(torch.rand(4, 1, 3, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3]))


def really_sent(model: nn.Module, batch: Batch, client: ClientUpdate, defense: Defense | None) -> Tensor:
    """The update on the wire, read as a gradient, by the code that audits use."""
    update = record(model, batch, client=client, defense=defense)[0].gradient(client)
    return torch.cat([tensor.flatten() for tensor in update.values()]).double()


def louder(defense: Defense | None, sigma: float) -> Defense | None:
    """The same defense with a noise of this strength."""
    if isinstance(defense, Compose):
        return Compose((*defense.parts[:-1], replace(defense.parts[-1], sigma=sigma)))
    return replace(defense, sigma=sigma) if isinstance(defense, GaussianNoise | DPSGD) else defense


@pytest.mark.parametrize("client", CLIENTS.values(), ids=list(CLIENTS))
@pytest.mark.parametrize("defense", DEFENSES.values(), ids=list(DEFENSES))
def test_jacobian_is_that_of_what_is_sent(client: ClientUpdate, defense: Defense | None) -> None:
    """Finite differences of what `record` sends, with clip and mask and local steps, against both products."""
    model, batch = network()
    # A tiny noise makes the defense a noisy one; it is the same noise on both sides of a difference.
    channel = channel_of(model, batch, client, louder(defense, 1e-9))
    jacobian = UpdateJacobian(channel, channel.batch.inputs.flatten())
    w, step = torch.randn(36, generator=generator(0, "direction"), dtype=torch.float64), 1e-6

    def moved(by: float) -> Tensor:
        inputs = (batch.inputs.flatten() + by * w).reshape(batch.inputs.shape)
        return really_sent(model, Batch(inputs, batch.labels), client, defense)

    differences = (moved(step) - moved(-step)) / (2 * step)
    found = jacobian.forward(w)
    torch.testing.assert_close(found, differences, rtol=1e-4, atol=1e-6 * float(differences.abs().max()))
    v = torch.randn(len(found), generator=generator(1, "direction"), dtype=torch.float64)
    assert float(v @ found) == pytest.approx(float(jacobian.backward(v) @ w))
    torch.testing.assert_close(jacobian.dense_gram() @ w, jacobian.gram(w))
    tensors = record(model, batch, client=client, defense=defense)[0].update.tensors.values()
    assert channel.numbers_sent >= sum(int((tensor != 0).sum()) for tensor in tensors)
    if isinstance(defense, Withhold):
        assert channel.numbers_sent == sum(tensor.numel() for tensor in tensors)
    if isinstance(defense, Sparsify) and client is CLIENTS["one gradient"]:
        assert channel.numbers_sent == sum(int((tensor != 0).sum()) for tensor in tensors)


@pytest.mark.parametrize("client", CLIENTS.values(), ids=list(CLIENTS))
@pytest.mark.parametrize(
    "defense",
    [GaussianNoise(sigma=0.1), GaussianNoise(sigma=0.1, clip=0.5), DPSGD(sigma=0.5, clip=0.1), LaplaceNoise(scale=0.1)],
    ids=repr,
)
def test_deviation_is_that_of_what_is_sent(client: ClientUpdate, defense: Defense) -> None:
    model, batch = network()
    seen = torch.stack([really_sent_at(seed, model, batch, client, defense) for seed in range(40)])
    # Orders of local steps differ from seed to seed, so the client's order is held.
    spread = seen.var(0).mean().sqrt() / (2**0.5 if isinstance(defense, LaplaceNoise) else 1)
    assert channel_of(model, batch, client, defense).deviation == pytest.approx(float(spread), rel=0.05)


def really_sent_at(seed: int, model: nn.Module, batch: Batch, client: ClientUpdate, defense: Defense) -> Tensor:
    still = replace(client, shuffle=False) if isinstance(client, FedAvg) else client
    update = record(model, batch, client=still, defense=defense, seed=seed)[0].gradient(still)
    return torch.cat([tensor.flatten() for tensor in update.values()]).double()


@pytest.mark.parametrize("deviation", [3e-3, 0.1])
def test_estimated_error_is_that_of_the_whole_matrix(deviation: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 5))
    batch = Batch(kind(4), torch.tensor([0, 1, 2, 3]))
    channel = channel_of(model, batch, FedSGD(), GaussianNoise(sigma=deviation))
    jacobian, prior = UpdateJacobian(channel, channel.batch.inputs.flatten()), GaussianPrior.of(batch, kind(200))
    whole = InformationSpectrum.of(jacobian.dense_gram(), prior).least_error(deviation)
    found = estimated_error(jacobian, prior, deviation, budget_seconds=5, seed=0)
    assert found.converged
    low, high = found.interval
    assert low * 0.99 < whole.mean < high * 1.01
    assert high - low < 0.2 * whole.mean
    # The sum of the examples' errors is that of the batch, and a hurried solution is below.
    assert float(found.examples.mean()) == pytest.approx(found.mean)
    assert decibels(found.mean) == pytest.approx(decibels(whole.mean), abs=0.5)


def test_unfinished_systems_make_the_bound_looser(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = linear_case(), Batch(kind(1), torch.tensor([3]))
    channel = channel_of(model, batch, FedSGD(loss="mse"), GaussianNoise(sigma=1e-4))
    jacobian, prior = UpdateJacobian(channel, channel.batch.inputs.flatten()), GaussianPrior.of(batch, kind(200))
    whole = InformationSpectrum.of(jacobian.dense_gram(), prior).least_error(1e-4)
    monkeypatch.setattr("seepage.measure.bounds.van_trees.MOST_ITERATIONS", 3)
    monkeypatch.setattr("seepage.measure.bounds.van_trees.LEAST_STEPS", 1)
    found = estimated_error(jacobian, prior, 1e-4, budget_seconds=5, seed=0)
    assert not found.converged
    assert found.mean < whole.mean
    assert estimated_error(jacobian, prior, 1e-4, budget_seconds=1e-9, seed=0) is None


def test_behind_endless_noise_the_bound_is_the_mean_color() -> None:
    batch = Batch(kind(3), torch.tensor([0, 1, 2]))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    found = upper_bounds(model, batch, defense=GaussianNoise(sigma=1e6)).of("psnr_db")
    assert found is not None
    flat = (batch.inputs - batch.inputs.mean((1, 2, 3), keepdim=True)).square().mean((1, 2, 3))
    assert found.examples == pytest.approx([decibels(float(error)) for error in flat], abs=1e-3)


def test_laplace_noise_is_bounded_by_its_own_information() -> None:
    """The median of 400 readings of one number attains 1 / b^2 each; a bound from the variance would be beaten."""
    torch.manual_seed(0)
    layer = nn.Linear(1, 400)
    layer.weight.requires_grad_(False)
    layer.weight.fill_(200.0)  # the gradient of the bias is then x plus what is known, 400 times
    batch, scale = Batch(torch.tensor([[0.4]]), torch.tensor([0])), 0.05
    found = upper_bounds(layer, batch, client=FedSGD(loss="mse"), defense=LaplaceNoise(scale=scale)).of("psnr_db")
    assert found is not None
    slope = 200.0 * 2 / 400
    draws = torch.distributions.Laplace(0.0, scale).sample((4000, 400))
    reached = decibels(float((draws.median(1).values / slope).square().mean()))
    assert found.value - 0.7 < reached < found.value
    assert decibels(2 * scale**2 / 400 / slope**2) < reached - 2  # what the variance alone would allow


def test_rounds_with_fresh_noise_are_less_noise() -> None:
    model, batch = linear_case(), Batch(kind(1), torch.tensor([3]))
    client, public = FedSGD(loss="mse"), Batch(kind(100), torch.zeros(100).long())
    many, quiet = (
        upper_bounds(
            model,
            batch,
            client=client,
            defense=GaussianNoise(sigma=sigma),
            options=BoundOptions(public=public, rounds=rounds),
        ).of("psnr_db")
        for sigma, rounds in ((0.04, 16), (0.01, 1))
    )
    assert many.value == pytest.approx(quiet.value)


@pytest.mark.parametrize(
    ("defense", "words"),
    [
        (Compose((DPSGD(sigma=1.0), Soteria(ratio=0.5))), "Soteria looks at the private examples again"),
        (JacobianDamping(beta=10.0), "what JacobianDamping makes of the private examples is not followed"),
    ],
)
def test_no_bound_in_decibels_without_its_reason(defense: Defense, words: str) -> None:
    model, batch = network()
    found = upper_bounds(model.float(), Batch(batch.inputs.float(), batch.labels), defense=defense)
    assert found.of("psnr_db") is None
    assert any(words in reason for reason in found.reasons)


@pytest.mark.parametrize(
    "defense",
    [Quantize(bits=4), Compose((Quantize(bits=4), GaussianNoise(sigma=1.0))), Outpost(prune=0.0, noise=0.1)],
    ids=repr,
)
def test_rounding_is_no_noise(defense: Defense) -> None:
    """It has no derivative, so it is left out with all behind it: what is left is the account of the exact numbers."""
    model, batch = network()
    found, bare = upper_bounds(model, batch, defense=defense), upper_bounds(model, batch)
    for measure in ("rank", "unseen_share", "psnr_db"):
        one, other = found.of(measure), bare.of(measure)  # type: ignore[arg-type]
        assert one.value == pytest.approx(other.value)
        assert "is left out, which can only hide more" in one.assumption


def test_noise_that_decays_counts_each_round() -> None:
    model, batch = network()
    decaying = DecayingNoise(sigma=0.2, decay=0.5)
    whole = channel_of(model, batch, FedSGD(), decaying, t=1, rounds=2).deviation
    assert whole == pytest.approx((0.1**-2 + 0.05**-2) ** -0.5)


def test_rounding_behind_the_noise_changes_nothing() -> None:
    model, batch = network()
    alone, rounded = (
        upper_bounds(model, batch, defense=defense).of("psnr_db")
        for defense in (GaussianNoise(sigma=0.1), Compose((GaussianNoise(sigma=0.1), Quantize(bits=4))))
    )
    assert alone == rounded


def test_many_local_steps_are_refused() -> None:
    model, batch = network()
    found = upper_bounds(model, batch, client=FedAvg(epochs=40, batch_size=2))
    assert any("80 local steps" in reason for reason in found.reasons)


@pytest.mark.slow
def test_bound_of_a_network_is_near_its_best_estimator() -> None:
    """A ReLU network and small noise: the posterior's mode, followed from the truth, is near and not above it."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 10), nn.ReLU(), nn.Linear(10, 6))
    sigma, public, found, errors = 3e-3, kind(200), [], []
    for number in range(12):
        batch = Batch(kind(12)[number : number + 1], torch.tensor([number % 6]))
        channel = channel_of(model, batch, FedSGD(), GaussianNoise(sigma=sigma))
        prior, start = GaussianPrior.of(batch, public), channel.batch.inputs.flatten()
        # Draw a picture from the prior itself, as the prior's mean is what the bound averages over.
        white = torch.randn(36, generator=generator(number, "picture"), dtype=torch.float64)
        truth = start.mean() + prior.root(white)
        jacobian = UpdateJacobian(channel, truth)
        found.append(InformationSpectrum.of(jacobian.dense_gram(), prior).least_error(sigma).mean)
        seen = channel(truth.requires_grad_()).detach()
        seen = seen + sigma * torch.randn(len(seen), generator=generator(number, "noise"), dtype=torch.float64)
        # x = mean + S z: minimize |seen - f(x)|^2 / sigma^2 + |z|^2 by Gauss and Newton.
        z = white.clone()
        for _ in range(6):
            here = (start.mean() + prior.root(z)).detach()
            local = UpdateJacobian(channel, here)
            matrix = torch.stack([local.forward(prior.root(row)) for row in torch.eye(36, dtype=torch.float64)], 1)
            rest = seen - channel(here.requires_grad_()).detach()
            system = matrix.T @ matrix / sigma**2 + torch.eye(36, dtype=torch.float64)
            z = z + torch.linalg.solve(system, matrix.T @ rest / sigma**2 - z)
        errors.append(float((prior.root(z) - prior.root(white)).square().mean()))
    reached, bound = decibels(sum(errors) / 12), decibels(sum(found) / 12)
    assert -0.5 < bound - reached < 2.0


def test_a_clip_before_a_mask_is_left_out_of_the_channel() -> None:
    model, batch = network()
    defense = Compose((GaussianNoise(sigma=0.0, clip=0.05), Sparsify(keep=0.3)))
    assert channel_of(model, batch, FedSGD(), defense).left_out == ("GaussianNoise",)
    turned = Compose((Sparsify(keep=0.3), GaussianNoise(sigma=0.0, clip=0.05)))
    assert channel_of(model, batch, FedSGD(), turned).left_out == ()
