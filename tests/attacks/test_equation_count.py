"""Equations against unknowns: the counts by hand, the rank by autograd's Jacobian and numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, Inapplicable, build, record
from seepage.attacks.exposure import convolutions, equation_count, exposure
from seepage.attacks.exposure.convolutions import Jacobian, convolution_findings
from seepage.attacks.gauss_newton import GaussNewton
from seepage.attacks.network.linearize import VictimNetwork
from seepage.attacks.reading.decoding import NaturalSpectrum
from seepage.attacks.reading.equations import Structure
from seepage.base.nn import frozen_randomness, generator, state_of
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
    structure = Structure.of(VictimNetwork(model, params, buffers, 0.0, 1.0), "5.weight", x, 1)
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
    jacobian = Jacobian(VictimNetwork(model, params, buffers, 0.0, 1.0), structure, x)
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
    assert finding.evidence["largest_batch"] == 3
    certified = GaussNewton()(seen, seed=0).certified
    assert certified.all()


def test_it_says_why_where_it_does_not_apply() -> None:
    image = planted_inputs(1, (1, 8, 8))
    batch = Batch(image, torch.tensor([1]))
    norms = build(Architecture("convnet", {"width": 4, "batch_norm": True}), (1, 8, 8), 4)
    coupled, single = record(norms, batch), record(norms, batch, client=FedSGD(mode="eval"))
    with pytest.raises(Inapplicable, match="batch norm"):
        equation_count(coupled[0], coupled.knowledge)
    assert equation_count(single[0], single.knowledge).unknowns == 64
    flat = record(build(Architecture("fc2", {"hidden": 16}), (1, 8, 8), 4), batch)
    with pytest.raises(Inapplicable, match="no convolution"):
        equation_count(flat[0], flat.knowledge)
    assert not any("convolution" in note for note in exposure(flat).notes)
    with pytest.raises(Inapplicable, match="--batch-size"):
        equation_count(replace(single[0], batch_size=None), single.knowledge)
    grouped = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)
    )
    (note,) = [note for note in exposure(record(grouped, batch)).notes if "not counted" in note]
    assert "no convolution that reads all channels" in note
    larger = Batch(planted_inputs(1, (1, 16, 16)), torch.tensor([1]))
    pooled = record(build(Architecture("resnet", {"width": 8}), (1, 16, 16), 4), larger, client=FedSGD(mode="eval"))
    with pytest.raises(Inapplicable, match="pooled"):
        equation_count(pooled[0], pooled.knowledge)


def test_it_says_from_which_batch_size_on_a_network_is_underdetermined() -> None:
    """10 features and at most 2 x 9 rows of a gradient of 4 channels, for 36 pixels: by the count in the docs."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.LeakyReLU(), nn.Conv2d(4, 2, 3, stride=2, padding=1), nn.LeakyReLU(),
        nn.Flatten(), nn.Linear(18, 40),
    )  # fmt: skip
    seen = record(model, Batch(planted_inputs(6, (1, 6, 6)), torch.arange(6)))
    count = equation_count(seen[0], seen.knowledge)
    # n 18 + 4 min(18, 9 n) >= 36 n  <=>  n <= 4
    assert (count.largest_batch, count.ended_by, count.overdetermined) == (4, "equations", False)
    (note,) = [note for note in exposure(seen).notes if "overdetermined" in note]
    assert note.startswith(
        "too few equations for an exact solution: 180 equations for the 216 pixel values of 6 of 6 examples"
    )
    assert "by this count batches of up to 4 are overdetermined (larger ones have too few equations)" in note


def test_a_larger_images_rank_is_computed_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixtures of channels, float32 and Cholesky's answer, against all rows in float64 by numpy."""
    monkeypatch.setattr(convolutions, "QUICK", 30)
    with frozen_randomness(0):
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128, 4),
        )
    for dead in (False, True):
        if dead:  # one channel of the first convolution is left, and sees a part of the image
            with torch.no_grad():
                model[0].weight[1:] = 0
        seen = record(model, Batch(planted_inputs(1, (1, 8, 8)), torch.tensor([1])))
        assert equation_count(seen[0], seen.knowledge).rank is None
        found = equation_count(seen[0], seen.knowledge, thorough=True).rank
        whole = unmixed_jacobian(model)
        assert found == np.linalg.matrix_rank(whole, tol=1e-6 * np.linalg.norm(whole, 2))
        assert (found == 64) == (not dead)
        findings = [one.message for one in exposure(seen, thorough=True).findings if one.name == "overdetermined"]
        assert len(findings) == (not dead)
        assert dead or "for one image the rank was computed: 64 of 64" in findings[0]


def unmixed_jacobian(model: nn.Module) -> np.ndarray:
    """Every row of the probe image's Jacobian, by autograd in float64."""
    model = model.double()
    image = NaturalSpectrum((1, 8, 8)).samples(8, generator(0, "probe images"))[:1].double()
    *front, last, relu, flatten, head = model
    with torch.no_grad():
        z = last(nn.Sequential(*front)(image))
        chances = head(flatten(relu(z))).softmax(1) - F.one_hot(torch.tensor([0]), 4)
        slopes = (chances @ head.weight).view_as(z) * (z > 0)

    def equations(x: Tensor) -> Tensor:
        reading = nn.Sequential(*front)(x)
        gradient = torch.nn.grad.conv2d_weight(reading, last.weight.shape, slopes, last.stride, last.padding)
        return torch.cat([last(reading)[z > 0], gradient.flatten()])

    whole: np.ndarray = torch.autograd.functional.jacobian(equations, image).flatten(1).numpy()
    model.float()
    return whole


def test_a_head_that_was_not_looked_at_is_said() -> None:
    model = build(Architecture("convnet", {"width": 4}), (1, 8, 8), 80)
    seen = record(model, Batch(planted_inputs(70, (1, 8, 8)), torch.arange(70)))
    notes = exposure(seen).notes
    assert any("the head's features were not looked at: more than 64 examples" in note for note in notes)
    assert any("equations through the last convolution are not counted" in note for note in notes)


def test_a_network_with_few_features_is_underdetermined() -> None:
    model = tiny(1, nn.ReLU()).float()
    seen = record(model, Batch(planted_inputs(1, (1, 6, 6)), torch.tensor([1])))
    count = equation_count(seen[0], seen.knowledge)
    assert count.rank < 36
    assert not count.readable
    assert convolution_findings(count)[0].tensors == ()
