"""Inner activations from late convolutions' gradients, against planted layers and the network's own forward pass."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from torch import Tensor

import seepage.federation.data
from seepage import Architecture, Batch, FedSGD, GaussianNoise, Transcript, attack, build, record
from seepage.attacks.guided import fedleak_guided
from seepage.attacks.guided.decoder import fit_decoder
from seepage.attacks.guided.inversion import invert_activations
from seepage.attacks.guided.matching import FeatureAgreement
from seepage.attacks.network.linearize import LayerUse
from seepage.attacks.reading.activations import deconvolve, inner_activations
from seepage.attacks.reading.activations.deconvolution import negative_share, solve_read, solve_slopes
from seepage.attacks.search.objective import MatchingObjective
from seepage.attacks.search.problem import Problem
from seepage.base.nn import calls_in_pass
from seepage.errors import SeepageError
from seepage.measure.metrics.image import psnr

GEOMETRY = ((1, 1), (1, 1), (1, 1), 1)


def photographs(count: int, size: int = 16) -> Tensor:
    data = seepage.federation.data.load("album", size=size)
    return data.batch(data.private[:count]).inputs


def victim(
    n: int = 4, *, width: int = 16, classes: int = 3, mode: str = "eval", size: int = 16
) -> tuple[Transcript, Batch]:
    """More examples than classes, labels that repeat, and a pooled residual network; labels are not known."""
    batch = Batch(photographs(n, size), torch.tensor([0, 2, 2, 1, 0, 1, 2, 0])[:n])
    model = build(Architecture("resnet", {"width": width}), tuple(batch.inputs.shape[1:]), classes, seed=1)
    return record(model, batch, client=FedSGD(mode=mode)), batch  # type: ignore[arg-type]


def layer(read: Tensor, weight: Tensor) -> LayerUse:
    return LayerUse(weight, GEOMETRY, read, F.conv2d(read, weight, padding=1))


def gradient_of(weight: Tensor, read: Tensor, slopes: Tensor) -> Tensor:
    """By autograd: of `<slopes, conv(read)>`."""
    weight = weight.clone().requires_grad_()
    return torch.autograd.grad((F.conv2d(read, weight, padding=1) * slopes).sum(), weight)[0]


def planted(n: int, *, channels: int = 48, outputs: int = 24, side: int = 3) -> tuple[LayerUse, Tensor, Tensor, Tensor]:
    """A convolution whose inputs are half zeros, any gradients of its outputs, and the gradient of its weight."""
    draw = torch.Generator().manual_seed(3)
    read = torch.randn(n, channels, side, side, generator=draw).relu()
    slopes = torch.randn(n, outputs, side, side, generator=draw)
    weight = torch.randn(outputs, channels, 3, 3, generator=draw)
    return layer(read, weight), read, slopes, gradient_of(weight, read, slopes)


def paired(found: Tensor, truth: Tensor) -> tuple[list[int], Tensor]:
    """Which true example each found one is, by direction, and one minus the cosine."""
    cosines = F.normalize(found.flatten(1), dim=1) @ F.normalize(truth.double().flatten(1), dim=1).T
    return cosines.argmax(1).tolist(), 1 - cosines.amax(1)


def test_a_gradient_is_taken_apart_into_what_was_read_and_what_came_back() -> None:
    use, read, slopes, gradient = planted(4)
    found_read, found_slopes = deconvolve(use, gradient, 4)
    order, off = paired(found_read, read)
    assert sorted(order) == [0, 1, 2, 3]
    assert float(off.max()) < 1e-8
    back, off = paired(found_slopes, slopes)
    assert back == order
    assert float(off.max()) < 1e-8
    # One positive factor per example, inverse to one another: the gradient is theirs.
    again = gradient_of(use.weight.double(), found_read, found_slopes)
    assert float((again - gradient).norm() / gradient.norm()) < 1e-5


def test_each_factor_is_solved_from_the_other() -> None:
    use, read, slopes, gradient = planted(4)
    assert torch.allclose(solve_slopes(use, read.double(), gradient.double()).float(), slopes, atol=1e-4)
    solved = solve_read(use, slopes.double(), gradient)
    assert torch.allclose(solved[0].float(), read, atol=1e-4)
    assert solved[1] < 1e-4
    # One wrong slope spoils its output's rows alone, which are left out.
    wrong = slopes.double().clone()
    wrong[2, 5] = 0
    solved = solve_read(use, wrong, gradient)
    assert torch.allclose(solved[0].float(), read, atol=1e-4)


def test_what_cannot_be_taken_apart_is_refused() -> None:
    use, _, slopes, gradient = planted(4)
    with refusal("too_many_positions", "6 x 9"):
        deconvolve(use, gradient, 6)
    with refusal("examples_missing", 3):
        deconvolve(use, gradient, 3)
    noisy = gradient + 0.05 * gradient.std() * torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0))
    with refusal("examples_missing", 4):
        deconvolve(use, noisy, 4)
    signed = torch.randn(use.input.shape, generator=torch.Generator().manual_seed(1))
    with refusal("no_relu"):
        deconvolve(use, gradient_of(use.weight, signed, slopes), 4)


def test_activations_labels_and_features_are_the_networks_own() -> None:
    seen, batch = victim()
    found = inner_activations(seen[0], seen.knowledge)
    calls = calls_in_pass(seen.knowledge.model, [found.layer, found.head], seen[0].params, batch.inputs)
    read = calls[found.layer][0].input.double()
    away = torch.cdist(found.activations.flatten(1), read.flatten(1)) / read.flatten(1).norm(dim=1)
    order = away.argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2, 3]
    assert float(away.amin(1).max()) < 1e-5
    assert found.labels.tolist() == batch.labels[order].tolist() == sorted(batch.labels.tolist())
    features = calls[found.head][0].input.double()
    assert torch.allclose(found.features, features[order], rtol=1e-4, atol=1e-6)
    assert (found.noise < 1e-4 * found.features.square().mean(1).sqrt()).all()
    with torch.no_grad():
        chances = seen.knowledge.model.eval()(batch.inputs).double().softmax(1)
    assert torch.allclose(found.probabilities, chances[order], atol=1e-5)


@pytest.mark.parametrize("mode", [pytest.param("eval", marks=pytest.mark.slow), "train"])
@pytest.mark.full
def test_an_update_that_was_clipped_to_a_norm_tells_by_how_much(mode: str) -> None:
    width = 16 if mode == "eval" else 32
    seen, batch = victim(3, width=width, mode=mode)
    clipped = record(
        seen.knowledge.model, batch, client=seen.knowledge.client, defense=GaussianNoise(sigma=0.0, clip=0.02)
    )
    plain, found = (inner_activations(one[0], one.knowledge) for one in (seen, clipped))
    name = next(iter(seen[0].update.tensors))
    share = float(clipped[0].update.tensors[name].norm() / seen[0].update.tensors[name].norm())
    assert share < 0.1
    assert plain.share == 1
    assert found.share == pytest.approx(share, rel=1e-3)
    assert found.labels.tolist() == plain.labels.tolist()
    assert torch.allclose(found.activations.norm(), plain.activations.norm(), rtol=1e-3)
    assert torch.allclose(found.probabilities.sort(0).values, plain.probabilities.sort(0).values, atol=1e-4)


@pytest.mark.slow
def test_a_trained_network_with_biases_in_its_norms_is_read_too() -> None:
    batch = Batch(photographs(3), torch.tensor([1, 1, 0]))
    model = build(Architecture("resnet", {"width": 16}), (3, 16, 16), 4, seed=2)
    many, optimizer = photographs(24), torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(12):
        optimizer.zero_grad()
        F.cross_entropy(model(many), torch.arange(24) % 4).backward()
        optimizer.step()
    seen = record(model, batch, client=FedSGD(mode="eval"))
    found = inner_activations(seen[0], seen.knowledge)
    read = calls_in_pass(model, [found.layer], seen[0].params, batch.inputs, buffers=seen[0].buffers)[found.layer][
        0
    ].input
    away = torch.cdist(found.activations.flatten(1), read.double().flatten(1)).amin(1) / read.flatten(1).norm(dim=1)
    assert float(away.max()) < 1e-3


@pytest.mark.parametrize(
    "made",
    [
        lambda: victim(8, width=4, mode="train", size=32)[0],
        lambda: victim(n=8, width=4, size=32)[0],
    ],
)
def test_where_activations_cannot_be_had_the_reason_is_said(made: object) -> None:
    seen = made()  # type: ignore[operator]
    with refusal("too_many_positions", "8 x 16"):
        inner_activations(seen[0], seen.knowledge)
    found = attack(seen, fedleak_guided(steps=2))
    assert "The search had no activations to start from" in found.notes[0]
    assert "8 x 16" in found.notes[0]


def test_networks_of_another_end_are_refused() -> None:
    batch = Batch(photographs(2), torch.tensor([1, 0]))
    flattened = record(build(Architecture("convnet", {"width": 8}), (3, 16, 16), 3), batch)
    with refusal("network"):
        inner_activations(flattened[0], flattened.knowledge)
    smooth = build(Architecture("resnet", {"width": 16, "activation": "gelu"}), (3, 16, 16), 3)
    seen = record(smooth, batch, client=FedSGD(mode="eval"))
    with refusal("network"):
        inner_activations(seen[0], seen.knowledge)
    unsized = replace(victim()[0][0], batch_size=None, labels=None)
    with refusal("no_batch_size"):
        inner_activations(unsized, victim()[0].knowledge)


def test_layers_that_were_not_sent_are_not_used() -> None:
    batch = victim(2)[1]
    model = build(Architecture("resnet", {"width": 16}), (3, 16, 16), 3)
    for parameter in model.get_submodule("stages.3").parameters():
        parameter.requires_grad_(False)
    frozen = record(model, batch, client=FedSGD(mode="eval"))
    with refusal("network"):
        inner_activations(frozen[0], frozen.knowledge)


@pytest.mark.full
def test_activations_of_a_wide_network_are_images() -> None:
    seen, batch = victim(2, width=32)
    found = inner_activations(seen[0], seen.knowledge)
    read = calls_in_pass(seen.knowledge.model, [found.layer], seen[0].params, batch.inputs)[found.layer][0].input
    guess = fit_decoder(seen[0], seen.knowledge, found.layer, 2)(found.activations.float().flatten(1))
    images = invert_activations(
        seen[0], seen.knowledge, found.layer, found.activations, found.offset_known, guess, steps=12
    )
    order = torch.cdist(found.activations.flatten(1), read.double().flatten(1)).argmin(1)
    assert float(psnr(images, batch.inputs[order]).min()) > 25
    assert bool((psnr(images, batch.inputs[order]) > psnr(guess, batch.inputs[order]) + 5).all())
    with refusal("no_relu"):
        invert_activations(seen[0], seen.knowledge, "stem.0", found.activations, found.offset_known, guess, steps=1)


@pytest.mark.full
def test_fedleak_is_started_and_held_by_activations() -> None:
    seen, batch = victim(2, width=32)
    found = attack(seen, fedleak_guided(steps=4))
    assert found.labels.tolist() == [0, 2]
    assert "Activations in front of the last block" in found.notes[0]
    flat = batch.inputs.mean((2, 3), keepdim=True).expand_as(batch.inputs)
    assert float(psnr(found.inputs, batch.inputs).mean()) > float(psnr(flat, batch.inputs).mean()) + 5


def test_the_gradient_of_the_term_is_that_of_its_differences() -> None:
    batch = Batch(photographs(2).double(), torch.tensor([0, 2]))
    seen = record(
        build(Architecture("resnet", {"width": 8}), (3, 16, 16), 3).double(), batch, client=FedSGD(mode="eval")
    )
    observed = seen[0]
    wanted = calls_in_pass(seen.knowledge.model, ["stages.3.conv1"], observed.params, batch.inputs)
    held = FeatureAgreement(
        0.7, "stages.3.conv1", wanted["stages.3.conv1"][0].input.detach().flatten(1), torch.tensor([True, True])
    )
    search = fedleak_guided(steps=1).search
    problem = Problem.of(observed, seen.knowledge, search.distance, None)
    x = 0.5 * batch.inputs + 0.2
    way = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def at(inputs: Tensor, *terms: FeatureAgreement) -> tuple[float, Tensor]:
        found = MatchingObjective(problem, seen.knowledge, observed, (), terms).at(inputs, batch.labels)[0]
        return found.value, found.by_inputs

    step = 1e-6
    slopes = [(at(x + step * way, *t)[0] - at(x - step * way, *t)[0]) / (2 * step) for t in ((held,), ())]
    own = (at(x, held)[1] - at(x)[1]).flatten() @ way.flatten()
    assert float(own) == pytest.approx(slopes[0] - slopes[1], rel=1e-4)
    # Nothing is added at the truth.
    assert at(batch.inputs, held)[0] == pytest.approx(at(batch.inputs)[0], abs=1e-9)


def test_bad_options_are_refused() -> None:
    with pytest.raises(SeepageError, match="from activations"):
        fedleak_guided(known="features", start="inversion")
    with pytest.raises(SeepageError, match="cannot be below 0"):
        fedleak_guided(hold=-1.0)
    assert negative_share(torch.tensor([1.0, 2.0])) == 0
