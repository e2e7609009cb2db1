"""Image metrics against scikit-image, closed forms and a stand-in LPIPS backbone."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from seepage.errors import SeepageError
from seepage.measure.metrics import (
    cosine,
    is_image,
    lpips,
    lpips_help,
    lpips_missing,
    lpips_weights,
    mse,
    psnr,
    ssim,
    ssim_window,
)
from seepage.measure.metrics import image as image_module


def blurred(n: int, c: int, h: int, w: int, seed: int = 0) -> Tensor:
    noise = torch.rand(n, c, h, w, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.avg_pool2d(noise, 3, 1, 1).mul(1.5).clamp(0, 1)


def noisy(image: Tensor, sigma: float = 0.05, seed: int = 1) -> Tensor:
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(seed))
    return (image + sigma * noise).clamp(0, 1)


@given(st.integers(0, 99), st.sampled_from([1, 3]), st.floats(0.01, 0.5))
@settings(max_examples=20, deadline=None)
def test_psnr_is_that_of_scikit_image(seed: int, channels: int, sigma: float) -> None:
    truth = blurred(3, channels, 9, 7, seed)
    guesses = noisy(truth, sigma)
    wanted = [
        peak_signal_noise_ratio(t.double().numpy(), g.double().numpy(), data_range=1)
        for t, g in zip(truth, guesses, strict=True)
    ]
    assert psnr(guesses, truth).numpy() == pytest.approx(wanted, rel=1e-9)


def test_psnr_of_an_exact_guess_is_150_db_and_of_a_nearly_exact_one_less() -> None:
    truth = blurred(2, 3, 8, 8)
    assert psnr(truth, truth).tolist() == [150.0, 150.0]
    near = truth.double() + 1e-7
    assert psnr(near, truth).numpy() == pytest.approx([140.0, 140.0], abs=1e-6)


def test_mse_is_per_example_for_any_shape_and_any_piece_size(monkeypatch: pytest.MonkeyPatch) -> None:
    guesses, truth = torch.rand(2, 7, 4, 5, generator=torch.Generator().manual_seed(0)).unbind(0)
    wanted = ((guesses.double() - truth.double()) ** 2).mean((1, 2))
    assert torch.allclose(mse(guesses, truth), wanted)
    monkeypatch.setattr(image_module, "_PIECE", 30)
    assert torch.allclose(mse(guesses, truth), wanted)
    assert mse(guesses[:0], truth[:0]).shape == (0,)
    assert mse(guesses, truth).dtype == torch.float64


def skimage_ssim(guess: Tensor, truth: Tensor, full: bool = False) -> float | tuple[float, np.ndarray]:
    return structural_similarity(
        guess.double().numpy(),
        truth.double().numpy(),
        channel_axis=0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1.0,
        full=full,
    )


def mirrored(image: Tensor, margin: int = 5) -> Tensor:
    return torch.from_numpy(np.pad(image.numpy(), ((0, 0), (margin, margin), (margin, margin)), "reflect"))


@pytest.mark.parametrize("shape", [(1, 11, 11), (3, 16, 23), (1, 28, 28), (3, 32, 32)])
def test_ssim_is_that_of_scikit_image_on_images_mirrored_beforehand(shape: tuple[int, int, int]) -> None:
    # scikit-image leaves 5 pixels out at each side; with 5 mirrored pixels added it averages over the image
    truth = blurred(3, *shape)
    guesses = noisy(truth, 0.1)
    wanted = [skimage_ssim(mirrored(g), mirrored(t)) for g, t in zip(guesses, truth, strict=True)]
    assert ssim(guesses, truth).numpy() == pytest.approx(wanted, abs=1e-6)


def test_ssim_differs_from_plain_scikit_image_only_by_the_border() -> None:
    truth = blurred(1, 3, 48, 48)
    guesses = noisy(truth, 0.1)
    plain = skimage_ssim(guesses[0], truth[0])
    assert abs(float(ssim(guesses, truth)) - plain) < 0.02


@pytest.mark.parametrize(
    ("side", "window"), [(3, 3), (4, 3), (5, 5), (6, 5), (8, 7), (9, 9), (10, 9), (11, 11), (40, 11)]
)
def test_small_images_get_the_largest_odd_window_that_fits(side: int, window: int) -> None:
    assert ssim_window(side, side + 9) == window
    truth = blurred(2, 1, side, side + 9)
    guesses = noisy(truth)
    assert ssim(guesses, truth).numpy() == pytest.approx(
        [slow_ssim(g[0], t[0], window) for g, t in zip(guesses, truth, strict=True)], abs=1e-9
    )


def slow_ssim(guess: Tensor, truth: Tensor, window: int) -> float:
    """SSIM pixel by pixel, straight from the definition, for one channel."""
    r = window // 2
    a, b = (mirrored(t[None], r)[0].double().numpy() for t in (guess, truth))
    axis = np.arange(-r, r + 1)
    row = np.exp(-(axis**2) / (2 * (1.5 * window / 11) ** 2))
    w = np.outer(row, row) / row.sum() ** 2
    values = []
    for i in range(guess.shape[0]):
        for j in range(guess.shape[1]):
            p, q = a[i : i + window, j : j + window], b[i : i + window, j : j + window]
            mp, mq = (w * p).sum(), (w * q).sum()
            variances = (w * ((p - mp) ** 2 + (q - mq) ** 2)).sum()
            covariance = (w * (p - mp) * (q - mq)).sum()
            luminance = (2 * mp * mq + 1e-4) / (mp**2 + mq**2 + 1e-4)
            values.append(luminance * (2 * covariance + 9e-4) / (variances + 9e-4))
    return float(np.mean(values))


def test_ssim_is_one_for_exact_guesses_and_independent_of_the_batch() -> None:
    truth = blurred(9, 3, 32, 32)
    guesses = noisy(truth)
    assert ssim(truth, truth).tolist() == [1.0] * 9
    alone = torch.cat([ssim(guesses[i : i + 1], truth[i : i + 1]) for i in range(9)])
    assert torch.allclose(ssim(guesses, truth), alone, atol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (3, 2, 40), (4, 4)])
def test_what_is_not_an_image_has_no_ssim(shape: tuple[int, ...]) -> None:
    assert not is_image(shape)
    with pytest.raises(SeepageError, match="not images"):
        ssim(torch.zeros(2, *shape), torch.zeros(2, *shape))


@pytest.mark.slow
@pytest.mark.parametrize("metric", [mse, psnr, ssim, cosine, lpips])
def test_shapes_that_differ_are_refused(metric: object) -> None:
    with pytest.raises(SeepageError, match="align"):
        metric(torch.zeros(2, 3, 8, 8), torch.zeros(3, 3, 8, 8))  # type: ignore[operator]


def test_cosine_is_that_of_numpy_and_zero_for_zero() -> None:
    a, b = torch.randn(2, 5, 4, 6, generator=torch.Generator().manual_seed(0)).unbind(0)
    wanted = [
        np.dot(p, q) / np.linalg.norm(p) / np.linalg.norm(q)
        for p, q in zip(a.flatten(1).double().numpy(), b.flatten(1).double().numpy(), strict=True)
    ]
    assert cosine(a, b).numpy() == pytest.approx(wanted)
    assert cosine(torch.zeros(1, 3), torch.ones(1, 3)).tolist() == [0.0]


@pytest.fixture
def _empty_cache(tmp_path, monkeypatch):
    """An empty place for weights, and no way to download any."""

    def refuse(*args: object) -> None:
        raise AssertionError("a download was tried")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    image_module._lpips_net.cache_clear()
    yield
    image_module._lpips_net.cache_clear()


@pytest.fixture
def _stand_in_vgg(_empty_cache, monkeypatch):
    """A weights file that exists and a VGG-16 with random features in place of the trained one."""
    import torchvision
    from torchvision.models.vgg import cfgs, make_layers

    path = lpips_weights("vgg")
    path.parent.mkdir(parents=True)
    path.touch()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        features = make_layers(cfgs["D"], batch_norm=False)
    monkeypatch.setattr(torchvision.models, "vgg16", lambda weights: SimpleNamespace(features=features))


@pytest.mark.usefixtures("_empty_cache")
@pytest.mark.parametrize(("net", "model"), [("vgg", "vgg16"), ("alex", "alexnet")])
def test_without_weights_there_is_no_lpips_no_download_and_one_sentence_of_help(net, model) -> None:
    image = blurred(1, 3, 32, 32)
    assert lpips(image, image, net) is None
    assert lpips_missing((3, 32, 32), net) == lpips_help(net)
    assert f"{model}(weights='DEFAULT')" in lpips_help(net)
    assert lpips_weights(net).name in lpips_help(net)


@pytest.mark.usefixtures("_stand_in_vgg")
def test_lpips_is_per_image_zero_when_exact_and_grows_with_the_error() -> None:
    truth = blurred(3, 3, 32, 32)
    guesses = torch.stack([truth[0], noisy(truth, 0.05)[1], noisy(truth, 0.3)[2]])
    found = lpips(guesses, truth)
    assert found.shape == (3,)
    assert found[0] == 0
    assert 0 < found[1] < found[2]
    # torchmetrics itself, given the same images on its own default range of [-1, 1]
    from torchmetrics.functional.image import learned_perceptual_image_patch_similarity as wanted

    for i in range(3):
        alone = lpips(guesses[i : i + 1], truth[i : i + 1])
        assert alone is not None
        pair = (2 * guesses[i : i + 1] - 1, 2 * truth[i : i + 1] - 1)
        assert alone.tolist() == pytest.approx([float(wanted(*pair, net_type="vgg"))], rel=1e-4, abs=1e-9)
        assert alone.tolist() == pytest.approx(found[i : i + 1].tolist(), rel=1e-4, abs=1e-9)


@pytest.mark.usefixtures("_stand_in_vgg")
def test_lpips_of_grey_images_is_that_of_three_equal_channels_and_small_ones_have_none() -> None:
    truth = blurred(2, 1, 16, 16)
    guesses = noisy(truth)
    grey, color = lpips(guesses, truth), lpips(guesses.repeat(1, 3, 1, 1), truth.repeat(1, 3, 1, 1))
    assert grey is not None
    assert torch.equal(grey, color)
    assert lpips(guesses[..., :15], truth[..., :15]) is None
    assert lpips(guesses.repeat(1, 2, 1, 1), truth.repeat(1, 2, 1, 1)) is None


@pytest.mark.usefixtures("_empty_cache")
def test_damaged_lpips_weights_are_named() -> None:
    path = lpips_weights("alex")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not weights")
    image = blurred(1, 3, 32, 32)
    with pytest.raises(SeepageError, match=path.name):
        lpips(image, image, "alex")


def test_an_unknown_lpips_network_lists_the_known_ones() -> None:
    with pytest.raises(SeepageError, match="Known: alex, vgg"):
        lpips_help("vgg19")  # type: ignore[arg-type]


def test_correlation_is_numpys_and_blind_to_brightness_and_contrast() -> None:
    draw = torch.Generator().manual_seed(3)
    truth, guess = (torch.rand((5, 3, 8, 8), generator=draw) for _ in range(2))
    expected = [np.corrcoef(g.flatten(), t.flatten())[0, 1] for g, t in zip(guess.numpy(), truth.numpy(), strict=True)]
    assert image_module.correlation(guess, truth).tolist() == pytest.approx(expected, abs=1e-6)
    assert image_module.correlation(0.3 + 0.2 * truth, truth).tolist() == pytest.approx([1.0] * 5, abs=1e-6)
    assert image_module.correlation(1 - truth, truth).tolist() == pytest.approx([-1.0] * 5, abs=1e-6)
    assert image_module.correlation(torch.full_like(truth, 0.3), truth).tolist() == [0.0] * 5
