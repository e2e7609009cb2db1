"""A case's setting is the same wherever it is made, and what cases share is what they have in common."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from seepage.audit import run as audit
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import record_cases
from seepage.audit.simulate.setting import Setting, SharedParts, trainings_kept_in
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.transcript.truth import open_truth

PLAIN = """
seed = 3
data = { use = "digits", size = 8 }
model = { use = "fc2", hidden = 24 }
training = { steps = 4 }
batch = { size = 2, count = 3 }
attack = [{ use = "linear" }]
"""
CASES = {
    "batches": PLAIN,
    "a federation": PLAIN.replace("training = { steps = 4 }", "federation = { rounds = 2, clients = 5 }"),
    "rounds over one data set": PLAIN + 'rounds = { count = 6, samples = 9 }\nknowledge = { known = ["indices"] }',
}


def case_of(tables: str, **changed: Any) -> Recipe:
    return resolve_cases(tomllib.loads(tables) | changed)[0]


@pytest.mark.parametrize("tables", CASES.values(), ids=CASES)
def test_who_is_attacked_in_memory_is_who_is_recorded(tables: str, tmp_path: Path) -> None:
    case = case_of(tables)
    record_cases([case], tmp_path / "run")
    setting = Setting.of(case).after_federation(tmp_path / "own", lambda done, total: None)
    truth = open_truth(tmp_path / "run" / "private")
    for batch, other in zip(setting.batches, truth.batches, strict=True):
        torch.testing.assert_close(batch.inputs, other.inputs, rtol=0, atol=0)
    recorded = open_transcript(tmp_path / "run" / "observed")[0]
    made = setting.victim()[0].transcript()[0]
    for name, tensor in recorded.params.items():
        assert torch.equal(tensor, made.params[name])
        assert torch.equal(recorded.update.tensors[name], made.update.tensors[name])
    attacked = {place for part in setting.victims for place in part.tolist()}
    assert not attacked & set(setting.unseen.tolist())


def test_states_are_shared_by_cases_that_train_alike_and_no_others() -> None:
    shared = SharedParts()
    first = Setting.of(case_of(PLAIN), shared)
    assert Setting.of(case_of(PLAIN, batch={"size": 4}), shared).state is first.state
    assert Setting.of(case_of(PLAIN, client={"use": "fedavg"}), shared).state is first.state
    others: list[dict[str, Any]] = [
        {"seed": 4},
        {"training": {"steps": 5}},
        {"client": {"use": "fedsgd", "loss": "mse"}},
        {"client": {"use": "fedsgd", "label_smoothing": 0.1}},
    ]
    states = [Setting.of(case_of(PLAIN, **other), shared).state[0] for other in others]
    for one in states:
        assert any(not torch.equal(one[name], first.state[0][name]) for name in one)
    assert len(shared.states) == 1 + len(others)


def test_a_kept_training_is_read_by_another_run_and_by_no_other_training(tmp_path: Path) -> None:
    def steps_of(case: Recipe) -> tuple[Setting, list[int]]:
        steps: list[int] = []
        return Setting.of(case, progress=lambda done, total: steps.append(done)), steps

    alone, _ = steps_of(case_of(PLAIN))
    with trainings_kept_in(tmp_path / "trained"):
        assert steps_of(case_of(PLAIN))[1] == [1, 2, 3, 4]
        again, steps = steps_of(case_of(PLAIN, batch={"size": 4}))
        assert steps == []
        assert steps_of(case_of(PLAIN, seed=4))[1] == [1, 2, 3, 4]
    for state in (0, 1):
        for name, tensor in alone.state[state].items():
            assert torch.equal(tensor, again.state[state][name])
    assert steps_of(case_of(PLAIN))[1] == [1, 2, 3, 4]
    assert len(list((tmp_path / "trained").iterdir())) == 2


@pytest.mark.parametrize(
    "client",
    [
        {"use": "fedsgd", "loss": "mse"},
        {"use": "fedsgd", "loss": "bce"},
        {"use": "fedprox", "lr": 0.05, "steps": 2, "batch_size": 1, "mu": 0.5},
    ],
    ids=lambda client: "-".join(map(str, client.values())),
)
def test_another_loss_or_protocol_goes_from_recipe_to_row(client: dict[str, Any], tmp_path: Path) -> None:
    tables = tomllib.loads(PLAIN) | {
        "client": client,
        "batch": {"size": 1},
        "knowledge": {"known": ["labels"]},
        "attack": [{"use": "inverting_gradients", "steps": 3}, {"use": "idlg", "steps": 2}],
    }
    finished = audit.run(tables, out=tmp_path, jobs=1)
    rows = {row.attack: row for row in finished.result.rows}
    assert rows["inverting_gradients"].status in ("ok", "exhausted")
    assert all(row.status != "error" for row in rows.values()), rows
    knowledge = open_transcript(tmp_path / "observed").knowledge
    assert knowledge.client == resolve_cases(tables)[0].make_client()
    assert knowledge.client.loss == client.get("loss", "cross_entropy")


def test_candidates_of_a_membership_test_are_shuffled_and_not_public() -> None:
    setting = Setting.of(case_of(PLAIN, batch={"size": 6, "count": 2}, membership={"level": 0.2, "public": 20}))
    parts = setting.membership_parts()
    named = [part.indices.tolist() for part in parts.candidates if part.indices is not None]
    assert parts.public.indices is not None
    public = parts.public.indices.tolist()
    assert len(public) == 20
    assert not set(public) & {place for part in named for place in part}
    for victims, places, members in zip(setting.victims, named, parts.members, strict=True):
        flags = members.tolist()
        assert {place for place, member in zip(places, flags, strict=True) if member} == set(victims.tolist())
        assert flags != sorted(flags, reverse=True), "members must not all come first"
