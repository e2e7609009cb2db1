"""What checkpoints around steps of Adam still tell: classes by signs, the batch's statistics, and members by rank."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.attacks.test_membership_more import assert_calibrated
from torch import Tensor, nn

from seepage import Architecture, Batch, FedAvg, FedSGD, build, observe, record
from seepage.attacks.exposure import UpdateAnalysis, batch_statistics
from seepage.attacks.membership import MatchedFilter, infer_membership
from seepage.attacks.search.distances import L2, Weighted, weighted
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.base.registry import Spec
from seepage.federation.measured import Step, read_update
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.types import Round, Tensors, Update

SHAPE, CLASSES = (3, 8, 8), 10


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.BatchNorm1d(32),
        nn.ReLU(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def some(n: int, seed: int, labels: list[int] | None = None) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randint(CLASSES, (n,), generator=draw)
    return Batch(torch.rand((n, *SHAPE), generator=draw), drawn if labels is None else torch.tensor(labels))


def trained(
    model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer, steps: int = 1
) -> tuple[Tensors, Tensors]:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), batch.labels).backward()
        optimizer.step()
    after = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    return before, after


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_class_whose_bias_rose_is_in_the_batch(name: str, steps: int) -> None:
    """Biases far from zero, so that weight decay has something to move."""
    there = right = 0
    for seed in range(10):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, CLASSES))
        with torch.no_grad():
            model[3].bias.uniform_(-0.5, 0.5)  # type: ignore[union-attr, operator]
        batch = some(6, seed)
        before, after = trained(model, batch, OPTIMIZERS[name](model.parameters()), steps)
        rule = FedAvg(lr=1e-3, optimizer="adam", steps=steps)
        found = UpdateAnalysis(observe(model, Update.from_states(before, after), SHAPE, client=rule)).labels
        assert found.counts is None
        own = set(batch.labels.tolist())
        assert set(found.present) <= own, seed
        there, right = there + len(own), right + len(found.present)
    assert right > 0.8 * there


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("decay", [0.0, 1e-4, 0.01])
def test_a_bias_that_weight_decay_lifts_names_no_class(decay: float, known: bool) -> None:
    """PyTorch's Adam adds the decay to the gradient, beside which the softmax of most of 300 classes is nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 300))
    with torch.no_grad():
        model[1].bias.uniform_(-0.5, 0.5)  # type: ignore[union-attr, operator]
        model[1].weight.mul_(100)  # type: ignore[union-attr, operator]
    batch = some(6, 0)
    before, after = trained(model, batch, torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=decay), 3)
    rule = FedAvg(lr=1e-3, optimizer="adam", steps=3)
    size = len(batch) if known else None
    seen = observe(model, Update.from_states(before, after), SHAPE, client=rule, batch_size=size)
    found = UpdateAnalysis(seen).labels
    assert found.present
    assert set(found.present) <= set(batch.labels.tolist())


def test_signs_are_read_where_a_first_step_looks_adaptive_and_nobody_said_so() -> None:
    model, batch = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, CLASSES)), some(4, 0)
    before, after = trained(model, batch, OPTIMIZERS["adam"](model.parameters()))
    found = UpdateAnalysis(observe(model, Update.from_states(before, after), SHAPE, lr=1e-3, batch_size=4)).labels
    assert set(found.present) == set(batch.labels.tolist())


def read_by(norm: nn.Module, model: nn.Module, inputs: Tensor) -> Tensor:
    """`[k, N]` what a norm reads of each channel, by a hook of PyTorch's own."""
    kept: list[Tensor] = []
    handle = norm.register_forward_pre_hook(lambda _, given: kept.append(given[0].detach()))
    model.train()
    model(inputs)
    handle.remove()
    return kept[0].transpose(0, 1).flatten(1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_running_statistics_give_the_batchs_own_whatever_the_optimizer(name: str) -> None:
    model, batch = network(), some(6, 1)
    before, after = trained(model, batch, OPTIMIZERS[name](model.parameters()))
    found = {one.norm: one for one in batch_statistics(model, before, after)}
    assert list(found) == ["1", "5"]
    for place, one in found.items():
        values = read_by(model.get_submodule(place), model, batch.inputs).double()
        model.load_state_dict(before)
        torch.testing.assert_close(one.mean, values.mean(1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.variance, values.var(1), rtol=1e-3, atol=1e-5)
        assert one.steps == 1


@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
def test_of_several_passes_their_weighted_average_is_read(momentum: float | None) -> None:
    norm = nn.BatchNorm1d(3, momentum=momentum)
    norm(torch.randn(5, 3))
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    batches = [torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    for batch in batches:
        norm(batch)
    (found,) = batch_statistics(norm, before, norm.state_dict())
    weights = torch.ones(3) if momentum is None else (1 - momentum) ** torch.arange(2.0, -1.0, -1.0)
    expected = sum(w * batch.mean(0) for w, batch in zip(weights, batches, strict=True)) / weights.sum()
    torch.testing.assert_close(found.mean.float(), expected)
    assert found.steps == 3


def test_norms_that_did_not_move_or_came_back_in_part_are_left_out() -> None:
    model = network()
    state = model.state_dict()
    assert batch_statistics(model, state, state) == []
    assert batch_statistics(model, state, {"1.running_mean": torch.ones(8)}) == []
    assert batch_statistics(model, state, {**state, "1.running_mean": torch.full((8,), torch.nan)}) == []


@pytest.mark.parametrize(
    "count", [None, torch.tensor(torch.nan), torch.tensor(torch.inf), torch.tensor(-3), torch.tensor(0)]
)
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_count_that_does_not_say_how_many_passes_there_were_tells_no_statistics(
    side: str, count: Tensor | None
) -> None:
    norm = nn.BatchNorm1d(3)
    states = {"before": {name: tensor.clone() for name, tensor in norm.state_dict().items()}}
    for _ in range(2):
        norm(torch.rand(4, 3))
    states["after"] = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    assert batch_statistics(norm, states["before"], states["after"])[0].steps == 2
    if side == "before" and count is not None and count == 0:
        return  # that is what it counted
    states[side] = {name: tensor for name, tensor in states[side].items() if name != "num_batches_tracked"}
    states[side] |= {} if count is None else {"num_batches_tracked": count}
    assert batch_statistics(norm, states["before"], states["after"]) == []


def test_captured_checkpoints_say_it(tmp_path: Path) -> None:
    named = Architecture("convnet", {"width": 4, "batch_norm": True})
    model, batch = build(named, SHAPE, CLASSES, seed=0), some(4, 3)
    states = trained(model, batch, OPTIMIZERS["adam"](model.parameters()))
    for name, state in zip(("before", "after"), states, strict=True):
        torch.save(state, tmp_path / f"{name}.pt")
    client = Spec("fedavg", {"optimizer": "adam", "lr": 1e-3, "steps": 1})
    paths = {name: tmp_path / f"{name}.pt" for name in ("before", "after")}
    capture = Capture(**paths, architecture=named, client=client, input_shape=SHAPE)
    remarks = observe_files(capture, tmp_path / "observed")
    said = read_facts(tmp_path / "observed").said
    assert any("batch norm" in remark and "returned running statistics" in remark for remark in remarks)
    assert "running statistics" in said["batch norm"]
    classes = said["labels"]
    assert all(str(label) in classes for label in set(batch.labels.tolist()))


@pytest.mark.slow  # 8 rounds of 400 gradients: a rate of false names takes that many
def test_members_of_a_step_of_adam_are_named_and_p_values_hold() -> None:
    model, named, nulls = nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES)), 0, []
    for seed in range(8):
        private, others = some(4, seed), some(150, 100 + seed)
        seen = record(model, private, client=FedAvg(lr=1e-3, optimizer="adam", steps=1, batch_size=4))
        both = Batch(*(torch.cat([getattr(b, what) for b in (private, others)]) for what in ("inputs", "labels")))
        found = infer_membership(seen, MatchedFilter(), both, some(240, 200 + seed))
        named += int((found.p_values[:4] <= 0.05).sum())
        nulls.append(found.p_values[4:])
    assert named > 24
    assert_calibrated(torch.cat(nulls))


def test_matching_weighs_entries_by_their_errors() -> None:
    """A made-up gradient of which one half of each tensor is known: what the other half holds does not matter."""
    draw, step = torch.Generator().manual_seed(0), Step.adam(1e-3)
    weights = {"w": 0.01 * torch.randn(200, generator=draw)}
    gradient = torch.cat([1e-4 * torch.randn(100, generator=draw), 1.0 + torch.rand(100, generator=draw)])
    moved = -step.rate * step.psi(gradient.double())
    after = (weights["w"].double() + moved).float()
    found = read_update(weights, {"w": after - weights["w"]}, step)
    sent = Update({"w": found.value["w"].float()}, step=step)
    near = weighted(L2(), Round(0, weights, sent), FedSGD())
    assert isinstance(near, Weighted)
    assert float(near.weights["w"][:100].median()) > 0.7
    assert float(near.weights["w"][100:].max()) == 0
    own = {"w": torch.cat([gradient[:100], torch.zeros(100)])}
    other = {"w": torch.cat([-gradient[:100], sent.tensors["w"][100:]])}
    assert float(near(own, sent.tensors)) < 0.1 * float(near(other, sent.tensors))
    assert weighted(L2(), Round(0, weights, Update(sent.tensors)), FedSGD()) == L2()
