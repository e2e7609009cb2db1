"""Recipes with `[rounds]`: one data set, known indices, from the recipe to the row."""

import gc
import json
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import pytest
import torch

from seepage import Batch, SeepageError
from seepage.audit.attack import attack_cases, own_source
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.resolve import resolve_cases, resolved
from seepage.audit.record import record_cases
from seepage.audit.recorded import AttackRequest, attack_only
from seepage.audit.run import record_only, run
from seepage.audit.simulate.setting import Setting, SharedParts
from seepage.base.storage import write_tensors
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.transcript.truth import Truth, misfit, open_truth, save_truth

VERTICAL: dict[str, Any] = {
    "data": {"use": "digits", "size": 8},
    "model": {"use": "vertical", "channels": 32, "hidden": 48},
    "batch": {"size": 5},
    "rounds": {"design": "epochs", "count": 12, "samples": 12},
    "knowledge": {"known": ["indices"]},
    "attack": [{"use": "cafe"}],
}


def test_rounds_are_checked_with_the_recipe() -> None:
    def mistakes(**rounds: Any) -> str:
        with pytest.raises(SeepageError) as caught:
            resolve_cases({**VERTICAL, "rounds": rounds})
        return str(caught.value)

    assert "must be smaller than the data set" in mistakes(samples=5)
    assert "'spiral'" in mistakes(design="spiral")
    assert "lower rounds.count" in mistakes(design="partitions", samples=12, count=99)
    assert "rounds.samples must be at least 2" in mistakes(samples=1)
    assert "lr must be a number > 0" in mistakes(samples=12, optimizer="sgd", lr=0.0)


def test_a_case_is_one_more_case_over_the_recipes_own_tables() -> None:
    tables = {
        "data": {"use": "digits", "size": 8},
        "model": {"use": "fc2", "hidden": 7},
        "attack": [{"use": "linear"}],
        "grid": {"batch.size": [1, 2]},
        "case": [{"name": "other", "model": {"use": "lenet"}, "data": {"size": 9}, "batch": {"size": 3}}],
    }
    first, second, third = resolve_cases(tables)
    assert [first.case, second.case, third.case] == ["size-1", "size-2", "other"]
    assert (third.model.use, dict(third.model.options)) == ("lenet", {})
    assert (third.data.use, dict(third.data.options)) == ("digits", {"size": 9})
    assert (first.model.options, third.batch.size, third.attack) == ({"hidden": 7}, 3, first.attack)
    again = resolve_cases(__import__("tomllib").loads(resolved(tables, [first, second, third])))
    assert again == [first, second, third]
    for wrong, says in (({"model": {}}, "needs a name"), ({"name": "x", "score": {}}, "cannot set score")):
        with pytest.raises(SeepageError, match=says):
            resolve_cases({**tables, "case": [wrong]})


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


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["none", "sgd"])
def test_recorded_rounds_are_the_simulated_ones_and_an_attack_has_no_way_to_the_truth(
    tmp_path: Path, optimizer: str
) -> None:
    tables = {**VERTICAL, "rounds": {**VERTICAL["rounds"], "optimizer": optimizer, "lr": 1e-2}}
    recipes = resolve_cases(tables)
    victim, truth = Setting.of(recipes[0], SharedParts()).victim()
    record_cases(recipes, tmp_path)
    source = own_source(recipes[0], recipes, tmp_path).for_attack()
    assert source.private is None
    here, there, private = victim.transcript(), source.open("cpu"), truth.whole.inputs
    assert any(isinstance(one, torch.Tensor) and one.shape == private.shape for one in reachable(here))
    assert len(here) == len(there) == 12
    for t in (3, 0, 11):
        one, other = here[t], there[t]
        assert torch.equal(one.indices, other.indices)  # type: ignore[arg-type]
        assert one.batch_size == other.batch_size == (2 if t % 3 == 2 else 5)
        for mine, its in ((one.update.tensors, other.update.tensors), (one.params, other.params)):
            assert all(torch.equal(mine[name], its[name]) for name in mine), t
        name = next(iter(one.params))
        assert torch.allclose(here.select(t, [name])[name], there.select(t, [name])[name], atol=1e-7)  # type: ignore[union-attr]
        assert torch.equal(here.params(t)[name], there.params(t)[name])  # type: ignore[union-attr]
    held = [one for one in reachable(there) if isinstance(one, torch.Tensor)]
    assert len(held) > 10
    assert not [one for one in held if one.ndim == 4 and one.shape[1:] == private.shape[1:]]
    assert not [one for one in reachable(there) if isinstance(one, (Batch, Recipe, Truth))]


@pytest.mark.slow
def test_attacks_on_rounds_never_open_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = resolve_cases(VERTICAL)
    record_cases(recipes, tmp_path)
    source = own_source(recipes[0], recipes, tmp_path)

    def refuse(*_: Any) -> None:
        raise AssertionError("the truth was opened for an attack")

    monkeypatch.setattr("seepage.federation.transcript.truth.open_truth", refuse)
    attack_cases([source], tmp_path, 1)
    found = json.loads((tmp_path / "attacks/case/cafe/000000.json").read_text("utf-8"))
    # Whether CAFE certifies every sample of this small network depends on the processor's rounding.
    assert (found["status"] in ("ok", "exhausted"), found["reason"]) == (True, None)


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["none", "sgd"])
def test_an_audit_of_rounds_scores_all_samples(tmp_path: Path, optimizer: str) -> None:
    tables = {**VERTICAL, "rounds": {**VERTICAL["rounds"], "optimizer": optimizer, "lr": 1e-6}}
    tables["attack"] = [{"use": "cafe"}, {"use": "inverting_gradients", "steps": 3}]
    found = run(tables, out=tmp_path / "run", jobs=1)
    cafe, matching = found.result.record()["rows"]
    assert (cafe["examples"], matching["examples"]) == (12, 5)
    assert (cafe["cost"]["rounds"], cafe["side_information"], cafe["known"][-1]) == (12, [], "indices")
    assert "the protocol shows the indices of each batch" in found.result.record()["verdict"]
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


@pytest.mark.full
def test_a_recorded_folder_of_rounds_is_attacked_without_the_truth(tmp_path: Path) -> None:
    folder = record_only(VERTICAL, out=tmp_path / "recorded")
    found = attack_only(folder / "observed", AttackRequest(attacks=[{"use": "cafe"}], out=tmp_path / "run", jobs=1))
    (row,) = found.result.record()["rows"]
    assert (row["scores"], row["examples"]) == ({}, None)
    assert row["status"] in ("ok", "exhausted")  # certified or not, by the processor's rounding
    assert row["returned"] >= 10


def test_a_case_that_cannot_be_recorded_is_left_out_with_its_reason(tmp_path: Path) -> None:
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
