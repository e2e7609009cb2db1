"""Recipes with `[rounds]`: one data set, known indices, from the recipe to the row."""

import gc
import io
import json
import pickle
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from seepage import Batch, SeepageError
from seepage.audit.attack import attack_cells, own_source
from seepage.audit.record import record_cells
from seepage.audit.recorded import AttackRequest, attack_only
from seepage.audit.run import record_only, run
from seepage.audit.serving import ServedTranscript
from seepage.core.storage import write_tensors
from seepage.recipe.case import Recipe
from seepage.recipe.resolve import cells, resolved
from seepage.transcript.recorded import open_transcript
from seepage.transcript.truth import Truth, misfit, open_truth, save_truth

VERTICAL: dict[str, Any] = {
    "data": {"use": "digits", "size": 8},
    "model": {"use": "vertical", "channels": 32, "hidden": 48},
    "batch": {"size": 5},
    "rounds": {"design": "epochs", "count": 12, "samples": 12},
    "knowledge": {"told": ["indices"]},
    "attack": [{"use": "cafe"}],
}


def test_rounds_are_checked_with_the_recipe() -> None:
    def mistakes(**rounds: Any) -> str:
        with pytest.raises(SeepageError) as caught:
            cells({**VERTICAL, "rounds": rounds})
        return str(caught.value)

    assert "must be smaller than the data set" in mistakes(samples=5)
    assert "'spiral'" in mistakes(design="spiral")
    assert "lower rounds.count" in mistakes(design="partitions", samples=12, count=99)
    assert "rounds.samples at least 2" in mistakes(samples=1)
    assert "lr > 0" in mistakes(samples=12, optimizer="sgd", lr=0.0)


def test_a_case_is_one_more_cell_over_the_recipes_own_tables() -> None:
    tables = {
        "data": {"use": "digits", "size": 8},
        "model": {"use": "fc2", "hidden": 7},
        "attack": [{"use": "linear"}],
        "grid": {"batch.size": [1, 2]},
        "case": [{"name": "other", "model": {"use": "lenet"}, "data": {"size": 9}, "batch": {"size": 3}}],
    }
    first, second, third = cells(tables)
    assert [first.cell, second.cell, third.cell] == ["size-1", "size-2", "other"]
    assert (third.model.use, dict(third.model.options)) == ("lenet", {})
    assert (third.data.use, dict(third.data.options)) == ("digits", {"size": 9})
    assert (first.model.options, third.batch.size, third.attack) == ({"hidden": 7}, 3, first.attack)
    again = cells(__import__("tomllib").loads(resolved(tables, [first, second, third])))
    assert again == [first, second, third]
    for wrong, says in (({"model": {}}, "needs a name"), ({"name": "x", "score": {}}, "cannot set score")):
        with pytest.raises(SeepageError, match=says):
            cells({**tables, "case": [wrong]})


@pytest.mark.slow
def test_rounds_made_anew_are_those_that_are_kept(tmp_path: Path) -> None:
    recipes = cells(VERTICAL)
    record_cells(recipes, tmp_path / "kept")
    record_cells(recipes, tmp_path / "anew", keep=0)
    assert not list((tmp_path / "anew").rglob("rounds/*"))
    kept, anew = (own_source(recipes[0], recipes, tmp_path / name) for name in ("kept", "anew"))
    assert (kept.kept, anew.kept) == (True, False)
    assert kept.for_attack().private is None
    a, b = kept.open("cpu"), anew.open("cpu")
    assert len(a) == len(b) == 12
    for t in range(12):
        assert torch.equal(a[t].indices, b[t].indices)  # type: ignore[arg-type]
        assert torch.equal(a.indices(t), b.indices(t))  # type: ignore[arg-type]
        assert a[t].batch_size == b[t].batch_size == (2 if t % 3 == 2 else 5)
        for name, tensor in a[t].update.tensors.items():
            assert torch.equal(tensor, b[t].update.tensors[name]), name
            assert torch.allclose(a.select(t, [name])[name], b.select(t, [name])[name], atol=1e-7)
    with pytest.raises(SeepageError, match="holds no rounds"):
        open_transcript(anew.observed)


def reachable(start: object) -> list[Any]:
    """Everything that code which holds an object can get at through it, but for modules and classes."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [start]
    while waiting:
        one = waiting.pop()
        if id(one) in found or isinstance(one, (type, ModuleType, FunctionType, BuiltinFunctionType)):
            continue
        found[id(one)] = one
        waiting += gc.get_referents(one)
    return list(found.values())


def test_a_process_that_ends_in_the_middle_of_an_answer_is_no_outcome_of_the_attack() -> None:
    answer = pickle.dumps((True, ({"weight": torch.arange(6.0)}, {}, "gradient", None, 3, None, torch.arange(3))))
    for end in range(len(answer)):
        ended = SimpleNamespace(stdin=io.BytesIO(), stdout=io.BytesIO(answer[:end]))
        rounds = ServedTranscript(None, ({}, {}), 1, "cpu", ended)  # type: ignore[arg-type]
        with pytest.raises(SeepageError, match="has ended"):
            rounds[0]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["none", "sgd"])
def test_an_attack_on_rounds_made_anew_has_no_way_to_the_truth(tmp_path: Path, optimizer: str) -> None:
    """They come from a process of their own, as they come from the one that has the truth, bit by bit."""
    tables = {**VERTICAL, "rounds": {**VERTICAL["rounds"], "optimizer": optimizer, "lr": 1e-2}}
    recipes = cells(tables)
    record_cells(recipes, tmp_path, keep=0)
    source = own_source(recipes[0], recipes, tmp_path)
    here, private = source.open("cpu"), open_truth(tmp_path / "private").whole.inputs
    assert any(isinstance(one, torch.Tensor) and one.shape == private.shape for one in reachable(here))
    with source.for_attack().opened("cpu", torch.get_num_threads()) as there:
        assert len(here) == len(there) == 12
        for t in (3, 0, 11):
            one, other = here[t], there[t]
            assert torch.equal(one.indices, other.indices)  # type: ignore[arg-type]
            assert one.batch_size == other.batch_size
            for mine, its in ((one.update.tensors, other.update.tensors), (one.params, other.params)):
                assert all(torch.equal(mine[name], its[name]) for name in mine), t
            name = next(iter(one.params))
            assert torch.equal(here.select(t, [name])[name], there.select(t, [name])[name])  # type: ignore[attr-defined]
            assert torch.equal(here.params(t)[name], there.params(t)[name])  # type: ignore[attr-defined]
        held = [one for one in reachable(there) if isinstance(one, torch.Tensor)]
        assert len(held) > 10
        assert not [one for one in held if one.ndim == 4 and one.shape[1:] == private.shape[1:]]
        assert not [one for one in reachable(there) if isinstance(one, (Batch, Recipe, Truth))]
        process = there._process  # type: ignore[attr-defined]
        assert process.poll() is None
    assert process.poll() == 0, "it ends with the attack"


@pytest.mark.slow
def test_attacks_on_rounds_made_anew_never_open_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = cells(VERTICAL)
    record_cells(recipes, tmp_path, keep=0)
    source = own_source(recipes[0], recipes, tmp_path)

    def refuse(*_: Any) -> None:
        raise AssertionError("the truth was opened in the attack's process")

    monkeypatch.setattr("seepage.audit.attack.made_anew", refuse)
    monkeypatch.setattr("seepage.audit.record.open_truth", refuse)
    attack_cells([source], recipes, tmp_path, 1)
    found = json.loads((tmp_path / "attacks/cell/cafe/000000.json").read_text("utf-8"))
    assert (found["status"], found["reason"]) == ("ok", None)


@pytest.mark.slow
def test_a_process_that_has_ended_is_said(tmp_path: Path) -> None:
    recipes = cells(VERTICAL)
    record_cells(recipes, tmp_path, keep=0)
    source = own_source(recipes[0], recipes, tmp_path).for_attack()
    with source.opened("cpu", 1) as there:
        there._process.kill()  # type: ignore[attr-defined]
        there._process.wait()  # type: ignore[attr-defined]
        with pytest.raises(SeepageError, match="has ended"):
            there[0]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["none", "sgd"])
def test_an_audit_of_rounds_scores_all_samples(tmp_path: Path, optimizer: str) -> None:
    tables = {**VERTICAL, "rounds": {**VERTICAL["rounds"], "optimizer": optimizer, "lr": 1e-6}}
    tables["attack"] = [{"use": "cafe"}, {"use": "inverting_gradients", "steps": 3}]
    found = run(tables, out=tmp_path / "run", jobs=1)
    cafe, matching = found.result.record()["rows"]
    assert (cafe["examples"], matching["examples"]) == (12, 5)
    assert (cafe["cost"]["rounds"], cafe["told_extra"], cafe["told"][-1]) == (12, [], "indices")
    assert "which here shows the indices of each batch" in found.result.record()["verdict"]
    assert cafe["scores"]["exact"]["mean"] > 0.7
    assert cafe["inner"]["v"] < 1e-3
    assert cafe["inner"]["h"] < 1e-3
    assert cafe["certified"]["wrong"] == 0
    assert not matching["inner"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "scores.jsonl").read_text().splitlines()]
    drawn = open_truth(tmp_path / "run" / "private").of_round(0).indices
    assert drawn is not None
    of_matching = {line["example"] for line in lines if line["attack"] == "inverting_gradients"}
    assert of_matching == set(drawn.tolist())
    assert {line["example"] for line in lines if line["attack"] == "cafe"} == set(range(12))


@pytest.mark.slow
def test_a_recorded_folder_of_rounds_is_attacked_without_the_truth(tmp_path: Path) -> None:
    folder = record_only(VERTICAL, out=tmp_path / "recorded")
    found = attack_only(folder / "observed", AttackRequest(attacks=[{"use": "cafe"}], out=tmp_path / "run", jobs=1))
    (row,) = found.result.record()["rows"]
    assert (row["status"], row["scores"], row["examples"]) == ("ok", {}, None)
    assert row["returned"] >= 10


def test_a_cell_that_cannot_be_recorded_is_left_out_with_its_reason(tmp_path: Path) -> None:
    tables = {
        "data": {"use": "digits", "size": 8},
        "training": {"steps": 0},
        "attack": [{"use": "linear"}],
        "grid": {"batch": [{"size": 1}, {"size": 4000}]},
    }
    found = run(tables, out=tmp_path / "run", jobs=1)
    good, left_out = found.result.record()["rows"]
    assert (good["status"], good["scores"]["exact"]["mean"]) == ("ok", 1.0)
    assert left_out["status"] == "inapplicable"
    assert "need 4000 private examples" in left_out["reason"]
    assert set(good) == set(left_out)
    assert "no attack gave a result" in found.result.record()["verdict"]
    again = run(tables, out=tmp_path / "run", jobs=1)
    assert not again.fresh
    with pytest.raises(SeepageError, match="need 4000"):
        run({**tables, "grid": {"batch": [{"size": 4000}]}}, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_truth_of_rounds_survives_the_disk_and_damage_is_named(tmp_path: Path) -> None:
    data = Batch(torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 2, 0]), torch.arange(4))
    truth = Truth((data,), torch.tensor([[0, 1, 2], [3, -1, -1]]))
    save_truth(truth, tmp_path)
    again = open_truth(tmp_path)
    assert again.rounds == 2
    assert torch.equal(again.of_round(1).inputs, data.inputs[3:])
    assert torch.equal(again.whole.inputs, data.inputs)
    for draws in (torch.tensor([[4]]), torch.tensor([[-2]]), torch.tensor([[-1]]), torch.tensor([1]), torch.rand(1, 1)):
        tensors = {"data/inputs": data.inputs, "data/labels": data.labels, "data/draws": draws}
        write_tensors(tmp_path / "truth.safetensors", tensors)
        with pytest.raises(SeepageError, match="which of its 4 examples"):
            open_truth(tmp_path)
    batches = Truth((data, data))
    assert len(batches.whole) == 8
    assert batches.whole.indices is not None


def test_a_truth_of_something_else_is_named(tmp_path: Path) -> None:
    folder = record_only(VERTICAL, out=tmp_path / "recorded")
    truth, transcript = open_truth(folder / "private"), open_transcript(folder / "observed")
    knowledge = transcript.knowledge
    assert misfit(truth, 12, [5], knowledge) is None
    assert "12 batches and the recording has 8" in str(misfit(truth, 8, [5], knowledge))
    assert "expected (4, 1, 8, 8)" in str(misfit(truth, 12, [4], knowledge))
