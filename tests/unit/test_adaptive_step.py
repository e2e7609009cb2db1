"""Updates of optimizers that divide a gradient by its own size are told from gradients, levels and noise."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from seepage import Architecture, FedSGD, build, exposure, observe
from seepage.audit.observe import Files, observe_files
from seepage.leakage.fingerprints import adaptive_step, defense_findings, euclidean_norm, fingerprint
from seepage.registry import Spec
from seepage.types import Tensors, Update


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


def adam_step(model: nn.Module, loss: object, inputs: Tensor, targets: Tensor) -> tuple[Tensors, Tensors]:
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters())
    loss(model(inputs), targets).backward()  # type: ignore[operator]
    optimizer.step()
    return before, {name: p.detach() - before[name] for name, p in model.named_parameters()}


def test_its_rows_give_away_no_example_and_no_number_of_steps(tmp_path: Path) -> None:
    model = build(Architecture("fc2"), (1, 8, 8), 10)
    before, moved = adam_step(model, nn.CrossEntropyLoss(), torch.rand(1, 1, 8, 8), torch.tensor([3]))
    save_file(before, tmp_path / "before.safetensors")
    save_file({name: before[name] + moved[name] for name in before}, tmp_path / "after.safetensors")
    files = Files(before=tmp_path / "before.safetensors", after=tmp_path / "after.safetensors", lr=1e-3)
    said = observe_files(
        files, tmp_path / "observed", architecture=Architecture("fc2"), client=Spec("fedsgd"), batch_size=1
    )
    assert any("local steps: taken for 1" in line for line in said)
    found = exposure(tmp_path / "observed")
    assert (found.examples, found.vectors, found.at_least) == (0, 0, None)
    assert found.labels is not None
    assert found.labels.present == (3,)
    assert "changed by 0.001;" in found.line  # in units of the weights, not of the gradient made of them


def test_zeros_of_dead_neurons_and_absent_inputs_do_not_hide_it() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1))
    rows = torch.cat([torch.rand(4, 3), torch.eye(6)[[0, 1, 1, 4]]], 1)  # numbers, and words as places of their own
    _, update = adam_step(model, nn.BCEWithLogitsLoss(), rows, torch.tensor([[1.0], [1], [1], [0]]))
    assert sum(int((update[name] != 0).sum()) >= 32 for name in update) == 1
    assert names(update) == ["adaptive"]
    seen = observe(model, Update(update, "delta"), (9,), lr=1e-3, client=FedSGD(loss="binary"), batch_size=4)
    found = exposure(seen)
    assert found.labels is not None
    assert (found.labels.present, found.labels.counts) == ((1,), None)
    assert found.findings == tuple(one for one in found.findings if one.name == "labels")
