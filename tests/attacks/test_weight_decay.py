"""Weight decay between two checkpoints: inferred from what no gradient of the softmax moves, and taken out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from seepage import Update, attack, observe
from seepage.attacks.exposure import WeightDecay, exposure, infer_weight_decay
from seepage.audit.capture import Capture
from seepage.audit.caveats import assumed_update
from seepage.audit.observe import observe_files
from seepage.base.nn import last_linear
from seepage.base.registry import Spec
from seepage.errors import SeepageError
from seepage.federation.clients import FedSGD
from seepage.federation.models import build, fc2
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.types import Architecture, Round

SHAPE, LR = (1, 8, 8), 0.1
Loss = Callable[[Tensor, Tensor], Tensor]
Checkpoints = tuple[nn.Module, dict[str, Tensor], dict[str, Tensor], Tensor]


def checkpoints(
    loss: Loss = F.cross_entropy,
    *,
    seed: int = 0,
    steps: int = 1,
    apart: bool = False,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **options: Any,
) -> Checkpoints:
    """A network at its first weights, these, those after steps of PyTorch's own optimizer, and its three examples."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = fc2(SHAPE, 10, hidden=24)
        inputs, labels = torch.rand(3, *SHAPE), torch.tensor([2, 5, 7])
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices}, {"params": vectors, **({"weight_decay": 0.0} if apart else {})}]
    training = optimizer(groups, lr=LR, **options)
    for _ in range(steps):
        training.zero_grad()
        loss(model(inputs), labels).backward()
        training.step()
    after = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    model.load_state_dict(before)
    return model, before, after, inputs


def inferred(made: Checkpoints) -> WeightDecay | None:
    model, before, after, _ = made
    return infer_weight_decay(model, before, {name: after[name] - before[name] for name in before}, 10, SHAPE)


@pytest.mark.parametrize("decay", [1e-5, 1e-4, 5e-4, 1e-2])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_share_is_that_of_the_optimizer(decay: float, steps: int) -> None:
    found = inferred(checkpoints(weight_decay=decay, steps=steps))
    assert found.vectors
    # The rounding of float32 weights does not shrink with the decay: a smaller share is read less sharply.
    rel = {1e-5: 1e-2, 1e-4: 2e-3}.get(decay, 1e-3)
    assert found.share == pytest.approx(1 - (1 - LR * decay) ** steps, rel=rel)


@pytest.mark.parametrize(
    "loss",
    [
        lambda logits, labels: F.cross_entropy(logits, labels, label_smoothing=0.1),
        lambda logits, labels: F.cross_entropy(logits, labels, weight=torch.linspace(0.5, 2, 10)),
        lambda logits, labels: 0.1 * F.cross_entropy(logits, labels),
    ],
    ids=["smoothed", "weighted", "clipped"],
)
def test_any_loss_of_the_softmax_leaves_the_sum_of_the_rows_to_the_decay(loss: Loss) -> None:
    found = inferred(checkpoints(loss, weight_decay=5e-4))
    assert found.share == pytest.approx(5e-5, rel=1e-3)


def test_biases_that_did_not_shrink_are_told_apart() -> None:
    found = inferred(checkpoints(weight_decay=5e-4, apart=True))
    assert not found.vectors
    assert set(found.shares) == {"2.weight", "4.weight"}


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (F.cross_entropy, {}),
        (F.cross_entropy, {"momentum": 0.9, "steps": 3}),
        (F.cross_entropy, {"optimizer": torch.optim.Adam}),
        (F.cross_entropy, {"optimizer": torch.optim.Adam, "weight_decay": 0.01}),
        (lambda logits, labels: F.mse_loss(logits, F.one_hot(labels, 10).float()), {"weight_decay": 5e-4}),
    ],
    ids=["none", "momentum", "adam", "adam, decay", "squares"],
)
def test_what_else_moves_weights_is_no_decay(loss: Loss, options: Mapping[str, Any]) -> None:
    assert inferred(checkpoints(loss, **options)) is None


def test_no_decay_is_found_where_there_is_none() -> None:
    """Nulls: rounding, noise, and entries that were left out."""
    for seed in range(60):
        model, before, after, _ = checkpoints(seed=seed)
        delta = {name: after[name] - before[name] for name in before}
        noise = torch.Generator().manual_seed(seed)
        noisy = {name: d + 1e-4 * torch.randn(d.shape, generator=noise) for name, d in delta.items()}
        sparse = {name: d * (d.abs() > d.abs().quantile(0.9)) for name, d in delta.items()}
        for changed in (delta, noisy, sparse):
            assert infer_weight_decay(model, before, changed, 10, SHAPE) is None, seed


def seen_of(home: Path, made: Checkpoints, loss: str = "cross_entropy", **known: Any) -> tuple[Path, list[str]]:
    """An `observed/` folder of the two checkpoints as files."""
    _, before, after, _ = made
    save_file(before, home / "before.safetensors")
    save_file(after, home / "after.safetensors")
    capture = Capture(
        before=home / "before.safetensors", after=home / "after.safetensors", lr=LR, steps=1,
        architecture=Architecture("fc2", {"hidden": 24}), client=Spec("fedsgd", {"loss": loss}), **known,
    )  # fmt: skip
    return home / "observed", observe_files(capture, home / "observed")


@pytest.mark.slow
def test_an_update_with_weight_decay_is_read_exactly(tmp_path: Path) -> None:
    made = checkpoints(weight_decay=5e-3)
    folder, words = seen_of(tmp_path, made)
    assert assumed_update(open_transcript(folder)).startswith(
        "one step of SGD at a learning rate of 0.1, but for 0.0005 of the weights, taken out as weight decay, on"
    )
    assert any(
        "weight decay: 0.0005 of 4.weight, by what all its rows together moved, so about 0.005 if" in line
        for line in words
    )
    found = attack(folder, "linear")
    assert found.certified.tolist() == [True] * 3
    distances = (found.inputs[:, None] - made[3][None]).flatten(2).abs().amax(2)
    assert float(distances.amin(1).max()) < 1e-3


@pytest.mark.slow
def test_told_that_there_is_none_it_is_left_in(tmp_path: Path) -> None:
    folder, words = seen_of(tmp_path, checkpoints(weight_decay=5e-3), weight_decay=0.0)
    assert not any("weight decay" in line for line in words)
    assert open_transcript(folder)[0].update.decayed == {}


def test_told_decay_is_taken_out_of_other_losses(tmp_path: Path) -> None:
    squares = checkpoints(lambda logits, labels: F.mse_loss(logits, F.one_hot(labels, 10).float()), weight_decay=5e-3)
    plain = checkpoints(lambda logits, labels: F.mse_loss(logits, F.one_hot(labels, 10).float()))
    folder, _ = seen_of(tmp_path, squares, "mse", weight_decay=5e-3)
    sent = open_transcript(folder)[0].update
    for name, tensor in sent.tensors.items():
        alone = (plain[1][name] - plain[2][name]) / LR
        assert torch.allclose(tensor, alone, atol=2e-6), name
        assert sent.decayed[name] == pytest.approx(5e-4)


def test_in_python_what_is_inferred_is_taken_out() -> None:
    model, before, after, _ = checkpoints(weight_decay=5e-3)
    update = Update.from_states(before, after)
    share = infer_weight_decay(model, before, update.tensors, 10, SHAPE)
    found = attack(observe(model, update.without_decay(before, share.shares), SHAPE, batch_size=3, lr=LR), "linear")
    assert found.certified.all()


@pytest.mark.parametrize("decay", [-0.1, 10.0, float("nan"), float("inf")])
def test_a_decay_must_leave_something(tmp_path: Path, decay: float) -> None:
    with pytest.raises(SeepageError, match="--weight-decay"):
        seen_of(tmp_path, checkpoints(), weight_decay=decay)


def test_what_was_rounded_is_made_again_with_the_decay() -> None:
    model, before, after, _ = checkpoints(weight_decay=0.05)
    half = {name: tensor.bfloat16().float() for name, tensor in after.items()}
    update = Update.from_states(before, half).without_decay(before, dict.fromkeys(before, LR * 0.05))
    sent = observe(model, update, SHAPE, batch_size=3, lr=LR)[0]
    assert sent.formats(FedSGD()).stored == "bfloat16"
    blind = Round(0, sent.params, Update(sent.update.tensors, rate=LR))
    assert blind.formats(FedSGD()).stored != "bfloat16"


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
@pytest.mark.slow
def test_a_hostile_share_is_refused(tmp_path: Path, share: float) -> None:
    folder, _ = seen_of(tmp_path, checkpoints(weight_decay=5e-3))
    path = folder / "rounds" / "000000.safetensors"
    save_file({**load_file(path), "decayed/2.weight": torch.tensor(share, dtype=torch.float64)}, path)
    with pytest.raises(SeepageError, match="no share of a weight"):
        open_transcript(folder)[0]


@pytest.mark.slow
def test_a_decay_that_is_left_in_ends_in_no_traceback() -> None:
    """The head's features were solved for one example twice, which no matrix inverse bears."""
    torch.manual_seed(0)
    model = fc2(SHAPE, 10, hidden=256)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    F.cross_entropy(model(torch.rand(3, *SHAPE)), torch.tensor([2, 5, 7])).backward()
    torch.optim.SGD(model.parameters(), lr=LR, weight_decay=5e-4).step()
    update = Update.from_states(before, dict(model.named_parameters()))
    model.load_state_dict(before)
    found = exposure(observe(model, update, SHAPE, batch_size=3, lr=LR))
    assert found.examples == 0


def grouped(
    model: nn.Module, shape: tuple[int, ...], group: str, classes: int = 10, steps: int = 1
) -> dict[str, tuple[float, float]]:
    """What was inferred of each weight matrix, and what its share is, where one group of parameters differs."""
    names = last_linear(model, classes)
    assert names is not None
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    head, body = ([p for name, p in model.named_parameters() if (name in names) == last] for last in (True, False))
    if group == "frozen":
        for parameter in body:
            parameter.requires_grad_(requires_grad=False)
    rest = {"params": body, "weight_decay": 5e-4 if group in ("all", "faster head") else 0.0}
    rate = 10 * LR if group == "faster head" else LR
    groups = [{"params": head, "weight_decay": 5e-4, "lr": rate}, *([rest] if group != "frozen" else [])]
    optimizer = torch.optim.SGD(groups, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.rand(2, *shape)), torch.tensor([2, 7])).backward()
        optimizer.step()
    after = {name: tensor.detach() for name, tensor in model.named_parameters()}
    found = infer_weight_decay(model, before, {name: after[name] - before[name] for name in before}, classes, shape)
    assert found.share == pytest.approx(1 - (1 - 5e-4 * rate) ** steps, rel=2e-3)
    assert not found.guessed
    shrank = 1 - (1 - LR * rest["weight_decay"]) ** steps if group != "frozen" else 0.0
    return {
        name: (found.shares.get(name, 0.0), found.share if name == names[0] else shrank)
        for name in before
        if before[name].ndim > 1
    }


def fully_connected() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def convolutional() -> nn.Module:
    body = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.LeakyReLU(), nn.AvgPool2d(3)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(16, 10))


def residual() -> nn.Module:
    return build(Architecture("resnet", {"depth": 10, "width": 8}), (3, 8, 8), 10).train()


def pooled() -> nn.Module:
    body = [nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))


@pytest.mark.parametrize(
    ("make", "steps"), [(fully_connected, 1), (convolutional, 1), (residual, 1), (fully_connected, 3), (pooled, 3)]
)
@pytest.mark.parametrize("group", ["all", "head alone", "frozen"])
def test_layers_that_were_spared_are_left_as_they_are(make: Callable[[], nn.Module], group: str, steps: int) -> None:
    torch.manual_seed(1)
    found = grouped(make(), (3, 8, 8), group, steps=steps)
    for name, (share, true) in found.items():
        assert share == pytest.approx(true, rel=5e-3), name


def test_a_layer_of_another_rate_is_told_by_the_directions_that_its_gradient_leaves_free() -> None:
    found = grouped(fully_connected(), (3, 8, 8), "faster head")
    for name, (share, true) in found.items():
        assert share == pytest.approx(true, rel=5e-3), name


def test_it_is_said_where_other_layers_do_not_tell() -> None:
    """A network without ReLU or low rank: many examples, and a smooth activation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.GELU(), nn.Linear(16, 10))
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    F.cross_entropy(model(torch.rand(40, 3, 8, 8)), torch.arange(40) % 10).backward()
    torch.optim.SGD(model.parameters(), lr=LR, weight_decay=5e-4).step()
    delta = {name: tensor.detach() - before[name] for name, tensor in model.named_parameters()}
    found = infer_weight_decay(model, before, delta, 10, (3, 8, 8))
    assert found.guessed
    assert set(found.shares) == set(before)
    assert "other layers do not tell, and are taken to have shrunk as well" in found.words(LR)


@pytest.mark.parametrize("spared", [True, False])
def test_norms_tell_of_themselves_where_the_last_bias_does_not(spared: bool) -> None:
    """A transformer's last bias starts at 0; its norms were spared, as recipes have it, or not."""
    torch.manual_seed(0)
    body = [nn.Flatten(), nn.Linear(192, 64), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)]
    model = nn.Sequential(*body, nn.Linear(64, 10))
    nn.init.zeros_(model[-1].bias)  # type: ignore[arg-type]
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    F.cross_entropy(model(torch.rand(4, 3, 8, 8)), torch.tensor([0, 1, 5, 6])).backward()
    vectors = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0 if spared else 5e-4}]
    torch.optim.SGD(groups, lr=LR, weight_decay=5e-4).step()
    delta = {name: tensor.detach() - before[name] for name, tensor in model.named_parameters()}
    found = infer_weight_decay(model, before, delta, 10, (3, 8, 8))
    assert found.vectors != spared
    assert (", none off biases and norms" in found.words(LR)) == spared


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_layer_that_overflowed_is_refused_in_a_sentence_or_read(tmp_path: Path, value: float) -> None:
    """The last layer shows decay; in the other a stranger's file has a value that no decomposition bears."""
    made = checkpoints(weight_decay=5e-3)
    made[2]["2.weight"][0, 0] = value
    with pytest.raises(SeepageError, match=r"NaN|infinite|values of"):
        seen_of(tmp_path, made)


def test_values_whose_squares_overflow_tell_nothing() -> None:
    model, before, after, _ = checkpoints(weight_decay=5e-3)
    delta = {name: (after[name] - before[name]).double() for name in before}
    wide = {name: tensor.double() for name, tensor in before.items()}
    delta["2.weight"][0] = 1e300
    found = infer_weight_decay(model, wide, delta, 10, SHAPE)
    assert found.share == pytest.approx(5e-4, rel=1e-2)
