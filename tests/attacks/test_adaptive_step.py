"""Updates of optimizers that divide a gradient by its own size are distinguished from gradients, levels and noise."""

from pathlib import Path

import pytest
import torch
from refusals import refusal
from safetensors.torch import save_file
from torch import Tensor, nn

from seepage import Architecture, Batch, FedAvg, FedSGD, attack, build, exposure, observe, record
from seepage.attacks.exposure.fingerprints import defense_findings, euclidean_norm, fingerprint
from seepage.attacks.exposure.rules import Adaptive, adaptive_step
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.base.registry import Spec
from seepage.federation.measured import Step
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.types import Tensors, Transcript, Update


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


SUMS = ("4.weight", "4.bias")


def names(update: Tensors, before: Tensors) -> list[str]:
    if adaptive_step(update, before) is not None:
        return ["adaptive"]
    prints = [fingerprint(name, tensor) for name, tensor in update.items()]
    return [found.name for found in defense_findings(prints, euclidean_norm(update))]


def best(found: Adaptive | None) -> Step:
    assert found is not None
    assert found.best is not None, found
    return found.best.step


@pytest.mark.parametrize("sums", [(), SUMS])
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (torch.optim.Adam, 1e-3),
        (torch.optim.AdamW, 1e-3),
        (lambda p: torch.optim.Adam(p, lr=0.01), 0.01),
        (torch.optim.Adagrad, 0.01),
        (lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-10), 0.1),  # 1 / sqrt(1 - 0.99) times its rate
        (torch.optim.NAdam, 2.1127e-3),  # its own step, and a share of the next
    ],
    ids=["adam", "adamw", "adam-fast", "adagrad", "rmsprop", "nadam"],
)
def test_a_first_adaptive_step_is_named_with_its_size(make: object, size: float, sums: tuple[str, ...]) -> None:
    moved, before = moved_and_weights(make)
    found = adaptive_step(moved, before, sums=sums)
    assert best(found).rate == pytest.approx(size, rel=1e-4)
    assert best(found).gain == 1
    assert found is not None
    assert all(other.off is None or other.off > 100 for other in found.others)
    assert names(moved, before) == ["adaptive"]


@pytest.mark.parametrize(
    ("make", "rate", "bent"),
    [
        (lambda p: torch.optim.Adam(p, eps=1e-3), 1e-3, (0.0, 1.0)),
        (lambda p: torch.optim.Adam(p, eps=1e-5), 1e-3, (0.0, 1.0)),
        (torch.optim.RMSprop, 0.1, (0.0, 1.0)),
        (lambda p: torch.optim.Adadelta(p, lr=1.0), 1e-3**0.5 / 10, (1.0, 0.0)),  # lr sqrt(eps) / sqrt(1 - rho)
        (lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.1), 0.01, (1.0, 0.0)),
    ],
    ids=["adam 1e-3", "adam 1e-5", "rmsprop", "adadelta", "adagrad"],
)
def test_where_no_entry_reaches_the_ceiling_the_last_layers_sums_tell_it(
    make: object, rate: float, bent: tuple[float, float]
) -> None:
    """The rows of a softmax's last layer add up to zero under the right rule at the right rate, and no other."""
    found = adaptive_step(*moved_and_weights(make), sums=SUMS)
    step = best(found)
    assert step.rate == pytest.approx(rate, rel=1e-3)
    assert (step.floor > 0, step.eps > 0) == (bent[0] > 0, bent[1] > 0)
    assert found is not None
    assert found.best is not None
    assert found.best.off is not None
    assert found.best.off < 2
    assert all(other.off is not None and other.off > 50 * found.best.off for other in found.others[:1])


@pytest.mark.parametrize("sums", [(), SUMS])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    ],
    ids=["sgd", "momentum", "decay"],
)
def test_steps_along_a_gradient_are_not(make: object, sums: tuple[str, ...]) -> None:
    assert adaptive_step(*moved_and_weights(make), sums=sums) is None


def test_decay_beside_the_step_is_taken_out_first() -> None:
    """A norm's weights of 1 move by a twelfth more or less than all others."""
    found = adaptive_step(*moved_and_weights(lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.08)))
    assert found is not None
    assert found.size == pytest.approx(1e-3, rel=1e-5)
    assert max(found.shares.values()) == pytest.approx(8e-5, rel=1e-3)


def small_networks() -> list[tuple[nn.Module, Tensor, Tensor, nn.Module]]:
    """Networks whose loss leaves no sums to test; a last bias of few entries, norms of ones, conv biases that rest."""
    norms = [nn.Conv1d(2, 8, 5, 2), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 16, 5, 2), nn.BatchNorm1d(16), nn.ReLU()]
    return [
        (nn.Sequential(*norms, nn.Flatten(), nn.Linear(192, 5)), torch.randn(3, 2, 60), torch.rand(3, 5).round(), BCE),
        (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), torch.randn(5, 8), torch.randn(5, 1), MSE),
        (nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(32, 3)), TOKENS, torch.randn(6, 3), MSE),
    ]


BCE, MSE = nn.BCEWithLogitsLoss(), nn.MSELoss()
TOKENS = torch.arange(24).reshape(6, 4) % 20


@pytest.mark.parametrize("spared", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01, 0.05, 0.3])
@pytest.mark.parametrize("lr", [1e-4, 1e-3, 1e-2])
def test_each_tensors_decay_is_found_with_the_rate_and_no_second_step_is_taken_for_it(
    lr: float, decay: float, *, spared: bool
) -> None:
    torch.manual_seed(1)
    for place, (model, inputs, targets, loss) in enumerate(small_networks()):
        own = {name: 0.0 if spared and p.ndim < 2 else decay for name, p in model.named_parameters()}
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        groups = [{"params": [p], "weight_decay": own[name]} for name, p in model.named_parameters()]
        optimizer = torch.optim.AdamW(groups, lr=lr)
        for step in range(2):
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
            moved = {name: p.detach() - before[name] for name, p in model.named_parameters()}
            found = adaptive_step(moved, before)
            if step:
                assert found is None or found.best is None, place
                continue
            assert found is not None, place
            assert best(found).rate == pytest.approx(lr, rel=1e-6)
            assert best(found).gain == 1
            # `1 - lr decay` is a float32 number, of which nothing tells less than a step.
            assert dict.fromkeys(own, 0.0) | dict(found.shares) == pytest.approx(
                {name: lr * share for name, share in own.items()}, abs=2.0**-24
            ), place


@pytest.mark.parametrize("decay", [0.0, 1e-4])
def test_a_clip_by_value_is_told_from_a_bent_step(decay: float) -> None:
    make = lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=decay)  # noqa: E731
    found = adaptive_step(*moved_and_weights(make, clip=0.003))
    assert best(found).limit == pytest.approx(3e-4, rel=1e-5)
    assert best(found).linear


@pytest.mark.parametrize("sums", [(), SUMS])
@pytest.mark.parametrize(("make", "steps"), [(torch.optim.Adam, 2), (torch.optim.Adam, 5), (torch.optim.RMSprop, 2)])
def test_several_steps_are_not_read_as_one(make: object, steps: int, sums: tuple[str, ...]) -> None:
    found = adaptive_step(*moved_and_weights(make, steps=steps), sums=sums)
    assert found is None or found.best is None


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


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(60), marks=pytest.mark.slow), pytest.param(range(60, 120), marks=pytest.mark.full)],
    ids=["some", "more"],
)
def test_no_step_along_a_gradient_is_taken_for_signs(seeds: range) -> None:
    """Nulls: five networks, black and white inputs, momentum, decay, clipping to a norm, noise, one step and five."""
    for seed in seeds:
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
        last = [name for name in moved if moved[name].shape[:1] == model(inputs).shape[1:]][-2:]
        assert adaptive_step(moved, before) is None, seed
        if seed % 4 == 0:
            assert adaptive_step(moved, before, sums=last) is None, seed


def test_several_steps_are_held_to_one_size_and_one_bit_levels_are_not() -> None:
    several = adaptive_step(*moved_and_weights(torch.optim.Adam, steps=5))
    assert several is not None
    assert not several.finding.evidence["one_step"]
    update, before = moved_and_weights(lambda p: torch.optim.SGD(p, lr=0.1))
    one_bit = {name: tensor.sign() * tensor.abs().mean() for name, tensor in update.items()}
    assert names(one_bit, before)[0] == "quantized"


def adam_step(model: nn.Module, loss: object, inputs: Tensor, targets: Tensor) -> tuple[Tensors, Tensors]:
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters())
    loss(model(inputs), targets).backward()  # type: ignore[operator]
    optimizer.step()
    return before, {name: p.detach() - before[name] for name, p in model.named_parameters()}


@pytest.mark.parametrize("stated", [True, False])
def test_the_example_behind_a_first_step_of_adam_is_read_to_its_stated_error(tmp_path: Path, *, stated: bool) -> None:
    model, private = build(Architecture("fc2"), (1, 8, 8), 10), torch.rand(1, 1, 8, 8)
    before, moved = adam_step(model, nn.CrossEntropyLoss(), private, torch.tensor([3]))
    seen = captured(before, moved, tmp_path, client=Spec("fedavg", ADAM) if stated else Spec("fedsgd"))
    found = attack(seen, "linear")
    off = float((found.inputs - private).square().mean().sqrt())
    assert off < float(found.objective[0]) < 0.03
    assert found.labels.tolist() == [3]
    look = exposure(seen)
    assert look.of("labels")[0].evidence["present"] == (3,)
    assert look.at_least is None
    assert look.defenses == ()
    accuracy = look.of("layer")[0].evidence["accuracy"]
    assert accuracy == 1  # of most entries the least size is known, and of the others enough


@pytest.mark.parametrize("lr", [1e-3, 1e-2])
def test_a_layer_that_reads_the_input_is_said_to_be_known_as_well_as_its_weights_rounding_leaves(
    tmp_path: Path, lr: float
) -> None:
    model = build(Architecture("fc2"), (1, 8, 8), 10)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    nn.functional.cross_entropy(model(torch.rand(1, 1, 8, 8)), torch.tensor([3])).backward()
    name = next(name for name, p in model.named_parameters() if p.ndim > 1)
    gradient = dict(model.named_parameters())[name].grad
    assert gradient is not None
    torch.optim.SGD(model.parameters(), lr).step()
    moved = {key: p.detach() - before[key] for key, p in model.named_parameters()}
    save_file(before, tmp_path / "before.safetensors")
    save_file({key: before[key] + moved[key] for key in before}, tmp_path / "after.safetensors")
    paths = {name: tmp_path / f"{name}.safetensors" for name in ("before", "after")}
    observe_files(Capture(**paths, lr=lr, architecture=Architecture("fc2"), batch_size=1), tmp_path / "observed")
    (layer,) = [
        one for one in exposure(open_transcript(tmp_path / "observed")).of("layer") if one.evidence["reads"] == "input"
    ]
    live = gradient != 0
    off = ((moved[name] / -lr - gradient)[live] / gradient[live]).abs().median()
    assert layer.evidence["accuracy"] == pytest.approx(float(off), rel=1.0)


ADAM = {"optimizer": "adam", "lr": 1e-3, "steps": 1}


def captured(before: Tensors, moved: Tensors, folder: Path, *, client: Spec = Spec("fedsgd")) -> Transcript:  # noqa: B008
    save_file(before, folder / "before.safetensors")
    save_file({name: before[name] + moved[name] for name in before}, folder / "after.safetensors")
    paths = {name: folder / f"{name}.safetensors" for name in ("before", "after")}
    observe_files(Capture(**paths, architecture=Architecture("fc2"), client=client, batch_size=1), folder / "observed")
    return open_transcript(folder / "observed")


def test_rows_of_sign_descent_give_away_no_example(tmp_path: Path) -> None:
    model = build(Architecture("fc2"), (1, 8, 8), 10)
    before, moved = adam_step(model, nn.CrossEntropyLoss(), torch.rand(1, 1, 8, 8), torch.tensor([3]))
    seen = captured(before, {name: 1e-3 * tensor.sign() for name, tensor in moved.items()}, tmp_path)
    look = exposure(seen)
    assert (look.examples, look.vectors, look.at_least) == (0, 0, None)
    found = attack(seen, "linear")
    assert found.certified is None or not found.certified.any()
    assert seen[0].measured(seen.knowledge.client).known() < 0.01


def test_zeros_of_dead_neurons_and_absent_inputs_do_not_hide_it() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1))
    rows = torch.cat([torch.rand(4, 3), torch.eye(6)[[0, 1, 1, 4]]], 1)  # numbers, and words as places of their own
    before, update = adam_step(model, nn.BCEWithLogitsLoss(), rows, torch.tensor([[1.0], [1], [1], [0]]))
    assert sum(int((update[name] != 0).sum()) >= 32 for name in update) == 1
    assert names(update, before) == ["adaptive"]
    seen = observe(model, Update(update, "delta"), (9,), lr=1e-3, client=FedSGD(loss="binary"), batch_size=4)
    found = exposure(seen)
    (labels,) = found.of("labels")
    assert (labels.evidence["present"], labels.evidence["counts"]) == ((1,), None)
    assert found.findings == tuple(one for one in found.findings if one.name == "labels")


def test_no_refusal_recommends_an_attack_that_signs_refuse_too() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))
    batch = Batch(torch.rand(1, 1, 8, 8), torch.tensor([1]))
    signs = record(model, batch, client=FedAvg(lr=0.1, steps=1, optimizer="signsgd"))
    with refusal("input_not_read"):
        attack(signs, "linear")
    with refusal("input_not_read", "inverting_gradients"):
        attack(record(model, batch), "linear")
