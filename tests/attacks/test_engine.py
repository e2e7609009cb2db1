"""What the engine does beyond the contract: which restart wins, when it ends, and what it says of itself."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refusal
from torch import Tensor, nn
from victims import CLASSES, SHAPE, victim

from seepage import Architecture, Batch, FedSGD, GradientMatching, SeepageError, attack, build, record
from seepage.attacks import bayes, dlg, fedleak, inverting_gradients, sapag
from seepage.attacks.base import Silent
from seepage.attacks.search import engine
from seepage.attacks.search.directions import Direction, Gradients, SearchPoint, Sign
from seepage.attacks.search.distances import L2, Cosine, PerTensor
from seepage.attacks.search.engine import has_settled
from seepage.attacks.search.labels import (
    Refined,
    RowSumCount,
)
from seepage.attacks.search.optimizers import LBFGS, Adam
from seepage.attacks.search.parameters import Pixels
from seepage.attacks.search.priors import TotalVariation
from seepage.attacks.search.problem import Problem
from seepage.attacks.search.search import Restart
from seepage.audit.attempt import FolderProgress
from seepage.base.nn import generator
from seepage.federation.types import Transcript
from seepage.testing import AttackCase, planted_inputs, recovered_db
from seepage.testing.attack import resumes_with_the_same_bits
from seepage.testing.watch import Changed, Kept


def matching(**changes: Any) -> GradientMatching:
    options: dict[str, Any] = {"distance": L2(), "optimizer": Adam(lr=0.05), "steps": 20, "project": True}
    return GradientMatching(**(options | changes))


def test_the_restart_of_the_lowest_objective_wins() -> None:
    """Each restart has a start of its own, and the attack returns the best by the objective."""
    transcript, _ = victim()
    found = attack(transcript, matching(restarts=4))
    it = matching(restarts=4)
    run = engine._MatchingRun(it, it._objective(transcript[0], transcript.knowledge), None, 0)
    restarts = [search.unknowns[0].detach() for search in run.searches]
    assert len({tuple(start.flatten().tolist()) for start in restarts}) == 4
    singles = [_from(transcript, start) for start in restarts]
    best = min(singles, key=lambda single: single[0])
    assert float(found.objective[0]) == pytest.approx(best[0], rel=1e-6)
    assert torch.allclose(found.inputs, best[1])
    assert found.cost == {"steps": 20, "evaluations": 80}


def _problem(transcript: Transcript) -> Any:
    return Problem.of(transcript[0], transcript.knowledge, L2(), None)


def _from(transcript: Transcript, start: Tensor) -> tuple[float, Tensor]:
    """Plain Adam from one start, written out."""
    problem, labels = _problem(transcript), torch.tensor([0])
    x = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([x], lr=0.05, weight_decay=0.0)
    best = (math.inf, start)
    for _ in range(20):
        evaluation = problem.evaluate(x, labels)
        best = min(best, (evaluation.value, x.detach().clone()), key=lambda pair: pair[0])
        x.grad = evaluation.by_inputs
        optimizer.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return best


def test_the_objective_is_distance_plus_priors_and_so_at_the_truth() -> None:
    transcript, batch = victim()
    tv = TotalVariation(0.5)
    it = matching(priors=(tv,))
    found = it(transcript, seed=0)
    assert found.labels is not None
    assert found.objective is not None
    again = it.objective_at(transcript, found.inputs, found.labels)
    assert float(found.objective[0]) == pytest.approx(again, rel=1e-5)
    at_truth = it.objective_at(transcript, batch.inputs, batch.labels)
    assert at_truth == pytest.approx(float(tv(batch.inputs[None])), rel=1e-5)


def test_priors_pull() -> None:
    transcript, _ = victim()
    plain = matching().__call__(transcript, seed=0).inputs
    smooth = matching(priors=(TotalVariation(1e3),))(transcript, seed=0).inputs
    tv = TotalVariation(1.0)
    assert float(tv(smooth[None])) < 0.5 * float(tv(plain[None]))


@dataclass(frozen=True)
class Still(Direction):
    """Nowhere to go."""

    def __call__(self, gradients: Gradients, place: SearchPoint) -> Gradients:
        return [torch.zeros_like(gradient) for gradient in gradients]


def test_the_direction_is_what_the_optimizer_follows() -> None:
    transcript, _ = victim()
    pixels = Pixels(start_from="uniform")
    start = pixels.start(1, transcript.knowledge, torch.ones(1), generator(0, "start")).unknowns[0]
    assert torch.equal(matching(parameters=pixels, direction=Still())(transcript, seed=0).inputs, start)
    # Signed Adam's first step is the learning rate in every unknown, however flat the objective there.
    stepped = matching(parameters=pixels, direction=Sign(), steps=2, project=False, optimizer=Adam(lr=1e-3))
    assert torch.allclose((stepped(transcript, seed=0).inputs - start).abs(), torch.tensor(1e-3), atol=1e-5)


@pytest.mark.full
def test_it_ends_once_the_update_is_explained() -> None:
    transcript, batch = victim()
    # At the default of 1e-10 the last of 3,000 steps is where some processors' rounding gets there.
    found = attack(transcript, replace(inverting_gradients(steps=3000, tv=0.0), tolerance=1e-8))
    assert found.status == "ok"
    assert found.cost["steps"] < 3000
    assert float(recovered_db(found, batch.inputs)) > 60


class Nearly(nn.Module):
    """A network whose gradient hardly depends on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(1 + 1e-4 * inputs.flatten(1))
        return output


def test_a_cosine_that_rounds_to_one_explains_nothing() -> None:
    torch.manual_seed(0)
    transcript = record(Nearly(), Batch(planted_inputs(1, SHAPE), torch.tensor([1])))
    found = matching(distance=Cosine(), steps=5, tolerance=1e-12)(transcript, seed=0)
    assert found.cost["steps"] == 5
    assert found.status == "exhausted"


def test_it_says_when_steps_ran_out() -> None:
    transcript, _ = victim()
    assert attack(transcript, matching(steps=60, optimizer=Adam(lr=1e-3))).status == "exhausted"


def test_settled_means_a_flat_tail() -> None:
    assert not has_settled([(i, 1.0) for i in range(9)])
    assert has_settled([(i, 1.0) for i in range(10)])
    assert has_settled([(i, max(1.0, 50.0 - i)) for i in range(100)])
    assert not has_settled([(i, 100.0 - i) for i in range(100)])
    assert has_settled([(i, 0.0) for i in range(100)])


@pytest.mark.slow
def test_history_is_of_the_winner_at_growing_steps() -> None:
    found = attack(victim()[0], matching(steps=300, restarts=2))
    steps = [step for step, _ in found.history]
    assert steps == sorted(set(steps))
    assert 90 <= len(steps) <= 110
    assert found.history[-1][1] < found.history[0][1]


def test_candidates_stay_in_the_value_range_where_projected() -> None:
    transcript, _ = victim()
    for start in ("normal", "uniform", "grey"):
        it = matching(steps=5, optimizer=Adam(lr=5.0), parameters=Pixels(start_from=start, mean=0.5, std=0.25))
        inputs = it(transcript, seed=0).inputs
        # The very first point is a start, not yet projected; only it may lie outside.
        pixels = Pixels(start_from=start, mean=0.5, std=0.25)
        first = pixels.start(1, transcript.knowledge, torch.ones(1), generator(0, "start"))
        inside = bool(((inputs >= 0) & (inputs <= 1)).all())
        assert inside or torch.allclose(inputs, first.decode(first.unknowns))


def test_joint_labels_are_found_with_the_inputs() -> None:
    transcript, batch = victim(architecture=Architecture("convnet", {"width": 4, "activation": "sigmoid"}))
    found = attack(transcript, dlg(steps=30, line_search=True))
    assert found.labels.tolist() == batch.labels.tolist()


def test_told_labels_are_used() -> None:
    transcript, _ = victim(3, known=["labels"])
    assert matching(steps=1)(transcript, seed=0).labels.tolist() == [0, 1, 2]  # type: ignore[union-attr]


def test_microbatches_take_the_same_path() -> None:
    transcript, _ = victim(5)
    whole = matching(steps=15)(transcript, seed=0)
    for size in (1, 2, 5):
        chunked = matching(steps=15, microbatch=size)(transcript, seed=0)
        assert torch.allclose(chunked.inputs, whole.inputs, atol=1e-3)


class Explodes(nn.Module):
    """A network whose loss is not a number once its input leaves [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs.flatten(1).clamp(min=-1e-3).sqrt())
        return output


def exploding(low: float = 0.3) -> Transcript:
    torch.manual_seed(0)
    return record(Explodes(), Batch(low + 0.1 * torch.rand(1, *SHAPE), torch.tensor([1])))


def test_a_search_that_blows_up_says_so_and_returns_its_last_good_point(tmp_path: Path) -> None:
    """NaN states must also travel through a checkpoint, and JSON has no NaN."""
    for optimizer in (LBFGS(lr=1e4), Adam(lr=0.9)):
        it = matching(optimizer=optimizer, project=False, parameters=Pixels(start_from="grey"), tolerance=0.0)
        kept = FolderProgress(tmp_path / "log.jsonl", tmp_path / "checkpoint", {})
        found = it(exploding(), seed=0, progress=kept)
        assert found.status == "diverged"
        assert found.inputs.isfinite().all()
        for line in (tmp_path / "log.jsonl").read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)
        again = it(exploding(), seed=0, progress=kept)
        assert torch.equal(again.inputs, found.inputs)
        assert again.status == "diverged"
        kept.clear()


def test_a_search_that_never_had_a_finite_value_returns_mid_grey() -> None:
    found = matching(parameters=Pixels(mean=-10.0), project=False)(exploding(), seed=0)
    assert found.status == "diverged"
    assert found.inputs.shape == (1, *SHAPE)
    assert bool((found.inputs == 0.5).all())


@pytest.mark.slow
def test_a_search_by_first_order_steps_resumes_with_the_same_bits() -> None:
    """What has been learned of a good move's length travels with the checkpoint."""
    it = matching(distance=Cosine(), steps=60, restarts=2, gradients="first_order")
    model = Architecture("convnet", {"width": 4})
    resumes_with_the_same_bits(AttackCase(attack=it, planted_db=0, model=model, input_shape=(3, 8, 8), seed=1))


def test_ctrl_c_before_the_first_value_is_an_interruption_not_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._MatchingRun, "advance", interrupt)
    assert matching()(victim()[0], seed=0).status == "interrupted"


def test_ctrl_c_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    transcript, _ = victim()
    expected = matching(steps=7)(transcript, seed=0)
    plain = engine._MatchingRun.advance

    def interrupt(run: engine._MatchingRun, search: Restart, step: int, restart: int, others: Any) -> None:
        if step == 7:
            raise KeyboardInterrupt
        plain(run, search, step, restart, others)

    monkeypatch.setattr(engine._MatchingRun, "advance", interrupt)
    found = matching(steps=20)(transcript, seed=0)
    assert found.status == "interrupted"
    assert torch.equal(found.inputs, expected.inputs)


def test_progress_is_told_the_lowest_objective() -> None:
    class Watch(Silent):
        seen: list[tuple[int, int, float]] = []  # noqa: RUF012

        def report(self, done: int, total: int, objective: float) -> None:
            self.seen.append((done, total, objective))

    found = matching(steps=10)(victim()[0], seed=0, progress=Watch())
    assert [(done, total) for done, total, _ in Watch.seen] == [(i, 10) for i in range(1, 11)]
    lows = [low for *_, low in Watch.seen]
    assert lows == sorted(lows, reverse=True)
    assert lows[-1] == pytest.approx(float(found.objective[0]))


def test_labels_that_do_not_fit_the_batch_are_refused() -> None:
    transcript, _ = victim(2)
    odd = Changed(transcript, lambda seen: replace(seen, labels=torch.tensor([0, 1, 2])))
    with refusal("wrong_labels", 3, 2):
        matching()(odd, seed=0)


def test_a_model_of_whole_numbers_is_refused() -> None:
    transcript, _ = victim()
    reader = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(144, CLASSES))
    odd = Kept(replace(transcript.knowledge, model=reader), (transcript[0],))
    with refusal("tokens", "'0'"):
        matching()(odd, seed=0)


class Idle(nn.Module):
    """A network with a layer that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = nn.Linear(36, CLASSES), nn.Linear(5, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs.flatten(1))
        return output


@pytest.mark.parametrize(
    "preset", [dlg(steps=2), inverting_gradients(steps=9), bayes(steps=9), fedleak(steps=9, activation=0.0)]
)
def test_unused_parameters_do_no_harm(preset: GradientMatching) -> None:
    torch.manual_seed(0)
    transcript = record(Idle(), Batch(planted_inputs(1, SHAPE), torch.tensor([1])))
    for distance in (preset.distance, PerTensor(preset.distance)):
        found = replace(preset, distance=distance)(transcript, seed=0)
        assert found.status != "diverged"
        assert found.cost["evaluations"] >= 9


def test_a_table_is_attacked_without_total_variation() -> None:
    model = build(Architecture("fc2", {"hidden": 8}), (9,), 3)
    transcript = record(model, Batch(torch.rand(1, 9), torch.tensor([2])))
    found = attack(transcript, inverting_gradients(steps=9))
    assert found.inputs.shape == (1, 9)
    assert torch.equal(found.inputs, attack(transcript, inverting_gradients(steps=9, tv=0)).inputs)


@pytest.mark.parametrize(
    "options", [{"steps": 0}, {"restarts": 0}, {"steps": -3, "microbatch": 0}, {"lr": 0.0}, {"lr": float("nan")}]
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SeepageError, match=r"got .*; correct the recipe"):
        dlg(**options)
    with pytest.raises(SeepageError, match=r"got .*; correct the recipe"):
        sapag(**options)


def test_one_restart_that_blows_up_ends_alone_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    transcript, _ = victim()
    it, plain = matching(restarts=3), engine._MatchingRun._start

    def spoiled(run: engine._MatchingRun, restart: int) -> Restart:
        search = plain(run, restart)
        if restart == 1:
            search.unknowns[0].data.fill_(float("nan"))
        return search

    expected = it(transcript, seed=0)
    monkeypatch.setattr(engine._MatchingRun, "_start", spoiled)
    found = it(transcript, seed=0)
    assert found.status != "diverged"
    assert found.notes == ("1 of 3 restarts ended early because their numbers were no longer finite",)
    assert expected.notes == ()
    assert found.cost["evaluations"] == expected.cost["evaluations"] - 19


def test_refined_labels_start_where_the_rule_says_and_move() -> None:
    transcript, batch = victim(6)
    run_of = matching(labels=Refined(RowSumCount(), confidence=3.0))
    found = run_of(transcript, seed=0)
    run = engine._MatchingRun(run_of, run_of._objective(transcript[0], transcript.knowledge), None, 0)
    logits = run.searches[0].logits
    start = logits.detach().clone()
    assert start.argmax(1).tolist() == RowSumCount()(transcript[0], transcript.knowledge).tolist()
    assert start.max(1).values.tolist() == [3.0] * 6
    run.advance_all(0)
    assert not torch.equal(run.searches[0].logits, start)  # type: ignore[arg-type]
    assert found.labels is not None
    known, _ = victim(6, known=["labels"])
    assert run_of.labels(known[0], known.knowledge).tolist() == sorted(batch.labels.tolist())  # type: ignore[union-attr]


def test_a_client_in_eval_mode_is_matched_in_eval_mode() -> None:
    """The dummy update follows the client's own rule, batch norm and all."""
    model = build(Architecture("convnet", {"width": 3, "batch_norm": True}), SHAPE, CLASSES)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_var.fill_(3)  # type: ignore[union-attr]
    batch = Batch(planted_inputs(3, SHAPE), torch.tensor([0, 1, 1]))
    for mode in ("train", "eval"):
        transcript = record(model, batch, client=FedSGD(mode=mode))
        assert matching().objective_at(transcript, batch.inputs, batch.labels) < 1e-10
