"""Decoding of one untrusted image file.

Only this module and `tiles` import Pillow at their top; the others import them late, to keep `import seepage` light.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

# Named one by one, because Pillow also opens formats that call outside programs.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF")
MAX_PIXELS = 2**26
"""Largest number of pixels of an image file, 8192 x 8192: checked before it is decoded."""
_GREY = ("1", "L", "LA", "I;16", "I;16B", "I;16L", "I;16N")
_COLOR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
_ORIENTATION = 0x0112
"""EXIF tag of the orientation."""


class Unreadable(Exception):
    """An image file that cannot be used, with the reason in words."""


class Header(NamedTuple):
    """What an image file says about itself: height and width as it is to be shown, and whether it is grey."""

    height: int
    width: int
    grey: bool


def read_header(file: Path | IO[bytes]) -> Header:
    """Read an image's size and kind without decoding its pixels.

    Raises:
        Unreadable: For no image of the known formats, too many pixels, or pixels that are no 8- or 16-bit values.
    """
    with _opened(file) as image:
        width, height = image.size
        if _lies_on_its_side(image):
            width, height = height, width
        return Header(height, width, image.mode in _GREY)


def read_image(file: Path | IO[bytes], size: int | None, channels: int) -> Tensor:
    """Decode an image, its first frame, upright: uint8 `[channels, H, W]`.

    Args:
        file: Path or binary stream.
        size: Side of the central square to deliver, antialiased; None leaves the image as it is.
        channels: 1 for grey, 3 for RGB. Transparency is dropped.

    Raises:
        Unreadable: As `read_header`, and for pixels that are cut short or damaged.
    """
    with _opened(file) as image:
        upright = ImageOps.exif_transpose(image)
        plain = _plain(upright).convert("L" if channels == 1 else "RGB")
        return from_pillow(plain if size is None else square(plain, size))


def _plain(image: Image.Image) -> Image.Image:
    """An image in 8 bits; Pillow's own conversion from 16 bits clips instead of scaling."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image


@contextmanager
def _opened(file: Path | IO[bytes]) -> Iterator[Image.Image]:
    """Open an image of a known format and a bearable size; whatever goes wrong inside becomes `Unreadable`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                _check(image)
                yield image
    except Unreadable:
        raise
    except UnidentifiedImageError as error:
        raise Unreadable("it is no whole JPEG, PNG, BMP, WebP, TIFF or GIF image") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Unreadable(f"it has more than {MAX_PIXELS:,} pixels") from error
    except Exception as error:  # Decoders raise almost anything on forged files.
        raise Unreadable(str(error).partition("\n")[0][:120] or type(error).__name__) from error


def _check(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise Unreadable(f"it has {image.width}x{image.height} pixels, more than {MAX_PIXELS:,}")
    if image.mode not in (*_GREY, *_COLOR):
        raise Unreadable(f"its pixels are of the kind {image.mode!r}, not 8- or 16-bit")


def _lies_on_its_side(image: Image.Image) -> bool:
    """Whether the EXIF orientation swaps width and height. Pillow applies it to TIFF files itself."""
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return False  # Without this, Pillow would decode a whole PNG to look for EXIF behind its pixels.
    return image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)


def square(image: Image.Image, size: int) -> Image.Image:
    """The central square of a Pillow image of mode L or RGB, resized as `fit` does it."""
    edge = min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    # Cropping first matters: a resize with `box=` lets the filter read pixels beyond the box.
    return image.crop((left, top, left + edge, top + edge)).resize((size, size), Image.Resampling.BILINEAR)


def from_pillow(image: Image.Image) -> Tensor:
    """A Pillow image of mode L or RGB as uint8 `[C, H, W]`."""
    channels = len(image.getbands())
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, channels).permute(2, 0, 1).contiguous()
