"""The rule of what counts as recognized: what people see passes, and what is only of its kind does not."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from skimage import data, transform
from torch import Tensor

from seepage import Architecture, attack, build, record, score
from seepage.audit.case import Thresholds
from seepage.base.limits import LIKENESS
from seepage.federation.data import load
from seepage.federation.defenses import DEFENSES
from seepage.federation.types import Batch, Reconstruction
from seepage.measure.metrics import correlation, likeness, ssim


def picture(name: str) -> Tensor:
    """`[1, 1, 64, 64]` a test picture of scikit-image."""
    found = {"phantom": data.shepp_logan_phantom, "photograph": data.camera}[name]()
    small = transform.resize(found, (64, 64), anti_aliasing=True)
    return torch.from_numpy(np.asarray(small, dtype=np.float32))[None, None]


def noised(images: Tensor, sigma: float) -> Tensor:
    return (images + sigma * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)


@pytest.mark.parametrize("name", ["phantom", "photograph"])
def test_a_scan_and_a_photograph_with_fine_noise_are_recognized(name: str) -> None:
    truth = picture(name)
    guess = noised(truth, 0.05)
    assert ssim(guess, truth) < 0.6
    assert score(Reconstruction(guess), Batch(truth, torch.zeros(1))).recovered == 1.0


@pytest.mark.slow
def test_digits_rebuilt_from_a_tenth_of_the_update_are_recognized_below_the_mean_color() -> None:
    digits = load("digits")
    batch = digits.batch(digits.private[:2])
    sent = record(
        build(Architecture("fc2"), digits.input_shape, 10, seed=0),
        batch,
        defense=DEFENSES["sparsify"](keep=0.1),
        known=["labels"],
        seed=0,
    )
    found = score(attack(sent, "gradient_matching", seed=0), batch)
    assert found.gain_db < 0
    assert found.recovered == 1.0


def test_brightness_contrast_and_sign_do_not_matter() -> None:
    truth = picture("photograph")
    guess = noised(truth, 0.1)
    wanted = likeness(guess, truth)
    for changed in (0.3 + 0.2 * guess, 1 - guess, guess / 50):
        assert torch.allclose(likeness(changed, truth), wanted, atol=1e-3)
    assert likeness(truth, truth).item() == pytest.approx(1.0)


def test_other_digits_of_the_class_are_not_recognized_however_alike() -> None:
    digits = load("digits")
    labels = digits.batch(torch.arange(len(digits))).labels
    mine = torch.cat([(labels == value).nonzero().flatten()[:60] for value in range(10)])
    theirs = torch.cat([(labels == value).nonzero().flatten()[60:120] for value in range(10)])
    truth, others = digits.batch(mine).inputs, digits.batch(theirs).inputs
    assert (correlation(others, truth) > 0.8).double().mean() > 0.01  # a limit of correlation would let these pass
    assert (likeness(others, truth) >= LIKENESS).double().mean() < 0.01


def test_what_is_flat_moved_or_noise_alone_shows_nothing() -> None:
    truth = picture("photograph")
    nothing = {
        "flat": torch.full_like(truth, 0.5),
        "moved": truth.roll(4, 3),
        "mirrored": truth.flip(3),
        "noise": noised(torch.full_like(truth, 0.5), 0.3),
    }
    for name, guess in nothing.items():
        assert likeness(guess, truth).item() < LIKENESS, name
    assert likeness(truth, torch.full_like(truth, 0.5)).item() == 0.0


def test_noise_on_a_large_picture_is_averaged_as_the_eye_does() -> None:
    small = picture("photograph")
    large = F.interpolate(small, size=(256, 256), mode="bilinear")
    assert likeness(noised(large, 0.5), large).item() > likeness(noised(small, 0.5), small).item() + 0.1


def test_the_rule_is_said_as_it_counted() -> None:
    assert Thresholds(recovered_likeness=0.4).of_pictures == "a likeness of at least 0.4"
