"""Identification: who is nearest, ties, missing guesses, and chance that holds on guesses that know nothing."""

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from seepage.errors import SeepageError
from seepage.federation.types import Batch, Reconstruction
from seepage.measure.metrics import Gallery, Yardstick, find_metric, score, ssim
from seepage.measure.metrics.features import feature_network, features_missing

SHAPE = (1, 8, 8)


def images(n: int, seed: int) -> Tensor:
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed))


def gallery(others: int = 99, persons: int = 10, seed: int = 7) -> Gallery:
    return Gallery(images(others, seed), images(persons, seed + 1), torch.arange(persons))


def measured(name: str, guesses: Tensor, truth: Batch, pool: Gallery) -> Tensor:
    places = torch.arange(len(truth))
    known = Reconstruction(guesses, indices=places)
    return score(known, Batch(truth.inputs, truth.labels, places), Yardstick(metrics=[name], gallery=pool)).values[name]


def test_the_nearest_is_scikit_learns() -> None:
    pool, truth = gallery(), Batch(images(20, 1), torch.arange(20) % 10)
    guesses = (truth.inputs + 0.35 * torch.randn(20, *SHAPE, generator=torch.Generator().manual_seed(2))).clamp(0, 1)
    found = measured("identified", guesses, truth, pool)
    for guess, x, hit in zip(guesses, truth.inputs, found, strict=True):
        tree = NearestNeighbors(n_neighbors=1).fit(torch.cat([x[None], pool.others]).flatten(1).numpy())
        assert bool(hit) == (tree.kneighbors(guess.flatten()[None].numpy(), return_distance=False)[0, 0] == 0)
    tree = NearestNeighbors(n_neighbors=1).fit(pool.pictures.flatten(1).numpy())
    nearest = tree.kneighbors(guesses.flatten(1).numpy(), return_distance=False)[:, 0]
    assert measured("person", guesses, truth, pool).tolist() == (nearest == truth.labels.numpy()).tolist()


def test_by_structural_similarity_and_by_features() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 128 * 128, 16, bias=False))
    pool, truth = gallery(others=9).seen_by(network), Batch(images(4, 1), torch.arange(4))
    guesses = (0.2 + 0.5 * truth.inputs + 0.1 * images(4, 3)).clamp(0, 1)
    found = measured("identified_ssim", guesses, truth, pool)
    for guess, x, hit in zip(guesses, truth.inputs, found, strict=True):
        values = [float(ssim(guess[None], other[None])) for other in (x, *pool.others)]
        assert bool(hit) == (int(np.argmax(values)) == 0)
    assert measured("identified_features", truth.inputs, truth, pool).tolist() == [1.0] * 4
    same = Gallery(pool.others, truth.inputs, torch.arange(4)).seen_by(network)
    assert measured("person_features", truth.inputs, truth, same).tolist() == [1.0] * 4


@pytest.mark.parametrize("n", [1, 8])
def test_chance_holds_for_guesses_that_know_nothing(n: int) -> None:
    """Guesses drawn apart from the truth are identified as often as stated, however they were matched."""
    hits, total, stated = 0, 0, 0.0
    for seed in range(96 // n + 24):
        truth, pool = Batch(images(n, 10_000 + seed), torch.arange(n)), gallery(19, seed=20_000 + 2 * seed)
        found = score(Reconstruction(images(n, 30_000 + seed)), truth, Yardstick(metrics=["identified"], gallery=pool))
        hits, total = hits + int(found.values["identified"].sum()), total + n
        stated = found.baselines["chance"]["identified"]
    assert stated == pytest.approx(n / (19 + n))
    assert beta.ppf(1e-4, max(hits, 1), total - hits + 1) < stated
    if n == 1:
        assert binom.cdf(hits, total, stated) > 1e-3  # and not far more rarely: the bound is met


def test_a_tie_and_a_missing_guess_identify_nobody() -> None:
    truth, pool = Batch(images(2, 1), torch.tensor([0, 1])), gallery(5)
    twin = Gallery(torch.cat([truth.inputs[:1], pool.others]), pool.pictures, pool.persons)
    assert measured("identified", truth.inputs, truth, twin).tolist() == [0.0, 1.0]
    grey = Batch(torch.full((2, *SHAPE), 0.5), torch.tensor([0, 1]))
    none = Reconstruction(torch.empty(0, *SHAPE))
    assert score(none, grey, Yardstick(metrics=["identified"], gallery=pool)).values["identified"].tolist() == [
        0.0,
        0.0,
    ]


def test_a_person_without_another_picture_has_no_value() -> None:
    truth = Batch(images(2, 1), torch.tensor([3, 77]))
    found = measured("person", truth.inputs, truth, gallery())
    assert found.isnan().tolist() == [False, True]


def test_the_interval_is_exact_and_nothing_is_made_up_without_a_gallery() -> None:
    truth, pool = Batch(images(10, 1), torch.arange(10)), gallery(9)
    found = score(Reconstruction(truth.inputs), truth, Yardstick(metrics=["identified"], gallery=pool))
    summary = found.summaries["identified"]
    assert (summary.mean, summary.n, summary.high) == (1.0, 10, 1.0)
    assert summary.low == pytest.approx(beta.ppf(0.025, 10, 1))
    bare = score(Reconstruction(truth.inputs), truth, Yardstick(metrics=["identified"]))
    assert "identified" not in bare.values
    assert "No gallery was drawn for identified" in bare.notes[-1]
    assert find_metric("identified").share


def test_weights_that_are_not_there_are_one_sentence(tmp_path) -> None:
    assert "there is no such file" in (features_missing(str(tmp_path / "none.safetensors")) or "")
    wrong = tmp_path / "wrong.safetensors"
    wrong.write_bytes(b"no weights")
    with pytest.raises(SeepageError, match="squeezenet1_1"):
        feature_network(str(wrong))
