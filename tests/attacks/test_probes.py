"""Probes on planted batches: what each says, and when it says that it cannot."""

from dataclasses import replace

import pytest
import torch
from refusals import refusal
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.exposure import batch_norm_leaks, head_features
from seepage.base.nn import generator
from seepage.federation.types import Knowledge, Round

SHAPE, CLASSES = (3, 16, 16), 8


def victim(
    model: nn.Module, n: int, *, mode: str = "train", dtype: torch.dtype = torch.float32
) -> tuple[Batch, Round, Knowledge]:
    inputs = torch.rand((n, *SHAPE), generator=generator(0, "victim")).to(dtype)
    batch = Batch(inputs, torch.arange(n) % CLASSES)
    transcript = record(model.to(dtype), batch, client=FedSGD(mode=mode))  # type: ignore[arg-type]
    return batch, transcript[0], transcript.knowledge


NORMED = Architecture("resnet", {"width": 4})


def variances(model: nn.Module, layers: list[str], batch: Batch) -> list[Tensor]:
    """Biased variances of the layers' outputs on a batch, in train mode, by hooks."""
    seen: list[Tensor] = []
    modules = dict(model.named_modules())
    handles = [modules[name].register_forward_hook(lambda module, args, output: seen.append(output)) for name in layers]
    with torch.no_grad():
        model.train()(batch.inputs)
    for handle in handles:
        handle.remove()
    return [output.transpose(0, 1).flatten(1).var(1, correction=0) for output in seen]


def test_the_batch_variances_come_back_in_double_precision() -> None:
    model = build(NORMED, SHAPE, CLASSES)
    batch, seen, knowledge = victim(model, 4, dtype=torch.float64)
    leaks = batch_norm_leaks(seen, knowledge)
    assert len(leaks) == 12
    assert leaks[0].layer, leaks[0].norm == ("stem.0", "stem.1")
    truths = variances(model, [leak.layer for leak in leaks], batch)
    for leak, truth in zip(leaks, truths, strict=True):
        assert leak.mode == "train"
        torch.testing.assert_close(leak.variance, truth, rtol=1e-6, atol=0)
        assert (leak.error < 1e-6).all()


def test_single_precision_leaves_digits_where_it_says_so() -> None:
    model = build(NORMED, SHAPE, CLASSES)
    batch, seen, knowledge = victim(model, 4)
    leaks = batch_norm_leaks(seen, knowledge)
    truths = variances(model, [leak.layer for leak in leaks], batch)
    off = torch.cat([(leak.variance - truth).abs() / truth for leak, truth in zip(leaks, truths, strict=True)])
    claimed = torch.cat([leak.error for leak in leaks])
    assert (off <= claimed).double().mean() > 0.9
    assert off.median() > 1e-4  # or the claim would be idle


@pytest.mark.parametrize("name", ["resnet", "convnet"])
def test_the_mode_of_the_client_shows(name: str) -> None:
    options = {"width": 4, "batch_norm": True}
    for mode in ("train", "eval"):
        _, seen, knowledge = victim(build(Architecture(name, options), SHAPE, CLASSES), 4, mode=mode)
        leaks = batch_norm_leaks(seen, knowledge)
        assert {leak.mode for leak in leaks} == {mode}
        assert all(leak.variance.isnan().all() == (mode == "eval") for leak in leaks)


def test_variances_near_epsilon_are_train_mode_and_read() -> None:
    """As in a fresh MobileNetV2: epsilon counts, so that filters and gradients are not orthogonal."""
    model = build(Architecture("convnet", {"width": 16, "batch_norm": True}), SHAPE, CLASSES)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.weight *= 0.01
    for mode in ("train", "eval"):
        batch, seen, knowledge = victim(model, 4, mode=mode)
        leaks = batch_norm_leaks(seen, knowledge)
        assert {leak.mode for leak in leaks} == {mode}
    batch, seen, knowledge = victim(model, 4)
    leaks = batch_norm_leaks(seen, knowledge)
    assert leaks[0].alignment.median() > 1e-2
    for leak, truth in zip(leaks, variances(model, [leak.layer for leak in leaks], batch), strict=True):
        said = leak.error < 0.1
        assert said.double().mean() > 0.5
        assert ((leak.variance - truth).abs() / truth)[said].max() < 0.1


def test_noise_leaves_the_mode_unclear() -> None:
    model = build(Architecture("convnet", {"width": 16, "batch_norm": True}), SHAPE, CLASSES)
    for mode in ("train", "eval"):
        _, seen, knowledge = victim(model, 4, mode=mode)
        noisy = {
            name: tensor + tensor.norm() * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(place))
            for place, (name, tensor) in enumerate(seen.update.tensors.items())
        }
        hidden = replace(seen, update=replace(seen.update, tensors=noisy))
        assert {leak.mode for leak in batch_norm_leaks(hidden, knowledge)} == {"unclear"}


def test_batch_norm_leaks_need_a_batch_norm() -> None:
    _, seen, knowledge = victim(build(Architecture("convnet"), SHAPE, CLASSES), 2)
    with refusal("no_batch_norm"):
        batch_norm_leaks(seen, knowledge)


def test_probes_leave_the_model_as_found() -> None:
    model = build(NORMED, SHAPE, CLASSES).train()
    batch, seen, knowledge = victim(model, 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch_norm_leaks(seen, knowledge)
    head_features(seen, knowledge, batch.labels)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
