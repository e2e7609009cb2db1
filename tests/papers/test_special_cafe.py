"""CAFE's items that are no audit, against plain loops of PyTorch and against what an audit records."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import record_cases
from seepage.audit.run import run
from seepage.base.progress import no_progress
from seepage.errors import SeepageError
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.transcript.truth import open_truth
from seepage.measure.metrics import psnr_quadrants
from seepage.papers import find_item
from seepage.papers.run import Value
from seepage.papers.special import lazy, loops, victims

LOOP = {"use": "cafe_published", "loop": "single_loop", "thresholds": [], "alpha": 0.0, "lr_one": 0.1, "lr_three": 0.02}


def tables(**changes: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "data": {"use": "digits", "size": 8},
        "model": {"use": "vertical", "channels": 4, "hidden": 16, "parties": 1},
        "batch": {"size": 2},
        "rounds": {"design": "random", "count": 20, "samples": 4},
        "knowledge": {"known": ["indices"]},
        "attack": [{**LOOP, "iterations": [200]}],
        **changes,
    }


def test_the_parties_are_those_that_an_audit_records(tmp_path: Path) -> None:
    (recipe,) = resolve_cases(tables())
    record_cases([recipe], tmp_path)
    recorded, truth = open_transcript(tmp_path / "observed"), open_truth(tmp_path / "private")
    victim, unseen = victims.parties_of(recipe)
    made = victim.transcript()
    assert torch.equal(victim.data.inputs, truth.whole.inputs)
    assert not any(torch.equal(a, b) for a in victim.data.inputs for b in unseen.inputs)
    for t in (0, 7):
        assert torch.equal(made[t].indices, recorded[t].indices)
        for name, tensor in recorded[t].update.tensors.items():
            assert torch.equal(made[t].update.tensors[name], tensor)


def test_a_recipe_without_rounds_has_no_parties() -> None:
    plain = {key: value for key, value in tables(model={"use": "fc2"}).items() if key not in ("rounds", "knowledge")}
    (recipe,) = resolve_cases(plain)
    with pytest.raises(SeepageError, match=r"has no \[rounds\]"):
        victims.parties_of(recipe)


def test_training_losses_are_those_of_a_plain_loop() -> None:
    rounds = {"design": "random", "count": 16, "samples": 6, "optimizer": "sgd", "lr": 0.5}
    given = tables(rounds=rounds, attack=[{"use": "cafe"}])
    found = list(loops.training_losses(given, data="", seed=0, show=no_progress))
    victim, _ = victims.parties_of(resolve_cases(given)[0])
    model, expected = victim.knowledge.model, []
    model.load_state_dict(victim.params, strict=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for t in range(17):
        expected.append(F.cross_entropy(model(victim.data.inputs), victim.data.labels).item())
        batch = victim.batch(t)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), batch.labels).backward()
        optimizer.step()
    assert [value.row for value in found] == ["true gradients"] * 7
    assert [value.ours for value in found] == pytest.approx([expected[t] for t in (0, 2, 4, 6, 8, 12, 16)], rel=1e-4)


def test_a_loss_that_is_no_number_is_none_and_says_why() -> None:
    rounds = {"design": "random", "count": 8, "samples": 6, "optimizer": "sgd", "lr": 1e30}
    noise = {"name": "noise", "defense": [{"use": "gaussian_noise", "sigma": 1e30}]}
    given = tables(rounds=rounds, attack=[{"use": "cafe"}], case=[noise])
    found = [value for value in loops.training_losses(given, data="", seed=0, show=no_progress) if value.row == "noise"]
    assert found[0].ours is not None
    assert found[-1].ours is None
    assert found[-1].facts["reason"] == "diverged"
    assert [one.ours is None for one in found] == sorted(one.ours is None for one in found)


def test_quality_is_the_papers_by_tile_and_that_of_the_tiles_put_together() -> None:
    victim, _ = victims.parties_of(resolve_cases(tables(model={"use": "vertical", "channels": 4, "hidden": 16}))[0])
    truth = victim.data.inputs
    tiles = [truth[..., :4, :4], truth[..., :4, 4:], truth[..., 4:, :4], truth[..., 4:, 4:]]
    darker = [tile - 0.1 * (tile > 0.2) for tile in tiles]
    wrong = torch.where(truth > 0.2, 0.01, 0.0)[:, 0]
    errors = [float(image.mean()) for image in wrong]
    parts = [float(image[i : i + 4, j : j + 4].mean()) for image in wrong for i in (0, 4) for j in (0, 4)]
    whole, tiled = ([-10 * math.log10(max(error, 1e-15)) for error in found] for found in (errors, parts))
    found = loops.quality(victim, darker)
    assert found.whole == pytest.approx(sum(whole) / len(whole), abs=1e-3)
    assert found.tiles == pytest.approx(sum(tiled) / len(tiled), abs=1e-3)
    guess = torch.cat([torch.cat(darker[:2], 3), torch.cat(darker[2:], 3)], 2)
    assert found.tiles == pytest.approx(float(psnr_quadrants(guess, truth).mean()), abs=1e-3)
    assert loops.quality(victim, [tiles[1], tiles[0], *tiles[2:]]).whole < 30


def test_tables_of_frozen_weights_make_the_rounds_own_gradients() -> None:
    given = tables(model={"use": "vertical", "channels": 4, "hidden": 16})
    victim, _ = victims.parties_of(resolve_cases(given)[0])
    quick = lazy.transcript_of(victim)
    assert isinstance(quick, lazy.TabledTranscript)
    for t in (0, 13):
        whole = victim.transcript()[t]
        names = [f"parties.{m}.first.{part}" for m in range(4) for part in ("weight", "bias")]
        for name, tensor in quick.select(t, names).items():
            assert torch.allclose(tensor, whole.update.tensors[name], rtol=1e-5, atol=1e-8), name
        # What no table has is computed, and a whole round is the round itself.
        assert torch.equal(quick.select(t, ["head.bias"])["head.bias"], whole.update.tensors["head.bias"])
        assert torch.equal(quick[t].update.tensors["head.bias"], whole.update.tensors["head.bias"])


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": {"design": "random", "count": 20, "samples": 4, "optimizer": "sgd", "lr": 0.1}},
        {"defense": [{"use": "gaussian_noise", "sigma": 1.0}]},
        {"model": {"use": "vertical", "channels": 4, "hidden": 16, "parties": 1, "batch_norm": True}},
    ],
)
def test_rounds_that_are_no_mean_of_frozen_examples_have_no_tables(changes: dict[str, Any]) -> None:
    victim, _ = victims.parties_of(resolve_cases(tables(**changes))[0])
    assert not isinstance(lazy.transcript_of(victim), lazy.TabledTranscript)


@pytest.mark.full
def test_rounds_that_are_never_written_give_an_audits_numbers(tmp_path: Path) -> None:
    attacks = [LOOP | {"iterations": [120]}, {"use": "inverting_gradients", "steps": 5}, {"use": "grad_inversion"}]
    given = tables(
        model={"use": "vertical", "channels": 4, "hidden": 16}, attack=attacks, score={"metrics": ["psnr_quadrants"]}
    )
    rows = {row.attack: row for row in run({**given, "all_attacks": True}, out=tmp_path).result.rows}
    found = lazy.columns(given, data="", seed=0, show=no_progress)
    for value, row in zip(
        found, [rows[name] for name in ("cafe_published", "inverting_gradients", "grad_inversion")], strict=True
    ):
        score = row.scores.get("psnr_quadrants")
        assert value.facts["status"] == row.status
        assert value.ours == (None if score is None else pytest.approx(score.mean, abs=0.05))
        assert value.facts.get("reason") == row.reason
        assert value.facts.get("psnr") == pytest.approx(row.numbers().get("psnr"), abs=0.05)


@pytest.mark.full
def test_true_and_forged_rounds_that_are_never_written_give_an_audits_numbers(tmp_path: Path) -> None:
    given = tables(
        model={"use": "vertical", "channels": 4, "hidden": 16},
        defense=[{"use": "fake_gradients", "candidates": 10}],
        attack=[{"use": "cafe"}, {"use": "cafe", "label": "cafe-2", "entries": "unforged"}],
        case=[{"name": "true", "defense": []}],
        score={"metrics": ["psnr_quadrants"]},
    )
    rows = {(row.case, row.attack): row for row in run({**given, "all_attacks": True}, out=tmp_path).result.rows}
    found = list(lazy.true_and_fake(given, data="", seed=0, show=no_progress))
    for value, place in zip(found, [("true", "cafe"), ("case", "cafe"), ("case", "cafe-2")], strict=True):
        row = rows[place]
        score = row.scores.get("psnr_quadrants")
        assert value.facts["status"] == row.status
        assert value.ours == (None if score is None else pytest.approx(score.mean, abs=0.5))
    assert found[0].ours
    assert found[1].ours
    assert found[0].ours > found[1].ours + 10


def by_place(values: list[Value]) -> dict[tuple[str, int], float | None]:
    return {(value.row, value.column): value.ours for value in values}


@pytest.mark.slow
def test_iterations_end_where_the_images_are_good_enough() -> None:
    nested = {"use": "cafe_published", "alpha": 0.0, "lr_one": 0.1, "lr_three": 0.02, "iterations": [50, 50, 100]}
    given = tables(attack=[{**LOOP, "iterations": [200]}, nested])
    victim, _ = victims.parties_of(resolve_cases(given)[0])
    seen: list[tuple[int, loops.Quality]] = []
    loops._follow(victim, loops._loops(resolve_cases(given)[0]), 0, lambda step, found: seen.append((step, found)))
    assert [step for step, _ in seen] == [100, 200]
    assert seen[0][1].tiles < seen[1][1].tiles
    for step, reached in seen:
        easy = loops.iterations_used({**given, "score": {"exact_db": reached.tiles}}, data="", seed=0, show=no_progress)
        assert by_place(easy)["iterations", 0] == step
        # Steps I and II are settings of the recipe and no measurements.
        assert [by_place(easy)["iterations", column] for column in (1, 2)] == [None, None]
    hard = loops.iterations_used({**given, "score": {"exact_db": 99.0}}, data="", seed=0, show=no_progress)
    assert [value.ours for value in hard] == [None] * 5  # the single loop, three steps, their sum
    assert [value.facts["reason"] for value in hard[1:3]] == ["set to 50", "set to 50"]
    assert "99 dB were not reached in 200" in hard[-1].facts["reason"]


@pytest.mark.full
def test_epochs_are_as_long_as_the_batches_make_them() -> None:
    given = tables(attack=[LOOP], grid={"batch.size": [2]})
    found = by_place(loops.psnr_by_epoch(given, data="", seed=0, show=no_progress))
    assert [row for row, _ in found] == [f"{epochs} epochs" for epochs in loops.TABLE_10_EPOCHS]
    victim, _ = victims.parties_of(resolve_cases(given)[0])
    shorter = replace(loops._loops(resolve_cases(given)[0]), iterations=(200,))  # two batches of 2 make an epoch of 4
    guess = shorter(victim.transcript(), seed=0).inputs
    errors = (guess - victim.data.inputs).square().flatten(1).mean(1)
    assert found["100 epochs", 0] == pytest.approx(float((-10 * errors.log10()).mean()), abs=1e-3)


def test_epochs_between_two_looks_are_refused() -> None:
    rounds = {"design": "random", "count": 20, "samples": 6}
    given = tables(attack=[LOOP], rounds=rounds, grid={"batch.size": [2]})
    with pytest.raises(SeepageError, match="end between two looks"):
        loops.psnr_by_epoch(given, data="", seed=0, show=no_progress)


@pytest.mark.slow
def test_training_is_looked_at_while_it_is_attacked() -> None:
    rounds = {"design": "random", "count": 200, "samples": 4, "optimizer": "adam", "lr": 1e-3}
    given = tables(attack=[{**LOOP, "iterations": [200]}], rounds=rounds)
    found = by_place(loops.while_training(given, data="", seed=0, show=no_progress))
    victim, _ = victims.parties_of(resolve_cases(given)[0])
    assert {row for row, _ in found} == {"PSNR", "training loss", "testing accuracy"}
    assert sorted(column for row, column in found if row == "PSNR") == [0, 3, 5]  # the others lie between two looks
    assert found["training loss", 0] == pytest.approx(loops.loss(victim, 0), abs=1e-3)
    assert found["training loss", 5] == pytest.approx(loops.loss(victim, 199), abs=1e-3)
    assert found["training loss", 5] < found["training loss", 0]


def test_the_loops_are_needed_to_follow_them() -> None:
    with pytest.raises(SeepageError, match="follows cafe_published"):
        next(loops.while_training(tables(attack=[{"use": "cafe"}]), data="", seed=0, show=no_progress))


def test_the_constants_are_the_papers() -> None:
    item = find_item("cafe/table-9")
    found = by_place(loops.constants(item.at("small", "", 0), data="", seed=0, show=no_progress))
    for line in item.lines:
        assert [found[line.name, column] for column in range(7)] == list(line.paper)
