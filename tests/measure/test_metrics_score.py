"""Scores, labels and baselines: closed forms, and what must be None rather than zero."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seepage.base.schema import Share
from seepage.errors import SeepageError
from seepage.federation.types import Batch, Reconstruction
from seepage.measure.metrics import (
    METRICS,
    Limits,
    Scores,
    Yardstick,
    baselines,
    bootstrap_interval,
    label_accuracy,
    label_hits,
    lpips_weights,
    score,
)


def images(n: int, seed: int = 0, shape: tuple[int, ...] = (3, 16, 16)) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


def batch(n: int, seed: int = 0, shape: tuple[int, ...] = (3, 16, 16)) -> Batch:
    return Batch(images(n, seed, shape), torch.arange(n) % 10)


# labels


@pytest.mark.parametrize(
    ("guessed", "true", "share"),
    [([1, 2, 3], [3, 1, 2], 1.0), ([1, 1, 1], [1, 2, 3], 1 / 3), ([1], [1, 1], 0.5), ([], [1], 0.0)],
)
def test_label_accuracy_is_the_overlap_whatever_the_order(guessed, true, share) -> None:
    found = label_accuracy(torch.tensor(guessed, dtype=torch.int64), torch.tensor(true))
    assert found == pytest.approx(share)


def test_naming_every_class_gains_nothing() -> None:
    assert label_accuracy(torch.arange(100), torch.tensor([5, 6])) == 0.02


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.lists(st.integers(0, 4), max_size=6))
@settings(max_examples=50, deadline=None)
def test_label_accuracy_crosses_labels_off_one_by_one(true: list[int], guessed: list[int]) -> None:
    left, found = list(true), 0
    for label in guessed:
        if label in left:
            left.remove(label)
            found += 1
    result = label_accuracy(torch.tensor(guessed, dtype=torch.int64), torch.tensor(true))
    assert result == pytest.approx(found / max(len(true), len(guessed)))


def test_label_hits_follow_the_alignment_and_take_probabilities() -> None:
    true = torch.eye(3)[[2, 0, 1]]
    hits = label_hits(torch.tensor([0, 1]), true, torch.tensor([-1, 0, 0]))
    assert hits[0].isnan()
    assert hits[1:].tolist() == [1.0, 0.0]


def test_no_labels_at_all_are_refused() -> None:
    with pytest.raises(SeepageError, match="no labels"):
        label_accuracy(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64))


# baselines


def test_baselines_are_the_closed_forms() -> None:
    truth = images(4) * 2 - 1
    found = baselines(truth, seed=3, value_range=(-1.0, 1.0))
    assert (found["grey"] == 0).all()
    for i in range(4):
        for c in range(3):
            assert found["mean_color"][i, c].unique().tolist() == pytest.approx([float(truth[i, c].mean())])
    assert torch.equal(found["random"], baselines(truth, seed=3, value_range=(-1.0, 1.0))["random"])
    assert not torch.equal(found["random"], baselines(truth, seed=4, value_range=(-1.0, 1.0))["random"])
    assert -1 <= found["random"].min() < -0.99
    assert 0.99 < found["random"].max() <= 1


def test_the_mean_of_other_shapes_is_over_all_features() -> None:
    truth = images(5, shape=(7,))
    assert torch.allclose(baselines(truth, seed=0)["mean_color"], truth.mean(1, keepdim=True).expand(5, 7))


def test_baseline_psnr_in_closed_form() -> None:
    flat = torch.full((2, 3, 64, 64), 1.0)
    flat[:, :, :32] = 0
    found = score(Reconstruction(flat), Batch(flat, torch.zeros(2, dtype=torch.int64)))
    # half black, half white: both grey and the mean color are 0.5 off everywhere, noise has an MSE of 1/3
    assert found.grey_psnr == pytest.approx(6.0206, abs=1e-3)
    assert found.mean_color_psnr == pytest.approx(6.0206, abs=1e-3)
    assert found.random_psnr == pytest.approx(4.771, abs=0.1)
    assert found.gain_db == pytest.approx(150 - 6.0206, abs=1e-3)
    assert found.random_ssim == pytest.approx(0, abs=0.1)
    assert found.grey_ssim is not None
    assert found.mean_color_ssim == pytest.approx(found.grey_ssim)


# score


@given(st.permutations(range(5)), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_the_truth_in_any_order_is_recovered_exactly(order: list[int], seed: int) -> None:
    truth = batch(5, seed)
    found = score(Reconstruction(truth.inputs[order], truth.labels[order]), truth)
    assert (found.psnr, found.ssim, found.recovered, found.exact) == (150.0, 1.0, 1.0, 1.0)
    assert found.label_accuracy == 1.0
    assert found.values["label"].tolist() == [1.0] * 5


def test_the_mean_color_itself_recovers_nothing() -> None:
    truth = batch(6)
    found = score(Reconstruction(baselines(truth.inputs, seed=0)["mean_color"]), truth, method="hungarian")
    assert found.gain_db == pytest.approx(0, abs=0.5)
    assert found.recovered == 0.0
    assert found.exact == 0.0


def test_recovered_needs_likeness_and_a_guess() -> None:
    truth = Batch(images(4), torch.arange(4), indices=torch.arange(4))
    guesses = truth.inputs.clone()
    guesses[1] = guesses[1].mean() + 0.01 * torch.rand(guesses[1].shape, generator=torch.Generator().manual_seed(1))
    guesses[2] = torch.nan
    known = Reconstruction(guesses, indices=torch.arange(4), ambiguity=frozenset())
    found = score(known, truth)
    assert found.recovered_each.tolist() == [True, False, False, True]
    assert found.exact == 0.5
    assert found.matched.tolist() == [True, True, False, True]
    assert float(found.matched.double().mean()) == 0.75
    loose = score(known, truth, Yardstick(limits=Limits(likeness=-9)))
    assert loose.recovered == 0.75
    strict = score(known, truth, Yardstick(limits=Limits(likeness=1.1, gain_db=200)))
    assert strict.recovered == 0.0
    anything = score(known, truth, Yardstick(limits=Limits(likeness=-9, exact_db=-999, gain_db=-999)))
    assert anything.recovered == anything.exact == float(anything.matched.double().mean())


def test_the_right_shading_without_the_texture_is_not_recovered() -> None:
    """It is no more like the picture than like the picture moved by a pixel."""
    ramp = torch.linspace(0.1, 0.9, 32).expand(1, 3, 32, 32)
    texture = 0.1 * (1 - 2 * ((torch.arange(32)[:, None] + torch.arange(32)) % 2))
    found = score(Reconstruction(ramp), Batch(ramp + texture, torch.zeros(1)))
    assert found.gain_db > 3
    assert found.recovered == 0.0


def test_an_exact_copy_of_a_picture_that_is_nearly_flat_is_recovered() -> None:
    truth = Batch(0.5 + 0.02 * images(1), torch.zeros(1))
    flat = baselines(truth.inputs, seed=0)["mean_color"]
    near = score(Reconstruction(0.8 * truth.inputs + 0.2 * flat), truth, Yardstick(limits=Limits(likeness=1.1)))
    assert (near.exact, near.recovered) == (1.0, 1.0)
    plain = score(Reconstruction(flat), truth, Yardstick(limits=Limits(exact_db=20)))
    assert (plain.exact, plain.recovered) == (0.0, 0.0)  # the flat square is near enough, and shows nothing


def test_an_example_without_a_guess_scores_as_mid_grey_and_its_label_not_at_all() -> None:
    truth = batch(3)
    found = score(Reconstruction(truth.inputs[:2], truth.labels[:2]), truth)
    assert found.values["psnr"][2] == found.baseline_values["grey"]["psnr"][2]
    last = [row for row in found.rows if row.example == 2]
    assert [row.matched for row in last] == [False] * 4
    assert [row.value is None for row in last] == [False, False, False, True]
    assert found.label_accuracy == pytest.approx(2 / 3)


@pytest.mark.parametrize("span", [(0.0, 1.0), (-1.0, 1.0), (-3.0, 5.0), (0.0, 255.0)])
def test_scores_do_not_depend_on_the_value_range(span: tuple[float, float]) -> None:
    truth, guesses = images(4).double(), images(4, 1).double() * 1.4 - 0.2
    low, high = span
    plain = score(Reconstruction(guesses), Batch(truth, torch.zeros(4)))
    moved = score(
        Reconstruction(guesses * (high - low) + low),
        Batch(truth * (high - low) + low, torch.zeros(4)),
        Yardstick(value_range=span),
    )
    for name in ("mse", "psnr", "ssim"):
        assert torch.allclose(plain.values[name], moved.values[name], atol=1e-5)
    for name in ("grey", "mean_color", "random"):
        assert torch.allclose(plain.baseline_values[name]["psnr"], moved.baseline_values[name]["psnr"], atol=1e-5)


def test_indices_on_both_sides_make_the_alignment_identity() -> None:
    truth = images(3)
    guesses = Reconstruction(truth, indices=torch.tensor([5, 6, 7]), ambiguity=frozenset())
    known = Batch(truth.flip(0), torch.arange(3), indices=torch.tensor([7, 6, 5]))
    assert score(guesses, known).alignment == "identity"
    assert score(guesses, known).psnr == 150.0
    assert score(guesses, Batch(truth, torch.arange(3))).alignment == "hungarian"
    assert score(guesses, known, method="hungarian").alignment == "hungarian"
    swapped = Reconstruction(truth, indices=torch.tensor([5, 7, 6]), ambiguity=frozenset({"order"}))
    assert (score(swapped, known).alignment, score(swapped, known).psnr) == ("hungarian", 150.0)
    with pytest.raises(SeepageError, match="indices"):
        score(Reconstruction(truth), known, method="identity")


def test_a_claimed_sign_and_scale_is_fitted_and_named() -> None:
    truth = batch(3)
    guesses = truth.inputs * torch.tensor([-4.0, 0.1, 9.0]).reshape(3, 1, 1, 1)
    claimed = score(Reconstruction(guesses, ambiguity=frozenset({"order", "sign", "scale"})), truth)
    assert claimed.alignment == "hungarian+sign+scale"
    assert claimed.exact == 1.0
    assert {row.alignment for row in claimed.rows} == {"hungarian+sign+scale"}
    plain = score(Reconstruction(guesses), truth)
    assert plain.alignment == "hungarian"
    assert plain.exact == 0.0


def test_rows_hold_every_example_and_metric_in_order() -> None:
    truth = batch(2)
    found = score(Reconstruction(truth.inputs + 0.1), truth, Yardstick(metrics=("psnr", "ssim")))
    assert [(row.example, row.metric) for row in found.rows] == [
        (0, "psnr"),
        (0, "ssim"),
        (1, "psnr"),
        (1, "ssim"),
    ]
    assert [row.value for row in found.rows[::2]] == found.values["psnr"].tolist()
    with pytest.raises(FrozenInstanceError):
        found.alignment = "other"  # type: ignore[misc]


def test_tabular_examples_have_no_ssim_and_are_recovered_by_gain_alone() -> None:
    truth = batch(4, shape=(12,))
    found = score(Reconstruction(truth.inputs), truth, Yardstick(metrics=("psnr", "ssim", "lpips")))
    assert found.ssim is None
    assert found.lpips is None
    assert found.mean_color_ssim is None
    assert found.recovered == 1.0
    assert [row.value for row in found.rows if row.metric != "psnr"] == [None] * 8


def test_whether_images_are_recovered_is_known_whatever_is_measured() -> None:
    truth = batch(2)
    found = score(Reconstruction(truth.inputs), truth, Yardstick(metrics=("psnr",)))
    assert found.recovered == 1.0
    assert found.exact == 1.0


def test_small_images_say_that_the_window_shrank() -> None:
    truth = batch(2, shape=(1, 8, 8))
    assert "window of 7" in score(Reconstruction(truth.inputs), truth).notes[0]
    assert score(Reconstruction(images(2)), batch(2)).notes == ()


def test_missing_lpips_weights_give_none_and_a_note(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    truth = batch(2)
    found = score(Reconstruction(truth.inputs), truth, Yardstick(metrics=("lpips",)))
    assert found.lpips is None
    assert [row.value for row in found.rows] == [None, None]
    assert lpips_weights().name in found.notes[0]


def test_features_have_a_cosine_and_nothing_else() -> None:
    features = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    guesses = Reconstruction(-2 * features[:2], space="feature", ambiguity=frozenset({"order", "sign", "scale"}))
    found = score(guesses, Batch(features, torch.arange(3)))
    assert found.cosine == pytest.approx(1.0)
    values = {(row.metric, row.example): row.value for row in found.rows}
    assert values["cosine", 0] == pytest.approx(1.0)
    assert values["cosine", 2] is None
    assert values["psnr", 0] is None
    nothing = [found.psnr, found.psnr_low, found.ssim, found.gain_db, found.recovered, found.exact]
    nothing += [found.grey_psnr, found.random_ssim, found.label_accuracy]
    assert nothing == [None] * 9
    assert "inner layer" in found.notes[0]


def test_the_nearest_protocol_is_never_worse_than_one_to_one() -> None:
    truth, guesses = batch(5), Reconstruction(images(5, 1))
    near, fair = score(guesses, truth, method="nearest"), score(guesses, truth)
    assert (near.values["mse"] <= fair.values["mse"] + 1e-12).all()
    assert {row.alignment for row in near.rows} == {"nearest"}


@pytest.mark.parametrize(
    ("guesses", "truth", "options", "message"),
    [
        (images(2), batch(2), {"by": Yardstick(metrics=("psrn",))}, "did you mean 'psnr'"),
        (images(2), batch(2), {"method": "greedy"}, "unknown alignment"),
        (images(2, shape=(1, 16, 16)), batch(2), {}, "cannot be matched"),
        (images(0), batch(0), {}, "empty"),
        (images(2), Batch(images(2) * torch.nan, torch.arange(2)), {}, "NaN"),
        (images(2), Batch(images(2) * 2 - 1, torch.arange(2)), {}, r"outside value_range \(0, 1\)"),
    ],
)
def test_mistakes_are_one_sentence(guesses: Tensor, truth: Batch, options: dict, message: str) -> None:
    with pytest.raises(SeepageError, match=message):
        score(Reconstruction(guesses), truth, **options)


def test_labels_must_be_one_per_guess() -> None:
    with pytest.raises(SeepageError, match="label per guess"):
        score(Reconstruction(images(2), torch.arange(3)), batch(2))


# several batches


def parts() -> list[Scores]:
    sizes = (2, 3, 1)
    return [score(Reconstruction(images(n, 9) * 0.3 + 0.7 * images(n, n), torch.arange(n)), batch(n, n)) for n in sizes]


def test_joined_batches_keep_their_rows_and_pool_their_examples() -> None:
    joined = Scores.concatenate(parts())
    assert joined.examples == 6
    assert joined.rows == [row for part in parts() for row in part.rows]
    assert joined.batches.tolist() == [0, 0, 1, 1, 1, 2]
    pooled = torch.cat([part.values["psnr"] for part in parts()])
    assert joined.psnr == pytest.approx(float(pooled.mean()))
    assert joined.label_accuracy == pytest.approx(sum(p.label_accuracy * p.examples for p in parts()) / 6)
    assert (joined.psnr_low, joined.psnr_high) == bootstrap_interval(pooled, joined.batches)
    assert joined.mean_color_psnr == pytest.approx(
        float(torch.cat([p.baseline_values["mean_color"]["psnr"] for p in parts()]).mean())
    )
    again = Scores.concatenate([Scores.concatenate(parts()[:2]), parts()[2]])
    assert again.batches.tolist() == joined.batches.tolist()
    assert again.rows == joined.rows


def test_scores_made_in_different_ways_are_not_joined() -> None:
    truth = batch(2)
    near = score(Reconstruction(truth.inputs), truth, method="nearest")
    with pytest.raises(SeepageError, match="cannot be joined"):
        Scores.concatenate([near, score(Reconstruction(truth.inputs), truth)])
    with pytest.raises(SeepageError, match="no scores"):
        Scores.concatenate([])


def test_a_single_example_has_no_interval() -> None:
    found = score(Reconstruction(images(1)), batch(1))
    assert found.psnr is not None
    assert (found.psnr_low, found.psnr_high) == (None, None)


def test_the_registry_lists_exactly_the_metrics_that_score_knows() -> None:
    truth = batch(2)
    found = score(Reconstruction(truth.inputs, truth.labels), truth, Yardstick(metrics=tuple(METRICS)))
    assert [row.metric for row in found.rows[: len(METRICS)]] == list(METRICS)
    with pytest.raises(SeepageError, match="Known: " + ", ".join(sorted([*METRICS, "module:Metric"]))):
        score(Reconstruction(truth.inputs), truth, Yardstick(metrics=("xyzzy",)))


def test_a_count_has_the_interval_of_clopper_and_pearson() -> None:
    truth = batch(4)
    guess = Reconstruction(truth.inputs, truth.labels)
    found = score(guess, truth).summaries
    exact = Share.count(4, 4)
    for name in ("recovered", "exact", "label_accuracy"):
        assert (found[name].mean, found[name].low, found[name].high) == (1.0, exact.low, exact.high), name
