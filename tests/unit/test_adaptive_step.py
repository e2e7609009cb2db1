"""Updates of optimizers that divide a gradient by its own size are told from gradients, levels and noise."""

import pytest
import torch
from torch import Tensor, nn

from seepage.leakage.fingerprints import adaptive_step, defense_findings, euclidean_norm, fingerprint


def deltas(make: object, *, steps: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make(model.parameters())  # type: ignore[operator]
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.rand(4, 3, 8, 8)), torch.arange(4)).backward()
        optimizer.step()
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}


def names(update: dict[str, Tensor]) -> list[str]:
    prints = [fingerprint(name, tensor) for name, tensor in update.items()]
    return [found.name for found in defense_findings(prints, euclidean_norm(update))]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (torch.optim.Adam, 1e-3),
        (torch.optim.AdamW, 1e-3),
        (lambda p: torch.optim.Adam(p, lr=0.01), 0.01),
        (torch.optim.RMSprop, 0.1),  # 1 / sqrt(1 - 0.99) times its rate
    ],
    ids=["adam", "adamw", "adam-fast", "rmsprop"],
)
def test_a_first_adaptive_step_is_named_with_its_size(make: object, size: float) -> None:
    update = deltas(make)
    found = adaptive_step([fingerprint(name, tensor) for name, tensor in update.items()])
    assert found is not None
    assert float(str(found.evidence["size"])) == pytest.approx(size, rel=0.03)
    assert names(update) == ["adaptive"]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
        torch.optim.Adagrad,
    ],
    ids=["sgd", "momentum", "decay", "adagrad"],
)
def test_others_are_not(make: object) -> None:
    found = adaptive_step([fingerprint(name, tensor) for name, tensor in deltas(make).items()])
    # Adagrad's first step has one size, too: g / sqrt(g^2).
    assert (found is not None) == (make is torch.optim.Adagrad)


def test_later_steps_and_one_bit_levels_are_not() -> None:
    assert "adaptive" not in names(deltas(torch.optim.Adam, steps=5))
    update = deltas(lambda p: torch.optim.SGD(p, lr=0.1))
    one_bit = {name: tensor.sign() * tensor.abs().mean() for name, tensor in update.items()}
    assert names(one_bit)[0] == "quantized"
