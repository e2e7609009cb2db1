"""The verbs from code: `record` or `observe`, `attack`, `score`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refusal
from torch import nn

import seepage
from seepage import (
    Batch,
    LinearLeak,
    SeepageError,
    Update,
    attack,
    observe,
    record,
    save_transcript,
    score,
)
from seepage.federation.types import Architecture


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))


MODEL = network()
BATCH = Batch(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([2]))


def test_three_lines_do_what_the_command_line_does() -> None:
    scores = score(attack(record(MODEL, BATCH), "linear"), BATCH)
    assert scores.exact == 1.0
    assert scores.psnr > 90


def test_recording_changes_nothing() -> None:
    state = {name: tensor.clone() for name, tensor in MODEL.state_dict().items()}
    seen = record(MODEL, BATCH)
    first = seen[0]
    before = torch.random.get_rng_state()
    attack(seen, "inverting_gradients", options={"steps": 3})
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in MODEL.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in MODEL.parameters())
    assert all(torch.equal(seen[0].update.tensors[name], tensor) for name, tensor in first.update.tensors.items())


def test_what_was_recorded_does_not_follow_the_model() -> None:
    model = network()
    seen = record(model, BATCH)
    before = seen[0].update.tensors["3.bias"].clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(seen[0].update.tensors["3.bias"], before)


def test_several_batches_are_several_rounds() -> None:
    other = Batch(torch.rand(2, 1, 8, 8), torch.tensor([0, 3]))
    seen = record(MODEL, [BATCH, other], known=["labels"])
    assert (len(seen), seen[0].batch_size, seen[1].batch_size) == (2, 1, 2)
    assert score(attack(seen, LinearLeak(), t=0), BATCH).exact == 1.0
    assert attack(seen, "linear", t=1).inputs.shape[1:] == (1, 8, 8)
    with pytest.raises(IndexError):
        attack(seen, "linear", t=2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: record(MODEL, []), "at least one private example"),
        (lambda: record(MODEL, Batch(torch.rand(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64))), "at least one"),
        (lambda: record(MODEL, Batch(torch.rand(1, 1, 8, 8), torch.tensor([4]))), "number the labels from 0 to 3"),
        (lambda: record(MODEL, Batch(torch.rand(1, 1, 8, 8), torch.tensor([-1]))), "number the labels from 0 to 3"),
        (lambda: record(MODEL, BATCH, value_range=(1.0, 0.0)), "value_range must rise"),
        (lambda: attack(record(MODEL, BATCH), "lineer"), "did you mean 'linear'"),
        (lambda: attack(record(MODEL, BATCH), "linear", options={"step": 1}), "no option 'step'"),
        (lambda: attack(record(MODEL, BATCH), "linear", options={"same": "x"}), "same must be a number"),
        (lambda: attack("no/such/folder", "linear"), "no knowledge.json"),
        (lambda: attack(record(MODEL, BATCH), "os:getcwd"), "not a seepage.Attack"),
        (lambda: observe(MODEL, Update({"w": torch.ones(1)}), (1, 8, 8)), "does not fit the model"),
        (lambda: save_transcript(record(MODEL, BATCH), Path("x")), "has no name to build it from"),
    ],
)
def test_mistakes_are_sentences(make: Any, words: str) -> None:
    with pytest.raises(SeepageError, match=words):
        make()


def test_a_folder_can_be_attacked_by_its_path(tmp_path: Path) -> None:
    architecture = Architecture("fc2", {"hidden": 16})
    model = seepage.build(architecture, (1, 8, 8), 4)
    save_transcript(record(model, BATCH, architecture=architecture), tmp_path / "observed")
    for folder in (tmp_path / "observed", str(tmp_path / "observed")):
        assert score(attack(folder, "linear"), BATCH).exact == 1.0


def stepped(model: nn.Module, lr: float) -> dict[str, torch.Tensor]:
    """The state of a model after one plain step of SGD; the model is put back."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    nn.functional.cross_entropy(model(BATCH.inputs), BATCH.labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    after = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    return after


def test_two_checkpoints_can_be_attacked() -> None:
    model = network()
    update = Update.from_states(model.state_dict(), stepped(model, 0.5))
    seen = observe(model, update, (1, 8, 8), batch_size=1, lr=0.5)
    assert score(attack(seen, "linear"), BATCH).psnr > 60
    truth = record(model, BATCH)[0].update.tensors
    for name, tensor in seen[0].update.tensors.items():
        torch.testing.assert_close(tensor, truth[name], atol=1e-5, rtol=1e-3)
    with pytest.raises(SeepageError, match="by minus the learning rate"):
        attack(observe(model, update, (1, 8, 8), batch_size=1), "linear")


def test_batch_norms_own_counts_are_no_part_of_an_update() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()(torch.rand(5, 1, 8, 8))
    seen = observe(model, Update.from_states(before, model.state_dict()), (1, 8, 8))
    assert set(seen[0].update.tensors) == {name for name, _ in model.named_parameters()}


def test_an_observed_update_knows_only_what_it_is_given() -> None:
    update = record(MODEL, BATCH)[0].update
    seen = observe(MODEL, update, (1, 8, 8))
    assert (seen.knowledge.known, seen[0].batch_size, seen[0].labels) == (frozenset(), None, None)
    assert seen.knowledge.num_classes == 4
    with refusal("no_batch_size", "--batch-size"):
        attack(seen, "inverting_gradients")
    known = observe(MODEL, update, (1, 8, 8), batch_size=1, labels=torch.tensor([2]))
    assert known.knowledge.known == frozenset({"labels"})
    found = attack(known, "inverting_gradients", options={"steps": 1, "labels": "given"})
    assert found.labels.tolist() == [2]


def test_everything_promised_is_there() -> None:
    for name in seepage.__all__:
        assert getattr(seepage, name) is not None
    assert sorted(set(seepage.__all__)) == sorted(seepage.__all__)


def test_a_model_of_other_inputs_is_told_in_a_sentence() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 4))
    update = Update({name: 0.01 * tensor for name, tensor in model.state_dict().items()}, kind="gradient")
    with pytest.raises(SeepageError, match=r"\(3, 32, 32\).*--shape"):
        observe(model, update, (3, 32, 32), batch_size=4)
