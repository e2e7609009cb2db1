"""Every value of a defense that makes no sense is refused from a recipe, in one sentence, before anything is run."""

from typing import Any

import pytest
import torch
from refusals import refusal
from torch import nn

from seepage import SeepageError, record
from seepage.audit.recipe.resolve import resolve_cases
from seepage.federation.defenses import DPSGD, Soteria
from seepage.federation.types import Batch
from seepage.measure.privacy.accounting import epsilon

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"use": "gaussian_noise", "sigma": -0.1}, "sigma >= 0"),
    ({"use": "unit_norm_noise", "sigma": -0.1}, "sigma >= 0"),
    ({"use": "decaying_noise", "sigma": -0.1}, "sigma >= 0"),
    ({"use": "zero_sum_noise", "sigma": -0.1}, "sigma >= 0"),
    ({"use": "dp_sgd", "sigma": -0.1}, "sigma >= 0"),
    ({"use": "laplace_noise", "scale": -0.1}, "scale >= 0"),
    ({"use": "gaussian_noise", "sigma": 1.0, "clip": 0.0}, "clip > 0"),
    ({"use": "dp_sgd", "sigma": 1.0, "clip": -1.0}, "clip > 0"),
    ({"use": "sparsify", "keep": 1.5}, r"\(0, 1\]"),
    ({"use": "soteria", "ratio": 1.5}, r"\[0, 1\]"),
    ({"use": "outpost", "prune": -0.5}, r"\[0, 1\]"),
    ({"use": "partial_access", "share": 2.0}, r"\[0, 1\]"),
    ({"use": "selective_encryption", "share": -1.0}, r"\[0, 1\]"),
    ({"use": "quantize", "bits": 0}, "1 to 32"),
    ({"use": "quantize", "bits": 64}, "1 to 32"),
]


def test_a_value_that_makes_no_sense_is_refused_in_one_sentence() -> None:
    for table, words in WRONG:
        with pytest.raises(SeepageError, match=words) as caught:
            resolve_cases({"defense": [table], "attack": [{"use": "linear"}]})
        sentence = str(caught.value).removeprefix("the recipe has mistakes:").strip()
        assert "\n" not in sentence, table
        assert ". " not in sentence, table


def test_a_delta_that_makes_no_sense_is_refused() -> None:
    for delta in (0.0, 1.0):
        with pytest.raises(SeepageError, match=r"delta in \(0, 1\)"):
            epsilon(sigma=1.0, delta=delta)


@pytest.mark.parametrize(
    ("model", "defense", "name", "values"),
    [
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3)),
            DPSGD(sigma=1.0),
            "batch_norm",
            ["'eval'"],
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), Soteria(ratio=0.5), "no_linear_layer", ["1"]),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), Soteria(ratio=0.5, layer="9"), "no_linear_layer", ["'9'"]),
    ],
)
def test_a_model_that_a_defense_cannot_handle_is_refused_with_the_remedy(
    model: nn.Module, defense: DPSGD | Soteria, name: str, values: list[str]
) -> None:
    transcript = record(model, Batch(torch.rand(2, 1, 8, 8), torch.tensor([0, 1])), defense=defense)
    with refusal(name, *values) as caught:
        transcript[0]
    assert "\n" not in str(caught.value)
