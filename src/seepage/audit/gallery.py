"""The gallery that the scorer ranks guesses against, in a run folder. It lies with the truth: no attack reads it.

private/gallery.safetensors    others [m, *shape], pictures [p, *shape], persons [p]; all on the data's own range
"""

from pathlib import Path

from seepage.core.storage import read_tensors, write_tensors
from seepage.errors import SeepageError
from seepage.metrics import find_metric
from seepage.metrics.identify import Gallery, feature_network, features_missing
from seepage.recipe.case import Scoring

FILE = "gallery.safetensors"


def wants_gallery(scoring: Scoring) -> bool:
    """Whether the recipe asks for a metric that ranks guesses against others."""
    return any(find_metric(use).gallery for use in scoring.metrics)


def wants_features(scoring: Scoring) -> bool:
    """Whether the recipe asks for a metric of a public network's features."""
    return any(use.endswith("_features") and find_metric(use).gallery for use in scoring.metrics)


def save_gallery(gallery: Gallery, private: Path) -> None:
    """Write the file."""
    tensors = {"others": gallery.others, "pictures": gallery.pictures, "persons": gallery.persons}
    write_tensors(private / FILE, tensors)


def open_gallery(private: Path | None, scoring: Scoring, value_range: tuple[float, float]) -> Gallery | None:
    """The gallery of a cell, mapped to [0, 1], with the network of its features; None where none was drawn.

    Raises:
        SeepageError: Where the file is damaged, or that of the features holds other weights.
    """
    if private is None or not (private / FILE).exists() or not wants_gallery(scoring):
        return None
    tensors, (low, high) = read_tensors(private / FILE), value_range
    try:
        others, pictures = ((tensors[name] - low) / (high - low) for name in ("others", "pictures"))
        persons = tensors["persons"]
    except KeyError as error:
        raise SeepageError(f"{private / FILE} lacks {str(error)[:80]}; record it again") from error
    if len(persons) != len(pictures) or others.shape[1:] != pictures.shape[1:]:
        raise SeepageError(f"{private / FILE} is damaged: its parts do not fit each other; record it again")
    there = wants_features(scoring) and features_missing(scoring.features) is None
    network = feature_network(scoring.features) if there else None
    gallery = Gallery(others.clamp(0, 1), pictures.clamp(0, 1), persons)
    return gallery if network is None else gallery.seen_by(network)
