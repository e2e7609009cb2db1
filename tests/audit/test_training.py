"""Training by hand, and by `training.train`: the same numbers."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage.audit.recipe.plans import Training
from seepage.audit.simulate.training import TrainingCheckpoint, accuracy, train
from seepage.base.nn import generator, state_of
from seepage.errors import SeepageError
from seepage.federation.types import Batch

INPUTS = torch.rand(20, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20) % 3


def batch_of(indices: torch.Tensor) -> Batch:
    return Batch(INPUTS[indices], LABELS[indices], indices)


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))


def test_training_is_sgd_with_momentum_on_a_plain_copy() -> None:
    model, plan, pool = network(), Training(steps=4, lr=0.1, batch_size=5), torch.arange(3, 15)
    before = copy.deepcopy(model.state_dict())
    params, buffers = train(model, state_of(model), batch_of, pool, plan, seed=7)
    plain = copy.deepcopy(model).train()
    plain[3].eval()
    optimizer, draw = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), generator(7, "training")
    for _ in range(4):
        chosen = pool[torch.randperm(len(pool), generator=draw)[:5]]
        optimizer.zero_grad()
        F.cross_entropy(plain(INPUTS[chosen]), LABELS[chosen]).backward()
        optimizer.step()
    wanted = plain.state_dict()
    assert set(params) | set(buffers) == set(wanted)
    for name, tensor in {**params, **buffers}.items():
        torch.testing.assert_close(tensor, wanted[name])
        assert not tensor.requires_grad
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), "the model itself is not changed"


def test_only_the_pool_is_trained_on_and_no_step_changes_nothing() -> None:
    model, seen = network(), []

    def watched(indices: torch.Tensor) -> Batch:
        seen.append(indices)
        return batch_of(indices)

    train(model, state_of(model), watched, torch.tensor([2, 5, 9, 11]), Training(steps=6, batch_size=3), seed=0)
    assert len(seen) == 6
    assert set(torch.cat(seen).tolist()) <= {2, 5, 9, 11}
    params, buffers = train(model, state_of(model), watched, torch.arange(3), Training(), seed=0)
    assert len(seen) == 6
    for name, tensor in {**params, **buffers}.items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_a_pool_smaller_than_the_batch_is_used_whole() -> None:
    sizes = []
    model = network()
    train(
        model,
        state_of(model),
        lambda i: (sizes.append(len(i)), batch_of(i))[1],
        torch.arange(4),
        Training(steps=2),
        seed=0,
    )
    assert sizes == [4, 4]


def test_the_seed_alone_decides_what_is_drawn() -> None:
    model = network()
    runs = [
        train(model, state_of(model), batch_of, torch.arange(20), Training(steps=2, batch_size=4), seed=seed)[0]
        for seed in (1, 1, 2)
    ]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert not all(torch.equal(runs[0][name], runs[2][name]) for name in runs[0])


def test_a_loss_that_is_not_finite_is_a_sentence_with_a_lower_rate() -> None:
    model = network()
    with pytest.raises(SeepageError, match=r"\d+ steps.*=1e\+29"):
        train(model, state_of(model), batch_of, torch.arange(20), Training(steps=9, lr=1e30), seed=0)


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"lr": 0.0}, {"lr": -1.0}, {"batch_size": 0}])
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SeepageError, match=r"\[training\]: .* must be a .*number >=? [01], got"):
        Training(**wrong)  # type: ignore[arg-type]


def test_accuracy_is_a_count_in_eval_mode() -> None:
    model = network()
    params, buffers = state_of(model)
    with torch.no_grad():
        right = (copy.deepcopy(model).eval()(INPUTS).argmax(1) == LABELS).sum().item()
    assert accuracy(model, (params, buffers), batch_of(torch.arange(20))) == pytest.approx(right / 20)
    assert model.training


def test_adam_takes_torchs_own_steps() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    inputs, labels = torch.rand(8, 3), torch.arange(8) % 2
    state = ({name: p.detach().clone() for name, p in model.named_parameters()}, {})
    plan = Training(steps=3, lr=0.1, batch_size=8, optimizer="adam")
    found, _ = train(model, state, lambda chosen: Batch(inputs[chosen], labels[chosen]), torch.arange(8), plan, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    assert all(torch.allclose(found[name], p, atol=1e-5) for name, p in model.named_parameters())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_training_killed_anywhere_goes_on_with_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    model, plan = network(), Training(steps=9, lr=0.05, batch_size=5, optimizer=optimizer)  # type: ignore[arg-type]
    whole = train(model, state_of(model), batch_of, torch.arange(20), plan, seed=3)

    class Killed(Exception):
        pass

    def kill(done: int, total: int) -> None:
        if done % 4 == 0:
            raise Killed

    path, kills = tmp_path / "training.safetensors", 0
    while True:
        try:
            checkpoint = TrainingCheckpoint(path, pause=0.0)
            found = train(
                model, state_of(model), batch_of, torch.arange(20), plan, seed=3, progress=kill, checkpoint=checkpoint
            )
            break
        except Killed:
            kills += 1
    assert kills == 2
    for ours, wanted in zip(found, whole, strict=True):
        assert all(torch.equal(ours[name], wanted[name]) for name in wanted)
    # A finished training is opened and not repeated.
    seen: list[int] = []
    train(model, state_of(model), batch_of, torch.arange(20), plan, seed=3, progress=lambda done, _: seen.append(done),
          checkpoint=TrainingCheckpoint(path))  # fmt: skip
    assert seen == []


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    path, plan = tmp_path / "training.safetensors", Training(steps=1)
    model, other = network(), torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 3))
    train(model, state_of(model), batch_of, torch.arange(20), plan, seed=3, checkpoint=TrainingCheckpoint(path))
    with pytest.raises(SeepageError, match="the checkpoint"):
        train(other, state_of(other), batch_of, torch.arange(20), plan, seed=3, checkpoint=TrainingCheckpoint(path))
