"""The home page's picture, from a run of `seepage audit`: `python docs/site_builder/picture.py RUN docs/home.png`."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from seepage.base.images import pixels
from seepage.report.pictures import open_examples
from seepage.report.run import open_run

SHOWN = 12
PANELS = (
    ("batch-64", "cocktail_party", "fully connected network, batch of 64: the first 12, reconstructed exactly"),
    (
        "convnet_size-4_steps-0",
        "gauss_newton",
        "convolutional network with ReLU, batch of 4: all of them, reconstructed exactly",
    ),
)


def draw(run: Path, out: Path) -> None:
    """Two strips for each panel: private examples, and what the attack made of the update."""
    opened = open_run(run)
    cases = {case.name: case for case in opened.cases}
    figure = plt.figure(figsize=(9.6, 4.1), dpi=100, facecolor="white")
    for panel, (name, attack, title) in enumerate(PANELS):
        pictures = open_examples(opened, cases[name])
        figure.text(0.5, 0.985 - 0.5 * panel, title, ha="center", va="top", fontsize=12)
        places = pictures.places[:SHOWN]
        reconstructed = [pictures.guesses[attack].at(place) for place in places]
        rows = {"private": [pictures.private(place) for place in places], "recovered": reconstructed}
        for row, (words, shown) in enumerate(rows.items()):
            figure.text(0.075, 0.83 - 0.5 * panel - 0.19 * row, words, ha="right", va="center", fontsize=10)
            for column, tensor in enumerate(shown):
                _put(figure, tensor, (0.085 + 0.0757 * column, 0.745 - 0.5 * panel - 0.19 * row))
    figure.savefig(out)


def _put(figure: Figure, tensor: Tensor | None, corner: tuple[float, float]) -> None:
    axes = figure.add_axes((*corner, 0.0725, 0.17))
    axes.axis("off")
    if tensor is not None:
        axes.imshow(pixels(tensor), cmap="gray", vmin=0, vmax=255)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
