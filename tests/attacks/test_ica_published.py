"""The published objective, term by term, and its search on a small planted mixture."""

import numpy as np
import pytest
import torch

from seepage.attacks.cpa.ica import EMBEDDINGS, IMAGES, Objective, Unmixing

NOTHING = Objective(negentropy=0, independence=0, tv=0)
ROWS = torch.nn.functional.normalize(torch.tensor([[1.0, 0.5], [0.2, 1.0]]), dim=1)
SOURCES = torch.tensor([[0.5, -1.0, 2.0, 0.0], [1.0, 1.0, -3.0, 0.2]])
OFFSETS = torch.tensor([[0.1], [-0.2]])


def value(**weights: float) -> float:
    from dataclasses import replace

    return float(replace(NOTHING, **weights)(ROWS, SOURCES, OFFSETS, (1, 2, 2)))


def test_negentropy_is_the_mean_squared_log_cosh() -> None:
    expected = -np.mean(np.mean(np.log(np.cosh(SOURCES.numpy())), axis=1) ** 2)
    assert value(negentropy=1) == pytest.approx(expected, rel=1e-5)


def test_independence_is_over_pairs_of_rows() -> None:
    cosine = abs(float(ROWS[0] @ ROWS[1]))
    assert value(independence=2, temperature=3) == pytest.approx(2 * 2 * (np.exp(3 * cosine) - 1) / 4, rel=1e-5)


def test_total_variation_l1_and_sign_are_of_the_sources_with_means() -> None:
    whole = (SOURCES + OFFSETS).numpy()
    images = whole.reshape(2, 2, 2)
    tv = np.abs(np.diff(images, axis=2)).mean() + np.abs(np.diff(images, axis=1)).mean()
    assert value(tv=1) == pytest.approx(tv, rel=1e-5)
    assert value(l1=1) == pytest.approx(np.abs(whole).mean(), rel=1e-5)
    parts = [min(np.linalg.norm(np.minimum(row, 0)), np.linalg.norm(np.maximum(row, 0))) for row in whole]
    assert value(sign=1) == pytest.approx(np.mean(parts), rel=1e-5)


def test_a_large_source_stays_finite() -> None:
    assert torch.isfinite(IMAGES(ROWS, 1e4 * SOURCES, OFFSETS, None))


def best_cosines(sources: torch.Tensor, objective: Objective) -> torch.Tensor:
    mixed = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 3))) @ sources
    search = Unmixing(mixed, 3, objective, lr=1e-2)
    values = [search.step() for _ in range(1000)]
    assert values[-1] < values[0]
    found = search.sources()
    return torch.corrcoef(torch.cat([found.double(), sources]))[:3, 3:].abs().max(1).values


@pytest.mark.slow
def test_the_search_unmixes_flat_sources_but_not_peaked_ones() -> None:
    """More log cosh means flatter than a Gaussian: the paper's negentropy, maximized, is wrong for peaked sources."""
    draw = np.random.default_rng(0)
    objective = Objective(negentropy=30.0, independence=1.0, temperature=5.0, tv=0.0)
    assert best_cosines(torch.from_numpy(draw.uniform(-1, 1, size=(3, 4000))), objective).min() > 0.98
    assert best_cosines(torch.from_numpy(draw.laplace(size=(3, 4000))), objective).min() < 0.9


@pytest.mark.slow
def test_total_variation_alone_unmixes_smooth_images() -> None:
    draw = torch.Generator().manual_seed(0)
    steps = (torch.rand((3, 1, 4, 4), generator=draw, dtype=torch.float64)).repeat_interleave(8, 2)
    images = steps.repeat_interleave(8, 3).flatten(1)
    mixed = torch.randn((5, 3), generator=draw, dtype=torch.float64) @ images
    search = Unmixing(mixed, 3, Objective(negentropy=0), shape=(1, 32, 32), lr=1e-2)
    before = search.sources()
    for _ in range(800):
        search.step()
    after = search.sources()

    def variation(sources: torch.Tensor) -> float:
        centered = sources - sources.mean(1, keepdim=True)
        return float((centered / centered.std(1, keepdim=True)).reshape(3, 32, 32).diff(dim=2).abs().mean())

    assert variation(after) < variation(before)


def test_constants() -> None:
    assert (IMAGES.tv, IMAGES.independence, IMAGES.temperature) == (3.1, 1.47, 12.4)
    assert (EMBEDDINGS.l1, EMBEDDINGS.sign, EMBEDDINGS.independence, EMBEDDINGS.temperature) == (5.0, 0.13, 5.3, 7.7)
