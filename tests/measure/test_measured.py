"""Scores of outcomes beside the truth: what is missing counts as missing, and certificates are checked."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.audit.test_results import TITLES, cases_of, row
from tests.helpers.rows import flat

from seepage import Batch, LinearLeak, record
from seepage.audit.attempt import Attempt
from seepage.audit.recipe.case import Scoring
from seepage.audit.row import SCORE_NAMES, Row
from seepage.audit.score import make_row, metrics_for, scores_of
from seepage.audit.verdict import verdict
from seepage.base.nn import generator
from seepage.federation.models import build
from seepage.federation.transcript.simulated import OneRound, SimulatedTranscript
from seepage.federation.types import Architecture, Reconstruction, Round, Update
from seepage.measure.metrics import Yardstick


def tiny(batches: int = 2) -> tuple[Any, list[Batch]]:
    model = build(Architecture("fc2", {"hidden": 8}), (1, 8, 8), 3)
    draw = generator(0, "test")
    truth = [Batch(torch.rand(1, 1, 8, 8, generator=draw), torch.tensor([t])) for t in range(batches)]
    return record(model, truth), truth


def test_a_row_has_scores_only_where_there_is_a_truth() -> None:
    transcript, truth = tiny()
    outcomes = [Attempt("ok", "X()", Reconstruction(batch.inputs + 0.001), None, 1.0, 0.5) for batch in truth]
    scores = scores_of(outcomes, truth, Yardstick())
    assert scores is not None
    found = written("a", "x", outcomes, views(transcript), truth, scores, LinearLeak())
    assert (found["examples"], found["exact"], found["recovered"], found["returned"]) == (2, 1.0, 1.0, 2)
    assert found["psnr"] == pytest.approx(60, abs=0.5)
    assert (found["seconds"], found["cpu_seconds"], found["outcome"]) == (2.0, 1.0, "exact")
    blind = written("a", "x", outcomes, views(transcript), None, None, LinearLeak())
    assert [key for key in SCORE_NAMES if blind.get(key) is not None] == []
    assert (blind["examples"], blind["outcome"]) == (2, "not scored")


def written(*arguments: Any) -> dict[str, Any]:
    """A row as `result.json` holds it."""
    return flat(make_row(*arguments).model_dump(mode="json"))


def views(transcript: Any) -> list[OneRound]:
    return [OneRound(transcript, t) for t in range(len(transcript))]


def test_a_batch_without_a_reconstruction_counts_as_not_recovered() -> None:
    transcript, truth = tiny()
    first = Reconstruction(truth[0].inputs, labels=torch.tensor([0]), certified=torch.tensor([True]))
    outcomes = [Attempt("ok", "X()", first), Attempt("inapplicable", "X()", None, "why", refusal="no_bias")]
    scores = scores_of(outcomes, truth, Yardstick())
    found = written("a", "x", outcomes, views(transcript), truth, scores, LinearLeak())
    assert (found["status"], found["reason"], found["refusal"]) == ("ok", "on 1 of 2 batches: why", "no_bias")
    assert (found["exact"], found["outcome"], found["certified"], found["false_certificates"]) == (
        0.5, "1/2 exact", 0.5, 0
    )  # fmt: skip


def test_an_attack_that_gave_nothing_at_all_has_no_scores() -> None:
    transcript, truth = tiny()
    outcomes = [Attempt("inapplicable", "X()", None, "why", refusal="no_bias")] * 2
    assert scores_of(outcomes, truth, Yardstick()) is None
    found = written("a", "x", outcomes, views(transcript), truth, None, LinearLeak())
    assert (found["status"], found["reason"], found["refusal"], found["psnr"], found["outcome"]) == (
        "inapplicable", "why", "no_bias", None, "does not apply"
    )  # fmt: skip


def test_a_certified_guess_is_held_against_its_nearest_example() -> None:
    """The matching with the least error in all gives the first guess, an exact copy, to the other example."""
    far, near, other = (torch.full((1, 1, 8, 8), value) for value in (0.0, 0.4, 1.0))
    truth = [Batch(torch.cat([near, other]), torch.tensor([0, 1]))]
    guesses = Reconstruction(torch.cat([near, far]), certified=torch.tensor([True, False]))
    outcomes = [Attempt("ok", "X()", guesses)]
    measured = scores_of(outcomes, truth, Yardstick())
    assert measured.alignments[0].permutation.tolist() == [1, 0]
    assert measured.wrong_certificates == 0


def test_a_wrong_certificate_is_counted() -> None:
    transcript, truth = tiny(1)
    wrong = Reconstruction(truth[0].inputs * 0.5, certified=torch.tensor([True]))
    outcomes = [Attempt("ok", "X()", wrong)]
    scores = scores_of(outcomes, truth, Yardstick())
    found = written("a", "x", outcomes, views(transcript), truth, scores, LinearLeak())
    assert (found["certified"], found["false_certificates"]) == (1.0, 1)


@pytest.mark.parametrize("off_db", [20.0, 25.0, 35.0, 39.9])
def test_a_certified_guess_that_is_near_and_not_exact_is_a_false_one(off_db: float) -> None:
    _, truth = tiny(1)
    off = 10 ** (-off_db / 20)  # a guess off by so much everywhere has a mean squared error of its square
    inside = Batch(truth[0].inputs * 0.5 + 0.25, truth[0].labels)
    for shift, wrong in ((off, 1), (10 ** (-40.1 / 20), 0)):
        near = Reconstruction(inside.inputs + shift, certified=torch.tensor([True]))
        scored = scores_of([Attempt("ok", "X()", near)], [inside], Yardstick())
        assert scored.wrong_certificates == wrong


def test_an_attack_without_any_guess_vouches_for_none() -> None:
    transcript, truth = tiny()
    nothing = Reconstruction(truth[0].inputs[:0], labels=torch.zeros(0).long(), certified=torch.zeros(0).bool())
    outcomes = [Attempt("ok", "X()", nothing)] * 2
    scores = scores_of(outcomes, truth, Yardstick())
    found = written("a", "x", outcomes, views(transcript), truth, scores, LinearLeak())
    assert (found["certified"], found["false_certificates"], found["exact"]) == (0.0, 0, 0.0)


@pytest.mark.parametrize("flip", [False, True])
def test_batches_of_which_only_some_have_labels_or_a_sign_are_joined(flip: bool) -> None:
    """The Cocktail Party Attack on a noisy update: certain of one batch, not of the other."""
    transcript, truth = tiny()
    sure = Reconstruction(truth[0].inputs, labels=truth[0].labels)
    unsure = Reconstruction(truth[1].inputs, ambiguity=frozenset({"order", "sign", "scale"}))
    found = [sure, unsure]
    if flip:
        found = [replace(unsure, inputs=truth[0].inputs), Reconstruction(truth[1].inputs, labels=truth[1].labels)]
    outcomes = [Attempt("ok", "X()", each) for each in found]
    measured = scores_of(outcomes, truth, Yardstick())
    assert measured is not None
    row = written("a", "x", outcomes, views(transcript), truth, measured, LinearLeak())
    assert (row["alignment"], row["label_accuracy"], row["examples"]) == ("hungarian+sign+scale", 0.5, 2)
    assert row["exact"] == 1.0
    labels = [line.value for line in measured.scores.rows if line.metric == "label"]
    assert labels == ([None, 1.0] if flip else [1.0, None])


def test_perceptual_scores_are_measured_only_when_asked_for_and_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "lpips" not in metrics_for(Scoring(), (3, 32, 32))
    monkeypatch.setattr("seepage.audit.score.lpips_missing", lambda shape: "it is not here")
    assert "lpips" not in metrics_for(Scoring(lpips=True), (3, 32, 32))
    monkeypatch.setattr("seepage.audit.score.lpips_missing", lambda shape: None)
    assert "lpips" in metrics_for(Scoring(lpips=True), (3, 32, 32))


def test_a_zero_update_is_called_so_in_row_and_verdict() -> None:
    transcript, truth = tiny()
    nothing = [Attempt("inapplicable", "X()", None, "why")]
    found = written("a", "x", nothing, views(transcript), truth, None, LinearLeak())
    assert found["outcome"] == "does not apply"
    silent = [SimulatedTranscript(transcript.knowledge, lambda t: zeroed(transcript[0]), 1)]
    found = written("b", "x", nothing, silent, truth[:1], None, LinearLeak())
    assert found["outcome"] == "zero update"
    _, text = verdict(
        [row(exact=1.0, recovered=1.0), Row.model_validate({**found, "outcome": "zero_update"})], cases_of(TITLES)
    )
    assert "In 1 audited case (case B) the update is zero everywhere: it holds nothing to attack" in text
    assert "no attack gave a result" not in text


def zeroed(seen: Round) -> Round:
    tensors = {name: torch.zeros_like(tensor) for name, tensor in seen.update.tensors.items()}
    return replace(seen, update=Update(tensors))
