"""Diagnostics: each is raised by what it warns of, and by nothing else."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.rows import row_of
from torch import nn

from seepage import Architecture, Batch, FedAvg, GaussianNoise, Sparsify, build, record
from seepage.audit import diagnostics
from seepage.audit.case import Case
from seepage.audit.caveats import alignment_diagnostics, attack_diagnostics
from seepage.audit.row import Row
from seepage.audit.verdict import claims
from seepage.base.nn import generator, state_of
from seepage.federation.transcript.simulated import SimulatedTranscript
from seepage.federation.types import Knowledge, Round, Update
from seepage.measure.privacy.guarantee import guarantee_of

PLAIN = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
NORMED = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
DROPPED = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(4, 3))


def names(flags: list[diagnostics.Finding]) -> list[str]:
    return [flag.name for flag in flags]


@pytest.mark.parametrize(
    ("model", "mode", "wanted"),
    [
        (PLAIN, "train", []),
        (PLAIN, "eval", []),
        (NORMED, "eval", ["batch-norm-eval"]),
        (NORMED, "train", ["batch-norm-train"]),
        (DROPPED, "train", ["dropout-off"]),
    ],
)
def test_flags_of_a_model(model: nn.Module, mode: str, wanted: list[str]) -> None:
    assert names(diagnostics.model_diagnostics(model, mode)) == wanted


def test_an_update_of_zeros_is_flagged() -> None:
    params, buffers = state_of(PLAIN)
    good = record(PLAIN, Batch(torch.rand(1, 4), torch.tensor([1])))
    assert diagnostics.update_diagnostics(good, 1, [1.0]) == []
    zero = Update({name: torch.zeros_like(tensor) for name, tensor in params.items()})
    rounds = [good[0], Round(1, params, zero, buffers, 1)]
    both = SimulatedTranscript(good.knowledge, rounds.__getitem__, 2)
    assert names(diagnostics.update_diagnostics(both, 2, [])) == ["zero-update"]


def test_examples_the_model_is_sure_of_are_counted() -> None:
    seen = record(PLAIN, Batch(torch.rand(1, 4), torch.tensor([1])))
    (flag,) = diagnostics.update_diagnostics(seen, 1, [1.0, 1e-4, 0.0, 2e-3])
    assert flag.name == "confident-examples"
    assert "2 of 4 examples" in flag.message


def test_one_batch_is_little_to_rest_on() -> None:
    assert names(diagnostics.sample_diagnostics(8, 1)) == ["one-batch"]
    assert diagnostics.sample_diagnostics(8, 2) == []


def row(**changes: Any) -> Row:
    """A row of an attack that recovered nothing, with changes by the names of its numbers."""
    base = {"case": "a", "attack": "dlg", "outcome": "", "steps": 9, "examples": 8, "recovered": 0.0}
    return row_of(**{**base, **changes})


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, []),
        ({"status": "error", "reason": "KeyError"}, ["failed"]),
        ({"status": "inapplicable"}, []),
        ({"status": "diverged"}, ["diverged"]),
        ({"status": "exhausted"}, ["not-settled"]),
        ({"objective": 1.0, "objective_at_truth": 2.0}, ["objective-limits"]),
        ({"objective": 2.0, "objective_at_truth": 1.0}, ["search-limits"]),
        ({"objective": 1.0, "objective_at_truth": 1.0}, []),
        ({"objective": 1.0, "objective_at_truth": 2.0, "recovered": 0.5}, []),
        ({"objective": 1.0}, []),
        ({"objective_at_truth": 1.0}, []),
        ({"side_information": ["labels"]}, ["known"]),
        ({"status": "exhausted", "side_information": ["labels"]}, ["not-settled", "known"]),
    ],
)
def test_flags_of_a_row(changes: dict[str, Any], wanted: list[str]) -> None:
    flags = attack_diagnostics(row(**changes))
    assert names(flags) == wanted
    assert all("dlg" in flag.message for flag in flags)


def test_an_objective_is_not_blamed_where_the_client_s_rule_was_told_wrongly() -> None:
    led = row(objective=1.0, objective_at_truth=2.0)
    assert "the objective is the limit, not the search" in attack_diagnostics(led)[0].message
    assert "what was stated of the client is the limit" in attack_diagnostics(led, contradicted=True)[0].message


def test_an_epsilon_that_is_missing_is_a_warning_alone() -> None:
    lacking = Case(name="a", promise={"unit": "example", "caveats": ("dp-accounting is not installed",)})
    assert claims([lacking]) == []
    assert diagnostics.guarantee_diagnostics(lacking.promise)[0].severity == "warning"


def test_what_a_score_fitted() -> None:
    assert alignment_diagnostics(row(alignment="hungarian")) == []
    assert "cannot know scale" in alignment_diagnostics(row(alignment="hungarian+scale"))[0].message


def test_a_metric_that_cannot_be_measured_is_said_with_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnostics.metric_diagnostics(False, (3, 32, 32)) == []
    monkeypatch.setattr(diagnostics, "lpips_missing", lambda shape: f"no weights for {shape}.")
    (flag,) = diagnostics.metric_diagnostics(True, (3, 32, 32))
    assert flag.message == "LPIPS was not measured: no weights for (3, 32, 32)."
    monkeypatch.setattr(diagnostics, "lpips_missing", lambda shape: None)
    assert diagnostics.metric_diagnostics(True, (3, 32, 32)) == []


def test_losses_are_those_of_each_example_in_eval_mode() -> None:
    batches = [Batch(torch.rand(3, 4), torch.tensor([0, 2, 1])), Batch(torch.rand(2, 4), torch.tensor([1, 0]))]
    losses = diagnostics.example_losses(record(NORMED, batches), batches)
    plain = NORMED.eval()
    with torch.no_grad():
        wanted = [
            F.cross_entropy(plain(b.inputs[i : i + 1]), b.labels[i : i + 1]).item()
            for b in batches
            for i in range(len(b))
        ]
    assert losses == pytest.approx(wanted, rel=1e-5)
    plain.train()


def test_a_model_that_is_told_stays_as_it_was() -> None:
    knowledge = Knowledge(
        DROPPED, record(DROPPED, Batch(torch.rand(1, 4), torch.tensor([1]))).knowledge.client, (4,), 3
    )
    before = [module.training for module in DROPPED.modules()]
    diagnostics.model_diagnostics(knowledge.model, "train")
    assert [module.training for module in DROPPED.modules()] == before


def test_the_rounding_of_sent_weights_is_told_as_it_is() -> None:
    """Against the same training in double precision."""
    model = build(Architecture("convnet", {"width": 8}), (3, 16, 16), 10)
    batch = Batch(torch.rand((8, 3, 16, 16), generator=generator(0, "x")), torch.arange(8))
    client = FedAvg(lr=1e-5, batch_size=8, shuffle=False)
    seen = record(model, batch, client=client)[0]
    exact = client(
        copy.deepcopy(model).double(),
        {name: p.double() for name, p in seen.params.items()},
        Batch(batch.inputs.double(), batch.labels),
    )
    errors = {
        name: float((seen.update.tensors[name] - delta).norm() / delta.norm()) for name, delta in exact.tensors.items()
    }
    share, name = diagnostics.worst_rounding(seen)
    assert errors[name] > 0.7 * max(errors.values())
    assert 0.01 < errors[name] / 2 < share < 2 * errors[name]
    flags = diagnostics.update_diagnostics(record(model, batch, client=client), 1, [1.0])
    assert names(flags) == ["rounded-weights"]
    assert name in flags[0].message


def test_a_vacuous_epsilon_is_a_warning_and_a_small_one_a_note() -> None:
    vacuous = diagnostics.guarantee_diagnostics(guarantee_of(GaussianNoise(sigma=0.001, clip=1.0)))
    assert [(flag.name, flag.severity) for flag in vacuous] == [("epsilon", "warning")]
    assert "vacuous" in vacuous[0].message
    small = diagnostics.guarantee_diagnostics(guarantee_of(GaussianNoise(sigma=4.0, clip=1.0)))
    assert [(flag.name, flag.severity) for flag in small] == [("epsilon", "note")]
    unclipped = diagnostics.guarantee_diagnostics(guarantee_of(GaussianNoise(sigma=4.0)))
    assert "no clip" in unclipped[0].message
    assert diagnostics.guarantee_diagnostics(guarantee_of(Sparsify(keep=0.5))) == []
