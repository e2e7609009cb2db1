"""Batch norm in train mode: its algebra against autograd, and what the last block of a network read through it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from torch import Tensor, nn

import seepage.federation.data
from seepage import Architecture, Batch, FedSGD, Update, build, observe, record, score
from seepage.attacks.gauss_newton import GaussNewton
from seepage.attacks.gauss_newton.contrast import with_contrast
from seepage.attacks.network.linearize import LayerUse
from seepage.attacks.reading.activations import inner_activations
from seepage.attacks.reading.activations.batch_norm import BatchNorm, common_factor, factors_of, solve_coupled
from seepage.attacks.reading.equations import Equations
from seepage.base.nn import captured_calls, forward, in_mode
from seepage.federation.types import Transcript


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def photographs(count: int, size: int = 16) -> Tensor:
    data = seepage.federation.data.load("album", size=size)
    return data.batch(data.private[:count]).inputs


def victim(n: int = 2, *, size: int = 16, width: int = 32) -> tuple[Transcript, Batch]:
    """A residual network in train mode, with no more classes than three; labels are not known."""
    batch = Batch(photographs(n, size), torch.tensor([2, 0, 2, 1, 1][:n]))
    model = build(Architecture("resnet", {"width": width}), (3, size, size), 3, seed=1)
    return record(model, batch, client=FedSGD(mode="train")), batch


def block() -> tuple[LayerUse, BatchNorm, Callable[[], tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]]:
    """Convolution of stride 2, batch norm and ReLU on planted readings, and what autograd says of them."""
    read = drawn(3, 10, 6, 6).relu()
    weight = (drawn(48, 10, 3, 3, seed=1) / 9).requires_grad_()
    gamma, beta = (1 + 0.3 * drawn(48, seed=2)).requires_grad_(), (0.2 * drawn(48, seed=3)).requires_grad_()
    z = F.conv2d(read, weight, None, 2, 1)
    z.retain_grad()
    y = F.batch_norm(z, None, None, gamma, beta, training=True, eps=1e-7)
    y.retain_grad()
    h = y.relu()
    (h * drawn(*h.shape, seed=4)).sum().backward()  # type: ignore[no-untyped-call]
    use = LayerUse(weight.detach(), ((2, 2), (1, 1), (1, 1), 1), read, z.detach())
    grads = [one.grad for one in (z, y, weight, gamma, beta)]
    norm = BatchNorm(gamma.detach(), beta.detach(), grads[3], grads[4], 1e-7)  # type: ignore[arg-type]
    return use, norm, lambda: (z.detach(), h.detach(), grads[0], grads[1], grads[2])  # type: ignore[return-value]


def test_slopes_go_through_a_batch_norm_in_both_directions() -> None:
    _, norm, truth = block()
    z, _, back, slopes, _ = truth()
    x, deviation = norm.normalized(z)
    assert torch.allclose(norm.slopes_in(slopes, x, deviation), back, atol=1e-12)
    assert torch.allclose(norm.slopes_out(back, x, deviation), slopes, atol=1e-10)
    # Read at another scale, the deviation is over that scale, and x is the same.
    again, smaller = norm.normalized(z / 5, scale=5)
    assert torch.allclose(again, x)
    assert torch.allclose(smaller * 5, deviation)


def test_a_channel_whose_gamma_is_zero_tells_no_slopes() -> None:
    zero = torch.zeros(2, dtype=torch.float64)
    norm = BatchNorm(zero, zero, zero, zero, 1e-5)
    x, deviation = norm.normalized(drawn(2, 2, 3, 3))
    assert not norm.slopes_out(drawn(2, 2, 3, 3), x, deviation).any()


def test_the_factors_are_those_with_which_slopes_sum_to_zero() -> None:
    _, _, truth = block()
    back = truth()[2]
    factors = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    found = factors_of(back / factors[:, None, None, None])
    assert torch.allclose(found / found.sum(), factors / factors.sum())
    assert factors_of(back[:1]).tolist() == [1]
    with refusal("conflict"):
        factors_of(drawn(3, 8, 2, 2))
    with refusal("conflict"):
        factors_of(torch.cat([back[:1] + back[1:2], back[2:]]) * torch.tensor([1.0, -1.0])[:, None, None, None])


def test_a_factor_is_fitted_to_the_channels_that_agree() -> None:
    sums = drawn(40)
    wanted = 3 * sums + 1e-6 * drawn(40, seed=1)
    wanted[:4] += 5
    factor, off = common_factor(sums, wanted)
    assert abs(factor - 3) < 1e-5
    assert off < 1e-5
    assert common_factor(sums, drawn(40, seed=2))[1] > 0.1


@pytest.mark.parametrize("wrong", [0, 2])
def test_what_a_convolution_read_is_solved_through_its_batch_norm(wrong: int) -> None:
    use, norm, truth = block()
    z, h, back, slopes, gradient = truth()
    slopes, on = slopes.clone(), h > 0
    for channel in range(wrong):  # units that are taken for off: their slopes are missing
        places = (slopes[:, channel] != 0).nonzero()[0]
        slopes[places[0], channel, places[1], places[2]] = 0
        on[places[0], channel, places[1], places[2]] = False
    x, _ = norm.normalized(z)
    found = solve_coupled(use, norm, slopes, torch.where(on, x, 0.0), on, gradient)
    assert found.off < 1e-6
    assert bool(found.offset_known.all())
    assert found.fits.tolist() == [channel >= wrong for channel in range(48)]
    # The scale is only seen by way of epsilon, which counts for a thousandth here.
    factor = (found.read * use.input).sum() / found.read.square().sum()
    assert float((factor * found.read - use.input).norm() / use.input.norm()) < 0.03
    # The slopes of outputs with a mistaken unit come from the weight gradient in place of those that were given.
    assert float((found.slopes / float(factor) - back).norm() / back.norm()) < 0.03
    exact = solve_coupled(use, norm, slopes, torch.where(on, x, 0.0), on, gradient, scale=float(factor), before=found)
    factor = (exact.read * use.input).sum() / exact.read.square().sum()
    assert float((factor * exact.read - use.input).norm() / use.input.norm()) < 1e-2


def test_a_channel_without_zeros_has_no_level() -> None:
    use, norm, _ = block()
    raised = use.input.clone()
    raised[:, 4] = 1 + drawn(3, 6, 6, seed=7).abs()  # never off
    weight = use.weight
    z = F.conv2d(raised, weight, None, 2, 1)
    leaf = weight.clone().requires_grad_()
    gamma, beta = norm.weight.clone().requires_grad_(), norm.bias.clone().requires_grad_()
    y = F.batch_norm(F.conv2d(raised, leaf, None, 2, 1), None, None, gamma, beta, training=True, eps=1e-7)
    y.retain_grad()
    h = y.relu()
    (h * drawn(*h.shape, seed=4)).sum().backward()  # type: ignore[no-untyped-call]
    own = BatchNorm(norm.weight, norm.bias, gamma.grad, beta.grad, 1e-7)  # type: ignore[arg-type]
    x, _ = own.normalized(z)
    assert y.grad is not None
    assert leaf.grad is not None
    found = solve_coupled(use, own, y.grad, torch.where(h > 0, x, 0.0).detach(), h > 0, leaf.grad)
    assert found.offset_known.tolist() == [channel != 4 for channel in range(10)]


def test_more_places_than_equations_are_refused() -> None:
    use, norm, truth = block()
    z, h, _, slopes, gradient = truth()
    wide = LayerUse(use.weight[:2], use.geometry, use.input, use.output[:, :2])
    few = BatchNorm(norm.weight[:2], norm.bias[:2], norm.weight_gradient[:2], norm.bias_gradient[:2], 1e-7)
    x, _ = few.normalized(z[:, :2])
    assert solve_coupled(wide, few, slopes[:, :2], x, h[:, :2] > 0, gradient[:2]) is None


@pytest.mark.parametrize(("n", "size"), [(1, 32), (3, 16)])
@pytest.mark.slow
def test_activations_and_labels_are_those_of_the_clients_own_pass(n: int, size: int) -> None:
    seen, batch = victim(n, size=size)
    found = inner_activations(seen[0], seen.knowledge)
    with (
        torch.no_grad(),
        captured_calls(seen.knowledge.model, [found.layer, found.head]) as calls,
        in_mode(seen.knowledge.model, training=True),
    ):
        logits = forward(seen.knowledge.model, seen[0].params, batch.inputs, buffers=seen[0].buffers)
    read = calls[found.layer][0].input.detach().double().flatten(1)
    away = torch.cdist(found.activations.flatten(1), read) / read.norm(dim=1)
    order = away.argmin(1)
    assert sorted(order.tolist()) == list(range(n))
    assert float(away.amin(1).max()) < 1e-4
    assert found.labels.tolist() == batch.labels[order].tolist()
    assert torch.allclose(found.probabilities, logits[order].double().softmax(1), atol=1e-5)
    assert torch.allclose(found.features, calls[found.head][0].input.detach()[order].double(), atol=1e-4)


@pytest.mark.parametrize("lr", [0.1, 0.01])
@pytest.mark.slow
def test_two_checkpoints_in_single_precision_are_enough(lr: float) -> None:
    batch = Batch(photographs(3), torch.tensor([1, 2, 1]))
    model = build(Architecture("resnet", {"width": 32}), (3, 16, 16), 3, seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    F.cross_entropy(model.train()(batch.inputs), batch.labels).backward()
    torch.optim.SGD(model.parameters(), lr=lr).step()
    update = Update.from_states(before, model.state_dict())
    model.load_state_dict(before)
    seen = observe(model, update, (3, 16, 16), batch_size=3, lr=lr)
    found = inner_activations(seen[0], seen.knowledge)
    assert found.labels.tolist() == [1, 1, 2]
    assert (found.noise < 1e-3 * found.features.square().mean(1).sqrt()).all()


def farthest(found: Any, model: nn.Module, seen: Any, batch: Batch) -> float:
    """The largest error of an activation, as a share of it, where its offset is known: from the next that was read."""
    with torch.no_grad(), captured_calls(model, [found.layer]) as calls, in_mode(model, training=True):
        forward(model, seen.params, batch.inputs, buffers=seen.buffers)
    read = calls[found.layer][0].input.detach().double()[:, found.offset_known].flatten(1)
    away = torch.cdist(found.activations[:, found.offset_known].flatten(1), read).amin(1) / read.norm(dim=1)
    return float(away.max())


@pytest.mark.slow
def test_blocks_are_read_one_after_the_other() -> None:
    """A deeper network, with shortcuts of both kinds: down to the block in front of which there are too many places."""
    batch = Batch(photographs(5), torch.tensor([2, 0, 1, 1, 0]))
    model = build(Architecture("resnet", {"width": 16, "depth": 18}), (3, 16, 16), 3, seed=1)
    seen = record(model, batch, client=FedSGD(mode="train"))
    found = inner_activations(seen[0], seen.knowledge)
    assert found.layer == "stages.5.conv1"
    assert float(found.offset_known.double().mean()) > 0.9
    assert farthest(found, model, seen[0], batch) < 1e-4


@pytest.mark.full
def test_a_public_network_that_adds_and_rectifies_in_place_is_read() -> None:
    batch = Batch(photographs(3, 64), torch.tensor([1, 3, 3]))
    model = build(Architecture("torchvision:resnet18"), (3, 64, 64), 10, seed=0)
    seen = record(model, batch, client=FedSGD(mode="train"))
    found = inner_activations(seen[0], seen.knowledge)
    assert found.layer == "layer4.0.conv1"
    assert found.labels.tolist() == [1, 3, 3]
    assert farthest(found, model, seen[0], batch) < 1e-5


@pytest.mark.slow
def test_a_trained_network_in_train_mode_is_read_too() -> None:
    batch = Batch(photographs(3), torch.tensor([1, 1, 0]))
    model = build(Architecture("resnet", {"width": 32}), (3, 16, 16), 4, seed=2)
    many, optimizer = photographs(24), torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(12):
        optimizer.zero_grad()
        F.cross_entropy(model(many), torch.arange(24) % 4).backward()
        optimizer.step()
    seen = record(model, batch, client=FedSGD(mode="train"))
    found = inner_activations(seen[0], seen.knowledge)
    assert found.labels.tolist() == [0, 1, 1]
    assert farthest(found, model, seen[0], batch) < 1e-3


def test_a_client_in_eval_mode_is_told_so() -> None:
    batch = victim(2)[1]
    model = build(Architecture("resnet", {"width": 32}), (3, 16, 16), 3, seed=1)
    seen = record(model, batch, client=FedSGD(mode="eval"))
    with refusal("batch_norm", "fedsgd:mode=eval"):
        GaussNewton().check(observe(model, seen[0].update, (3, 16, 16), batch_size=2))


def test_a_network_that_does_not_take_the_shape_is_a_sentence() -> None:
    seen, _ = victim(2)
    with refusal("does_not_run", "(1, 16, 16)", "--shape"):
        inner_activations(seen[0], replace(seen.knowledge, input_shape=(1, 16, 16)))


def test_norms_that_were_not_sent_are_refused() -> None:
    batch = victim(2)[1]
    model = build(Architecture("resnet", {"width": 32}), (3, 16, 16), 3, seed=1)
    for name, parameter in model.named_parameters():
        if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.BatchNorm2d):
            parameter.requires_grad_(False)
    seen = record(model, batch, client=FedSGD(mode="train"))
    with refusal("not_sent"):
        inner_activations(seen[0], seen.knowledge)
    with refusal("batch_norm"):
        GaussNewton().check(seen)


@pytest.mark.parametrize("middle", [0.5, 0.0, 0.47])
@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_the_contrast_of_8_bit_pictures_is_found(middle: float, factor: float) -> None:
    truth = (photographs(2) * 255).round() / 255
    center = torch.full((1, 3, 1, 1), middle).expand(1, 3, 16, 16)
    noise = 1e-4 * drawn(*truth.shape).float()
    found = with_contrast(center + factor * (truth - center) + noise, center)
    assert float((found - truth).abs().max()) < 1.2e-3


def test_without_8_bits_the_contrast_fills_the_range() -> None:
    truth = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) ** 1.3
    center = torch.full((1, 3, 16, 16), 0.5)
    found = with_contrast(center + 0.3 * (truth - center), center)
    assert float(found.amax()) == 1 or float(found.amin()) == 0
    assert float((found - truth).abs().max()) < 0.01


@pytest.mark.parametrize("normalized", [True, False])
def test_the_equations_hold_at_the_truth(normalized: bool) -> None:
    """Also of a network that reads images as they are: of black ones all its activations are zero, and so alike."""
    batch = Batch(photographs(2), torch.tensor([2, 0]))
    model = build(Architecture("resnet", {"width": 32}), (3, 16, 16), 3, seed=1)
    if not normalized:
        model.normalize = nn.Identity()
    seen = GaussNewton().examine(record(model, batch, client=FedSGD(mode="train")))
    order = [seen.head.labels.tolist().index(label) for label in (2, 0)]
    images = torch.empty_like(batch.inputs)
    images[order] = batch.inputs
    assert Equations(seen.network, seen.structure, seen.known, []).start(images).square < 1e-8
    assert float(seen.center.mean()) == pytest.approx(0.5 if normalized else 0.0)


@pytest.mark.full
def test_images_come_back_exactly_through_batch_norm_in_train_mode() -> None:
    seen, batch = victim(2, width=64)
    found = GaussNewton(steps=40)(seen, seed=0)
    assert found.certified.tolist() == [True, True]
    assert score(found, batch).psnr == 150
    assert "rounded to 8 bits" in " ".join(found.notes)


@pytest.mark.full
def test_images_that_are_not_of_8_bits_are_not_certified() -> None:
    images = photographs(2) * 0.9 + 0.03 + 0.01 * torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model = build(Architecture("resnet", {"width": 64}), (3, 16, 16), 3, seed=1)
    seen = record(model, Batch(images, torch.tensor([2, 0])), client=FedSGD(mode="train"))
    found = GaussNewton(steps=40)(seen, seed=0)
    assert not found.certified.any()
    assert "does not show the contrast" in " ".join(found.notes)
    assert score(found, Batch(images, torch.tensor([2, 0]))).psnr > 20
