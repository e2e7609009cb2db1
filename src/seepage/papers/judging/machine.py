"""A machine that answers a judging page as blindly as a person: it sees the two pictures, and not what the pair is.

It is no person, and its rate is called a machine's wherever it stands. It says "same content" where the right picture
is nearer to the left one than nineteen of twenty pairs of *different* private pictures of the run are to each other,
and nearer than the left one's mean color is. So it calls strangers the same in one case of twenty at most, and the
page's controls check it like any judge.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path

import torch
from torch import Tensor, nn

from seepage.base.storage import SCHEMA, write_json
from seepage.errors import SeepageError
from seepage.measure.metrics import baselines, feature_distance, is_image, ssim
from seepage.papers.judging.pairs import Answer, ShownPair

MOST_STRANGERS = 0.05
"""Largest share of pairs of different private pictures that the machine calls the same."""
FEWEST_STRANGERS = 20
"""Fewest such pairs that the limit is drawn from: then it lies below one of them."""
MOST_PICTURES = 24
"""Private pictures that are compared with each other, at most: 552 pairs."""
NAME = "machine"

Distance = Callable[[Tensor, Tensor], float]


def machine_answers(
    shown: Mapping[str, ShownPair], private: Sequence[Tensor], network: nn.Module | None
) -> tuple[dict[str, Answer], str]:
    """Answer every pair of a page, by the two pictures alone.

    Args:
        shown: Pair number to the pair; only its pictures are looked at.
        private: Private pictures `[C, H, W]` of the run, from which the limit is drawn.
        network: What `feature_network` returns; None: structural similarity in place of features.

    Returns:
        Pair number to answer, and the rule in words.

    Raises:
        SeepageError: For pictures that are no images, and where the run has too few different ones.
    """
    if not all(is_image(tuple(picture.shape)) for picture in private):
        raise SeepageError("a machine judge compares images, and this run's examples are none; let people judge them")
    distance = _distance(network)
    several = list(private)[:MOST_PICTURES]
    apart = [distance(a, b) for a, b in permutations(several, 2) if a.shape == b.shape and not torch.equal(a, b)]
    if len(apart) < FEWEST_STRANGERS:
        raise SeepageError(
            f"a machine judge draws its limit from {FEWEST_STRANGERS} pairs of different private pictures or more, and "
            f"this run has {len(apart)}; audit more examples with --set batch.count=8"
        )
    # The k-th smallest of N distances between strangers, k = 5 % of N: fewer than k of them lie below it.
    limit = sorted(apart)[int(MOST_STRANGERS * len(apart))]
    answers: dict[str, Answer] = {}
    for name, pair in shown.items():
        found = distance(pair.right, pair.left)
        flat = distance(baselines(pair.left[None], seed=0)["mean_color"][0], pair.left)
        answers[name] = "same" if found < min(limit, flat) else "not"
    what = "structural dissimilarity" if network is None else "distance of SqueezeNet's features"
    rule = f"{what} below {limit:.4f}, as {MOST_STRANGERS:.0%} of {len(apart)} pairs of different private pictures are"
    return answers, f"{rule}, and below that of the mean color"


def write_machine_answers(path: Path, page: str, answers: Mapping[str, Answer], rule: str) -> Path:
    """Write the answers as a judge's file, with the rule that gave them."""
    write_json(path, {"schema": SCHEMA, "judge": NAME, "page": page, "machine": rule, "answers": dict(answers)})
    return path


def _distance(network: nn.Module | None) -> Distance:
    def of_two(guess: Tensor, truth: Tensor) -> float:
        pair = guess[None].clamp(0, 1), truth[None].clamp(0, 1)
        found = None if network is None else feature_distance(*pair, network)
        return float(1 - ssim(*pair)) if found is None else float(found)

    return of_two
