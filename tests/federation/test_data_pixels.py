"""Size and channels: the array path against Pillow, which shares no code with it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from seepage.errors import Problems, SeepageError
from seepage.federation.data.arrays import ArrayDataset
from seepage.federation.data.dataset import Options, check_labels, divide, number_words
from seepage.federation.data.decode import from_pillow, square
from seepage.federation.data.pixels import as_float, fit


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(height * 100 + width).integers(0, 256, (height, width, channels), dtype=np.uint8)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 40), st.integers(3, 40), st.integers(2, 50))
def test_arrays_and_image_files_are_resized_alike(height: int, width: int, size: int) -> None:
    pixels = noise(height, width)
    array = fit(as_float(torch.from_numpy(pixels).permute(2, 0, 1)[None]), size, None)[0]
    file = from_pillow(square(Image.fromarray(pixels), size)).float() / 255
    assert array.shape == (3, size, size)
    # Pillow rounds to 8 bits after each of its two passes.
    assert (array - file).abs().max() <= 2 / 255


@pytest.mark.parametrize(("rows", "columns"), [(7, 12), (12, 7)])
def test_the_square_is_the_central_one(rows: int, columns: int) -> None:
    image = torch.zeros(1, 1, rows, columns)
    image[..., (rows - 7) // 2 : (rows - 7) // 2 + 7, (columns - 7) // 2 : (columns - 7) // 2 + 7] = 1
    assert fit(image, 7, None).min() == 1


def test_halving_averages_and_does_not_skip_pixels() -> None:
    checks = (torch.arange(16)[:, None] + torch.arange(16)[None]) % 2
    halved = fit(checks.float()[None, None], 8, None)
    assert (halved[..., 1:-1, 1:-1] - 0.5).abs().max() < 1e-6


def test_grey_is_pillows_grey() -> None:
    pixels = noise(9, 9)
    grey = fit(as_float(torch.from_numpy(pixels).permute(2, 0, 1)[None]), None, 1)[0, 0]
    oracle = np.asarray(Image.fromarray(pixels).convert("L")) / 255
    assert np.abs(grey.numpy() - oracle).max() <= 1 / 255


def test_grey_is_repeated_to_rgb() -> None:
    images = torch.rand(2, 1, 5, 5)
    assert torch.equal(fit(images, None, 3), torch.cat([images] * 3, dim=1))


@given(st.integers(2, 300), st.floats(0.001, 0.999), st.integers(0, 2**31))
def test_the_split_is_a_partition_with_both_sides(count: int, split: float, seed: int) -> None:
    train, private = divide(count, Options(split=split, seed=seed), "demo")
    assert sorted([*train.tolist(), *private.tolist()]) == list(range(count))
    assert len(train) >= 1
    assert len(private) >= 1
    assert abs(len(private) - split * count) <= 1


def test_the_split_follows_its_seed_and_no_other() -> None:
    torch.manual_seed(1)
    first = divide(50, Options(seed=3), "demo")[1]
    torch.manual_seed(2)
    assert torch.equal(first, divide(50, Options(seed=3), "demo")[1])
    assert not torch.equal(first, divide(50, Options(seed=4), "demo")[1])


def test_a_share_of_one_makes_all_private() -> None:
    train, private = divide(3, Options(split=1.0), "demo")
    assert (train.tolist(), private.tolist()) == ([], [0, 1, 2])


def test_one_image_cannot_be_split() -> None:
    with pytest.raises(SeepageError, match="has 1 image,"):
        divide(1, Options(), "demo")


def test_all_wrong_options_are_told_at_once() -> None:
    with pytest.raises(Problems) as caught:
        Options(size=0, channels=2, split=1.5)
    assert len(caught.value.problems) == 3


@given(st.lists(st.text(max_size=3), min_size=1, max_size=20))
def test_words_are_numbered_so_that_names_read_back(words: list[str]) -> None:
    labels, classes = number_words(words)
    assert [classes[label] for label in labels.tolist()] == words
    assert list(classes) == sorted(set(words))


def test_labels_that_skip_numbers_keep_them() -> None:
    assert check_labels(torch.tensor([0, 4]), None, "x") == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [([0, -1], None, "negative"), ([0, 10**12], None, "1000000000000"), ([0, 2], ["a", "b"], "only 2 classes")],
)
def test_labels_that_name_no_class(labels: list[int], names: list[str] | None, message: str) -> None:
    with pytest.raises(SeepageError, match=message):
        check_labels(torch.tensor(labels), names, "x")


@pytest.mark.parametrize("shape", [(4, 2, 8, 8), (4, 8, 8)])
def test_array_dataset_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    none = torch.tensor([0])
    with pytest.raises(SeepageError, match="C = 1 or 3"):
        ArrayDataset("x", "", torch.zeros(shape), torch.zeros(4).long(), ("a",), none, none)


def test_array_dataset_refuses_missing_labels() -> None:
    none = torch.tensor([0])
    with pytest.raises(SeepageError, match="4 images and 3 labels"):
        ArrayDataset("x", "", torch.zeros(4, 1, 8, 8), torch.zeros(3).long(), ("a",), none, none)
