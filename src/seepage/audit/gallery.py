"""The gallery that the scorer ranks guesses against, in a run folder. It lies with the truth: no attack reads it.

private/gallery.safetensors    others [m, *shape], pictures [p, *shape], persons [p]; all on the data's own range
"""

from pathlib import Path

from torch import nn

from seepage.audit.recipe.case import Scoring
from seepage.base.storage import read_tensors, write_tensors
from seepage.errors import SeepageError
from seepage.measure.metrics import find_metric
from seepage.measure.metrics.features import feature_network, features_missing
from seepage.measure.metrics.identify import Gallery

FILE = "gallery.safetensors"


def wants_gallery(scoring: Scoring) -> bool:
    """Whether the recipe asks for a metric that ranks guesses against others."""
    return any(find_metric(use).gallery for use in scoring.metrics)


def feature_metrics(scoring: Scoring) -> list[str]:
    """The metrics of a public network's features that the recipe asks for."""
    found = map(find_metric, scoring.metrics)
    return [one.name for one in found if one.features or (one.gallery and one.name.endswith("_features"))]


def features_of(scoring: Scoring) -> nn.Module | None:
    """The network of the features, where the recipe asks for a metric of them and its weights are here.

    Raises:
        SeepageError: Where the file of weights holds others.
    """
    there = bool(feature_metrics(scoring)) and features_missing(scoring.features) is None
    return feature_network(scoring.features) if there else None


def save_gallery(gallery: Gallery, private: Path) -> None:
    """Write the file."""
    tensors = {"others": gallery.others, "pictures": gallery.pictures, "persons": gallery.persons}
    write_tensors(private / FILE, tensors)


def open_gallery(private: Path | None, scoring: Scoring, value_range: tuple[float, float]) -> Gallery | None:
    """The gallery of a case, mapped to [0, 1], with the network of its features; None where none was drawn.

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
    network = features_of(scoring)
    gallery = Gallery(others.clamp(0, 1), pictures.clamp(0, 1), persons)
    return gallery if network is None else gallery.seen_by(network)
