"""Updates of optimizers that divide a gradient by its own size are distinguished from gradients, levels and noise."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from seepage import Architecture, Batch, FedAvg, FedSGD, attack, build, exposure, observe, record
from seepage.attacks.exposure.fingerprints import defense_findings, euclidean_norm, fingerprint
from seepage.attacks.exposure.step_sizes import adaptive_step
from seepage.audit.observe import Files, observe_files
from seepage.base.registry import Spec
from seepage.errors import Inapplicable
from seepage.federation.types import Tensors, Update


def deltas(make: object, *, steps: int = 1, clip: float | None = None) -> dict[str, Tensor]:
    return moved_and_weights(make, steps=steps, clip=clip)[0]


def moved_and_weights(make: object, *, steps: int = 1, clip: float | None = None) -> tuple[Tensors, Tensors]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make(model.parameters())  # type: ignore[operator]
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.rand(4, 3, 8, 8)), torch.arange(4)).backward()
        if clip is not None:
            nn.utils.clip_grad_value_(model.parameters(), clip)
        optimizer.step()
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}, before


def names(update: dict[str, Tensor]) -> list[str]:
    adaptive = adaptive_step(update)
    if adaptive is not None:
        return [adaptive.name]
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
    found = adaptive_step(update)
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
    found = adaptive_step(deltas(make))
    # Adagrad's first step has one size, too: g / sqrt(g^2).
    assert (found is not None) == (make is torch.optim.Adagrad)


def test_decay_beside_the_step_is_taken_out_first() -> None:
    """A norm's weights of 1 move by a twelfth more or less than all others."""
    moved, before = moved_and_weights(lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.08))
    found = adaptive_step(moved, before)
    assert found.evidence["size"] == pytest.approx(1e-3, rel=1e-3)
    assert found.evidence["decay"] == pytest.approx(8e-5, rel=0.02)


@pytest.mark.parametrize(
    ("make", "clip"),
    [
        (lambda p: torch.optim.Adadelta(p, lr=1.0), None),
        (lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9), 0.001),
        (lambda p: torch.optim.SGD(p, lr=0.1), 0.003),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1e-4), 0.003),
    ],
    ids=["adadelta", "rmsprop clipped", "sgd clipped", "sgd clipped, decay"],
)
def test_what_holds_entries_to_one_size_is_recognized(make: object, clip: float | None) -> None:
    assert adaptive_step(*moved_and_weights(make, clip=clip)) is not None


def networks(seed: int) -> nn.Module:
    act = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU)[seed % 4]
    kinds = [
        [nn.Flatten(), nn.Linear(192, 48), act(), nn.Linear(48, 10)],
        [nn.Flatten(), nn.Linear(192, 64), act(), nn.Linear(64, 48), act(), nn.Linear(48, 32), act(), nn.Linear(32, 2)],
        [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), act(), nn.Flatten(), nn.Linear(288, 10)],
        [nn.Flatten(), nn.Linear(192, 10)],
        [nn.Conv2d(3, 8, 3), act(), nn.Flatten(), nn.LayerNorm(288), nn.Linear(288, 64), act(), nn.Linear(64, 10)],
    ]
    return nn.Sequential(*kinds[seed // 4 % 5])


def test_no_step_along_a_gradient_is_taken_for_signs() -> None:
    """Nulls: five networks, black and white inputs, momentum, decay, clipping to a norm, noise, one step and five."""
    for seed in range(120):
        torch.manual_seed(seed)
        model = networks(seed)
        inputs = torch.rand((2, 2, 8, 32)[seed // 20 % 4], 3, 8, 8)
        inputs = (inputs, (inputs > 0.5).float(), (inputs > 0.9).float())[seed // 7 % 3]
        labels = torch.randint(2, (len(inputs),))
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        decay = (0.0, 5e-4, 1e-2)[seed % 3]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 * (seed % 2), weight_decay=decay)
        for _ in range((1, 1, 1, 5)[seed % 4]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            if seed % 5 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        moved = {name: p.detach() - before[name] for name, p in model.named_parameters()}
        if seed % 6 == 0:
            moved = {name: t + 0.5 * t.square().mean().sqrt() * torch.randn_like(t) for name, t in moved.items()}
        assert adaptive_step(moved, before) is None, seed


def test_several_steps_are_held_to_one_size_and_one_bit_levels_are_not() -> None:
    several = adaptive_step(deltas(torch.optim.Adam, steps=5))
    assert not several.evidence["sign_only"]
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
    assert any("local steps: assumed to be 1" in line for line in said)
    found = exposure(tmp_path / "observed")
    assert (found.examples, found.vectors, found.at_least) == (0, 0, None)
    assert found.of("labels")[0].evidence["present"] == (3,)
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
    (labels,) = found.of("labels")
    assert (labels.evidence["present"], labels.evidence["counts"]) == ((1,), None)
    assert found.findings == tuple(one for one in found.findings if one.name == "labels")


def test_no_refusal_recommends_an_attack_that_signs_refuse_too() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))
    batch = Batch(torch.rand(1, 1, 8, 8), torch.tensor([1]))
    signs = record(model, batch, client=FedAvg(lr=0.1, steps=1, optimizer="signsgd"))
    with pytest.raises(Inapplicable, match=r"is not a fully connected one .*; read what every optimizer leaves"):
        attack(signs, "linear")
    with pytest.raises(Inapplicable, match=r"is not a fully connected one .*; use a matching attack"):
        attack(record(model, batch), "linear")
