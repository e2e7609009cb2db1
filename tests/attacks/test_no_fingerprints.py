"""Zeros, last places of weights and special points leave no fingerprint of a defense; defenses on them still do."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.exposure.fingerprints import defense_findings, euclidean_norm, fingerprint
from seepage.attacks.exposure.rules import adaptive_step
from seepage.base.number_formats import format_of
from seepage.federation.types import Tensors

Optimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[[Tensor, Tensor], Tensor]


def step(model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, make: Optimizer) -> tuple[Tensors, Tensors]:
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make(model.parameters())
    loss(model(inputs), targets).backward()
    optimizer.step()
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}, before


def findings(moved: Tensors, before: Tensors) -> list[str]:
    units = {name: float(weight.abs().max()) * 2.0**-23 for name, weight in before.items()}
    return [
        one.name
        for one in defense_findings([fingerprint(n, t, units[n]) for n, t in moved.items()], euclidean_norm(moved))
    ]


def zero_head() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(40, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 10))
    nn.init.zeros_(model[3].weight)
    nn.init.zeros_(model[3].bias)
    return model


def convolutions() -> nn.Sequential:
    sides = [(3, 64), (64, 64), (64, 64)]
    blocks = [m for i, o in sides for m in (nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        model[-1].weight *= 0.05
    return model


@pytest.mark.parametrize("loss", [F.cross_entropy, lambda out, y: F.mse_loss(out, F.one_hot(y, 10).float())])
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW], ids=["adam", "adamw"])
@pytest.mark.parametrize("batch", [2, 3])
def test_one_step_of_adam_that_moves_a_zero_head_alone_is_no_level_of_two_bits(
    loss: Loss, make: Optimizer, batch: int
) -> None:
    torch.manual_seed(0)
    moved, before = step(zero_head(), torch.randn(batch, 40), torch.arange(batch), loss, make)
    found = adaptive_step(moved, before)
    assert found is not None
    assert found.best is not None
    assert found.best.step.rate == pytest.approx(1e-3, rel=1e-6)
    assert "quantized" not in findings(moved, before)


@pytest.mark.parametrize("lr", [1e-3, 1e-4, 1e-5])
def test_last_places_of_weights_are_no_threshold_no_level_no_format_and_no_noise(lr: float) -> None:
    torch.manual_seed(0)
    plain: Optimizer = lambda p: torch.optim.SGD(p, lr)  # noqa: E731
    moved, before = step(convolutions(), torch.rand(4, 3, 8, 8), torch.arange(4), F.cross_entropy, plain)
    assert findings(moved, before) == []


def test_rows_of_ones_and_zeros_at_a_zero_head_are_neither_levels_nor_signs() -> None:
    """Of them 0.9 and -0.1 are all sizes that a gradient has."""
    torch.manual_seed(0)
    model = zero_head()[3]
    plain: Optimizer = lambda p: torch.optim.SGD(p, 0.1)  # noqa: E731
    moved, before = step(model, torch.rand(1, 32).round(), torch.tensor([1]), F.cross_entropy, plain)
    assert adaptive_step(moved, before) is None
    assert findings(moved, before) == []


def test_zero_rows_are_no_number_format() -> None:
    torch.manual_seed(0)
    table = torch.zeros(2000, 64)
    table[:12] = torch.randn(12, 64)
    assert format_of(table, 1e-6 * table.abs()) is None
    coarse = torch.zeros(2000, 64)
    coarse[:12] = table[:12].half().float()
    assert format_of(coarse, 1e-7 * coarse.abs()) == "float16"


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_levels_on_a_difference_of_weights_are_seen(bits: int) -> None:
    torch.manual_seed(0)
    before = {"w": torch.rand(60, 40)}
    change = 1e-2 * torch.randn(60, 40)
    levels = 2 ** (bits - 1) - 1
    most = change.abs().max()
    sent = 1e-2 * change.sign() if bits == 1 else (change / most * levels).round() * most / levels
    moved = {"w": (before["w"] + sent) - before["w"]}
    assert findings(moved, before)[0] == "quantized"
