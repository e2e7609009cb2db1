"""Transcripts: the folder gives back, bit by bit, what the simulation gave, and nothing that was not known."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from seepage import Batch, FedSGD, GaussianNoise, Sparsify, record
from seepage.errors import SeepageError
from seepage.federation.models import build
from seepage.federation.transcript.recorded import list_transcripts, open_transcript, save_transcript
from seepage.federation.transcript.simulated import OneRound, SimulatedTranscript
from seepage.federation.transcript.truth import open_truth, save_truth
from seepage.federation.types import Architecture, Round, Transcript, Update

ARCHITECTURE = Architecture("convnet", {"width": 3, "batch_norm": True})


def batches(count: int = 2, size: int = 3) -> list[Batch]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.tensor([2, 0, 1])[:size]
    return [Batch(torch.rand(size, 1, 8, 8, generator=draw), labels, torch.arange(size) + t) for t in range(count)]


def transcript(known: tuple[Any, ...] = (), defense: Any = None) -> SimulatedTranscript:
    model = build(ARCHITECTURE, (1, 8, 8), 3)
    return record(model, batches(), known=known, defense=defense, architecture=ARCHITECTURE, client=FedSGD(mode="eval"))


@pytest.mark.parametrize("switched_off", [torch.no_grad, torch.inference_mode])
def test_rounds_are_made_where_gradients_are_switched_off(switched_off: Any) -> None:
    seen = transcript()
    wanted = seen[0].update.tensors
    with switched_off():
        found = seen[0].update.tensors
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def assert_equal(one: Transcript, other: Transcript) -> None:
    assert len(one) == len(other)
    for t in range(len(one)):
        a, b = one[t], other[t]
        assert (a.t, a.batch_size, a.update.kind) == (b.t, b.batch_size, b.update.kind)
        for x, y in ((a.params, b.params), (a.buffers, b.buffers), (a.update.tensors, b.update.tensors)):
            assert list(x) == list(y), "in the same order, too"
            assert all(torch.equal(x[name], y[name]) and x[name].dtype == y[name].dtype for name in x)
        for p, q in ((a.labels, b.labels), (a.indices, b.indices)):
            assert (p is None and q is None) or (p is not None and q is not None and torch.equal(p, q))


@pytest.mark.parametrize("known", [(), ("labels",), ("labels", "indices")], ids=str)
@pytest.mark.parametrize("defense", [None, GaussianNoise(sigma=0.1)], ids=str)
def test_a_folder_gives_back_what_the_simulation_gave(known: tuple[Any, ...], defense: Any, tmp_path: Path) -> None:
    simulated = transcript(known, defense)
    save_transcript(simulated, tmp_path / "observed")
    recorded = open_transcript(tmp_path / "observed")
    assert_equal(simulated, recorded)
    assert recorded.knowledge.known == frozenset(known)
    for name in ("client", "input_shape", "num_classes", "value_range", "architecture"):
        assert getattr(recorded.knowledge, name) == getattr(simulated.knowledge, name)
    save_transcript(recorded, tmp_path / "again")
    for path in (tmp_path / "observed").rglob("*.*"):
        other = tmp_path / "again" / path.relative_to(tmp_path / "observed")
        if path.suffix == ".json":
            assert json.loads(path.read_text()) == json.loads(other.read_text())
        else:
            one, two = load_file(path), load_file(other)
            assert one.keys() == two.keys()
            assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_is_not_told_is_not_in_the_folder(tmp_path: Path) -> None:
    save_transcript(transcript(), tmp_path)
    truth = [tensor for batch in batches() for tensor in (batch.inputs, batch.labels, batch.indices)]
    for file in tmp_path.rglob("*.safetensors"):
        for name, tensor in load_file(file).items():
            assert name.partition("/")[0] in ("params", "buffers", "update", "kind")
            assert not any(
                kept is not None and kept.shape == tensor.shape and torch.equal(kept, tensor) for kept in truth
            )


def test_told_labels_come_without_the_order_of_the_batch() -> None:
    assert transcript(("labels",))[0].labels.tolist() == [0, 1, 2]
    assert transcript()[0].labels is None
    assert transcript()[0].indices is None


def test_rounds_are_made_anew_and_equal_and_the_defense_draws_for_each() -> None:
    noisy, plain = transcript(defense=GaussianNoise(sigma=1.0)), transcript()
    assert_equal(noisy, noisy)
    noise = [
        {name: noisy[t].update.tensors[name] - plain[t].update.tensors[name] for name in plain[t].params}
        for t in range(2)
    ]
    assert not any(torch.allclose(noise[0][name], noise[1][name], atol=0.1) for name in noise[0])
    kept = transcript(defense=Sparsify(keep=0.5))[0].update.tensors
    assert all(
        int((tensor != 0).sum()) <= round(0.5 * tensor.numel()) or tensor.numel() == 1 for tensor in kept.values()
    )


def test_a_model_that_changes_from_round_to_round_is_kept(tmp_path: Path) -> None:
    first = transcript()
    other = {name: tensor + 1 for name, tensor in first[0].params.items()}
    rounds = [first[0], Round(1, other, first[1].update, first[1].buffers, 3)]
    save_transcript(SimulatedTranscript(first.knowledge, rounds.__getitem__, 2), tmp_path)
    recorded = open_transcript(tmp_path)
    for t in range(2):
        assert all(torch.equal(recorded[t].params[name], rounds[t].params[name]) for name in other)
    assert not [name for name in load_file(tmp_path / "rounds/000000.safetensors") if name.startswith("params")]


def test_a_difference_of_weights_stays_one(tmp_path: Path) -> None:
    first = transcript()
    sent = Round(0, first[0].params, Update(first[0].update.tensors, "delta"), first[0].buffers, 3)
    save_transcript(SimulatedTranscript(first.knowledge, lambda t: sent, 1), tmp_path)
    assert open_transcript(tmp_path)[0].update.kind == "delta"


@pytest.mark.parametrize("t", [-1, 2, 99])
def test_a_round_that_is_not_there_is_an_index_error(t: int, tmp_path: Path) -> None:
    save_transcript(transcript(), tmp_path)
    for seen in (transcript(), open_transcript(tmp_path), OneRound(transcript(), 1)):
        with pytest.raises(IndexError):
            seen[t]
    assert len(list(iter(transcript()))) == 2


def test_one_round_of_a_transcript() -> None:
    whole = transcript()
    one = OneRound(whole, 1)
    assert (len(one), one[0].t, one.knowledge) == (1, 1, whole.knowledge)


def test_a_model_without_a_name_cannot_be_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(SeepageError, match="architecture=Architecture"):
        save_transcript(record(model, batches()), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_client_rule_that_no_path_leads_to_cannot_be_saved(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(FedSGD):
        pass

    model = build(ARCHITECTURE, (1, 8, 8), 3)
    own = record(model, batches(), client=Mine(), architecture=ARCHITECTURE)
    with pytest.raises(SeepageError, match=r"Mine .*fedavg, fedprox, fedsgd"):
        save_transcript(own, tmp_path / "x")
    assert not (tmp_path / "x" / "knowledge.json").exists()


def test_another_architecture_with_the_same_parameters_can_be_named(tmp_path: Path) -> None:
    save_transcript(transcript(), tmp_path)
    opened = open_transcript(tmp_path, architecture=Architecture("convnet"))
    assert opened.knowledge.architecture == ARCHITECTURE, "the recorded options, where only the name was given"
    with pytest.raises(SeepageError, match="'convnet'"):
        open_transcript(tmp_path, architecture=Architecture("convnet", {"width": 4, "batch_norm": True}))


def test_a_batch_size_is_given_only_where_there_is_none(tmp_path: Path) -> None:
    save_transcript(transcript(), tmp_path)
    assert open_transcript(tmp_path, batch_size=3)[0].batch_size == 3
    with pytest.raises(SeepageError, match="batch size 3, not 4"):
        open_transcript(tmp_path, batch_size=4)
    record_ = json.loads((tmp_path / "knowledge.json").read_text())
    (tmp_path / "knowledge.json").write_text(json.dumps({**record_, "batch_size": None}))
    assert open_transcript(tmp_path)[0].batch_size is None
    assert open_transcript(tmp_path, batch_size=4)[0].batch_size == 4
    with pytest.raises(SeepageError, match=r"--batch-size.*1000000000000"):
        open_transcript(tmp_path, batch_size=10**12)


def test_keys_of_a_later_version_are_left_alone(tmp_path: Path) -> None:
    save_transcript(transcript(), tmp_path)
    record_ = json.loads((tmp_path / "knowledge.json").read_text())
    (tmp_path / "knowledge.json").write_text(json.dumps({**record_, "newer": {"x": 1}}))
    assert len(open_transcript(tmp_path)) == 2


def test_transcripts_are_found_at_or_below_a_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("b", "a"):
        save_transcript(transcript(), run / "observed" / name)
    assert [path.name for path in list_transcripts(run)] == ["a", "b"]
    assert list_transcripts(run / "observed") == list_transcripts(run)
    assert list_transcripts(run / "observed" / "b") == [run / "observed" / "b"]
    (tmp_path / "empty").mkdir()
    for name, words in (("empty", "holds no recorded update"), ("none", "is no folder"), ("x.pt", "is a pickle")):
        with pytest.raises(SeepageError, match=words):
            list_transcripts(tmp_path / name)


def test_the_truth_comes_back(tmp_path: Path) -> None:
    for count in (1, 11):
        save_truth(batches(count), tmp_path)
        found = open_truth(tmp_path)
        assert len(found) == count
        for one, other in zip(found, batches(count), strict=True):
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.labels, other.labels)
            assert one.indices is not None
            assert torch.equal(one.indices, other.indices)


def test_a_truth_without_labels_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"000000/inputs": torch.rand(1, 2)}, tmp_path / "truth.safetensors")
    with pytest.raises(SeepageError, match="'000000/labels'"):
        open_truth(tmp_path)


def test_frozen_parameters_are_recorded_with_the_rest(tmp_path: Path) -> None:
    architecture = Architecture("fc2", {"hidden": 5})
    model = build(architecture, (1, 4, 4), 3, seed=7)
    first = next(model.parameters())
    first.requires_grad_(False)
    batch = Batch(torch.rand(2, 1, 4, 4), torch.tensor([0, 2]))
    seen = record(model, batch, architecture=architecture)
    save_transcript(seen, tmp_path)
    again = open_transcript(tmp_path)
    assert torch.equal(next(again.knowledge.model.parameters()), first)
    assert set(again[0].params) == set(seen[0].params)
    mine = FedSGD()(again.knowledge.model, again[0].params, batch)
    assert all(torch.equal(mine.tensors[name], tensor) for name, tensor in again[0].update.tensors.items())


def test_soft_labels_are_told_whole_and_without_the_batchs_order() -> None:
    soft = torch.tensor([[0.1, 0.9], [0.7, 0.3]])
    seen = record(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), Batch(torch.rand(2, 1, 4, 4), soft), known=["labels"])
    assert torch.equal(seen[0].labels, soft.flip(0))  # type: ignore[arg-type]
