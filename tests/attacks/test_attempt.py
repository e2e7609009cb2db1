"""Outcomes and checkpoints on disk: as they were, or not there."""

import json
from pathlib import Path

import pytest
import torch

from seepage.attacks.base import Checkpoint
from seepage.audit.attempt import Attempt, FolderProgress, has_attempt, open_attempt, save_attempt, tried
from seepage.audit.membership import Judgment, make_membership_row, open_judgment, save_judgment
from seepage.errors import SeepageError, refuse
from seepage.federation.types import Reconstruction

FULL = Reconstruction(
    torch.rand(2, 1, 3, 3),
    labels=torch.tensor([4, 2]),
    indices=torch.tensor([7, 9]),
    ambiguity=frozenset({"order", "sign"}),
    objective=torch.tensor([0.5, 0.25]),
    status="exhausted",
    history=((0, 1.5), (10, 0.25)),
    cost={"steps": 10, "evaluations": 20},
    notes=("one.", "two."),
)


@pytest.mark.parametrize("found", [FULL, Reconstruction(torch.zeros(0, 4), space="feature")], ids=["full", "bare"])
def test_a_reconstruction_comes_back_as_it_was(found: Reconstruction, tmp_path: Path) -> None:
    outcome = Attempt(found.status, "Attack(x=1)", found, None, 1.2345, 0.9)
    save_attempt(outcome, tmp_path / "a" / "000000")
    again = open_attempt(tmp_path / "a" / "000000")
    assert (again.status, again.attack, again.reason) == (found.status, "Attack(x=1)", None)
    assert (again.seconds, again.cpu_seconds) == (1.234, 0.9)
    assert again.reconstruction is not None
    for name in ("inputs", "labels", "indices", "objective"):
        old, new = getattr(found, name), getattr(again.reconstruction, name)
        assert (old is None and new is None) or torch.equal(old, new)
    for name in ("space", "ambiguity", "status", "history", "cost", "notes"):
        assert getattr(again.reconstruction, name) == getattr(found, name)


def test_an_attack_that_does_not_apply_leaves_its_reason_and_its_name(tmp_path: Path) -> None:
    refused = Attempt("inapplicable", "Attack()", None, "no bias; use another", refusal="no_bias")
    assert not has_attempt(tmp_path / "000003")
    save_attempt(refused, tmp_path / "000003")
    assert has_attempt(tmp_path / "000003")
    assert [path.name for path in tmp_path.iterdir()] == ["000003.json"]
    assert open_attempt(tmp_path / "000003") == refused


def test_a_membership_test_that_does_not_apply_leaves_the_name_in_its_row(tmp_path: Path) -> None:
    def refuses() -> None:
        raise refuse("no_bias")("no bias", "use another")

    _, status, reason, refusal, _ = tried(refuses)
    save_judgment(Judgment(status, "Test()", reason=reason, refusal=refusal), tmp_path / "test")
    row = make_membership_row("case", "test", open_judgment(tmp_path / "test"), [], 0.05, seed=0)
    assert (row.status, row.reason, row.refusal) == ("inapplicable", "no bias; use another", "no_bias")


def test_an_outcome_is_whole_only_with_its_json(tmp_path: Path) -> None:
    save_attempt(Attempt("ok", "Attack()", FULL), tmp_path / "000000")
    (tmp_path / "000000.json").unlink()
    assert not has_attempt(tmp_path / "000000")


@pytest.mark.parametrize("key", ["status", "attack", "ambiguity", "history", "cost", "notes", "seconds"])
def test_a_damaged_outcome_is_refused(key: str, tmp_path: Path) -> None:
    save_attempt(Attempt("ok", "Attack()", FULL), tmp_path / "000000")
    path = tmp_path / "000000.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in record.items() if name != key}))
    with pytest.raises(SeepageError, match=r"000000\.json"):
        open_attempt(tmp_path / "000000")
    path.write_text(json.dumps({**record, "schema": 2}))
    with pytest.raises(SeepageError, match="schema version 2"):
        open_attempt(tmp_path / "000000")


def progress(folder: Path, pause: float = 0.0) -> FolderProgress:
    task = {"case": "c", "attack": "a", "round": 0}
    return FolderProgress(folder / "progress.jsonl", folder / "000000-checkpoint", task, pause)


def test_a_checkpoint_comes_back_and_goes_when_the_attack_has_ended(tmp_path: Path) -> None:
    kept = progress(tmp_path)
    assert kept.load() is None
    for step in (10, 20):
        kept.save(Checkpoint({"x": torch.full((2,), float(step))}, {"step": step, "seed": [1, 2]}))
    found = kept.load()
    assert found.facts == {"step": 20, "seed": [1, 2]}
    assert set(found.tensors) == {"x"}
    assert torch.equal(found.tensors["x"], torch.full((2,), 20.0))
    kept.clear()
    assert list(tmp_path.iterdir()) == []
    kept.clear()


def test_a_checkpoint_of_two_halves_is_not_used(tmp_path: Path) -> None:
    kept = progress(tmp_path)
    kept.save(Checkpoint({"x": torch.ones(2)}, {"step": 10}))
    old = (tmp_path / "000000-checkpoint.json").read_bytes()
    kept.save(Checkpoint({"x": torch.ones(2)}, {"step": 20}))
    (tmp_path / "000000-checkpoint.json").write_bytes(old)
    assert kept.load() is None


def test_checkpoints_that_follow_too_fast_are_skipped_and_the_first_is_not(tmp_path: Path) -> None:
    kept = progress(tmp_path, pause=1000.0)
    for step in (10, 20):
        kept.save(Checkpoint({"x": torch.ones(2)}, {"step": step}))
    found = kept.load()
    assert found.facts["step"] == 10


def test_a_report_is_one_line_and_an_objective_that_is_no_number_is_null(tmp_path: Path) -> None:
    kept = progress(tmp_path)
    for objective in (0.5, float("nan"), float("inf")):
        kept.report(1, 9, objective)
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [line["objective"] for line in lines] == [0.5, None, None]
    assert lines[0] == {"case": "c", "attack": "a", "round": 0, "done": 1, "total": 9, "objective": 0.5}
