"""Algorithm 5, against the loop of the paper written out."""

import pytest
import torch

from seepage.base.nn import generator
from seepage.errors import SeepageError
from seepage.federation.defenses.fake_gradients import FakeGradients


def _by_the_book(gradient, candidates):
    """Lines 2, 7, 12 and 14 to 20 of Algorithm 5, one entry at a time."""
    psi = [sorted(row.tolist(), reverse=True) for row in candidates]
    zeta = sorted(range(len(gradient)), key=lambda k: -abs(gradient[k].item()))
    true = [gradient[k].item() for k in zeta]
    nearest = min(psi, key=lambda row: sum((a - b) ** 2 for a, b in zip(row, true, strict=True)))
    fake = [0.0] * len(gradient)
    for place, k in enumerate(zeta):
        fake[k] = min(nearest[place], max(gradient[k].item(), -nearest[place]))
    return torch.tensor(fake, dtype=gradient.dtype)


def test_equals_the_algorithm_written_out():
    gradient = torch.randn(31, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.3
    defense = FakeGradients(candidates=7, sigma2=0.5)
    drawn = torch.randn(7, 31, generator=generator(5, "candidates", 1)).double() * 0.5**0.5
    assert torch.allclose(defense.forge(gradient, seed=5).tensor, _by_the_book(gradient, drawn))


def test_as_written_the_larger_half_passes_and_forgeries_are_never_positive():
    gradient = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 1e-3
    forged = FakeGradients(candidates=5).forge(gradient, seed=0)
    changed = forged.tensor != gradient
    assert 0.45 < forged.kept < 0.55
    assert (forged.tensor[changed] > 0).float().mean() < 0.01
    smaller = gradient.abs() < gradient.abs().median()
    assert changed[smaller].float().mean() > 0.99


def test_sorted_by_magnitude_nothing_changes():
    gradient = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 1e-3
    forged = FakeGradients(candidates=5, order="magnitude").forge(gradient, seed=0)
    assert forged.kept > 0.99


def test_fewer_candidates_of_a_large_tensor_move_its_fakes_by_as_much_as_is_said():
    """Against a small gradient the nearest candidate is the shortest: the least of nu lengths, each chi-square."""
    gradient, d = torch.zeros(4096), 4096
    near = {}
    for count in (2, 200):
        found = [FakeGradients(candidates=count).forge(gradient, seed=s).distance for s in range(8)]
        near[count] = sum(found) / len(found) / (1.1 * d) ** 0.5
    # Expected least of nu standard normals: -0.56 of 2, -2.75 of 200.
    assert (near[2] - near[200]) * (2 * d) ** 0.5 == pytest.approx(2.75 - 0.56, abs=0.8)


def test_the_tau_loop_is_bounded_and_reported():
    gradient = torch.zeros(50)
    hopeless = FakeGradients(candidates=3, tau=1e-3).forge(gradient, seed=0)
    assert (hopeless.draws, hopeless.within) == (10, False)
    easy = FakeGradients(candidates=3, tau=1e3).forge(gradient, seed=0)
    assert (easy.draws, easy.within) == (1, True)
    assert easy.distance <= 1e3


def test_a_tensor_is_forged_alike_alone_and_among_others():
    draw = torch.Generator().manual_seed(2)
    tensors = {"a": torch.randn(9, generator=draw), "b": torch.randn(4, 3, generator=draw)}
    defense = FakeGradients(candidates=4)
    whole = defense.forge_all(tensors, generator(0, "defense"))
    alone = defense.forge_all({"b": tensors["b"]}, generator(0, "defense"))
    assert torch.equal(whole["b"].tensor, alone["b"].tensor)
    assert whole["b"].tensor.shape == (4, 3)


@pytest.mark.parametrize("wrong", [{"candidates": 0}, {"sigma2": 0.0}, {"tau": -1.0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SeepageError, match="FakeGradients needs"):
        FakeGradients(**wrong)
