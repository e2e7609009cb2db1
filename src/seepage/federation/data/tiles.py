"""Photographs from installed packages, cut into tiles that show something."""

from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from seepage.federation.data.decode import from_pillow, square
from seepage.federation.data.package_data import shipped
from seepage.federation.data.pixels import as_float

TILE_SIZE = 32
"""Side of a tile in pixels."""
LARGEST_SHARE = 20
"""Largest number of tiles of one photograph, so that none dominates the set."""
# Luma standard deviation in [0, 1]. Below it a tile is sky, wall or blur: it shows nothing that could leak, and a
# guess of one flat color would score as a recovery of it.
FLAT = 0.06


class Photograph(NamedTuple):
    """One photograph and how it is cut: `rows` square tiles fit on its short side."""

    name: str
    package: str
    path: str
    rows: int


_SKIMAGE, _SKLEARN = "data/", "datasets/images/"
# Left out: drawings (logo, horse, phantom, color wheel, chessboards), near-copies (the right motorcycle),
# textures in which a reader recognizes nothing (brick, grass, gravel), pictures that are almost flat (cell, moon,
# blurred clock) or too small to cut (microaneurysms), and the page, whose license is not stated.
PHOTOGRAPHS = (
    Photograph("astronaut", "skimage", _SKIMAGE + "astronaut.png", 3),
    Photograph("cameraman", "skimage", _SKIMAGE + "camera.png", 3),
    Photograph("cat", "skimage", _SKIMAGE + "chelsea.png", 3),
    Photograph("coffee", "skimage", _SKIMAGE + "coffee.png", 3),
    Photograph("coins", "skimage", _SKIMAGE + "coins.png", 4),
    Photograph("flower", "sklearn", _SKLEARN + "flower.jpg", 4),
    Photograph("galaxies", "skimage", _SKIMAGE + "hubble_deep_field.jpg", 6),
    Photograph("handwriting", "skimage", _SKIMAGE + "text.png", 2),
    Photograph("motorcycle", "skimage", _SKIMAGE + "motorcycle_left.png", 4),
    Photograph("pagoda", "sklearn", _SKLEARN + "china.jpg", 4),
    Photograph("retina", "skimage", _SKIMAGE + "retina.jpg", 4),
    Photograph("rocket", "skimage", _SKIMAGE + "rocket.jpg", 4),
    Photograph("tissue", "skimage", _SKIMAGE + "ihc.png", 4),
)


def photograph_tiles(size: int) -> tuple[Tensor, Tensor]:
    """Tiles `[n, 3, size, size]` uint8 of all photographs and the photograph's number of each."""
    images: list[Tensor] = []
    labels: list[int] = []
    for number, photograph in enumerate(PHOTOGRAPHS):
        with Image.open(shipped(photograph.package, photograph.path)) as image:
            tiles = _lively(_cut(image.convert("RGB"), photograph.rows))
        images.extend(from_pillow(square(tile, size)) for tile in tiles)
        labels.extend([number] * len(tiles))
    return torch.stack(images), torch.tensor(labels)


def _cut(image: Image.Image, rows: int) -> list[Image.Image]:
    """Square tiles that share no pixel, `rows` along the short side, centered in the photograph."""
    edge = min(image.size) // rows
    across, down = image.width // edge, image.height // edge
    left, top = (image.width - across * edge) // 2, (image.height - down * edge) // 2
    corners = [(left + x * edge, top + y * edge) for y in range(down) for x in range(across)]
    return [image.crop((x, y, x + edge, y + edge)) for x, y in corners]


def _lively(tiles: list[Image.Image]) -> list[Image.Image]:
    """Tiles with something in them, the liveliest `LARGEST_SHARE` so that no photograph dominates the set."""
    # At one fixed size, so that an index names the same image whatever size was asked for.
    luma = torch.stack([from_pillow(square(tile.convert("L"), TILE_SIZE)) for tile in tiles])
    contrast = as_float(luma).flatten(1).std(dim=1)
    best = contrast.argsort(descending=True, stable=True)[:LARGEST_SHARE]
    return [tiles[place] for place in sorted(best.tolist()) if contrast[place] >= FLAT]
